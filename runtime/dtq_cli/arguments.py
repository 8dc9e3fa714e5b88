"""How arguments are read: argparse with one-line errors, and the types of its values. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import Any, NoReturn

from dtq_core.text import clean

EXIT_USAGE = 2
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose left column has room for the longest command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class Parser(argparse.ArgumentParser):
    """Complains in one line, `error INVALID_ARGUMENT: what (where help is)`, and never guesses abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        print(f"error INVALID_ARGUMENT: {clean(message, 400)} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def whole(text: str) -> int:
    """A whole number in plain digits."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


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
