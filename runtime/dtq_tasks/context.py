"""What a handler is told about the task it runs (contract §15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace


@dataclass(frozen=True, slots=True)
class TaskContext:
    """One execution of one task.

    `attempt` counts executions from 1. `deadline` is an aware UTC datetime: when timeout_ms ends. `fence` grows with
    every start and every change of owner and is never reset: hand it to systems that can refuse an older number.
    `traceparent` is the W3C trace context to pass on: of this attempt where spans are made, else what the submission gave.
    `state` holds what the worker's start-up functions put there.
    """

    task_id: str
    idempotency_key: str | None
    attempt: int
    worker_id: str
    queue: str
    deadline: datetime
    task_type: str = ""
    max_attempts: int = 1
    fence: int = 0
    traceparent: str | None = None
    state: SimpleNamespace = field(default_factory=SimpleNamespace, repr=False, compare=False)
