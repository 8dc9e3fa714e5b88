"""Real DTQ processes with real signals, each in a session of its own: what a test does to one reaches no other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dtq_local.spawn import popen

DTQ = str(Path(sys.executable).parent / "dtq")
TESTS = Path(__file__).resolve().parent.parent


class Process:
    """A child. Its output goes to `log_file`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        self.worker_id = ""
        with self.log_file.open("ab") as log:
            self._process = popen(
                list(argv), env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal, if there is still somebody to take it."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self.signal(signal.SIGKILL)
        self._process.wait(10)

    def freeze(self) -> None:
        """SIGSTOP, and stopped when this returns."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, timeout: float = 15.0) -> int:
        """Its exit code. Raises AssertionError when it does not end."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout:g} s:\n{self.tail()}") from None

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tail(self, chars: int = 3000) -> str:
        return self.log()[-chars:]

    def cpu_s(self) -> float:
        """Processor seconds used so far, in user and system mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Supervised:
    """What a cluster does: starts it again when it ends. `exits` keeps the exit codes, `processes` all of them."""

    def __init__(self, start: Callable[[], Process], pause_s: float = 0.1) -> None:
        self._start = start
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self.processes = [start()]
        self.exits: list[int] = []
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Process:
        return self.processes[-1]

    def stop(self) -> None:
        """Stop watching, then kill what runs."""
        self._stopping.set()
        self._thread.join(10)
        self.current.kill()

    def _watch(self) -> None:
        while not self._stopping.wait(0.02):
            code = self.current.exit_code
            if code is not None:
                self.exits.append(code)
                if self._stopping.wait(self._pause_s):
                    return
                self.processes.append(self._start())
