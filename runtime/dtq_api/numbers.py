"""The one reader of what the gauges show: at most one read of Redis per two seconds, however often /metrics is asked for.

Read when it is asked for, so that nobody pays where nobody scrapes. Without an answer of Redis the gauges are left out;
the counters are there all the same.
"""

from __future__ import annotations

import asyncio
import time

from dtq_core.errors import DtqError
from dtq_core.inspector import Inspector
from dtq_core.metrics import Labels, Metrics, QueueNumbers, Snapshot

MAX_AGE_S = 2.0
PATIENCE_S = 0.8
"""A scrape answers within a second, with or without Redis."""
_TYPES_PER_QUEUE = 200


class Numbers:
    """The last snapshot, and the names that may be labels because Redis knows them."""

    def __init__(self, inspector: Inspector, metrics: Metrics, labels: Labels) -> None:
        self._inspector = inspector
        self._metrics = metrics
        self._labels = labels
        self._snapshot: Snapshot | None = None
        self._read_at = -MAX_AGE_S
        self._lock = asyncio.Lock()

    def latest(self) -> Snapshot | None:
        return self._snapshot

    async def refresh(self) -> None:
        """Read again if the last read is too old. Raises nothing."""
        async with self._lock:
            if time.monotonic() - self._read_at < MAX_AGE_S:
                return
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._snapshot = await self._read()
            except (DtqError, TimeoutError):
                self._snapshot = None
            self._read_at = time.monotonic()

    async def _read(self) -> Snapshot:
        queues = await self._inspector.queues()
        workers = await self._inspector.workers()
        letters = await self._inspector.dlq_depth()
        names = [row.queue for row in queues]
        store = self._inspector.store
        announced = await store.send(
            *(("ZREVRANGE", store.keys.task_types(name), 0, _TYPES_PER_QUEUE - 1) for name in names)
        )
        self._labels.learn(task_types=(name for found in announced if isinstance(found, list) for name in found))
        for gone in self._labels.replace_queues(names):
            self._metrics.forget_queue(gone)
        return Snapshot(
            queues=[QueueNumbers(row.queue, row.depth, row.pending) for row in queues],
            retry_scheduled=sum(row.retry_scheduled for row in queues),
            dlq_depth=letters,
            workers_active=sum(w.status not in ("stale", "stopped") for w in workers),
        )
