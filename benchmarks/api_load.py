"""Who calls the service in a measurement: connections that always have one request under way, and readers of its feed.

Written on bare sockets, so that on a small machine the caller takes little of the processor that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import re
import selectors
import socket
import sys
import time
from typing import cast

from benchmarks.stage import BenchmarkFailed

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def request(path: str, body: bytes) -> bytes:
    """One POST of JSON over a connection that is kept."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class _Caller(asyncio.Protocol):
    """Sends `raw`, awaits the answer, and again, while `left` has some."""

    def __init__(self, raw: bytes, status: bytes, left: list[int], done: asyncio.Future[None]) -> None:
        self._raw, self._status, self._left, self._done = raw, b"HTTP/1.1 " + status, left, done
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._next()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        length = _LENGTH.search(self._data, 0, max(head, 0))
        if head < 0 or len(self._data) < head + 4 + (int(length[1]) if length else 0):
            return
        if self._data.startswith(self._status):
            self._data = b""
            self._next()
        else:
            self._fail(self._data[:300])

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(b"the connection ended")

    def _next(self) -> None:
        if self._left[0] > 0:
            self._left[0] -= 1
            self._transport.write(self._raw)
        elif not self._done.done():
            self._done.set_result(None)

    def _fail(self, what: bytes) -> None:
        if not self._done.done():
            self._done.set_exception(BenchmarkFailed(f"the service answered {what!r}"))


async def call(port: int, raw: bytes, count: int, connections: int, status: bytes = b"202") -> float:
    """Send `raw` `count` times over that many connections; seconds from the first byte to the last answer."""
    loop = asyncio.get_running_loop()
    left, done = [count], [loop.create_future() for _ in range(connections)]
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda f=future: _Caller(raw, status, left, f), "127.0.0.1", port)  # type: ignore[misc]
        for future in done
    ]
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*done)
        return time.perf_counter() - began
    finally:
        for future in done:
            future.cancel()
        for transport, _ in made:
            transport.close()


# ------------------------------------------------------------------------------------------------ readers of the feed


def read(port: int, readers: int, slow: int) -> None:
    """Open that many WebSockets, of which `slow` never read, say "open", and read until standard input ends."""
    selector = selectors.DefaultSelector()
    sockets = [_open_socket(port, slow=number < slow) for number in range(readers)]
    for one in sockets[slow:]:
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("open", flush=True)
    buffer = bytearray(1 << 16)
    seen = 0
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                print(seen, flush=True)
                return
            assert isinstance(key.fileobj, socket.socket)
            size = key.fileobj.recv_into(buffer)
            seen += size
            if not size:
                selector.unregister(key.fileobj)


def _open_socket(port: int, slow: bool) -> socket.socket:
    one = socket.socket()
    if slow:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(30)
    one.connect(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    one.sendall(
        f"GET /ws/events HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = one.recv(1)
        if not part:
            raise SystemExit(f"refused: {answer!r}")
        answer += part
    return one


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api_load", description="Readers of the event feed.")
    for name in ("port", "readers", "slow"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    read(options.port, options.readers, options.slow)
