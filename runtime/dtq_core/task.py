"""Task, TaskStatus, Attempt and the table of transitions: contract §1. Pure; built by the codec, read by everybody.

The invariant: no code path moves a task along an edge that is neither in TRANSITIONS nor in NAMED_TRANSITIONS. The
scripts get their lists of legal sources from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from dtq_core.errors import InvalidTransition

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TASK_TYPE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
TASK_ID = re.compile(r"[0-9a-f]{32}")
BANDS = range(9, -1, -1)
"""Priority bands in the order in which workers drain them."""


class TaskStatus(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        return not TRANSITIONS[self]


_S = TaskStatus

TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    _S.PENDING: frozenset({_S.QUEUED, _S.CANCELLED, _S.EXPIRED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.EXPIRED}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.RETRYING, _S.FAILED, _S.DEAD_LETTERED, _S.CANCELLED}),
    _S.RETRYING: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.DEAD_LETTERED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.EXPIRED: frozenset(),
}

NAMED_TRANSITIONS: Mapping[str, tuple[TaskStatus, TaskStatus]] = {
    "revive": (_S.DEAD_LETTERED, _S.QUEUED),
    "redelivery": (_S.RUNNING, _S.RUNNING),
    "hand_back": (_S.RUNNING, _S.QUEUED),
    "defer": (_S.QUEUED, _S.PENDING),
}
"""Moves outside the table, each with a script of its own (decision 14)."""

LIVE = tuple(s for s in TaskStatus if TRANSITIONS[s])
TERMINAL = tuple(s for s in TaskStatus if not TRANSITIONS[s])


def check_transition(source: TaskStatus, target: TaskStatus) -> None:
    """Raise InvalidTransition unless §1 has the edge source → target."""
    if target not in TRANSITIONS[source]:
        raise InvalidTransition(f"a task cannot go from {source} to {target}")


def sources_of(target: TaskStatus) -> tuple[TaskStatus, ...]:
    """The statuses from which §1 lets a task reach `target`."""
    return tuple(s for s in TaskStatus if target in TRANSITIONS[s])


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution: what §1 records of it. Times are aware UTC; durations and delays in milliseconds."""

    attempt: int
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
    """One logical task as its hash holds it. `attempt` counts executions started (decision 1)."""

    task_id: str
    queue: str
    task_type: str
    payload: dict[str, Any] | None
    status: TaskStatus
    created_at: datetime
    available_at: datetime
    attempt: int
    max_attempts: int
    priority: int
    timeout_ms: int
    idempotency_key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    fence: int = 0
    entry_id: str | None = None
    cancel_requested: bool = False
    last: Attempt | None = None
    """The current or last execution."""
    history: tuple[Attempt, ...] = ()
    """Executions of this life, oldest first, at most the last ten, the current one included."""
