"""completion bash|zsh|fish, and the quick command behind it that a person never calls."""

from __future__ import annotations

from dtq_cli.tree.branch import Branch


def add(tree: Branch) -> None:
    completion = tree.command(
        "completion", "completion:script", "print the completion script of a shell",
        no_run="each line is for another shell",
        more="It completes commands, options, queue names and the ids of recent tasks.",
        example='eval "$(dtq completion bash)"     # in ~/.bashrc\n'
        "source <(dtq completion zsh)      # in ~/.zshrc, after compinit\n"
        "dtq completion fish | source      # in ~/.config/fish/config.fish",
    )  # fmt: skip
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
