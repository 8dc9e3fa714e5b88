"""The simulated workers: they register, fetch, settle, take over, leave or die by the calls of the real one."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dtq_core.retry import Cancelled, Failed, Outcome, RetryPolicy, Succeeded, TimedOut, decide
from dtq_core.store import Delivery, FetchReply
from dtq_core.store.transitions import FIRST_CURSORS, Settling, Transitions
from dtq_core.task import TaskStatus
from dtq_local.demo.cast import KIND, Shift

if TYPE_CHECKING:
    from dtq_local.demo.day import Day

ROW_TTL_S = 3600
INTERVAL_MS = 1_200_000
"""Heartbeat interval that the rows name: nobody beats after the day, and the workers shall look alive for an hour."""
DEAD_INTERVAL_MS = 5000
_VISIBILITY_S = 0.001


@dataclass
class Plan:
    """What becomes of a task. `outcomes` are those of its attempts, success after them; `seconds` is how long one takes."""

    outcomes: tuple[Outcome, ...] = ()
    seconds: float | None = None
    delay_s: float | None = None
    cancelled: bool = False

    @classmethod
    def by_chance(cls, delivery: Delivery, rng: random.Random) -> Plan:
        kind = KIND[delivery.task_type]
        if rng.random() < kind.trouble * (1.6 if delivery.attempt > 1 else 1):
            return cls((rng.choice(kind.troubles),) * delivery.attempt)
        return cls()

    def outcome(self, attempt: int) -> Outcome:
        if self.cancelled:
            return Cancelled()
        return self.outcomes[attempt - 1] if attempt <= len(self.outcomes) else Succeeded('{"ok":true}')


@dataclass
class Worker:
    """One worker from its start to its end."""

    day: Day
    shift: Shift
    worker_id: str
    alive: bool = False
    started_ms: int = 0
    active: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"processed": 0, "failed": 0, "retried": 0})

    @property
    def has_room(self) -> bool:
        return self.alive and self.active < self.shift.concurrency

    @property
    def _calls(self) -> Transitions:
        return self.day.store.calls

    async def start(self) -> None:
        self.alive, self.started_ms = True, self.day.now_ms
        store, queues = self.day.store, self.shift.queues
        await store.run(self._calls.ensure_groups(queues))
        await store.run(self._calls.register(ROW_TTL_S, queues, self._row("ready")))
        await self._take_over()
        await self.fetch()

    async def fetch(self) -> None:
        """Take what there is room for; what the gate ended meanwhile is no work."""
        if not self.has_room:
            return
        room = self.shift.concurrency - self.active
        nonce = f"{self.day.rng.getrandbits(128):032x}"
        call = self._calls.fetch(self.worker_id, "a", nonce, room, self.shift.queues, list(KIND))
        self._began(await self.day.store.run(call))

    async def leave(self) -> None:
        """A deployment: it finishes what it has, says goodbye, and its consumers go."""
        if self.active:
            self.alive = False
            self.day.at(self.day.now_ms + 1000, self.leave)
            return
        self.alive = False
        key = self.day.store.keys.worker(self.worker_id)
        await self.day.store.send(("HSET", key, *_flat(self._row("stopped"))))
        await self.day.store.run(self._calls.sign_off(self.worker_id, self.shift.queues, ROW_TTL_S))

    async def die(self) -> None:
        """Killed: what it ran stays in its hands. Its row says when it was last heard of, and has expired hours later."""
        self.alive = False
        if self.shift.end_h < 1:
            await self._write(self._row("busy" if self.active else "ready") | {"interval_ms": str(DEAD_INTERVAL_MS)})
        else:
            await self.day.store.send(("EXPIRE", self.day.store.keys.worker(self.worker_id), 0))

    async def beat(self) -> None:
        await self._write(self._row("busy" if self.active else "ready"))

    async def settle(self, delivery: Delivery, plan: Plan, began_ms: int) -> None:
        """What the executor does at the end of a run: decide, write. A killed worker writes nothing."""
        if not self.alive and self.shift.end == "dies":
            return
        day, kind = self.day, KIND[delivery.task_type]
        plan = day.plans.get(delivery.task_id, plan)
        outcome = plan.outcome(delivery.attempt)
        buried = kind.dead_letters and day.settings.dlq_enabled
        policy = RetryPolicy(1.0, 60.0, 0.2, buried)
        settlement = decide(outcome, delivery.attempt, delivery.max_attempts, policy, day.rng, plan.delay_s)
        took_ms = day.now_ms - began_ms
        record = _record(delivery, self.worker_id, took_ms, outcome, settlement.retry_delay_ms or 0)
        settle = self._calls_with(dlq_enabled=buried).settle
        (answer,) = await day.store.run(settle(self.worker_id, [Settling(delivery, settlement, took_ms, record)]))
        self.active -= 1
        self._count(answer)
        if answer == TaskStatus.RETRYING:
            day.at(day.now_ms + (settlement.retry_delay_ms or 0) + day.rng.randint(1, 400), day.schedule)
        await self.fetch()

    def _began(self, reply: FetchReply) -> None:
        day = self.day
        for delivery in reply.deliveries:
            self.active += 1
            plan = day.plan_of(delivery)
            seconds = plan.seconds or day.rng.uniform(*KIND[delivery.task_type].seconds)
            began_ms = day.now_ms
            day.at(
                began_ms + round(seconds * 1000),
                lambda d=delivery, p=plan, b=began_ms: self.settle(d, p, b),  # type: ignore[misc]
            )

    async def _take_over(self) -> None:
        """Reclaim what a dead predecessor on a queue that only we serve left behind; its silence is not waited for."""
        calls = self._calls_with(visibility_timeout_s=_VISIBILITY_S)
        for queue in self.shift.queues:
            if any(w.alive and w is not self and queue in w.shift.queues for w in self.day.workers):
                continue
            room = self.shift.concurrency - self.active
            self._began(await self.day.store.run(calls.reclaim(self.worker_id, queue, room, FIRST_CURSORS, list(KIND))))

    def _calls_with(self, **settings: Any) -> Transitions:
        """The calls of a worker whose settings differ in this."""
        day = self.day
        return Transitions(day.store.keys, day.settings.model_copy(update=settings), lambda: day.now_ms)

    def _count(self, answer: str) -> None:
        self.counts["processed"] += answer in (TaskStatus.SUCCEEDED, TaskStatus.CANCELLED)
        self.counts["failed"] += answer in (TaskStatus.FAILED, TaskStatus.DEAD_LETTERED)
        self.counts["retried"] += answer == TaskStatus.RETRYING

    async def _write(self, row: dict[str, str]) -> None:
        """A heartbeat."""
        keys = self.day.store.keys
        key = keys.worker(self.worker_id)
        await self.day.store.send(
            ("HSET", key, *_flat(row)),
            ("HDEL", key, "stale"),
            ("EXPIRE", key, ROW_TTL_S),
            ("SADD", keys.workers, self.worker_id),
        )

    def _row(self, status: str) -> dict[str, str]:
        return {
            "worker_id": self.worker_id,
            "hostname": f"{self.shift.name}.shop.example",
            "started_at": str(self.started_ms),
            "last_heartbeat": str(self.day.now_ms),
            "active_tasks": str(self.active),
            "concurrency": str(self.shift.concurrency),
            "tasks_processed": str(self.counts["processed"]),
            "tasks_failed": str(self.counts["failed"]),
            "tasks_retried": str(self.counts["retried"]),
            "status": status,
            "queues": ",".join(self.shift.queues),
            "interval_ms": str(INTERVAL_MS),
            "pid": "1",
        }


def _record(d: Delivery, worker_id: str, took_ms: int, outcome: Outcome, delay_ms: int) -> str:
    """The attempt as the executor writes it for one that is retried; the script closes it."""
    match outcome:
        case Failed(error_class, message, _):
            pass
        case TimedOut(timeout_ms):
            error_class, message = "TimeoutError", f"still running after {timeout_ms} ms"
        case _:
            return ""
    record: dict[str, Any] = {
        "attempt": d.attempt, "started_at": d.started_at_ms, "worker_id": worker_id, "duration_ms": took_ms,
        "error_class": error_class, "error_message": message, "retryable": True, "retry_delay_ms": delay_ms,
    }  # fmt: skip
    return json.dumps(record, separators=(",", ":"))[:-1]


def _flat(row: dict[str, str]) -> list[str]:
    return [part for pair in row.items() for part in pair]
