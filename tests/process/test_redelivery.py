"""A worker dies, freezes or is cut off: what it had in hand runs again, exactly that, and never more often than allowed."""

from __future__ import annotations

import pytest
from support.eventually import eventually
from support.wire import AFTER, CUT_ALL, script, took
from support.world import World


@pytest.mark.contract("C1.34", "C3.04", "C6.28", "BQ-01", "D2")
def test_a_task_whose_worker_was_killed_runs_again(world: World) -> None:
    """The same entry, claimed from a dead owner, is a redelivery: attempt + 1, never taken for a duplicate."""
    first = world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    run = world.journal.wait_run(task_id)
    first.kill()
    world.journal.open("g.2")
    world.worker()
    world.wait_ended([task_id])
    task = world.task(task_id)
    assert (task.status, task.attempt) == ("succeeded", 2)
    assert [a.error_class for a in task.history] == ["WorkerLost", None]
    assert task.history[0].worker_id == run.worker_id
    world.check([task_id], starts=2)


@pytest.mark.contract("C3.03", "BQ-01", "D1")
def test_a_worker_killed_between_the_start_and_the_handler(world: World) -> None:
    """RUNNING is written, not one line of the handler has run: the entry is pending and comes back."""
    wire = world.wire()
    first = world.worker(wire=wire)
    moment = wire.at(AFTER, took(), first.kill, then=CUT_ALL)
    task_id = world.submit("echo", {"n": 1})
    moment.wait()
    assert world.status(task_id) == "running"
    assert world.journal.runs(task_id) == []
    world.worker()
    world.wait_ended([task_id])
    assert [run.attempt for run in world.journal.runs(task_id)] == [2]
    world.check([task_id])


@pytest.mark.contract("C4.24", "C6.17", "BQ-01", "D2")
def test_another_entry_for_a_running_task_is_absorbed(world: World) -> None:
    """A duplicate is acknowledged, counted and told of once; it neither runs nor ends the task."""
    world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    feed = world.feed()
    stream = "dtq:stream:default:p5"
    ((entry_id, fields),) = world.redis.xrange(stream)
    duplicate = world.redis.xadd(stream, fields)
    world.redis.lpush("dtq:wake:default", "1")
    eventually(lambda: [e for e, _ in world.redis.xrange(stream)] == [entry_id], what=f"{duplicate} is absorbed")
    assert feed.of(task_id) == ["TASK_DUPLICATE_ABSORBED"]
    assert world.status(task_id) == "running"
    world.journal.open("g")
    world.wait_ended([task_id])
    world.check([task_id], starts=1)


@pytest.mark.contract("C4.09", "C5.07", "BQ-03", "D3")
def test_a_task_that_kills_its_worker_ends_as_a_dead_letter(world: World) -> None:
    """Three starts, counted before the handler runs; then the letter names the lost worker, and the neighbour is well."""
    feed = world.feed()
    supervised = [world.supervised_worker(concurrency=1) for _ in range(2)]
    poison = world.submit("crash", max_attempts=3, idempotency_key="poison")
    healthy = world.submit("echo", {"n": 1})
    world.wait_ended([poison, healthy], timeout=60)
    letter = world.run(world.inspector.dead_letter(poison))
    assert (letter.attempts_made, letter.last_error_class, letter.retryable) == (3, "WorkerLost", True)
    assert [run.attempt for run in world.journal.runs(poison)] == [1, 2, 3]
    assert world.status(healthy) == "succeeded"
    assert '"state":"failed"' in str(world.redis.get("dtq:idempotency:default:poison"))
    assert feed.of(poison)[-1] == "TASK_DEAD_LETTERED" and feed.of(poison).count("TASK_DEAD_LETTERED") == 1
    assert [code for s in supervised for code in s.exits] == [-9, -9, -9]
    world.check([poison, healthy], starts=3)


@pytest.mark.contract("BQ-09", "D5")
@pytest.mark.parametrize("late", ["ok", "retry", "permanent"])
@pytest.mark.parametrize("peer", ["still runs", "has succeeded"])
def test_a_frozen_worker_that_wakes_up_changes_nothing(world: World, late: str, peer: str) -> None:
    """A is stopped for longer than its lease, B takes over; what A then reports is refused, whatever it is."""
    a = world.worker()
    task_id = world.submit("gate_sync", {"gate": "g", "then.1": late}, idempotency_key="k")
    world.journal.wait_run(task_id, 1)
    a.freeze()
    b = world.worker()
    world.journal.wait_run(task_id, 2)
    feed = world.feed()
    if peer == "has succeeded":
        world.journal.open("g.2")
        world.wait_status(task_id, "succeeded")
    world.journal.open("g.1")
    a.thaw()
    eventually(lambda: world.journal.runs(task_id)[0].ended, what="A's handler ends")
    eventually(lambda: "another worker" in a.log(), what="A learns that it has lost the task")
    if peer == "still runs":
        assert world.status(task_id) == "running"
        assert world.pending() == {b.worker_id: [task_id]}
        assert '"state":"processing"' in str(world.redis.get("dtq:idempotency:default:k"))
        world.check_places("after A's late report")
        world.journal.open("g.2")
        world.wait_status(task_id, "succeeded")
    assert world.result(task_id) == {"by": b.pid, "attempt": 2}
    assert feed.of(task_id) == ["TASK_SUCCEEDED"]
    world.check([task_id], starts=2, overlaps=True)


