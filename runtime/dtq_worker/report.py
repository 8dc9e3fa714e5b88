"""What a worker says about its tasks: one log line per end."""

from __future__ import annotations

import logging

from dtq_core import log
from dtq_core.retry import Failed, TimedOut
from dtq_core.store.transitions import Ended
from dtq_core.task import TaskStatus
from dtq_worker.settler import Pending

logger = logging.getLogger("dtq.worker")
_limited = log.RateLimited(logger)
"""A failure in each of a thousand tasks is one traceback and a count."""

_EVENT = {
    TaskStatus.SUCCEEDED.value: "TASK_SUCCEEDED",
    TaskStatus.RETRYING.value: "TASK_RETRY_SCHEDULED",
    TaskStatus.FAILED.value: "TASK_FAILED",
    TaskStatus.DEAD_LETTERED.value: "TASK_DEAD_LETTERED",
    TaskStatus.CANCELLED.value: "TASK_CANCELLED",
    TaskStatus.EXPIRED.value: "TASK_EXPIRED",
}


def settled(pending: Pending, status: str) -> None:
    """The store has written `status`."""
    bad = status in (TaskStatus.FAILED, TaskStatus.DEAD_LETTERED, TaskStatus.RETRYING)
    level = logging.WARNING if bad else logging.INFO
    if not logger.isEnabledFor(level):
        return
    s, d = pending.settling, pending.settling.delivery
    fields = {
        "task_id": d.task_id,
        "task_type": d.task_type,
        "queue": d.queue,
        "attempt": d.attempt,
        "status": status,
        "duration_ms": s.duration_ms,
        "event_type": _EVENT.get(status, ""),
    }
    if traceparent := s.trace.rpartition(" ")[2] or d.trace.partition(" ")[0]:
        fields["traceparent"] = traceparent
    if bad and isinstance(pending.outcome, (Failed, TimedOut)):
        error = f"{s.settlement.error_class}: {s.settlement.error_message}"
        if status == TaskStatus.RETRYING:
            after_s = (s.settlement.retry_delay_ms or 0) / 1000
            logger.warning("attempt %d failed, next in %.1f s: %s", d.attempt, after_s, error, extra=fields)
        else:
            logger.warning("attempt %d failed, the last: %s", d.attempt, error, extra=fields)
        if (raised := pending.run.extra.get("error")) is not None:
            key = f"{d.task_type} {s.settlement.error_class}"
            _limited.log(logging.WARNING, key, "raised by its handler", extra=fields, exc_info=raised)
    else:
        log.info(logger, f"{status} in {s.duration_ms} ms", fields)


def ended(task: Ended) -> None:
    """A gate ended a task without running it."""
    logger.warning(
        "%s without running", task.status,
        extra={
            "task_id": task.task_id, "task_type": task.task_type, "queue": task.queue, "status": task.status,
            "event_type": _EVENT.get(task.status, ""),
        },
    )  # fmt: skip
