"""The docs do what they say: every shell block of every page runs, every Python block is Python, cli.md is the parser's.

A block that cannot run says so behind its language, as in ```sh no-run: runs until Ctrl-C. One in which a command is
meant to fail says ```sh fails: reason. One that is typed in a terminal of its own, and goes on beside those that follow,
says ```sh background: what it prints once it runs. All others are run, page by page, in the order in which they stand.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest
from docs.blocks import PAGES, ROOT, Block, blocks
from docs.playground import commands_with_output, playground

from dtq_cli import reference


def shell_blocks(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.kind in ("sh", "console") and "no-run" not in b.marks]


@pytest.mark.parametrize("page", [p for p in PAGES if shell_blocks(p)], ids=lambda page: page.name)
def test_shell_blocks_run(page: Path, tmp_path: Path) -> None:
    with playground(tmp_path, blocks(page)) as place:
        complaints = place.run(shell_blocks(page))
        log = "\n".join(file.read_text(errors="replace")[-2000:] for file in tmp_path.glob("**/up.log"))
    assert not complaints, "\n".join(["", *complaints, "", "the log of dtq up:", log])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_python(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "python":
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            except (SyntaxError, SyntaxWarning) as exc:
                pytest.fail(f"{block.where}: {exc}", pytrace=False)


def test_the_page_of_commands_is_made_from_the_parser() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == reference.page(), "run: python -m dtq_cli.reference > docs/cli.md"


def test_a_mark_needs_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```sh no-run\ndtq up\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        blocks(page)
    page.write_text(
        "Put this:\n\n```sh no-run: runs until Ctrl-C\ndtq up\n```\n\n```\nid=$(dtq submit)\n```\n\n```\na = b\n```\n"
    )
    assert [(b.kind, b.marks, b.line) for b in blocks(page)] == [
        ("sh", {"no-run": "runs until Ctrl-C"}, 3), ("sh", {}, 7), ("", {}, 11),
    ]  # fmt: skip


def test_commands_are_told_from_their_output() -> None:
    text = "$ dtq a \\\n    b\nout\nmore\n$ dtq c\n"
    assert commands_with_output(text) == [("dtq a \\\n    b", "out\nmore\n"), ("dtq c", "")]


def test_a_page_that_lies_is_caught(tmp_path: Path) -> None:
    """The runner itself: a failing command, a wrong output and a typing error are each told with their line."""
    lies = [
        Block("p.md", 1, "sh", text="dtq get nobody\n"),
        Block("p.md", 2, "console", text="$ dtq --version\ndtq of another name\n"),
        Block("p.md", 3, "sh", text="dqt list\n"),
        Block("p.md", 4, "sh", {"fails": "so it says"}, text="dtq --version\n"),
        Block("p.md", 5, "console", text="$ dtq --version\ndtq 7.7.7\n$ dtq queue stats\nQUEUE … STATE\n"),
    ]  # fmt: skip
    with playground(tmp_path, []) as place:
        complaints = place.run(lies)
    assert [c.split(": ")[0] for c in complaints] == ["p.md:1", "p.md:2", "p.md:3", "p.md:4"], complaints


def test_what_goes_on_in_another_terminal(tmp_path: Path) -> None:
    """It is waited for, it is there for what follows and gone at the end; one that ends without its sign is told."""
    waits = "echo $BASHPID >other; echo almost; command sleep 1; echo it runs; exec tail -f /dev/null\n"
    page = [
        Block("p.md", 1, "sh", text="mkdir shop\ncd shop\n"),
        Block("p.md", 2, "sh", {"background": "it runs"}, waits),
        Block("p.md", 3, "sh", text="kill -0 $(cat other)\n"),
        Block("p.md", 4, "sh", {"background": "never said"}, "echo something else\n"),
    ]
    with playground(tmp_path, page) as place:
        complaints = place.run(page)
    assert [c.split(": ")[0] for c in complaints] == ["p.md:4"], complaints
    assert not Path("/proc", (tmp_path / "shop" / "other").read_text().strip()).exists()
