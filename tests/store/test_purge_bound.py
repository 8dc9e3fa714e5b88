"""A purge that was confirmed for what was there leaves alone what came while somebody thought about it (contract §11, D22)."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.bench import Bench

from dtq_core.client import Client
from dtq_core.store import Store

pytestmark = pytest.mark.contract("D22")


def real_time(bench: Bench) -> None:
    """Entry ids are on the engine's clock, so the stopped one goes with it here."""
    now = bench.redis.time()
    bench.now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    time.sleep(0.002)


def test_what_came_later_stays(bench: Bench) -> None:
    real_time(bench)
    before = [bench.dead(), bench.submit(), bench.submit(delay_seconds=60), bench.submit(priority=9)]
    later: list[str] = []

    async def confirm_and_purge() -> None:
        store = Store.connect(bench.settings)
        client = Client(store, bench.settings)
        try:
            look = await client.purge_queue("default", dry_run=True)
            assert look.matched == 3
            real_time(bench)
            real_time(bench)
            later.extend([bench.submit(), bench.submit(delay_seconds=60)])
            done = await client.purge_queue("default", until_ms=look.looked_at_ms)
            assert (done.matched, done.changed) == (3, 3)
            letters = await client.purge_dead_letters(dry_run=True)
            real_time(bench)
            (delivery,) = bench.fetch()
            bench.settle(delivery, "dead_lettered")
            done = await client.purge_dead_letters(until_ms=letters.looked_at_ms)
            assert (done.matched, done.changed) == (1, 1)
        finally:
            await store.close()

    asyncio.run(confirm_and_purge())
    assert {bench.status(t) for t in before[1:]} == {"cancelled"}
    assert [bench.status(t) for t in later] == ["dead_lettered", "pending"]
    assert bench.redis.xlen(bench.keys.dead_letters) == 1
