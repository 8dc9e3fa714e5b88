"""The common course of the commands that destroy: refuse or ask, say how far it is, report what was done."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable

from dtq_cli import confirm, output
from dtq_cli.arguments import wants_json
from dtq_cli.session import Session, run
from dtq_cli.streams import progress
from dtq_core.client import PurgeReport

Act = Callable[[Session, bool, Callable[[int], None] | None, int], Awaitable[PurgeReport]]


def purge_with_care(
    args: argparse.Namespace, *, what: str, ask: Callable[[int], str], done: Callable[[int], str], act: Act
) -> int:
    """`act(session, dry_run, progress, until_ms)` after --yes or a yes; 1 after a no.

    After a question only what was there when it was asked is touched.

    Raises InvalidArgument without --yes and without a terminal.
    """
    confirm.require_terminal(args, what)

    async def look(session: Session) -> PurgeReport:
        return await act(session, True, None, 0)

    async def destroy(session: Session) -> PurgeReport:
        with progress() as tick:
            return await act(session, False, tick, until_ms)

    until_ms = 0
    if args.dry_run or not args.yes:
        report = run(args, look)
        if args.dry_run:
            return _report(args, report, f"dry run, would be: {done(report.matched)}")
        if report.matched and not confirm.ask(ask(report.matched)):
            output.note("nothing was changed")
            return 1
        until_ms = report.looked_at_ms
    report = run(args, destroy)
    status = _report(args, report, done(report.changed))
    if until_ms and (later := run(args, look).matched):
        output.note(f"{later} came after the question and {'was' if later == 1 else 'were'} left")
    return status


def _report(args: argparse.Namespace, report: PurgeReport, sentence: str) -> int:
    if wants_json(args):
        output.document(report.document())
        return 0
    print(sentence)
    if report.dry_run:
        for task_id in report.sample:
            print(f"  {task_id}")
        if report.matched > len(report.sample):
            print(f"  {output.ellipsis()} and {report.matched - len(report.sample)} more")
    return 0
