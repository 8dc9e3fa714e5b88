"""A program in a real pseudo-terminal."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli.calls import Cli
from support.processes import DTQ

PATIENCE_S = 30


class Terminal:
    """A process whose stdin, stdout and stderr are a terminal of `columns` columns, which is its controlling one."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *argv], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            start_new_session=True, env={"TERM": "xterm", **env},
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until `text` was shown."""
        while text not in self.shown:
            self.shown += self._read() or pytest.fail(f"{text!r} was not shown: {self.shown!r}")

    def type(self, text: str) -> None:
        """As from the keyboard: \\x03 is Ctrl-C, \\x04 Ctrl-D, \\t Tab."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """The exit status; all output is in `shown`."""
        while more := self._read():
            self.shown += more
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """The terminal goes away, and with it (SIGHUP) who still runs in it."""
        os.close(self._master)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> str:
        end = time.monotonic() + PATIENCE_S
        if not select.select([self._master], [], [], max(0, end - time.monotonic()))[0]:
            pytest.fail(f"nothing more was shown: {self.shown!r}")
        try:
            return os.read(self._master, 65_536).decode(errors="replace")
        except OSError as exc:
            if exc.errno == errno.EIO:  # the other end is closed
                return ""
            raise


@contextmanager
def terminal(cli: Cli, *args: str, columns: int = 80, **env: str) -> Iterator[Terminal]:
    """`dtq` with these arguments in a terminal."""
    opened = Terminal([DTQ, *args], {**cli.env, **env}, cli.folder, columns)
    try:
        yield opened
    finally:
        opened.close()
