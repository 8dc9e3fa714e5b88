"""Which errors an operation can answer with, for its documentation: by code, under its status, with an example of each.

    responses=refusals(*READING, "TASK_NOT_FOUND")

A test holds every error that the service answers in any test against this.
"""

from __future__ import annotations

from typing import Any

from dtq_api import schemas
from dtq_api.errors import HTTP_STATUS
from dtq_core.keys import GROUP

_EVERYWHERE = ("INTERNAL", "STORE_ERROR", "REDIS_UNAVAILABLE")
READING = ("UNAUTHORIZED", "FORBIDDEN", *_EVERYWHERE)
"""What any read may meet. 401 and 403 come only where DTQ_API_READ_KEY is set."""
ACTING = (*READING, "REDIS_FULL")
"""What any call may meet that changes something. 403 is also the answer to a page of another site."""
WITH_BODY = ("REQUEST_TIMEOUT", "PAYLOAD_TOO_LARGE")
"""Beside those, where a body is read."""

_ID = schemas.EXAMPLE_ID
_EXAMPLES = {
    "INVALID_TASK": "priority: Input should be less than or equal to 9",
    "INVALID_ARGUMENT": "limit: Input should be greater than or equal to 1",
    "UNKNOWN_TASK_TYPE": "no worker of queue default and nobody here knows the task type sned_email",
    "QUEUE_LIMIT": "there are 1000 queues already",
    "UNAUTHORIZED": "this call needs a key in the header X-API-Key",
    "FORBIDDEN": "the key in X-API-Key is not valid for this call",
    "NOT_FOUND": "Not Found",
    "TASK_NOT_FOUND": f"there is no task {_ID}",
    "WORKER_NOT_FOUND": "there is no worker worker-1a2b3c4d",
    "DEAD_LETTER_NOT_FOUND": f"task {_ID} is succeeded and no dead letter",
    "DEAD_LETTER_GONE": f"the letter of task {_ID} was discarded",
    "REQUEST_TIMEOUT": "the body did not arrive within 30 seconds",
    "IDEMPOTENCY_IN_PROGRESS": f"the idempotency key belongs to task {_ID}, which has not ended",
    "CANCEL_REQUESTED": f"task {_ID} is running; its worker was asked to stop it",
    "DEAD_LETTER_CHANGED": f"somebody else acted on the letter of task {_ID}",
    "TASK_TERMINAL": f"task {_ID} has ended already",
    "PAYLOAD_TOO_LARGE": "payload has 300000 bytes, at most 262144 are taken",
    "QUEUE_FULL": "queue default holds 10000 tasks, its limit",
    "INTERNAL": "an error of this service; its log has the request id",
    "STORE_ERROR": "Redis refused a command: WRONGTYPE",
    "REDIS_UNAVAILABLE": "Redis does not answer",
    "REDIS_FULL": "Redis is at its memory limit and takes no more",
    "NOT_READY": f"the group {GROUP} is missing on queue default",
}
_TOLD = {
    400: "The request breaks a limit; nothing was done.",
    401: "A key is needed and none was given.",
    403: "The key is wrong, or the request comes from a page of another site.",
    404: "There is no such thing.",
    408: "The body did not arrive in time; the connection is closed.",
    409: "Not in this state; `task_id` names the task.",
    410: "The task has ended already.",
    413: "The payload, or the whole body, is too large.",
    429: "The queue is full; come back after `Retry-After` seconds.",
    500: "An error of the service, or a command that Redis refused; the log has the request id.",
    503: "Redis does not answer, or takes no more. A submission is safe to repeat with its idempotency key.",
}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer", "minimum": 1}}
}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Names the scheme.", "required": True, "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def refusals(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The error answers of an operation, as FastAPI wants them."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(HTTP_STATUS[code], []).append(code)
    return {status: _answer(status, found) for status, found in sorted(by_status.items())}


def _answer(status: int, codes: list[str]) -> dict[str, Any]:
    unready = "NOT_READY" in codes
    examples = {code: {"value": _example(status, code, unready)} for code in dict.fromkeys(codes)}
    answer: dict[str, Any] = {
        "model": schemas.Unready if unready else schemas.Error,
        "description": _TOLD[status],
        "content": {"application/json": {"examples": examples}},
    }
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _example(status: int, code: str, unready: bool) -> dict[str, Any]:
    example: dict[str, Any] = {
        "code": code,
        "message": _EXAMPLES[code],
        "request_id": "5f0c2d7be1a94c6f8a3b9d0e4c1f7a52",
    }
    if status == 409:
        example["task_id"] = _ID
    if unready:
        example["dependencies"] = (
            {"redis": "ok", "groups": "missing on default"} if code == "NOT_READY" else {"redis": "down"}
        )
    return example
