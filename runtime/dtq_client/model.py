"""What goes in and what comes out: the fields of a submission, and small frozen values for the answers.

The invariant: an answer of a newer server, with more fields or with statuses that this version does not know, can still
be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Required, TypedDict

from dtq_client.errors import ClientError

ENDED = frozenset({"succeeded", "failed", "dead_lettered", "cancelled", "expired"})
"""The statuses in which a task stays."""


class TaskOptions(TypedDict, total=False):
    """The optional fields of a submission, as in docs/http-api.md. What is left out, or None, has the task type's default."""

    queue: str | None
    idempotency_key: str | None
    max_attempts: int | None
    priority: int | None
    timeout_ms: int | None
    delay_seconds: float | None
    metadata: Mapping[str, Any] | None


class TaskFields(TaskOptions, total=False):
    """One submission of `submit_many`."""

    task_type: Required[str]
    payload: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task that the service has.

    `status` is None where the answer did not say it (the key's task has not ended). `duplicate`: the idempotency key you
    gave was taken already, by an earlier call, or by this one if an answer got lost on the way.
    """

    task_id: str
    status: str | None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """One answer per submission, in order: Submitted, or the error that `submit` would have raised."""

    answers: tuple[Submitted | ClientError, ...]

    @property
    def submitted(self) -> tuple[Submitted, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Submitted))

    @property
    def refused(self) -> dict[int, ClientError]:
        """Position of a submission that was not taken → why."""
        return {at: answer for at, answer in enumerate(self.answers) if isinstance(answer, ClientError)}

    def raise_refused(self) -> None:
        """Raise the first error, if there is one."""
        for error in self.refused.values():
            raise error


@dataclass(frozen=True, slots=True)
class Cancellation:
    """`ended`: it is cancelled and never runs. Otherwise it runs, and its worker has been asked to stop it."""

    task_id: str
    ended: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution. Instants are aware UTC."""

    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None
    worker_id: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    retryable: bool | None = None
    retry_delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the service sees it. The fields of the current or last execution are those from `started_at` on."""

    task_id: str
    status: str
    queue: str = ""
    task_type: str = ""
    payload: dict[str, Any] | None = None
    priority: int = 5
    attempt: int = 0
    max_attempts: int = 0
    timeout_ms: int = 0
    idempotency_key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    available_at: datetime | None = None
    cancel_requested: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None
    worker_id: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    retryable: bool | None = None
    retry_delay_ms: int | None = None
    history: tuple[Attempt, ...] = ()
    result: Any = None
    """What the handler returned, of a succeeded task while it is kept; else None."""

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"


def task_of(document: Mapping[str, Any]) -> Task:
    """Raises KeyError, TypeError or ValueError for what is no task."""
    if not isinstance(document["task_id"], str) or not isinstance(document["status"], str):
        raise TypeError("task_id and status are text")
    known = _known(Task, document)
    known["history"] = tuple(Attempt(**_known(Attempt, attempt)) for attempt in document.get("history") or ())
    return Task(**known)


_INSTANTS = ("created_at", "available_at", "started_at", "finished_at")


def _known(kind: type[Task] | type[Attempt], document: Mapping[str, Any]) -> dict[str, Any]:
    known = {item.name: document[item.name] for item in fields(kind) if item.name in document}
    for name in _INSTANTS:
        if known.get(name) is not None:
            known[name] = datetime.fromisoformat(known[name])
    return known
