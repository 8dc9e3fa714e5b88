"""All writes of the API, the CLI and the kubectl plugin. Every call is one script, or bounded steps of one (decision 33)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtq_core import ledger, letters
from dtq_core.admission import Admission, DrainRate, Submitted
from dtq_core.config import Settings
from dtq_core.errors import (
    CancelRequested,
    DeadLetterChanged,
    DeadLetterGone,
    DeadLetterNotFound,
    DtqError,
    InvalidArgument,
    QueueFull,
    RedisUnavailable,
    StoreError,
    TaskNotFound,
    TaskTerminal,
)
from dtq_core.store import Call, Store
from dtq_core.store.transitions import BATCH, SubmitAnswer
from dtq_core.submission import Submission, SubmissionInput
from dtq_core.task import BANDS, QUEUE_NAME, TASK_ID
from dtq_core.tracing import tracing
from dtq_tasks.registry import Registry

__all__ = ["Client", "PurgeReport", "Submitted"]

Progress = Callable[[int], None]
_SAMPLE = 10
_SCHEDULE_PAGE = 500


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge matched and changed; `sample` has at most ten task ids."""

    matched: int
    changed: int
    sample: tuple[str, ...]
    dry_run: bool
    looked_at_ms: int = 0
    """The server's time when it began to look; a purge `until` then leaves alone what came later."""

    def document(self) -> dict[str, Any]:
        """As API and CLI show it."""
        return {"matched": self.matched, "changed": self.changed, "sample": list(self.sample), "dry_run": self.dry_run}


