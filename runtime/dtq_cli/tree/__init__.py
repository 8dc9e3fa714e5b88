"""The tree of commands. A new command is registered in the section it belongs to, or in a section of its own in SECTIONS.

Nothing here imports what a command does: each names its `module:function` under dtq_cli.commands, imported when called.
"""

from __future__ import annotations

from dtq_cli.arguments import Parser, common
from dtq_cli.tree import dead_letters, processes, queues, shell, tasks, trying, watching, workbench
from dtq_cli.tree.branch import Branch

SECTIONS = (tasks, dead_letters, queues, watching, processes, workbench, trying, shell)
"""Modules with `add(tree)`, in the order of `dtq --help`."""

_EPILOG = """\
Where Redis is: --redis URL, else DTQ_REDIS_URL, else the `dtq up` that runs in
this directory, else redis://localhost:6379/0.

Exit status: 0 done, 1 refused or failed, 2 called wrongly, 130 after Ctrl-C.
`dtq COMMAND --help` explains a command and shows an example.
"""


def build_parser() -> Parser:
    """The whole tree. Leaves carry `command`, inner nodes `parser` for their help."""
    shared = common()
    root = Parser("dtq", description="A distributed task queue on Redis Streams.", epilog=_EPILOG, parents=[shared])
    root.add_argument(
        "--version", action="store_const", const="processes:version", dest="command", help="print the version"
    )
    root.set_defaults(parser=root)
    tree = Branch.below(root, shared)
    for section in SECTIONS:
        section.add(tree)
    return root
