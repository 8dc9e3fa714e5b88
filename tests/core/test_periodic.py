"""Loops that never die unseen: BQ-06, BQ-47, BQ-54. Time is a function here, so nothing waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import pytest

from dtq_core import periodic
from dtq_core.errors import RedisUnavailable
from dtq_core.log import RateLimited
from dtq_core.periodic import every, supervised

pytestmark = pytest.mark.contract("C6.02", "C6.03", "BQ-54")


class FakeTime:
    """A `sleep` that notes what it was asked for, takes no time, and cancels its task after `rounds` calls."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.waits: list[float] = []
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        if len(self.waits) == self.rounds:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No memory of the lines that another test has written, and repeatable jitter."""
    monkeypatch.setattr(periodic, "_limited", RateLimited(periodic.logger))
    monkeypatch.setattr(periodic, "_rng", random.Random(7))


def steps(*outcomes):
    """A step with these outcomes in turn, the last for ever: a value is returned, an exception raised."""
    left = list(outcomes)

    async def step():
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return step


def run_every(rounds, step, interval_s=1.0, **options):
    time = FakeTime(rounds)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(every("poll", step, interval_s, sleep=time.sleep, **options))
    return time.waits


# ------------------------------------------------------------------------------------------------ every


def test_rounds_are_an_interval_apart_give_or_take_the_jitter():
    waits = run_every(500, steps(None), 10, jitter=0.2)
    assert 8 <= min(waits) < 8.2 and 11.8 < max(waits) <= 12
    assert run_every(5, steps(None), 10, jitter=0) == [10] * 5


def test_a_step_says_how_long_the_next_wait_is():
    assert run_every(4, steps(0, 0.5, None, 0.0), 10, jitter=0) == [0, 0.5, 10, 0]


def test_a_step_cannot_ask_for_negative_time():
    assert run_every(2, steps(-5), 10) == [0, 0]


def test_failures_back_off_by_doubling_up_to_five_seconds_and_never_end_the_loop(caplog):
    waits = run_every(1000, steps(ValueError("broken")), 60)
    assert all(0.075 * 2**n <= wait <= 0.125 * 2**n for n, wait in enumerate(waits[:5]))
    assert all(3 <= wait <= 5 for wait in waits[6:])
    assert len(set(waits)) == 1000


def test_a_success_ends_the_back_off(caplog):
    caplog.set_level(logging.INFO)
    broken = ValueError("broken")
    waits = run_every(6, steps(broken, broken, broken, None, broken, None), 60, jitter=0)
    assert waits[3] == waits[5] == 60
    assert waits[4] < 0.2 < waits[2]
    assert "loop poll works again after 3 failures" in caplog.messages


@pytest.mark.contract("BQ-47")
def test_an_outage_is_one_warning_without_a_traceback(caplog):
    run_every(1000, steps(RedisUnavailable("no answer")))
    [record] = caplog.records
    assert record.getMessage() == "loop poll failed, 1 in a row: RedisUnavailable: no answer"
    assert record.levelno == logging.WARNING and not record.exc_info


def test_a_bug_is_one_error_with_its_traceback_per_kind(caplog):
    run_every(50, steps(ValueError("a"), KeyError("b"), ValueError("c"), KeyError("d")))
    assert [(r.levelname, r.exc_info[0]) for r in caplog.records] == [("ERROR", ValueError), ("ERROR", KeyError)]


def test_every_failure_is_reported_to_the_counter(caplog):
    seen = []
    broken = ValueError("broken")
    run_every(5, steps(broken, None, broken, broken, None), on_error=lambda *what: seen.append(what))
    assert seen == [("poll", broken)] * 3


def test_a_hostile_exception_is_a_failure_like_others(caplog):
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert len(run_every(3, steps(Unreadable()))) == 3
    assert "no readable message" in caplog.messages[0]


@pytest.mark.parametrize("ends", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_means_the_process_passes(ends):
    with pytest.raises(type(ends)):
        asyncio.run(every("poll", steps(ends), 1))


def test_a_cancel_within_a_step_ends_the_loop_at_once():
    async def main():
        started = asyncio.Event()

        async def step():
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(every("poll", step, 1))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


@pytest.mark.contract("BQ-06")
def test_a_cancel_that_a_step_swallows_ends_the_loop_all_the_same():
    """A time limit inside a client library that ends in the very moment of the cancellation does that."""

    async def main() -> int:
        rounds = 0
        inside = asyncio.Event()

        async def step() -> None:
            nonlocal rounds
            rounds += 1
            inside.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        loop = asyncio.ensure_future(every("deaf", step, 0))
        await inside.wait()
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(loop, 5)
        return rounds

    assert asyncio.run(main()) == 1


def test_a_cancel_that_leaks_out_of_something_else_does_not_end_the_loop(caplog):
    async def step():
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    assert len(run_every(5, step)) == 5
    assert "CancelledError" in caplog.messages[0]


def test_rounds_without_a_pause_let_others_run():
    async def main():
        rounds = 0

        async def step():
            nonlocal rounds
            rounds += 1
            return 0

        task = asyncio.create_task(every("poll", step, 1))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        return rounds

    assert 5 <= asyncio.run(main()) <= 11


# ------------------------------------------------------------------------------------------------ supervised


def run_supervised(rounds, loop, **options):
    time = FakeTime(rounds)

    async def main():
        await supervised("feed", lambda: loop(time), sleep=time.sleep, clock=lambda: time.now, **options)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    return time.waits


@pytest.mark.contract("BQ-06")
@pytest.mark.parametrize("how", ["returns", "raises", "is cancelled from elsewhere"])
def test_a_loop_that_ends_is_started_again(caplog, how):
    async def loop(time):
        if how == "raises":
            raise OSError("gone")
        if how == "is cancelled from elsewhere":
            raise asyncio.CancelledError

    seen = []
    waits = run_supervised(100, loop, on_error=lambda name, exc: seen.append(name))
    assert seen == ["feed"] * 100
    assert waits[0] < waits[2] < waits[4] and all(3 <= wait <= 5 for wait in waits[6:])
    [record] = caplog.records
    assert record.levelname == "ERROR" and record.getMessage().startswith("loop feed failed, 1 in a row")


def test_a_loop_that_ran_well_for_a_while_starts_again_soon(caplog):
    async def loop(time):
        time.now += 60
        raise OSError("gone")

    assert all(wait < 0.2 for wait in run_supervised(20, loop))


def test_a_supervised_loop_ends_by_cancellation():
    async def main():
        started = asyncio.Event()

        async def loop():
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(supervised("feed", loop))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


def test_a_supervised_loop_passes_on_what_means_the_process():
    async def loop():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(supervised("feed", loop))
