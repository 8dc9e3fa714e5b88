"""A worker's start-up and shutdown functions, and what happens when they misbehave."""

from __future__ import annotations

import pytest
from support.eventually import eventually
from support.processes import Process
from support.world import World

MODULES = "support.handlers,support.hooked_handlers"


def hooked(world: World, *gates: str, ready: bool = True) -> Process:
    world.journal.open(*gates)
    return world.worker(task_modules=MODULES, ready=ready)


@pytest.mark.parametrize("gate", ["start-up fails", "start-up is cancelled"])
def test_a_worker_whose_start_up_fails_never_takes_work(world: World, gate: str) -> None:
    task_id = world.submit("echo")
    worker = hooked(world, gate, ready=False)
    assert worker.wait() == 1
    assert "STARTUP_HOOK_FAILED" in worker.log() and "support.hooked_handlers.start" in worker.log()
    assert world.status(task_id) == "queued" and not world.redis.exists("dtq:workers")


@pytest.mark.contract("C6.25")
@pytest.mark.parametrize("gate", ["start-up waits", "start-up blocks"])
def test_sigterm_during_start_up_ends_the_worker_at_once(world: World, gate: str) -> None:
    """Nobody has heard of it, so there is nothing to drain; also when the function blocks the event loop."""
    worker = hooked(world, gate, ready=False)
    eventually(lambda: "start-up began" in worker.log(), what="it is in its start-up function")
    worker.terminate()
    assert worker.wait(5) == 0
    assert not world.redis.exists("dtq:workers")


@pytest.mark.contract("C6.26", "BQ-19")
@pytest.mark.parametrize("gate", ["nothing", "shutdown fails", "shutdown is cancelled", "shutdown hangs"])
def test_a_shutdown_function_cannot_keep_the_worker(world: World, gate: str) -> None:
    worker = hooked(world, gate)
    task_id = world.submit("echo")
    world.wait_ended([task_id])
    worker.terminate()
    assert worker.wait(15) == 0
    assert "shutdown saw a pool" in worker.log()
    assert ("the shutdown function" in worker.log()) == (gate != "nothing")
    assert world.redis.hget(f"dtq:worker:{worker.worker_id}", "status") == "stopped", "it signed off"
    world.check([task_id], starts=1)


@pytest.mark.contract("BQ-62", "D5")
def test_a_worker_whose_name_another_one_has_by_now_leaves(world: World) -> None:
    """It was suspended for so long that its row expired; two lives under one name would settle each other's tasks."""
    first = world.worker(worker_id="fixed")
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    first.freeze()
    world.redis.delete("dtq:worker:fixed")  # as if ten heartbeats had passed
    entry_id = world.redis.hget(f"dtq:task:{task_id}", "entry_id")
    world.redis.xclaim("dtq:stream:default:p5", "workers", "elsewhere", 0, [entry_id], justid=True)
    second = world.worker(worker_id="fixed", ready=False)
    eventually(lambda: world.redis.hget("dtq:worker:fixed", "pid") == str(second.pid), what="the second has the name")
    first.thaw()
    assert first.wait() == 1
    assert "another worker is fixed by now: leaving, nothing is acknowledged" in first.log()
    assert second.alive and world.redis.hget("dtq:worker:fixed", "pid") == str(second.pid)
