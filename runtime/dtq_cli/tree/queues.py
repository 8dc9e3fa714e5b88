"""purge, queue pause, queue resume, queue stats."""

from __future__ import annotations

from dtq_cli.arguments import queue
from dtq_cli.tree.branch import Branch, confirmation_options


def add(tree: Branch) -> None:
    purge = tree.command(
        "purge", "queues:purge", "cancel everything of a queue that has not started",
        more="Asks before it does. Where nobody can be asked it wants --yes. It works in bounded steps; what runs is"
        " left alone.",
        example="dtq purge --queue mail --dry-run\ndtq purge --queue mail --yes",
    )  # fmt: skip
    purge.add_argument("--queue", type=queue, required=True, metavar="Q", help="the queue to empty")
    confirmation_options(purge)

    group = tree.group("queue", "pause, resume and measure queues")
    pause = group.command(
        "pause", "queues:pause", "start nothing more on a queue until it is resumed", example="dtq queue pause mail"
    )
    pause.add_argument("queue", type=queue, metavar="QUEUE", help="its name")
    resume = group.command("resume", "queues:resume", "let a paused queue go on", example="dtq queue resume mail")
    resume.add_argument("queue", type=queue, metavar="QUEUE", help="its name")
    stats = group.command(
        "stats", "queues:stats", "how much waits, runs, is retried and is dead, of one queue or of all",
        example="dtq queue stats\ndtq queue stats mail --json",
    )  # fmt: skip
    stats.add_argument("queue", type=queue, nargs="?", metavar="QUEUE", help="its name")
