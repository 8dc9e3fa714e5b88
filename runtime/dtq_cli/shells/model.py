"""What can stand where on the command line, read from the parser: the one source of all completion scripts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from dtq_cli import arguments

FLAG, ANYTHING, FILE, FOLDER = "", "any", "file", "folder"
QUEUES, TASKS, LETTERS = "queues", "tasks", "letters"
"""Kinds of a value; the last three are asked for with `dtq __complete KIND`. Fixed words are `@one,two`."""


@dataclass(frozen=True)
class Option:
    """`kind` is FLAG for an option without a value."""

    names: tuple[str, ...]
    kind: str
    about: str


@dataclass(frozen=True)
class Node:
    """One command or group: its words ("" for dtq itself), what may follow it, and the kind of its own argument."""

    path: str
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    argument: str


def nodes(root: argparse.ArgumentParser) -> list[Node]:
    return list(_walk(root, ""))


def first_sentence(text: str, limit: int = 60) -> str:
    """A description short enough for a list of completions."""
    short = text.split(";")[0].split(":")[0].strip()
    return short if len(short) <= limit else f"{short[: limit - 3]}..."


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[Node]:
    commands: list[tuple[str, str]] = []
    children: list[tuple[str, argparse.ArgumentParser]] = []
    options: list[Option] = []
    argument = FLAG
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = [(choice.dest, first_sentence(choice.help or "")) for choice in action._choices_actions]
            children = list(action.choices.items())
        elif action.option_strings:
            kind = FLAG if action.nargs == 0 else _kind(action, path)
            options.append(Option(tuple(action.option_strings), kind, first_sentence(action.help or "")))
        else:
            argument = _kind(action, path)
    yield Node(path, tuple(commands), tuple(options), argument)
    for name, child in children:
        yield from _walk(child, f"{path} {name}".strip())


def _kind(action: argparse.Action, path: str) -> str:
    if action.choices:
        return "@" + ",".join(map(str, action.choices))
    if action.type is arguments.queue:
        return QUEUES
    if action.dest == "task_id":
        return LETTERS if path.endswith("-dlq") else TASKS
    return {"FILE": FILE, "DIR": FOLDER}.get(str(action.metavar), ANYTHING)
