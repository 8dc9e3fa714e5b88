"""Takes over entries of workers that fell silent, within this worker's free slots. One queue a step, cursors kept (decision 32)."""

from __future__ import annotations

from collections.abc import Sequence

from dtq_core.errors import DtqError
from dtq_core.store import Store
from dtq_core.store.transitions import FIRST_CURSORS
from dtq_worker.inflight import InFlight
from dtq_worker.poller import MAX_FETCH, Poller


class Reaper:
    """`step` reclaims from one queue; `interval_s` is the pause between steps."""

    def __init__(self, store: Store, worker_id: str, queues: Sequence[str], inflight: InFlight, poller: Poller) -> None:
        self.store = store
        self.worker_id = worker_id
        self.inflight = inflight
        self.poller = poller
        self._queues = list(queues)
        self._cursors: dict[str, Sequence[str]] = {}
        self._types = sorted(poller.executor.registry.handlers)
        visibility = store.settings.visibility_timeout_s
        self.interval_s = min(5.0, max(0.25, visibility / 6)) / len(self._queues)

    async def step(self) -> float | None:
        """One queue. Returns 0 when it filled every slot it had: there may be more."""
        if self.poller.draining:
            return None
        if self.poller.in_doubt:
            await self.poller.adopt()
        queue = self._queues.pop(0)
        self._queues.append(queue)
        if self.inflight.free > 0:
            return await self._reclaim(queue)
        # Every slot is busy or promised to a fetch. A dead peer's work must not wait for ever behind new work.
        if await self.store.run(self.store.calls.stale(queue)):
            async with self.poller.turn() as next_slot:
                while await self._reclaim(queue) == 0.0 and not self.poller.draining:
                    await next_slot()
        return None

    async def _reclaim(self, queue: str) -> float | None:
        room = min(self.inflight.free, MAX_FETCH)
        if room <= 0:
            return None
        cursors = self._cursors.get(queue, FIRST_CURSORS)
        call = self.store.calls.reclaim(self.worker_id, queue, room, cursors, self._types)
        self.inflight.reserved += room
        try:
            reply = await self.store.run(call)
        except DtqError as exc:
            self.poller.doubt(exc)
            raise
        finally:
            self.inflight.reserved -= room
        self._cursors[queue] = reply.cursors or FIRST_CURSORS
        self.poller.take_in(reply)
        self.inflight.changed.set()
        return 0.0 if len(reply.deliveries) >= room else None
