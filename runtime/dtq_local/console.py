"""One readable log out of many processes: whole lines, each behind the name of who wrote it.

The invariant: `line` never blocks and never raises. Lines go through a bounded queue to a thread that writes; when the
terminal is stopped or slow, lines are dropped and counted instead of holding up the processes, and when it is gone, the
terminal is given up and the work goes on. The log on disk has a queue and a thread of its own: a terminal that stands
still takes nothing from it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TextIO

from dtq_local.logfile import LogFile

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92)
_ROOM = 5_000
_MAX_LINE = 8_192


class Console:
    """Writes to `stream`'s file descriptor; `names` are the prefixes, known beforehand so that they align."""

    def __init__(self, stream: TextIO, names: list[str], *, colour: bool) -> None:
        self._encoding = stream.encoding or "utf-8"
        self._width = max(map(len, names))
        self._colour = palette(names) if colour else {}
        fd = stream.fileno()
        self._terminal = _Sink(lambda data: _write(fd, data), self._encoding, "the terminal", ends=True)
        self._log: _Sink | None = None

    def keep(self, log: LogFile) -> None:
        """From now on write everything to `log` too, without colours."""
        self._log = _Sink(log.write, "utf-8", "the disk", ends=False)

    def line(self, name: str, text: str) -> None:
        """One line of process `name`; over-long ones are cut."""
        if len(text) > _MAX_LINE:
            text = text[:_MAX_LINE] + " … (cut)"
        prefix = f"{name:<{self._width}} |"
        painted = f"\x1b[{self._colour[name]}m{prefix}\x1b[0m" if name in self._colour else prefix
        self._terminal.put(f"{painted} {text}")
        if self._log is not None:
            self._log.put(f"{prefix} {text}")

    def raw(self, text: str) -> None:
        """One line without a prefix, or several."""
        self._terminal.put(text)
        if self._log is not None:
            self._log.put(text)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s` each."""
        for sink in (self._terminal, self._log):
            if sink is not None:
                sink.close(timeout_s)


def palette(names: list[str]) -> dict[str, int]:
    """The colour of each name, as the number that an escape sequence takes."""
    return {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(names)}


def wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Sink:
    """A bounded queue and the thread that writes it. `ends`: a failure is for ever, as of a terminal that was closed."""

    def __init__(self, write: Callable[[bytes], None], encoding: str, what: str, *, ends: bool) -> None:
        self._write = write
        self._encoding = encoding
        self._what = what
        self._ends = ends
        self._lines: queue.Queue[bytes | None] = queue.Queue(_ROOM)
        self._dropped = 0
        self._gone = False
        self._thread = threading.Thread(target=self._write_all, name="dtq-console", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        try:
            self._lines.put_nowait(f"{text}\n".encode(self._encoding, "backslashreplace"))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _write_all(self) -> None:
        while (data := self._lines.get()) is not None:
            if self._dropped and self._lines.empty():
                data += f"… {self._dropped} lines were dropped: {self._what} was too slow\n".encode(
                    self._encoding, "backslashreplace"
                )
                self._dropped = 0
            if self._gone:
                continue
            try:
                self._write(data)
            except OSError:
                self._gone = self._ends


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
