"""Completion: real shells are asked what they would offer; the scripts are made from the tree of commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.calls import Cli
from cli.terminal import Terminal
from support.engines import Server
from support.processes import DTQ

BIN = str(Path(DTQ).parent)

ASK_BASH = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=(dtq)
_dtq
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def shell(cli: Cli) -> Cli:
    """The command found through PATH, as for a person."""
    return Cli(cli.folder, {**cli.env, "PATH": f"{BIN}:{cli.env['PATH']}"})


@pytest.fixture
def offered(shell: Cli) -> Callable[..., list[str]]:
    """What bash offers behind a line."""
    script = shell.folder / "dtq.bash"
    script.write_text(shell.ok("completion", "bash"))

    def ask(line: str, **env: str) -> list[str]:
        argv = ["bash", "--norc", "-c", ASK_BASH, "bash", str(script), line]
        done = subprocess.run(
            argv, capture_output=True, text=True, env={**shell.env, **env}, cwd=shell.folder, timeout=30, check=True
        )
        assert done.stderr == "", done.stderr
        return done.stdout.split()

    return ask


def test_commands_and_options(offered) -> None:
    assert {"submit", "get", "list", "queue", "completion"} <= set(offered("dtq "))
    assert offered("dtq sub") == ["submit"]
    assert sorted(offered("dtq queue ")) == ["pause", "resume", "stats"]
    assert offered("dtq --json queue --redis redis://x st") == ["stats"]
    assert {"--queue", "--status", "--limit", "--json", "--redis", "--help"} <= set(offered("dtq list -"))
    assert offered("dtq list --sta") == ["--status"]
    assert offered("dtq list --status dead") == ["dead_lettered"]
    assert offered("dtq list --status=ru") == ["running"]
    assert offered("dtq completion f") == ["fish"]
    assert offered("dtq submit --payload '{\"a\": 1}' --prio") == ["--priority"]
    assert offered("dtq nonsense --js") == ["--json"]


def test_queues_tasks_and_dead_letters(offered, shell: Cli, engine: Server) -> None:
    first, second = shell.submit("demo", "{}", "--queue", "mail"), shell.submit("demo", "{}", "--queue", "media")
    assert offered("dtq queue stats m") == ["mail", "media"]
    assert offered("dtq list --queue ma") == offered("dtq list --queue=ma") == ["mail"]
    assert set(offered("dtq get ")) == {first, second}
    assert offered(f"dtq cancel {first[:9]}") == [first]
    assert offered("dtq retry-dlq ") == []
    elsewhere = f"dtq list --redis {engine.url()} --queue me"
    assert offered(elsewhere, DTQ_REDIS_URL="redis://127.0.0.1:1/0") == ["media"]


def test_a_file_and_a_folder(offered, shell: Cli) -> None:
    (shell.folder / "receipts.txt").touch()
    (shell.folder / "a folder").mkdir()
    assert offered("dtq audit verify --receipts rec") == ["receipts.txt"]
    assert offered("dtq up --state a") == ["a", "folder"]  # one name, shown as words


def test_nobody_answers(offered, shell: Cli) -> None:
    """A key press must not end in a complaint, and not last."""
    assert offered("dtq get ", DTQ_REDIS_URL="redis://127.0.0.1:1/0") == []
    assert offered("dtq get ", DTQ_REDIS_URL="nonsense") == []
    for words in ([], ["nonsense"], ["queues", "nonsense"]):
        done = shell("__complete", *words)
        assert (done.code, done.out, done.err) == (0, "", "")


def test_names_that_a_shell_would_run_are_not_offered(offered, engine: Server, shell: Cli) -> None:
    engine.redis.sadd("dtq:queues", "$(touch pwned)", "`touch pwned`", "fine")
    assert offered("dtq queue stats ") == ["fine"]
    assert not (shell.folder / "pwned").exists()


def test_the_tab_key_in_bash(shell: Cli) -> None:
    screen = Terminal(["bash", "--norc", "--noprofile", "-i"], {**shell.env, "PS1": "ready> "}, shell.folder)
    try:
        screen.type("eval \"$(dtq completion bash)\"; echo sour''ced\n")
        screen.until("sourced")
        screen.type("dtq queue sta\t--j\t\n")
        screen.until('"queues": []')
        screen.type("exit\n")
        assert screen.end() == 0
    finally:
        screen.close()


def installed(name: str) -> str:
    """The shell's path; a machine without it passes over the test, the build machine does not."""
    program = shutil.which(name)
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return str(program)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_scripts_are_sound(shell: Cli, name: str) -> None:
    program = installed(name)
    script = shell.folder / f"dtq.{name}"
    script.write_text(shell.ok("completion", name))
    done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tab_key_in_zsh(shell: Cli) -> None:
    installed("zsh")
    shell.submit("demo", "{}", "--queue", "mail")
    env = {**shell.env, "PS1": "ready> ", "ZDOTDIR": str(shell.folder)}
    screen = Terminal(["zsh", "-f", "-i"], env, shell.folder)
    try:
        screen.type("autoload -Uz compinit; compinit -D -u; source <(dtq completion zsh); echo sour''ced\n")
        screen.until("sourced")
        screen.type("dtq que\tsta\tma\t --js\t\n")
        screen.until('"queue": "mail"')
        screen.type("exit\n")
        screen.end()
    finally:
        screen.close()


def test_fish_offers_the_same(shell: Cli) -> None:
    installed("fish")
    shell.submit("demo", "{}", "--queue", "mail")
    (shell.folder / "dtq.fish").write_text(shell.ok("completion", "fish"))

    def ask(line: str) -> list[str]:
        code = "source dtq.fish; complete -C $argv[1]"
        done = subprocess.run(
            ["fish", "-c", code, line], capture_output=True, text=True, env={**shell.env, "HOME": str(shell.folder)},
            cwd=shell.folder, timeout=30,
        )  # fmt: skip
        return [offer.split("\t")[0] for offer in done.stdout.splitlines()]

    assert ask("dtq queue sta") == ["stats"]
    assert ask("dtq queue stats m") == ["mail"]
    assert ask("dtq list --status dead") == ["dead_lettered"]
    assert ask("dtq list --queue=m") == ["--queue=mail"]
