"""`python -m dtq_cli.reference > docs/cli.md`: the page of all commands, made from the tree of commands.

The parser's own help is not used: its wording and wrapping differ between versions of Python, and a test compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from dtq_cli.documents import DOCUMENTS, Document
from dtq_cli.tree import build_parser

_HEAD = """\
# The command line

<!-- Made by `python -m dtq_cli.reference > docs/cli.md` from the parser; a test keeps it equal. -->

`dtq` talks to Redis directly, without the HTTP API. `dtq --help` lists the commands, and `dtq COMMAND
--help` shows what stands here.

## For all commands

**Where Redis is**: `--redis URL`, else `DTQ_REDIS_URL`, else the `dtq up` that runs in the current
directory, else `redis://localhost:6379/0`. Other users of the machine can read a command line, so put
a password into `DTQ_REDIS_URL`. All other settings are in [configuration.md](configuration.md).

**For people and for programs.** Tables fit the terminal, 80 columns where there is none; what is too
long is cut with `…`, task ids never. `--json` prints one JSON document with the keys that are listed
here. They stay; new ones may come, so ignore those that you do not know. Results go to stdout;
questions, progress, warnings and errors to stderr. Colours are for terminals only. `NO_COLOR=1` turns
them off, `FORCE_COLOR=1` on, and the first wins. In the locale `C` all output is ASCII.

**Exit status**

| status | it means |
| --- | --- |
| 0 | done |
| 1 | refused or failed, or `dtq audit verify` found something |
| 2 | called wrongly: a bad argument, payload or setting, or a question that nobody can answer |
| 130 | ended by Ctrl-C |
| 141 | whoever read the output went away, as in `dtq list \\| head -1` |

**Errors** are one line, `error CODE: what is wrong (what to do)`. The code is stable and has the
meaning that it has [over HTTP](http-api.md). `INVALID_ARGUMENT` is a wrong call, `OUTPUT_FAILED` an output
that cannot be written, `INTERNAL` a fault in DTQ.

**What cannot be undone** asks first. `--yes` does not ask, and is needed where nobody can be asked.
`--dry-run` changes nothing and shows how many it would be and a few of them. The work is done in
bounded steps, so other users of Redis hardly notice, and what is done stays done after Ctrl-C.

**Arguments.** `--option=value` and `--option value` are the same. A value that begins with `-` needs
the first form. Options are never abbreviated.

**Completion** of commands, options, queue names and recent task ids:

```sh no-run: each line is for another shell
eval "$(dtq completion bash)"     # in ~/.bashrc
source <(dtq completion zsh)      # in ~/.zshrc, after compinit
dtq completion fish | source      # in ~/.config/fish/config.fish
```
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for words, parser in leaves(build_parser()):
        parts.append("\n".join(_section(words, parser)))
    return "\n".join(parts)


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """(words, parser) of every command that does something, in the order of the help."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield path, parser
    for name, child in (item for group in groups for item in group.choices.items()):
        yield from leaves(child, f"{path} {name}".strip())


def _section(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## dtq {words}\n"
    yield f"{parser.description or ''}\n"
    reason = getattr(parser, "no_run", "")
    yield f"```sh no-run: {reason}" if reason else "```sh"
    yield from (line.strip() for line in (parser.epilog or "").splitlines()[1:])
    yield "```\n"
    rows = [row for action in parser._actions if (row := _row(action))]
    if rows:
        yield "| argument | meaning |\n| --- | --- |"
        yield from rows
        yield ""
    if words in DOCUMENTS:
        yield from _document(DOCUMENTS[words])


def _row(action: argparse.Action) -> str:
    """One line of the table; none for --help and for what all commands have in the same meaning."""
    if isinstance(action, argparse._HelpAction) or action.help in _said_above():
        return ""
    value = str(action.metavar or "")
    names = ", ".join(action.option_strings) or value
    shown = names if action.nargs == 0 or not action.option_strings else f"{names} {value}"
    if action.nargs == "?" and action.option_strings:
        shown = f"{names} [{value}]"
    meaning = (action.help or "").replace("%%", "%").replace("|", "\\|")
    extra = "required" if action.option_strings and action.required else "optional" if action.nargs == "?" else ""
    return f"| `{shown}` | {'; '.join(part for part in (meaning, extra) if part)} |".replace("|  |", "| |")


def _said_above() -> set[str | None]:
    root = build_parser()
    return {action.help for action in root._actions if action.dest in ("json", "redis")}


def _document(document: Document) -> Iterator[str]:
    yield "With `--json`:\n"
    yield "| key | value |\n| --- | --- |"
    yield from _keys(document.keys)
    if document.item_keys and not document.note:
        yield f"\nEach of `{document.items}`:\n"
        yield "| key | value |\n| --- | --- |"
        yield from _keys(document.item_keys)
    if document.note:
        yield f"\n{document.note}"
    yield ""


def _keys(keys: dict[str, str]) -> Iterator[str]:
    yield from (f"| `{key}` | {meaning} |".replace("|  |", "| |") for key, meaning in keys.items())


if __name__ == "__main__":
    print(page(), end="")
