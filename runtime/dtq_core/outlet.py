"""Where log lines leave the process: an outlet that nobody empties costs lines and hardly any time, never a task.

A pipe whose reader has stopped would block whoever writes: the event loop, and with it every task, or the thread that
keeps the leases. So the outlet is asked before each write whether it takes one. A full one is waited for, but not for
long, and then not again for a while; what could not be written is counted, and said when it flows again.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import time
from typing import TextIO

CHUNK = 512
"""Bytes per write. POSIX: a pipe that is ready takes this many without blocking (PIPE_BUF is 512 at least)."""
WAIT_S = 0.1
PATIENCE_S = 2.0
"""After a wait in vain: how long lines are dropped without waiting."""


class Outlet:
    """Writes to a stream. Not thread-safe: its handler holds the logging lock."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.lost = 0
        self._broken_line = False
        self._dropping_until = 0.0
        self._fd, self._poll = _pollable(stream)

    def write(self, text: str) -> None:
        """Write whole lines, or lose them. Raises OSError where nobody can read any more."""
        if self._poll is None:
            self.stream.write(text)
            self.stream.flush()
            return
        if self.lost and self._takes_more():
            told = f"{self.lost} lines of the log were lost: nobody read them\n"
            text, self.lost, self._broken_line = ("\n" if self._broken_line else "") + told + text, 0, False
        data = text.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), self._chunk):
            if not self._takes_more():
                self._broken_line = self._broken_line or (start > 0 and data[start - 1] != 10)
                self.lost += data.count(b"\n", start)
                return
            os.write(self._fd, data[start : start + self._chunk])

    @property
    def _chunk(self) -> int:
        return getattr(select, "PIPE_BUF", CHUNK)

    def _takes_more(self) -> bool:
        assert self._poll is not None
        if self._poll.poll(0):
            return True
        if time.monotonic() < self._dropping_until:
            return False
        if self._poll.poll(WAIT_S * 1000):
            return True
        self._dropping_until = time.monotonic() + PATIENCE_S
        return False


def _pollable(stream: TextIO) -> tuple[int, select.poll | None]:
    """The file behind the stream and something that knows whether it is ready; (-1, None) for what is no file."""
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        fd = stream.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        return fd, poll
    return -1, None
