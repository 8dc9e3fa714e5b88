"""One readable log out of many processes: whole lines, each behind the name of who wrote it.

The invariant: `line` never blocks and never raises. Lines go through a bounded queue to a thread that writes; when the
terminal is stopped or slow, lines are dropped and counted instead of holding up the processes, and when it is gone, the
log is given up and the work goes on.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92)
_ROOM = 5_000
_MAX_LINE = 8_192


class Console:
    """Writes to `stream`'s file descriptor; `names` are the prefixes, known beforehand so that they align."""

    def __init__(self, stream: TextIO, names: list[str], *, colour: bool) -> None:
        self._fd = stream.fileno()
        self._encoding = stream.encoding or "utf-8"
        self._width = max(map(len, names))
        self._colour = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(names)} if colour else {}
        self._lines: queue.Queue[bytes | None] = queue.Queue(_ROOM)
        self._dropped = 0
        self._gone = False
        self._thread = threading.Thread(target=self._write_all, name="dtq-console", daemon=True)
        self._thread.start()

    def line(self, name: str, text: str) -> None:
        """One line of process `name`; over-long ones are cut."""
        if len(text) > _MAX_LINE:
            text = text[:_MAX_LINE] + " … (cut)"
        prefix = f"{name:<{self._width}} |"
        if name in self._colour:
            prefix = f"\x1b[{self._colour[name]}m{prefix}\x1b[0m"
        self.raw(f"{prefix} {text}")

    def raw(self, text: str) -> None:
        """One line without a prefix, or several."""
        try:
            self._lines.put_nowait(f"{text}\n".encode(self._encoding, "backslashreplace"))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _write_all(self) -> None:
        while (data := self._lines.get()) is not None:
            if self._dropped and self._lines.empty():
                data += f"… {self._dropped} lines were dropped: the terminal was too slow\n".encode(
                    self._encoding, "backslashreplace"
                )
                self._dropped = 0
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            while data and not self._gone:
                data = data[os.write(self._fd, data) :]
        except OSError:
            self._gone = True
