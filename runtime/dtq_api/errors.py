"""The errors of the HTTP door: the codes it adds to the core's, and the one body that every error has.

    {"code": "TASK_NOT_FOUND", "message": "there is no task …", "request_id": "…"}

`task_id` is there where the error is about a task that the caller may not know (409), `dependencies` where /ready says
no. The invariant: nothing of the request's content is repeated, so an error can always be encoded and leaks nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dtq_api import openapi
from dtq_api.encoding import json_response
from dtq_core.errors import STATUS_OF_CODE, DtqError, InvalidArgument, PayloadTooLarge, QueueFull
from dtq_core.text import clean

logger = logging.getLogger("dtq.api")

MAX_MESSAGE_CHARS = 600
RETRY_OUTAGE_S = 1


class Unauthorized(DtqError):
    """A key is needed and none was given."""

    code = "UNAUTHORIZED"


class Forbidden(DtqError):
    """The key is not one of ours, or the request comes from a page of another site."""

    code = "FORBIDDEN"


class NotReady(DtqError):
    """Something the service depends on does not work; `dependencies` says what."""

    code = "NOT_READY"

    def __init__(self, message: str, dependencies: Mapping[str, str]) -> None:
        super().__init__(message)
        self.dependencies = dict(dependencies)


class SlowRequest(DtqError):
    """The body did not arrive in time."""

    code = "REQUEST_TIMEOUT"


class BodyTooLarge(PayloadTooLarge):
    """The body is larger than any that could be taken. `rest_unread`: the connection cannot be used again."""

    def __init__(self, message: str, *, rest_unread: bool) -> None:
        super().__init__(message)
        self.rest_unread = rest_unread


HTTP_STATUS: dict[str, int] = {code: http for code, (http, _) in STATUS_OF_CODE.items()} | {
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "REQUEST_TIMEOUT": 408,
    "NOT_READY": 503,
}
"""Every code this service can answer with, and its HTTP status."""

_CODE_OF_STATUS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


def error_document(exc: DtqError, request_id: str) -> dict[str, Any]:
    """The body of an error."""
    document: dict[str, Any] = {
        "code": exc.code,
        "message": clean(exc.message, MAX_MESSAGE_CHARS) or exc.code,
        "request_id": request_id,
    }
    if exc.task_id is not None and HTTP_STATUS.get(exc.code) == 409:
        document["task_id"] = exc.task_id
    if isinstance(exc, NotReady):
        document["dependencies"] = exc.dependencies
    return document


def error_response(exc: DtqError, request_id: str) -> Response:
    """The answer to a request that failed with `exc`."""
    status = HTTP_STATUS.get(exc.code, 500)
    headers: dict[str, str] = {}
    if isinstance(exc, QueueFull):
        headers["Retry-After"] = str(exc.retry_after_s)
    elif status == 503:
        headers["Retry-After"] = str(RETRY_OUTAGE_S)
    elif status == 401:
        headers["WWW-Authenticate"] = 'ApiKey realm="dtq"'
    elif isinstance(exc, SlowRequest) or (isinstance(exc, BodyTooLarge) and exc.rest_unread):
        headers["Connection"] = "close"
    if status == 500:
        logger.error("request %s failed: %s: %s", request_id, exc.code, exc.message)
    return json_response(error_document(exc, request_id), status, headers)


def internal_error(request_id: str) -> Response:
    """For what nobody foresaw, and the caller has logged. Who asked learns the request id and nothing else."""
    problem = DtqError("an error of this service; its log has the request id")
    return json_response(error_document(problem, request_id), 500)


def install(app: FastAPI) -> None:
    """Make every failure of a handler, of routing and of parameter parsing answer with our body."""

    async def ours(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, DtqError)
        return error_response(exc, request_id_of(request))

    async def routing(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        code = _CODE_OF_STATUS.get(exc.status_code, "INVALID_ARGUMENT" if exc.status_code < 500 else "INTERNAL")
        body = {"code": code, "message": str(exc.detail), "request_id": request_id_of(request)}
        headers = dict(exc.headers or {})
        if exc.status_code == 405 and (methods := openapi.methods_of(request.app, request.url.path)):
            headers["Allow"] = ", ".join(methods)  # the router names those of one route only
        return json_response(body, exc.status_code, headers)

    async def parameters(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        problems = "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in exc.errors()[:5])
        return error_response(InvalidArgument(problems), request_id_of(request))

    app.add_exception_handler(DtqError, ours)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(RequestValidationError, parameters)


def request_id_of(request: Request) -> str:
    """The id that the gate gave to this request."""
    return str(request.scope["state"]["request_id"])
