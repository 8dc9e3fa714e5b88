"""The leader's house-keeping goes bit by bit, so that due tasks never wait for it (decisions 17, 33)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.bench import Bench

from dtq_core.errors import RedisUnavailable
from dtq_core.store import Store
from dtq_scheduler.sweeper import Sweeper

pytestmark = pytest.mark.contract("D17", "D33")
QUEUES = 12


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtq_scheduler.sweeper.STEP_S", 0.0005)


def swept(bench: Bench, use: Callable[[Sweeper, Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Store.connect(bench.settings, now_ms=lambda: bench.now_ms)
        try:
            await use(Sweeper(store, bench.settings), store)
        finally:
            await store.close()

    asyncio.run(run())


async def steps(sweeper: Sweeper) -> None:
    for _ in range(500):
        await sweeper.step()


def near_their_end(bench: Bench) -> list[str]:
    """A task in each of many queues, whose record would expire in a minute."""
    ids = [bench.submit(queue=f"q{n}") for n in range(QUEUES)] + [bench.submit(delay_seconds=600)]
    for task_id in ids:
        bench.redis.expire(bench.keys.task(task_id), 60)
    return ids


def safe(bench: Bench, ids: list[str]) -> list[bool]:
    return [bench.redis.ttl(bench.keys.task(task_id)) > 600 for task_id in ids]


def test_a_pass_takes_many_short_steps_and_reaches_everything(bench: Bench) -> None:
    ids = near_their_end(bench)

    async def use(sweeper: Sweeper, store: Store) -> None:
        steps = 0
        while not all(safe(bench, ids)):
            before = bench.redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
            await sweeper.step()
            steps += 1
            after = bench.redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
            assert after - before <= 10, "one step is a handful of short scripts"
            assert steps < 500
        assert steps > 3

    swept(bench, use)


def test_a_pass_that_fails_begins_anew_and_the_other_chores_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = near_their_end(bench)

    async def use(sweeper: Sweeper, store: Store) -> None:
        run, broken = store.run, True

        async def fails(call: object) -> object:
            if broken and getattr(call, "script", "") == "renew":
                raise RedisUnavailable("gone")
            return await run(call)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "run", fails)
        with pytest.raises(RedisUnavailable):
            await steps(sweeper)
        assert not any(safe(bench, ids))
        broken = False
        for chore in sweeper._chores:
            chore.begin_at = 0.0  # as if its time had come again
        await steps(sweeper)
        assert all(safe(bench, ids))

    swept(bench, use)
