"""The engine of a `dtq up` as events: started in a thread, started again when it ends, given up only at the first start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dtq_core.errors import DtqError
from dtq_local.child import how_it_ended
from dtq_local.engine import Engine, stop_leftover

START_S = 2.0
"""How long a stop waits for an engine that is just starting, before it stops it in the middle."""
RESTART_S = 0.5
RETRY_S = 5.0
NEVER = float("inf")


@dataclass(frozen=True)
class EngineEvent:
    """It came up, it ended with `code`, or it could not be started because of `error`."""

    code: int | None = None
    error: BaseException | None = None


class EngineLife:
    """`report` takes events from other threads; `say` writes a line of the log. All methods are for one thread."""

    def __init__(self, engine: Engine, report: Callable[[EngineEvent], None], say: Callable[[str], None]) -> None:
        self.engine = engine
        self.was_up = False
        self.due = NEVER
        """When it is to be started again, on the monotonic clock."""
        self.error: BaseException | None = None
        """Why there is no engine at all."""
        self._report = report
        self._say = say

    def begin(self) -> None:
        """The first start."""
        if pid := stop_leftover(self.engine.state_dir):
            self._say(f"an engine (pid {pid}) was left over from an earlier run and is stopped")
        self.start()

    def start(self) -> None:
        """In a thread: reading a large append-only file may take a while, in which signals still count."""
        self.due = NEVER

        def life() -> None:
            try:
                self.engine.start()
            except BaseException as exc:
                self._report(EngineEvent(error=exc))
                return
            self._report(EngineEvent())
            self._report(EngineEvent(code=self.engine.wait()))

        threading.Thread(target=life, name="dtq-engine", daemon=True).start()

    def handle(self, event: EngineEvent, *, stopping: bool) -> None:
        if event.error is not None:
            self._failed(event.error, stopping)
        elif event.code is None:
            if self.was_up:
                self._say("the engine runs again")
            self.was_up = True
        elif not stopping:
            self._say(f"the engine {how_it_ended(event.code)}; it is started again in {RESTART_S:g} s")
            self.due = time.monotonic() + RESTART_S

    def _failed(self, error: BaseException, stopping: bool) -> None:
        """At the first start that ends `dtq up`; later the workers wait for it, so we keep trying."""
        if not self.was_up or not isinstance(error, DtqError):
            self.error = error
        elif not stopping:
            self._say(f"the engine does not start: {error.message}; next try in {RETRY_S:g} s")
            self.due = time.monotonic() + RETRY_S
