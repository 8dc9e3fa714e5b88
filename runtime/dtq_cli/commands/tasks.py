"""submit, get, list, cancel."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_cli.streams import progress
from dtq_core.client import Submitted
from dtq_core.errors import InvalidArgument, InvalidTask, PayloadTooLarge
from dtq_core.inspector import Page, task_document
from dtq_core.submission import decode_json
from dtq_core.task import Attempt, Task
from dtq_core.text import clean

T = TypeVar("T")
_BOM = b"\xef\xbb\xbf"
MAX_INPUT_BYTES = 64 * 1024 * 1024
"""What is read of a payload file before we give up on it; the real limit counts the compact form."""
_PAGE = 100


def submit(args: argparse.Namespace) -> int:
    raw: dict[str, Any] = {"task_type": args.task_type, "payload": _json_object(args.payload, "payload")}
    wishes = {
        "queue": args.queue,
        "idempotency_key": args.idempotency_key,
        "max_attempts": args.max_attempts,
        "priority": args.priority,
        "timeout_ms": args.timeout_ms,
        "delay_seconds": args.delay_seconds,
        "metadata": None if args.metadata is None else _json_object(args.metadata, "metadata"),
    }
    raw.update((name, value) for name, value in wishes.items() if value is not None)

    async def send(session: Session) -> Submitted:
        return await session.client.submit(raw)

    done = run(args, send)
    if wants_json(args) or not (args.quiet or sys.stdout.isatty()):
        # Read by a program: the document, so that a repeat of the same key is told from a new task.
        output.document({"task_id": done.task_id, "status": done.status, "duplicate": done.duplicate})
    else:
        print(done.task_id)
        if done.duplicate:
            output.note(f"the key was used before: this is the earlier task, {done.status}")
    return 0


def get(args: argparse.Namespace) -> int:
    async def read(session: Session) -> tuple[Task, Any]:
        return await session.inspector.task(args.task_id), await session.inspector.result(args.task_id)

    task, result = run(args, read)
    if wants_json(args):
        output.document({**task_document(task), "result": result})
    else:
        _show(task, result)
    return 0


def list_(args: argparse.Namespace) -> int:
    async def read(session: Session) -> tuple[list[Task], bool]:
        return await collect(
            lambda limit, cursor: session.inspector.tasks(
                queue=args.queue, status=args.status, task_type=args.task_type, limit=limit, cursor=cursor
            ),
            args.limit,
        )

    tasks, more = run(args, read)
    if wants_json(args):
        output.document({"tasks": [task_document(task) for task in tasks], "more": more})
        return 0
    columns = [
        Column("TASK"), Column("TYPE", flexible=True), Column("QUEUE", flexible=True), Column("STATUS"),
        Column("ATT", right=True), Column("AGE", right=True),
    ]  # fmt: skip
    rows = [
        (t.task_id, t.task_type, t.queue, t.status, f"{t.attempt}/{t.max_attempts}", output.age(t.created_at))
        for t in tasks
    ]
    output.table(columns, rows, empty="no tasks")
    if more:
        output.note(f"more than {args.limit}: --limit N shows more")
    return 0


def cancel(args: argparse.Namespace) -> int:
    async def act(session: Session) -> None:
        await session.client.cancel(args.task_id, request_id=session.request_id)

    run(args, act)
    if wants_json(args):
        output.document({"task_id": args.task_id, "status": "cancelled"})
    else:
        print(f"{args.task_id} is cancelled")
    return 0


async def collect(page: Callable[[int, str | None], Awaitable[Page[T]]], limit: int) -> tuple[list[T], bool]:
    """Up to `limit` items over as many pages as it takes, and whether there are more."""
    items: list[T] = []
    cursor: str | None = None
    with progress() as tick:
        while True:
            found = await page(min(_PAGE, limit - len(items)), cursor)
            items += found.items
            cursor = found.cursor
            if cursor is None or len(items) >= limit:
                return items, cursor is not None
            if tick is not None:
                tick(len(items))


def _json_object(given: str, what: str) -> dict[str, Any]:
    """The object in `given`, in the file after @, or on stdin for -.

    Raises InvalidTask for what is not a JSON object, InvalidArgument for a file that cannot be read.
    """
    value = decode_json(_text_of(given, what), what)
    if not isinstance(value, dict):
        raise InvalidTask(f"{what}: a JSON object is needed, as {json.dumps({'key': 'value'})}")
    return value


def _text_of(given: str, what: str) -> str | bytes:
    if given == "-":
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    elif given.startswith("@"):
        try:
            with open(given[1:], "rb") as file:
                data = file.read(MAX_INPUT_BYTES + 1)
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "not a file name"
            raise InvalidArgument(f"{what} file {given[1:]}: {reason}") from None
    else:
        return given
    if len(data) > MAX_INPUT_BYTES:
        raise PayloadTooLarge(f"{what} has more than {MAX_INPUT_BYTES} bytes")
    return data.removeprefix(_BOM)


def _show(task: Task, result: Any) -> None:
    rows = [
        ("task", task.task_id),
        ("type", task.task_type),
        ("queue", f"{task.queue}, priority {task.priority}"),
        ("status", str(task.status)),
        ("attempts", f"{task.attempt} of {task.max_attempts}"),
        ("created", output.when(task.created_at)),
    ]
    if not task.status.is_terminal and task.available_at > task.created_at:
        rows.append(("due", output.when(task.available_at)))
    rows.append(("timeout", output.milliseconds(task.timeout_ms)))
    if task.idempotency_key:
        rows.append(("key", clean(task.idempotency_key, 200)))
    if task.cancel_requested and not task.status.is_terminal:
        rows.append(("cancel", "requested; its worker will stop it"))
    rows.append(("payload", "(cannot be read)" if task.payload is None else output.pretty(task.payload)))
    if task.metadata:
        rows.append(("metadata", output.pretty(task.metadata)))
    if result is not None:
        rows.append(("result", output.pretty(result)))
    output.fields(rows)
    if task.history:
        print()
        _show_attempts(task)


def _show_attempts(task: Task) -> None:
    columns = [
        Column("ATT", right=True), Column("STARTED"), Column("TOOK", right=True), Column("WORKER", name=True),
        Column("OUTCOME", wraps=True),
    ]  # fmt: skip
    rows = [
        (
            a.attempt,
            "-" if a.started_at is None else a.started_at.strftime("%H:%M:%S"),
            output.milliseconds(a.duration_ms),
            a.worker_id or "-",
            _outcome(a, task, is_last=a is task.history[-1]),
        )
        for a in task.history
    ]
    output.table(columns, rows, empty="")


def _outcome(attempt: Attempt, task: Task, *, is_last: bool) -> str:
    if attempt.error_class:
        retried = (
            f", again after {output.milliseconds(attempt.retry_delay_ms)}" if attempt.retry_delay_ms is not None else ""
        )
        return f"{attempt.error_class}: {attempt.error_message or ''}{retried}"
    if attempt.finished_at is None:
        return "running" if is_last and task.status == "running" else "did not end: its worker was lost"
    return str(task.status) if is_last else "ended"
