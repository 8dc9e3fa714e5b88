"""The metrics of contract §9: their names, labels and buckets, and what each is counted by. The only importer of prometheus_client.

Counters belong to the process that did the work, so API, workers and schedulers each have a `Metrics` of their own and a
scraper adds them up. Gauges that describe Redis come from one reader and are the same whoever is asked
(`QueueGauges`). The invariant: a label value is never text from a user. Queue names and task types that nobody vouches
for become OTHER, so the number of series is bounded.

prometheus_client decides when it is imported whether numbers are shared between processes; a process that wants that
must call `share_between_processes` before it imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from dtq_core.task import QUEUE_NAME

OTHER = "(other)"
"""Label value for what is not known; no queue and no task type can have that name."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ATTEMPT_RESULTS = ("success", "failure", "timeout", "error")
"""§9: the handler returned; it raised; its time was up; the attempt ended without an answer of the handler."""

_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_DELAYS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
_STRANGERS_MAX = 100

_TASK = ("queue", "task_type")


class Metrics:
    """Every counter and histogram of one process, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._gauges: list[QueueGauges] = []
        counter, histogram = self._counter, self._histogram
        self._submitted = counter("dtq_tasks_submitted", "Tasks taken in.", _TASK)
        self._started = counter("dtq_tasks_started", "Executions started.", _TASK)
        self._ends = {
            "succeeded": counter("dtq_tasks_succeeded", "Tasks that ended as succeeded.", _TASK),
            "failed": counter("dtq_tasks_failed", "Tasks that ended as failed (dead letters are off).", _TASK),
            "dead_lettered": counter("dtq_tasks_dead_lettered", "Tasks that became dead letters.", _TASK),
        }
        self._retried = counter("dtq_tasks_retried", "Retries scheduled.", _TASK)
        self._completed = counter("dtq_tasks_completed", "Tasks that ended, by how.", (*_TASK, "status"))
        self._attempts = counter("dtq_task_attempts", "Executions that ended, by how.", (*_TASK, "result"))
        self._inflight = Gauge(
            "dtq_worker_inflight", "Tasks a worker has in hand.", ("worker_id",), registry=self.registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self._worker_tasks = counter(
            "dtq_worker_tasks", "Executions a worker ended, by how.", ("worker_id", "task_type", "result")
        )
        self._duration = histogram("dtq_task_duration_seconds", "From submission to the end of the task.", _FAST)
        self._execution = histogram("dtq_task_execution_seconds", "Time in the handler.", _FAST)
        self._wait = histogram("dtq_task_wait_seconds", "From submission to the start of an execution.", _FAST)
        self._delay = histogram("dtq_retry_delay_seconds", "Delay of a scheduled retry.", _DELAYS)
        self._redis = counter("dtq_redis_operations", "Calls to Redis, by script or command.", ("operation", "result"))
        self._rejected = counter("dtq_ingest_rejected", "Submissions refused, by reason.", ("queue", "reason"))

    # -- whoever takes tasks in

    def submitted(self, queue: str, task_type: str) -> None:
        self._submitted.labels(queue, task_type).inc()

    def rejected(self, queue: str, reason: str) -> None:
        """`reason` is an error code in lower case."""
        self._rejected.labels(queue, reason).inc()

    # -- whoever runs or ends tasks

    def started(self, queue: str, task_type: str, wait_s: float) -> None:
        """One execution began, `wait_s` seconds after the task was created."""
        self._started.labels(queue, task_type).inc()
        self._wait.labels(queue, task_type).observe(max(0.0, wait_s))

    def attempted(self, worker_id: str, queue: str, task_type: str, result: str, execution_s: float) -> None:
        """One execution ended. `result` is one of ATTEMPT_RESULTS."""
        self._attempts.labels(queue, task_type, result).inc()
        self._worker_tasks.labels(worker_id, task_type, result).inc()
        self._execution.labels(queue, task_type).observe(max(0.0, execution_s))

    def retried(self, queue: str, task_type: str, delay_s: float) -> None:
        """A retry was scheduled."""
        self._retried.labels(queue, task_type).inc()
        self._delay.labels(queue, task_type).observe(max(0.0, delay_s))

    def completed(
        self, queue: str, task_type: str, status: str, duration_s: float | None = None, *, tasks: int = 1
    ) -> None:
        """Tasks reached the terminal `status`, `duration_s` seconds after they were created where that is known."""
        self._completed.labels(queue, task_type, status).inc(tasks)
        if status in self._ends:
            self._ends[status].labels(queue, task_type).inc(tasks)
        if duration_s is not None:
            self._duration.labels(queue, task_type).observe(max(0.0, duration_s))

    def inflight(self, worker_id: str, tasks: Callable[[], int]) -> None:
        """`tasks()` is asked at every scrape."""
        self._inflight.labels(worker_id).set_function(tasks)

    # -- everybody

    def redis(self, operation: str, result: str) -> None:
        """One call to Redis. `operation` is the name of a script or command, `result` ok or an error code in lower case."""
        self._redis.labels(operation, result).inc()

    def add_gauges(self, gauges: QueueGauges) -> None:
        self._gauges.append(gauges)
        self.registry.register(gauges)

    def forget_queue(self, queue: str) -> None:
        """Drop the series of a queue that is gone. Where processes share numbers the files keep them until the end."""
        if self.shared:
            return
        for metric in (self._submitted, self._started, *self._ends.values(), self._retried, self._completed,
                       self._attempts, self._duration, self._execution, self._wait, self._delay, self._rejected):  # fmt: skip
            metric.remove_by_labels({"queue": queue})

    @property
    def shared(self) -> bool:
        """Whether this process adds its numbers to those of its siblings."""
        return getattr(values.ValueClass, "_multiprocess", False)

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus; with siblings, the numbers of all of them."""
        if not self.shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        for gauges in self._gauges:
            registry.register(gauges)
        return generate_latest(registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, _TASK, buckets=buckets, registry=self.registry)


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """What the gauges say of one queue."""

    queue: str
    depth: int
    pending: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one read of Redis found."""

    queues: Sequence[QueueNumbers]
    retry_scheduled: int
    dlq_depth: int
    workers_active: int


class QueueGauges:
    """Gauges that describe Redis, from the last snapshot. None, when Redis did not answer, leaves them out."""

    def __init__(self, latest: Callable[[], Snapshot | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[GaugeMetricFamily]:
        depth = GaugeMetricFamily("dtq_queue_depth", "Waiting and running tasks of a queue.", labels=["queue"])
        pending = GaugeMetricFamily(
            "dtq_queue_pending", "Tasks of a queue that workers have in hand.", labels=["queue"]
        )
        scheduled = GaugeMetricFamily("dtq_retry_scheduled", "Tasks that wait for their time: delayed and retrying.")
        letters = GaugeMetricFamily("dtq_dlq_depth", "Dead letters.")
        workers = GaugeMetricFamily("dtq_workers_active", "Workers with a fresh heartbeat.")
        found = self._latest()
        if found is not None:
            for row in found.queues:
                depth.add_metric([row.queue], row.depth)
                pending.add_metric([row.queue], row.pending)
            scheduled.add_metric([], found.retry_scheduled)
            letters.add_metric([], found.dlq_depth)
            workers.add_metric([], found.workers_active)
        return depth, pending, scheduled, letters, workers


class Labels:
    """Decides which names may become label values; everything else is OTHER.

    Known queues and task types are those that were vouched for: the registry, announcements of workers, Redis' own list
    of queues. A queue name that is well formed but unknown is let through for the first hundred of them only.
    """

    def __init__(self, task_types: Collection[str] = ()) -> None:
        self._types = set(task_types)
        self._queues: set[str] = set()
        self._strangers: set[str] = set()

    def learn(self, queues: Iterable[str] = (), task_types: Iterable[str] = ()) -> None:
        self._queues.update(queues)
        self._types.update(task_types)

    def replace_queues(self, queues: Collection[str]) -> set[str]:
        """Now these are the known queues; those that were known and are not any more."""
        gone = self._queues.difference(queues)
        self._queues = set(queues)
        self._strangers -= gone
        return gone

    def queue(self, name: str) -> str:
        if name in self._queues or name in self._strangers:
            return name
        if len(self._strangers) < _STRANGERS_MAX and QUEUE_NAME.fullmatch(name):
            self._strangers.add(name)
            return name
        return OTHER

    def task_type(self, name: str) -> str:
        return name if name in self._types else OTHER
