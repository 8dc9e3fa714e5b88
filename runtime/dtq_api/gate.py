"""The outermost layer of every request: its id, the limits of its body, the headers of its answer, and the last catch.

Plain ASGI, since it is on the path of every submission. A body is counted while it is read, so a length that was not
announced, or a wrong one, changes nothing: what is too much is thrown away as it comes and answered with 413.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dtq_api.errors import BodyTooLarge, Forbidden, SlowRequest, error_response, internal_error
from dtq_api.pacing import Turns

logger = logging.getLogger("dtq.api")

MAX_REQUEST_ID_CHARS = 128
BODY_TIMEOUT_S = 30.0
"""For a whole body to arrive."""
DISCARD_BYTES = 64 * 1024 * 1024
DISCARD_S = 10.0
"""How much of a body that is too large is still read, so that its sender gets to see the answer."""

_NOT_IN_AN_ID = re.compile(rb"[^A-Za-z0-9._:@/+=-]")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Largest bodies in bytes, of one submission and of a batch; every other call has nothing to say in more than `other`."""

    single: int
    batch: int
    other: int = 65_536

    @classmethod
    def of(cls, max_payload_bytes: int) -> BodyLimits:
        """Room for a payload of the largest size however it is written: every byte of it may have become \\u0041.

        A batch has room for four megabytes beside one such task.
        """
        single = 6 * max_payload_bytes + 65_536
        return cls(single, single + 4 * 1024 * 1024)

    def for_path(self, path: str) -> int:
        if path.endswith("/tasks"):
            return self.single
        return self.batch if path.endswith("/tasks:batch") else self.other


class Gate:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, limits: BodyLimits, turns: Turns) -> None:
        self.app = app
        self.limits = limits
        self.turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = telling_headers(scope)
        request_id = clean_request_id(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.monotonic()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS, (b"x-request-id", request_id.encode())]
            await send(message)

        self.turns.requests += 1
        try:
            if scope["method"] not in _SAFE_METHODS:
                if is_foreign(headers):
                    refusal = Forbidden("a page of another site may not do this")
                    return await error_response(refusal, request_id)(scope, receive, answer)
                receive = _limited(receive, self.limits.for_path(scope["path"]))
            await self.app(scope, receive, answer)
        except ClientDisconnect:
            return None
        except Exception:
            logger.exception("request %s (%s) failed", request_id, scope["method"])
            if status:
                raise
            await internal_error(request_id)(scope, receive, answer)
        finally:
            self.turns.requests -= 1
            if logger.isEnabledFor(logging.DEBUG):
                took_ms = (time.monotonic() - began) * 1000
                logger.debug(
                    "%s %s: %d in %.1f ms, request %s", scope["method"], scope["path"], status, took_ms, request_id
                )


def clean_request_id(given: bytes | None) -> str:
    """The caller's request id without what could be mistaken in a log or a header; a new one where nothing is left."""
    return _NOT_IN_AN_ID.sub(b"", (given or b"")[:MAX_REQUEST_ID_CHARS]).decode() or uuid4().hex


def is_foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser says that the request comes from a page of another site.

    Such a page could otherwise act on a service that listens on the loopback interface of its visitor.
    """
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


def telling_headers(scope: Scope) -> dict[bytes, bytes]:
    """Who asks from where. Of repeated headers the first counts."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"x-request-id", b"origin", b"host"):
            found.setdefault(name, value)
    return found


def _limited(receive: Receive, limit: int) -> Receive:
    """`receive` that raises BodyTooLarge past `limit` bytes, and SlowRequest when the whole takes too long."""
    left = limit
    complete = False
    deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S

    async def limited() -> Message:
        nonlocal left, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            complete = True
            raise SlowRequest(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} seconds") from None
        if message["type"] != "http.request":
            complete = True
            return message
        left -= len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if left < 0:
            rest_unread = not complete and not await _discard(receive)
            complete = True
            raise BodyTooLarge(f"the body is larger than {limit} bytes", rest_unread=rest_unread)
        return message

    return limited


async def _discard(receive: Receive) -> bool:
    """Read on and keep nothing. True if the body came to its end."""
    seen = 0
    try:
        async with asyncio.timeout(DISCARD_S):
            while seen < DISCARD_BYTES:
                message = await receive()
                if message["type"] != "http.request":
                    return False
                seen += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return True
    except TimeoutError:
        pass
    return False
