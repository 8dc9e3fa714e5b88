"""The connections: an asyncio store, a blocking store for producers and threads, and a worker's lanes.

The client library never sends a command twice by itself (decision 29): what may be sent again is known only here. Every
failure leaves as RedisUnavailable, RedisFull or StoreError. A server that says of itself that it is not the one (it only
reads, it loads) is left: every connection of that store is made anew before its next use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.retry import Retry

from dtq_core.config import Settings
from dtq_core.errors import DtqError, InvalidConfig, RedisUnavailable, StoreError
from dtq_core.keys import Keys
from dtq_core.store.failures import check_place, translate, translated
from dtq_core.store.pools import Pool, SyncPool, hung_up
from dtq_core.store.scripts import names as script_names
from dtq_core.store.scripts import script
from dtq_core.store.transitions import Call, Transitions

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64
SILENCE_S = 10.0
"""A channel that says nothing for this long is asked whether it is still there."""


def _options(settings: Settings) -> dict[str, Any]:
    unix = settings.redis_url.get_secret_value().startswith("unix:")
    return {
        **({} if unix else {"socket_keepalive": True}),
        "decode_responses": True,
        "encoding_errors": "replace",
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": REPLY_TIMEOUT_S,
        "health_check_interval": 0,
        "client_name": "dtq",
    }


def _url(settings: Settings) -> str:
    url = settings.redis_url.get_secret_value()
    scheme = url.partition("://")[0]
    if scheme not in ("redis", "rediss", "unix"):
        raise InvalidConfig(f"DTQ_REDIS_URL: {scheme}:// is not supported yet; use redis://, rediss:// or unix://")
    return url


class Store:
    """The asyncio door to Redis. One bounded pool that waits for a free connection instead of failing."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.redis: Any = client
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.calls = Transitions(self.keys, settings, now_ms)
        self.moves = 0
        """How often a server was left."""
        self._idle: list[Lane] = []
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)

    counted: Callable[[str, str], None] = staticmethod(lambda operation, result: None)
    """Hears of the requests of the lanes: script, and ok or an error code in lower case."""

    @classmethod
    def connect(
        cls, settings: Settings, *, now_ms: Callable[[], int] = lambda: 0, max_connections: int = MAX_CONNECTIONS
    ) -> Store:
        """A store for `settings`; does no I/O. Raises InvalidConfig for a URL that cannot be read."""
        try:
            pool = Pool.from_url(
                _url(settings), max_connections=max_connections, timeout=REPLY_TIMEOUT_S,
                retry=AsyncRetry(NoBackoff(), 0), **_options(settings),
            )  # fmt: skip
        except ValueError as exc:
            raise InvalidConfig(f"DTQ_REDIS_URL: {exc}") from None
        client = redis.asyncio.Redis.from_pool(pool)
        return cls(client, settings, now_ms)

    async def close(self) -> None:
        """Never fails."""
        while self._idle:
            await self._idle.pop().close()
        with contextlib.suppress(Exception):
            await self.redis.aclose()

    def leave(self) -> None:
        """The server at the other end is not the one to talk to now: connect anew, on every connection, before its next use."""
        self.moves += 1
        self.redis.connection_pool.leave()

    async def ping(self) -> None:
        """Raises RedisUnavailable unless Redis answers."""
        with translated(self.leave):
            await self.redis.ping()

    async def run(self, call: Call[T]) -> T:
        """Run one script. A server that does not know it is given its source; nothing else is ever sent twice."""
        async with self._free:
            lane = self._idle.pop() if self._idle else Lane(self, script_names())
            try:
                (answer,) = await lane.run([call])
            finally:
                self._idle.append(lane)
        if isinstance(answer, DtqError):
            raise answer
        return cast(T, answer)

    async def run_replicated(self, call: Call[T], replicas: int, timeout_ms: int = 1000) -> T:
        """As `run`, then WAIT on the same connection. Raises RedisUnavailable when too few replicas confirmed in time."""
        with translated(self.leave):
            async with self.redis.client() as connection:
                answer = call.parse(await self._evaluate(connection, call))
                confirmed = await connection.execute_command("WAIT", replicas, timeout_ms)
        _check_confirmed(int(confirmed), replicas)
        return answer

    async def _evaluate(self, client: Any, call: Call[Any]) -> Any:
        code = script(call.script)
        try:
            answer = await client.execute_command("EVALSHA", code.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:
            answer = await client.execute_command("EVAL", code.source, len(call.keys), *call.keys, *call.args)
        check_place(answer)
        return answer

    async def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Plain commands in one round trip; an error of one is returned in its place.

        Raises RedisUnavailable, also when only one of them was told that this server is not the one to talk to now.
        """
        if not commands:
            return []
        asked = me.cancelling() if (me := asyncio.current_task()) else 0
        with translated(self.leave):
            pipe = self.redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers = list(await pipe.execute(raise_on_error=False))
            check_place(*(answer for answer in answers if isinstance(answer, Exception)))
        if (me := asyncio.current_task()) and me.cancelling() > asked:
            raise asyncio.CancelledError  # the client's pipelines swallow a cancellation now and then
        return answers

    async def subscribe(self, channel: str, ready: Callable[[], None] = lambda: None) -> AsyncGenerator[str, None]:
        """Messages of one channel, on a connection of its own; `ready` is called once the server confirmed.

        Raises RedisUnavailable when the connection breaks, when it stays silent although it was asked (a link that
        died without a word), and when this store has left the server.
        """
        with translated(self.leave):
            async with self.redis.pubsub() as feed:
                moves = self.moves
                await feed.subscribe(channel)
                asked = True
                while True:
                    message = await feed.get_message(timeout=REPLY_TIMEOUT_S if asked else SILENCE_S)
                    if moves != self.moves:
                        raise RedisUnavailable("Redis is not ready: another server has taken over")
                    if message is None:
                        if asked:
                            raise RedisUnavailable("the channel is silent")
                        await feed.ping()
                        asked = True
                        continue
                    asked = False
                    if message["type"] == "message":
                        yield str(message["data"])
                    elif message["type"] == "subscribe":
                        ready()

    def lane(self) -> Lane:
        """A connection of its own for a worker's hot path; not from the pool, so nothing can starve it."""
        return Lane(self)


def _check_confirmed(confirmed: int, replicas: int) -> None:
    if confirmed < replicas:
        raise RedisUnavailable(
            f"written, but only {confirmed} of {replicas} replicas confirmed it; submit again with the same key"
        )


class Lane:
    """One dedicated connection on which requests travel in order, as one packet per round trip.

    After any failure the connection is closed: a reply that did not come must not be taken for the next one's.
    """

    def __init__(self, store: Store, known: Iterable[str] = ()) -> None:
        """`known` are scripts that the server is taken to know; of the others it gets the source with the first call."""
        self._store = store
        self._pool = store.redis.connection_pool
        self._connection: Any = None
        self._moves = 0
        self._known: set[str] = set(known)
        self._pooled = bool(self._known)

    async def run(
        self, calls: Sequence[Call[Any]], *, before: Sequence[Any] | None = None, wait_s: float = 0.0
    ) -> list[Any]:
        """Send `before` (a plain command that may block for `wait_s` seconds) and `calls` together; return what each answered.

        The answer of `before`, if there is one, comes first. An answer that is an error of that one command is returned
        in its place as a DtqError. Raises RedisUnavailable when the connection fails, or when the server is not the one
        to talk to now: then nobody knows what was done, and the caller must find out (adopt).
        """
        try:
            with translated(self._leave):
                try:
                    first, answers = await self._exchange(calls, before, wait_s)
                except BaseException:
                    await self.close()
                    raise
        except DtqError as exc:
            for call in calls if not self._pooled else ():
                self._store.counted(call.script, exc.code.lower())
            raise
        read = [self._read(call, answer) for call, answer in zip(calls, answers, strict=True)]
        return [translate(first) if isinstance(first, ResponseError) else first, *read] if before else read

    async def _exchange(
        self, calls: Sequence[Call[Any]], before: Sequence[Any] | None, wait_s: float
    ) -> tuple[Any, list[Any]]:
        connection = await self._connected()
        commands: list[tuple[Any, ...]] = [tuple(before)] if before else []
        commands += [self._command(call) for call in calls]
        async with asyncio.timeout(wait_s + REPLY_TIMEOUT_S):
            await connection.send_packed_command([b"".join(pack_command(command) for command in commands)])
            first = await self._reply(connection) if before else None
            answers = [await self._reply(connection) for _ in calls]
        for index, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                self._known.discard(calls[index].script)
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    await connection.send_packed_command([pack_command(self._command(calls[index]))])
                    answers[index] = await self._reply(connection)
            self._known.add(calls[index].script)
        check_place(first, *answers)
        return first, answers

    def _leave(self) -> None:
        if self._moves == self._store.moves:  # else this connection was of an earlier server, which was left already
            self._store.leave()

    def _read(self, call: Call[Any], answer: Any) -> Any:
        if isinstance(answer, ResponseError):
            failure = translate(answer)
            if not self._pooled:
                self._store.counted(call.script, failure.code.lower())
            return failure
        if not self._pooled:
            self._store.counted(call.script, "ok")
        try:
            return call.parse(answer)
        except (ValueError, TypeError, LookupError) as exc:
            return StoreError(f"the answer of {call.script} cannot be read: {exc}")

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.disconnect(nowait=True)

    async def _connected(self) -> Any:
        if self._connection is not None and (self._moves != self._store.moves or hung_up(self._connection)):
            await self.close()
        if self._connection is None:
            connection = cast(Any, self._pool).make_connection()
            self._moves = self._store.moves
            await connection.connect()
            connection.socket_timeout = None  # `run` has one timeout per exchange; the client's costs a task per send
            self._connection = connection
        return self._connection

    def _command(self, call: Call[Any]) -> tuple[Any, ...]:
        code = script(call.script)
        if call.script in self._known:
            return ("EVALSHA", code.sha, len(call.keys), *call.keys, *call.args)
        return ("EVAL", code.source, len(call.keys), *call.keys, *call.args)

    @staticmethod
    async def _reply(connection: Any) -> Any:
        """One reply; an error reply comes back as a value so that the ones behind it are still read."""
        try:
            return await connection.read_response()
        except (ConnectionError, TimeoutError):
            raise
        except ResponseError as exc:
            return exc


class SyncStore:
    """The blocking door, for producers without an event loop and for a worker's lease thread."""

    def __init__(self, client: redis.Redis, settings: Settings, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.redis: Any = client
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.calls = Transitions(self.keys, settings, now_ms)

    @classmethod
    def connect(
        cls, settings: Settings, *, now_ms: Callable[[], int] = lambda: 0, reply_timeout_s: float = REPLY_TIMEOUT_S
    ) -> SyncStore:
        """As Store.connect. `reply_timeout_s` bounds each command."""
        options = _options(settings) | {"socket_timeout": reply_timeout_s}
        try:
            pool = SyncPool.from_url(
                _url(settings), max_connections=MAX_CONNECTIONS, timeout=REPLY_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0), **options,
            )  # fmt: skip
        except ValueError as exc:
            raise InvalidConfig(f"DTQ_REDIS_URL: {exc}") from None
        return cls(redis.Redis(connection_pool=pool), settings, now_ms)

    def close(self) -> None:
        """Never fails."""
        with contextlib.suppress(Exception):
            self.redis.close()
            self.redis.connection_pool.disconnect()  # a pool that was made elsewhere is not the client's to close

    def run(self, call: Call[T]) -> T:
        """As Store.run."""
        with translated(self.redis.connection_pool.leave):
            return call.parse(self._evaluate(self.redis, call))

    def _evaluate(self, client: Any, call: Call[Any]) -> Any:
        code = script(call.script)
        try:
            answer = client.execute_command("EVALSHA", code.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:
            answer = client.execute_command("EVAL", code.source, len(call.keys), *call.keys, *call.args)
        check_place(answer)
        return answer

    def run_replicated(self, call: Call[T], replicas: int, timeout_ms: int = 1000) -> T:
        """As Store.run_replicated."""
        with translated(self.redis.connection_pool.leave):
            client: Any = self.redis.client()
            try:
                answer = call.parse(self._evaluate(client, call))
                confirmed = client.execute_command("WAIT", replicas, timeout_ms)
            finally:
                client.close()
        _check_confirmed(int(confirmed), replicas)
        return answer

    def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Plain commands in one round trip; an error of one is returned in its place.

        Raises RedisUnavailable, also when only one of them was told that this server is not the one to talk to now.
        """
        with translated(self.redis.connection_pool.leave):
            pipe = self.redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers = list(pipe.execute(raise_on_error=False))
            check_place(*(answer for answer in answers if isinstance(answer, Exception)))
        return answers
