"""Decisions on their way to the store, in batches, and what became of them. A decision leaves only when the store has answered.

After a lost reply the same settlement is simply sent again: the fence makes the second one answer ALREADY.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtq_core.log import RateLimited
from dtq_core.retry import Outcome
from dtq_core.store.transitions import Settling
from dtq_core.task import TaskStatus
from dtq_worker.inflight import InFlight, Run

logger = logging.getLogger("dtq.worker")
_limited = RateLimited(logger)

MAX_BATCH = 64


@dataclass(slots=True)
class Pending:
    """One decision that the store does not have yet."""

    run: Run
    settling: Settling
    outcome: Outcome


@dataclass(slots=True)
class Counters:
    """What the worker's row says it did since it started (§2)."""

    processed: int = 0
    failed: int = 0
    retried: int = 0


Observer = Callable[[Pending, str], None]
"""Told of every settlement that was written, with the status that was written: logs and metrics."""


class Settler:
    """A queue of decisions. `take` and `apply` are called by whoever has a connection to send them on."""

    def __init__(self, inflight: InFlight, observer: Observer) -> None:
        self.inflight = inflight
        self.counters = Counters()
        self._observer = observer
        self._waiting: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, run: Run, settling: Settling, outcome: Outcome) -> None:
        self._waiting.append(Pending(run, settling, outcome))
        self.inflight.changed.set()

    def take(self) -> list[Pending]:
        """The next batch; the caller must `apply` or `put_back` it."""
        waiting = self._waiting
        if len(waiting) <= MAX_BATCH:
            batch = list(waiting)
            waiting.clear()
            return batch
        return [waiting.popleft() for _ in range(MAX_BATCH)]

    def put_back(self, batch: Sequence[Pending]) -> None:
        self._waiting.extendleft(reversed(batch))
        self.inflight.changed.set()

    def apply(self, batch: Sequence[Pending], answers: Sequence[str]) -> bool:
        """Take note of what the store answered. False if something must be sent again, later."""
        again: list[Pending] = []
        for pending, answer in zip(batch, answers, strict=True):
            if answer.startswith("ERROR"):
                again.append(pending)
                _limited.log(
                    logging.ERROR, "settle", "the end of task %s cannot be written yet: %s",
                    pending.settling.delivery.task_id, answer.removeprefix("ERROR "),
                )  # fmt: skip
                continue
            if answer == "LOST":
                logger.warning(
                    "task %s belongs to another worker by now; this result is discarded",
                    pending.settling.delivery.task_id,
                    extra={"task_id": pending.settling.delivery.task_id},
                )
            elif answer != "ALREADY":
                self._count(answer)
                self._observer(pending, answer)
            else:
                self._count(pending.settling.settlement.status)
                self._observer(pending, pending.settling.settlement.status)
            self.inflight.settled(pending.run)
        self.put_back(again)
        return not again

    def _count(self, status: str) -> None:
        self.counters.processed += 1
        if status == TaskStatus.RETRYING:
            self.counters.retried += 1
        elif status in (TaskStatus.FAILED, TaskStatus.DEAD_LETTERED):
            self.counters.failed += 1
