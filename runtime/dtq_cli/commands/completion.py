"""completion, and `dtq __complete`: the quick answers behind it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from dtq_cli import output, shells
from dtq_cli.arguments import wants_json
from dtq_core.task import QUEUE_NAME, TASK_ID

_PATIENCE_S = 1.0
"""Somebody waits behind a key that was pressed; after this time there are just no names."""
_MOST = 100


def script(args: argparse.Namespace) -> int:
    text = shells.script(args.shell)
    if wants_json(args):
        output.document({"shell": args.shell, "script": text})
    else:
        print(text, end="")
    return 0


def answer(args: argparse.Namespace) -> int:
    """Names for `dtq __complete KIND [URL]`, one a line. Whatever goes wrong, there are no names and no complaint."""
    kind, url = [*args.words, "", ""][:2]
    with contextlib.suppress(Exception):
        sound = QUEUE_NAME if kind == "queues" else TASK_ID  # a shell reads this: nothing else gets through
        names = [name for name in _names(kind, argparse.Namespace(redis=url)) if sound.fullmatch(name)]
        print("".join(f"{name}\n" for name in names), end="")
    return 0


def _names(kind: str, args: argparse.Namespace) -> list[str]:
    from dtq_cli.session import Session, run

    async def read(session: Session) -> list[str]:
        async with asyncio.timeout(_PATIENCE_S):
            if kind == "queues":
                return await session.inspector.queue_names()
            if kind == "tasks":
                return [task.task_id for task in (await session.inspector.tasks(limit=_MOST)).items]
            if kind == "letters":
                return [letter.task_id for letter in (await session.inspector.dead_letters(limit=_MOST)).items]
            return []

    return run(args, read)
