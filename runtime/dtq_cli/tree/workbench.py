"""new, up, status, down, logs: a project of one's own, and everything on one machine."""

from __future__ import annotations

from dtq_cli.arguments import Parser, between, json_option, not_negative, port, queue, seconds
from dtq_cli.tree.branch import Branch


def add(tree: Branch) -> None:
    new = tree.command(
        "new", "new:new", "make a project of your own: a task, its test, what a cluster needs",
        more="Makes the directory NAME here, and refuses if there is one. `cd NAME`, then `dtq up --tasks NAME.tasks` and"
        " `python -m pytest` work at once.",
        example="dtq new shop",
    )  # fmt: skip
    new.add_argument("name", metavar="NAME", help="name of the project and of its Python package")
    _add_up(tree)
    _add_companions(tree)


def _add_up(tree: Branch) -> None:
    up = tree.command(
        "up", "local:up", "start everything on this machine: engine, API, scheduler, workers",
        more="Where it runs already, it says what runs where and exits with 1.",
        example="dtq up\ndtq up --tasks shop.tasks --reload\ndtq up --workers 4 --queue default --queue mail",
        own_options=True, no_run="runs until Ctrl-C",
    )  # fmt: skip
    up.add_argument(
        "--workers", type=between(1, 64), default=2, metavar="N", help="worker processes, 1 to 64 (default 2)"
    )
    up.add_argument(
        "--concurrency", type=between(1, 1000), metavar="M",
        help="tasks at a time in each, 1 to 1000 (default DTQ_WORKER_CONCURRENCY, 4)",
    )  # fmt: skip
    up.add_argument("--tasks", metavar="MODULE[,MODULE]", help="modules with handlers (default: DTQ_TASK_MODULES)")
    up.add_argument(
        "--queue",
        action="append",
        type=queue,
        dest="queues",
        metavar="Q",
        help="serve this queue; may be repeated (default: default)",
    )
    up.add_argument("--reload", action="store_true", help="start workers and API anew when the task modules change")
    _state_option(up)
    up.add_argument("--fresh", action="store_true", help="delete first what is kept there; asks")
    up.add_argument("--yes", action="store_true", help="do not ask before --fresh deletes")
    up.add_argument(
        "--port", type=port, default=0, metavar="P", help="port of the engine (default: last time's, or a free one)"
    )
    up.add_argument(
        "--redis", nargs="?", const="", metavar="URL",
        help="use this server, not an own engine; without URL that of DTQ_REDIS_URL, which keeps a password private",
    )  # fmt: skip
    json_option(up, "one JSON document on stdout once everything runs; the log goes to stderr")


def _add_companions(tree: Branch) -> None:
    status = tree.command(
        "status", "local:status", "say what of a `dtq up` runs where; status 1 if none runs", example="dtq status"
    )
    _state_option(status)

    down = tree.command(
        "down", "local:down", "end the `dtq up` of a directory, after what runs is finished",
        more="Status 0 once nothing runs there, 1 if it has not ended in time. The data stays.",
        example="dtq down\ndtq down --state /tmp/trial --now", no_run="ends what runs",
    )  # fmt: skip
    _state_option(down)
    down.add_argument("--now", action="store_true", help="kill what runs; its tasks are taken over at the next start")
    down.add_argument(
        "--timeout", type=seconds, metavar="S", help="wait so long (default: as long as an orderly stop may take)"
    )

    logs = tree.command(
        "logs", "local:logs", "print the log of `dtq up`, of one process or of all",
        more="NAME is dtq, scheduler, api, worker-1 and so on, or engine for the engine's own log.",
        example="dtq logs\ndtq logs worker-1 -n 20",
    )  # fmt: skip
    logs.add_argument("name", nargs="?", metavar="NAME", help="only of this process")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    logs.add_argument(
        "-n", "--lines", type=not_negative, default=100, metavar="LINES", help="the last so many (default 100)"
    )
    _state_option(logs)


def _state_option(parser: Parser) -> None:
    parser.add_argument("--state", default=".dtq", metavar="DIR", help="where the data is kept (default .dtq)")
