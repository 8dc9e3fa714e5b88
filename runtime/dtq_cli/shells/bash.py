"""Completion for bash, from 3.2 on, without the package bash-completion."""

from __future__ import annotations

from dtq_cli.shells.model import Node

_FRAME = r"""# Completion of dtq for bash, made by `dtq completion bash`.

# What may follow the words $1: commands, options (with =KIND where they take a value), the kind of the argument.
_dtq_spec() {
    commands='' options='' argument=''
    case $1 in
%s
    esac
}

_dtq_option_kind() {
    local option
    for option in $options; do
        [[ $option == "$1="* ]] && echo "${option#*=}"
    done
}

_dtq() {
    local words commands options argument cur word kind='' path='' waiting='' redis='' index
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    cur=''
    if [[ ${COMP_LINE:0:COMP_POINT} != *[[:space:]] ]]; then
        cur=${words[${#words[@]} - 1]}
        unset "words[${#words[@]}-1]"
    fi
    _dtq_spec ''
    for ((index = 1; index < ${#words[@]}; index++)); do
        word=${words[index]}
        if [[ -n $waiting ]]; then
            [[ $waiting == --redis ]] && redis=$word
            waiting=''
        elif [[ $word == --redis=* ]]; then
            redis=${word#*=}
        elif [[ $word == -* ]]; then
            [[ -n $(_dtq_option_kind "$word") ]] && waiting=$word
        elif [[ " $commands " == *" $word "* ]]; then
            path="${path:+$path }$word"
            _dtq_spec "$path"
        fi
    done

    COMPREPLY=()
    local IFS=$' \t\n'
    if [[ -n $waiting ]]; then
        kind=$(_dtq_option_kind "$waiting")
    elif [[ $cur == --*=* ]]; then
        kind=$(_dtq_option_kind "${cur%%%%=*}")
        cur=${cur#*=}
    elif [[ $cur == -* ]]; then
        local names=''
        for word in $options; do names+=" ${word%%%%=*}"; done
        COMPREPLY=($(compgen -W "$names" -- "$cur"))
        return
    elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$cur"))
        return
    else
        kind=$argument
    fi
    case $kind in
    queues | tasks | letters)
        COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]/#\~/$HOME}" __complete "$kind" "$redis" 2>/dev/null)" -- "$cur"))
        ;;
    @*)
        kind=${kind#@}
        COMPREPLY=($(compgen -W "${kind//,/ }" -- "$cur"))
        ;;
    file | folder)
        IFS=$'\n'
        if [[ $kind == file ]]; then COMPREPLY=($(compgen -f -- "$cur")); else COMPREPLY=($(compgen -d -- "$cur")); fi
        compopt -o filenames 2>/dev/null
        ;;
    esac
}

complete -F _dtq dtq
"""


def write(nodes: list[Node]) -> str:
    return _FRAME % "\n".join(_case(node) for node in nodes)


def _case(node: Node) -> str:
    commands = " ".join(name for name, _ in node.commands)
    options = " ".join(
        f"{name}={option.kind}" if option.kind else name for option in node.options for name in option.names
    )
    return f"    '{node.path}') commands='{commands}' options='{options}' argument='{node.argument}' ;;"
