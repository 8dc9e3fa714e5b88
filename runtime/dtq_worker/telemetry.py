"""The worker's own numbers: counted where the work is done, served at DTQ_METRICS_PORT (contract §9).

Without a port nothing is counted, and prometheus_client is not even imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dtq_core.config import Settings
from dtq_core.errors import InvalidConfig
from dtq_core.retry import Cancelled, Outcome, Succeeded, TimedOut
from dtq_core.store import Delivery
from dtq_core.store.transitions import Ended
from dtq_core.task import TaskStatus
from dtq_worker.settler import Pending

if TYPE_CHECKING:
    from dtq_core.metrics import Metrics


class Telemetry:
    """Hears of every start and end in this process. `metrics` is None where nobody asked for them."""

    def __init__(self, settings: Settings) -> None:
        self.metrics: Metrics | None = None
        self._settings = settings
        self._worker_id = ""
        if settings.metrics_port:
            from dtq_core.metrics import Metrics

            self.metrics = Metrics()

    def serve(self, worker_id: str, active: Callable[[], int]) -> None:
        """Answer GET /metrics from now on, in a thread of its own. Raises InvalidConfig where the port is taken."""
        self._worker_id = worker_id
        if self.metrics is None:
            return
        self.metrics.inflight(worker_id, active)
        try:
            self.metrics.serve(self._settings.metrics_host, self._settings.metrics_port)
        except OSError as exc:
            raise InvalidConfig(
                f"DTQ_METRICS_PORT: cannot listen on port {self._settings.metrics_port}: {exc.strerror}"
            ) from None

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
        if self.metrics is not None:
            self.metrics.completed(task.queue, task.task_type, task.status)

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
