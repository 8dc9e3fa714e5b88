"""What went wrong on a connection, in our words: outages, a full server, a refused command, and a server that is not the one.

A server that only reads, loads its data or has lost its master answers well-formed errors on a connection that works. Who
takes them for answers stays there for ever, while a failover has made another server the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    InvalidResponse,
    MaxConnectionsError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from dtq_core.errors import DtqError, RedisFull, RedisUnavailable, StoreError

_BUSY = ("BUSY ", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "UNKILLABLE")
_MISPLACED = {
    "READONLY": "this server is a read-only replica",
    "MASTERDOWN": "this server is a replica that lost its master",
    "LOADING": "this server is loading its data",
    "UNBLOCKED": "this server has become a replica",
    "WAIT cannot be used with replica": "this server has become a replica",
}
_TOLD = re.compile(rf"(?:user_script:\d+: )?-?({'|'.join(_MISPLACED)})\b")
"""As an error reply, and as the text of an error that a script met, kept and raised again."""
_HUNG_UP = re.compile(r"unable to perform operation on <\w*Transport\b.*closed")


def misplaced(answer: Any) -> str | None:
    """Why the server that gave this answer is not the one to talk to now; None where the answer does not say so.

    `answer` is an error, a reply, or what a batch script returns: there an item that failed is "ERROR <text>" or
    ["ERROR", its id, <text>]. Nothing else of a reply is looked at: it may hold what users wrote.
    """
    if isinstance(answer, list):
        return next((reason for item in answer if (reason := _misplaced_text(_failed_item(item)))), None)
    if isinstance(answer, (ResponseError, BusyLoadingError)):
        return _misplaced_text(f"{getattr(answer, 'status_code', None) or 'ERR'} {answer}") or _misplaced_text(
            str(answer)
        )
    return None


def _failed_item(item: Any) -> str:
    if isinstance(item, str):
        return item[6:] if item.startswith("ERROR ") else ""
    if isinstance(item, list) and len(item) == 3 and item[0] == "ERROR":
        return str(item[2])
    return ""


def _misplaced_text(text: str) -> str | None:
    told = _TOLD.match(text)
    return _MISPLACED[told[1]] if told else None


class Misplaced(ResponseError):
    """An answer said that this is not the server to talk to now. Leaves the store as RedisUnavailable."""


def check_place(*answers: Any) -> None:
    """Raises Misplaced where one of these answers says that the server is not the one to talk to now."""
    for answer in answers:
        if reason := misplaced(answer):
            raise Misplaced(reason)


def translate(exc: BaseException) -> DtqError:
    """A failure of the client library in our words; server text is kept, addresses and credentials are not."""
    if isinstance(exc, AuthenticationError):
        return RedisUnavailable("Redis refuses the user or the password")
    if isinstance(exc, MaxConnectionsError):
        return RedisUnavailable("every connection to Redis is in use")
    if isinstance(exc, Misplaced) or (reason := misplaced(exc)):
        return RedisUnavailable(f"Redis is not ready: {exc if isinstance(exc, Misplaced) else reason}")
    if isinstance(exc, RuntimeError):
        return RedisUnavailable("Redis does not answer (the connection was closed)")
    if isinstance(exc, (ConnectionError, TimeoutError, OSError, asyncio.TimeoutError)):
        return RedisUnavailable(f"Redis does not answer ({_reason(exc)})")
    text = str(exc)
    if isinstance(exc, InvalidResponse):
        return RedisUnavailable("what answers there is no Redis")
    if text.startswith(("DB index is out of range", "invalid DB index")):
        return RedisUnavailable("Redis has no database of that number")
    if (
        isinstance(exc, OutOfMemoryError)
        or "OOM " in text[:40]
        or text.startswith("command not allowed when used memory")
    ):
        return RedisFull("Redis is at its memory limit and takes no more")
    if f"{getattr(exc, 'status_code', None) or ''} {text}".lstrip().startswith(_BUSY) or text.startswith(_BUSY):
        return RedisUnavailable(f"Redis is not ready: {text[:120]}")
    return StoreError(f"Redis refused a command: {text[:300]}")


def _reason(exc: BaseException) -> str:
    """Why there is no connection, as the system says it; the library's own text quotes the address."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror[:80]
        cause = cause.__cause__ or cause.__context__
    return type(exc).__name__


@contextlib.contextmanager
def translated(on_misplaced: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turns the client library's failures into ours; calls `on_misplaced` where the server is not the one to talk to now."""
    try:
        yield
    except (RedisError, OSError, RuntimeError) as exc:
        # uvloop says so where a write meets a connection whose reset it has noticed and not told yet.
        if isinstance(exc, RuntimeError) and not _HUNG_UP.match(str(exc)):
            raise
        if isinstance(exc, Misplaced) or misplaced(exc):
            on_misplaced()
        raise translate(exc) from exc
