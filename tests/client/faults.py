"""A real HTTP hop between a client and the API that loses answers, resets, hangs, trickles and answers for itself.

Faults are given in advance, one per request, in order; after the last one every request just passes.

    hop.next(lose_reply, answer(503))
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request as it arrived. Names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Exchange(BaseHTTPRequestHandler):
    """One connection of the client."""

    protocol_version = "HTTP/1.1"
    hop: Hop
    seen: Seen

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen = Seen(self.command, self.path, headers, body)
        self.hop.requests.append(self.seen)
        fault = self.hop.faults.popleft() if self.hop.faults else passed
        with contextlib.suppress(OSError):
            fault(self)

    do_POST = do_GET

    def forward(self) -> Reply:
        """What the API says."""
        api = http.client.HTTPConnection("127.0.0.1", self.hop.api_port, timeout=70)
        try:
            api.request(self.seen.method, self.seen.path, self.seen.body or None, dict(self.seen.headers))
            answer = api.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers, answer.read())
        finally:
            api.close()

    def reply(self, reply: Reply, size: int | None = None) -> None:
        """Send it, or only the first `size` bytes of its body."""
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body[:size])
        self.wfile.flush()

    def reset(self) -> None:
        """End the connection with RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass


Fault = Callable[[_Exchange], None]


def passed(exchange: _Exchange) -> None:
    exchange.reply(exchange.forward())


def lose_reply(exchange: _Exchange) -> None:
    """The API has done it, and nobody hears of it."""
    exchange.forward()
    exchange.reset()


def cut_reply(exchange: _Exchange) -> None:
    """The API has done it, and half of its answer arrives."""
    reply = exchange.forward()
    exchange.reply(reply, size=len(reply.body) // 2)
    exchange.reset()


def reset(exchange: _Exchange) -> None:
    """The API never hears of it."""
    exchange.reset()


def hang(exchange: _Exchange) -> None:
    """Taken, and never answered."""
    exchange.hop.closing.wait(30)
    exchange.reset()


def do_and_hang(exchange: _Exchange) -> None:
    """The API has done it, and the answer never comes."""
    exchange.forward()
    hang(exchange)


def trickle(exchange: _Exchange) -> None:
    """A good head, and then a byte from time to time: no single read ever takes long."""
    exchange.reply(Reply(200, {}, b" " * 10_000), size=1)
    _drip(exchange)


def trickle_head(exchange: _Exchange) -> None:
    """As trickle, with a head that does not end."""
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
    _drip(exchange)


def _drip(exchange: _Exchange) -> None:
    while not exchange.hop.closing.wait(0.05):
        exchange.wfile.write(b"x")
        exchange.wfile.flush()


def answer(status: int, body: object = b"", **headers: str) -> Fault:
    """An answer of the hop's own; `retry_after="1"` is the header Retry-After."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.reply(Reply(status, named, raw))


class Hop:
    """A listening port before one API. Use as a context manager."""

    def __init__(self, api_port: int) -> None:
        self.api_port = api_port
        self.requests: list[Seen] = []
        self.faults: deque[Fault] = deque()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Exchange", (_Exchange,), {"hop": self}))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        run = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=run, name="hop", daemon=True)

    def next(self, *faults: Fault) -> None:
        """What becomes of the next requests."""
        self.faults.extend(faults)

    def __enter__(self) -> Hop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
