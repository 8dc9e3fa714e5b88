"""Task ⇄ hash, dead letter ⇄ entry, worker ⇄ row: the only place that knows how fields are spelled.

Reading is tolerant: a record with a missing or broken field still becomes a value, so that one bad record cannot hide a
page of good ones. Writing is done by the scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from dtq_core.clock import from_ms, iso, to_ms
from dtq_core.task import Attempt, Task, TaskStatus

_HISTORY_MAX = 10


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry of the dead-letter stream. `payload` is None where it is not a JSON object."""

    task_id: str
    queue: str
    task_type: str
    payload: dict[str, Any] | None
    failed_at: datetime
    attempts_made: int
    max_attempts: int
    last_error: str
    last_error_class: str
    retryable: bool
    worker_id: str | None
    priority: int
    timeout_ms: int
    idempotency_key: str | None
    entry_id: str
    raw: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker's row. `status` is "stale" where the heartbeat is older than three intervals; `age_s` is its age."""

    worker_id: str
    hostname: str
    started_at: datetime
    last_heartbeat: datetime
    active_tasks: int
    concurrency: int
    tasks_processed: int
    tasks_failed: int
    tasks_retried: int
    status: str
    queues: tuple[str, ...]
    age_s: float


def task_from_hash(task_id: str, h: Mapping[str, str]) -> Task | None:
    """The task of a hash, or None where there is no readable record."""
    try:
        status = TaskStatus(h["status"])
    except (KeyError, ValueError):
        return None
    created = _int(h.get("created_at"), 0)
    last = _last_attempt(h)
    return Task(
        task_id=task_id,
        queue=h.get("queue", ""),
        task_type=h.get("task_type", ""),
        payload=_object(h.get("payload")),
        status=status,
        created_at=from_ms(created),
        available_at=from_ms(_int(h.get("available_at"), created)),
        attempt=_int(h.get("attempt"), 0),
        max_attempts=_int(h.get("max_attempts"), 0),
        priority=_int(h.get("priority"), 0),
        timeout_ms=_int(h.get("timeout_ms"), 0),
        idempotency_key=h.get("idempotency_key") or None,
        metadata=_object(h.get("metadata")) or {},
        fence=_int(h.get("fence"), 0),
        entry_id=h.get("entry_id") or None,
        cancel_requested=h.get("cancel_requested") == "1",
        last=last,
        history=_history(h.get("history", ""), last),
    )


def task_document(task: Task) -> dict[str, Any]:
    """A task as the JSON document that API and CLI show: §1's fields, the last execution flat, `history` oldest first."""
    last = task.last or Attempt(task.attempt)
    return {
        "task_id": task.task_id,
        "queue": task.queue,
        "task_type": task.task_type,
        "status": task.status.value,
        "payload": task.payload,
        "priority": task.priority,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "timeout_ms": task.timeout_ms,
        "idempotency_key": task.idempotency_key,
        "metadata": task.metadata,
        "created_at": _iso(task.created_at),
        "available_at": _iso(task.available_at),
        "cancel_requested": task.cancel_requested,
        **{key: value for key, value in attempt_document(last).items() if key != "attempt"},
        "history": [attempt_document(a) for a in task.history],
    }


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    """One execution as JSON: ISO times, milliseconds, None where not known."""
    return {k: _iso(v) if isinstance(v, datetime) else v for k, v in asdict(attempt).items()}


def letter_from_entry(entry_id: str, fields: Mapping[str, str]) -> DeadLetter:
    """A dead letter, whatever is missing in it."""
    return DeadLetter(
        task_id=fields.get("task_id", ""),
        queue=fields.get("original_queue") or fields.get("queue", ""),
        task_type=fields.get("task_type", ""),
        payload=_object(fields.get("payload")),
        failed_at=from_ms(_int(fields.get("failed_at_ms"), _int(entry_id.partition("-")[0], 0))),
        attempts_made=_int(fields.get("attempts_made"), 0),
        max_attempts=_int(fields.get("max_attempts"), 0),
        last_error=fields.get("last_error", ""),
        last_error_class=fields.get("last_error_class", ""),
        retryable=fields.get("retryable") == "1",
        worker_id=fields.get("worker_id") or None,
        priority=_int(fields.get("priority"), 5),
        timeout_ms=_int(fields.get("timeout_ms"), 0),
        idempotency_key=fields.get("idempotency_key") or None,
        entry_id=entry_id,
        raw=fields,
    )


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON, without the raw fields."""
    document = {k: _iso(v) if isinstance(v, datetime) else v for k, v in asdict(letter).items()}
    document.pop("raw")
    return document


def worker_from_row(row: Mapping[str, str], now_ms: int) -> WorkerInfo | None:
    """A worker, or None where the row is empty or not one of ours."""
    if not row.get("worker_id"):
        return None
    beat = _int(row.get("last_heartbeat"), 0)
    age_ms = max(0, now_ms - beat)
    status = row.get("status", "")
    if status != "stopped" and age_ms > 3 * _int(row.get("interval_ms"), 5000):
        status = "stale"
    return WorkerInfo(
        worker_id=row["worker_id"],
        hostname=row.get("hostname", ""),
        started_at=from_ms(_int(row.get("started_at"), 0)),
        last_heartbeat=from_ms(beat),
        active_tasks=_int(row.get("active_tasks"), 0),
        concurrency=_int(row.get("concurrency"), 0),
        tasks_processed=_int(row.get("tasks_processed"), 0),
        tasks_failed=_int(row.get("tasks_failed"), 0),
        tasks_retried=_int(row.get("tasks_retried"), 0),
        status=status,
        queues=tuple(q for q in row.get("queues", "").split(",") if q),
        age_s=age_ms / 1000,
    )


def worker_document(worker: WorkerInfo) -> dict[str, Any]:
    """A worker's row as JSON."""
    return {
        k: _iso(v) if isinstance(v, datetime) else list(v) if isinstance(v, tuple) else v
        for k, v in asdict(worker).items()
    }


def _last_attempt(h: Mapping[str, str]) -> Attempt | None:
    if not h.get("started_at") and not h.get("error_class"):
        return None
    return _attempt({**h, "attempt": h.get("attempt", "0")})


def _history(lines: str, last: Attempt | None) -> tuple[Attempt, ...]:
    earlier = [_attempt(raw) for line in lines.splitlines() if (raw := _object(line))]
    if last is not None and all(a.attempt != last.attempt for a in earlier):
        earlier.append(last)
    return tuple(earlier[-_HISTORY_MAX:])


def _attempt(raw: Mapping[str, Any]) -> Attempt:
    retryable = raw.get("retryable")
    return Attempt(
        attempt=_int(raw.get("attempt"), 0),
        started_at=_instant(raw.get("started_at")),
        finished_at=_instant(raw.get("finished_at")),
        duration_ms=_int_or_none(raw.get("duration_ms")),
        worker_id=raw.get("worker_id") or None,
        error_class=raw.get("error_class") or None,
        error_message=raw.get("error_message") or None,
        retryable=None if retryable in (None, "") else retryable in (True, "1", 1),
        retry_delay_ms=_int_or_none(raw.get("retry_delay_ms")),
    )


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _int(value: Any, default: int) -> int:
    found = _int_or_none(value)
    return default if found is None else found


def _int_or_none(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _instant(value: Any) -> datetime | None:
    epoch_ms = _int_or_none(value)
    return from_ms(epoch_ms) if epoch_ms else None


def _iso(value: datetime | None) -> str | None:
    return None if value is None else iso(to_ms(value))
