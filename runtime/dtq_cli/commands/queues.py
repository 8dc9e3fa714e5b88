"""purge, queue pause, queue resume, queue stats."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import asdict

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.commands.purging import purge_with_care
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_core.inspector import QueueStats


def purge(args: argparse.Namespace) -> int:
    return purge_with_care(
        args,
        what=f"emptying queue {args.queue}",
        ask=lambda n: f"Cancel {output.count(n, 'task')} of queue {args.queue} that have not started?",
        done=lambda n: f"{output.count(n, 'task')} of queue {args.queue} cancelled",
        act=lambda session, dry_run, progress, until_ms: session.client.purge_queue(
            args.queue, dry_run=dry_run, request_id=session.request_id, progress=progress, until_ms=until_ms
        ),
    )


def pause(args: argparse.Namespace) -> int:
    async def act(session: Session) -> bool:
        await _mention_unknown(session, args.queue)
        return await session.client.pause(args.queue, request_id=session.request_id)

    changed = run(args, act)
    return _report(args, paused=True, changed=changed)


def resume(args: argparse.Namespace) -> int:
    async def act(session: Session) -> bool:
        await _mention_unknown(session, args.queue)
        return await session.client.resume(args.queue, request_id=session.request_id)

    changed = run(args, act)
    return _report(args, paused=False, changed=changed)


def stats(args: argparse.Namespace) -> int:
    async def read(session: Session) -> list[QueueStats]:
        if args.queue is not None:
            await _mention_unknown(session, args.queue)
            return [await session.inspector.queue(args.queue)]
        return sorted(await session.inspector.queues(), key=lambda q: q.queue)

    queues = run(args, read)
    if wants_json(args):
        documents = [asdict(queue) for queue in queues]
        output.document({"queues": documents} if args.queue is None else documents[0])
        return 0
    columns = [
        Column("QUEUE", flexible=True), Column("WAITING", right=True), Column("RUNNING", right=True),
        Column("DELAYED", right=True), Column("DEAD", right=True), Column("WORKERS", right=True), Column("STATE"),
    ]  # fmt: skip
    rows = [
        (
            q.queue,
            q.waiting,
            q.pending,
            q.retry_scheduled,
            q.dlq_depth,
            q.workers_active,
            "paused" if q.paused else "open",
        )
        for q in queues
    ]
    output.table(columns, rows, empty="no queues yet: they come into being with their first task")
    return 0


async def _mention_unknown(session: Session, queue: str) -> None:
    """A queue comes into being with its first task, so an unknown name is legal, and most often a slip of the keyboard."""
    names = await session.inspector.queue_names()
    if queue not in names:
        close = difflib.get_close_matches(queue, names, 1)
        output.note(f"there is no queue {queue} yet{f'; did you mean {close[0]}?' if close else ''}")


def _report(args: argparse.Namespace, *, paused: bool, changed: bool) -> int:
    if wants_json(args):
        output.document({"queue": args.queue, "paused": paused, "changed": changed})
    else:
        state = "paused" if paused else "open"
        print(f"queue {args.queue} is {state}" if changed else f"queue {args.queue} was {state} already")
    return 0
