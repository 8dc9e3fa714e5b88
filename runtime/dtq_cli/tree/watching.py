"""workers, events, audit verify."""

from __future__ import annotations

from dtq_cli.arguments import queue, seconds
from dtq_cli.tree.branch import Branch


def add(tree: Branch) -> None:
    tree.command("workers", "watching:workers", "list workers and what they have done", example="dtq workers")
    events = tree.command(
        "events", "watching:events", "print what happens from now on; with --json one object a line",
        more="The feed is not stored: what happened before is not shown.",
        example="dtq events --seconds 5 --json\ndtq events --queue mail --follow", no_run="runs until Ctrl-C",
    )  # fmt: skip
    events.add_argument("--follow", action="store_true", help="until Ctrl-C")
    events.add_argument(
        "--seconds", type=seconds, default=10.0, metavar="S", help="without --follow: for so long (default 10)"
    )
    events.add_argument("--queue", type=queue, metavar="Q", help="only of this queue")

    audit = tree.group("audit", "prove that nothing was lost")
    verify = audit.command(
        "verify", "audit:verify", "compare every record with every place it must be in; status 1 if one is wrong",
        more="It may run at any time, under load too: it reads in bounded steps and changes nothing.",
        example="dtq audit verify --queue mail\nid=$(dtq submit -q --type echo_task)\necho $id | dtq audit verify --receipts -",
    )  # fmt: skip
    verify.add_argument("--queue", type=queue, metavar="Q", help="only this queue")
    verify.add_argument(
        "--receipts", metavar="FILE", help="task ids kept by producers, one a line, that must exist; - reads stdin"
    )
