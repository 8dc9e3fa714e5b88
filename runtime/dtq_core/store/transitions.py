"""One function per script: what it is given, and what its answer means. The only place that knows the order of KEYS and ARGV.

A function builds a Call and does no I/O, so the asyncio store, the blocking store and a worker's lane all run the same
calls. Times are epoch milliseconds; `now_ms` 0 leaves the clock to the server (decision 16).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dtq_core.config import Settings
from dtq_core.keys import Keys
from dtq_core.retry import Settlement
from dtq_core.submission import Submission
from dtq_core.task import BANDS

T = TypeVar("T")
DEFAULT_MAX_ATTEMPTS = 5
Arg = str | bytes | int | float

BATCH = 100
"""Items per call of a batch script; far below the bound of 500 (decision 33)."""


@dataclass(slots=True)
class Call(Generic[T]):
    """One run of a script: its name, what goes in, and how the answer is read."""

    script: str
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    parse: Callable[[Any], T]


@dataclass(slots=True)
class Delivery:
    """One started task as a worker gets it. `fence` guards everything the worker writes about it later."""

    band: int
    entry_id: str
    task_id: str
    task_type: str
    payload: str
    attempt: int
    max_attempts: int
    timeout_ms: int
    idempotency_key: str
    fence: str
    created_at_ms: int
    queue: str
    adopted: bool
    started_at_ms: int
    trace: str = ""
    """Of a traced task: the submission's traceparent and, after a retry, that of the last attempt (dtq_core.tracing)."""
    available_at_ms: int = 0
    """Of a traced task: since when it might have started."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> Delivery:
        return cls(
            int(row[0]), row[1], row[2], row[3], row[4], int(row[5]), int(row[6]), int(row[7]), row[8], row[9],
            int(row[10] or 0), row[11], row[12] == 1, int(row[13]),
            *((row[14], int(row[15])) if len(row) > 15 else ()),
        )  # fmt: skip

    @classmethod
    def of_each(cls, rows: Sequence[Sequence[Any]]) -> tuple[list[Delivery], tuple[str, ...]]:
        """Row by row, so that one which cannot be read harms no other; the second part names those."""
        try:
            return [cls.of(row) for row in rows], ()
        except (ValueError, TypeError, IndexError):
            pass
        found, problems = [], []
        for row in rows:
            try:
                found.append(cls.of(row))
            except (ValueError, TypeError, IndexError):
                problems.append(f"task {row[2] if len(row) > 2 else '(none)'}: its delivery cannot be read")
        return found, tuple(problems)


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that a gate ended without running it."""

    task_id: str
    queue: str
    task_type: str
    status: str


@dataclass(slots=True)
class FetchReply:
    """What a fetch or a reclaim brought. `cursors` only after a reclaim."""

    deliveries: list[Delivery] = field(default_factory=list)
    more: bool = False
    paused: tuple[str, ...] = ()
    deferred: int = 0
    problems: tuple[str, ...] = ()
    ended: tuple[Ended, ...] = ()
    draining: bool = False
    replayed: bool = False
    cursors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """One line of submit.lua's answer: see its header for the codes."""

    code: str
    task_id: str
    detail: str


