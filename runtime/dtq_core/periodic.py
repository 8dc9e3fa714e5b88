"""The repeater of every background loop: `every` repeats a step, `supervised` keeps alive a loop that must not end.

A loop ends by cancellation and by nothing else. A step that fails is logged, reported to `on_error`, which counts, and
repeated after a back-off; there is no number of failures after which a loop gives up, so no process is half alive.
SystemExit and KeyboardInterrupt pass: they mean the process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from dtq_core.errors import RedisFull, RedisUnavailable
from dtq_core.log import RateLimited
from dtq_core.retry import RetryPolicy, backoff_s, describe

Step = Callable[[], Awaitable[float | None]]
OnError = Callable[[str, BaseException], None]
Sleep = Callable[[float], Awaitable[None]]

BACKOFF = RetryPolicy(base_delay_s=0.1, max_delay_s=4.0, jitter=0.25)
"""Seconds between failures in a row: doubling, never more than five with jitter."""

HEALTHY_AFTER_S = 10.0
"""A supervised loop that ran this long is a new start, not one more failure in a row."""

logger = logging.getLogger("dtq.loops")
_limited = RateLimited(logger)
_rng = random.Random()


async def every(
    name: str,
    step: Step,
    interval_s: float,
    *,
    jitter: float = 0.1,
    on_error: OnError | None = None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Repeat `step()` for ever, `interval_s` seconds between rounds, give or take the share `jitter`.

    A step that returns a number says how many seconds to wait this time; 0 is the next round at once, after other
    tasks had their turn. Ends with CancelledError only.
    """
    failures = 0
    while True:
        try:
            wanted = await step()
            raise_if_cancelled()
            wait_s = (interval_s if wanted is None else wanted) * (1 + _rng.uniform(-jitter, jitter))
        except (Exception, asyncio.CancelledError) as exc:
            _raise_if_asked_to_stop(exc)
            failures += 1
            _report(name, exc, failures, on_error)
            wait_s = backoff_s(failures, BACKOFF, _rng)
        else:
            if failures:
                _limited.log(logging.INFO, f"{name} works", "loop %s works again after %d failures", name, failures)
            failures = 0
        await sleep(max(0.0, wait_s))


async def supervised(
    name: str,
    loop: Callable[[], Awaitable[object]],
    *,
    on_error: OnError | None = None,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run `loop()`, which must not end, and start it again after a back-off whenever it ends or raises all the same."""
    failures = 0
    while True:
        started = clock()
        try:
            await loop()
            ended: BaseException = RuntimeError("it ended by itself")
        except (Exception, asyncio.CancelledError) as exc:
            _raise_if_asked_to_stop(exc)
            ended = exc
        failures = 1 if clock() - started >= HEALTHY_AFTER_S else failures + 1
        _report(name, ended, failures, on_error)
        await sleep(backoff_s(failures, BACKOFF, _rng))


def raise_if_cancelled() -> None:
    """Raise CancelledError where a cancellation was asked for and something below swallowed it.

    Time limits inside client libraries do that when they end in the very moment of the cancellation; a loop that did not
    look would go on for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _raise_if_asked_to_stop(exc: BaseException) -> None:
    """A CancelledError means this loop if its task was cancelled, but not if it leaked out of what a step awaited."""
    task = asyncio.current_task()
    if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
        raise exc


def _report(name: str, exc: BaseException, failures: int, on_error: OnError | None) -> None:
    """One line per loop and kind of error; what is not an outage is a bug and comes with its traceback."""
    kind, message = describe(exc)
    outage = isinstance(exc, (RedisUnavailable, RedisFull))
    level, trace = (logging.WARNING, None) if outage else (logging.ERROR, exc)
    text = "loop %s failed, %d in a row: %s: %s"
    _limited.log(level, f"{name} {kind}", text, name, failures, kind, message, exc_info=trace)
    if on_error is not None:
        on_error(name, exc)
