"""All reads of the API, the CLI and the operator. Nothing here scans the keyspace; every list is paged and bounded."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dtq_core import ledger, letters
from dtq_core.config import Settings
from dtq_core.errors import (
    DeadLetterGone,
    DeadLetterNotFound,
    InvalidArgument,
    TaskNotFound,
    WorkerNotFound,
)
from dtq_core.events import Event
from dtq_core.store import Store
from dtq_core.store.codec import (
    DeadLetter,
    WorkerInfo,
    letter_document,
    letter_from_entry,
    task_document,
    task_from_hash,
    worker_document,
    worker_from_row,
)
from dtq_core.store.replies import pairs, sound
from dtq_core.task import QUEUE_NAME, TASK_ID, Task, TaskStatus

__all__ = [
    "DeadLetter", "Inspector", "Page", "QueueStats", "WorkerInfo", "letter_document", "task_document", "worker_document",
]  # fmt: skip

T = TypeVar("T")
MAX_LIMIT = 1000
_CHUNK = 200
_LOOK_AT_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page, newest first. `cursor` continues behind it; None means there is no more."""

    items: list[T]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Numbers of one queue, all exact at the moment of the read: `depth` = waiting + `pending` (running)."""

    queue: str
    depth: int
    waiting: int
    pending: int
    paused: bool
    retry_scheduled: int
    dlq_depth: int
    workers_active: int


class Inspector:
    """Reads through one store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings

    async def task(self, task_id: str) -> Task:
        """One task. Raises TaskNotFound."""
        if TASK_ID.fullmatch(task_id):
            (row,) = await self.store.send(("HGETALL", self.store.keys.task(task_id)))
            task = task_from_hash(task_id, pairs(row))
            if task is not None:
                return task
        raise TaskNotFound(f"there is no task {task_id[:40]}", task_id=task_id[:40])

    async def result(self, task_id: str) -> Any:
        """The stored result as a JSON value; None where there is none, or it is past its retention."""
        (raw,) = await self.store.send(("GET", self.store.keys.result(task_id)))
        if not isinstance(raw, str):
            return None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None

    async def tasks(
        self,
        *,
        queue: str | None = None,
        status: str | None = None,
        task_type: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Task]:
        """Recent tasks, newest first, filtered. Ids whose record is gone are passed over and pruned. Raises InvalidArgument."""
        _check_limit(limit)
        wanted = None if status is None else _status(status)
        if queue is not None and not QUEUE_NAME.fullmatch(queue):
            raise InvalidArgument("queue: not a queue name")
        keys = self.store.keys
        found: list[Task] = []
        last = _read_cursor(cursor)
        top = "+inf" if last is None else _number(last[0])
        offset = looked_at = 0
        while looked_at < _LOOK_AT_MOST:
            (rows,) = await self.store.send(
                ("ZREVRANGEBYSCORE", keys.recent, top, "-inf", "WITHSCORES", "LIMIT", offset, _CHUNK)
            )
            recent = _scored(sound(rows))
            fresh = [(score, i) for score, i in recent if last is None or (score, i) < last]
            records = await self.store.send(*(("HGETALL", keys.task(i)) for _, i in fresh))
            ghosts = [i for (_, i), row in zip(fresh, records, strict=True) if not row]
            for at, row in zip(fresh, records, strict=True):
                last = at
                task = task_from_hash(at[1], pairs(row))
                if (
                    task is not None
                    and (queue is None or task.queue == queue)
                    and (wanted is None or task.status is wanted)
                    and (task_type is None or task.task_type == task_type)
                ):
                    found.append(task)
                    if len(found) == limit:
                        return Page(found, _write_cursor(last))
            if ghosts:
                await self.store.send(("ZREM", keys.recent, *ghosts))
            if len(recent) < _CHUNK or last is None:
                return Page(found)
            offset += len(recent) - len(ghosts)
            looked_at += len(recent)
        return Page(found, None if last is None else _write_cursor(last))

    async def queue(self, name: str) -> QueueStats:
        """Numbers of one queue; zeros for a queue nobody knows. Raises InvalidArgument for a name no queue can have."""
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidArgument(
                "queue: lower-case letters, digits, '_' and '-', 1 to 64, starting with a letter or digit"
            )
        return (await self._queues([name]))[0]

    async def queues(self) -> list[QueueStats]:
        """Numbers of every known queue, by name."""
        return await self._queues(await self.queue_names())

    async def queue_names(self) -> list[str]:
        (names,) = await self.store.send(("SMEMBERS", self.store.keys.queues))
        return sorted(sound(names))

    async def _queues(self, names: Sequence[str]) -> list[QueueStats]:
        keys = self.store.keys
        workers = [w for w in await self.workers() if w.status not in ("stale", "stopped")]
        commands: list[tuple[Any, ...]] = []
        for name in names:
            commands += (("HGETALL", keys.ledger(name)), ("EXISTS", keys.paused(name)), ("ZCARD", keys.dead(name)))
        rows = await self.store.send(*commands)
        stats = []
        for index, name in enumerate(names):
            counts, paused, dead = (sound(x) for x in rows[3 * index : 3 * index + 3])
            book = ledger.from_hash(pairs(counts))
            stats.append(
                QueueStats(
                    queue=name,
                    depth=book.depth,
                    waiting=book["queued"],
                    pending=book["running"],
                    paused=bool(paused),
                    retry_scheduled=book.scheduled,
                    dlq_depth=int(dead),
                    workers_active=sum(name in w.queues for w in workers),
                )
            )
        return stats

    async def workers(self) -> list[WorkerInfo]:
        """Every worker with a row, by start; liveness from the age of its heartbeat on the server's clock."""
        now, ids = await self.store.send(("TIME",), ("SMEMBERS", self.store.keys.workers))
        now_ms = int(sound(now)[0]) * 1000 + int(now[1]) // 1000
        rows = await self.store.send(*(("HGETALL", self.store.keys.worker(i)) for i in sound(ids)))
        found = [w for row in rows if not isinstance(row, Exception) and (w := worker_from_row(pairs(row), now_ms))]
        return sorted(found, key=lambda w: (w.started_at, w.worker_id))

    async def worker(self, worker_id: str) -> WorkerInfo:
        """One worker. Raises WorkerNotFound."""
        now, row = await self.store.send(("TIME",), ("HGETALL", self.store.keys.worker(worker_id[:200])))
        now_ms = int(sound(now)[0]) * 1000 + int(now[1]) // 1000
        found = None if isinstance(row, Exception) else worker_from_row(pairs(row), now_ms)
        if found is None:
            raise WorkerNotFound(f"there is no worker {worker_id[:80]}")
        return found

    async def dead_letters(
        self, *, queue: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """Dead letters, newest first. Raises InvalidArgument."""
        _check_limit(limit)
        if queue is not None and not QUEUE_NAME.fullmatch(queue):
            raise InvalidArgument("queue: not a queue name")
        found: list[DeadLetter] = []
        end = "+" if cursor is None else "(" + _entry_cursor(cursor)
        while True:
            (entries,) = await self.store.send(
                ("XREVRANGE", self.store.keys.dead_letters, end, "-", "COUNT", max(limit, _CHUNK))
            )
            rows = [letter_from_entry(i, pairs(fields)) for i, fields in sound(entries)]
            for index, letter in enumerate(rows):
                if queue is None or letter.queue == queue:
                    found.append(letter)
                    if len(found) == limit:
                        last = index == len(rows) - 1 and len(rows) < max(limit, _CHUNK)
                        return Page(found, None if last else letter.entry_id)
            if len(rows) < max(limit, _CHUNK):
                return Page(found)
            end = "(" + rows[-1].entry_id

    async def dead_letter(self, task_id: str) -> DeadLetter:
        """One dead letter. Raises TaskNotFound, DeadLetterNotFound, DeadLetterGone."""
        if not TASK_ID.fullmatch(task_id):
            raise TaskNotFound(f"there is no task {task_id[:40]}")
        found = await letters.locate(self.store, task_id)
        if found.letter is not None:
            return found.letter
        if not found.record:
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        if found.record.get("status") != "dead_lettered":
            raise DeadLetterNotFound(
                f"task {task_id} is {found.record.get('status')}, not a dead letter", task_id=task_id
            )
        why = "discarded" if found.discarded else "trimmed: dead letters are bounded; requeue still works"
        raise DeadLetterGone(f"the letter of task {task_id} was {why}", task_id=task_id)

    async def dlq_depth(self) -> int:
        """How many dead letters there are in all."""
        (length,) = await self.store.send(("XLEN", self.store.keys.dead_letters))
        return int(sound(length))

    async def ledger(self, queue: str) -> dict[str, int]:
        """Every counter of a queue by name; see dtq_core.ledger."""
        book = await ledger.read(self.store, queue)
        return {f: book[f] for f in (*ledger.LIVE_FIELDS, *ledger.END_FIELDS, *ledger.EVENT_FIELDS)}

    async def audit_log(self, *, limit: int = 50) -> list[dict[str, str]]:
        """Admin actions, newest first."""
        _check_limit(limit)
        (entries,) = await self.store.send(("XREVRANGE", self.store.keys.audit, "+", "-", "COUNT", limit))
        return [pairs(fields) for _, fields in sound(entries)]

    async def events(self, ready: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
        """The live feed from now on; messages that are no events are passed over. Raises RedisUnavailable when it breaks.

        `ready` is called once nothing that happens from then on is missed.
        """
        async for message in self.store.subscribe(self.store.keys.events, ready):
            try:
                yield Event.parse(message)
            except ValueError:
                continue


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit: 1 to {MAX_LIMIT}")


def _status(text: str) -> TaskStatus:
    try:
        return TaskStatus(text)
    except ValueError:
        raise InvalidArgument(f"status: one of {', '.join(TaskStatus)}") from None


def _write_cursor(last: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(f"{_number(last[0])}/{last[1]}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> tuple[float, str] | None:
    """(creation time, task id) of the last task that was shown."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        score, _, task_id = text.partition("/")
        if TASK_ID.fullmatch(task_id):
            return float(score), task_id
    except (ValueError, UnicodeError):
        pass
    raise InvalidArgument("cursor: not one of ours")


def _entry_cursor(cursor: str) -> str:
    ms, _, sequence = cursor.partition("-")
    sound = cursor.isascii() and ms.isdecimal() and sequence.isdecimal() and len(cursor) < 45
    if not sound or not 0 < int(ms) < 2**64 or int(sequence) >= 2**64:
        raise InvalidArgument("cursor: not one of ours")
    return cursor


def _scored(rows: Any) -> list[tuple[float, str]]:
    """(score, member) pairs, whether the client library paired them or not."""
    if rows and isinstance(rows[0], (list, tuple)):
        return [(float(score), member) for member, score in rows]
    return [(float(score), member) for member, score in zip(rows[::2], rows[1::2], strict=True)]


def _number(score: float) -> str:
    return str(int(score)) if score.is_integer() and abs(score) < 1e15 else repr(score)
