"""`dtq audit verify`: proof that nothing was lost and nothing ran that should not have (decision 20).

Three walks and one sum, each in bounded steps, under full load too:

* every record against the places its status allows (audit_check.lua sees record and places at one moment);
* every stream entry, and every schedule member, against the record it belongs to;
* every dead letter against its task;
* every ledger against itself (taken in = live + ended) and against the lengths it stands for.

A suspect is looked at again before it is named: what is on its way while one walk passes is in its place at the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtq_core import ledger
from dtq_core.config import Settings
from dtq_core.errors import InvalidArgument
from dtq_core.store import Call, Store
from dtq_core.store.replies import pairs, sound
from dtq_core.task import BANDS, QUEUE_NAME, TASK_ID

Progress = Callable[[int], None]
_STEP = 250
_QUEUES_PER_STEP = 20
_LOOKS = 5
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be. `kind` is stable; `message` is for people."""

    kind: str
    message: str
    queue: str | None = None
    task_id: str | None = None


@dataclass(slots=True)
class AuditReport:
    """What was looked at and what was found. `notes` are limits of the proof, not faults."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tasks: int = 0
    entries: int = 0
    scheduled: int = 0
    letters: int = 0
    queues: int = 0
    receipts: int = 0
    ledgers: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.findings


async def verify(
    store: Store,
    settings: Settings,
    *,
    queue: str | None = None,
    receipts: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Check the whole installation, or one queue. `receipts` are task ids that producers kept: each must be accounted for.

    Raises InvalidArgument, RedisUnavailable, StoreError.
    """
    if queue is not None and not QUEUE_NAME.fullmatch(queue):
        raise InvalidArgument("queue: not a queue name")
    audit = _Audit(store, queue, progress)
    await audit.run()
    if receipts is not None:
        await audit.check_receipts(receipts)
    await audit.note_server()
    return audit.report


