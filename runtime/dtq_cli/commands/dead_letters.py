"""dlq list, retry-dlq, discard-dlq, purge-dlq."""

from __future__ import annotations

import argparse

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.commands.purging import purge_with_care
from dtq_cli.commands.tasks import collect
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_core.inspector import DeadLetter, letter_document


def list_(args: argparse.Namespace) -> int:
    async def read(session: Session) -> tuple[list[DeadLetter], bool]:
        return await collect(
            lambda limit, cursor: session.inspector.dead_letters(queue=args.queue, limit=limit, cursor=cursor),
            args.limit,
        )

    letters, more = run(args, read)
    if wants_json(args):
        output.document({"dead_letters": [letter_document(letter) for letter in letters], "more": more})
        return 0
    columns = [
        Column("TASK"), Column("TYPE", flexible=True), Column("QUEUE", flexible=True), Column("ATT", right=True),
        Column("AGE", right=True), Column("ERROR", flexible=True),
    ]  # fmt: skip
    rows = [
        (
            x.task_id,
            x.task_type,
            x.queue,
            x.attempts_made,
            output.age(x.failed_at),
            f"{x.last_error_class}: {x.last_error}",
        )
        for x in letters
    ]
    output.table(columns, rows, empty="no dead letters")
    if more:
        output.note(f"more than {args.limit}: --limit N shows more")
    return 0


def retry(args: argparse.Namespace) -> int:
    async def act(session: Session) -> None:
        await session.client.requeue(args.task_id, request_id=session.request_id)

    run(args, act)
    if wants_json(args):
        output.document({"task_id": args.task_id, "status": "queued"})
    else:
        print(f"{args.task_id} is queued again, attempts from 0")
    return 0


def discard(args: argparse.Namespace) -> int:
    async def act(session: Session) -> None:
        await session.client.discard(args.task_id, request_id=session.request_id)

    run(args, act)
    if wants_json(args):
        output.document({"task_id": args.task_id, "status": "dead_lettered", "discarded": True})
    else:
        print(f"the dead letter of {args.task_id} is dropped")
    return 0


def purge(args: argparse.Namespace) -> int:
    where = f" of queue {args.queue}" if args.queue else ""
    return purge_with_care(
        args,
        what="dropping dead letters",
        ask=lambda n: f"Drop {output.count(n, 'dead letter')}{where}?",
        done=lambda n: f"{output.count(n, 'dead letter')}{where} dropped",
        act=lambda session, dry_run, progress, until_ms: session.client.purge_dead_letters(
            queue=args.queue, dry_run=dry_run, request_id=session.request_id, progress=progress, until_ms=until_ms
        ),
    )
