"""The leader's house-keeping, a bounded bit at a time: live records are renewed, dead workers forgotten, empty queues swept.

A pass over everything takes as many steps as it needs; it begins anew long before the shortest retention is over, so a
week of pause or of zero workers loses nothing (decision 17).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from dtq_core.config import Settings
from dtq_core.errors import StoreError
from dtq_core.log import RateLimited
from dtq_core.store import Store
from dtq_core.store.replies import sound
from dtq_core.task import BANDS

logger = logging.getLogger("dtq.scheduler")
_limited = RateLimited(logger)

PRUNE_EVERY_S = 5.0
TIDY_EVERY_S = 60.0
STEP_S = 0.02
"""How long one step may take: due tasks wait for it."""
_QUEUES_PER_PRUNE = 20


class _Chore:
    """Work that is done bit by bit (`bits` does one per item) and begins anew every so often."""

    def __init__(self, every_s: float, bits: Callable[[], AsyncIterator[None]]) -> None:
        self.every_s = every_s
        self.bits = bits
        self.begin_at = 0.0
        self.under_way: AsyncIterator[None] | None = None

    async def go_on(self, until: float) -> None:
        """Bit after bit until the time is up or the work is done. After a failure it begins anew when it is due again."""
        now = time.monotonic()
        if self.under_way is None:
            if now < self.begin_at:
                return
            self.begin_at = now + self.every_s
            self.under_way = self.bits()
        bits, self.under_way = self.under_way, None
        async for _ in bits:
            if time.monotonic() >= until:
                self.under_way = bits
                return


class Sweeper:
    """`step` does the next bits, if any are due."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        shortest_s = min(settings.task_retention_s, settings.idem_ttl_s)
        self.pass_every_s = min(300.0, max(0.2, shortest_s / 8))
        self._consumer_idle_ms = round(max(60.0, 10 * settings.visibility_timeout_s) * 1000)
        self._pruned = 0
        self._chores = [
            _Chore(self.pass_every_s, self._renew_all),
            _Chore(PRUNE_EVERY_S, self._prune),
            _Chore(TIDY_EVERY_S, self._tidy),
        ]

    async def step(self) -> None:
        """At most STEP_S and one short script more. Raises DtqError when Redis fails."""
        until = time.monotonic() + STEP_S
        self._chores.append(self._chores.pop(0))  # so that none waits for ever behind the others
        for chore in self._chores:
            if time.monotonic() < until:
                await chore.go_on(until)

    async def _renew_all(self) -> AsyncIterator[None]:
        keys, calls = self.store.keys, self.store.calls
        names = [keys.schedule, keys.claimed]
        for queue in await self._members(keys.queues):
            streams = [keys.stream(queue, band) for band in BANDS]
            lengths = await self.store.send(*(("XLEN", name) for name in streams))
            names += [name for name, length in zip(streams, lengths, strict=True) if length != 0]
            yield
        for name in names:
            cursor: str | None = ""
            while cursor is not None:
                try:
                    cursor = (await self.store.run(calls.renew(name, cursor)))[0] or None
                except StoreError as exc:
                    _limited.log(logging.ERROR, f"renew {name}", "records of %s cannot be renewed: %s", name, exc)
                    cursor = None
                yield

    async def _prune(self) -> AsyncIterator[None]:
        prune, idle_ms = self.store.calls.prune, self._consumer_idle_ms
        queues = await self._members(self.store.keys.queues)
        workers = await self._members(self.store.keys.workers)
        for start in range(0, len(workers), 100):
            await self.store.run(prune([], workers[start : start + 100], idle_ms))
            yield
        for _ in range(min(_QUEUES_PER_PRUNE, len(queues))):
            self._pruned = (self._pruned + 1) % len(queues)
            await self.store.run(prune([queues[self._pruned]], [], idle_ms))
            yield

    async def _tidy(self) -> AsyncIterator[None]:
        keys = self.store.keys
        for queue in await self._members(keys.queues):
            await self.store.run(self.store.calls.sweep_queue(queue))
            yield
        (marked,) = await self.store.send(("SRANDMEMBER", keys.cancelled, 100))
        if isinstance(marked, list) and marked:
            statuses = await self.store.send(*(("HGET", keys.task(i), "status") for i in marked))
            done = [i for i, status in zip(marked, statuses, strict=True) if status in (None, "cancelled")]
            if done:
                await self.store.send(("SREM", keys.cancelled, *done))

    async def _members(self, key: str) -> list[str]:
        (members,) = await self.store.send(("SMEMBERS", key))
        return sorted(sound(members))
