"""What a worker has in hand, and how many more tasks it may take.

A slot is used from the moment a fetch that may fill it is sent until its task is settled *and* its handler has really
ended: a thread that outlives its timeout keeps its slot. So neither the pending list nor the threads ever exceed the
concurrency.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dtq_core.store import Delivery
from dtq_tasks.registry import AnyHandler

_REMEMBERED = 4096


class Stop(Enum):
    """Why a run was told to stop before its handler ended."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    """Another worker owns the task now: nothing may be written."""
    LEASE = "lease"
    """Our renewals failed for a whole visibility timeout: another worker may own the task by now."""
    DRAIN = "drain"
    """The drain time is up: the task is left to the peers."""


Key = tuple[str, str]
"""Task id and fence: one start of one task."""


@dataclass(eq=False, slots=True)
class Run:
    """One start of one task in this process. Times are monotonic seconds."""

    delivery: Delivery
    handler: AnyHandler
    started: float
    deadline: float
    task: asyncio.Task[None] | None = None
    stop: Stop | None = None
    stopped_at: float = 0.0
    decided: bool = False
    """An outcome is on its way to the store, or none ever will be."""
    settled: bool = False
    began: bool = False
    handler_ended: bool = False
    is_async: bool = False
    """Whether a coroutine is at work, which can be stopped; a thread cannot. A plain function may hand one out."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.delivery.task_id, self.delivery.fence

    def tell_to_stop(self, why: Stop) -> None:
        """Cancel the handler if it is a coroutine. The first reason stays, except that a lost task stays lost."""
        if self.stop is None or why is Stop.LOST:
            self.stop = why
            self.stopped_at = time.monotonic()
        # A task that is cancelled before its first step would never run its own clean-up: it looks at `stop` itself.
        if self.task is not None and self.began and not self.handler_ended:
            self.task.cancel()


class InFlight:
    """The runs of this worker by key. Changed on the event loop only; `leases` may be called from any thread."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.reserved = 0
        self._runs: dict[Key, Run] = {}
        self._zombies = 0
        self._gone: OrderedDict[Key, None] = OrderedDict()
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def free(self) -> int:
        """Slots that nobody uses and no fetch under way may fill; below zero while refused settlements keep theirs."""
        return self.concurrency - len(self._runs) - self._zombies - self.reserved

    @property
    def active(self) -> int:
        """Slots in use: tasks in hand, and handlers that outlive theirs."""
        return len(self._runs) + self._zombies

    def knows(self, key: Key) -> bool:
        """Whether this start is in hand, or was until a moment ago: then a late answer that names it changes nothing."""
        return key in self._runs or key in self._gone

    def add(self, run: Run) -> None:
        self._runs[run.key] = run

    def get(self, key: Key) -> Run | None:
        return self._runs.get(key)

    def runs(self) -> list[Run]:
        return list(self._runs.values())

    def leases(self) -> list[Delivery]:
        """Deliveries whose lease must be renewed."""
        return [run.delivery for run in list(self._runs.values()) if not run.settled]

    def settled(self, run: Run) -> None:
        """The store has the outcome, or will never take one from us."""
        run.settled = True
        if self._runs.pop(run.key, None) is not None:
            self._gone[run.key] = None
            if len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)
            if not run.handler_ended:
                self._zombies += 1
        self.changed.set()

    def handler_ended(self, run: Run) -> None:
        if not run.handler_ended:
            run.handler_ended = True
            if run.settled:
                self._zombies -= 1
                self.changed.set()
