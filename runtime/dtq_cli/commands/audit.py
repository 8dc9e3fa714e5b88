"""audit verify: status 0 when everything is where it must be, 1 when something is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.session import Session, run
from dtq_cli.streams import progress
from dtq_core import audit
from dtq_core.audit import AuditReport
from dtq_core.errors import InvalidArgument
from dtq_core.task import TASK_ID


def verify(args: argparse.Namespace) -> int:
    receipts = None if args.receipts is None else list(_receipts(args.receipts))

    async def check(session: Session) -> AuditReport:
        with progress() as tick:
            return await audit.verify(
                session.store, session.settings, queue=args.queue, receipts=receipts, progress=tick
            )

    report = run(args, check)
    if wants_json(args):
        output.document({"ok": report.ok, **asdict(report)})
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: AuditReport) -> None:
    for finding in report.findings:
        output.paragraph("wrong", f"{finding.kind}: {finding.message}")
    for note in report.notes:
        output.paragraph("note", note)
    seen = (
        output.count(report.queues, "queue"),
        output.count(report.tasks, "task"),
        output.count(report.entries, "entry", "entries"),
    )
    if report.ok:
        output.paragraph("ok", f"{', '.join(seen)}: nothing is lost, nothing is double, every counter adds up")
    else:
        output.paragraph("wrong", f"{', '.join(seen)}: {output.count(len(report.findings), 'finding')}")


def _receipts(name: str) -> Iterator[str]:
    """Task ids, one a line; what follows an id in its line, empty lines and lines that begin with # are ignored.

    Raises InvalidArgument for a file that cannot be read and for a line that holds no id: to skip it would be to vouch
    for it.
    """
    try:
        with sys.stdin if name == "-" else open(name, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                words = line.split(None, 1)
                if not words or words[0].startswith("#"):
                    continue
                if not TASK_ID.fullmatch(words[0]):
                    raise InvalidArgument(f"receipts {name}, line {number}: {words[0][:40]!r} is no task id")
                yield words[0]
    except OSError as exc:
        raise InvalidArgument(f"receipts {name}: {exc.strerror}") from None
