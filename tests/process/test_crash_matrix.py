"""The crash matrix: SIGKILL of a worker or of the scheduler at each moment on the wire at which a task changes hands.

Three rounds of each moment, thirty with --nightly; each round hits another request of the kind. At the very moment of the
death every task is in the one place that fits its status; afterwards everything ends as it should, nothing runs more often
than the death explains, and the ledger is exact.
"""

from __future__ import annotations

import random

import pytest
from support.eventually import eventually
from support.processes import Process
from support.wire import AFTER, BEFORE, CUT_ALL, Match, Point, script, took
from support.world import World

WORKER_MOMENTS: dict[str, tuple[Point, Match]] = {
    "before a fetch": (BEFORE, script("fetch")),
    "after a fetch that took something": (AFTER, took()),
    "before a settlement": (BEFORE, script("settle")),
    "after a settlement": (AFTER, script("settle")),
    "before a renewal": (BEFORE, script("touch")),
    "after a renewal": (AFTER, script("touch")),
    "before a claim": (BEFORE, script("claim_due")),
    "after a claim": (AFTER, lambda r: r.script == "claim_due" and bool(r.reply[1])),
    "before a release": (BEFORE, script("release")),
    "after a release": (AFTER, script("release")),
}
SCHEDULER_MOMENTS = {name: moment for name, moment in WORKER_MOMENTS.items() if "claim" in name or "release" in name}

pytestmark = pytest.mark.contract("C3.01", "C3.02", "C3.03", "C3.04", "C3.05", "C3.06", "C3.07", "C3.11", "D4", "D20")


class Load:
    """Some of everything, with the end that each must come to and the executions it takes without a death."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.expected: dict[str, str] = {}
        self.planned: dict[str, int] = {}
        for n in range(4):
            self._add("succeeded", 1, "echo", {"n": n}, priority=n)
        for n in range(2):
            self._add("succeeded", 2, "flaky", {"fail_times": 1}, priority=8 - n)
        self._add("dead_lettered", 1, "raise", {"kind": "permanent"}, idempotency_key="p")
        self._add("dead_lettered", 2, "flaky", {"fail_times": 9}, max_attempts=2)
        self._add("succeeded", 1, "sleep", {"seconds": 1.2}, idempotency_key="s")
        for _ in range(3):
            self._add("succeeded", 1, "echo", {}, delay_seconds=0.3)

    def _add(self, status: str, executions: int, task_type: str, payload: dict[str, object], **fields: object) -> None:
        task_id = self.world.submit(task_type, payload, **fields)
        self.expected[task_id], self.planned[task_id] = status, executions

    def check(self, in_hand: int = 3) -> None:
        """All ended right, and what was executed again is explained by what the dead worker had in hand."""
        world = self.world
        assert world.wait_ended(self.expected) == self.expected
        world.check(self.expected)
        again = {task_id: len(world.journal.runs(task_id)) - n for task_id, n in self.planned.items()}
        assert max(again.values()) <= 1, again
        assert sum(n for n in again.values() if n > 0) <= in_hand, again


def nth(name: str, crash_round: int, most: int) -> int:
    """Which request of the kind is hit in this round: the first in the first, any in the others."""
    return 0 if crash_round == 0 else random.Random(f"{name} {crash_round}").randrange(most)


def kill_and_look(world: World, process: Process, name: str) -> None:
    process.kill()
    world.check_places(name)


@pytest.mark.parametrize("name", WORKER_MOMENTS)
def test_a_worker_is_killed(world: World, name: str, crash_round: int) -> None:
    point, match = WORKER_MOMENTS[name]
    load = Load(world)
    wire = world.wire()
    supervised = world.supervised_worker(wire=wire, concurrency=3)
    moment = wire.at(
        point,
        match,
        lambda: kill_and_look(world, supervised.current, name),
        nth=nth(name, crash_round, 4 if "settlement" in name or name == "before a fetch" else 2),
        then=CUT_ALL,
    )
    moment.wait()
    let_claims_age(world)
    load.check()
    assert supervised.exits == [-9]


def test_a_worker_is_killed_during_its_handlers(world: World, crash_round: int) -> None:
    load = Load(world)
    supervised = world.supervised_worker(concurrency=3)
    begun = 1 + nth("handler", crash_round, 8)
    eventually(lambda: len(world.journal.runs()) >= begun, 20, f"{begun} handlers have begun")
    kill_and_look(world, supervised.current, "during a handler")
    let_claims_age(world)
    load.check()


@pytest.mark.contract("C4.21", "C4.22", "C4.23", "BQ-12")
@pytest.mark.parametrize("name", SCHEDULER_MOMENTS)
def test_a_scheduler_is_killed(world: World, name: str, crash_round: int) -> None:
    """The leader dies with tasks due; its successor places each of them once, and each runs once."""
    point, match = SCHEDULER_MOMENTS[name]
    wire = world.wire()
    leader = world.scheduler(wire=wire)
    world.worker(concurrency=3)
    feed = world.feed()
    moment = wire.at(
        point,
        match,
        lambda: kill_and_look(world, leader, name),
        nth=nth(name, crash_round, 20) if name == "before a claim" else 0,
        then=CUT_ALL,
    )
    ids = [world.submit("echo", {"n": n}, delay_seconds=0.2) for n in range(10)]
    moment.wait()
    world.redis.delete("dtq:lock:scheduler")  # as if its ten seconds were over
    let_claims_age(world)
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    assert {task_id: feed.of(task_id).count("TASK_QUEUED") for task_id in ids} == dict.fromkeys(ids, 1)
    world.check(ids, starts=1)


def let_claims_age(world: World) -> None:
    """What a dead leader has claimed goes back after sixty seconds: here they are over now, and so is its lock."""
    world.redis.delete("dtq:lock:scheduler")
    for task_id in world.redis.zrange("dtq:retry:claimed", 0, -1):
        world.redis.zadd("dtq:retry:claimed", {task_id: 1}, xx=True)
