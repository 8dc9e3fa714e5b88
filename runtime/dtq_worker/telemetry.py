"""The worker's own numbers: counted where the work is done, served at DTQ_METRICS_PORT beside its probes (contract §9).

Without a port nothing is counted or served, and prometheus_client is not even imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from dtq_core.config import Settings
from dtq_core.retry import Cancelled, Outcome, Succeeded, TimedOut
from dtq_core.store import Delivery
from dtq_core.store.transitions import Ended
from dtq_core.task import TaskStatus
from dtq_worker.settler import Pending

if TYPE_CHECKING:
    from dtq_core.metrics import Labels, Metrics
    from dtq_core.probes import ProbeServer, Troubles


class Telemetry:
    """Hears of every start and end in this process. `metrics` is None where nobody asked for them.

    `task_types` are those that this worker runs; what else it ends at the gate is counted as OTHER: a type that nobody
    runs is text of a user.
    """

    def __init__(self, settings: Settings, task_types: Collection[str]) -> None:
        self.metrics: Metrics | None = None
        self._labels: Labels | None = None
        self._settings = settings
        self._worker_id = ""
        self._server: ProbeServer | None = None
        if settings.metrics_port:
            from dtq_core.metrics import Labels, Metrics

            self.metrics, self._labels = Metrics(), Labels(task_types)

    def serve(
        self,
        worker_id: str,
        active: Callable[[], int],
        unhealthy: Callable[[], Troubles],
        not_ready: Callable[[], Awaitable[Troubles]],
    ) -> None:
        """Answer /metrics, /health and /ready from now on. Raises InvalidConfig where the port is taken."""
        self._worker_id = worker_id
        if self.metrics is None:
            return
        from dtq_core.probes import serve

        self.metrics.inflight(worker_id, active)
        self._server = serve(self._settings, self.metrics, unhealthy, not_ready)

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def started(self, delivery: Delivery) -> None:
        if self.metrics is not None:
            wait_s = (delivery.started_at_ms - delivery.created_at_ms) / 1000
            self.metrics.started(delivery.queue, delivery.task_type, wait_s)

    def settled(self, pending: Pending, status: str) -> None:
        if self.metrics is None:
            return
        d, s = pending.settling.delivery, pending.settling
        self.metrics.attempted(self._worker_id, d.queue, d.task_type, _result(pending.outcome), s.duration_ms / 1000)
        if status == TaskStatus.RETRYING:
            self.metrics.retried(d.queue, d.task_type, (s.settlement.retry_delay_ms or 0) / 1000)
        else:
            took_ms = d.started_at_ms - d.created_at_ms + s.duration_ms
            self.metrics.completed(d.queue, d.task_type, status, took_ms / 1000)

    def ended(self, task: Ended) -> None:
        """A gate or a release ended a task without running it."""
        if self.metrics is not None and self._labels is not None:
            self.metrics.completed(task.queue, self._labels.task_type(task.task_type), task.status)

    def redis(self, operation: str, result: str) -> None:
        if self.metrics is not None:
            self.metrics.redis(operation, result)


def _result(outcome: Outcome) -> str:
    match outcome:
        case Succeeded():
            return "success"
        case TimedOut():
            return "timeout"
        case Cancelled():
            return "error"
        case _:
            return "failure"
