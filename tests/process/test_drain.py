"""SIGTERM: no new work at once, what runs goes on and keeps its lease, nothing is acknowledged that was not done (BQ-19)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from support.engines import Server
from support.eventually import eventually
from support.processes import Process
from support.wire import AFTER, BEFORE, script, took
from support.world import World


def row(world: World, process: Process) -> dict[str, str]:
    return dict(world.redis.hgetall(f"dtq:worker:{process.worker_id}"))


def wait_draining(world: World, process: Process) -> None:
    eventually(lambda: row(world, process).get("status") == "draining", what=f"{process.name} says that it drains")


@pytest.mark.contract("C6.23", "C6.25", "C6.26", "BQ-19")
def test_a_draining_worker_keeps_its_lease(world: World) -> None:
    """For longer than the visibility timeout, beside a hungry peer: the task runs once, by the drainer; new work goes elsewhere."""
    wire = world.wire()
    drainer = world.worker(wire=wire)
    long = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(long)
    peer = world.worker()
    drainer.terminate()
    wait_draining(world, drainer)
    renewed = len(wire.requests(script("touch")))
    later = world.submit_many("echo", [{} for _ in range(10)])
    world.wait_ended(later)
    assert {world.journal.runs(task_id)[0].worker_id for task_id in later} == {peer.worker_id}
    eventually(lambda: len(wire.requests(script("touch"))) >= renewed + 7, 20, "seven renewals, over three seconds")
    assert row(world, drainer)["status"] == "draining"
    world.journal.open("g")
    assert drainer.wait() == 0
    assert world.status(long) == "succeeded"
    assert row(world, drainer).get("status", "stopped") == "stopped"
    world.check([long, *later], starts=1)


@pytest.mark.contract("C6.26", "C6.27", "C6.28", "BQ-19")
def test_a_task_longer_than_the_drain_is_left_to_the_peers(make_world: Callable[..., World]) -> None:
    """The process ends at its limit and acknowledges nothing; the task runs again elsewhere."""
    world = make_world(drain_timeout_s=0.5)
    drainer = world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    drainer.terminate()
    assert drainer.wait(10) == 0
    assert world.pending() == {drainer.worker_id: [task_id]}
    assert world.status(task_id) == "running"
    world.journal.open("g.2")
    world.worker()
    world.wait_ended([task_id])
    assert world.task(task_id).attempt == 2
    world.check([task_id], starts=2)


@pytest.mark.contract("C6.26", "BQ-19")
@pytest.mark.parametrize("kind", ["gate_sync", "stubborn", "block"])
def test_a_handler_that_ignores_everything_cannot_keep_the_process(make_world: Callable[..., World], kind: str) -> None:
    world = make_world(drain_timeout_s=0.5)
    drainer = world.worker()
    task_id = world.submit(kind, {"gate": "g"})
    world.journal.wait_run(task_id)
    drainer.terminate()
    if kind == "block":  # its loop stands still: a signal is taken when it moves again
        world.journal.open("g")
    drainer.wait(15)
    if kind != "block":
        world.journal.open("g.2")
    world.worker()
    world.wait_ended([task_id])
    world.check([task_id], starts=2)


@pytest.mark.contract("BQ-19", "D15")
def test_a_draining_leader_gives_its_lock_back_at_once(world: World) -> None:
    """It may drain for long; the schedule does not wait for it."""
    drainer = world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    token = eventually(lambda: world.redis.get("dtq:lock:scheduler"), what="it leads")
    world.scheduler(leads=False)
    drainer.terminate()
    eventually(lambda: world.redis.get("dtq:lock:scheduler") not in (None, token), 4, "the scheduler leads at once")
    assert drainer.alive
    world.journal.open("g")
    assert drainer.wait() == 0
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.27")
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_now_and_acknowledges_nothing(world: World, second: signal.Signals) -> None:
    drainer = world.worker()
    ids = [world.submit("gate", {"gate": "g"}), world.submit("gate_sync", {"gate": "g"})]
    for task_id in ids:
        world.journal.wait_run(task_id)
    drainer.terminate()
    wait_draining(world, drainer)
    drainer.signal(second)
    assert drainer.wait(3) == 1
    assert {world.status(task_id) for task_id in ids} == {"running"}
    assert set(world.pending()[drainer.worker_id]) == set(ids)
    world.check_places("after the second signal")
    world.journal.open("g.2")
    world.worker()
    world.wait_ended(ids)
    world.check(ids, starts=2)


@pytest.mark.contract("C6.25", "D1")
def test_sigterm_while_a_fetch_is_on_its_way(world: World) -> None:
    """The engine gets the fetch of a worker that drains: it starts nothing, no attempt is used, a peer runs the task."""
    wire = world.wire()
    drainer = world.worker(wire=wire)
    held = wire.hold(BEFORE, script("fetch"))
    held.wait()
    task_id = world.submit("echo", {"n": 1})
    drainer.terminate()
    wait_draining(world, drainer)
    held.release()
    assert drainer.wait() == 0
    assert world.status(task_id) == "queued"
    assert world.redis.hget(f"dtq:task:{task_id}", "attempt") == "0"
    world.check_places("after the drain")
    world.worker()
    world.wait_ended([task_id])
    assert world.task(task_id).attempt == 1
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.27", "D14")
def test_sigterm_while_the_answer_of_a_fetch_is_on_its_way(world: World) -> None:
    """The start is written, the worker learns of it while it drains: it hands the task back, and the start does not count."""
    wire = world.wire()
    drainer = world.worker(wire=wire)
    held = wire.hold(AFTER, took())
    task_id = world.submit("echo", {"n": 1})
    held.wait()
    drainer.terminate()
    wait_draining(world, drainer)
    held.release()
    assert drainer.wait() == 0
    world.check_places("after the drain")
    world.worker()
    world.wait_ended([task_id])
    runs = world.journal.runs(task_id)
    assert [run.attempt for run in runs] == [1], "it ran once, and its first start was not held against it"
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.26")
def test_a_rolling_restart_under_load_costs_no_attempt(world: World) -> None:
    """Workers come and go by SIGTERM while a stream of tasks passes: each runs once."""
    ids: list[str] = []
    current = world.worker()
    for _ in range(4):
        ids += world.submit_many("sleep", [{"seconds": 0.05} for _ in range(20)])
        successor = world.worker()
        current.terminate()
        assert current.wait() == 0
        current = successor
    world.wait_ended(ids)
    world.check(ids, starts=1)
    assert {world.task(task_id).attempt for task_id in ids} == {1}


@pytest.mark.contract("C6.03")
def test_sigterm_while_redis_is_away(own_engine: Server, make_world: Callable[..., World]) -> None:
    """A stop never hangs on an engine that does not answer."""
    world = make_world(own_engine, drain_timeout_s=1)
    worker = world.worker()
    scheduler = world.scheduler(leads=False)
    world.wait_ended([world.submit("echo", {})])
    world.server.stop()
    worker.terminate()
    scheduler.terminate()
    worker.wait(15)
    scheduler.wait(15)
    world.server.start()


@pytest.mark.contract("C6.23", "C6.26")
def test_ctrl_c_drains_too(world: World) -> None:
    worker = world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    worker.signal(signal.SIGINT)
    wait_draining(world, worker)
    world.journal.open("g")
    assert worker.wait() == 0
    assert "Traceback" not in worker.log()
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.27", "BQ-10")
def test_a_second_signal_is_heard_although_a_coroutine_blocks_the_loop(world: World) -> None:
    stuck = world.worker()
    task_id = world.submit("block", {"gate": "g"})
    world.journal.wait_run(task_id)
    stuck.terminate()

    def heard() -> bool:  # two signals in the same moment may arrive as one
        if stuck.alive:
            stuck.terminate()
        return not stuck.alive

    eventually(heard, 5, "the second signal is heard")
    assert stuck.wait() == 1
    assert world.status(task_id) == "running"
    world.journal.open("g.2")
    world.worker()
    world.wait_ended([task_id])
    world.check([task_id], starts=2)


@pytest.mark.contract("C6.26", "BQ-10", "BQ-19")
def test_a_drain_ends_although_a_coroutine_blocks_the_loop(make_world: Callable[..., World]) -> None:
    world = make_world(drain_timeout_s=1)
    stuck = world.worker()
    task_id = world.submit("block", {"gate": "g"})
    world.journal.wait_run(task_id)
    stuck.terminate()
    assert stuck.wait(8) == 1
    assert "the event loop is blocked and the drain time is up" in stuck.log()
    world.journal.open("g.2")
    world.worker()
    world.wait_ended([task_id])
    world.check([task_id], starts=2)


def test_a_signal_to_a_process_that_a_handler_forked_is_not_for_the_worker(world: World) -> None:
    worker = world.worker()
    task_id = world.submit("fork", timeout_ms=10_000)
    world.wait_ended([task_id])
    assert world.result(task_id) == {"signal": signal.SIGTERM}
    after = world.submit("echo")
    world.wait_status(after, "succeeded")
    assert worker.alive and "draining" not in worker.log()
