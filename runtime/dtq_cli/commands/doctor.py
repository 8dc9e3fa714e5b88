"""doctor: what is wrong with this installation, and the command that mends it."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import asdict
from urllib.parse import unquote, urlsplit

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.hints import hint_for
from dtq_cli.output import Column
from dtq_cli.session import Session, run, settings_for
from dtq_core.doctor import WHY, Facts, Finding, Report, Severity, examine, gather
from dtq_core.doctor.shell import Shell
from dtq_core.errors import DtqError, StoreError
from dtq_core.text import clean

EXIT_CANNOT_RUN = 2
_REFUSED_COMMAND = re.compile(r"permissions to run the '([a-z|]+)' command")


def doctor(args: argparse.Namespace) -> int:
    """0 without errors, 1 with one (with --strict: or a warning), 2 where nothing could be checked."""

    async def look(session: Session) -> Facts:
        elsewhere = bool(getattr(args, "redis", None))
        return await gather(session.store, session.settings, grace_period_s=args.grace_period, elsewhere=elsewhere)

    try:
        facts = run(args, look)
    except DtqError as exc:
        report = _refused_at_the_door(exc, args)
        if report is None:
            hint = hint_for(exc)
            output.note(f"error {exc.code}: {clean(exc.message, 600)}{f' ({hint})' if hint else ''}")
            return EXIT_CANNOT_RUN
        server = ""
    else:
        report = examine(facts)
        server = _server(facts)
    bad = (Severity.ERROR, Severity.WARNING) if args.strict else (Severity.ERROR,)
    ok = not any(finding.severity in bad for finding in report.findings)
    if wants_json(args):
        output.document({"ok": ok, "server": server, **asdict(report)})
    else:
        _show(report, server)
    return 0 if ok else 1


def _refused_at_the_door(exc: DtqError, args: argparse.Namespace) -> Report | None:
    """Not even a connection can be made, for a command that each of them begins with."""
    refused = _REFUSED_COMMAND.search(exc.message)
    if not isinstance(exc, StoreError) or not refused:
        return None
    name = refused[1]
    url = settings_for(args).redis_url.get_secret_value()
    user = unquote(urlsplit(url).username or "") or "default"
    finding = Finding(
        "ACL_COMMANDS", Severity.ERROR, f"this user may not run {name}, with which every connection begins",
        WHY["ACL_COMMANDS"], Shell.at(url, os.environ).redis("ACL", "SETUSER", user, f"+{name}"),
    )  # fmt: skip
    return Report((finding,), ())


def _server(facts: Facts) -> str:
    info = facts.info if isinstance(facts.info, dict) else {}
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else ""


def _show(report: Report, server: str) -> None:
    if report.findings:
        columns = [Column("SEVERITY"), Column("CODE"), Column("FINDING", wraps=True)]
        output.table(columns, [(f.severity, f.code, f.what) for f in report.findings], empty="")
        for finding in report.findings:
            print()
            print(finding.code)
            output.paragraph("why", finding.why)
            print(f"fix    {clean(finding.fix, 8000)}")  # not wrapped: it is there to be copied
        print()
    for because in dict.fromkeys(skipped.because for skipped in report.not_checked):
        checks = ", ".join(skipped.check for skipped in report.not_checked if skipped.because == because)
        output.paragraph("note", f"not checked: {checks}, because {because}")
    count = output.count(len(report.findings), "finding") if report.findings else "nothing to complain about"
    output.paragraph("wrong" if report.findings else "ok", f"{server or 'the server'}: {count}")
