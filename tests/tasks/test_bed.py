"""The `dtq` fixture: production's scripts and executor under a test's hand, with a stopped clock."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import pydantic
import pytest

from dtq_core.errors import InvalidTask, TaskNotFound, UnknownTaskType
from dtq_tasks import InvalidPayload, PermanentError, RetryableError, on_shutdown, on_startup, producer, task
from dtq_tasks.registry import registry


class Order(pydantic.BaseModel):
    number: int


def seen_by(name, **defaults):
    """A handler that notes the attempts it saw; its payload says how many fail."""
    attempts: list[int] = []

    @task(name, **defaults)
    async def handler(payload, ctx):
        attempts.append(ctx.attempt)
        if ctx.attempt <= payload.get("fails", 0):
            raise RetryableError("not yet")
        return {"attempt": ctx.attempt}

    return SimpleNamespace(handler=handler, attempts=attempts)


def test_a_task_runs_when_the_test_says_so(dtq):
    seen = seen_by("one")
    task_id = dtq.submit("one", {"a": 1}, priority=7)
    assert dtq.task(task_id).status == "queued" and dtq.result(task_id) is None
    assert seen.attempts == []
    assert dtq.run_until_idle() == 1
    done = dtq.task(task_id)
    assert (done.status, done.priority, done.payload) == ("succeeded", 7, {"a": 1})
    assert dtq.result(task_id) == {"attempt": 1}
    assert dtq.run_until_idle() == 0


@pytest.mark.contract("C4.11", "C4.15")
def test_retries_come_exactly_when_they_are_due(dtq):
    seen = seen_by("one")
    task_id = dtq.submit("one", {"fails": 2})
    dtq.run_until_idle()
    waiting = dtq.task(task_id)
    assert (waiting.status, seen.attempts, waiting.last.retry_delay_ms) == ("retrying", [1], 1000)
    dtq.advance(0.999)
    assert dtq.run_until_idle() == 0
    dtq.advance(0.001)
    assert dtq.run_until_idle() == 1
    assert seen.attempts == [1, 2]
    dtq.advance(2)
    dtq.run_until_idle()
    assert dtq.result(task_id) == {"attempt": 3}
    assert [attempt.error_class for attempt in dtq.task(task_id).history] == ["RetryableError", "RetryableError", None]


@pytest.mark.contract("C4.16", "C11.24", "C11.25")
def test_the_last_failure_is_a_dead_letter_that_can_be_requeued(dtq):
    seen = seen_by("one", max_attempts=2, backoff=0)
    task_id = dtq.submit("one", {"fails": 9})
    dtq.run_until_idle()
    [letter] = dtq.dead_letters()
    assert (letter.task_id, letter.attempts_made, letter.last_error) == (task_id, 2, "not yet")
    assert dtq.task(task_id).status == "dead_lettered"
    dtq.requeue(task_id)
    assert dtq.dead_letters() == [] and dtq.task(task_id).status == "queued"
    dtq.run_until_idle()
    assert seen.attempts == [1, 2, 1, 2]


@pytest.mark.contract("C1.32")
def test_a_delayed_task_waits_for_the_clock(dtq):
    seen_by("one")
    task_id = dtq.submit("one", delay_seconds=3600)
    assert (dtq.run_until_idle(), dtq.task(task_id).status) == (0, "pending")
    dtq.advance(3600)
    assert (dtq.run_until_idle(), dtq.task(task_id).status) == (1, "succeeded")


@pytest.mark.contract("C6.16")
def test_a_ttl_passes_with_the_clock(dtq):
    seen = seen_by("one")
    task_id = dtq.submit("one", metadata={"ttl_seconds": 60})
    dtq.advance(61)
    assert (dtq.run_until_idle(), dtq.task(task_id).status, seen.attempts) == (0, "expired", [])


@pytest.mark.contract("C1.36")
def test_priorities_are_strict(dtq):
    order = []
    task("note")(lambda payload, ctx: order.append(payload["n"]))
    for n in (3, 9, 0, 5):
        dtq.submit("note", {"n": n}, priority=n)
    dtq.run_until_idle()
    assert order == [9, 5, 3, 0]


def test_many_tasks_on_many_queues(dtq):
    seen = seen_by("one")
    for n in range(150):
        dtq.submit("one", queue=f"q{n % 7}", delay_seconds=n % 2)
    assert dtq.run_until_idle() == 75
    dtq.advance(1)
    assert dtq.run_until_idle() == 75
    assert len(seen.attempts) == 150


def test_by_handler_a_payload_is_checked_and_by_name_it_is_what_a_client_sends(dtq):
    @task("charge", queue="money")
    def charge(payload: Order, ctx):
        return payload.number

    task_id = dtq.submit(charge, Order(number=7))
    assert dtq.task(task_id).queue == "money"
    with pytest.raises(InvalidPayload):
        dtq.submit(charge, {"number": "seven"})
    broken = dtq.submit("charge", {"number": "seven"})
    dtq.run_until_idle()
    assert dtq.result(task_id) == 7
    assert [(x.task_id, x.last_error_class) for x in dtq.dead_letters()] == [(broken, "InvalidPayload")]


def test_what_a_producer_meets_comes_out(dtq):
    seen_by("one")
    with pytest.raises(UnknownTaskType):
        dtq.submit("two")
    with pytest.raises(InvalidTask, match="priority"):
        dtq.submit("one", priority=10)
    with pytest.raises(TaskNotFound):
        dtq.task("0" * 32)


@pytest.mark.contract("C5.04", "C5.05")
def test_idempotency_keys_hold(dtq):
    seen = seen_by("one")
    first = dtq.submit("one", idempotency_key="k")
    dtq.run_until_idle()
    assert dtq.submit("one", idempotency_key="k") == first
    dtq.run_until_idle()
    assert seen.attempts == [1]


@pytest.mark.contract("C1.20")
def test_cancel(dtq):
    seen = seen_by("one")
    task_id = dtq.submit("one")
    dtq.cancel(task_id)
    assert (dtq.run_until_idle(), dtq.task(task_id).status, seen.attempts) == (0, "cancelled", [])


@pytest.mark.contract("C6.19", "C4.01")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_timeouts_are_real(dtq, kind):
    released = threading.Event()
    if kind == "async":

        @task("stuck", timeout=0.05)
        async def stuck(payload, ctx):
            await asyncio.Event().wait()
    else:

        @task("stuck", timeout=0.05)
        def stuck(payload, ctx):
            released.wait(30)

    task_id = dtq.submit(stuck)
    dtq.run_until_idle()
    released.set()
    assert (dtq.task(task_id).status, dtq.task(task_id).last.error_class) == ("retrying", "TimeoutError")


@pytest.mark.parametrize(
    "raises",
    [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), PermanentError("x")],
    ids=repr,
)
def test_a_handler_that_raises_anything_ends_its_own_task_only(dtq, raises):
    @task("bad")
    async def bad(payload, ctx):
        raise raises

    seen_by("one")
    bad_id, good_id = dtq.submit(bad, priority=9), dtq.submit("one")
    dtq.run_until_idle()
    assert dtq.task(bad_id).last.error_class == type(raises).__name__
    assert dtq.task(good_id).status == "succeeded"


def test_tasks_that_submit_tasks(dtq):
    @task("leaf")
    def leaf(payload, ctx):
        return payload["n"]

    @task("sync_parent")
    def sync_parent(payload, ctx):
        return leaf.submit(n=1).task_id

    @task("async_parent")
    async def async_parent(payload, ctx):
        return [leaf.submit(n=2).task_id, (await leaf.submit_async(n=3)).task_id]

    parents = [dtq.submit(sync_parent), dtq.submit(async_parent)]
    assert dtq.run_until_idle() == 5
    leaves = [dtq.result(parents[0]), *dtq.result(parents[1])]
    assert [dtq.result(leaf_id) for leaf_id in leaves] == [1, 2, 3]


def test_an_endless_chain_is_noticed(dtq):
    @task("again")
    async def again(payload, ctx):
        await again.submit_async()

    dtq.submit(again)
    with pytest.raises(AssertionError, match="not idle after 20 runs; the next would be again"):
        dtq.run_until_idle(at_most=20)


def test_a_handler_cannot_wait_for_the_bed(dtq):
    @task("nested")
    async def nested(payload, ctx):
        return dtq.run_until_idle()

    task_id = dtq.submit(nested)
    dtq.run_until_idle()
    assert "submit only" in dtq.task(task_id).last.error_message


def test_a_paused_queue_waits(dtq):
    seen = seen_by("one")
    task_id = dtq.submit("one")
    dtq.pause()
    dtq.run_until_idle()
    assert (dtq.task(task_id).status, seen.attempts) == ("queued", [])
    dtq.resume()
    dtq.run_until_idle()
    assert dtq.task(task_id).status == "succeeded"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_a_handler_ended_fails_the_test_instead_of_hanging_it(dtq_session):
    with dtq_session.fresh() as bed:

        @task("ends_the_loop")
        async def ends_the_loop(payload, ctx):
            def leave() -> None:
                raise SystemExit(3)

            asyncio.get_running_loop().call_soon(leave)
            await asyncio.sleep(10)

        bed.submit("ends_the_loop")
        with pytest.raises(RuntimeError, match="event loop of `dtq` has ended"):
            bed.run_until_idle()


def test_start_up_and_shut_down_functions_run_once_around_the_tasks(dtq_session):
    calls = []
    with dtq_session.fresh() as dtq:

        @on_startup
        def connect(state):
            state.pool = "pool"
            calls.append("start")

        @on_shutdown
        async def disconnect(state):
            calls.append(f"stop {state.pool}")

        @task("use")
        def use(payload, ctx):
            calls.append(ctx.state.pool)

        dtq.submit(use)
        assert calls == []
        dtq.run_until_idle()
        dtq.submit(use)
        dtq.run_until_idle()
    assert calls == ["start", "pool", "pool", "stop pool"]


def test_a_bed_leaves_nothing_behind(dtq_session, monkeypatch):
    monkeypatch.delenv("DTQ_REDIS_URL", raising=False)
    handlers, threads = dict(registry.handlers), threading.active_count()
    with dtq_session.fresh() as dtq:
        seen_by("one")
        task_id = dtq.submit("one")
        assert os.environ["DTQ_REDIS_URL"] == dtq.settings.redis_url.get_secret_value()
    assert registry.handlers == handlers and "DTQ_REDIS_URL" not in os.environ
    assert producer._current is None
    assert threading.active_count() == threads
    with dtq_session.fresh() as dtq, pytest.raises(TaskNotFound):
        dtq.task(task_id)


def test_the_clock_moves_only_when_told_and_never_back(dtq):
    seen_by("one")
    created = dtq.task(dtq.submit("one")).created_at
    dtq.advance(1.5)
    assert (dtq.task(dtq.submit("one")).created_at - created).total_seconds() == 1.5
    with pytest.raises(ValueError, match="back"):
        dtq.advance(-1)


def test_it_works_in_a_test_that_has_a_loop(dtq):
    seen_by("one")

    async def main():
        task_id = dtq.submit("one")
        dtq.run_until_idle()
        return dtq.result(task_id)

    assert asyncio.run(main()) == {"attempt": 1}


class TestOtherSettings:
    @pytest.fixture
    def dtq_settings(self):
        return {"retry_base_delay": 5, "dlq_enabled": False, "max_payload_bytes": 20}

    def test_settings_are_a_fixture_to_override(self, dtq):
        seen_by("one")
        task_id = dtq.submit("one", {"fails": 1})
        dtq.run_until_idle()
        dtq.advance(4.9)
        assert dtq.run_until_idle() == 0
        dtq.advance(0.1)
        assert dtq.run_until_idle() == 1
        assert dtq.task(task_id).status == "succeeded"
