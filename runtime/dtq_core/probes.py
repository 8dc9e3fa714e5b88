"""The small HTTP server of a worker or a scheduler, on DTQ_METRICS_PORT: /metrics, /health and /ready (contract §9).

    /health   the loops turned lately; says nothing about Redis, since restarting this process would not bring it back
    /ready    the process can do its work now

In a thread of its own, so that it answers while a handler holds up the event loop. The API has routes for the same.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dtq_core.config import Settings
from dtq_core.errors import DtqError, InvalidConfig
from dtq_core.periodic import Step

if TYPE_CHECKING:
    from dtq_core.metrics import Metrics

PATIENCE_S = 2.0
"""For what /ready asks of the event loop."""
SLOW_CLIENT_S = 5.0
OUTAGE_S = 10.0
"""One failing round with its back-off."""

Troubles = Mapping[str, str]
"""What does not work, in words, by name. Empty: all is well."""


class Loops:
    """When each background loop last turned. Written on the event loop, read by the server's thread."""

    def __init__(self, late_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.late_s = late_s + OUTAGE_S
        self.stopping = False
        """The process ends: loops may, too."""
        self._clock = clock
        self._ended: dict[str, Callable[[], bool]] = {}
        self._turns: dict[str, tuple[Callable[[], float], Callable[[], bool]]] = {}

    def add(self, name: str, ended: Callable[[], bool]) -> None:
        """`name` lives for as long as the process."""
        self._ended[name] = ended

    def expect(self, name: str, turned_at: Callable[[], float], awaited: Callable[[], bool] = lambda: True) -> None:
        """`turned_at()`, in monotonic seconds, moves on all the time while `awaited()`."""
        self._turns[name] = (turned_at, awaited)

    def watch(self, name: str, step: Step, awaited: Callable[[], bool] = lambda: True) -> Step:
        """`step`, whose rounds are noticed, whichever way they end."""
        turned = [self._clock()]
        self.expect(name, lambda: turned[0], awaited)

        async def watched() -> float | None:
            try:
                return await step()
            finally:
                turned[0] = self._clock()

        return watched

    def troubles(self) -> Troubles:
        """Loops that ended, or did not turn for `late_s` seconds."""
        if self.stopping:
            return {}
        found = {name: "ended" for name, ended in list(self._ended.items()) if ended()}
        now = self._clock()
        for name, (turned_at, awaited) in list(self._turns.items()):
            silent_s = now - turned_at()
            if name not in found and silent_s > self.late_s and awaited():
                found[name] = f"has not turned for {silent_s:.0f} s"
        return found


@dataclass(frozen=True, slots=True)
class Probes:
    """What the server answers with. `not_ready` runs on `loop`."""

    exposition: Callable[[], bytes]
    content_type: str
    unhealthy: Callable[[], Troubles]
    not_ready: Callable[[], Awaitable[Troubles]]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body of a GET."""
        if path == "/metrics":
            return 200, self.content_type, self.exposition()
        if path == "/health":
            return _verdict("ok", self.unhealthy())
        if path == "/ready":
            return _verdict("ready", self._ask())
        return _refusal(404, "NOT_FOUND", "there is /metrics, /health and /ready")

    def _ask(self) -> Troubles:
        async def ask() -> Troubles:
            async with asyncio.timeout(PATIENCE_S):
                try:
                    return await self.not_ready()
                except DtqError as exc:
                    return {"redis": exc.message}

        try:
            return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(PATIENCE_S + 0.5)
        except (TimeoutError, RuntimeError):
            return {"process": "does not answer in time"}


def serve(
    settings: Settings,
    metrics: Metrics,
    unhealthy: Callable[[], Troubles],
    not_ready: Callable[[], Awaitable[Troubles]],
) -> ProbeServer:
    """Answer from now on, in a thread; `not_ready` runs on the running loop. Raises InvalidConfig where the port is taken."""
    from dtq_core.metrics import CONTENT_TYPE

    probes = Probes(metrics.exposition, CONTENT_TYPE, unhealthy, not_ready)
    try:
        server = ProbeServer((settings.metrics_host, settings.metrics_port), probes)
    except OSError as exc:
        raise InvalidConfig(
            f"DTQ_METRICS_PORT: cannot listen on port {settings.metrics_port}: {exc.strerror}"
        ) from None
    threading.Thread(target=server.serve_forever, name="dtq-probes", daemon=True).start()
    return server


class ProbeServer(ThreadingHTTPServer):
    """Knows its probes."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], probes: Probes) -> None:
        self.probes = probes
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SLOW_CLIENT_S
    server: ProbeServer

    def do_GET(self) -> None:
        status, content_type, body = self.server.probes.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "dtq"

    def log_message(self, format: str, *args: Any) -> None:
        """What callers put into their paths goes into no log."""


def _verdict(well: str, troubles: Troubles) -> tuple[int, str, bytes]:
    if not troubles:
        return 200, "application/json", _json({"status": well})
    told = "; ".join(f"{name} {text}" for name, text in sorted(troubles.items()))
    return _refusal(503, "NOT_READY", told, dependencies=dict(troubles))


def _refusal(status: int, code: str, message: str, **more: Any) -> tuple[int, str, bytes]:
    """The one shape of errors that the API has."""
    return status, "application/json", _json({"code": code, "message": message, "request_id": uuid4().hex, **more})


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
