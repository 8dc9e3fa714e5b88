"""The demo tasks (contract §14), one for each thing a queue has to cope with. Made-up data; no shell, no network.

`dtq up` and a fresh checkout run them; an installation of its own names its modules in DTQ_TASK_MODULES.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, Field
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dtq_tasks import PermanentError, RetryableError, TaskContext, on_shutdown, on_startup, task

MAX_SLEEP_S = 30
COUNTER_TTL_S = 86_400
_COUNTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Pause(BaseModel):
    """Payload of the tasks that wait."""

    seconds: float = Field(1, ge=0, le=3600, strict=True)


class Fibonacci(BaseModel):
    """Which number to compute. Bounded, as each step more takes 1.6 times as long: n=40 is ten seconds or so."""

    n: int = Field(20, ge=0, le=40, strict=True)


class Flaky(BaseModel):
    """How many attempts fail before one succeeds."""

    fail_times: int = Field(1, ge=0, le=1000, strict=True)


@task("echo_task")
async def echo_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Return the payload as it came."""
    return payload


@task("sleep_task")
async def sleep_task(payload: Pause, ctx: TaskContext) -> dict[str, float]:
    """Wait without blocking anybody; a cancel ends it at once. More than 30 seconds are refused, permanently."""
    if payload.seconds > MAX_SLEEP_S:
        raise PermanentError(f"sleep_task sleeps at most {MAX_SLEEP_S} seconds")
    await asyncio.sleep(payload.seconds)
    return {"slept_s": payload.seconds}


@task("slow_task")
async def slow_task(payload: Pause, ctx: TaskContext) -> dict[str, Any]:
    """Work in many small steps, as a long import would. Up to an hour, if the task's timeout_ms allows it."""
    started = time.monotonic()
    steps = 0
    while (left := payload.seconds - (time.monotonic() - started)) > 0:
        await asyncio.sleep(min(0.1, left))
        steps += 1
    return {"worked_s": round(time.monotonic() - started, 3), "steps": steps}


@task("fibonacci_task")
def fibonacci_task(payload: Fibonacci, ctx: TaskContext) -> dict[str, int]:
    """CPU-BOUND, on purpose the slow way. A plain function, so it runs in a thread and leaves the worker's loop alone.

    The interpreter lock is shared all the same: work like this wants more worker processes, not more concurrency.
    """

    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    return {"n": payload.n, "value": fibonacci(payload.n)}


@task("flaky_task")
async def flaky_task(payload: Flaky, ctx: TaskContext) -> dict[str, int]:
    """Fail the first `fail_times` attempts, as a service does that is coming up, then succeed."""
    if ctx.attempt <= payload.fail_times:
        raise RetryableError(f"attempt {ctx.attempt} of {payload.fail_times} that fail")
    return {"attempt": ctx.attempt}


@task("always_fail_task")
async def always_fail_task(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Fail every attempt in a retryable way, so that the task ends among the dead letters."""
    raise RetryableError("always_fail_task always fails")


@on_startup
def open_counters(state: SimpleNamespace) -> None:
    """Give this worker's handlers a Redis client of their own. It connects at its first command.

    It never sends a command twice by itself: after a lost reply an INCR would count double. Sentinel and cluster
    addresses are for clients of another kind; there counter_task is not available.
    """
    url = os.environ.get("DTQ_REDIS_URL") or "redis://localhost:6379/0"
    state.counters = None
    if url.startswith(("redis://", "rediss://", "unix://")):
        pool = BlockingConnectionPool.from_url(url, max_connections=8, retry=Retry(NoBackoff(), 0))
        state.counters = Redis.from_pool(pool)


@on_shutdown
async def close_counters(state: SimpleNamespace) -> None:
    if state.counters is not None:
        await state.counters.aclose()


@task("counter_task")
async def counter_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Add one to the counter `name` with an atomic INCR, and return what it is now. Counters last for a day.

    Not idempotent: an attempt that is repeated after a crash counts twice, which makes executions countable. See
    docs/idempotency.md for how to count once.
    """
    name = payload.get("name", "default")
    if not isinstance(name, str) or not _COUNTER_NAME.fullmatch(name):
        raise PermanentError("name: letters, digits, '_' and '-', 1 to 64")
    if ctx.state.counters is None:
        raise PermanentError("counter_task needs a plain redis:// address")
    key = f"{os.environ.get('DTQ_KEY_PREFIX') or 'dtq'}:demo:counter:{name}"
    async with ctx.state.counters.pipeline(transaction=True) as both:
        value, _ = await both.incr(key).expire(key, COUNTER_TTL_S).execute()
    return {"name": name, "value": value}
