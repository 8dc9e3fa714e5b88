"""Redis goes away, comes back, forgets, hangs: a worker that was connected once works again, and never spins meanwhile."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial

import pytest
import uvloop
from support.engines import Server
from support.eventually import eventually
from support.wire import AFTER, script, took
from support.world import World

from dtq_core.config import load_settings
from dtq_core.errors import RedisUnavailable
from dtq_core.store import Store, SyncStore


@pytest.fixture
def lasting(own_engine: Server, make_world: Callable[..., World]) -> World:
    """A world on an engine that may be stopped and started."""
    return make_world(own_engine)


def works_again(world: World, count: int = 30) -> list[str]:
    """So many new tasks end, without anybody restarting the worker."""
    ids = eventually(lambda: world.submit_many("echo", [{"n": n} for n in range(count)]), 20, "the engine takes tasks")
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    return ids


@pytest.mark.contract("BQ-06")
@pytest.mark.parametrize("order", [1, 2])
def test_a_worker_consumes_again_after_every_kind_of_outage(lasting: World, order: int) -> None:
    """Restart, crash, connections killed, all commands paused, a longer outage: in random order, under load."""
    world, server = lasting, lasting.server
    worker = world.worker()

    def kill_connections() -> None:
        for _ in range(5):
            world.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def pause() -> None:
        world.redis.execute_command("CLIENT", "PAUSE", "6000", "ALL")  # longer than a client waits for a reply

    def outage() -> None:
        told = worker.log().count("Redis does not answer")
        server.stop()
        eventually(lambda: worker.log().count("Redis does not answer") > told, 20, "the worker has noticed")
        server.start()

    faults = [server.restart, lambda: server.restart(hard=True), kill_connections, pause, outage]
    random.Random(order).shuffle(faults)
    ids = works_again(world)
    for fault in faults:
        ids += world.submit_many("sleep", [{"seconds": 0.02} for _ in range(20)])
        fault()
        ids += works_again(world)
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    assert worker.alive
    world.check(ids, overlaps=True)


@pytest.mark.contract("C6.02", "BQ-06")
def test_a_worker_waits_quietly_while_redis_is_away(lasting: World) -> None:
    """Few lines, no busy loop; and the scheduler, the reaper and the lease thread are all back afterwards."""
    world = lasting
    worker = world.worker()
    works_again(world, 1)
    world.server.stop()
    before, lines = worker.cpu_s(), len(worker.log().splitlines())
    eventually(lambda: worker.log().count("leases cannot be renewed") >= 1, 20, "the lease thread has noticed")
    eventually(lambda: worker.log().count("failed") >= 2, 20, "the loops have noticed")
    assert worker.cpu_s() - before < 2.0
    assert len(worker.log().splitlines()) - lines < 40
    world.server.start()
    delayed = eventually(lambda: world.submit("echo", {}, delay_seconds=0.2), 20, "the engine takes tasks")
    orphan = world.submit("echo", {}, queue="default")
    world.wait_ended([delayed, orphan])
    world.check([delayed, orphan])


@pytest.mark.contract("BQ-07", "D30")
def test_a_flushed_engine_is_furnished_again(world: World) -> None:
    """FLUSHALL takes the groups; ten tasks right behind it all run, and nobody spins on NOGROUP."""
    wire = world.wire()
    worker = world.worker(wire=wire)
    lines = len(worker.log().splitlines())
    world.redis.flushall()
    ids = world.submit_many("echo", [{"n": n} for n in range(10)])
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    eventually(lambda: world.redis.exists(f"dtq:worker:{worker.worker_id}"), what="the row is written again")
    assert len(wire.requests(lambda r: r.script in ("fetch", "reclaim"))) < 200
    assert len(worker.log().splitlines()) - lines < 30
    world.check(ids, starts=1)


@pytest.mark.contract("BQ-07", "D30")
def test_a_deleted_stream_is_made_again(world: World) -> None:
    """DEL of a stream while the worker waits: what is submitted next makes it anew, without a group, and runs."""
    worker = world.worker()
    first = world.submit("echo", {})
    world.wait_ended([first])
    for band in range(10):
        world.redis.delete(f"dtq:stream:default:p{band}")
    ids = [world.submit("echo", {"n": n}, priority=n) for n in range(10)]
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    assert worker.alive
    world.check([first, *ids], starts=1)


@pytest.mark.contract("BQ-07", "D30")
def test_a_queue_that_never_existed(world: World) -> None:
    """Tasks wait on a queue before any worker ever served it."""
    ids = world.submit_many("echo", [{"n": n} for n in range(10)], queue="brand-new")
    world.worker("brand-new")
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    world.check(ids, starts=1)


@pytest.mark.contract("D30")
def test_a_group_made_anew_does_not_run_what_runs(world: World) -> None:
    """The group is destroyed under a running task: its entry is delivered as new, and is left with its owner."""
    first = world.worker()
    running = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(running)
    world.redis.xgroup_destroy("dtq:stream:default:p5", "workers")
    world.worker()
    later = world.submit("echo", {})
    world.wait_ended([later])
    assert world.pending() == {first.worker_id: [running]}
    world.journal.open("g")
    world.wait_ended([running])
    world.check([running, later], starts=1)


@pytest.mark.contract("D29")
@pytest.mark.parametrize("lost", ["the fetch", "its answer"])
def test_a_fetch_that_got_lost_costs_no_attempt(make_world: Callable[..., World], lost: str) -> None:
    """The connection dies around a fetch: the worker looks at what is its own and runs it, long before any lease ends."""
    world = make_world(visibility_timeout_s=60, heartbeat_interval_s=5)
    wire = world.wire()
    if lost == "the fetch":
        moment = wire.lose_request(script("fetch"))
        task_id = world.submit("echo", {"n": 1})
    else:
        moment = wire.lose_reply(took())
        task_id = world.submit("echo", {"n": 1})
    world.worker(wire=wire)
    moment.wait()
    world.wait_ended([task_id])
    assert world.task(task_id).attempt == 1
    world.check([task_id], starts=1)


@pytest.mark.contract("C3.06", "C3.07", "D29")
@pytest.mark.parametrize("how", ["retry", "dead letter", "success"])
def test_a_settlement_whose_answer_got_lost_counts_once(world: World, how: str) -> None:
    wire = world.wire()
    world.worker(wire=wire)
    feed = world.feed()
    moment = wire.lose_reply(script("settle"))
    task_type, payload, fields, end = {
        "retry": ("flaky", {"fail_times": 1}, {}, "succeeded"),
        "dead letter": ("raise", {"kind": "permanent"}, {}, "dead_lettered"),
        "success": ("echo", {}, {}, "succeeded"),
    }[how]
    task_id = world.submit(task_type, payload, **fields)
    moment.wait()
    assert world.wait_ended([task_id]) == {task_id: end}
    eventually(lambda: len(wire.requests(script("settle"))) >= 2, what="it is sent again")
    assert feed.of(task_id).count("TASK_RETRY_SCHEDULED") == (how == "retry")
    assert sum(kind in ("TASK_SUCCEEDED", "TASK_DEAD_LETTERED") for kind in feed.of(task_id)) == 1
    world.check([task_id], starts=2 if how == "retry" else 1)


@pytest.mark.contract("BQ-06")
def test_an_idle_worker_asks_seldom(world: World) -> None:
    """What an idle worker costs: a handful of requests a second, counted between two of its heartbeats."""
    wire = world.wire()
    world.worker(wire=wire)
    world.wait_ended([world.submit("echo", {})])

    wire.forget()
    eventually(lambda: len(wire.requests(script("beat"))) >= 6, 20, "six heartbeats of half a second")
    hot = [r.name for r in wire.requests(lambda r: r.script in ("fetch", "reclaim", "claim_due"))]
    assert len(hot) < 60, hot


@pytest.mark.contract("BQ-07")
def test_a_held_answer_does_not_hold_up_the_others(world: World) -> None:
    """One lane waits for its reply: leases are renewed and other tasks run meanwhile."""
    wire = world.wire()
    world.worker(wire=wire)
    first = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(first)
    held = wire.hold(AFTER, script("settle"))
    second = world.submit("echo", {"n": 1})
    held.wait()
    third = world.submit("echo", {"n": 2})
    renewed = len(wire.requests(script("touch")))
    world.journal.wait_run(third)
    eventually(lambda: len(wire.requests(script("touch"))) > renewed, what="the lease is renewed")
    held.release()
    world.journal.open("g")
    world.wait_ended([first, second, third])
    world.check([first, second, third], starts=1)


@pytest.mark.contract("BQ-06")
@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        (("SET", "dtq:wake:default", "no list"), ("DEL", "dtq:wake:default")),
        (("ACL", "SETUSER", "default", "-blpop"), ("ACL", "SETUSER", "default", "+blpop")),
    ],
    ids=["a key of the wrong type", "no right"],
)
def test_an_idle_worker_that_may_not_wait_asks_seldom(
    own_engine: Server, make_world: Callable[..., World], refuse: tuple[str, ...], allow: tuple[str, ...]
) -> None:
    """BLPOP is refused: no busy loop, one line, and tasks still run."""
    world = make_world(own_engine)
    wire = world.wire()
    worker = world.worker(wire=wire)
    world.redis.execute_command(*refuse)
    wire.forget()
    eventually(lambda: len(wire.requests(script("beat"))) >= 4, 20, "four heartbeats")
    assert len(wire.requests(script("fetch"))) < 20
    world.wait_ended([world.submit("echo", {})])
    assert worker.log().count("cannot wait for new tasks") == 1
    world.redis.execute_command(*allow)
    wire.forget()
    eventually(lambda: wire.requests(lambda r: r.command == "BLPOP"), 20, "it waits again")


@pytest.mark.contract("C9.07")
def test_requests_of_a_lane_are_counted_also_when_the_connection_fails(own_engine: Server) -> None:
    async def use() -> list[tuple[str, str]]:
        store = Store.connect(load_settings(redis_url=own_engine.url()))
        told: list[tuple[str, str]] = []
        store.counted = lambda operation, result: told.append((operation, result))
        lane, call = store.lane(), store.calls.ensure_groups(["default"])
        await lane.run([call, call])
        own_engine.stop()
        with pytest.raises(RedisUnavailable):
            await lane.run([call, call])
        own_engine.start()
        await lane.run([call])
        await lane.close()
        await store.close()
        return told

    ok, failed = ("ensure_groups", "ok"), ("ensure_groups", "redis_unavailable")
    assert uvloop.run(use()) == [ok, ok, failed, failed, ok]


def test_a_blocking_store_that_is_closed_leaves_no_connection(own_engine: Server) -> None:
    store = SyncStore.connect(load_settings(redis_url=own_engine.url()))

    def ours() -> int:
        return sum(c["name"] == "dtq" for c in own_engine.redis.client_list())

    store.send(("TIME",))
    assert ours() == 1
    store.close()
    eventually(lambda: ours() == 0, 10, "the connection is closed")
    store.close()


@pytest.mark.contract("D31", "BQ-06")
def test_a_worker_of_a_full_engine_stays_known_and_ends_its_work(
    own_engine: Server, make_world: Callable[..., World]
) -> None:
    """Its heartbeat needs no memory worth the name: nobody takes it for dead, what it runs ends, and it drains."""
    world = make_world(own_engine)
    worker = world.worker()
    task_id = world.submit("gate", {"gate": "g"})
    world.journal.wait_run(task_id)
    (worker_id,) = world.redis.smembers("dtq:workers")
    world.redis.config_set("maxmemory", 1)
    row = f"dtq:worker:{worker_id}"
    for _ in range(3):
        before = world.redis.hget(row, "last_heartbeat")
        eventually(lambda before=before: world.redis.hget(row, "last_heartbeat") != before, 10, "a heartbeat")
    world.journal.open("g")
    assert world.wait_ended([task_id]) == {task_id: "succeeded"}
    worker.terminate()
    assert worker.wait(20) == 0, worker.tail()
    assert world.redis.hget(row, "status") == "stopped"
    assert "cannot be written" not in worker.log()
    world.redis.config_set("maxmemory", 0)
    world.check([task_id], starts=1)


@pytest.mark.contract("C6.25", "BQ-06", "BQ-19")
@pytest.mark.parametrize("fault", ["cut", "refuse"])
def test_a_drain_outlives_its_connections(world: World, fault: str) -> None:
    """Every connection is reset in the moment of SIGTERM: what runs is finished and written, and the exit is a clean one."""
    wire = world.wire()
    worker = world.worker(wire=wire)
    ids = [world.submit("gate", {"gate": "g"}) for _ in range(3)]
    for task_id in ids:
        world.journal.wait_run(task_id)
    getattr(wire, fault)()
    worker.terminate()
    eventually(lambda: "draining: 3 tasks in hand" in worker.log(), 10, worker.log)
    wire.heal()
    world.journal.open("g")
    assert worker.wait(20) == 0, worker.tail()
    assert "INTERNAL" not in worker.log()
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    world.check(ids, starts=1)


def test_a_reset_connection_is_an_outage_and_no_bug(world: World) -> None:
    """Reset while nothing was under way and not told yet: a lane connects anew, the pool says that Redis is unavailable."""

    async def use() -> None:
        store = Store.connect(world.settings())
        lane, call = store.lane(), store.calls.ensure_groups(["default"])
        for _ in range(2):
            await lane.run([call])
            lane._connection._writer.transport.abort()
        await store.run(call)
        store._idle[0]._connection._writer.transport.abort()
        await store.run(call)
        for ask in (store.ping, partial(store.send, ("TIME",)), partial(store.run_replicated, call, 0)):
            await store.ping()
            (connection,) = store.redis.connection_pool._available_connections
            connection._writer.transport.abort()
            with contextlib.suppress(RedisUnavailable):
                await ask()
            await ask()
        await lane.close()
        await store.close()

    uvloop.run(use())