@dataclass(slots=True)
class Settling:
    """One delivery with what is to be written about it. `record` is the attempt as JSON, open at its end."""

    delivery: Delivery
    settlement: Settlement
    duration_ms: int
    record: str = ""
    trace: str = ""
    """The task's field `trace` if it is to be retried; "" leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Due:
    """What claim_due.lua found. `next_in_ms` is -1 when nothing is scheduled."""

    leading: bool
    task_ids: tuple[str, ...]
    next_in_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    released: int
    problems: tuple[str, ...]
    ended: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class PurgeStep:
    next_id: str
    matched: int
    changed: int
    sample: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Letter:
    """What revive.lua and discard.lua need of one dead letter; see their headers."""

    task_id: str
    fence: str
    letter_id: str
    metadata: bytes
    queue: str
    task_type: str = ""
    payload: str = ""
    max_attempts: str = ""
    priority: str = ""
    timeout_ms: str = ""
    idempotency_key: str = ""


class Transitions:
    """Builds calls for one key prefix and one set of settings."""

    def __init__(self, keys: Keys, settings: Settings, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.keys = keys
        self.settings = settings
        self.now_ms = now_ms
        self._frame = (
            settings.task_retention_s,
            settings.idem_ttl_s,
            settings.dlq_maxlen if settings.dlq_enabled else 0,
        )

    def call(self, script: str, keys: Sequence[str], args: Sequence[Arg], parse: Callable[[Any], T]) -> Call[T]:
        """A call with the frame that every script expects (lua/_prelude.lua)."""
        frame = (self.keys.prefix, self.now_ms(), event_seed(), *self._frame)
        return Call(script, tuple(keys), (*frame, *args), parse)

    # -- producers

    def submit(self, submissions: Sequence[Submission], *, ask: Callable[[str], int]) -> Call[list[SubmitAnswer]]:
        """`ask(task_type)` is 0 for a known type, else how much the announcements of workers decide (submit.lua)."""
        s = self.settings
        args: list[Arg] = [
            s.max_queue_depth, s.max_scheduled, s.max_queues, s.task_timeout_ms, s.max_payload_bytes,
            min(DEFAULT_MAX_ATTEMPTS, s.max_attempts), len(submissions),
        ]  # fmt: skip
        for x in submissions:
            args += (
                x.task_id, x.queue, x.task_type, x.payload, x.idempotency_key, x.max_attempts, x.priority, x.timeout_ms,
                x.delay_ms, x.metadata, x.ttl_ms, ask(x.task_type), x.trace,
            )  # fmt: skip
        return self.call(
            "submit",
            [self.keys.ledger(submissions[0].queue)],
            args,
            lambda r: [SubmitAnswer(*map(_text, row)) for row in r],
        )

    def cancel(
        self, task_ids: Sequence[str], *, actor: str = "", request_id: str = "", action: str = "task.cancel",
        spare_running: bool = False,
    ) -> Call[list[str]]:  # fmt: skip
        return self.call(
            "cancel", [self.keys.task(task_ids[0])], [actor, request_id, action, int(spare_running), *task_ids], list
        )

    def revive(self, letters: Sequence[Letter], *, actor: str, request_id: str) -> Call[list[str]]:
        args: list[Arg] = [actor, request_id, len(letters)]
        for x in letters:
            args += (
                x.task_id, x.fence, x.letter_id, x.metadata, x.queue, x.task_type, x.payload, x.max_attempts, x.priority,
                x.timeout_ms, x.idempotency_key,
            )  # fmt: skip
        return self.call("revive", [self.keys.dead_letters], args, list)

    def discard(self, letters: Sequence[Letter], *, actor: str, request_id: str) -> Call[list[str]]:
        args: list[Arg] = [actor, request_id, len(letters)]
        for x in letters:
            args += (x.task_id, x.letter_id, x.queue, x.metadata)
        return self.call("discard", [self.keys.dead_letters], args, list)

    def purge_step(self, queue: str, band: int, first_id: str, *, dry_run: bool, last_id: str = "+") -> Call[PurgeStep]:
        return self.call(
            "purge", [self.keys.stream(queue, band)], [queue, first_id, BATCH, int(dry_run), last_id],
            lambda r: PurgeStep(r[0], r[1], r[2], tuple(r[3])),
        )  # fmt: skip

    def pause(self, queue: str, paused: bool, *, actor: str, request_id: str) -> Call[bool]:
        return self.call("pause", [self.keys.paused(queue)], [actor, request_id, queue, int(paused)], bool)

    # -- workers

    def fetch(
        self, worker_id: str, lane: str, nonce: str, capacity: int, queues: Sequence[str], types: Sequence[str]
    ) -> Call[FetchReply]:
        args = [*self._gate(worker_id), lane, nonce, capacity, len(queues), *queues, *types]
        return self.call("fetch", [self.keys.ledger(queues[0])], args, _fetch_reply)

    def reclaim(
        self, worker_id: str, queue: str, capacity: int, cursors: Sequence[str], types: Sequence[str]
    ) -> Call[FetchReply]:
        """`cursors` are ten, for p9 … p0, as the last call returned them; "0-0" at first."""
        args = [*self._gate(worker_id), queue, capacity, *cursors, *types]
        return self.call("reclaim", [self.keys.ledger(queue)], args, _reclaim_reply)

    def stale(self, queue: str) -> Call[bool]:
        """Whether a reclaim would find something."""
        visibility_ms = round(self.settings.visibility_timeout_s * 1000)
        return self.call("stale", [self.keys.ledger(queue)], [queue, visibility_ms], bool)

    def adopt(self, worker_id: str, at_most: int, queues: Sequence[str]) -> Call[FetchReply]:
        return self.call("adopt", [self.keys.ledger(queues[0])], [worker_id, at_most, *queues], _adopt_reply)

    def settle(self, worker_id: str, items: Sequence[Settling]) -> Call[list[str]]:
        args: list[Arg] = [worker_id, self.settings.result_retention_s, len(items)]
        for item in items:
            d, s = item.delivery, item.settlement
            args += (
                d.task_id, d.queue, d.band, d.entry_id, d.fence, s.status.value, d.task_type, d.attempt, d.idempotency_key,
                item.duration_ms, s.result or "", s.error_class, s.error_message,
                "" if s.retryable is None else int(s.retryable), "" if s.retry_delay_ms is None else s.retry_delay_ms,
                item.record, item.trace,
            )  # fmt: skip
        return self.call("settle", [self.keys.ledger(items[0].delivery.queue)], args, list)

    def hand_back(self, worker_id: str, deliveries: Sequence[Delivery]) -> Call[list[str]]:
        return self.call("handback", [self.keys.ledger(deliveries[0].queue)], [worker_id, *_leases(deliveries)], list)

    def touch(self, worker_id: str, deliveries: Sequence[Delivery]) -> Call[list[str]]:
        return self.call("touch", [self.keys.ledger(deliveries[0].queue)], [worker_id, *_leases(deliveries)], list)

    def register(self, ttl_s: int, queues: Sequence[str], row: Mapping[str, str]) -> Call[bool]:
        """`row` must begin with worker_id."""
        fields = [part for pair in row.items() for part in pair]
        return self.call(
            "register", [self.keys.worker(row["worker_id"]), self.keys.workers],
            [ttl_s, len(queues), *queues, *fields], bool,
        )  # fmt: skip

    def beat(
        self,
        ttl_s: int,
        row: Mapping[str, Any],
        born_ms: int = 0,
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
        types_kept_s: int = 0,
    ) -> Call[list[str] | None]:
        """Errors of single writes; None when the id is another worker's by now. `row` must begin with worker_id."""
        fields = [part for pair in row.items() for part in pair]
        return self.call(
            "beat",
            [self.keys.worker(row["worker_id"]), self.keys.workers, *(self.keys.task_types(q) for q in queues)],
            [born_ms, ttl_s, types_kept_s, len(row), *fields, *types],
            lambda r: list(r[1:]) if r[0] == 1 else None,
        )  # fmt: skip

    def sign_off(self, worker_id: str, queues: Sequence[str], row_kept_s: int = 60) -> Call[int]:
        return self.call(
            "sign_off", [self.keys.worker(worker_id), self.keys.workers], [worker_id, row_kept_s, *queues], int
        )

    def ensure_groups(self, queues: Sequence[str]) -> Call[list[int]]:
        return self.call("ensure_groups", [self.keys.queues], [self.settings.max_queues, *queues], list)

    # -- the leader

    def lock(self, token: str, ttl_ms: int) -> Call[bool]:
        """Take or extend the leader lock; ttl_ms 0 gives it back."""
        return self.call("renew_lock", [self.keys.lock], [token, ttl_ms], lambda r: r[0] == 1)

    def lead(self, token: str, ttl_ms: int) -> Call[tuple[bool, int]]:
        """As `lock`; the second part is for how many ms somebody else's lock holds, -1 for ever."""
        return self.call("renew_lock", [self.keys.lock], [token, ttl_ms], lambda r: (r[0] == 1, int(r[1])))

    def claim_due(self, token: str, limit: int = BATCH) -> Call[Due]:
        return self.call(
            "claim_due", [self.keys.schedule, self.keys.claimed, self.keys.lock], [token, limit],
            lambda r: Due(r[0] == 1, tuple(r[1]), int(r[2])),
        )  # fmt: skip

    def release(self, task_ids: Sequence[str], again_in_ms: int = 5000) -> Call[Released]:
        return self.call(
            "release", [self.keys.schedule, self.keys.claimed], [again_in_ms, *task_ids],
            lambda r: Released(r[0], tuple(r[1]), tuple(Ended(*x) for x in r[2])),
        )  # fmt: skip

    def return_stale(self, token: str, age_ms: int, limit: int = BATCH) -> Call[int]:
        return self.call(
            "return_stale", [self.keys.schedule, self.keys.claimed, self.keys.lock], [token, age_ms, limit], int
        )

    def renew(self, key: str, cursor: str, at_most: int = 50) -> Call[tuple[str, int, list[str]]]:
        """One step along a stream, the schedule or the claims; "" starts, and "" back means the end was reached.

        Few at a time, since the engine reads whole entries and a payload may be large."""
        return self.call("renew", [key], [cursor, at_most], lambda r: (r[0], r[1], list(r[2])))

    def prune(
        self, queues: Sequence[str], worker_ids: Sequence[str], idle_ms: int, stale_after: int = 3
    ) -> Call[tuple[list[str], int, int]]:
        return self.call(
            "prune", [self.keys.workers], [stale_after, idle_ms, len(queues), *queues, *worker_ids],
            lambda r: (list(r[0]), r[1], r[2]),
        )  # fmt: skip

    def sweep_queue(self, queue: str) -> Call[bool]:
        return self.call("sweep_queue", [self.keys.ledger(queue), self.keys.queues], [queue], bool)

    def _gate(self, worker_id: str) -> tuple[Arg, ...]:
        s = self.settings
        # As long as a worker's row lives: after an outage nobody's announcement is fresher.
        fresh_ms = round(max(10 * s.heartbeat_interval_s, 5) * 1000)
        return worker_id, fresh_ms, round(s.visibility_timeout_s * 1000)


