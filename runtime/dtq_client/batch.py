"""submit_many: any number of submissions through a batch endpoint that takes a thousand, with one answer for each.

The invariant: every submission gets exactly one answer, whatever happens on the way. Nothing that was taken is forgotten
because a later part of the same call failed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from dtq_client.errors import ClientError, with_key
from dtq_client.exchange import RETRIED, Answer, Call, Plan, Sleep, bad_answer, exchange, parsed, problem, refusal
from dtq_client.model import Batch, Submitted, TaskFields
from dtq_client.plans import TASKS, Draft

MOST_TASKS = 1000
MOST_BYTES = 4_000_000
"""Of one request: the service takes at least four megabytes beside one task of the largest size."""

Items = list[tuple[int, Draft]]
Answers = dict[int, Submitted | ClientError]


def submit_many(call: Call, tasks: Sequence[TaskFields]) -> Plan[Batch]:
    """POST them part by part. Raises nothing: each answer is a value."""
    answers: Answers = {}
    items: Items = []
    for at, fields in enumerate(tasks):
        try:
            items.append((at, Draft(fields)))
        except ClientError as exc:
            answers[at] = exc
    for part in _parts(items):
        yield from _settle(call, part, answers)
    return Batch(tuple(answers[at] for at in range(len(tasks))))


def _parts(items: Items) -> Iterator[Items]:
    part: Items = []
    size = 0
    for at, draft in items:
        if part and (len(part) == MOST_TASKS or size + len(draft.body) > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append((at, draft))
        size += len(draft.body) + 1
    if part:
        yield part


def _settle(call: Call, part: Items, answers: Answers) -> Plan[None]:
    """An answer for each of `part`. What was refused for the moment (429, 503) is asked again until the time is up."""
    rounds = 0
    while part:
        rounds += 1
        answer = yield from _ask(call, part, answers)
        if answer is None:
            return
        if answer.status in (400, 413) and len(part) > 1:
            # One submission that cannot be read refuses the whole request: find it, so that the others are taken.
            middle = len(part) // 2
            yield from _settle(call, part[:middle], answers)
            yield from _settle(call, part[middle:], answers)
            return
        again, after_s = _read(call, part, answer, answers)
        pause_s = call.pause_s(rounds, after_s)
        if not again or pause_s >= call.left_s():
            return
        yield Sleep(pause_s)
        part = again


def _ask(call: Call, part: Items, answers: Answers) -> Generator[Any, Any, Answer | None]:
    """The answer for the whole request; without one, the error is the answer for each of its tasks."""
    body = b'{"tasks":[' + b",".join(draft.body for _, draft in part) + b"]}"
    try:
        return (yield from exchange(call, "POST", f"{TASKS}:batch", body))
    except ClientError as exc:
        _refuse(part, exc, answers)
        return None


def _read(call: Call, part: Items, answer: Answer, answers: Answers) -> tuple[Items, float | None]:
    """Note an answer for each of `part`; those worth another try, and the longest Retry-After among them."""
    results = (parsed(answer) or {}).get("results") if answer.status == 200 else None
    if not isinstance(results, list) or len(results) != len(part) or not all(isinstance(r, dict) for r in results):
        good = answer.status < 400
        error = bad_answer(call, answer, "not one answer per task") if good else problem(call, answer)
        _refuse(part, error, answers)
        return [], None
    again: Items = []
    longest_s: float | None = None
    for (at, draft), result in zip(part, results, strict=True):
        taken = draft.taken(_status(result), result)
        answers[at] = taken or with_key(_error(call, result), draft.key)
        if taken is None and _status(result) in RETRIED:
            again.append((at, draft))
            longest_s = max(longest_s or 0.0, _after_s(result))
    return again, longest_s


def _refuse(part: Items, error: ClientError, answers: Answers) -> None:
    for at, draft in part:
        answers[at] = with_key(error, draft.key)


def _error(call: Call, result: Mapping[str, Any]) -> ClientError:
    return refusal(call, _status(result), result, _after_s(result) or None)


def _status(result: Mapping[str, Any]) -> int:
    status = result.get("status_code")
    return status if isinstance(status, int) else 500


def _after_s(result: Mapping[str, Any]) -> float:
    after_s = result.get("retry_after_s")
    return float(after_s) if isinstance(after_s, (int, float)) and after_s > 0 else 0.0
