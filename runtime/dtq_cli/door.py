"""The door of `dtq`, through which every failure leaves: one line on stderr and an exit status.

The commands are registered in dtq_cli.tree as `module:function`, imported when it is called, so that `dtq get` does not
pay for `dtq up`. The invariants: a user never sees a traceback; stdout carries results only; the exit status follows
errors.STATUS_OF_CODE.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from dtq_cli import streams
from dtq_cli.arguments import EXIT_USAGE
from dtq_cli.cli import EXIT_INTERRUPTED
from dtq_cli.hints import hint_for
from dtq_cli.tree import build_parser
from dtq_core.errors import STATUS_OF_CODE, DtqError
from dtq_core.text import clean

EXIT_BROKEN_PIPE = 141
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMPLETE = "__complete"
"""The word behind which the scripts of `dtq completion` ask for names; no parser is built for it."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    streams.prepare()
    words = sys.argv[1:] if argv is None else argv
    try:
        return _flushed(_call(words))
    except SystemExit as exc:  # argparse, after a help page or a wrong call
        return _flushed(exc.code if isinstance(exc.code, int) else EXIT_USAGE)
    except DtqError as exc:
        _complain(exc.code, exc.message, hint_for(exc))
        return STATUS_OF_CODE[exc.code][1]
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            if sys.stderr.isatty():  # the shell's prompt comes after ^C otherwise
                print(file=sys.stderr)
        streams.discard_stdout()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        streams.discard_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno in _NO_ROOM and exc.filename is None:
            return _no_output(os.strerror(exc.errno))
        return _internal_error(exc)


def _call(words: Sequence[str]) -> int:
    if words[:1] == [COMPLETE]:
        return _load("completion:answer")(argparse.Namespace(words=list(words[1:])))
    args = build_parser().parse_args(words)
    command = getattr(args, "command", None)
    if command is None:
        args.parser.print_help(sys.stderr)
        return EXIT_USAGE
    return _load(command)(args)


def _flushed(status: int) -> int:
    """`status`, once everything that was printed is out; a full disk is no success."""
    try:
        complaint = streams.complaint_of_stdout()
    except BrokenPipeError:
        streams.discard_stdout()
        return EXIT_BROKEN_PIPE
    return _no_output(complaint) if complaint else status


def _no_output(complaint: str) -> int:
    streams.discard_stdout()
    _complain("OUTPUT_FAILED", f"stdout: {complaint}", "what was asked for may have been done")
    return 1


def _load(command: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = command.partition(":")
    found: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"dtq_cli.commands.{module}"), function
    )
    return found


def _internal_error(exc: Exception) -> int:
    """A fault of ours. The place is shown to who asks for it."""
    if os.environ.get("DTQ_LOG_LEVEL", "").upper() == "DEBUG":
        traceback.print_exc()
    _complain("INTERNAL", f"{type(exc).__name__}: {exc}", "a fault in DTQ; DTQ_LOG_LEVEL=DEBUG shows where")
    return STATUS_OF_CODE["INTERNAL"][1]


def _complain(code: str, message: str, hint: str) -> None:
    """The one line. A stderr that is gone must not turn it into a traceback."""
    with contextlib.suppress(OSError):
        print(f"error {code}: {clean(message, 600)}{f' ({hint})' if hint else ''}", file=sys.stderr)
