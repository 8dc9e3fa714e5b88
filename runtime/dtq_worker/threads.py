"""Threads for blocking handlers: as many as there are slots, and never one that holds up the exit of the process.

The standard executor joins its threads at exit; a handler that never returns would keep the process alive for ever.
These are daemons. A slot is given only when its thread has ended, so a free slot always finds a free thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class Threads:
    """Grows to as many threads as ever ran at once; each takes the next job when it is done."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    async def run(self, fn: Callable[[], Any], ended: Callable[[Any, bool], None]) -> tuple[Any, BaseException | None]:
        """Call `fn()` in a thread; return its value and what it raised (a StopIteration could not leave a coroutine).

        Cancelling stops the waiting, not the thread. `ended(value, awaited)` is called on the event loop when the thread
        is really done; `awaited` says whether somebody still waits for the value.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            def finish() -> None:
                awaited = not future.done()
                ended(value, awaited)
                if awaited:
                    future.set_result((value, error))

            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass  # the loop is closed: the process is on its way out

        with self._lock:
            self._jobs.put((fn, deliver))
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._work, name=f"dtq-handler-{self._count}", daemon=True).start()
        return await future

    def _work(self) -> None:
        while True:
            fn, deliver = self._jobs.get()
            value: Any = None
            error: BaseException | None = None
            try:
                value = fn()
            except BaseException as exc:  # a handler may raise anything; the thread lives on
                error = exc
            del fn
            with self._lock:
                self._idle += 1
            deliver(value, error)
            del deliver, value, error
