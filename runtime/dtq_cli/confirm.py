"""The question before something is destroyed. Without a terminal there is nobody to answer, so the answer is no."""

from __future__ import annotations

import argparse
import sys

from dtq_core.errors import InvalidArgument


def require_terminal(args: argparse.Namespace, what: str) -> None:
    """Refuse at once, before anything is looked up, where `--yes` is missing and nobody can be asked or would see it.

    Raises InvalidArgument.
    """
    if not args.yes and not args.dry_run and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgument(f"{what} cannot be undone: say --yes, or --dry-run to see what it would be")


def ask(question: str) -> bool:
    """One question on stderr, so that stdout stays one document. Only y and yes mean yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")
