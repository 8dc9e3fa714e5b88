"""`dtq down`: end the `dtq up` of a state directory, and nothing else.

A pid alone proves nothing: the process may be long gone and its number somebody else's. So the number is taken from the
lock file, and believed only of a process that has that very file open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from dtq_core.errors import AlreadyRunning
from dtq_local.state import StateDir

_PAUSE_S = 0.05
_GONE_S = 10.0
"""How long the process may take to leave after it has let the lock go: it still writes its last lines."""


def stop(state: StateDir, patience_s: float, *, now: bool = False) -> int | None:
    """Ask it to finish, and wait until it has; its pid, or None where nothing ran.

    `now`: a second signal follows the first, which kills what still runs. Raises AlreadyRunning when it is not ours,
    cannot be told for certain, or has not ended after `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    if not state.held():
        return None
    pid = state.holder()
    target = _Target.find(pid, state.lock_file) if pid is not None else None
    if target is None:
        if not state.held():
            return None
        raise _told(
            f"{state.shown} is in use, but not by a process that can be told for certain",
            "stop it where it was started",
        )
    target.send(signal.SIGTERM)
    if now and not _ended(state, 0.5):
        target.send(signal.SIGTERM)
    if not _ended(state, deadline - time.monotonic()) or not target.is_gone(_GONE_S):
        raise _told(f"dtq up (pid {pid}) has not ended after {patience_s:g} s", "dtq down --now kills what runs")
    return pid


def _told(message: str, hint: str) -> AlreadyRunning:
    error = AlreadyRunning(message)
    error.hint = hint  # type: ignore[attr-defined]
    return error


def _ended(state: StateDir, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while state.held():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


class _Target:
    """A process that was told for certain. On Linux behind a descriptor, so that its number cannot change hands."""

    def __init__(self, pid: int, handle: int | None) -> None:
        self._pid = pid
        self._handle = handle

    @classmethod
    def find(cls, pid: int, lock_file: Path) -> _Target | None:
        """The process `pid` if it has `lock_file` open. The descriptor is taken before the look."""
        if sys.platform != "linux":
            return cls(pid, None) if _is_dtq(pid) else None
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return None
        if _has_open(pid, lock_file):
            return cls(pid, handle)
        os.close(handle)
        return None

    def send(self, signum: int) -> None:
        """Signal it, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle is None:
                os.kill(self._pid, signum)
            else:
                signal.pidfd_send_signal(self._handle, signum)

    def is_gone(self, patience_s: float) -> bool:
        """Whether it ended within that time; where that cannot be seen, that it let the lock go has to do."""
        if self._handle is None:
            return True
        return bool(select.select([self._handle], [], [], patience_s)[0])


def _has_open(pid: int, path: Path) -> bool:
    try:
        wanted = path.stat()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.path.samestat(descriptor.stat(), wanted):
                return True
        except OSError:
            continue
    return False


def _is_dtq(pid: int) -> bool:
    done = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
    )
    words = done.stdout.split()
    return "up" in words and any("dtq" in os.path.basename(word) for word in words)