def event_seed() -> str:
    """The first 24 characters of a random UUID; the scripts number their events behind it."""
    h = os.urandom(9).hex()
    return f"{h[:8]}-{h[8:12]}-4{h[12:15]}-8{h[15:18]}-"


def _leases(deliveries: Sequence[Delivery]) -> list[Arg]:
    args: list[Arg] = [len(deliveries)]
    for d in deliveries:
        args += (d.task_id, d.queue, d.band, d.entry_id, d.fence)
    return args


def _fetch_reply(r: Any) -> FetchReply:
    if len(r) == 1:
        return FetchReply(draining=r[0] == "DRAINING", replayed=r[0] == "REPLAY")
    return _reply(r, more=r[0] == 1)


def _reclaim_reply(r: Any) -> FetchReply:
    return _reply(r, cursors=tuple(r[0]))


def _adopt_reply(r: Any) -> FetchReply:
    deliveries, problems = Delivery.of_each(r)
    return FetchReply(deliveries, problems=problems)


def _reply(r: Any, more: bool = False, cursors: tuple[str, ...] = ()) -> FetchReply:
    deliveries, unread = Delivery.of_each(r[5])
    if not (r[1] or r[2] or r[3] or r[4] or unread or cursors):
        return FetchReply(deliveries, more)
    ended = tuple(Ended(*row) for row in r[4])
    return FetchReply(deliveries, more, tuple(r[1]), r[2], (*r[3], *unread), ended, cursors=cursors)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value or "")


FIRST_CURSORS = tuple("0-0" for _ in BANDS)
