"""The demo tasks, tested as their author would: with dtq_tasks.testing (contract §14)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dtq_examples import tasks
from dtq_tasks import InvalidPayload, PermanentError, RetryableError
from dtq_tasks.registry import registry
from dtq_tasks.testing import make_context, run


@pytest.mark.contract(*[f"C14.{n:02}" for n in range(1, 8)])
def test_all_seven_are_registered_and_described():
    names = {"echo_task", "sleep_task", "fibonacci_task", "flaky_task", "always_fail_task", "counter_task", "slow_task"}
    mine = {name: handler for name, handler in registry.handlers.items() if handler.fn.__module__ == tasks.__name__}
    assert set(mine) == names
    assert all(handler.__doc__ for handler in mine.values())


@pytest.mark.contract("C14.01")
@pytest.mark.parametrize("payload", [{}, {"message": "hällo", "n": [1, 2.5, None, {"deep": True}]}])
def test_echo_returns_its_payload(payload):
    assert run("echo_task", payload) == payload


@pytest.mark.contract("C14.02")
def test_sleep_says_how_long_it_slept():
    assert run("sleep_task", {"seconds": 0}) == {"slept_s": 0}
    assert run("sleep_task", {"seconds": 0.01, "note": "ignored"}) == {"slept_s": 0.01}


@pytest.mark.contract("C14.02")
@pytest.mark.parametrize("seconds", [30.001, 31, 3600])
def test_sleep_refuses_more_than_thirty_seconds_for_good(seconds):
    with pytest.raises(PermanentError, match="at most 30 seconds"):
        run("sleep_task", {"seconds": seconds})


@pytest.mark.contract("C14.02", "C14.07", "C4.05")
@pytest.mark.parametrize("seconds", [-1, 3601, "1", None, True, [], 1e300])
@pytest.mark.parametrize("name", ["sleep_task", "slow_task"])
def test_times_that_are_none_are_permanent(name, seconds):
    with pytest.raises(InvalidPayload, match="seconds"):
        run(name, {"seconds": seconds})


@pytest.mark.contract("C14.07")
def test_slow_works_in_steps():
    assert run("slow_task", {"seconds": 0}) == {"worked_s": 0.0, "steps": 0}
    assert run("slow_task", {"seconds": 0.01})["steps"] >= 1


@pytest.mark.contract("C14.02", "C14.07")
@pytest.mark.parametrize("name", ["sleep_task", "slow_task"])
def test_a_waiting_task_ends_as_soon_as_it_is_cancelled(name):
    handler = registry.handlers[name]

    async def main() -> bool:
        running = asyncio.create_task(handler(handler.parse({"seconds": 30}), make_context()))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled()

    assert asyncio.run(main())


@pytest.mark.contract("C14.03")
def test_fibonacci_is_right_bounded_and_kept_off_the_loop():
    assert [run("fibonacci_task", {"n": n})["value"] for n in range(11)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    assert run("fibonacci_task") == {"n": 20, "value": 6765}
    for n in (-1, 41, 10**9, "5", 2.5, True):
        with pytest.raises(InvalidPayload):
            run("fibonacci_task", {"n": n})
    handler = registry.handlers["fibonacci_task"]
    assert not handler.is_async and "CPU-BOUND" in str(handler.__doc__)


@pytest.mark.contract("C14.04")
def test_flaky_fails_as_often_as_it_was_told():
    for attempt in (1, 2):
        with pytest.raises(RetryableError):
            run("flaky_task", {"fail_times": 2}, make_context(attempt=attempt))
    assert run("flaky_task", {"fail_times": 2}, make_context(attempt=3)) == {"attempt": 3}
    assert run("flaky_task", {"fail_times": 0}) == {"attempt": 1}
    with pytest.raises(RetryableError):
        run("flaky_task")


@pytest.mark.contract("C14.05")
def test_always_fail_always_fails_in_a_retryable_way():
    for attempt in (1, 99):
        with pytest.raises(RetryableError):
            run("always_fail_task", {}, make_context(attempt=attempt))


# ------------------------------------------------------------------------------------------------ the counter


@pytest.fixture
def counters(engine, monkeypatch):
    """`count(payload)` runs the counter on a real engine, with the worker's own start-up functions around it."""
    monkeypatch.setenv("DTQ_REDIS_URL", engine.url())

    def count(*payloads):
        async def main():
            state = SimpleNamespace()
            tasks.open_counters(state)
            ctx = make_context(state=state)
            try:
                return await asyncio.gather(*(tasks.counter_task(payload, ctx) for payload in payloads))
            finally:
                await tasks.close_counters(state)

        return asyncio.run(main())

    return count


