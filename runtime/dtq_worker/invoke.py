"""Run one handler and say what happened. Never raises, whatever the handler does; the outcome is a value."""

from __future__ import annotations

import inspect
import json
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any

from dtq_core.clock import from_ms
from dtq_core.retry import Cancelled, Failed, Outcome, Succeeded, TimedOut, classify
from dtq_core.submission import decode_json
from dtq_tasks.context import TaskContext
from dtq_tasks.errors import RetryableError, TaskError
from dtq_worker.inflight import Run, Stop
from dtq_worker.threads import Threads

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


async def invoke(run: Run, context: TaskContext, threads: Threads, ended: Any, max_result_bytes: int) -> Outcome | None:
    """Run the handler of `run` to its end.

    Returns its Outcome, or None where nothing may be written about it (the task belongs to somebody else). `ended()` is
    called when the handler has really ended: for a blocking one that may be after this returned.
    """
    handler, delivery = run.handler, run.delivery
    in_thread = False

    def thread_ended(value: Any, awaited: bool) -> None:
        if not inspect.isawaitable(value):
            ended()
        elif not awaited:  # nobody is left who would run it
            getattr(value, "close", lambda: None)()
            ended()

    try:
        payload = handler.parse(_decode(delivery.payload))
        if handler.is_async:
            value = await handler.fn(payload, context)
        else:
            in_thread = True
            call = partial(copy_context().run, handler.fn, payload, context)
            value, error = await threads.run(call, thread_ended)
            if error is not None:
                raise error
            if inspect.isawaitable(value):
                # A plain function that hands out a coroutine (behind a decorator, say): from here on it is one.
                in_thread, run.is_async = False, True
                value = await value
    except BaseException as exc:  # SystemExit, KeyboardInterrupt and CancelledError of a handler end its task, not us
        if issubclass(type(exc), RetryableError) and getattr(exc, "retry_after_s", None) is not None:
            run.extra["delay_s"] = getattr(exc, "retry_after_s")  # noqa: B009
        if run.stop is not None:
            return stopped(run)
        failed = classify(exc, handler.defaults.retry_on)
        if not (failed.retryable or isinstance(exc, TaskError)):
            run.extra["error"] = exc  # a fault of the handler's: its author will want to see where
        return failed
    finally:
        if not in_thread:
            ended()
    if run.stop is not None:
        return stopped(run)
    return encode_result(value, max_result_bytes)


def stopped(run: Run) -> Outcome | None:
    """The outcome of a run that was told to stop; a value that comes late is discarded."""
    match run.stop:
        case Stop.TIMEOUT:
            return TimedOut(run.delivery.timeout_ms)
        case Stop.CANCEL:
            return Cancelled()
        case Stop.LEASE:
            return Failed("LeaseLost", "the worker could not renew its lease for a whole visibility timeout", True)
        case _:
            return None


def context_of(run: Run, worker_id: str, state: SimpleNamespace, traceparent: str) -> TaskContext:
    """What the handler is told. The deadline is on the server's clock, as every instant of a task."""
    d = run.delivery
    return TaskContext(
        task_id=d.task_id,
        idempotency_key=d.idempotency_key or None,
        attempt=d.attempt,
        worker_id=worker_id,
        queue=d.queue,
        deadline=from_ms(d.started_at_ms + d.timeout_ms),
        task_type=d.task_type,
        max_attempts=d.max_attempts,
        fence=int(d.fence),
        traceparent=traceparent or None,
        state=state,
    )


def encode_result(value: Any, max_bytes: int) -> Outcome:
    """A returned value as Succeeded, with its JSON; what is not JSON is a permanent failure (decision 12).

    A result over `max_bytes` of UTF-8 is replaced by {"truncated": true, "bytes": n}, never cut (decision 18).
    """
    if value is None:
        return Succeeded()
    try:
        text = _ENCODER.encode(value)
        size = len(text.encode())
    except BaseException as exc:
        reason = "a lone surrogate is not text" if isinstance(exc, UnicodeEncodeError) else classify(exc).error_message
        return Failed("InvalidResult", f"the result is not JSON: {reason}", retryable=False)
    if size > max_bytes:
        text = json.dumps({"truncated": True, "bytes": size}, separators=(",", ":"))
    return Succeeded(text)


def _decode(payload: str) -> dict[str, Any]:
    value = decode_json(payload, "payload")
    if not isinstance(value, dict):
        raise TypeError("the payload is not a JSON object")
    return value
