"""Children that do not outlive us: the parent-death signal for processes that this package starts.

Used by the engine and by the supervisor. Linux only (prctl); elsewhere `die_with_parent` gives None and the callers
keep to what is portable: they stop their children at exit, and detect a leftover at the next start.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_jobs: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
_spawner_of_pid: int | None = None
_starting = threading.Lock()


def die_with_parent(signum: int = signal.SIGTERM) -> Callable[[], None] | None:
    """A `preexec_fn` that asks the kernel for `signum` when the parent dies, by kill -9 too; None where it cannot."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: the child of a process with threads should only call, not import
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return arm


def popen(argv: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` in a session of its own, ending with this process.

    The kernel sends the parent-death signal when the *thread* that forked ends, so only threads that live as long as
    the process may fork: the main thread, or one daemon thread kept for this.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, start_new_session=True, preexec_fn=die_with_parent(), **kwargs)

    if threading.current_thread() is threading.main_thread() or sys.platform != "linux":
        return start()
    return _in_spawner(start)


def _in_spawner(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    global _spawner_of_pid
    with _starting:
        if _spawner_of_pid != os.getpid():  # first use, or first use after a fork, which keeps only the calling thread
            threading.Thread(target=_serve, name="dtq-spawner", daemon=True).start()
            _spawner_of_pid = os.getpid()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _jobs.put((start, answer))
    result = answer.get()
    if isinstance(result, BaseException):
        raise result
    process: subprocess.Popen[bytes] = result
    return process


def _serve() -> None:
    while True:
        job, answer = _jobs.get()
        try:
            answer.put(job())
        except BaseException as exc:
            answer.put(exc)
