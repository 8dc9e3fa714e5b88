"""Another server takes over while every connection to the old one stays open, as behind a load balancer or a moved address."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, ResponseError
from support import engines
from support.engines import Server
from support.eventually import eventually
from support.wire import Wire
from support.world import World

from dtq_core.config import Settings, load_settings
from dtq_core.errors import RedisUnavailable
from dtq_core.store import Delivery, Store, SyncStore
from dtq_core.store.failures import misplaced

LOCK = "dtq:lock:scheduler"


class Pair:
    """A primary, its replica, and a wire to whichever is the primary."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.old, self.new = primary, replica
        self.wire = Wire(primary.port)
        primary.redis.config_set("repl-diskless-sync-delay", 0)
        replica.redis.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
        self.in_step()

    def in_step(self) -> None:
        eventually(lambda: self.new.redis.info("replication").get("master_link_status") == "up", 20, "the link is up")
        eventually(lambda: _offset(self.new, "slave_repl_offset") >= _offset(self.old, "master_repl_offset"), 20)

    def fail_over(self) -> None:
        """New connections go to the new primary; the old one is its replica, and keeps the connections that it has."""
        self.wire.engine_port = self.new.port
        self.new.redis.execute_command("REPLICAOF", "NO", "ONE")
        self.old.redis.execute_command("REPLICAOF", "127.0.0.1", str(self.new.port))


def _offset(server: Server, name: str) -> int:
    return int(server.redis.info("replication")[name])


@pytest.fixture
def pair(own_engine: Server, tmp_path: Path) -> Iterator[Pair]:
    with engines.private(engines.DEFAULT_KIND, tmp_path / "replica") as replica:
        pair = Pair(own_engine, replica)
        try:
            yield pair
        finally:
            pair.wire.close()


@pytest.mark.contract("BQ-06")
@pytest.mark.parametrize("taken", ["idle", "with a task in hand"])
def test_a_worker_follows_a_failover(pair: Pair, make_world: Callable[..., World], tmp_path: Path, taken: str) -> None:
    """New tasks run, what was in hand keeps its lease and is settled, at the new primary; nobody restarts anything."""
    before = make_world(pair.old)
    worker = before.worker(wire=pair.wire)
    ids = [before.submit("echo", {})]
    before.wait_ended(ids)
    if taken != "idle":
        ids.append(before.submit("gate", {"gate": "g"}))
        before.journal.wait_run(ids[-1])
    pair.in_step()
    pair.fail_over()
    after = World(pair.new, tmp_path / "after")
    after.journal = before.journal
    with contextlib.closing(after):
        row = after.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat")
        new = [after.submit("echo", {"n": n}) for n in range(3)] + [after.submit("echo", {}, delay_seconds=0.1)]
        after.wait_ended(new)
        eventually(lambda: after.redis.hget(f"dtq:worker:{worker.worker_id}", "last_heartbeat") != row, 20, worker.log)
        before.journal.open("g")
        after.wait_ended(ids)
        assert worker.alive
        after.check(ids + new, starts=1)


@pytest.mark.contract("BQ-06")
def test_a_scheduler_follows_a_failover(pair: Pair, make_world: Callable[..., World]) -> None:
    before = make_world(pair.old)
    scheduler = before.scheduler(wire=pair.wire)
    pair.in_step()
    pair.fail_over()
    pair.new.redis.delete(LOCK)
    eventually(lambda: pair.new.redis.exists(LOCK), 20, lambda: f"it leads there\n{scheduler.tail()}")
    assert scheduler.alive


Door = Callable[[Any], Any]
"""One use of a store that writes."""


def write(store: Any) -> Any:
    return store.run(store.calls.ensure_groups(["q"]))


def write_confirmed(store: Any) -> Any:
    return store.run_replicated(store.calls.ensure_groups(["q"]), 0)


def send(store: Any) -> Any:
    return store.send(("TIME",), ("SET", "written", "1"), ("TIME",))


DOORS = [write, write_confirmed, send]


@pytest.mark.parametrize("door", [write, send])
def test_a_store_connects_anew(pair: Pair, door: Door) -> None:
    """One refusal, and every connection of that store is at the new primary, the ones that only read as well."""
    settings = load_settings(redis_url=pair.old.url(port=pair.wire.port))

    async def run() -> None:
        store = Store.connect(settings)
        await asyncio.gather(*(use(store) for _ in range(4) for use in DOORS))
        pair.fail_over()
        with pytest.raises(RedisUnavailable, match="read-only replica"):
            await door(store)
        pair.new.redis.set("place", "new")
        pair.old.redis.execute_command("REPLICAOF", "127.0.0.1", "1")  # what it holds is of yesterday from here on
        pair.new.redis.set("place", "newer")
        found = await asyncio.gather(*(store.send(("GET", "place")) for _ in range(8)))
        assert found == [["newer"]] * 8
        await asyncio.gather(*(use(store) for _ in range(4) for use in DOORS))
        await store.close()

    asyncio.run(run())


