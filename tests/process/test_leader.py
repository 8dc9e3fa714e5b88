"""One leader: takeover, frozen leaders, foreign locks, and thousands of tasks that become due together."""

from __future__ import annotations

import time

import pytest
from support.eventually import eventually
from support.wire import AFTER, BEFORE, script
from support.world import World

LOCK = "dtq:lock:scheduler"


@pytest.mark.contract("BQ-30", "D15")
@pytest.mark.parametrize("fate", ["the reply is lost", "the leader dies"])
def test_a_claim_whose_release_was_lost_is_released_at_once(world: World, fate: str) -> None:
    """Not after the sixty seconds that a stale claim may take."""
    wire = world.wire()
    leader = world.scheduler(wire=wire)
    lost = wire.lose_reply(lambda r: r.script == "claim_due" and bool(r.reply[1]))
    ids = [world.submit("echo", delay_seconds=0.2) for _ in range(3)]
    lost.wait()
    gone = time.monotonic()
    if fate == "the leader dies":
        leader.kill()
        world.redis.delete(LOCK)  # as if its ten seconds were over
        world.scheduler()
    eventually(lambda: set(world.statuses(ids).values()) == {"queued"}, 10, "they are on their stream")
    assert time.monotonic() - gone < 5
    world.worker()
    world.wait_ended(ids)
    world.check(ids, starts=1)


@pytest.mark.contract("C2.16", "C4.20", "BQ-14", "D15")
def test_a_killed_leader_is_replaced_when_its_lock_ends(world: World) -> None:
    """Takeover within ten seconds and a cycle, measured from the death; the token is another one."""
    first = world.scheduler()
    token = world.redis.get(LOCK)
    world.scheduler(leads=False)
    first.kill()
    died = time.monotonic()
    eventually(lambda: world.redis.get(LOCK) not in (None, token), 15, "another one leads")
    assert time.monotonic() - died < 12
    assert len(str(token)) >= 16


@pytest.mark.contract("BQ-14", "BQ-12")
@pytest.mark.parametrize("frozen", ["between claim and release", "before the claim"])
def test_a_frozen_leader_promotes_nothing_twice(world: World, frozen: str) -> None:
    """The leader is stopped for longer than its lock in mid-batch, another one goes on, the first wakes up and sends the rest."""
    wire = world.wire()
    first = world.scheduler(wire=wire)
    feed = world.feed()
    point, name = (AFTER, "claim_due") if "between" in frozen else (BEFORE, "claim_due")
    held = wire.hold(point, (lambda r: r.script == name and bool(r.reply[1])) if point is AFTER else script(name))
    ids = [world.submit("echo", {"n": n}, delay_seconds=0.05) for n in range(20)]
    held.wait()
    first.freeze()
    world.redis.delete(LOCK)  # as if its ten seconds were over
    world.scheduler()
    second = world.redis.get(LOCK)
    eventually(lambda: set(world.statuses(ids).values()) == {"queued"}, what="the second leader places all of them")
    held.release()
    first.thaw()
    eventually(lambda: "another scheduler leads now" in first.log(), what="the first knows that it does not lead")
    assert world.redis.get(LOCK) == second
    world.worker()
    world.wait_ended(ids)
    assert {task_id: feed.of(task_id).count("TASK_QUEUED") for task_id in ids} == dict.fromkeys(ids, 1)
    world.check(ids, starts=1)


@pytest.mark.contract("BQ-14", "D15")
def test_a_foreign_lock_is_neither_extended_nor_deleted(world: World) -> None:
    leader = world.scheduler()
    world.redis.set(LOCK, "somebody else", px=60_000)
    eventually(lambda: "another scheduler leads now" in leader.log(), what="it does not lead any more")
    before = world.redis.pttl(LOCK)
    leader.terminate()
    assert leader.wait() == 0
    assert world.redis.get(LOCK) == "somebody else"
    assert 0 < world.redis.pttl(LOCK) <= before


