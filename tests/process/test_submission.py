"""A producer dies or is refused in the middle of a submission: the key is neither lost nor taken for ever (BQ-05)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.eventually import eventually
from support.processes import DTQ, Process
from support.wire import AFTER, BEFORE, CUT_ALL, Match, Point, script
from support.world import World

from dtq_core.errors import (
    DtqError,
    IdempotencyInProgress,
    InvalidTask,
    PayloadTooLarge,
    QueueFull,
    RedisFull,
    UnknownTaskType,
)

MOMENTS: dict[str, tuple[Point, Match]] = {
    "before the engine has it": (BEFORE, script("submit")),
    "after the engine has it": (AFTER, lambda r: r.script == "submit" and isinstance(r.reply, list)),
    "before the source is sent": (BEFORE, lambda r: r.script == "submit" and r.command == "EVAL"),
}


@pytest.mark.contract("C5.03", "C5.06", "BQ-05", "D10")
@pytest.mark.parametrize("name", MOMENTS)
def test_a_producer_killed_inside_a_submission(world: World, name: str) -> None:
    """Key, record and entry are one script: there is a whole task or none, and the key leads to it or is free."""
    wire = world.wire()
    point, match = MOMENTS[name]
    argv = [DTQ, "submit", "--type", "echo", "--payload", '{"n": 1}', "--idempotency-key", "k"]
    producers: list[Process] = []
    moment = wire.at(point, match, lambda: producers[0].kill(), then=CUT_ALL)
    world.worker().terminate()  # announces the type, so that the producer may know it
    producers.append(world.start("submit", argv, wire))
    moment.wait()
    found = list(world.snapshot().tasks)
    assert len(found) == (1 if point is AFTER else 0)
    assert world.redis.exists("dtq:idempotency:default:k") == len(found)
    if found:
        with pytest.raises(IdempotencyInProgress) as refused:
            world.submit("echo", {"n": 1}, idempotency_key="k")
        assert refused.value.task_id == found[0], "the client whose answer was lost learns its task"
    else:
        found = [world.submit("echo", {"n": 1}, idempotency_key="k")]
    world.worker()
    world.wait_ended(found)
    again = world.run(world.client.submit({"task_type": "echo", "payload": {"n": 1}, "idempotency_key": "k"}))
    assert (again.task_id, again.duplicate) == (found[0], True)
    world.check(found, starts=1)


@pytest.mark.contract("C7.02", "C7.04", "BQ-05", "D9")
def test_a_refused_submission_leaves_no_key(make_world: Callable[..., World]) -> None:
    world = make_world(max_queue_depth=2, max_payload_bytes=200)
    worker = world.worker()
    world.run(world.client.pause("default"))
    waiting = [world.submit("echo", {"n": n}) for n in range(2)]

    def refused(error: type[DtqError], **fields: object) -> None:
        raw = {"task_type": "echo", "payload": {}, "idempotency_key": "k", **fields}
        with pytest.raises(error):
            world.run(world.client.submit(raw))
        assert not list(world.redis.scan_iter("dtq:idempotency:*")), f"{error.__name__} left a key behind"

    refused(QueueFull)
    refused(PayloadTooLarge, payload={"x": "y" * 300})
    refused(UnknownTaskType, task_type="nobody_has_this")
    refused(InvalidTask, priority=99)
    world.redis.config_set("maxmemory", 1)
    refused(RedisFull)
    world.redis.config_set("maxmemory", 0)
    world.run(world.client.resume("default"))
    world.wait_ended(waiting)
    accepted = world.submit("echo", {}, idempotency_key="k")
    world.wait_ended([accepted])
    assert worker.alive
    world.check([*waiting, accepted], starts=1)


@pytest.mark.contract("C5.04", "C5.05", "C5.06", "BQ-05", "D10")
def test_fifty_submissions_with_one_key(world: World) -> None:
    """One is taken; the others are told that it is under way, and which task it is."""

    async def all_at_once() -> list[object]:
        raw = {"task_type": "gate", "payload": {"gate": "g"}, "idempotency_key": "one"}
        return await asyncio.gather(*(world.client.submit(raw) for _ in range(50)), return_exceptions=True)

    answers = world.run(all_at_once())
    taken = [a.task_id for a in answers if not isinstance(a, BaseException)]
    assert len(taken) == 1
    assert {type(a) for a in answers if isinstance(a, BaseException)} == {IdempotencyInProgress}
    assert {a.task_id for a in answers if isinstance(a, IdempotencyInProgress)} == set(taken)
    world.worker()
    world.journal.open("g")
    world.wait_ended(taken)
    again = world.run(world.client.submit({"task_type": "gate", "payload": {"gate": "g"}, "idempotency_key": "one"}))
    assert again.duplicate and again.task_id == taken[0]
    world.check(taken, starts=1)


@pytest.mark.contract("BQ-05", "D10")
def test_a_key_whose_task_is_gone_is_taken_over(world: World) -> None:
    world.worker()
    first = world.submit("echo", {}, idempotency_key="k")
    world.wait_ended([first])
    world.redis.delete(f"dtq:task:{first}")
    second = world.submit("echo", {}, idempotency_key="k")
    assert second != first
    world.wait_ended([second])
    eventually(lambda: f'"{second}"' in str(world.redis.get("dtq:idempotency:default:k")))
    world.check([second], starts=1)


@pytest.mark.contract("C7.01", "C7.02", "BQ-02", "D6")
def test_finished_tasks_take_no_room(make_world: Callable[..., World]) -> None:
    """Sixty tasks through a queue that holds fifty: acknowledged entries are deleted, so the next one is taken."""
    world = make_world(max_queue_depth=50)
    world.worker()
    ids: list[str] = []
    for _ in range(3):
        batch = world.submit_many("echo", [{} for _ in range(20)])
        world.wait_ended(batch)
        ids += batch
    ids.append(world.submit("echo", {}))
    world.wait_ended(ids)
    assert sum(world.redis.xlen(f"dtq:stream:default:p{band}") for band in range(10)) == 0
    assert world.run(world.inspector.queue("default")).depth == 0
    world.check(ids, starts=1)
