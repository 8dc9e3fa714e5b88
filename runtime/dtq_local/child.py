"""One supervised process: started, its output read line by line, its end told. It decides nothing; the supervisor does.

Two threads each: one reads the output, one waits for the end. They only touch the console and the event queue.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtq_local.console import Console
from dtq_local.spawn import popen

_LAST_OUTPUT_S = 1.0
"""How long the end of a process waits for its last lines; a grandchild may hold the pipe open for ever."""
_HEALTHY_S = 20.0
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 15.0


@dataclass(frozen=True)
class Exited:
    """`child`'s process `pid` ended with `code`, negative for a signal."""

    child: Child
    pid: int
    code: int


class Child:
    """`argv` as a child in a session of its own, so that Ctrl-C on our terminal does not reach it."""

    def __init__(self, name: str, argv: Sequence[str], console: Console, events: queue.SimpleQueue[object]) -> None:
        self.name = name
        self._argv = list(argv)
        self._console = console
        self._events = events
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._delay_s = _FIRST_DELAY_S

    def start(self, env: Mapping[str, str]) -> None:
        """Start it with this environment. Raises OSError where the system cannot."""
        self._started_at = time.monotonic()
        process = popen(
            self._argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._process = process
        reader = threading.Thread(target=self._read, args=(process,), name=f"dtq-read-{self.name}", daemon=True)
        reader.start()
        threading.Thread(
            target=self._await_end, args=(process, reader), name=f"dtq-wait-{self.name}", daemon=True
        ).start()

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None else None

    def ended(self) -> None:
        """The supervisor has seen the end of the process."""
        self._process = None

    def next_delay_s(self) -> float:
        """Seconds until the next start: doubling while it keeps crashing, short again once it was healthy."""
        if time.monotonic() - self._started_at > _HEALTHY_S:
            self._delay_s = _FIRST_DELAY_S
        delay = self._delay_s
        self._delay_s = min(_MAX_DELAY_S, delay * 2)
        return delay

    def terminate(self) -> None:
        """Ask it to finish."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now, with whatever it started itself."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            for line in iter(lambda: pipe.readline(65_536), b""):
                self._console.line(self.name, line.decode(errors="replace").rstrip("\r\n"))

    def _await_end(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        code = process.wait()
        reader.join(_LAST_OUTPUT_S)
        self._events.put(Exited(self, process.pid, code))


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