class _Audit:
    def __init__(self, store: Store, queue: str | None, progress: Progress | None) -> None:
        self.store = store
        self.keys = store.keys
        self.queue = queue
        self.report = AuditReport()
        self._progress = progress
        self._suspects: dict[str, str] = {}
        self._strays: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        names = [self.queue] if self.queue else sorted(sound(await self._one("SMEMBERS", self.keys.queues)))
        self.report.queues = len(names)
        for name in names:
            for band in BANDS:
                await self._walk_stream(name, band)
        await self._walk_schedule(self.keys.schedule)
        await self._walk_schedule(self.keys.claimed)
        await self._walk_letters()
        await self._walk_records()
        await self._look_again()
        await self._compare_counts()

    # -- the walks

    async def _walk_records(self) -> None:
        cursor = "0"
        prefix = self.keys.task("")
        pattern = "".join(f"[{c}]" if c in "*?[]\\" else c for c in prefix) + "*"
        while True:
            cursor, found = sound(await self._one("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
            ids = [key[len(prefix) :] for key in found]
            for start in range(0, len(ids), _STEP):
                part = await self._of_queue(ids[start : start + _STEP])
                self.report.tasks += len(part)
                await self._check(part)
            self._tell()
            if str(cursor) == "0":
                return

    async def _walk_stream(self, queue: str, band: int) -> None:
        stream, after = self.keys.stream(queue, band), "-"
        while True:
            entries = await self._one("XRANGE", stream, after, "+", "COUNT", _STEP)
            if isinstance(entries, Exception):
                self._find("wrong-type", f"{stream} is not a stream", queue)
                return
            rows = [(entry_id, pairs(fields).get("task_id", "")) for entry_id, fields in entries]
            self.report.entries += len(rows)
            records = await self.store.send(*(("HMGET", self.keys.task(t), "status", "entry_id") for _, t in rows))
            for (entry_id, task_id), record in zip(rows, records, strict=True):
                if isinstance(record, Exception) or record[1] != entry_id:
                    self._strays[stream, entry_id] = task_id
            self._tell()
            if len(rows) < _STEP:
                return
            after = "(" + rows[-1][0]

    async def _walk_schedule(self, name: str) -> None:
        rank = 0
        while True:
            ids = await self._one("ZREVRANGE", name, rank, rank + _STEP - 1)
            if isinstance(ids, Exception):
                self._find("wrong-type", f"{name} is not a sorted set")
                return
            mine = await self._of_queue(ids, keep_unknown=True)
            self.report.scheduled += len(mine)
            statuses = await self.store.send(*(("HGET", self.keys.task(i), "status") for i in mine))
            for task_id, status in zip(mine, statuses, strict=True):
                if status not in ("pending", "retrying"):
                    self._strays[name, task_id] = task_id
            rank += len(ids)
            if len(ids) < _STEP:
                return

    async def _walk_letters(self) -> None:
        after = "-"
        while True:
            entries = await self._one("XRANGE", self.keys.dead_letters, after, "+", "COUNT", _STEP)
            if isinstance(entries, Exception):
                self._find("wrong-type", f"{self.keys.dead_letters} is not a stream")
                return
            rows = [(entry_id, pairs(fields)) for entry_id, fields in entries]
            mine = [(i, f) for i, f in rows if self.queue in (None, f.get("original_queue"))]
            self.report.letters += len(mine)
            statuses = await self.store.send(
                *(("HGET", self.keys.task(f.get("task_id", "")), "status") for _, f in mine)
            )
            for (entry_id, f), status in zip(mine, statuses, strict=True):
                if isinstance(status, str) and status != "dead_lettered":
                    self._strays[self.keys.dead_letters, entry_id] = f.get("task_id", "")
            if len(rows) < _STEP:
                return
            after = "(" + rows[-1][0]

    # -- second looks

    async def _check(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 100):
            part = ids[start : start + 100]
            check: Call[list[str]] = self.store.calls.call("audit_check", [self.keys.task(part[0])], list(part), list)
            answers = await self.store.run(check)
            for task_id, wrong in zip(part, answers, strict=True):
                if wrong:
                    self._suspects[task_id] = wrong
                else:
                    self._suspects.pop(task_id, None)

    async def _look_again(self) -> None:
        """Suspects that are clear at a later look were only on their way."""
        for _ in range(_LOOKS - 1):
            if not (self._suspects or self._strays):
                return
            await asyncio.sleep(_LOOK_AGAIN_S)
            await self._check(list(self._suspects))
            await self._recheck_strays()
        for task_id, wrong in self._suspects.items():
            kind, _, text = wrong.partition(": ")
            queue = await self._one("HGET", self.keys.task(task_id), "queue")
            self._find(kind, f"task {task_id} is {text}" if not text.startswith("its") else f"task {task_id}: {text}",
                       queue if isinstance(queue, str) else None, task_id)  # fmt: skip
        for (place, member), task_id in self._strays.items():
            self._name_stray(place, member, task_id)

    async def _recheck_strays(self) -> None:
        for (place, member), task_id in list(self._strays.items()):
            key = self.keys.task(task_id)
            if place in (self.keys.schedule, self.keys.claimed):
                there, status = await self.store.send(("ZSCORE", place, member), ("HGET", key, "status"))
                clear = there is None or status in ("pending", "retrying")
            else:
                there, status, entry = await self.store.send(
                    ("XRANGE", place, member, member), ("HGET", key, "status"), ("HGET", key, "entry_id")
                )
                if place == self.keys.dead_letters:
                    clear = not there or not isinstance(status, str) or status == "dead_lettered"
                else:
                    clear = not there or entry == member
            if clear:
                del self._strays[place, member]

    def _name_stray(self, place: str, member: str, task_id: str) -> None:
        if place in (self.keys.schedule, self.keys.claimed):
            self._find(
                "stray-member", f"task {task_id} stands in {place}, but its record does not agree", None, task_id
            )
        elif place == self.keys.dead_letters:
            self._find("stray-letter", f"letter {member} is of task {task_id}, which is no dead letter", None, task_id)
        else:
            self._find(
                "stray-entry", f"entry {member} on {place} is of task {task_id or '(none)'}, whose record does not know it",
                place.removeprefix(self.keys.prefix + ":stream:").rpartition(":")[0], task_id or None,
            )  # fmt: skip

    # -- the sums

    async def _compare_counts(self) -> None:
        wrong: dict[tuple[str, str | None], Finding] = {}
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_LOOK_AGAIN_S)
            found = {(f.kind, f.queue): f for f in await self._counts()}
            wrong = found if not look else {k: f for k, f in found.items() if k in wrong}
            if not wrong:
                return
        self.report.findings += wrong.values()

    async def _counts(self) -> list[Finding]:
        names = [self.queue] if self.queue else sorted(sound(await self._one("SMEMBERS", self.keys.queues)))
        by_ledgers, by_sets, rows = await self._counted("1")
        for start in range(0, len(names), _QUEUES_PER_STEP):
            rows += (await self._counted("0", *names[start : start + _QUEUES_PER_STEP]))[2]
        found = []
        for name, counted, entries, pending, *flat in rows:
            if counted < 0:
                found.append(Finding("wrong-type", f"ledger of queue {name} is not a hash", name))
                continue
            raw = dict(zip(flat[::2], flat[1::2], strict=True))
            book = ledger.from_hash(raw)
            self.report.ledgers[name] = {
                f: book[f] for f in (*ledger.LIVE_FIELDS, *ledger.END_FIELDS, *ledger.EVENT_FIELDS)
            }
            if book.balance:
                found.append(Finding("ledger", f"ledger of queue {name}: taken in {book['submitted'] + book['requeued']}, "
                                     f"live {book.live}, ended {book.finished}: {book.balance:+d}", name))  # fmt: skip
            negative = [f for f in (*ledger.LIVE_FIELDS, *ledger.END_FIELDS) if book[f] < 0]
            if negative:
                found.append(Finding("ledger", f"ledger of queue {name} below zero: {', '.join(negative)}", name))
            if counted != entries:
                found.append(Finding("depth", f"depth of queue {name}: the ledger says {counted} entries, the streams hold {entries}",
                                     name))  # fmt: skip
            elif book["running"] > pending:
                found.append(Finding("depth", f"running of queue {name}: the ledger says {book['running']}, {pending} entries are held",
                                     name))  # fmt: skip
        if self.queue is None and by_ledgers != by_sets:
            found.append(
                Finding(
                    "schedule",
                    f"the ledgers say {by_ledgers} tasks, the schedule and the claims hold {by_sets}",
                )
            )
        return found

    async def _counted(self, *args: str) -> list[Any]:
        return await self.store.run(self.store.calls.call("audit_counts", [self.keys.queues], args, list))

    # -- receipts and the server

    async def check_receipts(self, receipts: Iterable[str]) -> None:
        """Every id must have a record or a letter; a record past its retention is not told from a lost one, and says so."""
        ids = list(dict.fromkeys(line.strip() for line in receipts if line.strip()))
        self.report.receipts = len(ids)
        letters: set[str] | None = None
        for start in range(0, len(ids), _STEP):
            part = ids[start : start + _STEP]
            rows = await self.store.send(*(("EXISTS", self.keys.task(i)) for i in part))
            for task_id, there in zip(part, rows, strict=True):
                if there == 1:
                    continue
                if not TASK_ID.fullmatch(task_id):
                    self._find("bad-receipt", f"receipt {task_id[:40]!r} is not a task id")
                    continue
                letters = await self._letter_ids() if letters is None else letters
                if task_id not in letters:
                    self._find("receipt", f"task {task_id} has a receipt, but neither a record nor a letter: lost, or past "
                               "its retention", None, task_id)  # fmt: skip

    async def note_server(self) -> None:
        """What the keyspace cannot know: whether the server itself forgot its tail."""
        info = await self._one("INFO")
        facts = info if isinstance(info, dict) else dict(
            line.split(":", 1) for line in str(info).splitlines() if ":" in line
        )  # fmt: skip
        replid = str(facts.get("master_replid", ""))
        before = pairs(await self._one("HGETALL", self.keys.audit_server))
        if before.get("replid") and replid and before["replid"] != replid:
            self.report.notes.append(
                "the server restarted or failed over since the last audit: submissions of its last moments may be gone, "
                "ledger and tasks alike; --receipts finds them"
            )
        if str(facts.get("aof_enabled")) == "0":
            self.report.notes.append(
                "the server keeps no append-only file: a restart loses what was written since its last snapshot"
            )
        elif facts.get("aof_last_write_status") not in (None, "ok"):
            self.report.notes.append("the server's last write to its append-only file failed")
        if facts.get("maxmemory_policy") not in (None, "noeviction"):
            self.report.notes.append(
                f"maxmemory-policy is {facts['maxmemory_policy']}: the server may evict tasks; set noeviction"
            )
        if replid:
            await self.store.send(("HSET", self.keys.audit_server, "replid", replid))

    async def _letter_ids(self) -> set[str]:
        ids, after = set(), "-"
        while True:
            entries = sound(await self._one("XRANGE", self.keys.dead_letters, after, "+", "COUNT", _STEP))
            ids |= {pairs(fields).get("task_id", "") for _, fields in entries}
            if len(entries) < _STEP:
                return ids
            after = "(" + entries[-1][0]

    async def _of_queue(self, ids: Sequence[str], *, keep_unknown: bool = False) -> list[str]:
        """Those of `ids` whose record names the queue under audit."""
        if self.queue is None:
            return list(ids)
        queues = await self.store.send(*(("HGET", self.keys.task(i), "queue") for i in ids))
        return [
            i for i, q in zip(ids, queues, strict=True) if q == self.queue or (keep_unknown and not isinstance(q, str))
        ]

    async def _one(self, *command: Any) -> Any:
        return (await self.store.send(command))[0]

    def _find(self, kind: str, message: str, queue: str | None = None, task_id: str | None = None) -> None:
        self.report.findings.append(Finding(kind, message, queue, task_id))

    def _tell(self) -> None:
        if self._progress:
            self._progress(self.report.tasks + self.report.entries)
