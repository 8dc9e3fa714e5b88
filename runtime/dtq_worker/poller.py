"""The hot path: settlements out and new tasks in, in one round trip, with two batches under way; and the wait when there is nothing.

Two lanes take turns: each sends what has ended and asks for as many tasks as that frees. When a fetch brings less than it
asked for, the lanes only settle, and a third connection waits: BLPOP on the wake lists and the next fetch travel
together, so the server itself goes on from the token to the fetch.

A request whose reply is lost leaves doubt about what was started for us: adopt.lua answers it (decision 29).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from dtq_core.errors import DtqError, RedisFull, RedisUnavailable
from dtq_core.log import RateLimited, together
from dtq_core.periodic import BACKOFF, raise_if_cancelled
from dtq_core.retry import backoff_s
from dtq_core.store import Call, Delivery, FetchReply, Lane, Store
from dtq_core.store.transitions import Ended
from dtq_worker.executor import Executor
from dtq_worker.inflight import InFlight
from dtq_worker.settler import Pending, Settler

logger = logging.getLogger("dtq.worker")
_limited = RateLimited(logger)

MAX_FETCH = 64
WAIT_S = (0.5, 1.0)
"""How long an idle worker waits for a token before it sweeps anyway."""
PAUSE_S = 0.5
SHY_S = 5.0
"""How long a worker that had to put off tasks of a type it does not know leaves the first grab to its peers."""
DEAF_S = 5.0
"""How long a worker whose wait for a token was refused asks by the clock before it tries to wait again."""
DOUBT_S = 6.0
"""After a lost reply: how long it may still be executed on the server."""

LANES = ("a", "b")


class Poller:
    """Moves tasks between the store and the executor. `serve` per lane and `wait` run for as long as the worker."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        queues: Sequence[str],
        inflight: InFlight,
        settler: Settler,
        executor: Executor,
        on_ended: Callable[[Ended], None],
    ) -> None:
        self.store = store
        self.worker_id = worker_id
        self.queues = list(queues)
        self.inflight = inflight
        self.settler = settler
        self.executor = executor
        self.draining = False
        self._on_ended = on_ended
        self._types = sorted(executor.registry.handlers)
        self._hot = True
        self._standing_back = False
        self._refused = False
        self._waiting = False
        self._doubt = True
        self._doubt_until = 0.0
        self._closed: dict[str, float] = {}
        self._blocked_until = 0.0
        self._shy_until = 0.0
        self._failures = 0
        self._turn = 0
        self._unwanted: list[Delivery] = []
        self._rng = random.Random()
        self.turned_at = time.monotonic()
        """When a lane or the waiting connection last went round; moves on while there are free slots."""

    @property
    def in_doubt(self) -> bool:
        """Whether something may have been started for us that we do not know of yet."""
        return self._doubt or time.monotonic() < self._doubt_until

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way in either direction."""
        return not (self.settler or self._unwanted or self.inflight.reserved or self._doubt)

    async def serve(self, name: str) -> None:
        """One lane, for ever."""
        lane = self.store.lane()
        try:
            while True:
                raise_if_cancelled()
                await self._until(partial(self._has_work, name))
                self.turned_at = time.monotonic()
                await self._exchange(lane, name)
        finally:
            await lane.close()

    async def wait(self) -> None:
        """The waiting connection, for ever: one token, one fetch."""
        lane = self.store.lane()
        try:
            while True:
                raise_if_cancelled()
                await self._until(self._may_wait)
                self.turned_at = time.monotonic()
                queues = self._open_queues()
                if not queues or time.monotonic() < self._blocked_until:
                    await asyncio.sleep(self._rng.uniform(0.5, 1.0) * PAUSE_S)
                    continue
                await self._wait_once(lane, queues)
                await asyncio.sleep(0)  # what came starts before the next request is put together and sent
        finally:
            await lane.close()

    async def adopt(self, lane: Lane | None = None) -> None:
        """Take what was started for us in a request whose reply never came."""
        call = self.store.calls.adopt(self.worker_id, 2 * self.inflight.concurrency, self.queues)
        if lane is None:
            found = await self.store.run(call)
        else:
            (found,) = await lane.run([call])
            if isinstance(found, DtqError):
                raise found
        self._doubt = False
        self.take_in(found)
        self.inflight.changed.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Leave free slots to the reaper: the lanes ask for one task less, the waiting connection stands back.

        Gives a function that waits for the next free slot; the first one is there when the turn begins.
        """

        async def next_slot() -> None:
            await self._until(lambda: self.inflight.free > 0 or self.draining)

        self._standing_back = True
        try:
            await next_slot()
            yield next_slot
        finally:
            self._standing_back = False
            self.inflight.changed.set()

    def take_in(self, reply: FetchReply) -> None:
        """What a fetch or a reclaim brought, beside the count: tasks to run, tasks ended at the gate, trouble, pauses."""
        for problem in reply.problems:
            _limited.log(logging.ERROR, f"problem {problem[:60]}", "set aside: %s", problem)
        for ended in reply.ended:
            self._on_ended(ended)
        for queue in reply.paused:
            self._closed[queue] = time.monotonic() + PAUSE_S * self._rng.uniform(0.8, 1.2)
        if reply.deferred:
            self._shy_until = time.monotonic() + SHY_S
        if reply.replayed:
            self._doubt = True
        self._receive(reply.deliveries)

    def doubt(self, exc: BaseException) -> None:
        """A request failed half-way: nobody knows what it did."""
        self._doubt = True
        self._doubt_until = time.monotonic() + DOUBT_S
        if not isinstance(exc, DtqError):
            return  # it is told where it ends up
        _limited.log(logging.WARNING, f"exchange {type(exc).__name__}", "no answer from Redis: %s", exc)

    async def _exchange(self, lane: Lane, name: str) -> None:
        trouble: DtqError | None = None
        if self._doubt and name == LANES[0]:
            try:
                await self.adopt(lane)
            except DtqError as exc:
                trouble = exc  # no new tasks then (`_wanted`), but what has ended is written
        batch = self.settler.take()
        unwanted, self._unwanted = self._unwanted, []
        queues = self._open_queues()
        # What was refused once may be refused again: its slots are free when it is written, not when it is sent.
        freed = 0 if self._refused else sum(p.run.handler_ended for p in batch)
        want = self._wanted(freed) if queues else 0
        calls: list[Call[Any]] = []
        if batch:
            calls.append(self.store.calls.settle(self.worker_id, [p.settling for p in batch]))
        if unwanted:
            calls.append(self.store.calls.hand_back(self.worker_id, unwanted))
        if want:
            calls.append(self._fetch(name, want, queues))
        if not calls:
            return await self._failed(trouble) if trouble else None
        self.inflight.reserved += want
        try:
            answers = await lane.run(calls)
        except BaseException as exc:
            self.settler.put_back(batch)
            self._unwanted += unwanted
            self.inflight.reserved -= want
            self.doubt(exc)
            if not isinstance(exc, DtqError):
                raise
            return await self._failed(exc)
        self.inflight.reserved -= want
        if batch:
            refused = self._settled(batch, answers.pop(0))
            self._refused = refused is not None
            trouble = trouble or refused
        if unwanted:
            trouble = self._handed_back(unwanted, answers.pop(0)) or trouble
        if want:
            self._fetched(answers.pop(0), want)
        if trouble is not None:
            return await self._failed(trouble)
        self._failures = 0
        return None

    async def _wait_once(self, lane: Lane, queues: list[str]) -> None:
        want = min(self.inflight.free, MAX_FETCH)
        if want <= 0:
            return None
        wait_s = self._rng.uniform(*WAIT_S)
        self._waiting = True
        self.inflight.reserved += want
        before = ("BLPOP", *(self.store.keys.wake(q) for q in queues), f"{wait_s:.3f}")
        try:
            if time.monotonic() < self._shy_until:
                await asyncio.sleep(wait_s)
                (answer,) = await lane.run([self._fetch("w", want, queues)])
            else:
                token, answer = await lane.run([self._fetch("w", want, queues)], before=before, wait_s=wait_s)
                if isinstance(token, DtqError):  # it did not wait at all: the clock does, as for one who is shy
                    self._shy_until = time.monotonic() + DEAF_S
                    _limited.log(
                        logging.ERROR,
                        f"wake {token.code}",
                        "cannot wait for new tasks and asks every second: %s",
                        token,
                    )
        except BaseException as exc:
            self.inflight.reserved -= want
            self._waiting = False
            self.doubt(exc)
            if not isinstance(exc, DtqError):
                raise
            return await self._failed(exc)
        self.inflight.reserved -= want
        self._waiting = False
        self._failures = 0
        self._fetched(answer, want)
        return None

    def _fetch(self, lane: str, want: int, queues: list[str]) -> Call[FetchReply]:
        self._turn += 1
        turn = self._turn % len(queues)
        return self.store.calls.fetch(
            self.worker_id, lane, uuid4().hex, want, queues[turn:] + queues[:turn], self._types
        )

    def _fetched(self, answer: FetchReply | DtqError, want: int) -> None:
        if isinstance(answer, DtqError):
            # Refused as a whole: nothing was taken. A full engine finishes its work first.
            level = logging.WARNING if isinstance(answer, (RedisFull, RedisUnavailable)) else logging.ERROR
            _limited.log(level, f"fetch {answer.code}", "no new tasks for now: %s", answer)
            self._hot = False
            self._doubt = self._doubt or not isinstance(answer, RedisFull)
            self._blocked_until = time.monotonic() + self._rng.uniform(0.5, 1.5)
        else:
            self._hot = answer.more or len(answer.deliveries) >= want
            self.take_in(answer)
        self.inflight.changed.set()

    def _receive(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if self.inflight.knows((delivery.task_id, delivery.fence)):
                continue
            if self.draining or delivery.task_type not in self.executor.registry.handlers:
                self._unwanted.append(delivery)
                self.inflight.changed.set()
            else:
                self.executor.start(delivery)

    def _settled(self, batch: list[Pending], answers: list[str] | DtqError) -> DtqError | None:
        if isinstance(answers, DtqError):
            self.settler.put_back(batch)
            _limited.log(logging.WARNING, f"settle {answers.code}", "results cannot be written yet: %s", answers)
            return answers
        with together():
            written = self.settler.apply(batch, answers)
        return None if written else RedisUnavailable("some results were refused")

    def _handed_back(self, deliveries: list[Delivery], answers: list[str] | DtqError) -> DtqError | None:
        if isinstance(answers, DtqError):
            self._unwanted += deliveries
            return answers
        logger.info("handed %d tasks back that had not begun", answers.count("OK"))
        return None

    def _wanted(self, freed: int) -> int:
        """How many tasks a lane may ask for beside settling `freed` slots free; the waiting connection has the rest."""
        if self.draining or self._waiting or self._doubt or time.monotonic() < self._blocked_until:
            return 0
        room = self.inflight.free + freed - self._standing_back
        if self.inflight.concurrency > 2 * len(LANES):
            room = min(room, (self.inflight.concurrency + 1) // 2)
        return max(0, min(room, MAX_FETCH))

    def _has_work(self, name: str) -> bool:
        if self.settler or self._unwanted or (self._doubt and name == LANES[0]):
            return True
        return self._hot and self.inflight.free > 0 and self._wanted(0) > 0 and bool(self._open_queues())

    def _may_wait(self) -> bool:
        if self._doubt or self.draining or self._standing_back:
            return False
        return self.inflight.free > 0 and not (self._hot and self._open_queues())

    def _open_queues(self) -> list[str]:
        if not self._closed:
            return self.queues
        now = time.monotonic()
        self._closed = {queue: until for queue, until in self._closed.items() if until > now}
        return [queue for queue in self.queues if queue not in self._closed]

    async def _until(self, condition: Callable[[], bool]) -> None:
        changed = self.inflight.changed
        while not condition():
            changed.clear()
            await changed.wait()

    async def _failed(self, exc: DtqError) -> None:
        self._failures += 1
        await asyncio.sleep(backoff_s(min(self._failures, 8), BACKOFF, self._rng))
        self.inflight.changed.set()
