"""`idempotent_operation`: run a side effect once per key, whatever retries and redeliveries do (contract §15)."""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from dtq_tasks.errors import RetryableError

_RUNNING = "running:"
_DONE = "done:"
_GIVE_BACK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def idempotent_operation(redis: Any, key: str, ttl: int, fn: Callable[[], Any]) -> Any:
    """Run `fn()` once per `key` within `ttl` seconds and return its value; later calls return the same value.

    `redis` is any redis-py client. With an asyncio client the call is awaited and `fn` may be async; with a blocking
    client it returns directly. The key is taken with SET NX before `fn` runs, so two workers never run it at once.

    * `fn` raises: the key is given back, unless it has expired and is another's now, and the error passes on; the next
      attempt runs `fn` again.
    * The process dies inside `fn`: nobody can know whether the effect happened. The key stays taken until `ttl` ends,
      and calls raise RetryableError meanwhile, so the doubt shows instead of an effect that is skipped or doubled.

    A value that is not JSON is returned to the first caller and remembered as null.

        await idempotent_operation(ctx.state.redis, f"charge:{order}", 86400, lambda: charge(order))
    """
    token = _RUNNING + secrets.token_hex(8)
    taken = redis.set(key, token, nx=True, ex=ttl)
    if inspect.isawaitable(taken):
        return _run_async(taken, redis, key, ttl, fn, token)
    if not taken:
        return _remembered(redis.get(key))
    try:
        value = fn()
    except BaseException:
        with suppress(Exception):  # the error of `fn` is the one to tell; the key then stays taken until its time ends
            redis.eval(_GIVE_BACK, 1, key, token)
        raise
    redis.set(key, _record(value), ex=ttl)
    return value


async def _run_async(taken: Awaitable[Any], redis: Any, key: str, ttl: int, fn: Callable[[], Any], token: str) -> Any:
    if not await taken:
        return _remembered(await redis.get(key))
    try:
        value = fn()
        if inspect.isawaitable(value):
            value = await value
    except BaseException:
        with suppress(Exception):
            await redis.eval(_GIVE_BACK, 1, key, token)
        raise
    await redis.set(key, _record(value), ex=ttl)
    return value


def _remembered(record: str | bytes | None) -> Any:
    text = record.decode() if isinstance(record, bytes) else record
    if text is not None and text.startswith(_DONE):
        return json.loads(text.removeprefix(_DONE))
    raise RetryableError("the operation is under way elsewhere, or was interrupted and its key has not expired yet")


def _record(value: Any) -> str:
    try:
        return _DONE + json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _DONE + "null"
