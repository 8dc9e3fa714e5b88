"""What a handler raises to say how its failure is meant (contract §4, §15)."""

from __future__ import annotations


class TaskError(Exception):
    """Base of the errors of this package."""


class RetryableError(TaskError):
    """The attempt failed, the next may succeed: retried while attempts are left.

    `retry_after_s`, in seconds, replaces the back-off for this one retry.
    """

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s


class PermanentError(TaskError):
    """No attempt will succeed: the task goes to the dead letters at once."""


class InvalidPayload(PermanentError):
    """The payload does not fit the model that the handler declares. `code` is stable, as those of dtq_core.errors."""

    code = "INVALID_PAYLOAD"


class DuplicateTask(TaskError):
    """Two handlers were registered under one name."""
