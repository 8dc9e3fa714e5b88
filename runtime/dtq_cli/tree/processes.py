"""worker run, scheduler run, api run."""

from __future__ import annotations

from dtq_cli.arguments import between, port, queue
from dtq_cli.tree.branch import Branch, process_options


def add(tree: Branch) -> None:
    worker = tree.group("worker", "run tasks").command(
        "run", "processes:worker", "run tasks until SIGTERM or Ctrl-C",
        example="dtq worker run\ndtq worker run --queue mail --queue default --concurrency 16",
        own_options=True, no_run="runs until Ctrl-C",
    )  # fmt: skip
    worker.add_argument(
        "--concurrency", type=between(1, 1000), metavar="N",
        help="how many at a time, 1 to 1000 (default DTQ_WORKER_CONCURRENCY, 4)",
    )  # fmt: skip
    worker.add_argument(
        "--queue",
        action="append",
        type=queue,
        dest="queues",
        metavar="Q",
        help="serve this queue; may be repeated (default: default)",
    )
    worker.add_argument(
        "--reload", action="store_true", help="replace the worker when its task modules change; for development"
    )
    process_options(worker)

    scheduler = tree.group("scheduler", "move delayed tasks and retries onto their queues").command(
        "run", "processes:scheduler", "move what is due, until SIGTERM or Ctrl-C; a worker does it too",
        example="dtq scheduler run --json", own_options=True, no_run="runs until Ctrl-C",
    )  # fmt: skip
    process_options(scheduler)

    api = tree.group("api", "serve the HTTP API").command(
        "run", "processes:api", "serve the HTTP API, its event feed and its metrics, until SIGTERM or Ctrl-C",
        example="dtq api run --host 127.0.0.1 --port 8000", own_options=True, no_run="runs until Ctrl-C",
    )  # fmt: skip
    api.add_argument("--host", metavar="H", help="address to listen on (default DTQ_API_HOST)")
    api.add_argument("--port", type=port, metavar="P", help="port to listen on (default DTQ_API_PORT, 8000)")
    api.add_argument(
        "--workers",
        type=between(1, 64),
        default=1,
        metavar="N",
        help="processes that share the port, 1 to 64 (default 1)",
    )
    process_options(api)
