"""A worker dies: what it had in hand runs again, exactly what must run again, and never more often than allowed."""

from __future__ import annotations

import pytest
from support.world import World


@pytest.mark.contract("BQ-01", "D2")
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
