"""When a handler started, told to the benchmark: one datagram with the task's number and the moment.

Used by the handlers of both sides. The moment is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from types import TracebackType
from typing import Self

SOCKET_VARIABLE = "BENCH_STAMP_SOCKET"
_FORMAT = struct.Struct("<qq")
_sender: socket.socket | None = None


def send_stamp(number: int) -> None:
    """Say that task `number` starts now. The environment names the socket."""
    global _sender
    now_ns = time.monotonic_ns()
    if _sender is None:
        _sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _sender.connect(os.environ[SOCKET_VARIABLE])
    _sender.send(_FORMAT.pack(number, now_ns))


class StampReceiver:
    """The other end; lives on the running event loop."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._stamps: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._socket.bind(self.path)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        os.unlink(self.path)

    async def next(self, number: int, timeout_s: float) -> int:
        """The moment, in monotonic ns, at which task `number` started. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                got, at_ns = await self._stamps.get()
                if got == number:
                    return at_ns

    def _read(self) -> None:
        while True:
            try:
                self._stamps.put_nowait(_FORMAT.unpack(self._socket.recv(_FORMAT.size)))
            except BlockingIOError:
                return
