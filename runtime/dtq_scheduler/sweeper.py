"""The leader's house-keeping, a bounded step at a time: live records are renewed, dead workers forgotten, empty queues swept.

A pass over everything takes as many steps as there are live tasks over 200; it begins anew long before the shortest
retention is over, so a week of pause or of zero workers loses nothing (decision 17).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from dtq_core.config import Settings
from dtq_core.errors import StoreError
from dtq_core.store import Store
from dtq_core.task import BANDS

PRUNE_EVERY_S = 5.0
TIDY_EVERY_S = 60.0
_QUEUES_PER_STEP = 20
_CALLS_PER_STEP = 4


class Sweeper:
    """`step` does the next bit, if one is due."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        shortest_s = min(settings.task_retention_s, settings.idem_ttl_s)
        self.pass_every_s = min(300.0, max(0.2, shortest_s / 8))
        self._consumer_idle_ms = round(max(60.0, 10 * settings.visibility_timeout_s) * 1000)
        self._pass: AsyncIterator[None] | None = None
        self._pass_at = self._prune_at = self._tidy_at = 0.0
        self._tidied = 0

    async def step(self) -> None:
        """At most a handful of short scripts. Raises DtqError when Redis fails; the pass then begins anew."""
        now = time.monotonic()
        if self._pass is None and now >= self._pass_at:
            self._pass_at = now + self.pass_every_s
            self._pass = self._renew_all()
        if self._pass is not None:
            try:
                for _ in range(_CALLS_PER_STEP):
                    await anext(self._pass)
            except StopAsyncIteration:
                self._pass = None
            except BaseException:
                self._pass = None
                raise
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            await self._prune()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_EVERY_S
            await self._tidy()

    async def _renew_all(self) -> AsyncIterator[None]:
        keys, calls = self.store.keys, self.store.calls
        names = [keys.schedule, keys.claimed]
        names += [keys.stream(queue, band) for queue in await self._members(keys.queues) for band in BANDS]
        for name in names:
            cursor = ""
            while True:
                cursor, renewed, _ = await self.store.run(calls.renew(name, cursor))
                if renewed or cursor:
                    yield
                if not cursor:
                    break

    async def _prune(self) -> None:
        queues = await self._members(self.store.keys.queues)
        workers = await self._members(self.store.keys.workers)
        for start in range(0, len(workers), 100):
            await self.store.run(self.store.calls.prune([], workers[start : start + 100], self._consumer_idle_ms))
        for _ in range(min(_QUEUES_PER_STEP, len(queues))):
            self._tidied = (self._tidied + 1) % len(queues)
            await self.store.run(self.store.calls.prune([queues[self._tidied]], [], self._consumer_idle_ms))

    async def _tidy(self) -> None:
        keys = self.store.keys
        for queue in await self._members(keys.queues):
            await self.store.run(self.store.calls.sweep_queue(queue))
        (marked,) = await self.store.send(("SRANDMEMBER", keys.cancelled, 100))
        if isinstance(marked, list) and marked:
            statuses = await self.store.send(*(("HGET", keys.task(i), "status") for i in marked))
            done = [i for i, status in zip(marked, statuses, strict=True) if status in (None, "cancelled")]
            if done:
                await self.store.send(("SREM", keys.cancelled, *done))

    async def _members(self, key: str) -> list[str]:
        (members,) = await self.store.send(("SMEMBERS", key))
        if isinstance(members, Exception):
            raise StoreError(f"{key}: {members}")
        return sorted(members)
