"""A wire between a DTQ process and its engine that a test can stop, cut or watch at an exact command.

Faults hit at *moments*, not after sleeps: "when the third settle is about to reach the engine", "when the engine has
done the fetch that took this task and the worker has not heard of it". While the action of a moment runs, nothing
passes on this wire in either direction, so the world is exactly what the moment says.

    wire = world.wire()
    worker = world.worker(wire=wire)
    moment = wire.at(AFTER, script("settle"), worker.kill, then=CUT_ALL)
    …
    moment.wait()

One asyncio loop in a thread of its own; the methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from support.resp import Framer, decode

from dtq_core.store import scripts

T = TypeVar("T")
_SUBSCRIBING = {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"}


class Point(Enum):
    """Where on its way a request is met."""

    BEFORE = "before the engine has it"
    AFTER = "when the engine has done it and the answer is on its way"


class Then(Enum):
    """What becomes of the frame at which a moment was met."""

    GO_ON = "it goes on"
    CUT = "it is lost, and its connection with it"
    CUT_ALL = "it is lost, and every connection of this wire is cut"


BEFORE, AFTER = Point.BEFORE, Point.AFTER
GO_ON, CUT, CUT_ALL = Then.GO_ON, Then.CUT, Then.CUT_ALL


@dataclass
class Request:
    """One command on the wire, and its reply once there is one."""

    args: list[bytes]
    reply: Any = None

    @property
    def command(self) -> str:
        return self.args[0].decode(errors="replace").upper() if self.args else ""

    @property
    def script(self) -> str | None:
        """Name of the script that this runs, by its digest or by its source."""
        if self.command == "EVALSHA":
            return _script_names().get(self.args[1].decode())
        if self.command == "EVAL":
            return _script_names().get(hashlib.sha1(self.args[1], usedforsecurity=False).hexdigest())
        return None

    @property
    def name(self) -> str:
        return self.script or self.command

    def mentions(self, token: str) -> bool:
        """Whether the request or its reply has `token` somewhere."""
        return _contains(self.args, token.encode()) or _contains(self.reply, token.encode())


Match = Callable[[Request], bool]


def script(name: str, mentions: str = "") -> Match:
    """Requests that run the script `name` (and mention a token, in the reply too where that is known)."""
    return lambda request: request.script == name and (not mentions or request.mentions(mentions))


def took(task_id: str = "") -> Match:
    """Fetches that took something (this task): for AFTER only, since the reply says so."""

    def matches(request: Request) -> bool:
        reply = request.reply
        if request.script not in ("fetch", "reclaim") or not isinstance(reply, list) or len(reply) != 6:
            return False
        return bool(reply[5]) and _contains(reply[5], task_id.encode())

    return matches


@cache
def _script_names() -> dict[str, str]:
    return {scripts.script(name).sha: name for name in scripts.names()}


def _contains(value: Any, token: bytes) -> bool:
    if isinstance(value, list):
        return any(_contains(item, token) for item in value)
    return isinstance(value, bytes) and token in value


@dataclass
class Moment:
    """An appointment with the `nth` matching request (from 0). Made by Wire.at and Wire.hold."""

    point: Point
    match: Match
    nth: int
    action: Callable[[], object]
    then: Then
    holds: bool = False
    repeats: bool = False
    seen: int = 0
    request: Request | None = None
    problem: BaseException | None = None
    _reached: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def wait(self, timeout: float = 20.0) -> Request:
        """Block until the moment was met and its action is done; the request it was met at.

        Raises AssertionError when it does not come, and what the action raised.
        """
        if not self._reached.wait(timeout):
            raise AssertionError(f"not within {timeout:g} s: request {self.nth} {self.point.value} ({self.seen} seen)")
        if self.problem is not None:
            raise self.problem
        assert self.request is not None
        return self.request

    def release(self) -> None:
        """Let a held frame go on."""
        self._released.set()

    def _meets(self, point: Point, request: Request) -> bool:
        if (self.reached and not self.repeats) or point is not self.point or not self.match(request):
            return False
        self.seen += 1
        return self.repeats or self.seen == self.nth + 1

    async def _happen(self, request: Request) -> Then:
        self.request = request
        try:
            self.action()
        except BaseException as exc:
            self.problem = self.problem or exc
        self._reached.set()
        while self.holds and not self._released.is_set():
            await asyncio.sleep(0.002)
        return self.then


class _Lost(Exception):
    """The link ends here."""


class _Link:
    """One connection of a client, and ours to the engine for it."""

    def __init__(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._wire = wire
        self._client = (reader, writer)
        self._engine: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._waiting: deque[Request] = deque()
        self._subscribed = False

    async def run(self) -> None:
        """Until one side hangs up, or a fault cuts it."""
        try:
            await self._wire._open.wait()
            self._engine = await asyncio.open_connection("127.0.0.1", self._wire.engine_port, limit=2**24)
            pumps = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._replies())]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            self.cut()

    def cut(self) -> None:
        for side in (self._client, self._engine):
            if side is not None:
                _reset(side[1])

    async def _requests(self) -> None:
        assert self._engine is not None
        framer, out = Framer(), self._engine[1]
        while data := await self._client[0].read(1 << 18):
            await self._wire._pass()
            for frame in framer.feed(data):
                request = Request(decode(frame))
                self._wire._seen.append(request)
                await self._meet(BEFORE, request)
                if request.command in _SUBSCRIBING:
                    self._subscribed = True
                if not self._subscribed:
                    self._waiting.append(request)
                out.write(frame)
            await out.drain()

    async def _replies(self) -> None:
        assert self._engine is not None
        framer, out = Framer(), self._client[1]
        while data := await self._engine[0].read(1 << 18):
            await self._wire._pass()
            for frame in framer.feed(data):
                if not self._subscribed and self._waiting and frame[:1] != b">":
                    request = self._waiting.popleft()
                    request.reply = decode(frame)
                    await self._meet(AFTER, request)
                out.write(frame)
            await out.drain()

    async def _meet(self, point: Point, request: Request) -> None:
        for moment in list(self._wire._moments):
            if moment._meets(point, request):
                then = await moment._happen(request)
                if then is CUT_ALL:
                    self._wire._cut()
                if then is not GO_ON:
                    raise _Lost


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a host does that knows nothing of the connection."""
    with contextlib.suppress(OSError, AttributeError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Wire:
    """A listening port before one engine. See the module for what it is for."""

    def __init__(self, engine_port: int) -> None:
        self.engine_port = engine_port
        self.delay_s = 0.0
        self.connects = 0
        self.port = 0
        self._links: set[_Link] = set()
        self._moments: list[Moment] = []
        self._seen: deque[Request] = deque(maxlen=200_000)
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._thread.start()
        self._in_loop(self._listen())

    def at(
        self,
        point: Point,
        match: Match,
        action: Callable[[], object] = lambda: None,
        *,
        nth: int = 0,
        then: Then = GO_ON,
    ) -> Moment:
        """Run `action` at the `nth` matching request (from 0), with the whole wire standing still."""
        return self._arm(Moment(point, match, nth, action, then))

    def each(self, point: Point, match: Match, action: Callable[[], object]) -> Moment:
        """Run `action` at every matching request; `seen` counts them, and `wait` tells the first problem."""
        return self._arm(Moment(point, match, 0, action, GO_ON, repeats=True))

    def hold(self, point: Point, match: Match, *, nth: int = 0) -> Moment:
        """Keep the `nth` matching frame back until `release()`; only its own direction of its own connection waits."""
        return self._arm(Moment(point, match, nth, lambda: None, GO_ON, holds=True))

    def lose_reply(self, match: Match, *, nth: int = 0) -> Moment:
        """The engine does it, the answer never comes, the connection dies."""
        return self.at(AFTER, match, nth=nth, then=CUT)

    def lose_request(self, match: Match, *, nth: int = 0) -> Moment:
        """The engine never hears of it, the connection dies."""
        return self.at(BEFORE, match, nth=nth, then=CUT)

    def disarm(self) -> None:
        self._moments.clear()

    def requests(self, match: Match = lambda request: True) -> list[Request]:
        """What has been sent so far (the last 200,000)."""
        return [request for request in list(self._seen) if match(request)]

    def forget(self) -> None:
        """Begin the list of requests anew."""
        self._seen.clear()

    def blackhole(self) -> None:
        """Keep every connection open and let nothing through, as a network that drops packets."""
        self._call(self._open.clear)

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        self._call(self._cut)

    def refuse(self) -> None:
        """Reset every connection, and new ones at once, until `heal`."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        """As at first. What was in a black hole is reset, as by a router that has forgotten it."""
        stuck = not self._open.is_set()
        self._refusing, self.delay_s = False, 0.0
        self._moments.clear()
        if stuck:
            self.cut()
        self._call(self._open.set)

    def close(self) -> None:
        """Reset everything and end the thread."""
        self._in_loop(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        with contextlib.suppress(RuntimeError):
            self._loop.close()

    def _arm(self, moment: Moment) -> Moment:
        self._moments.append(moment)
        return moment

    async def _listen(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        if self._refusing:
            _reset(writer)
            return
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        except asyncio.CancelledError:  # by close(); asyncio's streams would log it
            pass
        finally:
            self._links.discard(link)

    async def _pass(self) -> None:
        await self._open.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)

    def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _shut(self) -> None:
        self._open.set()
        for moment in self._moments:
            moment.release()
        if self._server is not None:
            self._server.close()
        self._cut()
        links = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _call(self, function: Callable[[], object]) -> None:
        if threading.current_thread() is self._thread:  # from the action of a moment
            function()
            return

        async def run() -> None:
            function()

        self._in_loop(run())

    def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)