@pytest.mark.contract("BQ-09", "D5")
def test_a_worker_that_is_cut_off_stops_its_handlers_itself(world: World) -> None:
    """Nothing passes between A and the engine: after a whole visibility timeout A cancels, before it can learn of B."""
    wire = world.wire()
    a = world.worker(wire=wire)
    task_id = world.submit("gate", {"gate": "g"})
    first = world.journal.wait_run(task_id, 1)
    wire.blackhole()
    b = world.worker()
    assert world.journal.wait_end(first).outcome == "CancelledError"
    world.journal.wait_run(task_id, 2)
    world.journal.open("g.2")
    world.wait_status(task_id, "succeeded")
    wire.heal()
    eventually(lambda: "another worker" in a.log(), 20, "A learns that it has lost the task")
    assert world.result(task_id) == {"by": b.pid, "attempt": 2}
    more = [world.submit("echo", {"n": n}) for n in range(10)]
    world.wait_ended(more)
    assert a.alive
    world.check([task_id, *more], starts=2, overlaps=True)


@pytest.mark.contract("C6.07", "BQ-10", "D7")
@pytest.mark.parametrize("kind", ["block", "spin"])
def test_a_handler_that_blocks_the_loop_keeps_its_lease(world: World, kind: str) -> None:
    """Renewal has its own thread: for longer than the visibility timeout nobody takes the task away."""
    mine, theirs = world.wire(), world.wire()
    world.worker(wire=mine)
    task_id = world.submit(kind, {"gate": "g"}, timeout_ms=60_000)
    world.journal.wait_run(task_id)
    world.worker(wire=theirs)
    renewed = len(mine.requests(script("touch")))
    eventually(lambda: len(mine.requests(script("touch"))) >= renewed + 7, 20, "seven renewals, over three seconds")
    assert len(theirs.requests(script("stale"))) >= 3, "the peer has looked meanwhile"
    world.journal.open("g")
    world.wait_ended([task_id])
    assert world.task(task_id).attempt == 1
    world.check([task_id], starts=1)


@pytest.mark.contract("BQ-10")
def test_a_blocked_loop_is_told_by_the_name_of_the_task_type(world: World) -> None:
    worker = world.worker()
    task_id = world.submit("block", {"gate": "g"})
    world.journal.wait_run(task_id)
    beats = world.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat")
    eventually(
        lambda: int(world.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat")) > int(beats) + 1500,
        what="the heart beats on",
    )
    told = "s; handlers running: block (use a plain def for blocking code)"
    eventually(
        lambda: "the event loop has been blocked for" in worker.log() and told in worker.log(), what="while it is"
    )
    world.journal.open("g")
    world.wait_ended([task_id])
    world.check([task_id], starts=1)


@pytest.mark.contract("BQ-10", "D5")
def test_a_coroutine_that_blocks_the_loop_for_ever_gives_its_tasks_up(world: World) -> None:
    """Past its deadline nobody can stop it from outside its thread: the worker leaves, and peers run what it held."""
    stuck = world.worker()
    task_id = world.submit("block", {"gate": "g"}, timeout_ms=500)
    neighbour = world.submit("gate", {"gate": "n"}, timeout_ms=60_000)
    world.journal.wait_run(task_id)
    assert stuck.wait(15) == 1
    assert "the event loop is blocked and tasks are past their deadline (block)" in stuck.log()
    world.journal.open("g.2", "n")
    world.worker()
    assert world.wait_ended([task_id, neighbour]) == dict.fromkeys([task_id, neighbour], "succeeded")
    world.check([task_id, neighbour], starts=2)


@pytest.mark.contract("BQ-10", "D5")
def test_a_worker_whose_loop_is_blocked_by_what_a_handler_left_behind_gives_up(world: World) -> None:
    """Nothing is in hand any more, but nothing could be taken either."""
    stuck = world.worker()
    task_id = world.submit("leave_a_blocker", {"gate": "never"})
    world.wait_ended([task_id])
    assert stuck.wait(15) == 1
    assert "the event loop is blocked" in stuck.log()
    later = world.submit("echo")
    world.worker()
    world.wait_ended([later])
    world.check([task_id, later], starts=1)


@pytest.mark.contract("C6.12", "C7.05", "BQ-17", "D32")
def test_a_dead_peers_backlog_is_taken_over_within_the_free_slots(world: World) -> None:
    """Forty entries of a dead consumer, one worker with four slots: never more than four in hand, each runs once."""
    world.worker().kill()
    ids = world.submit_many("sleep", [{"seconds": 0.05} for _ in range(40)])
    got = world.redis.xreadgroup("workers", "worker-deadbeef", {"dtq:stream:default:p5": ">"}, count=40)
    entries = [entry_id for entry_id, _ in got[0][1]]
    world.redis.xclaim("dtq:stream:default:p5", "workers", "worker-deadbeef", 0, entries, idle=60_000, justid=True)
    wire = world.wire()
    in_hand: list[int] = []
    worker_ids: list[str] = []

    def count() -> None:
        in_hand.append(sum(len(ids) for owner, ids in world.pending().items() if owner != "worker-deadbeef"))

    moment = wire.each(AFTER, lambda r: r.script in ("fetch", "reclaim", "settle", "adopt"), count)
    worker = world.worker(wire=wire)
    worker_ids.append(worker.worker_id)
    world.wait_ended(ids)
    moment.wait()
    assert max(in_hand) == 4
    assert world.journal.most_at_once() <= 4
    world.check(ids, starts=1)
