"""dlq list, retry-dlq, discard-dlq, purge-dlq."""

from __future__ import annotations

from dtq_cli.tree.branch import Branch, confirmation_options, limit_option, queue_option, task_id

_DEAD = "id=$(dtq submit -q --type always_fail_task --max-attempts 1)\nsleep 1\n"


def add(tree: Branch) -> None:
    dlq = tree.group("dlq", "look at dead letters: tasks that are out of attempts")
    listing = dlq.command(
        "list", "dead_letters:list_", "list dead letters, newest first", example="dtq dlq list --queue mail --limit 10"
    )
    queue_option(listing)
    limit_option(listing)

    retry = tree.command(
        "retry-dlq", "dead_letters:retry", "put a dead letter back on its queue, attempts from 0",
        example=f"{_DEAD}dtq retry-dlq $id",
    )  # fmt: skip
    task_id(retry)
    discard = tree.command(
        "discard-dlq", "dead_letters:discard", "drop one dead letter; its task stays to be looked at",
        example=f"{_DEAD}dtq discard-dlq $id",
    )  # fmt: skip
    task_id(discard)
    purge = tree.command(
        "purge-dlq", "dead_letters:purge", "drop all dead letters",
        more="Asks before it does. Where nobody can be asked it wants --yes. It works in bounded steps.",
        example="dtq purge-dlq --dry-run\ndtq purge-dlq --queue mail --yes",
    )  # fmt: skip
    queue_option(purge)
    confirmation_options(purge)
