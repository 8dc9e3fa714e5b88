"""One round of the scheduler: lead? → claim due → release → return stale claims → sweep (contract §4, decisions 15 and 17).

A claim whose release was not confirmed (a reply lost, a leader that died in between) is released by the next round that
leads, so that its task is seconds late and not a minute.

Whoever holds the lock leads; a random token says who. Every script compares it again, so a leader that was frozen and
wakes up moves nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.log import RateLimited
from dtq_core.store import Store
from dtq_core.store.transitions import BATCH, Ended
from dtq_scheduler.sweeper import Sweeper

logger = logging.getLogger("dtq.scheduler")
_limited = RateLimited(logger)

LOCK_MS = 10_000
EXTEND_EVERY_S = 2.5
STALE_CLAIM_MS = 60_000
STALE_EVERY_S = 1.0
FOLLOW_S = 2.0
"""How often one that does not lead tries to; and when the leader's lock ends, so that a dead one is followed at once."""
LOOK_S = 0.1
"""How often the leader looks at the schedule; a start is late by this at most, and by its way through the scripts."""


class Scheduler:
    """`step` does one round and says in how many seconds the next one is due. Takes no sleep itself."""

    interval_s = FOLLOW_S

    def __init__(self, store: Store, settings: Settings, on_ended: Callable[[Ended], None] = lambda task: None) -> None:
        """`on_ended` hears of every task that a release ends, because its time to live is over."""
        self._on_ended = on_ended
        self.store = store
        self.settings = settings
        self.token = secrets.token_hex(16)
        self.leading = False
        self._unreleased = True
        """The last batch may stand in the claims, with nobody to release it: an earlier leader's, or ours after a lost answer."""
        self._sweeper = Sweeper(store, settings)
        self._follow_s = FOLLOW_S
        self._extend_at = 0.0
        self._stale_at = 0.0

    async def step(self) -> float:
        """One round; the lock's remaining life is never trusted. Raises DtqError when Redis fails."""
        if not await self._lead():
            return self._follow_s
        if self._unreleased:
            await self._release(await self._last_batch())
        self._unreleased = True  # until the answers have come
        due = await self.store.run(self.store.calls.claim_due(self.token, BATCH))
        if not due.leading:
            self._extend_at = 0.0
            return 0.0
        await self._release(due.task_ids)
        self._unreleased = False
        if len(due.task_ids) >= BATCH:
            return 0.0
        await self._keep_house()
        return LOOK_S if due.next_in_ms < 0 else min(LOOK_S, due.next_in_ms / 1000)

    async def release_lock(self) -> None:
        """Give the lock back, if it is ours: another one leads at once."""
        self.leading = False
        await self.store.run(self.store.calls.lock(self.token, 0))

    async def _last_batch(self) -> Sequence[str]:
        (ids,) = await self.store.send(("GET", self.store.keys.batch))
        if isinstance(ids, Exception):  # not ours; the claims go back to the schedule after a minute all the same
            await self.store.send(("DEL", self.store.keys.batch))
            return ()
        return str(ids or "").split()[:BATCH]

    async def _release(self, task_ids: Sequence[str]) -> None:
        if not task_ids:
            return
        released = await self.store.run(self.store.calls.release(task_ids))
        for problem in released.problems:
            _limited.log(logging.ERROR, f"release {problem[:60]}", "cannot be released: %s", problem)
        for task in released.ended:
            fields = {"task_id": task.task_id, "task_type": task.task_type, "queue": task.queue}
            logger.info(
                "expired before it was due", extra={**fields, "status": task.status, "event_type": "TASK_EXPIRED"}
            )
            self._on_ended(task)

    async def _lead(self) -> bool:
        now = time.monotonic()
        if self.leading and now < self._extend_at:
            return True
        led, self.leading = self.leading, False
        self.leading, held_ms = await self.store.run(self.store.calls.lead(self.token, LOCK_MS))
        self._follow_s = FOLLOW_S if held_ms < 0 else min(FOLLOW_S, held_ms / 1000 + 0.02)
        self._extend_at = now + EXTEND_EVERY_S
        if self.leading != led:
            self._unreleased = True
            logger.info("this scheduler leads" if self.leading else "another scheduler leads now")
        return self.leading

    async def _keep_house(self) -> None:
        """Stale claims and one bounded step of sweeping; what fails here must not hold up due tasks."""
        now = time.monotonic()
        try:
            if now >= self._stale_at:
                self._stale_at = now + STALE_EVERY_S
                returned = await self.store.run(self.store.calls.return_stale(self.token, STALE_CLAIM_MS))
                if returned:
                    logger.warning("returned %d claims that were not released in time", returned)
            await self._sweeper.step()
        except DtqError as exc:
            _limited.log(logging.WARNING, f"house {exc.code}", "house-keeping failed and will be tried again: %s", exc)
