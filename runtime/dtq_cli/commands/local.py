"""up, status, down, logs: everything on this machine as one thing, and what one does with it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from dtq_cli import output, streams
from dtq_cli.arguments import wants_json
from dtq_cli.commands.processes import look_here, ping, queues, reached
from dtq_cli.confirm import ask
from dtq_core.config import load_settings
from dtq_core.errors import AlreadyRunning, InvalidArgument
from dtq_core.text import clean, redact
from dtq_local.logfile import LogReader
from dtq_local.state import StateDir, UpRecord

if TYPE_CHECKING:
    from dtq_local.options import UpOptions

_OWN_ENGINE = "redis://127.0.0.1:6379/0"
"""Stands for the engine that is not there yet, so that an unused DTQ_REDIS_URL cannot be wrong; never connected to."""
_POLL_S = 0.1


def up(args: argparse.Namespace) -> int:
    from dtq_local.sources import require_watchfiles
    from dtq_local.supervisor import Supervisor

    look_here()
    if args.reload:
        require_watchfiles()
    options = _options(args)
    if args.fresh and not _may_wipe(args, options.state):
        output.note("nothing was changed")
        return 1
    try:
        return Supervisor(options).run()
    except AlreadyRunning:
        if record := options.state.running():
            _show(record, options.state, args)
        raise


def status(args: argparse.Namespace) -> int:
    state = StateDir(args.state)
    record = state.running()
    if record is not None:
        _show(record, state, args)
        return 0
    starting = state.held()
    if wants_json(args):
        output.document({"running": False, "starting": starting})
    else:
        print(f"dtq up is just starting on {state.shown}" if starting else f"nothing runs on {state.shown}")
    return 1


def down(args: argparse.Namespace) -> int:
    from dtq_local.stopping import stop

    state = StateDir(args.state)
    record = state.running()
    patience_s = args.timeout if args.timeout is not None else record.stop_s if record else 60.0
    if record is not None and not args.now:
        output.note(f"dtq up (pid {record.pid}) finishes what runs, at most {patience_s:g} s")
    pid = stop(state, patience_s, now=args.now)
    if wants_json(args):
        output.document({"stopped": pid})
    else:
        print(f"nothing runs on {state.shown}" if pid is None else f"dtq up (pid {pid}) has ended; its data stays")
    return 0


def logs(args: argparse.Namespace) -> int:
    state = StateDir(args.state)
    of_engine = args.name == "engine"
    reader = LogReader(state.engine_dir / "engine.log" if of_engine else state.log_file)
    if not reader.exists() and not args.follow:
        raise InvalidArgument(f"there is no log in {state.shown}: dtq up writes one")
    _print(_kept(args, reader, state), args)
    while args.follow:
        if streams.nobody_reads():
            raise BrokenPipeError
        _print((line for line in reader.read() if of_engine or _is_of(line, args.name)), args)
        time.sleep(_POLL_S)
    return 0


def _options(args: argparse.Namespace) -> UpOptions:
    """Raises InvalidConfig, InvalidArgument, and RedisUnavailable where a given server does not answer."""
    from dtq_local.options import UpOptions

    own_engine = getattr(args, "redis", None) is None
    if args.fresh and not own_engine:
        raise InvalidArgument("--fresh is for the engine that dtq up starts itself; empty a given server yourself")
    if args.yes and not args.fresh:
        raise InvalidArgument("--yes answers the question of --fresh and means nothing without it")
    settings = load_settings(
        redis_url=_OWN_ENGINE if own_engine else _given_url(args.redis),
        task_modules=args.tasks,
        worker_concurrency=args.concurrency,
    )
    if not own_engine:
        reached(args, settings, lambda: asyncio.run(ping(settings)))
    return UpOptions(
        settings=settings,
        state=StateDir(args.state),
        workers=args.workers,
        queues=queues(args.queues),
        own_engine=own_engine,
        engine_port=args.port,
        reload=args.reload,
        fresh=args.fresh,
        as_json=wants_json(args),
    )


def _given_url(flag: str) -> str | None:
    """`--redis URL`, or DTQ_REDIS_URL for a bare `--redis`. Raises InvalidArgument where it is not set."""
    if not flag and not os.environ.get("DTQ_REDIS_URL"):
        raise InvalidArgument("--redis without a URL takes DTQ_REDIS_URL, which is not set")
    return flag or None


def _may_wipe(args: argparse.Namespace, state: StateDir) -> bool:
    """Ask, where there is something to lose. One that runs is refused later, and told by whom."""
    from dtq_local import wiping

    if state.held():
        return True
    there = wiping.contents(state)
    if not there or args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgument(
            f"--fresh deletes all tasks and logs kept in {state.shown}, and nobody can be asked: say --yes"
        )
    amount = wiping.size(there) / 1_000_000
    return ask(f"Delete all tasks and logs that are kept in {state.shown} ({amount:.1f} MB)?")


def _show(record: UpRecord, state: StateDir, args: argparse.Namespace) -> None:
    from dtq_local import banner

    if wants_json(args):
        output.document({"running": True, **asdict(record), "url": redact(record.url)})
        return
    ready = "" if record.ready else ", not all of it works yet"
    print(f"dtq up runs with pid {record.pid} since {record.started_at}{ready}")
    print("\n".join(banner.rows(record, state.shown)))


def _kept(args: argparse.Namespace, reader: LogReader, state: StateDir) -> Iterable[str]:
    """The last lines, of one process where it is named. Raises InvalidArgument for a name that no process has or had."""
    if args.name in (None, "engine"):
        return deque(reader.read(), args.lines)
    record = state.running()
    names = {"dtq", *(record.names if record else ())}
    lines: deque[str] = deque(maxlen=args.lines)
    for line in reader.read():
        if name := _name_of(line):
            names.add(name)
        if _is_of(line, args.name):
            lines.append(line)
    if args.name not in names:
        raise InvalidArgument(f"no process is called {clean(args.name, 40)!r}: {', '.join(sorted(names | {'engine'}))}")
    return lines


def _name_of(line: str) -> str:
    prefix, bar, _ = line.partition(" | ")
    name = prefix.rstrip()
    return name if bar and name and " " not in name and len(name) < 40 else ""


def _is_of(line: str, name: str | None) -> bool:
    return name is None or _name_of(line) == name


def _print(lines: Iterable[str], args: argparse.Namespace) -> None:
    """Lines as they are, made harmless for a terminal; whole batches, so that nothing is held back."""
    for batch in _batches(lines):
        if wants_json(args):
            for line in batch:
                name = _name_of(line)
                output.json_line({"name": name or None, "line": line.partition(" | ")[2] if name else line})
        else:
            sys.stdout.write("".join(f"{clean(line, 10_000)}\n" for line in batch))
            sys.stdout.flush()


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    source = iter(lines)
    while batch := list(itertools.islice(source, 500)):
        yield batch
