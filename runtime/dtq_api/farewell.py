"""An orderly end with open sockets: readers hear 1001 before the server cuts them off, and the server waits for nobody for ever.

uvicorn closes sockets with 1012 when it stops, and without a limit waits for those that do not read. Both are put right
from inside the application, so that it does not matter who started it: `dtq api run`, or uvicorn's own command.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from uvicorn import Server

STOP_S = 5
"""How long the server waits for requests and sockets, unless it was told otherwise."""


@contextlib.contextmanager
def on_signals(loop: asyncio.AbstractEventLoop, goodbye: Callable[[], None]) -> Iterator[None]:
    """Call `goodbye` on the loop when the server is told to stop, then let the server have its signal."""
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
            signal.signal(signum, _both(loop, goodbye, server))
    try:
        yield
    finally:
        for signum, server in replaced:
            signal.signal(signum, server.handle_exit)


def _both(
    loop: asyncio.AbstractEventLoop, goodbye: Callable[[], None], server: Server
) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(goodbye)
        server.handle_exit(signum, frame)

    return handle
