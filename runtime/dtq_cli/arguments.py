"""How arguments are read: argparse with one-line errors, and the types of its values. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from dtq_core.task import QUEUE_NAME, TASK_TYPE_NAME
from dtq_core.text import clean

EXIT_USAGE = 2
MAX_DELAY_S = 30 * 86_400
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose left column has room for the longest command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # argparse forgets that these are indented once more
            self._action_max_length = max(self._action_max_length, max(map(len, action.choices)) + 4)


class Parser(argparse.ArgumentParser):
    """Complains in one line, `error INVALID_ARGUMENT: what (where help is)`, and never guesses abbreviations."""

    no_run = ""
    """Why the example of this command cannot be run as it stands; empty where it can."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        print(f"error INVALID_ARGUMENT: {clean(message, 400)} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """An unknown word is told with the one that was probably meant, not with a page of all that there are."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, 1)
        advice = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        what = "there is no command" if isinstance(action, argparse._SubParsersAction) else "not"
        raise argparse.ArgumentError(action if what == "not" else None, f"{what} {clean(str(value), 40)!r}: {advice}")


def whole(text: str) -> int:
    """A whole number in plain digits."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    return int(text)


def between(low: int, high: int) -> Callable[[str], int]:
    """A whole number in a range that no setting can widen."""

    def read(text: str) -> int:
        number = whole(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} is not from {low} to {high}")
        return number

    return read


def positive(text: str) -> int:
    """A whole number from 1."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def not_negative(text: str) -> int:
    """A whole number from 0."""
    number = whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


def queue(text: str) -> str:
    """The name of a queue, as contract §1 allows it."""
    if not QUEUE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{clean(text, 40)!r} is no queue name: lower-case letters, digits, '_' and '-', 1 to 64, beginning with a"
            " letter or digit"
        )
    return text


def task_type(text: str) -> str:
    """The name of a task type, as contract §1 allows it."""
    if not TASK_TYPE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{clean(text, 40)!r} is no task type: letters, digits and _ . : / -, 1 to 128"
        )
    return text


def port(text: str) -> int:
    """A TCP port, 1 to 65535."""
    number = positive(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{number} is no port")
    return number


def seconds(text: str) -> float:
    """A finite number of seconds from 0; NaN and infinities are numbers to Python, but no delay."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds") from None
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds from 0")
    return number


def delay(text: str) -> float:
    """Seconds that a task may be delayed."""
    number = seconds(text)
    if number > MAX_DELAY_S:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is more than 30 days ({MAX_DELAY_S} seconds)")
    return number


def common() -> Parser:
    """`--json` and `--redis`, which every command has and which may also stand before its name.

    Absent ones are left out of the namespace, so that a command's default does not hide what stood before it.
    """
    parent = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    json_option(parent, "print one JSON document")
    parent.add_argument(
        "--redis",
        metavar="URL",
        help="the server to use; other users of this machine can read it, so put a password into DTQ_REDIS_URL",
    )
    return parent


def wants_json(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "json", False))


def json_option(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=meaning)
