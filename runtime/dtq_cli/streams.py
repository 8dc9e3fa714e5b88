"""stdin, stdout and stderr as they are found: closed, broken, full, in a locale without UTF-8, on a terminal or not."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

WIDTH = 80
"""Used where there is no terminal to ask."""
_PLAIN = ("C", "POSIX")


def prepare() -> None:
    """Make the three streams usable.

    A closed one becomes the null device: its number would else go to the connection to Redis, and what is written to
    it would be a command there. stdout and stderr take any text; in the locale C they write ASCII.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    encoding = "ascii" if _asks_for_ascii() else None
    _reconfigure(sys.stdin, errors="replace")
    _reconfigure(sys.stdout, encoding=encoding, errors="backslashreplace")
    _reconfigure(sys.stderr, encoding=encoding, errors="backslashreplace")


def discard_stdout() -> None:
    """After a broken pipe: what is still buffered goes nowhere, silently, at exit too."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def nobody_reads() -> bool:
    """Whether stdout is a pipe or a socket whose other end is closed; otherwise only the next write would tell."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))
    except (OSError, ValueError):
        return False


def complaint_of_stdout() -> str:
    """Why what was printed cannot be written, as of a full disk; empty where it can."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        return exc.strerror or type(exc).__name__
    return ""


def speaks_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def wants_colour(stream: TextIO) -> bool:
    """On a terminal, and elsewhere where FORCE_COLOR asks for it. NO_COLOR is stronger than both."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0", "false"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def room() -> int:
    """Columns that there are."""
    return max(40, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int], None] | None]:
    """A counter on stderr that overwrites itself and is gone at the end; None where nobody looks."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    shown = False

    def show(number: int) -> None:
        nonlocal shown
        shown = True
        print(f"\r{number} so far\x1b[K\r", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _reconfigure(stream: TextIO, **how: str | None) -> None:
    """Where it can be done: a test may have put something else in the place of the stream."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(**how)


def _asks_for_ascii() -> bool:
    """Whether the user's locale is C or POSIX by name. Python writes UTF-8 there; such a terminal may not know it."""
    env = os.environ
    if env.get("PYTHONIOENCODING") or env.get("PYTHONUTF8"):
        return False
    if every := env.get("LC_ALL"):
        return every in _PLAIN
    kind = env.get("LC_CTYPE", "")
    if kind in _PLAIN:
        return True
    # Python sets LC_CTYPE itself where it finds LANG=C, so it says nothing there.
    return env.get("LANG") in _PLAIN and kind in ("", "C.UTF-8", "C.utf8", "UTF-8")
