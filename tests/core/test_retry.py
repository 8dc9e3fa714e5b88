"""Classify, back off, decide: contract §4. Pure, so properties hold for every attempt and every policy."""

from __future__ import annotations

import asyncio
import math
import random

import pydantic
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from dtq_core.config import Settings
from dtq_core.retry import (
    MAX_MESSAGE_CHARS,
    Cancelled,
    Failed,
    RetryPolicy,
    Succeeded,
    TimedOut,
    backoff_s,
    classify,
    decide,
    describe,
)
from dtq_tasks import InvalidPayload, PermanentError, RetryableError

POLICY = RetryPolicy()
RETRYABLE = Failed("Error", "text", retryable=True)
PERMANENT = Failed("Error", "text", retryable=False)


def rng() -> random.Random:
    return random.Random(7)


# ------------------------------------------------------------------------------------------------ back-off


@pytest.mark.contract("C4.11", "C4.12", "C4.13", "BQ-67")
@given(
    attempt=st.integers(1, 2000),
    base=st.floats(0, 86_400),
    maximum=st.floats(0, 2_592_000),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_a_delay_is_never_negative_and_never_above_the_cap_and_its_jitter(attempt, base, maximum, jitter, seed):
    delay = backoff_s(attempt, RetryPolicy(base, maximum, jitter), random.Random(seed))
    assert math.isfinite(delay)
    assert 0 <= delay <= maximum * (1 + jitter)


@pytest.mark.contract("C4.11")
def test_delays_double_up_to_the_cap():
    policy = RetryPolicy(base_delay_s=1, max_delay_s=60, jitter=0)
    assert [backoff_s(n, policy, rng()) for n in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff_s(2000, policy, rng()) == 60


@pytest.mark.contract("C4.12", "BQ-67")
def test_jitter_spreads_both_ways_and_fills_its_range():
    policy, source = RetryPolicy(base_delay_s=10, max_delay_s=60, jitter=0.2), rng()
    delays = [backoff_s(1, policy, source) for _ in range(1000)]
    assert 8 <= min(delays) < 8.1 and 11.9 < max(delays) <= 12
    assert len(set(delays)) > 990


@pytest.mark.contract("C4.13", "BQ-67")
@pytest.mark.parametrize("attempt", [1, 2, 2000])
def test_a_base_of_zero_means_at_once(attempt):
    assert backoff_s(attempt, RetryPolicy(base_delay_s=0, max_delay_s=60, jitter=1), rng()) == 0


@pytest.mark.contract("C4.13", "BQ-67")
def test_even_a_nonsensical_jitter_gives_no_negative_delay():
    policy, source = RetryPolicy(base_delay_s=1, max_delay_s=1, jitter=50), rng()
    assert min(backoff_s(1, policy, source) for _ in range(200)) == 0


@pytest.mark.contract("C4.14")
def test_the_defaults_of_a_policy_are_those_of_the_settings(monkeypatch):
    for name in ("BASE_DELAY", "MAX_DELAY", "JITTER"):
        monkeypatch.delenv(f"DTQ_RETRY_{name}", raising=False)
    assert RetryPolicy() == RetryPolicy.of(Settings()) == RetryPolicy(1.0, 60.0, 0.2, dead_letters=True)


# ------------------------------------------------------------------------------------------------ classes of errors


class Model(pydantic.BaseModel):
    n: int


def validation_error() -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as caught:
        Model.model_validate({"n": "x"})
    return caught.value


@pytest.mark.contract("C4.01", "C4.02", "C4.03")
@pytest.mark.parametrize(
    "exc",
    [
        TimeoutError(),
        RetryableError("again"),
        type("Mine", (RetryableError,), {})("again"),
        redis.ConnectionError("gone"),
        redis.TimeoutError("slow"),
        redis.exceptions.BusyLoadingError("loading"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_is_on_the_list_is_retryable(exc):
    assert classify(exc).retryable


@pytest.mark.contract("C4.04", "C4.05", "C4.07", "C4.09", "D12")
@pytest.mark.parametrize(
    "exc",
    [
        PermanentError("never"),
        InvalidPayload("bad"),
        validation_error(),
        ValueError("x"),
        KeyError("x"),
        OSError("x"),
        ConnectionError("not Redis'"),
        redis.ResponseError("WRONGTYPE"),
        RecursionError(),
        MemoryError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseExceptionGroup("group", [SystemExit()]),
        ExceptionGroup("group", [RetryableError()]),
        type("Odd", (BaseException,), {"__module__": None})(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_everything_else_is_permanent(exc):
    assert not classify(exc).retryable


@pytest.mark.contract("C4.09", "D12")
def test_a_class_that_only_looks_like_a_redis_error_is_permanent():
    fake = type("ConnectionError", (Exception,), {"__module__": "redisson.errors"})
    assert not classify(fake()).retryable


@pytest.mark.contract("D12")
def test_a_handler_may_name_further_classes_but_never_overrules_permanent():
    assert classify(KeyError("x"), (LookupError,)).retryable
    assert not classify(ValueError("x"), (LookupError,)).retryable
    assert not classify(PermanentError("x"), (Exception,)).retryable


class Hostile(RetryableError):
    def __init__(self, how: object) -> None:
        self.how = how

    def __str__(self) -> str:
        if isinstance(self.how, BaseException):
            raise self.how
        return self.how  # type: ignore[return-value]


@pytest.mark.contract("C1.47", "C1.48", "BQ-50")
@pytest.mark.parametrize(
    "how",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        RecursionError(),
        None,
        12,
        b"bytes",
        "x" * 10_000_000,
        '\r\n{"level":"INFO"}\n',
        "\x1b[31mred\x1b[0m \x00\x07\x7f\x85\u2028\u202e",
        "lone \ud800 surrogate",
        "",
        " \n ",
    ],
    ids=lambda h: repr(h)[:20],
)
def test_a_hostile_text_becomes_one_short_printable_line_and_the_class_stays(how):
    failed = classify(Hostile(how))
    assert failed.error_class == "Hostile" and failed.retryable
    assert 0 < len(failed.error_message) <= MAX_MESSAGE_CHARS
    assert failed.error_message.isprintable()
    failed.error_message.encode()


@pytest.mark.contract("C4.08", "D12")
def test_the_length_of_a_message_never_changes_the_class():
    assert classify(RetryableError("x" * 600)).retryable
    assert len(classify(RetryableError("x" * 600)).error_message) == 500


@pytest.mark.contract("C1.48", "C13.22")
def test_a_password_in_an_error_is_not_kept():
    message = describe(OSError("cannot reach rediss://app:hunter2@cache:6379/0, giving up"))[1]
    assert message == "cannot reach rediss://app:***@cache:6379/0, giving up"


def test_an_error_without_a_text_is_called_by_its_class():
    assert describe(KeyError()) == ("KeyError", "KeyError")


# ------------------------------------------------------------------------------------------------ decisions


@pytest.mark.contract("C1.16", "C1.20")
def test_success_and_cancel_are_what_they_are():
    assert decide(Succeeded('{"a":1}'), 1, 5, POLICY, rng()).result == '{"a":1}'
    assert decide(Succeeded(None), 9, 5, POLICY, rng()).status == "succeeded"
    assert decide(Cancelled(), 1, 5, POLICY, rng()).status == "cancelled"


@pytest.mark.contract("C4.10", "C4.15", "C1.49", "C1.50")
def test_a_retryable_failure_with_attempts_left_is_retried_after_the_back_off():
    settlement = decide(RETRYABLE, 3, 5, RetryPolicy(jitter=0), rng())
    assert (settlement.status, settlement.retry_delay_ms, settlement.retryable) == ("retrying", 4000, True)
    assert (settlement.error_class, settlement.error_message) == ("Error", "text")


@pytest.mark.contract("C4.01", "C4.10")
def test_a_timeout_is_a_retryable_failure_that_says_how_long_it_waited():
    settlement = decide(TimedOut(1500), 1, 2, POLICY, rng())
    assert (settlement.status, settlement.error_class) == ("retrying", "TimeoutError")
    assert "1500 ms" in settlement.error_message
    assert decide(TimedOut(1500), 2, 2, POLICY, rng()).status == "dead_lettered"


@pytest.mark.contract("C4.16", "C4.17")
@pytest.mark.parametrize(("dead_letters", "status"), [(True, "dead_lettered"), (False, "failed")])
@pytest.mark.parametrize(("outcome", "attempt"), [(PERMANENT, 1), (RETRYABLE, 5), (RETRYABLE, 6), (PERMANENT, 5)])
def test_permanent_or_exhausted_ends_the_task(dead_letters, status, outcome, attempt):
    settlement = decide(outcome, attempt, 5, RetryPolicy(dead_letters=dead_letters), rng())
    assert settlement.status == status
    assert settlement.retryable == outcome.retryable
    assert settlement.retry_delay_ms is None


@pytest.mark.contract("C4.09", "C4.10")
@given(attempt=st.integers(1, 2000), limit=st.integers(1, 1000), retryable=st.booleans(), seed=st.integers())
def test_nothing_is_retried_for_ever(attempt, limit, retryable, seed):
    settlement = decide(Failed("E", "m", retryable), attempt, limit, POLICY, random.Random(seed))
    assert (settlement.status == "retrying") == (retryable and attempt < limit)


@pytest.mark.parametrize("asked", [0, 0.25, 3600, 30 * 86_400])
def test_a_delay_that_the_handler_asks_for_replaces_the_back_off(asked):
    assert decide(RETRYABLE, 1, 5, POLICY, rng(), asked).retry_delay_ms == asked * 1000


@pytest.mark.parametrize("asked", [-1, math.nan, math.inf, 1e300, 31 * 86_400, "5", None])
def test_a_delay_that_is_no_time_to_wait_is_ignored(asked):
    settlement = decide(RETRYABLE, 1, 5, RetryPolicy(jitter=0), rng(), asked)
    assert settlement.retry_delay_ms == 1000
