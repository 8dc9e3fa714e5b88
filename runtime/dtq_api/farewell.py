"""An orderly end with open sockets: readers hear 1001 before the server cuts them off, and the server waits for nobody for ever.

uvicorn closes sockets with 1012 when it stops, and without a limit waits for those that do not read. Both are put right
from inside the application, so that it does not matter who started it: `dtq api run`, or uvicorn's own command.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

from uvicorn import Server

STOP_S = 5
"""How long the server waits for requests and sockets, unless it was told otherwise."""
GOODBYE_S = 1.0
"""How long the readers may take to hear that the service stops."""

Goodbye = Callable[[], Awaitable[None]]


@contextlib.contextmanager
def on_signals(loop: asyncio.AbstractEventLoop, goodbye: Goodbye) -> Iterator[None]:
    """When the server is told to stop, do `goodbye` first and then let it have its signal; a second signal comes at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    replaced = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        server = getattr(signal.getsignal(signum), "__self__", None)
        if isinstance(server, Server):
            if server.config.timeout_graceful_shutdown is None:
                server.config.timeout_graceful_shutdown = STOP_S
            replaced.append((signum, server))
            signal.signal(signum, _Handler(loop, goodbye, server))
    try:
        yield
    finally:
        for signum, server in replaced:
            signal.signal(signum, server.handle_exit)


def with_the_parent() -> None:
    """Of several processes behind one port, stop when the one that watches over us has died: nobody could stop us then."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="dtq-parent", daemon=True).start()


class _Handler:
    """Takes the place of the server's own signal handler."""

    def __init__(self, loop: asyncio.AbstractEventLoop, goodbye: Goodbye, server: Server) -> None:
        self._loop = loop
        self._goodbye = goodbye
        self._server = server
        self._leaving: asyncio.Task[None] | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, signum)
        except RuntimeError:  # the loop has ended already
            self._server.handle_exit(signum, frame)

    def _take(self, signum: int) -> None:
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._leave(signum))
        else:
            self._server.handle_exit(signum, None)

    async def _leave(self, signum: int) -> None:
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._goodbye()
        except TimeoutError:
            pass
        finally:
            self._server.handle_exit(signum, None)
