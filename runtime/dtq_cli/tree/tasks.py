"""submit, get, list, cancel."""

from __future__ import annotations

from dtq_cli.arguments import between, delay, positive, queue, task_type
from dtq_cli.tree.branch import Branch, limit_option, queue_option, task_id
from dtq_core.task import TaskStatus


def add(tree: Branch) -> None:
    _add_submit(tree)

    get = tree.command(
        "get", "tasks:get", "show a task, its attempts and its result",
        example="id=$(dtq submit -q --type echo_task)\ndtq get $id\ndtq get $id --json",
    )  # fmt: skip
    task_id(get)

    listing = tree.command(
        "list", "tasks:list_", "list tasks, newest first",
        example="dtq list --status dead_lettered --limit 10\ndtq list --queue mail --json",
    )  # fmt: skip
    queue_option(listing)
    listing.add_argument(
        "--status",
        choices=[str(s) for s in TaskStatus],
        metavar="S",
        help=f"only with this status: {', '.join(TaskStatus)}",
    )
    listing.add_argument("--type", type=task_type, dest="task_type", metavar="T", help="only of this task type")
    limit_option(listing)

    cancel = tree.command(
        "cancel", "tasks:cancel", "cancel a task, or ask the worker that runs it to stop it",
        more="A task that waits is cancelled at once. For a task that runs the request is recorded, the command says"
        " CANCEL_REQUESTED and exits with 1; its worker stops it a moment later.",
        example="id=$(dtq submit -q --type echo_task --delay-seconds 600)\ndtq cancel $id",
    )  # fmt: skip
    task_id(cancel)


def _add_submit(tree: Branch) -> None:
    submit = tree.command(
        "submit", "tasks:submit", "send a task",
        more="Prints the id of the task on a terminal and a JSON document elsewhere; -q prints the id everywhere.",
        example="dtq submit --type echo_task --payload '{\"order\": 7}' --idempotency-key order-7\n"
        "echo '{\"order\": 7}' | dtq submit --type echo_task --payload -\n"
        "id=$(dtq submit -q --type sleep_task --delay-seconds 60)",
    )  # fmt: skip
    submit.add_argument(
        "--type",
        type=task_type,
        required=True,
        dest="task_type",
        metavar="T",
        help="the task type, as its handler is named",
    )
    submit.add_argument(
        "--payload", default="{}", metavar="JSON", help="a JSON object; @FILE reads a file, - reads stdin (default {})"
    )
    submit.add_argument("--queue", type=queue, metavar="Q", help="the queue (default: default)")
    submit.add_argument(
        "--idempotency-key", metavar="KEY", help="a second submission with the same key gives the first task"
    )
    submit.add_argument("--max-attempts", type=positive, metavar="N", help="how often it may be started (default 5)")
    submit.add_argument(
        "--priority", type=between(0, 9), metavar="P", help="0 to 9, higher first, strictly (default 5)"
    )
    submit.add_argument("--timeout-ms", type=between(1, 3_600_000), metavar="MS", help="how long one attempt may take")
    submit.add_argument("-q", "--quiet", action="store_true", help="print the task id and nothing else")
    submit.add_argument("--delay-seconds", type=delay, metavar="S", help="not before so many seconds from now")
    submit.add_argument(
        "--metadata", metavar="JSON", help='a JSON object kept with the task; {"ttl_seconds": 60} lets it expire'
    )
