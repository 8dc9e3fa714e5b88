"""Dead letters: finding one by its task, and what requeue and discard need to know about it. Read-only; used by Client and Inspector.

A letter is found through its queue's index (id → time part of its entry), so nothing walks the stream. Bounded as the
stream is, a letter may be gone while its task is still there: then the task's own record is enough to requeue it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtq_core.errors import DeadLetterGone, DeadLetterNotFound, TaskNotFound
from dtq_core.store import Store
from dtq_core.store.codec import DeadLetter, attempt_document, letter_from_entry, task_from_hash
from dtq_core.store.replies import pairs, sound
from dtq_core.store.transitions import Letter
from dtq_core.task import Task

MAX_LIVES = 5
_WALK = 500


@dataclass(frozen=True, slots=True)
class Located:
    """What exists of a task that may be a dead letter."""

    record: Mapping[str, str]
    letter: DeadLetter | None

    @property
    def discarded(self) -> bool:
        return self.record.get("discarded") == "1"


async def locate(store: Store, task_id: str) -> Located:
    """The record and the letter of a task; either may be missing. Raises StoreError for keys of the wrong type."""
    record, queues = await store.send(("HGETALL", store.keys.task(task_id)), ("SMEMBERS", store.keys.queues))
    record = pairs(sound(record))
    names = [record["queue"]] if record.get("queue") else sorted(sound(queues))
    scores = await store.send(*(("ZSCORE", store.keys.dead(name), task_id) for name in names))
    for score in scores:
        if isinstance(score, (str, float)):
            moment = str(int(float(score)))
            letter = _match(await _range(store, moment, moment, 100), task_id)
            if letter is not None:
                return Located(record, letter)
    if record.get("status") == "dead_lettered" and record.get("discarded") != "1":
        return Located(record, await _walk(store, task_id))
    return Located(record, None)


async def letter_for(store: Store, task_id: str, *, requeue: bool) -> Letter:
    """What revive.lua (`requeue`) or discard.lua needs.

    Raises TaskNotFound, DeadLetterNotFound (the task is no dead letter) or DeadLetterGone (discarded, or trimmed with
    nothing left to requeue from).
    """
    found = await locate(store, task_id)
    record, letter = found.record, found.letter
    if not record and letter is None:
        raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
    if found.discarded:
        raise DeadLetterGone(f"the letter of task {task_id} was discarded", task_id=task_id)
    if record and record.get("status") != "dead_lettered":
        raise DeadLetterNotFound(f"task {task_id} is {record.get('status')}, not a dead letter", task_id=task_id)
    if requeue and not (letter.queue if letter else record.get("queue")):
        raise DeadLetterGone(f"the record of task {task_id} was lost, so nothing is left to run", task_id=task_id)
    return _letter(task_id, record, letter, requeue=requeue)


async def page(store: Store, after: str, count: int) -> list[DeadLetter]:
    """Letters in stream order from `after` ("-" at first, then "(" and the last entry id)."""
    return await _range(store, after, "+", count)


async def for_discard(store: Store, found: Sequence[DeadLetter]) -> list[Letter]:
    """The letters of a page as discard.lua needs them."""
    fields = ("HMGET", "status", "metadata")
    rows = await store.send(*((fields[0], store.keys.task(x.task_id), *fields[1:]) for x in found))
    records = [
        {"status": row[0] or "", "metadata": row[1] or "{}"} if isinstance(row, list) and row[0] else {} for row in rows
    ]
    return [_letter(x.task_id, record, x, requeue=False) for x, record in zip(found, records, strict=True)]


def _letter(task_id: str, record: Mapping[str, str], letter: DeadLetter | None, *, requeue: bool) -> Letter:
    task = task_from_hash(task_id, record) if record else None
    source = record if record.get("payload") else (letter.raw if letter else record)
    metadata = _metadata(record.get("metadata"))
    if requeue:
        metadata = _with_previous(metadata, task, letter)
    else:
        metadata["discarded"] = True
    return Letter(
        task_id=task_id,
        fence=record.get("fence", "") if record else "",
        letter_id=letter.entry_id if letter else "",
        metadata=json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"),
        queue=(letter.queue if letter else "") or record.get("queue", ""),
        task_type=source.get("task_type", ""),
        payload=source.get("payload", "{}"),
        max_attempts=source.get("max_attempts", "5"),
        priority=source.get("priority", "5"),
        timeout_ms=source.get("timeout_ms", "30000"),
        idempotency_key=source.get("idempotency_key", ""),
    )


def _with_previous(metadata: dict[str, Any], task: Task | None, letter: DeadLetter | None) -> dict[str, Any]:
    """`metadata` with the life that just ended added to previous_attempts: at most ten attempts of each of the last five lives."""
    kept = metadata.get("previous_attempts")
    lives = [x for x in kept if isinstance(x, dict)] if isinstance(kept, list) else []
    life = max((x["life"] for x in lives if isinstance(x.get("life"), int)), default=0) + 1
    if task is not None and task.history:
        ended = [attempt_document(a) for a in task.history]
    elif letter is not None:
        ended = [
            {
                "attempt": letter.attempts_made,
                "worker_id": letter.worker_id,
                "error_class": letter.last_error_class,
                "error_message": letter.last_error,
                "retryable": letter.retryable,
            }
        ]
    else:
        ended = []
    lives = [x for x in lives if x.get("life", 0) > life - MAX_LIVES]
    return {**metadata, "previous_attempts": [*lives, *({"life": life, **x} for x in ended)]}


async def _range(store: Store, start: str, end: str, count: int) -> list[DeadLetter]:
    (entries,) = await store.send(("XRANGE", store.keys.dead_letters, start, end, "COUNT", count))
    return [letter_from_entry(entry_id, fields) for entry_id, fields in _entries(sound(entries))]


async def _walk(store: Store, task_id: str) -> DeadLetter | None:
    """The slow way, for a letter that its index does not have (it was written by hand): bounded as the stream is."""
    after = "-"
    while found := await _range(store, after, "+", _WALK):
        letter = _match(found, task_id)
        if letter is not None:
            return letter
        after = "(" + found[-1].entry_id
    return None


def _match(found: Sequence[DeadLetter], task_id: str) -> DeadLetter | None:
    return next((x for x in found if x.task_id == task_id), None)


def _entries(reply: Any) -> list[tuple[str, dict[str, str]]]:
    """Stream entries whether the client library parsed them (pairs of id and dict) or not (flat lists)."""
    return [(entry_id, fields if isinstance(fields, dict) else pairs(fields)) for entry_id, fields in reply]


def _metadata(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
