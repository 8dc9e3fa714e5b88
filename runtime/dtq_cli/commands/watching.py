"""workers, events."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from dataclasses import asdict

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_core.events import Event
from dtq_core.inspector import WorkerInfo, worker_document


def workers(args: argparse.Namespace) -> int:
    async def read(session: Session) -> list[WorkerInfo]:
        return await session.inspector.workers()

    found = run(args, read)
    if wants_json(args):
        output.document({"workers": [worker_document(worker) for worker in found]})
        return 0
    columns = [
        Column("WORKER", flexible=True), Column("HOST", flexible=True), Column("STATUS"), Column("BUSY", right=True),
        Column("DONE", right=True), Column("FAILED", right=True), Column("SEEN", right=True),
        Column("QUEUES", flexible=True),
    ]  # fmt: skip
    rows = [
        (
            w.worker_id, w.hostname, w.status, f"{w.active_tasks}/{w.concurrency}", w.tasks_processed, w.tasks_failed,
            f"{output.span(w.age_s)} ago", ",".join(w.queues),
        )
        for w in found
    ]  # fmt: skip
    output.table(columns, rows, empty="no workers: start one with `dtq worker run`, or all with `dtq up`")
    return 0


def events(args: argparse.Namespace) -> int:
    if not args.follow and sys.stderr.isatty():
        output.note(f"listening for {args.seconds:g} s; the feed is not stored, and --follow goes on")

    async def listen(session: Session) -> None:
        limit = None if args.follow else args.seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                async for event in session.inspector.events():
                    if args.queue in (None, event.queue):
                        _print(event, as_json=wants_json(args))

    run(args, listen)
    return 0


def _print(event: Event, *, as_json: bool) -> None:
    if as_json:
        output.json_line({**asdict(event), "ts": event.ts.isoformat(timespec="milliseconds")})
        return
    words = [event.ts.strftime("%H:%M:%S"), f"{event.type:<18}", event.task_id or event.worker_id or ""]
    if event.task_type:
        words.append(f"{event.task_type} on {event.queue}, attempt {event.attempt}")
    elif event.queue:
        words.append(event.queue)
    output.line("  ".join(words))
