"""The tree of commands, and the door through which every failure leaves: one line on stderr and an exit status.

Every command is `module:function`, imported when it is called, so that `dtq get` does not pay for `dtq up`. The
invariants: a user never sees a traceback; stdout carries results only; the exit status follows errors.STATUS_OF_CODE.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from dtq_cli import output
from dtq_cli.arguments import EXIT_USAGE, Parser, common, json_option, port, positive, seconds, whole
from dtq_cli.hints import hint_for
from dtq_core.errors import STATUS_OF_CODE, DtqError
from dtq_core.task import TaskStatus
from dtq_core.text import clean

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\
Where Redis is: --redis URL, else DTQ_REDIS_URL, else the `dtq up` that runs in this directory,
else redis://localhost:6379/0. Exit status: 0 done, 1 refused or failed, 2 called wrongly.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    output.prepare()
    try:
        args = build_parser().parse_args(argv)
        command = getattr(args, "command", None)
        if command is None:
            args.parser.print_help(sys.stderr)
            return EXIT_USAGE
        status = _load(command)(args)
        sys.stdout.flush()
        return status
    except DtqError as exc:
        _complain(exc.code, exc.message, hint_for(exc))
        return STATUS_OF_CODE[exc.code][1]
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        output.discard_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as exc:
        return _internal_error(exc)


def build_parser() -> Parser:
    """The whole tree. Leaves carry `command`, inner nodes `parser` for their help."""
    shared = common()
    root = Parser("dtq", description="A distributed task queue on Redis Streams.", epilog=_EPILOG, parents=[shared])
    root.add_argument(
        "--version", action="store_const", const="processes:version", dest="command", help="print the version"
    )
    root.set_defaults(parser=root)
    commands = root.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def group(name: str, about: str) -> argparse._SubParsersAction[Parser]:
        node = commands.add_parser(name, help=about, description=_sentence(about), parents=[shared])
        node.set_defaults(parser=node)
        return node.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def leaf(
        where: argparse._SubParsersAction[Parser], name: str, command: str, about: str, *, own_options: bool = False
    ) -> Parser:
        parents = [] if own_options else [shared]
        node = where.add_parser(name, help=about, description=_sentence(about), parents=parents)
        node.set_defaults(command=command)
        return node

    _add_tasks(commands, leaf)
    _add_dead_letters(commands, group, leaf)
    _add_queues(commands, group, leaf)
    _add_watching(commands, group, leaf)
    _add_processes(commands, group, leaf)
    return root


_Commands = argparse._SubParsersAction
_Leaf = Callable[..., Parser]
_Group = Callable[[str, str], "_Commands[Parser]"]


def _add_tasks(commands: _Commands[Parser], leaf: _Leaf) -> None:
    submit = leaf(commands, "submit", "tasks:submit", "send a task")
    submit.add_argument(
        "--type", required=True, dest="task_type", metavar="T", help="the task type, as its handler is named"
    )
    submit.add_argument(
        "--payload", default="{}", metavar="JSON", help="a JSON object; @FILE reads a file, - reads stdin (default {})"
    )
    submit.add_argument("--queue", metavar="Q", help="the queue (default: default)")
    submit.add_argument(
        "--idempotency-key", metavar="KEY", help="a second submission with the same key gives the first task"
    )
    submit.add_argument("--max-attempts", type=whole, metavar="N", help="how often it may be started (default 5)")
    submit.add_argument("--priority", type=whole, metavar="P", help="0 to 9, higher first, strictly (default 5)")
    submit.add_argument("--timeout-ms", type=whole, metavar="MS", help="how long one attempt may take")
    submit.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print the task id and nothing else; where stdout is no terminal, a document is printed otherwise",
    )
    submit.add_argument("--delay-seconds", type=seconds, metavar="S", help="not before so many seconds from now")
    submit.add_argument(
        "--metadata", metavar="JSON", help='a JSON object kept with the task; {"ttl_seconds": 60} lets it expire'
    )

    get = leaf(commands, "get", "tasks:get", "show a task, its attempts and its result")
    get.add_argument("task_id", metavar="TASK_ID")

    listing = leaf(commands, "list", "tasks:list_", "list tasks, newest first")
    listing.add_argument("--queue", metavar="Q", help="only of this queue")
    listing.add_argument(
        "--status",
        choices=[str(s) for s in TaskStatus],
        metavar="S",
        help=f"only with this status: {', '.join(TaskStatus)}",
    )
    listing.add_argument("--type", dest="task_type", metavar="T", help="only of this task type")
    listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default 50)")

    cancel = leaf(commands, "cancel", "tasks:cancel", "cancel a task, or ask the worker that runs it to stop it")
    cancel.add_argument("task_id", metavar="TASK_ID")


def _add_dead_letters(commands: _Commands[Parser], group: _Group, leaf: _Leaf) -> None:
    dlq = group("dlq", "look at dead letters: tasks that are out of attempts")
    listing = leaf(dlq, "list", "dead_letters:list_", "list dead letters, newest first")
    listing.add_argument("--queue", metavar="Q", help="only of this queue")
    listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default 50)")

    retry = leaf(commands, "retry-dlq", "dead_letters:retry", "put a dead letter back on its queue, attempts from 0")
    retry.add_argument("task_id", metavar="TASK_ID")
    discard = leaf(
        commands, "discard-dlq", "dead_letters:discard", "drop one dead letter; its task stays to be looked at"
    )
    discard.add_argument("task_id", metavar="TASK_ID")
    purge = leaf(commands, "purge-dlq", "dead_letters:purge", "drop all dead letters")
    purge.add_argument("--queue", metavar="Q", help="only of this queue")
    _add_confirmation(purge)


def _add_queues(commands: _Commands[Parser], group: _Group, leaf: _Leaf) -> None:
    purge = leaf(commands, "purge", "queues:purge", "cancel everything of a queue that has not started")
    purge.add_argument("--queue", required=True, metavar="Q", help="the queue to empty")
    _add_confirmation(purge)

    queue = group("queue", "pause, resume and measure queues")
    pause = leaf(queue, "pause", "queues:pause", "start nothing more on a queue until it is resumed")
    pause.add_argument("queue", metavar="QUEUE")
    resume = leaf(queue, "resume", "queues:resume", "let a paused queue go on")
    resume.add_argument("queue", metavar="QUEUE")
    stats = leaf(queue, "stats", "queues:stats", "how much waits, runs, is retried and is dead, of one queue or of all")
    stats.add_argument("queue", nargs="?", metavar="QUEUE")


def _add_watching(commands: _Commands[Parser], group: _Group, leaf: _Leaf) -> None:
    leaf(commands, "workers", "watching:workers", "list workers and what they have done")
    events = leaf(
        commands, "events", "watching:events", "print what happens from now on; with --json one object a line"
    )
    events.add_argument("--follow", action="store_true", help="until Ctrl-C")
    events.add_argument(
        "--seconds", type=seconds, default=10.0, metavar="S", help="without --follow: for so long (default 10)"
    )
    events.add_argument("--queue", metavar="Q", help="only of this queue")

    audit = group("audit", "prove that nothing was lost")
    verify = leaf(
        audit, "verify", "audit:verify", "compare every record with every place it must be in; status 1 if one is wrong"
    )
    verify.add_argument("--queue", metavar="Q", help="only this queue")
    verify.add_argument(
        "--receipts", metavar="FILE", help="task ids kept by producers, one a line, that must exist; - reads stdin"
    )


def _add_processes(commands: _Commands[Parser], group: _Group, leaf: _Leaf) -> None:
    worker = leaf(
        group("worker", "run tasks"), "run", "processes:worker", "run tasks until SIGTERM or Ctrl-C", own_options=True
    )
    worker.add_argument(
        "--concurrency", type=positive, metavar="N", help="how many at a time (default DTQ_WORKER_CONCURRENCY, 4)"
    )
    worker.add_argument(
        "--queue",
        action="append",
        dest="queues",
        metavar="Q",
        help="serve this queue; may be repeated (default: default)",
    )
    _add_process_options(worker)
    scheduler = leaf(
        group("scheduler", "move delayed tasks and retries onto their queues"), "run", "processes:scheduler",
        "move what is due, until SIGTERM or Ctrl-C; a worker does it too", own_options=True,
    )  # fmt: skip
    _add_process_options(scheduler)

    api = leaf(
        group("api", "serve the HTTP API"), "run", "processes:api",
        "serve the HTTP API, its event feed and its metrics, until SIGTERM or Ctrl-C", own_options=True,
    )  # fmt: skip
    api.add_argument("--host", metavar="H", help="address to listen on (default DTQ_API_HOST)")
    api.add_argument("--port", type=port, metavar="P", help="port to listen on (default DTQ_API_PORT, 8000)")
    api.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes that share the port (default 1)"
    )
    _add_process_options(api)

    up = leaf(
        commands,
        "up",
        "processes:up",
        "start everything on this machine: engine, API, scheduler, workers",
        own_options=True,
    )
    up.add_argument("--workers", type=positive, default=2, metavar="N", help="worker processes (default 2)")
    up.add_argument("--concurrency", type=positive, metavar="M", help="tasks at a time in each (default 4)")
    up.add_argument("--tasks", metavar="MODULE[,MODULE]", help="modules with handlers (default: DTQ_TASK_MODULES)")
    up.add_argument(
        "--queue",
        action="append",
        dest="queues",
        metavar="Q",
        help="serve this queue; may be repeated (default: default)",
    )
    up.add_argument("--state", default=".dtq", metavar="DIR", help="where the data is kept (default .dtq)")
    up.add_argument(
        "--port", type=port, default=0, metavar="P", help="port of the engine (default: last time's, or a free one)"
    )
    up.add_argument(
        "--redis", nargs="?", const="", metavar="URL",
        help="use this server, not an own engine; without URL that of DTQ_REDIS_URL, which keeps a password private",
    )  # fmt: skip
    json_option(up, "one JSON document on stdout once everything runs; the log goes to stderr")


def _add_process_options(parser: Parser) -> None:
    parser.add_argument(
        "--redis", default=argparse.SUPPRESS, metavar="URL",
        help="the server to use; other users of this machine can read it, so put a password into DTQ_REDIS_URL",
    )  # fmt: skip
    json_option(parser, "log one JSON object a line, as DTQ_LOG_JSON=true does")


def _add_confirmation(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say how many, and name a few")


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


def _load(command: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = command.partition(":")
    found: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"dtq_cli.commands.{module}"), function
    )
    return found


def _internal_error(exc: Exception) -> int:
    """A fault of ours. The place is shown to who asks for it."""
    if os.environ.get("DTQ_LOG_LEVEL", "").upper() == "DEBUG":
        traceback.print_exc()
    _complain("INTERNAL", f"{type(exc).__name__}: {exc}", "a fault in DTQ; DTQ_LOG_LEVEL=DEBUG shows where")
    return STATUS_OF_CODE["INTERNAL"][1]


def _complain(code: str, message: str, hint: str) -> None:
    """The one line. A stderr that is gone must not turn it into a traceback."""
    with contextlib.suppress(OSError):
        print(f"error {code}: {clean(message, 600)}{f' ({hint})' if hint else ''}", file=sys.stderr)
