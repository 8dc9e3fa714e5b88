"""Whether the event loop turns, seen from the lease thread: a coroutine that blocks it silences everything else.

A thread cannot interrupt a coroutine. So the blocked worker first says which handlers it runs, keeps its leases while
they may still end in time, and leaves without acknowledging anything once they cannot: peers then take its tasks over,
and a task that does this every time ends as a dead letter (WorkerLost).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable

from dtq_core.log import RateLimited
from dtq_worker.inflight import InFlight, Run

logger = logging.getLogger("dtq.worker")
_limited = RateLimited(logger)

LAG_WARNING_S = 1.0
EXIT_BLOCKED = 1


def leave_process() -> None:
    """End at once, from any thread; nothing is acknowledged."""
    logging.shutdown()
    os._exit(EXIT_BLOCKED)


class LoopTick:
    """`turned` is called by the loop as it turns; `look` by the lease thread. Times are monotonic seconds."""

    def __init__(
        self,
        inflight: InFlight,
        grace_s: float,
        drain_s: float,
        look_every_s: float,
        leave: Callable[[], None] = leave_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`grace_s`: how long past its deadline a run may hold up the loop; `drain_s`: likewise past a stop signal."""
        self.inflight = inflight
        self.grace_s = grace_s
        self.drain_s = drain_s
        self.stop_signalled: Callable[[], float | None] = lambda: None
        self.look_every_s = look_every_s
        self._leave = leave
        self._clock = clock
        self._turned = self._turned_before = self._looked = clock()
        self._observed_s = 0.0

    def turned(self) -> None:
        """The loop is turning now. Tells of the time it did not."""
        now = self._clock()
        silent_s, self._turned = now - self._turned, now
        if silent_s > LAG_WARNING_S:
            self._tell(silent_s, "was")

    def look(self) -> None:
        """Say that the loop is blocked; leave the process when waiting for it has no point any more."""
        now = self._clock()
        silent_s = now - self._turned
        self._observe(now)
        runs = self.inflight.runs()
        if silent_s <= LAG_WARNING_S:
            return
        self._tell(silent_s, "has been")
        # What a handler left behind can block the loop when nothing is in hand any more.
        overdue = [run for run in runs if now - run.deadline > self.grace_s]
        if self._observed_s > self.grace_s and (overdue or not runs):
            logger.error(
                "the event loop is blocked and tasks are past their deadline (%s): leaving, nothing is acknowledged",
                _names(overdue) or "none in hand",
            )
            self._leave()
        elif (asked := self.stop_signalled()) is not None and min(self._observed_s, now - asked) > self.drain_s:
            logger.error("the event loop is blocked and the drain time is up: leaving, nothing is acknowledged")
            self._leave()

    def _observe(self, now: float) -> None:
        """Add up the silence that we were awake to see: a process that was suspended is not a blocked loop."""
        seen_s, self._looked = min(now - self._looked, 2 * self.look_every_s), now
        self._observed_s = self._observed_s + seen_s if self._turned == self._turned_before else 0.0
        self._turned_before = self._turned

    def _tell(self, silent_s: float, tense: str) -> None:
        _limited.log(
            logging.WARNING, "lag",
            "the event loop %s blocked for %.1f s; handlers running: %s (use a plain def for blocking code)",
            tense, silent_s, _names(run for run in self.inflight.runs() if run.is_async) or "none",
        )  # fmt: skip


def _names(runs: Iterable[Run]) -> str:
    return ", ".join(sorted({run.delivery.task_type for run in runs}))
