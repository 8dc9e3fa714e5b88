"""Whether everything that `dtq up` started really works: each worker's row is in Redis, and the API answers.

A process that runs is not yet a worker that takes tasks; "up" is said only when a task that is submitted now is run.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.store import SyncStore

SOON_S = 5.0
"""After this time somebody who waits is told what for."""
LIMIT_S = 30.0
"""After this time it is said what runs and what does not."""
_PAUSE_S = 0.1
_REPLY_S = 1.0
_WORKING = ("ready", "busy")


@dataclass(frozen=True)
class Ready:
    """Everything works. The last report."""


@dataclass(frozen=True)
class NotReady:
    """What is `missing` still; `final` when the limit has passed."""

    missing: tuple[str, ...]
    final: bool


class Processes(Protocol):
    """What is looked for: all names, the pids of those that run now, and where the API listens."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def api_address(self) -> tuple[str, int]: ...

    def pids(self) -> dict[str, int]: ...


class Readiness:
    """Asks again and again, in a thread of its own, and reports Ready or NotReady.

    Processes named worker-N are looked for in Redis by host and pid, as on a shared server other people's workers have
    rows too.
    """

    def __init__(self, settings: Settings, processes: Processes, report: Callable[[Ready | NotReady], None]) -> None:
        self._settings = settings
        self._processes = processes
        self._report = report
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="dtq-readiness", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        store = SyncStore.connect(self._settings, reply_timeout_s=_REPLY_S)
        began = time.monotonic()
        notices = [SOON_S, LIMIT_S]
        while not self._stopped.wait(_PAUSE_S):
            missing = self._missing(store)
            if not missing:
                self._report(Ready())
                break
            if notices and time.monotonic() - began >= notices[0]:
                notices.pop(0)
                self._report(NotReady(missing, final=not notices))
        store.close()

    def _missing(self, store: SyncStore) -> tuple[str, ...]:
        pids = self._processes.pids()
        working = self._working(store)
        there = {name for name, pid in pids.items() if pid in working or not name.startswith(("worker-", "api"))}
        if "api" in pids and self._api_answers():
            there.add("api")
        return tuple(name for name in self._processes.names if name not in there)

    def _working(self, store: SyncStore) -> set[int]:
        """Pids of the workers of this machine that take tasks."""
        try:
            (ids,) = store.send(("SMEMBERS", store.keys.workers))
            rows = store.send(*(("HMGET", store.keys.worker(i), "hostname", "pid", "status") for i in ids))
        except (DtqError, TypeError):
            return set()
        here = socket.gethostname()
        return {
            int(row[1])
            for row in rows
            if isinstance(row, list) and row[0] == here and str(row[1]).isdigit() and row[2] in _WORKING
        }

    def _api_answers(self) -> bool:
        host, port = self._processes.api_address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        connection = http.client.HTTPConnection(host, port, timeout=_REPLY_S)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/health")
            return connection.getresponse().status < http.client.INTERNAL_SERVER_ERROR
        return False
