"""One engine with a stopped clock and the scripts on it: for store tests, which need no process.

Every verb runs one script through dtq_core.store.transitions, as the product does; `changes` tells what one did to the
whole keyspace.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from support.engines import Server
from support.keyspace import difference, dump

from dtq_core.config import load_settings
from dtq_core.keys import Keys
from dtq_core.retry import Settlement
from dtq_core.store.connection import SyncStore
from dtq_core.store.transitions import (
    FIRST_CURSORS,
    Call,
    Delivery,
    Due,
    FetchReply,
    Letter,
    Released,
    Settling,
    SubmitAnswer,
)
from dtq_core.submission import Submission
from dtq_core.task import TaskStatus

T = TypeVar("T")
START_MS = 1_900_000_000_000
TYPES = ("echo",)
W1, W2 = "worker-00000001", "worker-00000002"
_RECORD = '{"attempt":%d,"worker_id":"%s"'


def new_id() -> str:
    return uuid.uuid4().hex


class Bench:
    """Scripts at `now_ms`. Task type "echo" is known to every fetch unless it names others."""

    def __init__(self, server: Server, **settings: Any) -> None:
        self.server = server
        self.redis = server.redis
        self.now_ms = START_MS
        self.settings = load_settings(redis_url=server.url(), **settings)
        self.keys = Keys(self.settings.key_prefix)
        self.store = SyncStore.connect(self.settings, now_ms=lambda: self.now_ms)
        self.calls = self.store.calls

    def run(self, call: Call[T]) -> T:
        return self.store.run(call)

    def twice(self, call: Call[T]) -> tuple[T, T]:
        """The same request again, as after a lost reply: the second must change nothing. Both answers."""
        first = self.run(call)
        world = dump(self.redis)
        second = self.run(call)
        changed = difference(world, dump(self.redis))
        assert not changed, f"{call.script} sent twice had two effects: {changed}"
        return first, second

    # -- verbs

    def submission(self, task_type: str = "echo", payload: dict[str, Any] | None = None, **fields: Any) -> Submission:
        task_id = fields.pop("task_id", None) or new_id()
        raw = {"task_type": task_type, "payload": payload or {}, **fields}
        return Submission.make(raw, task_id, self.settings)

    def submit_call(self, *submissions: Submission) -> Call[list[SubmitAnswer]]:
        return self.calls.submit(submissions, ask=lambda task_type: 0)

    def submit(self, task_type: str = "echo", payload: dict[str, Any] | None = None, **fields: Any) -> str:
        """Submit one task, which must be taken; its id."""
        submission = self.submission(task_type, payload, **fields)
        (answer,) = self.run(self.submit_call(submission))
        assert answer.code == "OK", answer
        return submission.task_id

    def fetch_call(
        self, worker: str = W1, capacity: int = 10, queues: Sequence[str] = ("default",), types: Sequence[str] = TYPES
    ) -> Call[FetchReply]:
        return self.calls.fetch(worker, "a", new_id(), capacity, queues, types)

    def fetch(self, worker: str = W1, capacity: int = 10, **options: Any) -> list[Delivery]:
        reply = self.run(self.fetch_call(worker, capacity, **options))
        assert not reply.problems, reply.problems
        return reply.deliveries

    def reclaim_call(self, worker: str = W2, capacity: int = 10, types: Sequence[str] = TYPES) -> Call[FetchReply]:
        return self.calls.reclaim(worker, "default", capacity, FIRST_CURSORS, types)

    def orphan(self, delivery: Delivery) -> None:
        """Make an entry as old as if its worker had been silent for a whole visibility timeout."""
        idle = round(self.settings.visibility_timeout_s * 1000) + 1
        stream = self.keys.stream(delivery.queue, delivery.band)
        owner = self.redis.hget(self.keys.task(delivery.task_id), "worker_id")
        self.redis.xclaim(stream, "workers", str(owner), 0, [delivery.entry_id], idle=idle, justid=True)

    def settling(self, delivery: Delivery, status: str = "succeeded", **fields: Any) -> Settling:
        error = {} if status == "succeeded" else {"error_class": "Boom", "error_message": "it broke", "retryable": True}
        if status == "retrying":
            error["retry_delay_ms"] = 1000
        if status == "succeeded":
            error["result"] = '{"ok":1}'
        settlement = Settlement(TaskStatus(status), **{**error, **fields})
        record = _RECORD % (delivery.attempt, W1)
        return Settling(delivery, settlement, 12, record)

    def settle(self, delivery: Delivery, status: str = "succeeded", worker: str = W1, **fields: Any) -> str:
        (answer,) = self.run(self.calls.settle(worker, [self.settling(delivery, status, **fields)]))
        return answer

    def lead(self, token: str = "leader") -> str:
        assert self.run(self.calls.lock(token, 10_000))
        return token

    def claim(self, token: str = "leader") -> Due:
        return self.run(self.calls.claim_due(token))

    def release(self, task_ids: Sequence[str]) -> Released:
        return self.run(self.calls.release(task_ids))

    def letter(self, task_id: str) -> Letter:
        """What revive and discard need of a task's dead letter."""
        record = self.record(task_id)
        entry_id = next((e for e, f in self.redis.xrange(self.keys.dead_letters) if f.get("task_id") == task_id), "")
        return Letter(
            task_id, record.get("fence", ""), entry_id, b"{}", record["queue"], record["task_type"],
            record.get("payload", "{}"), record.get("max_attempts", ""), record.get("priority", ""),
            record.get("timeout_ms", ""), record.get("idempotency_key", ""),
        )  # fmt: skip

    def register(self, worker: str = W1, queues: Sequence[str] = ("default",), **fields: str) -> bool:
        row = {"worker_id": worker, "status": "ready", "queues": ",".join(queues), "interval_ms": "5000"}
        row |= {"last_heartbeat": str(self.now_ms), **fields}
        return self.run(self.calls.register(50, queues, row))

    def announce(self, *task_types: str, queue: str = "default") -> None:
        """As the heartbeat of a worker that knows these types."""
        self.redis.zadd(self.keys.task_types(queue), dict.fromkeys(task_types, self.now_ms))
        self.redis.expire(self.keys.task_types(queue), 604_800)

    # -- states to start from

    def queued(self, **fields: Any) -> str:
        return self.submit(**fields)

    def running(self, worker: str = W1, **fields: Any) -> Delivery:
        """A task that runs; nothing else waits."""
        task_id = self.submit(**fields)
        (delivery,) = self.fetch(worker)
        assert delivery.task_id == task_id
        return delivery

    def dead(self, **fields: Any) -> str:
        delivery = self.running(**fields)
        assert self.settle(delivery, "dead_lettered") == "dead_lettered"
        return delivery.task_id

    def retrying(self, **fields: Any) -> str:
        delivery = self.running(**fields)
        assert self.settle(delivery, "retrying") == "retrying"
        return delivery.task_id

    def claimed(self, *task_ids: str) -> None:
        """Scheduled tasks, due and claimed by the leader."""
        self.now_ms += 40 * 86_400_000
        self.lead()
        assert set(task_ids) <= set(self.claim().task_ids)

    # -- views

    def record(self, task_id: str) -> dict[str, str]:
        return dict(self.redis.hgetall(self.keys.task(task_id)))

    def status(self, task_id: str) -> str:
        return self.record(task_id).get("status", "")

    def counters(self, queue: str = "default") -> dict[str, int]:
        """The ledger without zeros."""
        found = self.redis.hgetall(self.keys.ledger(queue))
        return {name: int(n) for name, n in found.items() if n.lstrip("-").isdigit() and int(n) != 0}

    def key_state(self, queue: str, key: str) -> str:
        """State of an idempotency record; "" without one."""
        return str(json.loads(self.redis.get(self.keys.idempotency(queue, key)) or '{"state": ""}')["state"])

    def changes(self, call: Call[T]) -> tuple[T, dict[str, Any]]:
        """The answer of a call, and what it changed: key → new value, of hashes only the changed fields; None: gone."""
        before = dump(self.redis)
        answer = self.run(call)
        return answer, difference(before, dump(self.redis))
