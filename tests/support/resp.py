"""Frames of the Redis protocol (RESP2 and RESP3): where one request or reply ends, and what is in it."""

from __future__ import annotations

from typing import Any

_LINE = b"+-:,#_("
_BLOB = b"$=!"
_LIST = b"*~>"
_PAIRS = b"%|"


class Framer:
    """Cuts a stream of bytes into whole frames."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now, as they came over the wire."""
        self._buffer += data
        frames, start = [], 0
        while (end := frame_end(self._buffer, start)) is not None:
            frames.append(self._buffer[start:end])
            start = end
        self._buffer = self._buffer[start:]
        return frames


def frame_end(data: bytes, start: int) -> int | None:
    """Offset behind the frame that begins at `start`; None while it is not complete."""
    missing = 1
    while missing:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return None
        kind, missing = data[start : start + 1], missing - 1
        if kind in (b"$", b"=", b"!") or kind in (b"*", b"~", b">", b"%", b"|"):
            size = int(data[start + 1 : line_end])
        start = line_end + 2
        if kind[0] in _BLOB and size >= 0:
            start += size + 2
            if start > len(data):
                return None
        elif kind[0] in _LIST:
            missing += max(size, 0)
        elif kind[0] in _PAIRS:
            missing += 2 * max(size, 0) + (kind == b"|")  # an attribute is followed by what it describes
    return start


def decode(frame: bytes) -> Any:
    """A frame as lists, bytes, ints and None; an error is its text as bytes. An inline command is a list of words."""
    if frame[:1] not in (b"*", b"$", b"+", b"-", b":"):
        return frame.split()
    return _value(frame, 0)[0]


def _value(data: bytes, start: int) -> tuple[Any, int]:
    line_end = data.index(b"\r\n", start)
    kind, head, start = data[start : start + 1], data[start + 1 : line_end], line_end + 2
    if kind[0] in _LINE:
        return (int(head) if kind == b":" else head), start
    size = int(head)
    if kind[0] in _BLOB:
        return (None, start) if size < 0 else (data[start : start + size], start + size + 2)
    if size < 0:
        return None, start
    items = []
    for _ in range(size * 2 if kind[0] in _PAIRS else size):
        item, start = _value(data, start)
        items.append(item)
    return items, start
