"""What to do about an error: one short advice per code, for the end of its line."""

from __future__ import annotations

from dtq_core.errors import DtqError, QueueFull

_HINTS = {
    "UNKNOWN_TASK_TYPE": "`dtq workers` shows who runs; DTQ_TASK_MODULES of a worker says which tasks it has",
    "IDEMPOTENCY_IN_PROGRESS": "dtq get {task_id}",
    "QUEUE_LIMIT": "raise DTQ_MAX_QUEUES, or use a queue that exists",
    "TASK_NOT_FOUND": "`dtq list` shows the latest tasks",
    "CANCEL_REQUESTED": "the request was accepted; `dtq get {task_id}` shows how it ends",
    "TASK_TERMINAL": "`dtq get {task_id}` shows how",
    "DEAD_LETTER_NOT_FOUND": "`dtq dlq list` shows them",
    "DEAD_LETTER_GONE": "`dtq dlq list` shows those that are left",
    "DEAD_LETTER_CHANGED": "`dtq get {task_id}` shows what it is now",
    "REDIS_FULL": "let workers finish, purge what is not needed, or raise maxmemory",
    "STORE_ERROR": "see the rights of this user and the type of the key in docs/redis-schema.md",
    "INVALID_CONFIG": "docs/configuration.md lists every variable",
    "ALREADY_RUNNING": "`dtq down` stops it, or use another --state DIR",
    "PAYLOAD_TOO_LARGE": "store the data elsewhere and send a reference, or raise DTQ_MAX_PAYLOAD_BYTES",
}


def hint_for(exc: DtqError) -> str:
    """The advice for `exc`, or an empty string where its message says all."""
    if own := getattr(exc, "hint", ""):
        return str(own)
    if isinstance(exc, QueueFull):
        return f"try again in {exc.retry_after_s} s"
    hint = _HINTS.get(exc.code, "")
    if "{task_id}" in hint and not exc.task_id:
        return ""
    return hint.format(task_id=exc.task_id)
