"""From raw input to a call of submit.lua, and from its answer to a value or an error. Shared by client and producer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from dtq_core.config import Settings
from dtq_core.errors import (
    DtqError,
    IdempotencyInProgress,
    PayloadTooLarge,
    QueueFull,
    QueueLimit,
    StoreError,
    UnknownTaskType,
)
from dtq_core.store.transitions import Call, SubmitAnswer, Transitions
from dtq_core.submission import Submission, SubmissionInput
from dtq_tasks.registry import Registry

_TYPE_DEFAULTS = ("queue", "max_attempts", "timeout_ms", "priority")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of a submission. `duplicate`: the idempotency key led to an earlier task that has ended."""

    task_id: str
    status: str
    duplicate: bool = False


class Admission:
    """Checks submissions against limits and the registry. Holds nothing but its arguments."""

    def __init__(self, settings: Settings, calls: Transitions, registry: Registry | None) -> None:
        self.settings = settings
        self.calls = calls
        self.registry = registry

    def check(self, raw: SubmissionInput | dict[str, Any]) -> Submission:
        """One submission with the defaults of its type filled in. Raises what Submission.make raises."""
        name = raw.get("task_type") if isinstance(raw, dict) else getattr(raw, "task_type", None)
        handler = self.registry.handlers.get(name) if self.registry and isinstance(name, str) else None
        if handler is not None:
            given = raw if isinstance(raw, dict) else raw.model_dump(exclude_unset=True)
            missing = {
                key: value
                for key in _TYPE_DEFAULTS
                if given.get(key) is None and (value := getattr(handler.defaults, key)) is not None
            }
            raw = {**given, **missing} if missing else raw
        return Submission.make(raw, uuid4().hex, self.settings)

    def call(self, submissions: Sequence[Submission]) -> Call[list[SubmitAnswer]]:
        return self.calls.submit(submissions, ask=self._ask)

    def answer(self, answer: SubmitAnswer, submission: Submission, retry_after_s: int = 5) -> Submitted | DtqError:
        """An answer of the script as a value, or as the error to raise."""
        queue = submission.queue
        match answer.code:
            case "OK":
                return Submitted(answer.task_id, answer.detail)
            case "DUPLICATE":
                return Submitted(answer.task_id, answer.detail, duplicate=True)
            case "IN_PROGRESS":
                return IdempotencyInProgress(
                    f"the key belongs to task {answer.task_id}, which is {answer.detail}", task_id=answer.task_id
                )
            case "FULL":
                return QueueFull(f"queue {queue} holds {answer.detail} tasks, its limit", retry_after_s=retry_after_s)
            case "SCHEDULE_FULL":
                return QueueFull(f"queue {queue} holds as many delayed tasks as it may", retry_after_s=retry_after_s)
            case "QUEUE_LIMIT":
                return QueueLimit(f"there are {self.settings.max_queues} queues already; {queue} would be one more")
            case "UNKNOWN":
                return UnknownTaskType(f"no worker of queue {queue} knows task type {submission.task_type}")
            case "TOO_LARGE":
                size = len(submission.payload)
                return PayloadTooLarge(f"payload has {size} bytes, queue {queue} takes {answer.detail}")
            case _:
                return StoreError(f"the task was not written: {answer.detail[:300]}")

    def _ask(self, task_type: str) -> int:
        if self.registry is None or not self.registry.handlers:
            return 1
        return 0 if task_type in self.registry.handlers else 2


class DrainRate:
    """How fast queues finish tasks, from samples of their ledgers; decides Retry-After (decision 24)."""

    _WINDOW_S = 300.0

    def __init__(self) -> None:
        self._samples: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def sample(self, queue: str, finished: int, depth: int, now: float | None = None) -> int:
        """Seconds, 1…60, until a tenth of the queue should be gone; 5 while the rate is unknown."""
        at = time.monotonic() if now is None else now
        earlier = self._samples.get(queue)
        if earlier is None or at - earlier[0] > self._WINDOW_S:
            self._samples[queue] = (at, finished)
            self._rates.pop(queue, None)
        elif at - earlier[0] >= 1:
            self._rates[queue] = max(0.0, (finished - earlier[1]) / (at - earlier[0]))
        rate = self._rates.get(queue)
        if rate is None:
            return 5
        return 60 if rate == 0 else min(60, max(1, math.ceil(depth / 10 / rate)))