@pytest.mark.contract("BQ-14", "BQ-19")
def test_a_leader_that_stops_gives_its_lock_back(world: World) -> None:
    first = world.scheduler()
    token = world.redis.get(LOCK)
    world.scheduler(leads=False)
    first.terminate()
    assert first.wait() == 0
    eventually(lambda: world.redis.get(LOCK) not in (None, token), 3, "the other one leads at once")


@pytest.mark.contract("BQ-14")
def test_a_lock_deleted_by_hand_does_no_harm(world: World) -> None:
    """Several schedulers, the lock deleted again and again while tasks become due: each is placed once."""
    world.scheduler()
    world.scheduler(leads=False)
    world.worker()
    feed = world.feed()
    ids = []
    for n in range(10):
        ids += world.submit_many("echo", [{"n": n} for _ in range(5)], delay_seconds=0.1)
        world.redis.delete(LOCK)
    for task_id in world.redis.zrange("dtq:retry:claimed", 0, -1):
        world.redis.zadd("dtq:retry:claimed", {task_id: 1}, xx=True)
    world.wait_ended(ids)
    assert {task_id: feed.of(task_id).count("TASK_QUEUED") for task_id in ids} == dict.fromkeys(ids, 1)
    world.check(ids, starts=1)


@pytest.mark.contract("C4.21", "C6.10", "D15")
def test_without_a_worker_delayed_tasks_become_due(world: World) -> None:
    world.scheduler()
    task_id = world.submit("echo", {}, delay_seconds=0.1)
    world.wait_status(task_id, "queued")
    world.worker()
    world.wait_ended([task_id])
    world.check([task_id], starts=1)


@pytest.mark.contract("C7.07")
def test_many_tasks_that_become_due_together_are_released_in_seconds(world: World) -> None:
    """Ten thousand at the same moment: all placed within five seconds, a hundred per batch."""
    count = 10_000
    ids: list[str] = []
    for _ in range(count // 500):
        ids += world.submit_many("echo", [{} for _ in range(500)], delay_seconds=3600)
    due = world.redis.zrange("dtq:retry:schedule", 0, -1)
    assert len(due) == count
    world.scheduler()
    began = time.monotonic()
    for start in range(0, count, 1000):
        world.redis.zadd("dtq:retry:schedule", dict.fromkeys(due[start : start + 1000], 1), xx=True)
    eventually(lambda: world.redis.hget("dtq:ledger:default", "queued") == str(count), 20, "all are placed")
    assert time.monotonic() - began < 5.0
    assert world.redis.zcard("dtq:retry:claimed") == 0
    world.check_places()


@pytest.mark.contract("C1.31")
def test_a_delayed_start_is_late_by_a_quarter_of_a_second_at_most(world: World) -> None:
    world.scheduler()
    world.worker(concurrency=10)
    ids = [world.submit("echo", {}, delay_seconds=0.3 + n / 50) for n in range(40)]
    world.wait_ended(ids)
    late = sorted(
        int(row["started_at"]) - int(row["available_at"]) for row in (world.redis.hgetall(f"dtq:task:{t}") for t in ids)
    )
    assert late[0] >= 0
    assert late[-2] <= 250, late
    world.check(ids, starts=1)


@pytest.mark.contract("BQ-12")
def test_one_that_cannot_be_placed_does_not_hold_up_the_others(world: World) -> None:
    world.scheduler()
    bad = world.submit("echo", {}, delay_seconds=0.2, priority=3)
    good = world.submit_many("echo", [{} for _ in range(20)], delay_seconds=0.2, priority=4)
    world.redis.set("dtq:stream:default:p3", "not a stream")
    eventually(lambda: set(world.statuses(good).values()) == {"queued"}, what="the neighbours are placed")
    assert world.status(bad) == "pending"
    world.redis.delete("dtq:stream:default:p3")
    world.worker()
    world.wait_ended([bad, *good])
    world.check([bad, *good], starts=1)
