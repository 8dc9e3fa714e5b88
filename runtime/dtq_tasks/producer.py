"""The seam between a handler's `.submit()` and whatever sends the task.

This package knows no Redis. The distribution names its producer as the entry point `dtq.producer`; it is looked up at
the first submission, so importing task modules stays free of I/O. Tests and applications set their own with `use`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from dtq_tasks.errors import TaskError


@dataclass(frozen=True, slots=True)
class SubmittedTask:
    """What came of a submission. `duplicate` is true when the idempotency key led to an earlier task that has ended."""

    task_id: str
    status: str
    duplicate: bool = False


class Producer(Protocol):
    """Sends one task; `fields` are the other fields of contract §11, absent where the caller has no wish."""

    def submit(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask: ...

    async def submit_async(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask: ...


_current: Producer | None = None


def use(producer: Producer | None) -> None:
    """Send every `.submit()` of this process through `producer`; None goes back to the one from the environment."""
    global _current
    _current = producer


def current() -> Producer:
    """The producer in use; made from the environment (DTQ_REDIS_URL …) at the first call."""
    global _current
    if _current is None:
        found = list(entry_points(group="dtq.producer"))
        if not found:
            raise TaskError("no producer: install dtq, or set one with dtq_tasks.producer.use(…)")
        make: Callable[[], Producer] = found[0].load()
        _current = make()
    return _current