def test_a_blocking_store_connects_anew(pair: Pair) -> None:
    store = SyncStore.connect(load_settings(redis_url=pair.old.url(port=pair.wire.port)))
    for use in DOORS:
        use(store)
    pair.fail_over()
    with pytest.raises(RedisUnavailable, match="read-only replica"):
        write(store)
    for use in DOORS:
        use(store)
    assert pair.new.redis.get("written") == "1"
    store.close()


FIELDS = {"task_type": "echo", "payload": "{}", "max_attempts": "5", "timeout_ms": "1000", "idempotency_key": ""}
RUNNING = Delivery(5, "1-1", "0" * 32, "echo", "{}", 1, 5, 1000, "", "1", 0, "default", False, 0)


async def every_door_says(wanted: str, settings: Settings, use: Callable[[], None] = lambda: None) -> None:
    """Plain commands, a script that fails, and one that keeps the errors of its items and answers with their texts."""
    store, blocking = Store.connect(settings), SyncStore.connect(settings)
    lane = store.lane()
    await store.ping()
    await asyncio.gather(lane.run([store.calls.adopt("w", 1, ["default"])]), asyncio.to_thread(blocking.send, ["TIME"]))
    use()
    failing, keeping = store.calls.ensure_groups(["new"]), store.calls.hand_back("w", [RUNNING])
    for attempt in (
        *(
            partial(door, call)
            for call in (failing, keeping)
            for door in (store.run, partial(store.run_replicated, replicas=0))
        ),
        *(partial(lane.run, [call]) for call in (failing, keeping)),
        *(partial(asyncio.to_thread, blocking.run, call) for call in (failing, keeping)),
        partial(lane.run, [keeping], before=("BLPOP", "a", "0.1"), wait_s=0.1),
        partial(store.send, ("TIME",), ("SET", "a", "b")),
        partial(asyncio.to_thread, blocking.send, ("TIME",), ("SET", "a", "b")),
    ):
        with pytest.raises(RedisUnavailable, match=wanted):
            await attempt()
        assert lane._connection is None or not lane._connection.is_connected or attempt.func != lane.run
    await lane.close()
    await store.close()
    blocking.close()


def test_what_the_wrong_server_says_is_no_answer(any_engine: Server) -> None:
    """A replica, one that has lost its master, and on each kind of server."""
    redis, settings = any_engine.redis, load_settings(redis_url=any_engine.url())
    redis.hset(f"dtq:task:{RUNNING.task_id}", mapping={"fence": "1", "status": "running", "attempt": "1"} | FIELDS)
    try:
        replica = partial(redis.execute_command, "REPLICAOF", "127.0.0.1", "1")
        asyncio.run(every_door_says("read-only replica", settings, replica))
        redis.execute_command("REPLICAOF", "NO", "ONE")
        stale = partial(redis.config_set, "replica-serve-stale-data", "no")
        asyncio.run(every_door_says("lost its master|read-only", settings, lambda: (replica(), stale())))
    finally:
        redis.execute_command("REPLICAOF", "NO", "ONE")
        redis.config_set("replica-serve-stale-data", "yes")


def test_a_server_that_loads_is_left(tmp_path: Path) -> None:
    """Old connections stay open while a server loads its data; what it says meanwhile is an outage."""
    args = (
        "--enable-debug-command",
        "yes",
        "--key-load-delay",
        "10000",
        "--loading-process-events-interval-bytes",
        "1024",
    )
    with engines.private(engines.DEFAULT_KIND, tmp_path / "slow", args) as server:
        server.redis.mset({f"filler:{n}": random.randbytes(1100).hex() for n in range(200)})
        loader = threading.Thread(target=server.client().execute_command, args=("DEBUG", "RELOAD"))

        def loading() -> bool:
            try:
                return bool(server.redis.get("a"))
            except BusyLoadingError:
                return True

        def load() -> None:
            loader.start()
            eventually(loading, 20)

        asyncio.run(every_door_says("loading its data", load_settings(redis_url=server.url()), load))
        loader.join()


@pytest.mark.parametrize(
    "answer",
    [
        ["OK", "ERROR WRONGTYPE READONLY "],
        ["ERROR", "0" * 32, "no READONLY thing"],
        [1, [], 0, ["READONLY x"], [], [["ERROR READONLY x", "READONLY x"]]],
        "READONLY x",
        ResponseError("user_script:1: the payload READONLY"),
    ],
)
def test_what_users_wrote_moves_nobody(answer: object) -> None:
    assert misplaced(answer) is None
