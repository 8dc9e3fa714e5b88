"""Strict priority that is strict and prompt, and never more in hand than there are slots (BQ-13)."""

from __future__ import annotations

import random
import time

import pytest
from support.eventually import eventually
from support.wire import AFTER
from support.world import World


@pytest.mark.contract("C1.36", "C6.13", "BQ-13", "D8")
def test_an_idle_worker_starts_every_priority_at_once(world: World) -> None:
    """No band waits for another band's poll: the start is prompt on each of the ten."""
    world.worker()
    world.wait_ended([world.submit("echo", {})])
    latencies = {}
    ids = []
    for priority in [0, 9, 5, 1, 8, 2, 7, 3, 6, 4] * 2:
        began = time.monotonic()
        ids.append(world.submit("echo", {}, priority=priority))
        run = world.journal.wait_run(ids[-1])
        latencies[ids[-1]] = run.started - began, priority
        world.wait_ended(ids[-1:])
    ordered = sorted(latencies.values())
    assert ordered[18][0] < 1.0, ordered
    assert ordered[10][0] < 0.1, ordered
    world.check(ids, starts=1)


@pytest.mark.contract("C1.36", "C1.37", "C2.03", "C6.12", "C7.05", "BQ-13")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_order_is_strict_and_nothing_is_fetched_ahead(world: World, concurrency: int) -> None:
    """p9 before p0 for all that waits, and at each answer of the engine no more is pending than there are slots."""
    priority_of = {}
    bands = [band for band in range(10) for _ in range(5)]
    random.Random(13).shuffle(bands)
    for band in bands:
        priority_of[world.submit("sleep", {"seconds": 0.02}, priority=band)] = band
    wire = world.wire()
    in_hand: list[int] = []
    looks = wire.each(
        AFTER,
        lambda r: r.script in ("fetch", "reclaim", "settle"),
        lambda: in_hand.append(sum(map(len, world.pending().values()))),
    )
    world.worker(concurrency=concurrency, wire=wire)
    world.wait_ended(priority_of)
    looks.wait()
    assert max(in_hand) == concurrency
    assert world.journal.most_at_once() == concurrency
    order = [priority_of[run.task_id] for run in world.journal.runs()]
    if concurrency == 1:
        assert order == sorted(order, reverse=True)
    else:  # those that start together may be noted in any order
        misplaced = [i for i, band in enumerate(order) if any(later > band for later in order[i + concurrency :])]
        assert not misplaced, order
    world.check(priority_of, starts=1)


@pytest.mark.contract("BQ-13")
def test_a_new_urgent_task_overtakes_what_waits(world: World) -> None:
    """One slot, a long line of p0, a p9 arrives: it is the next to start."""
    world.worker(concurrency=1)
    first = world.submit("gate", {"gate": "g"}, priority=0)
    world.journal.wait_run(first)
    line = world.submit_many("echo", [{} for _ in range(20)], priority=0)
    urgent = world.submit("echo", {}, priority=9)
    world.journal.open("g")
    world.wait_ended([first, urgent, *line])
    assert [run.task_id for run in world.journal.runs()][:2] == [first, urgent]
    world.check([first, urgent, *line], starts=1)


@pytest.mark.contract("D8")
def test_several_queues_none_starves(world: World) -> None:
    """One worker of two queues with one slot: a flood on one does not keep the other waiting to its end."""
    world.run(world.client.pause("a"))
    flood = world.submit_many("echo", [{} for _ in range(60)], queue="a")
    few = world.submit_many("echo", [{} for _ in range(3)], queue="b", priority=0)
    world.run(world.client.resume("a"))
    world.worker("a", "b", concurrency=1)
    world.wait_ended([*flood, *few])
    queues = [run.queue for run in world.journal.runs()]
    assert max(i for i, queue in enumerate(queues) if queue == "b") < 30, queues
    world.check([*flood, *few], starts=1)


@pytest.mark.contract("C2.12", "C6.11", "D21")
def test_a_pause_stops_starts_of_every_kind(world: World) -> None:
    """Waiting, delayed, retrying and redelivered tasks stay; what runs finishes; other queues go on; resume is prompt."""
    dead = world.worker()
    orphan = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(orphan)
    dead.kill()
    world.redis.delete("dtq:lock:scheduler")  # as if its ten seconds were over
    world.worker("default", "other")
    running = world.submit("gate", {"gate": "r"})
    world.journal.wait_run(running)
    world.run(world.client.pause("default"))
    delayed = world.submit("echo", {}, delay_seconds=0.1)
    waiting = world.submit_many("echo", [{} for _ in range(5)])
    other = world.submit("echo", {}, queue="other")
    world.wait_ended([other])
    world.wait_status(delayed, "queued")
    world.journal.open("r")
    world.wait_ended([running])
    visible = eventually(lambda: world.run(world.inspector.queue("default")).paused)
    assert visible is True
    stream = "dtq:stream:default:p5"
    eventually(
        lambda: any(
            row["time_since_delivered"] > 3000 for row in world.redis.xpending_range(stream, "workers", "-", "+", 9)
        ),
        what="the orphan has been silent for longer than the visibility timeout and is still nobody's",
    )
    held = [orphan, delayed, *waiting]
    assert set(world.statuses(held).values()) == {"queued", "running"}
    assert [run.task_id for run in world.journal.runs()] == [orphan, running, other]
    world.journal.open("g.2")
    began = time.monotonic()
    world.run(world.client.resume("default"))
    world.journal.wait_run(waiting[0])
    assert time.monotonic() - began < 3
    world.wait_ended(held)
    world.check([*held, running, other], starts=2)


@pytest.mark.contract("D21")
def test_a_pause_while_a_fetch_is_under_way(world: World) -> None:
    """The worker waits for a token at the moment of the pause: what is submitted next does not slip through."""
    wire = world.wire()
    world.worker(wire=wire)
    for _ in range(3):
        eventually(lambda: wire.requests(lambda r: r.command == "BLPOP" and r.reply is None), what="it waits")
        world.run(world.client.pause("default"))
        task_id = world.submit("echo", {})
        wire.forget()
        eventually(
            lambda: len(wire.requests(lambda r: r.script in ("fetch", "reclaim") and r.reply is not None)) >= 1,
            what="it has looked again",
        )
        assert world.journal.runs(task_id) == []
        world.run(world.client.resume("default"))
        world.wait_ended([task_id])
    world.verify()
