"""demo: fill a server with a believable day."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_cli.streams import progress
from dtq_core.doctor.shell import Shell, quote
from dtq_core.errors import InvalidArgument
from dtq_local.demo import Day, DemoReport, holds_tasks


def demo(args: argparse.Namespace) -> int:
    """Raises InvalidArgument where there are tasks already and --yes was not said."""

    async def fill(session: Session) -> tuple[DemoReport, str]:
        mixed = await holds_tasks(session.store)
        if mixed and not args.yes:
            raise InvalidArgument(_in_the_way(session))
        day = await Day.open(session.settings, args.seed, args.tasks, mixed=mixed)
        with progress() as tick:
            return await day.play(tick), _removal(session)

    report, removal = run(args, fill)
    if wants_json(args):
        output.document({**asdict(report), "remove": removal})
    else:
        _show(report, removal)
    return 0


def _in_the_way(session: Session) -> str:
    """What to do about tasks that are there: go elsewhere, unless this is that place already."""
    prefix = session.settings.key_prefix
    there = f"there are tasks under {prefix}: already; --yes puts the day among them"
    if prefix.strip("{}") == "demo":
        return f"{there}, and this removes what is there: {_removal(session)}"
    apart = "{demo}" if prefix.startswith("{") else "demo"
    return f"{there}, DTQ_KEY_PREFIX={quote(apart)} dtq demo keeps it apart"


def _removal(session: Session) -> str:
    shell = Shell.at(session.settings.redis_url.get_secret_value(), os.environ)
    return shell.removal(session.settings.key_prefix)


def _show(report: DemoReport, removal: str) -> None:
    columns = [Column("STATUS"), Column("TASKS", right=True)]
    output.table(columns, [(status, count) for status, count in report.statuses.items()], empty="")
    print(f"\nqueues  {', '.join(report.queues)}")
    print("look    dtq queue stats; dtq list; dtq dlq list; dtq workers; dtq audit verify")
    print(f"remove  {removal}")
    print("fades   its workers are only rows, behind which nobody works: they go within an hour")
    if not report.alone:
        output.note(
            "another scheduler runs here and moved tasks in its own time: the day is not quite that of the seed"
        )
