"""How scripts get to the server: by digest, with the source where it is not known (§2); and in what memory they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.bench import Bench
from support.every_script import walk
from support.wire import Wire

from dtq_core.config import load_settings
from dtq_core.errors import RedisFull
from dtq_core.store import Store
from dtq_core.store.scripts import ALLOW_OOM, names, script

TAKE_WORK = {"submit", "fetch", "revive"}


@pytest.mark.contract("D4")
def test_a_server_that_knows_no_script_is_given_the_source_once(bench: Bench) -> None:
    wire = Wire(bench.server.port)
    settings = load_settings(redis_url=bench.server.url(port=wire.port))

    async def submit_twice() -> list[str]:
        wire.forget()
        store = Store.connect(settings)
        for _ in range(2):
            await store.run(bench.submit_call(bench.submission()))
        await store.close()
        return [request.command for request in wire.requests(lambda request: request.script == "submit")]

    try:
        assert asyncio.run(submit_twice()) == ["EVALSHA", "EVAL", "EVALSHA"]
        bench.redis.script_flush()
        assert asyncio.run(submit_twice()) == ["EVALSHA", "EVAL", "EVALSHA"]
        assert asyncio.run(submit_twice()) == ["EVALSHA", "EVALSHA"]
    finally:
        wire.close()
    assert bench.counters()["submitted"] == 6


@pytest.mark.contract("D4")
def test_a_lane_survives_a_server_that_forgets_its_scripts(bench: Bench) -> None:
    async def run() -> list[str]:
        store = Store.connect(bench.settings)
        lane, found = store.lane(), []
        for _ in range(3):
            bench.redis.script_flush()
            calls = [bench.submit_call(bench.submission()), bench.fetch_call()]
            answers = await lane.run(calls)
            found += [d.task_id for d in answers[1].deliveries]
        await lane.close()
        await store.close()
        return found

    assert len(asyncio.run(run())) == 3
    assert bench.counters() == {"submitted": 3, "started": 3, "running": 3}


@pytest.mark.contract("D31")
def test_each_script_either_takes_work_or_may_run_when_memory_is_full() -> None:
    assert TAKE_WORK.isdisjoint(ALLOW_OOM)
    assert set(names()) == TAKE_WORK | (ALLOW_OOM & set(names()))
    assert all(script(name).source.startswith("#!lua flags=allow-oom\n") for name in ALLOW_OOM & set(names()))
    assert all(script(name).source.startswith("#!lua\n") for name in TAKE_WORK)


@pytest.mark.contract("D31")
def test_a_full_engine_finishes_its_work_and_takes_no_more(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    running = bench.fetch(capacity=2)
    (waiting,) = {f["task_id"] for _, f in bench.redis.xrange(bench.keys.stream("default", 5))} - {
        delivery.task_id for delivery in running
    }
    delayed = bench.submit(delay_seconds=1)
    bench.claimed(delayed)
    bench.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(RedisFull):
            bench.run(bench.submit_call(bench.submission()))
        with pytest.raises(RedisFull):
            bench.run(bench.fetch_call())
        assert bench.run(bench.calls.touch("worker-00000001", running)) == ["OK", "OK"]
        assert bench.run(bench.calls.beat(50, {"worker_id": "worker-00000001", "status": "busy"})) == []
        assert bench.settle(running[0]) == "succeeded"
        assert bench.settle(running[1], "dead_lettered") == "dead_lettered"
        assert bench.release([delayed]).released == 1
        assert bench.run(bench.calls.cancel([waiting])) == ["CANCELLED"]
        letter = bench.letter(running[1].task_id)
        assert bench.run(bench.calls.discard([letter], actor="ann", request_id="")) == ["OK"]
        assert bench.run(bench.calls.purge_step("default", 5, "-", dry_run=False)).changed == 1
    finally:
        bench.redis.config_set("maxmemory", 0)
    counters = {"submitted": 4, "started": 2, "succeeded": 1, "dead_lettered": 1, "cancelled": 2, "discarded": 1}
    assert bench.counters() == counters


@pytest.mark.contract("C2.19", "D19")
def test_the_walk_through_every_script_leaves_only_known_keys(bench: Bench) -> None:
    """The key audit of this folder does the work."""
    walk(bench)


@pytest.mark.contract("D33")
def test_no_call_touches_more_than_five_hundred(make_bench: Callable[..., Bench]) -> None:
    """A fetch for everything there is takes what the bound allows, and says that there is more."""
    bench = make_bench()
    for _ in range(6):
        bench.run(bench.submit_call(*(bench.submission() for _ in range(100))))
    reply = bench.run(bench.fetch_call(capacity=1000))
    assert len(reply.deliveries) == 500
    assert bench.counters()["queued"] == 100
