"""The lease thread: renews what is in hand and the worker's row, on a connection and in a thread of its own.

A handler that blocks the event loop, a full pool or a long drain cannot stop it. What it learns (a task was lost, a
cancel was asked for, the lease is gone) it hands to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dtq_core.errors import DtqError
from dtq_core.log import RateLimited
from dtq_core.store import Delivery, SyncStore
from dtq_core.store.transitions import BATCH
from dtq_worker.executor import Executor
from dtq_worker.inflight import Stop
from dtq_worker.settler import Counters

logger = logging.getLogger("dtq.worker")
_limited = RateLimited(logger)

ROW_INTERVALS = 10
TYPES_KEPT_S = 7 * 86_400


def row_ttl_s(heartbeat_interval_s: float) -> int:
    """How long a worker's row outlives its last heartbeat (§2)."""
    return max(1, round(ROW_INTERVALS * heartbeat_interval_s))


class LeaseKeeper(threading.Thread):
    """One heartbeat per interval, and at once when nudged. Lives until `stop`, the drain included."""

    def __init__(
        self,
        store: SyncStore,
        worker_id: str,
        queues: Sequence[str],
        executor: Executor,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(name="dtq-lease", daemon=True)
        self.store = store
        self.worker_id = worker_id
        self.queues = list(queues)
        self.executor = executor
        self.counters = counters
        self.status = "starting"
        self.started_ms = 0
        self._loop = loop
        self._wake = threading.Event()
        self._ended = False
        self._renewed = time.monotonic()
        self._rng = random.Random()
        self._fenced = False

    def row(self) -> dict[str, Any]:
        """The fields of dtq:worker:<id> (§2) beside last_heartbeat. `status` is what we say of ourselves: never stale."""
        active = self.executor.inflight.active
        status = self.status if self.status != "ready" else "busy" if active else "ready"
        return {
            "worker_id": self.worker_id,
            "hostname": socket.gethostname(),
            "started_at": self.started_ms,
            "active_tasks": active,
            "concurrency": self.executor.inflight.concurrency,
            "tasks_processed": self.counters.processed,
            "tasks_failed": self.counters.failed,
            "tasks_retried": self.counters.retried,
            "status": status,
            "queues": ",".join(self.queues),
            "interval_ms": round(self.store.settings.heartbeat_interval_s * 1000),
            "pid": os.getpid(),
        }

    def nudge(self) -> None:
        """Look at the tasks now; from any thread."""
        self._wake.set()

    def stop(self) -> None:
        self._ended = True
        self._wake.set()

    def run(self) -> None:
        interval = self.store.settings.heartbeat_interval_s
        while not self._ended:
            try:
                self.step()
            except DtqError as exc:
                _limited.log(logging.WARNING, f"lease {exc.code}", "leases cannot be renewed: %s", exc)
            except BaseException:  # whatever it is, leases must go on
                _limited.log(logging.ERROR, "lease bug", "the lease thread met an error and goes on", exc_info=True)
            self._fence_when_late()
            self.executor.tick.look()
            nudged = self._wake.wait(interval * self._rng.uniform(0.8, 1.0))
            if nudged:
                self._wake.clear()

    def step(self) -> None:
        """Renew every lease, then the row. Raises DtqError when Redis fails."""
        self._fence_when_late()
        leases = self.executor.inflight.leases()
        began = time.monotonic()
        for start in range(0, len(leases), BATCH):
            part = leases[start : start + BATCH]
            answers = self.store.run(self.store.calls.touch(self.worker_id, part))
            self._tell(part, answers)
        self.beat()
        self._renewed = began
        self._fenced = False

    def beat(self) -> None:
        """Write the row and announce the task types (decision 13). Raises DtqError when Redis fails."""
        settings = self.store.settings
        announced = self.status != "draining"
        call = self.store.calls.beat(
            row_ttl_s(settings.heartbeat_interval_s),
            self.row(),
            born_ms=self.started_ms,
            queues=self.queues if announced else (),
            types=sorted(self.executor.registry.handlers) if announced else (),
            types_kept_s=TYPES_KEPT_S,
        )
        errors = self.store.run(call)
        if errors is None:
            # We were suspended for so long that our row expired, and another one took our fixed name (BQ-62).
            logger.error("another worker is %s by now: leaving, nothing is acknowledged", self.worker_id)
            logging.shutdown()
            os._exit(1)
        for error in errors:
            _limited.log(logging.ERROR, f"row {error[:60]}", "the worker's row cannot be written: %s", error)

    def _tell(self, part: Sequence[Delivery], answers: Sequence[str]) -> None:
        for delivery, answer in zip(part, answers, strict=True):
            key = (delivery.task_id, delivery.fence)
            if answer == "LOST":
                self._on_loop(self.executor.lose, key)
            elif answer == "CANCEL":
                self._on_loop(self.executor.cancel, key)

    def _fence_when_late(self) -> None:
        """A whole visibility timeout without a renewal: others may run our tasks by now (decision 5)."""
        late = time.monotonic() - self._renewed > self.store.settings.visibility_timeout_s
        if late and not self._fenced and len(self.executor.inflight):
            self._fenced = True
            logger.warning("no lease was renewed for a whole visibility timeout; running handlers are stopped")
            self._on_loop(self.executor.stop_all, Stop.LEASE)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is closed: the process is on its way out
