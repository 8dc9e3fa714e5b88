"""The tree of commands: every command of contract §12 and ours, how wrong calls end. Pure: no server is asked."""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest

from dtq_cli import arguments
from dtq_cli.cli import main
from dtq_cli.door import _load
from dtq_cli.tree import build_parser
from dtq_core import submission

pytestmark = pytest.mark.contract("C12.14")


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """(words, parser) of every command that does something."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for group in groups:
        for name, child in group.choices.items():
            yield from leaves(child, (*path, name))
    if not groups:
        yield " ".join(path), parser


LEAVES = dict(leaves(build_parser()))


WORKBENCH = {"status", "down", "logs", "doctor", "demo", "bench", "new"} & set(LEAVES)
"""Ours beyond the contract, each proved by tests of its own."""


def test_every_command_is_there() -> None:
    assert set(LEAVES) == {
        "submit", "get", "list", "cancel", "dlq list", "retry-dlq", "discard-dlq", "purge-dlq", "purge", "queue pause",
        "queue resume", "queue stats", "workers", "events", "audit verify", "worker run", "scheduler run", "api run", "up",
        "completion",
    } | WORKBENCH  # fmt: skip


@pytest.mark.parametrize("words", sorted(LEAVES))
def test_every_command_exists_and_has_json_and_redis(words: str) -> None:
    parser = LEAVES[words]
    function = _load(parser.get_default("command"))
    assert list(inspect.signature(function).parameters) == ["args"]
    options = {option for action in parser._actions for option in action.option_strings}
    assert {"--json", "--redis"} <= options
    assert all(action.help for action in parser._actions if action.option_strings), "an option without a help text"


@pytest.mark.parametrize("words", ["", *sorted(LEAVES)])
def test_help(words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: dtq {words}".rstrip())
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert not words or re.search(rf"\nexamples?:\n(.*\n)*  .*dtq {words}\b", out), "an example says more than a list"


@pytest.mark.parametrize("argv", [[], ["queue"], ["dlq"], ["worker"], ["scheduler"], ["audit"]])
def test_without_a_command_help_and_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("usage: dtq")


@pytest.mark.parametrize(
    "argv",
    [
        ["no-such-command"],
        ["queue", "drain", "default"],
        ["get"],
        ["get", "a", "b"],
        ["submit"],
        ["submit", "--type"],
        ["submit", "--type", "a\nb"],
        ["submit", "--type", "t\udcff"],
        ["submit", "--type", "t", "--queue", "\udcff"],
        ["submit", "--type", "t", "--priority", "10"],
        ["submit", "--type", "t", "--priority", "-1"],
        ["submit", "--type", "t", "--priority", "9" * 5000],
        ["submit", "--type", "t", "--timeout-ms", "3600001"],
        ["submit", "--type", "t", "--delay-seconds", "2592001"],
        ["submit", "--type", "t", "--priority", "high"],
        ["submit", "--type", "t", "--priority", "5.0"],
        ["submit", "--type", "t", "--priority", "１"],
        ["submit", "--type", "t", "--max-attempts", "1_0"],
        ["submit", "--type", "t", "--timeout-ms", "9" * 30],
        ["submit", "--type", "t", "--delay-seconds", "nan"],
        ["submit", "--type", "t", "--delay-seconds", "inf"],
        ["submit", "--type", "t", "--delay-seconds", "1e999"],
        ["submit", "--type", "t", "--delay-seconds", "-1"],
        ["submit", "--type", "t", "--delay-seconds", "soon"],
        ["submit", "--typ", "t"],
        ["list", "--status", "done"],
        ["list", "--limit", "0"],
        ["list", "--limit", "all"],
        ["purge"],
        ["worker", "run", "--concurrency", "0"],
        ["up", "--workers", "0"],
        ["up", "--port", "70000"],
        ["events", "--seconds", "nan"],
        ["get", "x\ny", "\x1b[31m"],
    ],
)
def test_a_wrong_call_is_one_line_and_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error INVALID_ARGUMENT: ") and printed.err.endswith("--help)\n")
    assert printed.err.count("\n") == 1 and "\x1b" not in printed.err


def test_a_typing_error_is_told_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, meant in [
        (["sumbit"], "submit"),
        (["list", "--status", "suceeded"], "succeeded"),
        (["queue", "stat"], "stats"),
    ]:
        assert main(argv) == 2
        assert f"did you mean {meant}?" in capsys.readouterr().err


def test_limits_that_the_parser_knows_are_those_of_a_submission() -> None:
    assert arguments.MAX_DELAY_S == submission.MAX_DELAY_S


def test_shared_options_may_stand_anywhere() -> None:
    for argv in (["--json", "--redis", "redis://x", "dlq", "list"], ["dlq", "list", "--json", "--redis", "redis://x"],
                 ["dlq", "--json", "--redis", "redis://x", "list"]):  # fmt: skip
        args = build_parser().parse_args(argv)
        assert (args.json, args.redis, args.command) == (True, "redis://x", "dead_letters:list_")


def test_the_script_is_an_entry_point() -> None:
    (script,) = entry_points(group="console_scripts", name="dtq")
    assert script.value == "dtq_cli.cli:main"


def test_nothing_heavy_is_imported_to_read_arguments() -> None:
    heavy = ("redis", "pydantic", "asyncio", "dtq_local")
    code = f"import sys; import dtq_cli.door; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"


def test_ctrl_c_in_the_first_moment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Most of a short command's life is imports; they happen where somebody takes the interrupt."""

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "dtq_cli.door", Interrupted())  # type: ignore[arg-type]
    monkeypatch.setattr("dtq_cli.door", Interrupted(), raising=False)
    assert main(["list"]) == 130
    assert capsys.readouterr() == ("", "")
    done = subprocess.run(
        [sys.executable, "-c", "import sys, dtq_cli.cli; print([m for m in ('argparse', 'json') if m in sys.modules])"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == "[]\n"
