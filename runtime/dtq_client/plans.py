"""What each call asks, and what it makes of the answers: submit, get, wait, cancel. Plans, without I/O: see exchange."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from dtq_client.errors import ClientError, Facts, InvalidCall, InvalidTask, WaitTimeout
from dtq_client.exchange import Answer, Call, Plan, Sleep, bad_answer, document_of, exchange, parsed, problem
from dtq_client.model import Cancellation, Submitted, Task, TaskFields, task_of

TASKS = "/api/v1/tasks"
LONGEST_WAIT_S = 10.0
"""Of one long poll. A connection that died without a word costs a wait this time and the grace, and no more."""
GRACE_S = 5.0
"""For the answer to a long poll to arrive when its time is up; the service needs at most two seconds to say something."""
ENOUGH_S = 0.02
"""Less time than this is not worth another question."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Draft:
    """One submission, encoded once: every try sends the same bytes, with the same key. Raises InvalidTask."""

    def __init__(self, fields: TaskFields) -> None:
        if not isinstance(fields, Mapping):
            raise InvalidTask(f"a submission is a mapping of its fields, not {type(fields).__name__}")
        given = {name: value for name, value in fields.items() if value is not None}
        self.own_key = "idempotency_key" not in given
        given.setdefault("idempotency_key", f"auto-{uuid4().hex}")
        self.key = str(given["idempotency_key"])
        try:
            text = json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
            self.body = text.encode()
        except (TypeError, ValueError, RecursionError) as exc:
            # The text of an encoding error quotes what could not be encoded.
            why = "a lone surrogate is no text" if isinstance(exc, UnicodeEncodeError) else str(exc)[:200]
            raise InvalidTask(f"not JSON: {why}", Facts(idempotency_key=self.key)) from None

    def taken(self, status: int, document: Mapping[str, Any]) -> Submitted | None:
        """The task, if that is what the answer says. A key that is in progress names our task as well as a replay does."""
        task_id, told = document.get("task_id"), document.get("status")
        in_progress = status == 409 and document.get("code") == "IDEMPOTENCY_IN_PROGRESS"
        if not isinstance(task_id, str) or not (status in (200, 202) or in_progress):
            return None
        duplicate = status != 202 and not self.own_key
        return Submitted(task_id, told if isinstance(told, str) and not in_progress else None, duplicate)


def submit(call: Call, draft: Draft) -> Plan[Submitted]:
    """POST one task."""
    call.idempotency_key = draft.key
    answer = yield from exchange(call, "POST", TASKS, draft.body)
    return submitted(call, draft, answer)


def submitted(call: Call, draft: Draft, answer: Answer) -> Submitted:
    """Raises the error of an answer that takes no task."""
    taken = draft.taken(answer.status, parsed(answer) or {})
    if taken is not None:
        return taken
    if answer.status in (200, 202):
        raise bad_answer(call, answer, "the answer names no task")
    raise problem(call, answer)


def get(call: Call, task_id: str) -> Plan[Task]:
    """GET one task."""
    return (yield from _look(call, path_of(task_id), call.attempt_timeout_s))


def wait(call: Call, task_id: str) -> Plan[Task]:
    """Long polls, one after the other, until the task has ended. Raises WaitTimeout when the time is up."""
    path, task, idle = path_of(task_id), None, 0
    try:
        while (left_s := call.left_s()) > ENOUGH_S:
            # The answer needs a little time of its own to arrive before the deadline.
            ask_s = min(LONGEST_WAIT_S, left_s - min(1.0, 0.2 * left_s))
            asked_at = call.clock()
            task = yield from _look(call, f"{path}?wait={ask_s:.3f}", ask_s + GRACE_S)
            if task.ended:
                return task
            # A service that is about to stop answers early: do not ask it in a tight loop.
            idle = idle + 1 if call.clock() - asked_at < ask_s / 2 else 0
            if idle:
                yield Sleep(min(call.pause_s(idle, None), max(0.0, call.left_s() - ENOUGH_S)))
    except ClientError as exc:
        if not call.out_of_time:
            raise
        raise _not_ended(call, task_id, task, exc) from exc
    raise _not_ended(call, task_id, task, None)


def cancel(call: Call, task_id: str) -> Plan[Cancellation]:
    """POST the cancellation. A task that has "ended already" after a lost answer was perhaps ended by this very call."""
    path = path_of(task_id)
    answer = yield from exchange(call, "POST", f"{path}/cancel")
    if answer.status == 202:
        return Cancellation(task_id, ended=True)
    error = problem(call, answer)
    if error.code == "CANCEL_REQUESTED":
        return Cancellation(task_id, ended=False)
    if error.code == "TASK_TERMINAL" and call.in_doubt:
        task = yield from _look(call, path, call.attempt_timeout_s)
        if task.status == "cancelled":
            return Cancellation(task_id, ended=True)
    raise error


def path_of(task_id: str) -> str:
    """Raises InvalidCall for what would lead to another place than a task."""
    if not isinstance(task_id, str) or not _ID.fullmatch(task_id):
        raise InvalidCall("task_id: an id has 32 hexadecimal digits")
    return f"{TASKS}/{task_id}"


def trace_headers(traceparent: str | None) -> dict[str, str]:
    """Raises InvalidCall for what is not a W3C traceparent."""
    if traceparent is None:
        return {}
    if not isinstance(traceparent, str) or not _TRACEPARENT.fullmatch(traceparent):
        raise InvalidCall("traceparent: version-trace_id-parent_id-flags in lower-case hexadecimal digits (W3C)")
    return {"traceparent": traceparent}


def _look(call: Call, path: str, attempt_timeout_s: float) -> Plan[Task]:
    answer = yield from exchange(call, "GET", path, attempt_timeout_s=attempt_timeout_s)
    if answer.status != 200:
        raise problem(call, answer)
    try:
        return task_of(document_of(call, answer))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(call, answer, "the answer is not a task") from None


def _not_ended(call: Call, task_id: str, task: Task | None, why: ClientError | None) -> WaitTimeout:
    seen = f"last seen {task.status}" if task else "it was never seen"
    reason = f"; {why.code}: {why.message}" if why else ""
    message = f"task {task_id} has not ended within {call.timeout_s:g} s, {seen}{reason}"
    return WaitTimeout(message, call.facts(task_id=task_id), task)


def _plain(value: Any) -> Any:
    """Mappings of any kind are objects. The complaint about anything else names its type and not its content."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__}")
