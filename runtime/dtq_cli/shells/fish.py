"""Completion for fish, with descriptions."""

from __future__ import annotations

from collections.abc import Iterator

from dtq_cli.shells.model import ANYTHING, FILE, FLAG, FOLDER, Node, Option

_FRAME = r"""# Completion of dtq for fish, made by `dtq completion fish`.

# The commands and groups that are there, and the options that take a value.
set -g __dtq_nodes %s
set -g __dtq_valued %s

# Whether the words of a command so far are those in $argv.
function __dtq_at
    set -l node ''
    set -l waiting no
    for word in (commandline -opc)[2..-1]
        if test $waiting = yes
            set waiting no
        else if string match -q -- '-*' $word
            contains -- $word $__dtq_valued; and set waiting yes
        else if contains -- (string trim -- "$node $word") $__dtq_nodes
            set node (string trim -- "$node $word")
        end
    end
    test "$node" = "$argv"
end

# Queue names or task ids from the server that the command line names.
function __dtq_ask
    set -l words (commandline -opc)
    set -l redis ''
    for index in (seq (count $words))
        if test "$words[$index]" = --redis; and test $index -lt (count $words)
            set redis $words[(math $index + 1)]
        else if string match -q -- '--redis=*' $words[$index]
            set redis (string replace -- '--redis=' '' $words[$index])
        end
    end
    set -l program (string replace -r -- '^~' $HOME $words[1])
    $program __complete $argv[1] $redis 2>/dev/null
end

complete -c dtq -f
%s
"""


def write(nodes: list[Node]) -> str:
    valued = sorted({name for node in nodes for option in node.options if option.kind for name in option.names})
    paths = " ".join(_quoted(node.path) for node in nodes if node.path)
    return _FRAME % (paths, " ".join(valued), "\n".join(line for node in nodes for line in _lines(node)))


def _lines(node: Node) -> Iterator[str]:
    here = f"complete -c dtq -n {_quoted(f'__dtq_at {node.path}')}"
    for name, about in node.commands:
        yield f"{here} -a {name} -d {_quoted(about)}"
    for option in node.options:
        names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        yield f"{here} {names}{_value(option)} -d {_quoted(option.about)}"
    if node.argument not in (FLAG, ANYTHING):
        yield f"{here} -a {_words(node.argument)}"


def _value(option: Option) -> str:
    if option.kind == FLAG:
        return ""
    if option.kind == ANYTHING:
        return " -x"
    if option.kind == FILE:
        return " -r -F"
    if option.kind == FOLDER:
        return " -x -a '(__fish_complete_directories)'"
    return f" -x -a {_words(option.kind)}"


def _words(kind: str) -> str:
    return _quoted(kind[1:].replace(",", " ") if kind.startswith("@") else f"(__dtq_ask {kind})")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
