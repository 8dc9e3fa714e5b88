"""dtq_cli.output: tables that fit, text that cannot drive a terminal, JSON that stays JSON. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtq_cli import output
from dtq_cli.output import Column

LISTING = [
    Column("TASK"),
    Column("TYPE", flexible=True),
    Column("QUEUE", flexible=True),
    Column("STATUS"),
    Column("AGE", right=True),
]
ID = "0123456789abcdef" * 2


class Screen(io.StringIO):
    """stdout with an encoding, a terminal or not."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__()
        self._encoding = encoding
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@contextmanager
def shown(encoding: str = "utf-8", terminal: bool = False) -> Iterator[Screen]:
    """stdout is this screen."""
    screen = Screen(encoding, terminal)
    with redirect_stdout(screen):
        yield screen


def test_a_table_fits_80_columns_and_keeps_ids_whole() -> None:
    with shown() as screen:
        output.table(
            LISTING, [(ID, "t" * 128, "q" * 64, "dead_lettered", "59m"), (ID, "t", "q", "queued", "0s")], empty=""
        )
        lines = screen.getvalue().splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert lines[1].startswith(f"{ID}  ttt") and "…" in lines[1] and "dead_lettered" in lines[1]
        assert lines[0].split() == [c.title for c in LISTING]


def test_a_small_table_is_not_stretched() -> None:
    with shown() as screen:
        output.table([Column("A"), Column("B", right=True)], [("x", 1), ("yy", 22)], empty="")
        assert screen.getvalue() == "A    B\nx    1\nyy  22\n"


def test_a_terminal_of_200_columns_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with shown(terminal=True) as screen:
        output.table(LISTING, [(ID, "t" * 60, "q" * 60, "queued", "0s")], empty="")
    assert "t" * 60 in screen.getvalue() and "q" * 60 in screen.getvalue()


def test_wide_characters_keep_the_columns() -> None:
    with shown() as screen:
        output.table([Column("A", flexible=True), Column("B")], [("漢字" * 60, "x"), ("e\u0301", "y")], empty="")
        _, wide, combined = screen.getvalue().splitlines()
        assert output._width(wide) <= 80 and wide.endswith("  x")
        assert output._width(combined[: combined.index("y")]) == output._width(wide[: wide.index("x")])


def test_control_characters_do_not_reach_the_terminal() -> None:
    with shown() as screen:
        hostile = "a\x1b[2J\r\nb\x07\x9b31m\u202e\x00"
        output.table([Column("A")], [(hostile,)], empty="")
        output.fields([("x", output.pretty({"k": hostile}))])
        assert not [c for c in screen.getvalue() if c != "\n" and not c.isprintable()]


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, env, coloured in [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ]:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with shown(terminal=terminal):
            assert ("\x1b[31m" in output.paint("dead_lettered")) is coloured


def test_without_rows_a_sentence() -> None:
    with shown() as screen:
        output.table(LISTING, [], empty="no tasks")
        assert screen.getvalue() == "no tasks\n"


def test_an_ellipsis_for_those_who_have_none() -> None:
    with shown("ascii"):
        assert output.ellipsis() == "~"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_documents_are_json_in_any_encoding(value: Any) -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        with shown(encoding) as screen:
            output.document({"value": value, "at": datetime(2026, 1, 1, tzinfo=UTC)})
        text = screen.getvalue()
        assert json.loads(text) == {"value": value, "at": "2026-01-01T00:00:00.000+00:00"}
        if encoding != "utf-8":
            assert text.isascii()


def test_long_values_are_cut_for_people_only() -> None:
    with shown():
        text = output.pretty({"k": ["word"] * 1000})
        assert len(text) < 2200 and "--json shows them" in text
        assert output.pretty({"k": 1}) == '{"k": 1}'


def test_spans_and_times() -> None:
    assert [output.span(s) for s in (0, 59, 119, 120, 7199, 7200, 200_000)] == [
        "0s",
        "59s",
        "119s",
        "2m",
        "119m",
        "2h",
        "2d",
    ]
    assert [output.milliseconds(ms) for ms in (None, 0, 9999, 10_000, 12_345)] == [
        "-",
        "0 ms",
        "9999 ms",
        "10 s",
        "12.3 s",
    ]
    now = datetime.now(UTC)
    assert output.when(now - timedelta(seconds=10)).endswith("(10s ago)")
    assert output.when(now + timedelta(hours=5, seconds=5)).endswith("(in 5h)")
    assert output.when(None) == "-"
    assert [output.count(n, "task") for n in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]


def test_the_last_column_may_wrap() -> None:
    with shown() as screen:
        output.table([Column("A"), Column("B", wraps=True)], [("x", "word " * 30), ("y", "short")], empty="")
    lines = screen.getvalue().splitlines()
    assert len(lines) == 4 and all(len(line) <= 80 for line in lines)
    assert [line[:4] for line in lines] == ["A  B", "x  w", "   w", "y  s"]


def test_a_long_name_gives_way_last_and_keeps_both_ends() -> None:
    columns = [
        Column("WORKER", name=True),
        Column("HOST", flexible=True),
        Column("BUSY"),
        Column("OUTCOME", wraps=True),
    ]
    pods = [f"shop-orders-worker-7d9f8b6c5{tail}-{'x' * 40}-{tail}" for tail in ("abcde", "fghij")]
    with shown() as screen:
        output.table(columns, [(pod, "h" * 40, "1/4", "word " * 20) for pod in pods], empty="")
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    names = [line.split()[0] for line in lines if line.startswith("shop-orders")]
    assert len(set(names)) == 2 and all(
        "…" in n and n.endswith(t) for n, t in zip(names, ("abcde", "fghij"), strict=True)
    )
    assert lines[1].split()[1] == "hhhhh…", "the others have given way as far as they can"
    with shown() as screen:
        output.table(columns, [("worker-0a1b2c3d", "host", "1/4", "ended")], empty="")
    assert screen.getvalue().splitlines()[1].split() == ["worker-0a1b2c3d", "host", "1/4", "ended"]


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x7f\u202e\nforged  row"


def test_what_came_from_outside_cannot_drive_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.fields([("type", HOSTILE), ("payload", output.pretty({"a": HOSTILE, "long": "x" * 100}))])
    shown = capsys.readouterr().out
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert not any(line.startswith("forged") for line in shown.splitlines())


@pytest.mark.parametrize("write", [output.document, output.json_line])
def test_a_document_is_the_same_value_and_drives_no_terminal(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    value = {"error": HOSTILE, "tag": "\U000e0001", "name": "Zoë 漢"}
    write(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert all(c == "\n" or c.isprintable() for c in shown)
