"""What a handler can do to a worker: raise anything, return anything, never end, end too late. The worker lives on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from support.eventually import eventually
from support.handlers import RAISES, RETURNS
from support.wire import AFTER, script
from support.world import World

from dtq_core.errors import CancelRequested

KEPT = {
    "none": None,
    "text": "text",
    "large": {"truncated": True, "bytes": 20_002},
    "number_key": {"1": "one"},
}
"""What becomes of returned values that are JSON; all others are permanent failures."""


@pytest.mark.contract("C1.48", "C4.01", "C4.03", "C4.04", "C4.09", "D12")
@pytest.mark.parametrize("task_type", ["raise", "raise_sync"])
def test_whatever_a_handler_raises_ends_its_task_only(world: World, task_type: str) -> None:
    """SystemExit, KeyboardInterrupt, CancelledError, an unprintable error: one failed task each, and the next one runs."""
    worker = world.worker(concurrency=2)
    ids = {kind: world.submit(task_type, {"kind": kind}, max_attempts=1) for kind in RAISES}
    assert set(world.wait_ended(ids.values()).values()) == {"dead_lettered"}
    after = world.submit("echo", {"n": 1})
    world.wait_ended([after])
    assert worker.alive and world.status(after) == "succeeded"
    letters = {kind: world.run(world.inspector.dead_letter(task_id)) for kind, task_id in ids.items()}
    for kind, letter in letters.items():
        assert letter.last_error_class, kind
        assert 0 < len(letter.last_error) <= 500, kind
        assert not any(ord(c) < 32 for c in letter.last_error), kind
        assert letter.retryable == (kind in ("retryable", "timeout", "long")), kind
    assert letters["system_exit"].last_error_class == "SystemExit"
    assert letters["own_base"].last_error_class == "Own"
    # A coroutine cannot raise it: the language makes another error of it.
    stop = "StopIteration" if task_type == "raise_sync" else "RuntimeError"
    assert letters["stop_iteration"].last_error_class == stop
    world.check([*ids.values(), after], starts=1)


@pytest.mark.contract("C2.22", "D12", "D18")
@pytest.mark.parametrize("task_type", ["return", "return_sync"])
def test_whatever_a_handler_returns_is_json_or_a_permanent_failure(world: World, task_type: str) -> None:
    worker = world.worker(concurrency=2)
    kept = KEPT | ({"coroutine": None} if task_type == "return_sync" else {})
    ids = {kind: world.submit(task_type, {"kind": kind}) for kind in RETURNS}
    world.wait_ended(ids.values())
    for kind, task_id in ids.items():
        if kind in kept:
            assert world.status(task_id) == "succeeded", kind
            assert world.result(task_id) == kept[kind], kind
        else:
            letter = world.run(world.inspector.dead_letter(task_id))
            assert (letter.last_error_class, letter.retryable) == ("InvalidResult", False), kind
            assert world.redis.get(f"dtq:result:{task_id}") is None
    assert worker.alive
    world.check(ids.values(), starts=1)


@pytest.mark.contract("C1.43", "C1.45", "C4.01", "C6.19")
def test_a_coroutine_is_stopped_at_its_timeout(world: World) -> None:
    world.worker(concurrency=1)
    task_id = world.submit("gate", {"gate": "never"}, timeout_ms=200, max_attempts=2)
    world.wait_ended([task_id])
    task = world.task(task_id)
    assert task.status == "dead_lettered"
    assert [(a.attempt, a.error_class, a.retryable) for a in task.history] == [
        (1, "TimeoutError", True),
        (2, "TimeoutError", True),
    ]
    assert [run.outcome for run in world.journal.runs(task_id)] == ["CancelledError", "CancelledError"]
    assert all(a.duration_ms is not None and 200 <= a.duration_ms < 1500 for a in task.history)
    world.check([task_id], starts=2)


@pytest.mark.contract("C6.18", "C6.19", "C6.20")
@pytest.mark.parametrize("kind", ["gate_sync", "stubborn"])
def test_a_handler_that_outlives_its_timeout_keeps_its_slot(world: World, kind: str) -> None:
    """Its task is settled in time, but the thread (or the coroutine that swallows its cancellation) is still there: no free slot."""
    worker = world.worker(concurrency=1)
    stuck = world.submit(kind, {"gate": "g"}, timeout_ms=200, max_attempts=1)
    run = world.journal.wait_run(stuck)
    world.wait_status(stuck, "dead_lettered")
    assert world.task(stuck).last.error_class == "TimeoutError"
    beat = world.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat")
    later = world.submit("echo", {"n": 1})
    eventually(
        lambda: int(world.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat")) > int(beat) + 1200,
        what="a few rounds of every loop",
    )
    assert world.journal.runs(later) == []
    assert world.redis.hget(f"dtq:worker:{worker.worker_id}", "active_tasks") == "1"
    world.journal.open("g")
    world.journal.wait_end(run)
    world.wait_ended([later])
    assert world.status(stuck) == "dead_lettered", "what it returned at last is discarded"
    world.check([stuck, later], starts=1)


@pytest.mark.contract("C1.20", "C6.21", "C8.11", "D11")
def test_a_running_coroutine_is_cancelled_by_a_nudge(make_world: Callable[..., World]) -> None:
    """Long before the next heartbeat: the worker is told on its own channel."""
    world = make_world(visibility_timeout_s=120, heartbeat_interval_s=60)
    wire = world.wire()
    world.worker(wire=wire)
    eventually(lambda: wire.requests(lambda r: r.command == "SUBSCRIBE"), what="it listens")
    feed = world.feed()
    task_id = world.submit("gate", {"gate": "never"})
    run = world.journal.wait_run(task_id)
    began = time.monotonic()
    with pytest.raises(CancelRequested):
        world.run(world.client.cancel(task_id))
    world.wait_ended([task_id])
    assert time.monotonic() - began < 3
    assert world.status(task_id) == "cancelled"
    assert world.journal.wait_end(run).outcome == "CancelledError"
    assert feed.of(task_id)[-1] == "TASK_CANCELLED"
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.21", "D11")
def test_a_cancel_that_nobody_told_of_is_seen_with_the_next_heartbeat(world: World) -> None:
    world.worker()
    task_id = world.submit("gate", {"gate": "never"})
    world.journal.wait_run(task_id)
    world.redis.hset(f"dtq:task:{task_id}", "cancel_requested", "1")
    world.wait_ended([task_id])
    assert world.status(task_id) == "cancelled"
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.22", "D11")
@pytest.mark.parametrize("then", ["ok", "retry", "permanent"])
def test_a_cancelled_thread_runs_to_its_end_and_is_discarded(world: World, then: str) -> None:
    """A cancel that was accepted beats a late success, a retry and a failure."""
    world.worker()
    task_id = world.submit("gate_sync", {"gate": "g", "then": then})
    run = world.journal.wait_run(task_id)
    with pytest.raises(CancelRequested):
        world.run(world.client.cancel(task_id))
    world.journal.open("g")
    world.wait_ended([task_id])
    assert world.status(task_id) == "cancelled"
    assert (
        world.journal.wait_end(run).outcome
        == {"ok": "ok", "retry": "RetryableError", "permanent": "PermanentError"}[then]
    )
    assert world.result(task_id) is None
    assert not world.redis.exists("dtq:stream:dead-letter")
    world.check([task_id], starts=1)


@pytest.mark.contract("C1.11", "C1.14", "C1.22", "D11")
def test_what_is_cancelled_before_it_starts_never_runs(world: World) -> None:
    """Queued, delayed and retrying: cancelled at once, with entry and schedule member; the neighbours run."""
    world.run(world.client.pause("default"))
    queued, neighbour = world.submit("echo", {}), world.submit("echo", {})
    delayed = world.submit("echo", {}, delay_seconds=60)
    for task_id in (queued, delayed):
        world.run(world.client.cancel(task_id))
        assert world.status(task_id) == "cancelled"
    world.check_places("after the cancels")
    world.run(world.client.resume("default"))
    world.worker()
    retrying = world.submit("gate", {"gate": "g", "then": "retry", "retry_after_s": 60})
    world.journal.open("g")
    world.wait_status(retrying, "retrying")
    world.run(world.client.cancel(retrying))
    world.wait_ended([neighbour])
    assert world.journal.runs(queued) == world.journal.runs(delayed) == []
    world.check([queued, delayed, retrying, neighbour])


@pytest.mark.contract("C4.03", "C4.10", "C4.16")
def test_retries_until_it_works_and_until_it_is_enough(world: World) -> None:
    world.worker()
    works = world.submit("flaky", {"fail_times": 2}, max_attempts=5)
    never = world.submit("flaky", {"fail_times": 9}, max_attempts=3)
    assert world.wait_ended([works, never]) == {works: "succeeded", never: "dead_lettered"}
    assert [run.attempt for run in world.journal.runs(works)] == [1, 2, 3]
    assert [run.attempt for run in world.journal.runs(never)] == [1, 2, 3]
    assert world.run(world.inspector.ledger("default"))["retried"] == 4
    world.check([works, never])


@pytest.mark.contract("C1.06", "C1.18", "C4.17")
def test_without_dead_letters_an_exhausted_task_is_failed(make_world: Callable[..., World]) -> None:
    world = make_world(dlq_enabled="false")
    world.worker()
    task_id = world.submit("raise", {"kind": "permanent"})
    assert world.wait_ended([task_id]) == {task_id: "failed"}
    assert not world.redis.exists("dtq:stream:dead-letter")
    world.check([task_id], starts=1)


@pytest.mark.contract("D4")
def test_an_end_that_cannot_be_written_is_written_later(world: World) -> None:
    """The stream of a running task turns into something else: its end waits, its neighbours' do not, nothing is lost."""
    wire = world.wire()
    worker = world.worker(wire=wire)
    bad = world.submit("gate", {"gate": "g"}, priority=3)
    world.journal.wait_run(bad)
    world.redis.rename("dtq:stream:default:p3", "dtq:stream:aside:p3")
    world.redis.set("dtq:stream:default:p3", "not a stream")
    world.journal.open("g")
    refused = wire.at(AFTER, lambda r: r.script == "settle" and b"ERROR" in (r.reply[0] or b"")[:5])
    refused.wait()
    good = world.submit("echo", {"n": 1})
    world.wait_ended([good])
    assert world.status(bad) == "running"
    world.redis.rename("dtq:stream:aside:p3", "dtq:stream:default:p3")  # in one step over the wrong one
    world.wait_ended([bad])
    assert worker.alive and len(wire.requests(script("settle"))) < 200
    world.check([bad, good], starts=1)


