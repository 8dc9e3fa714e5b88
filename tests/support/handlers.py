"""Handlers for the process tests: each does one thing on command, and writes down when it began and ended.

Imported by workers (DTQ_TASK_MODULES=support.handlers); standard library and the author's package only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtq_tasks import PermanentError, RetryableError, TaskContext, task

_FOLDER = Path(os.environ.get("DTQ_TEST_FOLDER", "."))
_STEP_S = 0.01
Payload = dict[str, Any]


def _note(**event: object) -> None:
    """One line, in one write: lines of several processes do not mix."""
    line = json.dumps({**event, "t": time.monotonic()}) + "\n"
    file = os.open(_FOLDER / "journal", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _is_open(gate: str) -> bool:
    return (_FOLDER / "gates" / gate).exists()


@contextlib.contextmanager
def _noted(ctx: TaskContext) -> Iterator[None]:
    run, outcome = uuid.uuid4().hex, "ok"
    _note(
        run=run, task_id=ctx.task_id, task_type=ctx.task_type, attempt=ctx.attempt, fence=ctx.fence,
        worker_id=ctx.worker_id, pid=os.getpid(), queue=ctx.queue,
    )  # fmt: skip
    try:
        yield
    except BaseException as exc:
        outcome = type(exc).__name__
        raise
    finally:
        _note(run=run, outcome=outcome)


def noted(name: str, **defaults: Any) -> Callable[[Callable[..., Any]], Any]:
    """@task(name) with start and end in the journal."""

    def register(fn: Callable[..., Any]) -> Any:
        if inspect.iscoroutinefunction(fn):

            async def run_async(payload: Payload, ctx: TaskContext) -> Any:
                with _noted(ctx):
                    return await fn(payload, ctx)

            run: Callable[..., Any] = run_async
        else:

            def run_sync(payload: Payload, ctx: TaskContext) -> Any:
                with _noted(ctx):
                    return fn(payload, ctx)

            run = run_sync
        functools.update_wrapper(run, fn)
        return task(name, **defaults)(run)

    return register


@noted("echo")
async def echo(payload: Payload, ctx: TaskContext) -> Any:
    return payload


@noted("sleep")
async def sleep(payload: Payload, ctx: TaskContext) -> Any:
    await asyncio.sleep(payload["seconds"])
    return {"by": os.getpid()}


@noted("gate")
async def gate(payload: Payload, ctx: TaskContext) -> Any:
    """Wait until `<gate>` or `<gate>.<attempt>` is open, then end as `then` says, or `then.<attempt>`."""
    while not _let_through(payload, ctx):
        await asyncio.sleep(_STEP_S)
    return _end(payload, ctx)


@noted("gate_sync")
def gate_sync(payload: Payload, ctx: TaskContext) -> Any:
    """As gate, in a thread that nothing can stop."""
    while not _let_through(payload, ctx):
        time.sleep(_STEP_S)
    return _end(payload, ctx)


@noted("block")
async def block(payload: Payload, ctx: TaskContext) -> Any:
    """As gate, but the event loop stands still meanwhile: the mistake that every author makes once."""
    while not _let_through(payload, ctx):
        time.sleep(_STEP_S)
    return _end(payload, ctx)


@noted("spin")
def spin(payload: Payload, ctx: TaskContext) -> Any:
    """As gate, in a thread that keeps the interpreter busy."""
    n = 0
    while not _let_through(payload, ctx):
        n += sum(i * i for i in range(20_000))
    return _end(payload, ctx)


def _let_through(payload: Payload, ctx: TaskContext) -> bool:
    return _is_open(payload["gate"]) or _is_open(f"{payload['gate']}.{ctx.attempt}")


def _end(payload: Payload, ctx: TaskContext) -> Any:
    how = payload.get(f"then.{ctx.attempt}", payload.get("then", "ok"))
    if how == "retry":
        raise RetryableError("asked to", retry_after_s=payload.get("retry_after_s"))
    if how == "permanent":
        raise PermanentError("asked to")
    return {"by": os.getpid(), "attempt": ctx.attempt}


@noted("stubborn")
async def stubborn(payload: Payload, ctx: TaskContext) -> Any:
    """Goes on when it is cancelled, until its gate opens."""
    while not _let_through(payload, ctx):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(_STEP_S)
    return _end(payload, ctx)


@noted("flaky")
async def flaky(payload: Payload, ctx: TaskContext) -> Any:
    """Fails retryably in its first `fail_times` attempts."""
    if ctx.attempt <= payload["fail_times"]:
        raise RetryableError(f"attempt {ctx.attempt} is meant to fail")
    return {"attempt": ctx.attempt}


@noted("crash")
async def crash(payload: Payload, ctx: TaskContext) -> Any:
    """Kills its own worker, in its first `times` attempts, at once or when its gate opens."""
    while "gate" in payload and not _let_through(payload, ctx):
        await asyncio.sleep(_STEP_S)
    if ctx.attempt <= payload.get("times", 1_000):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    return {"attempt": ctx.attempt}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even its text fails")


class Own(BaseException):
    """Not an Exception: passes every `except Exception`."""


RAISES: dict[str, Callable[[], BaseException]] = {
    "retryable": lambda: RetryableError("try again"),
    "permanent": lambda: PermanentError("never again"),
    "value_error": lambda: ValueError("a value"),
    "key_error": lambda: KeyError("a key"),
    "timeout": lambda: TimeoutError("its own timeout"),
    "long": lambda: RetryableError("x" * 10_000),
    "newlines": lambda: PermanentError("one\r\ntwo\x1b[31m\x00three \ud800"),
    "unprintable": Unprintable,
    "system_exit": lambda: SystemExit(3),
    "keyboard_interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "own_base": lambda: Own("not an Exception"),
    "cancelled": asyncio.CancelledError,
    "group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("one")]),
    "memory": lambda: MemoryError("no more"),
    "stop_iteration": lambda: StopIteration("from a handler"),
}


@noted("raise")
async def raise_async(payload: Payload, ctx: TaskContext) -> Any:
    raise RAISES[payload["kind"]]()


@noted("raise_sync")
def raise_sync(payload: Payload, ctx: TaskContext) -> Any:
    raise RAISES[payload["kind"]]()


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


RETURNS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "text",
    "set": lambda: {1, 2},
    "bytes": lambda: b"bytes",
    "object": object,
    "nan": lambda: float("nan"),
    "infinity": lambda: {"x": [float("inf")]},
    "surrogate": lambda: "\ud800",
    "circle": _circle,
    "deep": _deep,
    "large": lambda: "x" * 20_000,
    "number_key": lambda: {1: "one"},
    "tuple_key": lambda: {(1, 2): "pair"},
    "coroutine": lambda: _never(),
    "huge_number": lambda: 10**5000,
}


async def _never() -> None:
    """Returned by a handler that forgot its await."""


@noted("return")
async def return_kind(payload: Payload, ctx: TaskContext) -> Any:
    return RETURNS[payload["kind"]]()


@noted("return_sync")
def return_kind_sync(payload: Payload, ctx: TaskContext) -> Any:
    return RETURNS[payload["kind"]]()


@noted("trace")
async def trace(payload: Payload, ctx: TaskContext) -> Any:
    return {"traceparent": ctx.traceparent}


@noted("fork")
async def fork(payload: Payload, ctx: TaskContext) -> Any:
    """Fork a process and end it with SIGTERM, as multiprocessing does."""
    ours, childs = os.pipe()
    child = os.fork()
    if not child:
        os.write(childs, b".")  # a signal that comes before Python has put the child in order is lost
        time.sleep(30)
        os._exit(0)
    await asyncio.to_thread(os.read, ours, 1)
    os.kill(child, signal.SIGTERM)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    return {"signal": os.WTERMSIG(status)}


_LEFT: list[Any] = []


@noted("leave_a_blocker")
async def leave_a_blocker(payload: Payload, ctx: TaskContext) -> Any:
    """Ends at once; what it started blocks the loop a moment later, for ever."""

    async def blocker() -> None:
        await asyncio.sleep(0.2)
        while not _is_open(payload["gate"]):
            time.sleep(_STEP_S)

    _LEFT.append(asyncio.create_task(blocker()))


@noted("child_exits")
async def child_exits(payload: Payload, ctx: TaskContext) -> Any:
    """A task of the handler's own raises what means the whole process."""

    async def child() -> None:
        raise {"exit": SystemExit(0), "interrupt": KeyboardInterrupt()}[payload["raises"]]

    how = payload["how"]
    if how == "gather":
        await asyncio.gather(child())
    elif how == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
    elif how == "wait_for":
        await asyncio.wait_for(child(), 1)
    else:
        _LEFT.append(asyncio.create_task(child()))
        await asyncio.sleep(0.1)


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not know coroutines."""

    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    wrapper.__wrapped__ = None  # type: ignore[attr-defined]
    return wrapper


@task("wrapped_gate")
@plain
async def wrapped_gate(payload: Payload, ctx: TaskContext) -> Any:
    """As gate, behind a plain decorator."""
    with _noted(ctx):
        while not _let_through(payload, ctx):
            await asyncio.sleep(_STEP_S)
        return _end(payload, ctx)
