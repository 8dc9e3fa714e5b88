"""What `dtq up` says once everything runs, and `dtq status` at any time: what runs where, what to type next. Pure text."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

from dtq_core.text import redact
from dtq_local.state import DEFAULT, UpRecord

_DEMO = "dtq_examples.tasks"
_WIDTH = 80
_INDENT = 13


def render(record: UpRecord, state_shown: str, command: str, missing: tuple[str, ...] = ()) -> str:
    """The banner. `command` is how this user calls `dtq`; `state_shown` the state directory as given; `missing` what does
    not work yet."""
    lines = ["", _headline(missing), "", *rows(record, state_shown), ""]
    if state_shown == DEFAULT:
        lines.append("In another terminal, in this directory:")
        elsewhere = f"Anywhere else first:  {_export(record)}"
    else:
        lines += ["In another terminal:", "", f"  {_export(record)}"]
        elsewhere = ""
    queue = "" if "default" in record.queues else f" --queue {record.queues[0]}"
    known, payload = ("echo_task", '{"hello": "world"}') if _DEMO in record.task_modules else ("YOUR_TASK", "{}")
    lines += [
        "",
        f"  {command} submit --type {known} --payload '{payload}'{queue}",
        f"  {command} list",
        f"  {command} get TASK_ID",
        f"  {command} queue stats",
        "",
    ]
    if elsewhere:
        lines += [elsewhere, ""]
    lines += ["Ctrl-C finishes what runs, then stops everything.", ""]
    return "\n".join(lines)


def rows(record: UpRecord, state_shown: str) -> list[str]:
    """One row per thing that runs, in 80 columns; what is too long for one line goes on in the next."""
    found = [("engine", _engine(record, state_shown))]
    for name in record.names:
        pid = record.processes.get(name)
        found.append((name, f"pid {pid}{_work(name, record)}" if pid else "does not run at the moment"))
    found.append(("tasks", ", ".join(record.task_modules) + ("; reloaded when they change" if record.reload else "")))
    found.append(("log", os.path.join(state_shown, "up.log")))
    return [line for name, text in found for line in _row(name, text)]


def how_to_call() -> str:
    """`dtq` if the shell would find this very program under that name, else a path that works from here."""
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return f"{os.path.basename(sys.executable)} -m dtq_cli"
    found = shutil.which("dtq")
    if found and os.path.realpath(found) == os.path.realpath(program):
        return "dtq"
    near = os.path.relpath(program)
    return program if near.startswith("..") else near


def _headline(missing: tuple[str, ...]) -> str:
    if not missing:
        return "DTQ is up."
    text = f"DTQ is only partly up. Not there yet: {', '.join(missing)}. The log above says why; it is tried again."
    return textwrap.fill(text, _WIDTH)


def _row(name: str, text: str) -> list[str]:
    first, *more = textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {name:<{_INDENT - 3}} {first}".rstrip(), *(f"{'':<{_INDENT}}{line}" for line in more)]


def _work(name: str, record: UpRecord) -> str:
    if name == "api":
        return f", {record.api}{_reach(record)}"
    return "" if name == "scheduler" else f", {record.concurrency} at a time, queue {', '.join(record.queues)}"


def _reach(record: UpRecord) -> str:
    if "//127.0.0.1:" not in (record.api or ""):
        return ""
    return "; for this machine only" + ("; DTQ_API_HOST opens it" if record.api_key else ", where no key is needed")


def _engine(record: UpRecord, state_shown: str) -> str:
    if not record.own_engine:
        return f"{redact(record.url)} (given)"
    if record.engine is None:
        return "does not run at the moment"
    return (
        f"{record.engine['version']} on 127.0.0.1:{record.engine['port']}, pid {record.engine['pid']},"
        f" data in {os.path.join(state_shown, 'engine')}"
    )


def _export(record: UpRecord) -> str:
    shown = redact(record.url)
    return f"export DTQ_REDIS_URL={shown if shown == record.url else '… (the URL you gave)'}"
