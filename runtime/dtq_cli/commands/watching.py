"""workers, events."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

from dtq_cli import output, streams
from dtq_cli.arguments import wants_json
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_core.errors import RedisUnavailable
from dtq_core.events import Event
from dtq_core.inspector import WorkerInfo, worker_document

_AGAIN_S = 1.0
_LOOK_S = 0.5


def workers(args: argparse.Namespace) -> int:
    async def read(session: Session) -> list[WorkerInfo]:
        return await session.inspector.workers()

    found = run(args, read)
    if wants_json(args):
        output.document({"workers": [worker_document(worker) for worker in found]})
        return 0
    columns = [
        Column("WORKER", name=True), Column("HOST", flexible=True), Column("STATUS"), Column("BUSY", right=True),
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
        async for event in _feed(session, follow=args.follow):
            if args.queue in (None, event.queue):
                _print(event, as_json=wants_json(args))

    async def until_done(session: Session) -> None:
        try:
            async with asyncio.timeout(None if args.follow else args.seconds), asyncio.TaskGroup() as group:
                group.create_task(listen(session))
                group.create_task(_until_nobody_reads())
        except TimeoutError:
            pass
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    run(args, until_done)
    return 0


async def _feed(session: Session, *, follow: bool) -> AsyncIterator[Event]:
    """Events. With `follow` an outage of Redis does not end them: it is told on stderr, and what happens meanwhile is missed."""
    heard = away = False

    def ready() -> None:
        nonlocal heard, away
        if away:
            output.note("connected again; events in between were not seen")
        heard, away = True, False

    while True:
        try:
            async for event in session.inspector.events(ready):
                yield event
        except RedisUnavailable as exc:
            if not (follow and heard):  # a server that was never there is an error
                raise
            if not away:
                output.note(f"{exc.message}; trying again")
            away = True
            await asyncio.sleep(_AGAIN_S)


async def _until_nobody_reads() -> None:
    """Raises BrokenPipeError once the reader of a pipe is gone, also when there is nothing to write."""
    while True:
        if streams.nobody_reads():
            raise BrokenPipeError
        await asyncio.sleep(_LOOK_S)


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
