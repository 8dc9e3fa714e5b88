"""`dtq worker run --reload`: one worker process that is replaced when its task modules change.

The old worker finishes what it runs, then a new one starts. Code that cannot be imported stops nobody: the fault is
told, and the worker goes on with the code from before. A worker that ends by itself waits for the next change, as its
code is what somebody is just working on.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtq_local.child import how_it_ended
from dtq_local.signals import Signalled, as_events
from dtq_local.sources import Changed, Sources, fresh_code
from dtq_local.spawn import popen

logger = logging.getLogger("dtq.reload")
GRACE_S = 10.0
"""Beyond the drain time, before a worker that does not end is killed."""


@dataclass(frozen=True)
class _Ended:
    code: int


class ReloadingWorker:
    """`argv` is the worker, `names` its task modules, `drain_s` how long it may take to finish."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], names: Sequence[str], drain_s: float) -> None:
        self._argv = list(argv)
        self._env = fresh_code(env)
        self._drain_s = drain_s
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._sources = Sources(names, self._events.put)
        self._process: subprocess.Popen[bytes] | None = None
        self._held = True
        """Whether the modules cannot be imported, or are not known yet."""
        self._asked_to_end = False
        self._kill_at = float("inf")
        self._stopping = False

    def run(self) -> int:
        """Until a signal; the exit status of the last worker, 0 where none ran."""
        with as_events(self._events.put):
            self._sources.start()
            try:
                while (status := self._step()) is None:
                    continue
                return status
            finally:
                self._sources.stop()
                if self._process is not None:
                    self._process.kill()

    def _step(self) -> int | None:
        """Handle one event; an exit status when it was the last."""
        wait = None if self._kill_at == float("inf") else max(0.0, self._kill_at - time.monotonic())
        try:
            event = self._events.get(timeout=wait)
        except queue.Empty:
            self._kill_at = float("inf")
            if self._process is not None:
                logger.warning("the worker does not end and is killed; its tasks are taken over")
                self._process.kill()
            return None
        match event:
            case Signalled():
                return self._signalled()
            case _Ended(code):
                return self._ended(code)
            case Changed(names, error) if not self._stopping:
                self._changed(names, error)
        return None

    def _start(self) -> None:
        process = popen(self._argv, env=self._env, stdin=subprocess.DEVNULL)
        self._process = process
        self._asked_to_end, self._kill_at = False, float("inf")
        threading.Thread(target=lambda: self._events.put(_Ended(process.wait())), name="dtq-wait", daemon=True).start()

    def _end(self) -> None:
        """Ask the worker to finish, once: a second signal would make it leave its tasks."""
        if self._process is not None and not self._asked_to_end:
            self._asked_to_end = True
            self._kill_at = time.monotonic() + self._drain_s + GRACE_S
            self._process.terminate()

    def _changed(self, names: tuple[str, ...], error: str) -> None:
        self._held = bool(error)
        if error:
            logger.error("%s", error)
            goes_on = self._process is not None and not self._asked_to_end
            logger.warning(
                "the worker goes on with the code from before, until that is mended"
                if goes_on else "no worker is started until that is mended"
            )  # fmt: skip
        elif self._process is None:
            self._start()
        else:
            logger.info("%s changed: the worker finishes what it runs and starts again with it", ", ".join(names[:5]))
            self._end()

    def _ended(self, code: int) -> int | None:
        asked, self._process, self._kill_at = self._asked_to_end, None, float("inf")
        if self._stopping:
            return code if code >= 0 else 128 - code
        if self._held:
            logger.warning("the worker %s; the next one starts when the modules can be imported", how_it_ended(code))
        elif asked:
            self._start()
        else:
            logger.error("the worker %s; the next one starts when a file changes", how_it_ended(code))
        return None

    def _signalled(self) -> int | None:
        if self._process is None:
            return 0
        if self._stopping:  # the second one: the worker leaves at once
            self._process.terminate()
        self._stopping = True
        self._end()
        return None
