"""A day in a few seconds: events in the order of a made-up clock, each of them one real call.

Producers submit, simulated workers fetch and settle, a scheduler claims and releases, an administrator pauses, cancels
and requeues; every script is handed the day's time instead of the server's. Nothing is written by hand but what a
worker's heartbeat writes. The same seed gives the same day.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dtq_core.admission import Admission
from dtq_core.client import Client
from dtq_core.config import Settings
from dtq_core.errors import CancelRequested, DtqError, IdempotencyInProgress, StoreError
from dtq_core.inspector import Inspector
from dtq_core.periodic import raise_if_cancelled
from dtq_core.store import Delivery, Store
from dtq_core.submission import Submission, SubmissionInput
from dtq_core.task import TaskStatus
from dtq_local.demo import story
from dtq_local.demo.cast import HOURS, KINDS, SHIFTS, Kind
from dtq_local.demo.crew import Plan, Worker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_ACTOR = "cli:ops@shop.example"
_LOCK_MS = 10_000
_PATIENCE = 40


@dataclass(frozen=True)
class DemoReport:
    """What the server holds when the day is over. `alone`: no other scheduler moved tasks meanwhile."""

    seed: int
    tasks: int
    statuses: dict[str, int]
    queues: tuple[str, ...]
    dead_letters: int
    workers: int
    alone: bool


async def holds_tasks(store: Store) -> bool:
    """Whether there is anything under the prefix that a day would be mixed with; queues without tasks do not count."""
    keys = store.keys
    names = (keys.recent, keys.dead_letters, keys.schedule, keys.claimed, keys.audit)
    (found,) = await store.send(("EXISTS", *names))
    if isinstance(found, Exception):
        raise StoreError(str(found))
    return bool(found)


class Day:
    """One day on one server. Made by `open`; `play` may be called once."""

    def __init__(self, settings: Settings, seed: int, tasks: int, end_ms: int, mark: str) -> None:
        self.settings = settings
        self.seed = seed
        self.count = tasks
        self.end_ms = end_ms
        self.now_ms = end_ms - DAY_MS
        self.rng = random.Random(f"{seed}{mark}")
        self.mark = mark
        self.store = Store.connect(settings, now_ms=lambda: self.now_ms)
        self.client = Client(self.store, settings, actor=_ACTOR)
        self.client.admission = _SeededIds(settings, self.store, self.rng)
        self.plans: dict[str, Plan] = {}
        self.workers: list[Worker] = []
        self.alone = True
        self._events: list[tuple[int, int, Callable[[], Awaitable[None]]]] = []
        self._order = itertools.count()
        self._leader = uuid.uuid4().hex

    @classmethod
    async def open(cls, settings: Settings, seed: int, tasks: int, *, mixed: bool = False) -> Day:
        """`mixed`: there are tasks already, so ids must not be those of an earlier day of the same seed."""
        probe = Store.connect(settings)
        try:
            (now,) = await probe.send(("TIME",))
        finally:
            await probe.close()
        if isinstance(now, Exception):
            raise StoreError(str(now))
        mark = uuid.uuid4().hex[:4] if mixed else ""
        return cls(settings, seed, tasks, int(now[0]) * 1000 + int(now[1]) // 1000, mark)

    async def play(self, progress: Callable[[int], None] | None = None) -> DemoReport:
        """The whole day, then the view of it. Raises what the calls raise; what was written by then stays."""
        try:
            self._plan()
            played = 0
            while self._events and self._events[0][0] <= self.end_ms:
                raise_if_cancelled()
                at_ms, _, event = heapq.heappop(self._events)
                self.now_ms = max(self.now_ms, at_ms)
                await event()
                played += 1
                if progress and played % 50 == 0:
                    progress(played)
            self.now_ms = self.end_ms
            for worker in self.workers:
                if worker.shift.end == "stays":
                    await worker.beat()
            await self.store.run(self.store.calls.lock(self._leader, 0))
            return await self._report()
        finally:
            await self.store.close()

    # -- what the story and the workers use

    def at(self, ms: int, event: Callable[[], Awaitable[None]]) -> None:
        """Have `event` happen at `ms`; equal moments keep their order. What lies behind the end of the day does not."""
        heapq.heappush(self._events, (ms, next(self._order), event))

    def before_end(self, hours: float) -> int:
        return self.end_ms - round(hours * HOUR_MS)

    async def submit(self, kind: Kind, plan: Plan | None = None, **fields: Any) -> str:
        """Submit a task of `kind`; its id, "" for the second one under a key that is in use."""
        raw = {
            "task_type": kind.name, "queue": kind.queue, "payload": kind.payload(self.rng), "priority": kind.priority,
            "max_attempts": min(kind.max_attempts, self.settings.max_attempts), "timeout_ms": 3_600_000, **fields,
        }  # fmt: skip
        try:
            done = await self.client.submit(raw)
        except IdempotencyInProgress:
            return ""
        if plan is not None:
            self.plans[done.task_id] = plan
        if due_ms := round(1000 * float(fields.get("delay_seconds", 0))):
            self.at(self.now_ms + due_ms + self.rng.randrange(500), self.schedule)
        else:
            self.call_workers(kind.queue)
        return done.task_id

    def call_workers(self, queue: str) -> None:
        """Something may be waiting there: every worker with room looks, a few milliseconds later."""
        for worker in self.workers:
            if queue in worker.shift.queues and worker.has_room:
                self.at(self.now_ms + self.rng.randint(2, 40), worker.fetch)

    async def schedule(self) -> None:
        """What the leading scheduler does: claim what is due, release it. Where another one leads, it does it itself."""
        calls = self.store.calls
        if not await self.store.run(calls.lock(self._leader, _LOCK_MS)):
            self.alone = False
            await self._until_moved()
        elif (due := await self.store.run(calls.claim_due(self._leader))).task_ids:
            await self.store.run(calls.release(due.task_ids))
        for queue in dict.fromkeys(kind.queue for kind in KINDS):
            self.call_workers(queue)

    async def _until_moved(self) -> None:
        """Let the other scheduler do its work, for a while."""
        for _ in range(_PATIENCE):
            (first,) = await self.store.send(
                ("ZRANGEBYSCORE", self.store.keys.schedule, "-inf", self.now_ms, "LIMIT", 0, 1)
            )
            if not first or isinstance(first, Exception):
                return
            await asyncio.sleep(0.05)

    async def cancel(self, task_id: str) -> None:
        try:
            await self.client.cancel(task_id, request_id=self._request_id())
        except CancelRequested:
            self.plans[task_id] = Plan(cancelled=True)
        except DtqError:
            pass  # it had ended

    async def pause(self, queue: str) -> None:
        await self.client.pause(queue, request_id=self._request_id())

    async def resume(self, queue: str) -> None:
        await self.client.resume(queue, request_id=self._request_id())
        self.call_workers(queue)

    async def requeue(self, task_id: str) -> None:
        self.plans[task_id] = Plan()
        with contextlib.suppress(DtqError):
            await self.client.requeue(task_id, request_id=self._request_id())
        self.call_workers("billing")

    async def discard(self, task_id: str) -> None:
        with contextlib.suppress(DtqError):
            await self.client.discard(task_id, request_id=self._request_id())

    def plan_of(self, delivery: Delivery) -> Plan:
        return self.plans.get(delivery.task_id) or Plan.by_chance(delivery, self.rng)

    # -- the course of the day

    def _plan(self) -> None:
        for shift in SHIFTS:
            worker = Worker(self, shift, f"worker-{self.rng.getrandbits(32):08x}")
            self.workers.append(worker)
            self.at(self.before_end(shift.start_h), worker.start)
            if shift.end != "stays":
                self.at(self.before_end(shift.end_h), worker.leave if shift.end == "leaves" else worker.die)
        for number in range(self.count - story.tell(self)):
            hour = self.rng.choices(range(24), HOURS)[0]
            at_ms = self.before_end(24 - hour) + self.rng.randrange(HOUR_MS)
            self.at(min(at_ms, self.end_ms - 20 * 60_000), lambda number=number: self._submit_any(number))  # type: ignore[misc]

    async def _submit_any(self, number: int) -> None:
        kind = self.rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        fields: dict[str, Any] = {}
        if kind.queue == "billing":
            fields["idempotency_key"] = f"{kind.name}-{self.seed}{self.mark}-{number}"
        if kind.name == "mail.send" and self.rng.random() < 0.1:
            fields["delay_seconds"] = float(self.rng.randint(60, 7200))
        await self.submit(kind, **fields)

    async def _report(self) -> DemoReport:
        inspector = Inspector(self.store, self.settings)
        queues = tuple(sorted(dict.fromkeys(kind.queue for kind in KINDS)))
        statuses = dict.fromkeys(map(str, TaskStatus), 0)
        for queue in queues:
            book = await inspector.ledger(queue)
            for status in statuses:
                statuses[status] += book[status]
            statuses[TaskStatus.DEAD_LETTERED] -= book["requeued"]  # the counter is of events, a requeued one goes on
        return DemoReport(
            self.seed, sum(statuses.values()), statuses, queues, await inspector.dlq_depth(), len(await inspector.workers()),
            self.alone,
        )  # fmt: skip

    def _request_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"


class _SeededIds(Admission):
    """As the real one, but task ids come from the seed, so that two days of one seed look the same."""

    def __init__(self, settings: Settings, store: Store, rng: random.Random) -> None:
        super().__init__(settings, store.calls, None)
        self._rng = rng

    def check(self, raw: SubmissionInput | dict[str, Any]) -> Submission:
        return Submission.make(raw, f"{self._rng.getrandbits(128):032x}", self.settings)
