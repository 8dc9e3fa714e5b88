"""Completion scripts, made from the tree of commands: what can stand where is in the script, names come from Redis.

A script is static, so that a key press costs a process only where queues or tasks are asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from dtq_cli.shells import bash, fish, zsh
from dtq_cli.shells.model import Node, nodes
from dtq_cli.tree import build_parser

_WRITERS: dict[str, Callable[[list[Node]], str]] = {"bash": bash.write, "zsh": zsh.write, "fish": fish.write}


def script(shell: str) -> str:
    """The script for `bash`, `zsh` or `fish`."""
    return _WRITERS[shell](nodes(build_parser()))
