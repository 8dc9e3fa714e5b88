"""A rolling deployment: old and new workers on one queue, and task types that only one of them knows (BQ-18)."""

from __future__ import annotations

import pytest
from support.eventually import eventually
from support.processes import Process
from support.world import World

NEW = "support.handlers,support.new_handlers"


def new_worker(world: World) -> Process:
    return world.worker(task_modules=NEW)


@pytest.mark.contract("BQ-18", "D13")
def test_tasks_of_a_new_type_wait_for_a_worker_that_knows_it(world: World) -> None:
    """While any live worker announces the type, the others put it off: not one attempt is used, none is thrown away."""
    old = world.worker(concurrency=8)
    new = new_worker(world)
    ids = world.submit_many("brand_new", [{} for _ in range(30)])
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    assert {run.worker_id for run in world.journal.runs()} == {new.worker_id}
    assert {world.task(task_id).attempt for task_id in ids} == {1}
    assert old.alive
    world.check(ids, starts=1)


@pytest.mark.contract("C4.06", "C4.18", "BQ-18")
def test_a_type_that_nobody_knows_any_more_is_a_dead_letter(world: World) -> None:
    """One attempt, nothing executed, unknown_task_type:<type>; after the deployment a requeue runs it."""
    new = new_worker(world)
    new.terminate()
    assert new.wait() == 0
    announced = world.redis.zscore("dtq:queue:default:task_types", "brand_new")
    assert announced is not None
    world.redis.zadd("dtq:queue:default:task_types", {"brand_new": announced - 60_000})  # as if it were long ago
    world.worker()
    ids = world.submit_many("brand_new", [{} for _ in range(10)])
    assert set(world.wait_ended(ids).values()) == {"dead_lettered"}
    letter = world.run(world.inspector.dead_letter(ids[0]))
    assert (letter.attempts_made, letter.last_error, letter.retryable) == (1, "unknown_task_type:brand_new", False)
    assert world.journal.runs() == []
    world.verify(ids)
    new_worker(world)
    for task_id in ids:
        world.run(world.client.requeue(task_id))
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    world.check(ids, starts=1)


@pytest.mark.contract("BQ-18", "D13")
def test_the_last_worker_that_knows_a_type_leaves_while_tasks_are_put_off(world: World) -> None:
    """Deferred tasks are not lost and not deferred for ever: with nobody left who knows them, they become letters."""
    world.worker()
    new = new_worker(world)
    world.run(world.client.pause("default"))
    ids = world.submit_many("brand_new", [{} for _ in range(5)])
    new.kill()
    world.run(world.client.resume("default"))
    eventually(lambda: "pending" in world.statuses(ids).values(), what="the old worker puts them off")
    assert set(world.wait_ended(ids, 30).values()) == {"dead_lettered"}
    assert world.run(world.inspector.ledger("default"))["deferred"] >= 5
    world.check(ids, starts=0)