@pytest.mark.contract("C1.15", "C1.42", "C6.16", "D14")
def test_a_task_that_expires_while_it_waits_is_not_run(world: World) -> None:
    world.run(world.client.pause("default"))
    feed = world.feed()
    expiring = world.submit("echo", {}, metadata={"ttl_seconds": 0.05})
    lasting = world.submit("echo", {}, metadata={"ttl_seconds": 600})
    clock = int(world.redis.hget(f"dtq:task:{expiring}", "expires_at"))
    eventually(lambda: world.redis.time()[0] * 1000 + world.redis.time()[1] // 1000 > clock, what="its time is over")
    world.run(world.client.resume("default"))
    world.worker()
    assert world.wait_ended([expiring, lasting]) == {expiring: "expired", lasting: "succeeded"}
    assert feed.of(expiring) == ["TASK_QUEUED", "TASK_EXPIRED"]
    assert world.journal.runs(expiring) == []
    world.check([expiring, lasting], starts=1)


@pytest.mark.contract("C4.09", "D12")
@pytest.mark.parametrize("raises", ["exit", "interrupt"])
@pytest.mark.parametrize("how", ["gather", "group", "wait_for", "left alone"])
def test_what_a_task_of_the_handlers_own_raises_ends_the_handler_at_most(world: World, how: str, raises: str) -> None:
    worker = world.worker()
    neighbour = world.submit("sleep", {"seconds": 0.3}, max_attempts=1)
    task_id = world.submit("child_exits", {"how": how, "raises": raises}, max_attempts=1)
    ended = world.wait_ended([task_id, neighbour])
    assert ended[neighbour] == "succeeded" and worker.alive
    assert ended[task_id] == ("succeeded" if how == "left alone" else "dead_lettered")
    world.check([task_id, neighbour], starts=1)


@pytest.mark.contract("C6.20", "D5", "D11")
def test_a_coroutine_behind_a_plain_decorator_is_under_control(world: World) -> None:
    """Its timeout stops it, a cancel stops it, and its slot is taken as long as it runs."""
    world.worker(concurrency=2)
    late = world.submit("wrapped_gate", {"gate": "never"}, timeout_ms=300, max_attempts=1)
    world.wait_ended([late])
    assert world.run(world.inspector.dead_letter(late)).last_error_class == "TimeoutError"
    ids = [world.submit("wrapped_gate", {"gate": "g"}) for _ in range(6)]
    for _ in range(2):
        eventually(lambda: len([r for r in world.journal.runs() if r.ended is None]) == 2, what="two run")
    stopped = [r.task_id for r in world.journal.runs() if r.ended is None]
    with contextlib.suppress(CancelRequested):
        world.run(world.client.cancel(stopped[0]))
    world.wait_status(stopped[0], "cancelled")
    world.journal.open("g")
    world.wait_ended(ids)
    assert world.journal.most_at_once() <= 2
    assert {r.outcome for r in world.journal.runs(late)} == {"CancelledError"}
    world.check([late, *ids], starts=1)
