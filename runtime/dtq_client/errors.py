"""What a call can raise: one tree, with the server's stable code and what is needed to find the call again.

`code` is for programs: the server's own (docs/http-api.md lists them), `HTTP_502` and the like for an answer that is not from
DTQ, or one of the client's: INVALID_CALL, NO_ANSWER, BAD_ANSWER, WAIT_TIMEOUT. The invariant: no key and nothing of a
payload is ever in a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from dtq_client.model import Task

E = TypeVar("E", bound="ClientError")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a call that failed. See ClientError for the fields."""

    code: str = ""
    status: int | None = None
    request_id: str = ""
    task_id: str | None = None
    retry_after_s: float | None = None
    idempotency_key: str | None = None
    may_have_happened: bool = False


class ClientError(Exception):
    """Base of everything this package raises.

    `status` is the HTTP status, None without an answer. `request_id` is in the server's log and audit. `retry_after_s`:
    when the server wants to be asked again. `idempotency_key`: what the submission carried; give it to the next call to
    go on with the same task. `may_have_happened`: the server may have done what was asked (an answer was lost).
    """

    default_code: ClassVar[str] = "CLIENT_ERROR"

    def __init__(self, message: str, facts: Facts | None = None) -> None:
        super().__init__(message, facts)  # both, so that it survives pickling between processes
        self.message = message
        self.facts = facts or Facts()
        self.code = self.facts.code or self.default_code
        self.status = self.facts.status
        self.request_id = self.facts.request_id
        self.task_id = self.facts.task_id
        self.retry_after_s = self.facts.retry_after_s
        self.idempotency_key = self.facts.idempotency_key
        self.may_have_happened = self.facts.may_have_happened

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.message}{request}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InvalidCall(ClientError, ValueError):
    """An argument or a setting that cannot be used. Nothing was sent."""

    default_code = "INVALID_CALL"


class NoAnswer(ClientError):
    """The time was up and the service had not answered: it cannot be reached, or answers get lost."""

    default_code = "NO_ANSWER"


class BadAnswer(ClientError):
    """Something answered that is not DTQ's API: look at the base URL."""

    default_code = "BAD_ANSWER"


class WaitTimeout(ClientError):
    """The task had not ended when the time was up. `task` is how it was last seen, None if it never was."""

    default_code = "WAIT_TIMEOUT"

    def __init__(self, message: str, facts: Facts | None = None, task: Task | None = None) -> None:
        super().__init__(message, facts)
        self.args = (message, facts, task)
        self.task = task


class ApiError(ClientError):
    """The service said no. The classes below name the answers that a producer can do something about."""

    default_code = "API_ERROR"


class InvalidTask(ApiError):
    """A submission that breaks a limit; the message names the field. Also raised for a payload that is not JSON."""

    default_code = "INVALID_TASK"


class PayloadTooLarge(ApiError):
    """More than the service takes in one task."""


class UnknownTaskType(ApiError):
    """Nobody who works on this queue knows the task type."""


class QueueLimit(ApiError):
    """The installation has as many queues as it may; this one would be one more."""


class QueueFull(ApiError):
    """The queue was full until the time was up, or wants to be asked later than that: see `retry_after_s`."""


class Unauthorized(ApiError):
    """The call needs a key and the client has none."""


class Forbidden(ApiError):
    """The key is not valid for this call."""


class TaskNotFound(ApiError):
    """No task of that id, or its record is past its retention."""


class TaskTerminal(ApiError):
    """The task has ended already: there is nothing to cancel."""


class Unavailable(ApiError):
    """The service, or Redis behind it, was not able to answer until the time was up (502, 503, 504)."""


_BY_CODE: dict[str, type[ApiError]] = {
    "INVALID_TASK": InvalidTask,
    "PAYLOAD_TOO_LARGE": PayloadTooLarge,
    "UNKNOWN_TASK_TYPE": UnknownTaskType,
    "QUEUE_LIMIT": QueueLimit,
    "QUEUE_FULL": QueueFull,
    "UNAUTHORIZED": Unauthorized,
    "FORBIDDEN": Forbidden,
    "TASK_NOT_FOUND": TaskNotFound,
    "TASK_TERMINAL": TaskTerminal,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized, 403: Forbidden, 413: PayloadTooLarge, 502: Unavailable, 503: Unavailable, 504: Unavailable,
}  # fmt: skip


def api_error(message: str, facts: Facts) -> ApiError:
    """The class for the server's code, or else for its status; a code from the future is an ApiError."""
    kind = _BY_CODE.get(facts.code) or _BY_STATUS.get(facts.status or 0, ApiError)
    return kind(message, facts)


def with_key(error: ClientError, key: str) -> ClientError:
    """The same error for one item of a batch."""
    return type(error)(error.message, replace(error.facts, idempotency_key=key))