class Client:
    """Writes through one store. `actor` is who the audit names; without one destructive calls leave no audit entry.

    With a `registry`, a type it does not hold must be announced by a live worker; without one, only announcements decide
    (decision 13).
    """

    def __init__(self, store: Store, settings: Settings, *, actor: str = "", registry: Registry | None = None) -> None:
        self.store = store
        self.settings = settings
        self.actor = actor
        self.admission = Admission(settings, store.calls, registry)
        self._rate = DrainRate()

    async def submit(self, raw: SubmissionInput | dict[str, Any]) -> Submitted:
        """Check and write one task (§11). Nothing is left behind by a refused one.

        Raises InvalidTask, PayloadTooLarge, UnknownTaskType, IdempotencyInProgress, QueueFull, QueueLimit,
        RedisUnavailable, RedisFull.
        """
        if (spans := tracing()) is not None:
            with spans.submitting([raw]) as (raw,):
                return await self._submit(raw)
        return await self._submit(raw)

    async def _submit(self, raw: SubmissionInput | dict[str, Any]) -> Submitted:
        submission = self.admission.check(raw)
        answers = await self._run_submit(self.admission.call([submission]))
        return await self._submitted(answers[0], submission)

    async def submit_many(self, raws: Sequence[SubmissionInput | dict[str, Any]]) -> list[Submitted | DtqError]:
        """As `submit` for many, one script call per 100; one answer per item, in order. Raises only when Redis fails."""
        if (spans := tracing()) is not None:
            with spans.submitting(list(raws)) as raws:
                return await self._submit_many(raws)
        return await self._submit_many(raws)

    async def _submit_many(self, raws: Sequence[SubmissionInput | dict[str, Any]]) -> list[Submitted | DtqError]:
        answers: list[Submitted | DtqError | None] = [None] * len(raws)
        checked: list[tuple[int, Submission]] = []
        for index, raw in enumerate(raws):
            try:
                checked.append((index, self.admission.check(raw)))
            except DtqError as exc:
                answers[index] = exc
        for start in range(0, len(checked), BATCH):
            part = checked[start : start + BATCH]
            replies = await self._run_submit(self.admission.call([submission for _, submission in part]))
            for (index, submission), reply in zip(part, replies, strict=True):
                try:
                    answers[index] = await self._submitted(reply, submission)
                except DtqError as exc:
                    answers[index] = exc
        return [answer for answer in answers if answer is not None]

    async def cancel(self, task_id: str, *, request_id: str = "") -> None:
        """Cancel a task that has not started (decision 11).

        Raises TaskNotFound, TaskTerminal, or CancelRequested: it runs, and its worker was told.
        """
        _check_id(task_id)
        (answer,) = await self.store.run(self.store.calls.cancel([task_id], actor=self.actor, request_id=request_id))
        if answer == "GONE":
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        if answer == "TERMINAL":
            raise TaskTerminal(f"task {task_id} has ended already", task_id=task_id)
        if answer == "REQUESTED":
            raise CancelRequested(f"task {task_id} is running; its worker was asked to stop it", task_id=task_id)
        _refuse_error(answer)

    async def requeue(self, task_id: str, *, request_id: str = "") -> None:
        """Put a dead letter back on its queue, attempt 0, history kept in metadata.previous_attempts (§11).

        Raises TaskNotFound, DeadLetterNotFound, DeadLetterGone, DeadLetterChanged.
        """
        letter = await letters.letter_for(self.store, _check_id(task_id), requeue=True)
        (answer,) = await self.store.run(self.store.calls.revive([letter], actor=self.actor, request_id=request_id))
        _letter_answer(answer, task_id)

    async def discard(self, task_id: str, *, request_id: str = "") -> None:
        """Drop a dead letter; its task keeps DEAD_LETTERED and says metadata.discarded (§11). Raises as `requeue`."""
        letter = await letters.letter_for(self.store, _check_id(task_id), requeue=False)
        if not letter.letter_id:
            raise DeadLetterGone(f"the letter of task {task_id} was trimmed: dead letters are bounded", task_id=task_id)
        (answer,) = await self.store.run(self.store.calls.discard([letter], actor=self.actor, request_id=request_id))
        _letter_answer(answer, task_id)

    async def purge_dead_letters(
        self,
        *,
        queue: str | None = None,
        dry_run: bool = False,
        request_id: str = "",
        progress: Progress | None = None,
        until_ms: int = 0,
    ) -> PurgeReport:
        """Discard all dead letters, or those of one queue, in steps; one audit entry. `progress` gets the count so far.

        `until_ms`: only those that were there at this moment of the server's clock.
        """
        if queue is not None:
            _check_queue(queue)
        began_ms = await self._server_ms()
        matched = changed = 0
        sample: list[str] = []
        after = "-"
        while True:
            page = await letters.page(self.store, after, BATCH)
            if until_ms:
                page = [x for x in page if int(x.entry_id.partition("-")[0]) <= until_ms]
            if not page:
                break
            after = "(" + page[-1].entry_id
            mine = [x for x in page if queue is None or x.queue == queue]
            matched += len(mine)
            sample += [x.task_id for x in mine[: _SAMPLE - len(sample)]]
            if mine and not dry_run:
                doomed = await letters.for_discard(self.store, mine)
                answers = await self.store.run(self.store.calls.discard(doomed, actor="", request_id=request_id))
                changed += answers.count("OK")
            if progress:
                progress(matched)
        if not dry_run:
            await self._audit("dlq.purge", request_id, {"queue": queue, "discarded": changed})
        return PurgeReport(matched, changed, tuple(sample), dry_run, began_ms)

    async def purge_queue(
        self,
        queue: str,
        *,
        dry_run: bool = False,
        request_id: str = "",
        progress: Progress | None = None,
        until_ms: int = 0,
    ) -> PurgeReport:
        """Cancel everything of a queue that has not started: waiting, delayed, retrying. What runs finishes normally.

        `until_ms`: only what was there at this moment of the server's clock.
        """
        _check_queue(queue)
        began_ms = await self._server_ms()
        last_id = f"{until_ms}-18446744073709551615" if until_ms else "+"
        matched = changed = 0
        sample: list[str] = []
        for band in BANDS:
            after = "-"
            while True:
                call = self.store.calls.purge_step(queue, band, after, dry_run=dry_run, last_id=last_id)
                step = await self.store.run(call)
                matched += step.matched
                changed += step.changed
                sample += step.sample[: _SAMPLE - len(sample)]
                if progress:
                    progress(matched)
                if not step.next_id:
                    break
                after = "(" + step.next_id
        scheduled = await self._scheduled_of(queue, until_ms)
        matched += len(scheduled)
        sample += scheduled[: _SAMPLE - len(sample)]
        for start in range(0, 0 if dry_run else len(scheduled), BATCH):
            ids = scheduled[start : start + BATCH]
            answers = await self.store.run(self.store.calls.cancel(ids, spare_running=True))
            changed += answers.count("CANCELLED")
            if progress:
                progress(matched)
        if not dry_run:
            await self._audit("queue.purge", request_id, {"queue": queue, "cancelled": changed})
        return PurgeReport(matched, changed, tuple(sample), dry_run, began_ms)

    async def pause(self, queue: str, *, request_id: str = "") -> bool:
        """Stop new starts on a queue (decision 21). True if it was not paused before."""
        return await self._set_paused(queue, True, request_id)

    async def resume(self, queue: str, *, request_id: str = "") -> bool:
        """Let a queue start tasks again. True if it was paused."""
        return await self._set_paused(queue, False, request_id)

    async def _set_paused(self, queue: str, paused: bool, request_id: str) -> bool:
        _check_queue(queue)
        return await self.store.run(self.store.calls.pause(queue, paused, actor=self.actor, request_id=request_id))

    async def _run_submit(self, call: Call[list[SubmitAnswer]]) -> list[SubmitAnswer]:
        replicas = self.settings.submit_wait_replicas
        return await (self.store.run_replicated(call, replicas) if replicas else self.store.run(call))

    async def _submitted(self, reply: SubmitAnswer, submission: Submission) -> Submitted:
        answer = self.admission.answer(reply, submission)
        if isinstance(answer, QueueFull):
            counts = await ledger.read(self.store, submission.queue)
            answer.retry_after_s = self._rate.sample(submission.queue, counts.finished, counts.depth)
        if isinstance(answer, DtqError):
            raise answer
        return answer

    async def _server_ms(self) -> int:
        (now,) = await self.store.send(("TIME",))
        return int(now[0]) * 1000 + int(now[1]) // 1000

    async def _scheduled_of(self, queue: str, until_ms: int = 0) -> list[str]:
        """Ids of `queue` in the schedule and the claims. Read from the far end, since members leave at the near one."""
        keys = self.store.keys
        found: dict[str, None] = {}
        for name in (keys.schedule, keys.claimed):
            rank = 0
            while True:
                (ids,) = await self.store.send(("ZREVRANGE", name, rank, rank + _SCHEDULE_PAGE - 1))
                if isinstance(ids, Exception):
                    raise StoreError(str(ids))
                rows = await self.store.send(*(("HMGET", keys.task(i), "queue", "created_at") for i in ids))
                found.update(
                    (i, None)
                    for i, row in zip(ids, rows, strict=True)
                    if isinstance(row, list) and row[0] == queue and not (until_ms and _later(row[1], until_ms))
                )
                rank += len(ids)
                if len(ids) < _SCHEDULE_PAGE:
                    break
        return list(found)

    async def _audit(self, action: str, request_id: str, detail: dict[str, Any]) -> None:
        if self.actor:
            await ledger.write_audit(self.store, self.actor, action, request_id, json.dumps(detail))


def _later(created_at: str | None, until_ms: int) -> bool:
    return bool(created_at and created_at.isdigit() and int(created_at) > until_ms)


def _check_id(task_id: str) -> str:
    if not TASK_ID.fullmatch(task_id):
        raise TaskNotFound(f"there is no task {task_id[:40]!r}: an id has 32 hexadecimal digits")
    return task_id


def _check_queue(queue: str) -> None:
    if not QUEUE_NAME.fullmatch(queue):
        raise InvalidArgument(
            "queue: lower-case letters, digits, '_' and '-', 1 to 64, starting with a letter or digit"
        )


def _letter_answer(answer: str, task_id: str) -> None:
    if answer == "CHANGED":
        raise DeadLetterChanged(f"somebody else acted on the letter of task {task_id}", task_id=task_id)
    if answer == "GONE":
        raise DeadLetterNotFound(f"task {task_id} is not among the dead letters", task_id=task_id)
    _refuse_error(answer)


def _refuse_error(answer: str) -> None:
    if answer.startswith("ERROR"):
        if "OOM" in answer:
            raise RedisUnavailable(answer)
        raise StoreError(f"Redis refused: {answer.removeprefix('ERROR ')[:300]}")
