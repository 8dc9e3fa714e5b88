"""What goes to stdout: JSON documents for machines, tables of at most the terminal's width for people.

Everything that came from outside is made harmless first: control characters in a task's error or payload must not drive
a terminal.
"""

from __future__ import annotations

import json
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dtq_cli.streams import WIDTH, room, speaks_utf8, wants_colour
from dtq_core.text import clean

_SMALLEST = 6
_SMALLEST_NAME = 15
_WRAPPED_AT_LEAST = 20
_COLOURS = {
    "succeeded": 32, "ready": 32, "ok": 32,
    "running": 36, "busy": 36,
    "retrying": 33, "draining": 33, "paused": 33, "stale": 33, "warning": 33,
    "failed": 31, "dead_lettered": 31, "wrong": 31, "error": 31,
    "cancelled": 90, "expired": 90, "stopped": 90,
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """`flexible` columns give way when the table is too wide; ids of tasks never do.

    `name`: gives way after all others, in its middle, since names of one deployment differ at their ends. The last
    column may wrap instead of being cut.
    """

    title: str
    flexible: bool = False
    name: bool = False
    right: bool = False
    wraps: bool = False


def document(value: Any) -> None:
    """One JSON document."""
    print(_json_text(value, indent=2))


def json_line(value: Any) -> None:
    """One JSON object in one line, written at once."""
    print(_json_text(value), flush=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """Rows under their titles, as wide as the terminal at most. Without rows the sentence `empty`."""
    if not rows:
        print(empty)
        return
    cells = [[clean(str(cell), 1000) for cell in row] for row in rows]
    widths = [max(_width(c) for c in (column.title, *(r[i] for r in cells))) for i, column in enumerate(columns)]
    if columns[-1].wraps:
        others = sum(widths[:-1]) + 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(_WRAPPED_AT_LEAST, room() - others))
    widths = _fit(columns, widths)
    if columns[-1].wraps:
        cells = _wrapped(cells, widths[-1])
    print(_line([column.title for column in columns], columns, widths, titles=True))
    for row in cells:
        print(_line(row, columns, widths))


def line(text: str) -> None:
    """One line of a stream of lines, cut to the width that there is, written at once."""
    print(_cut(clean(text, 1000).rstrip(), room()), flush=True)


class Block(str):
    """Text of several lines that is harmless already."""


def fields(rows: Sequence[tuple[str, str]]) -> None:
    """`name  value` lines; a Block may have several lines, which are indented to its column. Other values are cleaned."""
    indent = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        first, *more = value.split("\n") if isinstance(value, Block) else [clean(value, 1000)]
        print(f"{name:<{indent}}{paint(first)}".rstrip())
        for line in more:
            print(f"{'':<{indent}}{line}")


def paragraph(label: str, text: str) -> None:
    """`text` behind its label, wrapped to the width of the terminal; ids are never broken."""
    lines = textwrap.wrap(clean(text, 2000), room() - 7, break_long_words=False, break_on_hyphens=False) or [""]
    print(f"{paint(label)}{'':<{7 - len(label)}}{lines[0]}")
    for line in lines[1:]:
        print(f"{'':<7}{line}")


def pretty(value: Any, limit: int = 2000) -> Block:
    """A JSON value for a person: short ones in one line, longer ones indented, cut at `limit` characters."""
    compact = _json_text(value)
    if len(compact) <= WIDTH - 16:
        return Block(compact)
    text = _json_text(value, indent=2)
    if len(text) <= limit:
        return Block(text)
    return Block(f"{text[:limit]}\n{ellipsis()} cut, {len(compact)} characters in all: --json shows them")


def paint(text: str) -> str:
    """A status word in its colour, on a terminal."""
    colour = _COLOURS.get(text)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and wants_colour(sys.stdout) else text


def when(instant: datetime | None) -> str:
    """An instant and how far it is from now."""
    if instant is None:
        return "-"
    shown = instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    distance = (datetime.now(UTC) - instant).total_seconds()
    return f"{shown} ({span(distance)} ago)" if distance >= 0 else f"{shown} (in {span(-distance)})"


def age(instant: datetime) -> str:
    return span(max(0.0, (datetime.now(UTC) - instant).total_seconds()))


def span(seconds: float) -> str:
    """A duration in at most four characters' worth of digits: 12s, 3m, 5h, 9d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def milliseconds(ms: int | None) -> str:
    if ms is None:
        return "-"
    return f"{ms} ms" if ms < 10_000 else f"{round(ms / 1000, 1):g} s"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 task`, `2 tasks`; `plural` where an s is not enough."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def ellipsis() -> str:
    return "…" if speaks_utf8(sys.stdout) else "~"


def note(text: str) -> None:
    """Something for the person in front of it that is no result: on stderr."""
    print(text, file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def _json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing can drive a terminal: JSON escapes control characters up to 31, these are the rest."""
    text = json.dumps(value, indent=indent, ensure_ascii=not speaks_utf8(sys.stdout), default=_plain)
    if text.isascii() and "\x7f" not in text:
        return text
    # What cannot be printed stands inside strings only, so an escape in its place is the same document.
    return "".join(
        c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] if c != "\x7f" else "\\u007f" for c in text
    )


def _fit(columns: Sequence[Column], widths: list[int]) -> list[int]:
    """Take from the widest flexible column until the table fits, then from the widest name."""
    excess = sum(widths) + 2 * (len(widths) - 1) - room()
    for least, giving in ((_SMALLEST, [c.flexible for c in columns]), (_SMALLEST_NAME, [c.name for c in columns])):
        while excess > 0:
            candidates = [i for i, gives in enumerate(giving) if gives and widths[i] > least]
            if not candidates:
                break
            widths[max(candidates, key=lambda i: widths[i])] -= 1
            excess -= 1
    return widths


def _wrapped(cells: list[list[str]], width: int) -> list[list[str]]:
    """Rows whose last cell fits beside the others; what is left of it goes on in rows of its own."""
    rows = []
    for row in cells:
        first, *more = textwrap.wrap(row[-1], width) or [""]
        rows.append([*row[:-1], first])
        rows += [[*[""] * (len(row) - 1), line] for line in more]
    return rows


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, titles: bool = False) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        shown = _cut_inside(cell, width) if column.name else _cut(cell, width)
        gap = " " * (width - _width(shown))
        painted = shown if titles else paint(shown)
        parts.append(gap + painted if column.right else painted + gap)
    return "  ".join(parts).rstrip()


def _cut_inside(text: str, width: int) -> str:
    """As _cut, but both ends stay."""
    if _width(text) <= width:
        return text
    end = text[-(width // 2) :]
    while _width(end) > width // 2:
        end = end[1:]
    return _cut(text, width - _width(end)) + end


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept = ""
    for character in text:
        if _width(kept + character) > width - 1:
            break
        kept += character
    return kept + ellipsis()


def _width(text: str) -> int:
    """Columns on the screen: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