@pytest.mark.contract("C14.06")
def test_counting_is_atomic_and_leaves_a_key_that_ends(counters, engine):
    values = [done["value"] for done in counters(*[{"name": "hits"}] * 50)]
    assert sorted(values) == list(range(1, 51))
    assert counters({}) == [{"name": "default", "value": 1}]
    assert engine.redis.get("dtq:demo:counter:hits") == "50"
    assert 0 < engine.redis.ttl("dtq:demo:counter:hits") <= tasks.COUNTER_TTL_S


@pytest.mark.contract("C14.06")
def test_the_key_has_the_prefix_of_the_installation(counters, engine, monkeypatch):
    monkeypatch.setenv("DTQ_KEY_PREFIX", "{shop}")
    counters({"name": "hits"})
    assert engine.redis.keys("*") == ["{shop}:demo:counter:hits"]


@pytest.mark.contract("C14.06")
@pytest.mark.parametrize("name", ["", "a b", "a:b", "*", "x" * 65, 7, None, "a\n"], ids=repr)
def test_other_names_are_refused_for_good(counters, name):
    with pytest.raises(PermanentError, match="name"):
        counters({"name": name})


def test_without_a_plain_address_the_worker_starts_and_only_the_counter_says_no(counters, monkeypatch):
    monkeypatch.setenv("DTQ_REDIS_URL", "redis+sentinel://host/main/0")
    with pytest.raises(PermanentError, match="plain redis"):
        counters({})


# ------------------------------------------------------------------------------------------------ a whole life


@pytest.mark.contract("C14.04", "C4.15")
def test_flaky_succeeds_after_its_back_off(dtq):
    task_id = dtq.submit("flaky_task", {"fail_times": 2})
    dtq.run_until_idle()
    assert dtq.task(task_id).status == "retrying"
    dtq.advance(1)
    dtq.run_until_idle()
    assert dtq.task(task_id).status == "retrying"
    dtq.advance(2)
    dtq.run_until_idle()
    assert (dtq.task(task_id).status, dtq.result(task_id)) == ("succeeded", {"attempt": 3})


@pytest.mark.contract("C14.05", "C4.16")
def test_always_fail_ends_among_the_dead_letters(dtq):
    task_id = dtq.submit("always_fail_task", max_attempts=2)
    dtq.run_until_idle()
    dtq.advance(1)
    dtq.run_until_idle()
    [letter] = dtq.dead_letters()
    assert (letter.task_id, letter.attempts_made, letter.last_error_class) == (task_id, 2, "RetryableError")


@pytest.mark.contract("C14.06")
def test_counter_finds_its_client_where_the_worker_put_it(dtq):
    ids = [dtq.submit("counter_task", {"name": "visits"}) for _ in range(3)]
    dtq.run_until_idle()
    assert [dtq.result(task_id)["value"] for task_id in ids] == [1, 2, 3]


@pytest.mark.contract("C14.02", "C4.04")
def test_a_refused_sleep_is_not_tried_again(dtq):
    task_id = dtq.submit("sleep_task", {"seconds": 31})
    dtq.run_until_idle()
    assert (dtq.task(task_id).status, dtq.task(task_id).attempt) == ("dead_lettered", 1)
