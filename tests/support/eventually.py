"""Waiting for conditions: the only way in which a test lets time pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from dtq_core.errors import RedisUnavailable

T = TypeVar("T")
_NOT_YET = (
    AssertionError,
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    RedisUnavailable,
    OSError,
)


def eventually(probe: Callable[[], T], timeout: float = 10.0, what: str | Callable[[], str] = "") -> T:
    """The first true value of `probe`; an assertion that fails in it, or an engine that is away, means "not yet".

    Raises AssertionError after `timeout` seconds with `what` (text, or a function of the last moment), and the last
    answer.
    """
    end, pause = time.monotonic() + timeout, 0.002
    while True:
        problem: object
        try:
            value = problem = probe()
            if value:
                return value
        except _NOT_YET as exc:
            problem = exc
        if time.monotonic() > end:
            wanted = what() if callable(what) else what
            raise AssertionError(f"not within {timeout:g} s: {wanted or 'the condition'}; last: {problem!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def always(probe: Callable[[], object], seconds: float, what: str = "") -> None:
    """`probe` stays true for `seconds`: for what must *not* happen. As rarely as possible: it always takes its time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = probe()
        assert value, f"{what or 'the condition'} did not hold: {value!r}"
        time.sleep(0.02)
