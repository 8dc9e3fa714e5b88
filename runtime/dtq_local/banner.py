"""What `dtq up` says once everything runs: what runs where, and what to type next. Pure text."""

from __future__ import annotations

import os
import shutil
import sys

from dtq_core.text import redact
from dtq_local.state import DEFAULT, UpRecord

_DEMO = "dtq_examples.tasks"


def render(record: UpRecord, *, state_shown: str, concurrency: int, command: str) -> str:
    """The banner. `command` is how this user calls `dtq`; `state_shown` the state directory as given."""
    rows = [("engine", _engine(record, state_shown))]
    for name, pid in record.processes.items():
        rows.append((name, f"pid {pid}{_work(name, record, concurrency)}"))
    rows.append(("tasks", ", ".join(record.task_modules)))
    lines = ["", "DTQ is up.", "", *(f"  {name:<10} {text}" for name, text in rows), ""]
    if state_shown == DEFAULT:
        lines.append("In another terminal, in this directory:")
        elsewhere = f"Anywhere else first:  {_export(record)}"
    else:
        lines += ["In another terminal:", "", f"  {_export(record)}"]
        elsewhere = ""
    queue = "" if "default" in record.queues else f" --queue {record.queues[0]}"
    known = "echo_task" if _DEMO in record.task_modules else "YOUR_TASK"
    lines += [
        "",
        f'  {command} submit --type {known} --payload \'{{"hello": "world"}}\'{queue}',
        f"  {command} list",
        f"  {command} get TASK_ID",
        f"  {command} queue stats",
        "",
    ]
    if elsewhere:
        lines += [elsewhere, ""]
    lines += ["Ctrl-C finishes what runs, then stops everything.", ""]
    return "\n".join(lines)


def _work(name: str, record: UpRecord, concurrency: int) -> str:
    if name == "api":
        closed = "" if record.api_key else "; for this machine only, since DTQ_API_KEY is not set"
        return f", {record.api}{closed}"
    return "" if name == "scheduler" else f", {concurrency} at a time, queue {', '.join(record.queues)}"


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


def _engine(record: UpRecord, state_shown: str) -> str:
    if record.engine is None:
        return f"{redact(record.url)} (given)"
    return (
        f"{record.engine['version']} on 127.0.0.1:{record.engine['port']}, pid {record.engine['pid']},"
        f" data in {os.path.join(state_shown, 'engine')}"
    )


def _export(record: UpRecord) -> str:
    shown = redact(record.url)
    return f"export DTQ_REDIS_URL={shown if shown == record.url else '… (the URL you gave)'}"
