"""Where commands grow: a parser that has commands below it, and the ways to add one."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass

from dtq_cli.arguments import Parser, json_option, positive, queue

_WIDTH = 78
"""What a terminal of 80 columns shows of a help page."""


@dataclass(frozen=True)
class Branch:
    """Commands below one parser; `shared` holds the options that all of them have."""

    commands: argparse._SubParsersAction[Parser]
    shared: Parser

    @classmethod
    def below(cls, parser: Parser, shared: Parser) -> Branch:
        return cls(parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser), shared)

    def group(self, name: str, about: str) -> Branch:
        """A word that only has commands below it."""
        node = self.commands.add_parser(name, help=about, description=_sentence(about), parents=[self.shared])
        node.set_defaults(parser=node)
        return Branch.below(node, self.shared)

    def command(
        self,
        name: str,
        function: str,
        about: str,
        *,
        example: str,
        more: str = "",
        own_options: bool = False,
        no_run: str = "",
    ) -> Parser:
        """A command that calls `module:function` of dtq_cli.commands with the arguments, for its exit status.

        `about` is its line in the list of commands, `more` what its help page says beyond that, `example` one call a
        line, which has to run as it is in a directory with a `dtq up`, or `no_run` says why it does not.
        `own_options`: it declares --json and --redis itself, because they mean something else to it.
        """
        epilog = f"{'examples' if chr(10) in example else 'example'}:\n{textwrap.indent(example, '  ')}"
        description = _sentence(about) + (f"\n\n{textwrap.fill(more, _WIDTH)}" if more else "")
        parents = [] if own_options else [self.shared]
        node = self.commands.add_parser(name, help=about, description=description, epilog=epilog, parents=parents)
        node.set_defaults(command=function)
        node.no_run = no_run
        return node


def task_id(parser: Parser) -> None:
    parser.add_argument("task_id", metavar="TASK_ID", help="its id, 32 hexadecimal digits")


def queue_option(parser: Parser) -> None:
    parser.add_argument("--queue", type=queue, metavar="Q", help="only of this queue")


def limit_option(parser: Parser) -> None:
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default 50)")


def confirmation_options(parser: Parser) -> None:
    """What every command that destroys has."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say how many, and name a few")


def process_options(parser: Parser) -> None:
    """--redis and --json of a command that becomes a process and has no document to print."""
    parser.add_argument(
        "--redis", default=argparse.SUPPRESS, metavar="URL",
        help="the server to use; other users of this machine can read it, so put a password into DTQ_REDIS_URL",
    )  # fmt: skip
    json_option(parser, "log one JSON object a line, as DTQ_LOG_JSON=true does")


def _sentence(about: str) -> str:
    return textwrap.fill(f"{about[0].upper()}{about[1:]}.", _WIDTH)
