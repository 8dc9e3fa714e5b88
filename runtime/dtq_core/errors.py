"""The vocabulary of failures: one tree, a stable code each, one table that maps codes to HTTP and exit status.

Raised by the client, the store and the configuration; caught at the doors (API, CLI, worker). Codes are API: they never
change their meaning, and a test lists them.
"""

from __future__ import annotations

from typing import ClassVar


class DtqError(Exception):
    """Base of everything DTQ raises on purpose. `code` is stable, `message` is for people."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, task_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.task_id = task_id


class InvalidTask(DtqError):
    """A submission that breaks a limit of contract §1. Nothing was written."""

    code = "INVALID_TASK"


class PayloadTooLarge(DtqError):
    """The payload as compact UTF-8 JSON is larger than DTQ_MAX_PAYLOAD_BYTES."""

    code = "PAYLOAD_TOO_LARGE"


class UnknownTaskType(DtqError):
    """Nobody who works on this queue knows the task type (decision 13)."""

    code = "UNKNOWN_TASK_TYPE"


class InvalidArgument(DtqError):
    """A bad limit, cursor, queue name or filter in a call that is not a submission."""

    code = "INVALID_ARGUMENT"


class IdempotencyInProgress(DtqError):
    """The key belongs to a task that has not ended; `task_id` names it (§5)."""

    code = "IDEMPOTENCY_IN_PROGRESS"


class QueueFull(DtqError):
    """The queue holds as many tasks as it may (§7). `retry_after_s` is a whole number of seconds, 1…60."""

    code = "QUEUE_FULL"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueLimit(DtqError):
    """DTQ_MAX_QUEUES queues exist already (decision 35)."""

    code = "QUEUE_LIMIT"


class TaskNotFound(DtqError):
    """No task of that id, or its record is past its retention."""

    code = "TASK_NOT_FOUND"


class WorkerNotFound(DtqError):
    """No worker of that id, or its row is gone."""

    code = "WORKER_NOT_FOUND"


class CancelRequested(DtqError):
    """The task runs; the request was accepted and its worker will act on it (decision 11)."""

    code = "CANCEL_REQUESTED"


class TaskTerminal(DtqError):
    """The task has ended already; nothing was changed."""

    code = "TASK_TERMINAL"


class DeadLetterNotFound(DtqError):
    """The task is not among the dead letters."""

    code = "DEAD_LETTER_NOT_FOUND"


class DeadLetterGone(DtqError):
    """The letter was discarded, or trimmed because the dead letters are bounded."""

    code = "DEAD_LETTER_GONE"


class DeadLetterChanged(DtqError):
    """Somebody else acted on the letter in the same moment."""

    code = "DEAD_LETTER_CHANGED"


class InvalidTransition(DtqError):
    """A status change that the table of §1 does not have."""

    code = "INVALID_TRANSITION"


class RedisUnavailable(DtqError):
    """Redis does not answer, refuses the connection or is loading."""

    code = "REDIS_UNAVAILABLE"


class RedisFull(DtqError):
    """Redis is at its memory limit; it finishes work and takes no more (decision 31)."""

    code = "REDIS_FULL"


class StoreError(DtqError):
    """Redis refused a command: a key of the wrong type, a missing right, a script error."""

    code = "STORE_ERROR"


class InvalidConfig(DtqError):
    """A setting that cannot be used; the message names its variable."""

    code = "INVALID_CONFIG"


class HookFailed(DtqError):
    """A start-up function of the task modules raised; the worker took no work. The message names the function."""

    code = "STARTUP_HOOK_FAILED"


class EngineMissing(DtqError):
    """No server to start: neither the embedded engine nor a valkey-server or redis-server on PATH."""

    code = "ENGINE_MISSING"


class AlreadyRunning(DtqError):
    """The state directory is in use by another `dtq up`."""

    code = "ALREADY_RUNNING"


# code -> (HTTP status, exit status). Exit 1: the request was refused; exit 2: the call itself was wrong.
STATUS_OF_CODE: dict[str, tuple[int, int]] = {
    "INTERNAL": (500, 1),
    "INVALID_TASK": (400, 2),
    "PAYLOAD_TOO_LARGE": (413, 2),
    "UNKNOWN_TASK_TYPE": (400, 1),
    "INVALID_ARGUMENT": (400, 2),
    "IDEMPOTENCY_IN_PROGRESS": (409, 1),
    "QUEUE_FULL": (429, 1),
    "QUEUE_LIMIT": (400, 1),
    "TASK_NOT_FOUND": (404, 1),
    "WORKER_NOT_FOUND": (404, 1),
    "CANCEL_REQUESTED": (409, 1),
    "TASK_TERMINAL": (410, 1),
    "DEAD_LETTER_NOT_FOUND": (404, 1),
    "DEAD_LETTER_GONE": (404, 1),
    "DEAD_LETTER_CHANGED": (409, 1),
    "INVALID_TRANSITION": (409, 1),
    "REDIS_UNAVAILABLE": (503, 1),
    "REDIS_FULL": (503, 1),
    "STORE_ERROR": (500, 1),
    "INVALID_CONFIG": (500, 2),
    "STARTUP_HOOK_FAILED": (500, 1),
    "ENGINE_MISSING": (500, 1),
    "ALREADY_RUNNING": (409, 1),
}
