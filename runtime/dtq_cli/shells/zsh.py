"""Completion for zsh, with descriptions. It works sourced, and as a file `_dtq` in a folder of $fpath."""

from __future__ import annotations

from dtq_cli.shells.model import Node

_FRAME = r"""#compdef dtq
# Completion of dtq for zsh, made by `dtq completion zsh`.

# What may follow the words $1: commands (name:description), options (name kind description …), the kind of the argument.
_dtq_spec() {
    commands=() options=() argument=''
    case $1 in
%s
    esac
}

_dtq_option_kind() {
    local index
    for ((index = 1; index <= $#options; index += 3)); do
        [[ $options[index] == $1 ]] && print -r -- $options[index+1]
    done
}

_dtq() {
    local -a commands options shown
    local argument word kind node waiting redis index
    _dtq_spec ''
    for ((index = 2; index < CURRENT; index++)); do
        word=$words[index]
        if [[ -n $waiting ]]; then
            [[ $waiting == --redis ]] && redis=$word
            waiting=''
        elif [[ $word == --redis=* ]]; then
            redis=${word#*=}
        elif [[ $word == -* ]]; then
            [[ -n $(_dtq_option_kind $word) ]] && waiting=$word
        elif (( ${commands[(I)$word:*]} )); then
            node="${node:+$node }$word"
            _dtq_spec $node
        fi
    done

    word=$words[CURRENT]
    if [[ -n $waiting ]]; then
        kind=$(_dtq_option_kind $waiting)
    elif [[ $word == --*=* ]]; then
        kind=$(_dtq_option_kind ${word%%%%=*})
        compset -P '*='
    elif [[ $word == -* ]]; then
        for ((index = 1; index <= $#options; index += 3)); do shown+=("$options[index]:$options[index+2]"); done
        _describe -o option shown
        return
    elif (( $#commands )); then
        _describe command commands
        return
    else
        kind=$argument
    fi
    case $kind in
    queues | tasks | letters) compadd -- ${(f)"$(${~words[1]} __complete $kind "$redis" 2>/dev/null)"} ;;
    @*) compadd -- ${(s:,:)kind#@} ;;
    file) _files ;;
    folder) _files -/ ;;
    esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dtq "$@"
else
    compdef _dtq dtq
fi
"""


def write(nodes: list[Node]) -> str:
    return _FRAME % "\n".join(_case(node) for node in nodes)


def _case(node: Node) -> str:
    commands = " ".join(_quoted(f"{name}:{about}") for name, about in node.commands)
    options = " ".join(
        f"{name} {_quoted(option.kind)} {_quoted(option.about)}" for option in node.options for name in option.names
    )
    return (
        f"    {_quoted(node.path)})\n        commands=({commands})\n        options=({options})\n"
        f"        argument={_quoted(node.argument)}\n        ;;"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
