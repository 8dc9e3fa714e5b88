"""The connections: an asyncio store, a blocking store for producers and threads, and a worker's lanes.

The client library never sends a command twice by itself (decision 29): what may be sent again is known only here. Every
failure leaves as RedisUnavailable, RedisFull or StoreError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from hiredis import pack_command
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    InvalidResponse,
    MaxConnectionsError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from dtq_core.config import Settings
from dtq_core.errors import DtqError, InvalidConfig, RedisFull, RedisUnavailable, StoreError
from dtq_core.keys import Keys
from dtq_core.store.scripts import names as script_names
from dtq_core.store.scripts import script
from dtq_core.store.transitions import Call, Transitions

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64
SILENCE_S = 10.0
"""A channel that says nothing for this long is asked whether it is still there."""
_BUSY = ("BUSY ", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "UNKILLABLE")


def translate(exc: BaseException) -> DtqError:
    """A failure of the client library in our words; server text is kept, addresses and credentials are not."""
    if isinstance(exc, AuthenticationError):
        return RedisUnavailable("Redis refuses the user or the password")
    if isinstance(exc, MaxConnectionsError):
        return RedisUnavailable("every connection to Redis is in use")
    if isinstance(exc, (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError, asyncio.TimeoutError)):
        return RedisUnavailable(f"Redis does not answer ({_reason(exc)})")
    text = str(exc)
    if isinstance(exc, InvalidResponse):
        return RedisUnavailable("what answers there is no Redis")
    if text.startswith(("DB index is out of range", "invalid DB index")):
        return RedisUnavailable("Redis has no database of that number")
    if (
        isinstance(exc, OutOfMemoryError)
        or "OOM " in text[:40]
        or text.startswith("command not allowed when used memory")
    ):
        return RedisFull("Redis is at its memory limit and takes no more")
    if text.startswith(_BUSY) or isinstance(exc, ReadOnlyError):
        return RedisUnavailable(f"Redis is not ready: {text[:120]}")
    return StoreError(f"Redis refused a command: {text[:300]}")


def _reason(exc: BaseException) -> str:
    """Why there is no connection, as the system says it; the library's own text quotes the address."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror[:80]
        cause = cause.__cause__ or cause.__context__
    return type(exc).__name__


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns the client library's failures into ours."""
    try:
        yield
    except (RedisError, OSError) as exc:
        raise translate(exc) from exc


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
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                _url(settings), max_connections=max_connections, timeout=REPLY_TIMEOUT_S,
                retry=AsyncRetry(NoBackoff(), 0), **_options(settings),
            )  # fmt: skip
        except ValueError as exc:
            raise InvalidConfig(f"DTQ_REDIS_URL: {exc}") from None
        client = redis.asyncio.Redis.from_pool(pool)
        return cls(client, settings, now_ms)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()

    async def ping(self) -> None:
        """Raises RedisUnavailable unless Redis answers."""
        with translated():
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
        with translated():
            async with self.redis.client() as connection:
                answer = call.parse(await self._evaluate(connection, call))
                confirmed = await connection.execute_command("WAIT", replicas, timeout_ms)
        _check_confirmed(int(confirmed), replicas)
        return answer

    async def _evaluate(self, client: Any, call: Call[Any]) -> Any:
        code = script(call.script)
        try:
            return await client.execute_command("EVALSHA", code.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:
            return await client.execute_command("EVAL", code.source, len(call.keys), *call.keys, *call.args)

    async def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Plain commands in one round trip; an error of one is returned in its place."""
        if not commands:
            return []
        asked = me.cancelling() if (me := asyncio.current_task()) else 0
        with translated():
            pipe = self.redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers = list(await pipe.execute(raise_on_error=False))
        if (me := asyncio.current_task()) and me.cancelling() > asked:
            raise asyncio.CancelledError  # the client's pipelines swallow a cancellation now and then
        return answers

    async def subscribe(self, channel: str, ready: Callable[[], None] = lambda: None) -> AsyncGenerator[str, None]:
        """Messages of one channel, on a connection of its own; `ready` is called once the server confirmed.

        Raises RedisUnavailable when the connection breaks, and when it stays silent although it was asked (a link that
        died without a word).
        """
        with translated():
            async with self.redis.pubsub() as feed:
                await feed.subscribe(channel)
                asked = True
                while True:
                    message = await feed.get_message(timeout=REPLY_TIMEOUT_S if asked else SILENCE_S)
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
        self._known: set[str] = set(known)
        self._pooled = bool(self._known)

    async def run(
        self, calls: Sequence[Call[Any]], *, before: Sequence[Any] | None = None, wait_s: float = 0.0
    ) -> list[Any]:
        """Send `before` (a plain command that may block for `wait_s` seconds) and `calls` together; return the calls' answers.

        An answer that is an error of that one script is returned in its place as a DtqError. Raises RedisUnavailable
        when the connection fails: then nobody knows what was done, and the caller must find out (adopt).
        """
        try:
            connection = await self._connected()
            commands: list[tuple[Any, ...]] = [tuple(before)] if before else []
            commands += [self._command(call) for call in calls]
            async with asyncio.timeout(wait_s + REPLY_TIMEOUT_S):
                await connection.send_packed_command([b"".join(pack_command(command) for command in commands)])
                if before:
                    await self._reply(connection)
                answers = [await self._reply(connection) for _ in calls]
            for index, answer in enumerate(answers):
                if isinstance(answer, NoScriptError):
                    self._known.discard(calls[index].script)
                    async with asyncio.timeout(REPLY_TIMEOUT_S):
                        await connection.send_packed_command([pack_command(self._command(calls[index]))])
                        answers[index] = await self._reply(connection)
                self._known.add(calls[index].script)
        except (RedisError, OSError) as exc:
            await self.close()
            raise translate(exc) from exc
        except BaseException:
            await self.close()
            raise
        return [self._read(call, answer) for call, answer in zip(calls, answers, strict=True)]

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
        if self._connection is not None and self._connection._reader.at_eof():
            await self.close()  # the server hung up while nothing was under way
        if self._connection is None:
            connection = cast(Any, self._pool).make_connection()
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
            pool = redis.BlockingConnectionPool.from_url(
                _url(settings), max_connections=MAX_CONNECTIONS, timeout=REPLY_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0), **options,
            )  # fmt: skip
        except ValueError as exc:
            raise InvalidConfig(f"DTQ_REDIS_URL: {exc}") from None
        return cls(redis.Redis(connection_pool=pool), settings, now_ms)

    def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            self.redis.close()

    def run(self, call: Call[T]) -> T:
        """As Store.run."""
        with translated():
            return call.parse(self._evaluate(self.redis, call))

    def _evaluate(self, client: Any, call: Call[Any]) -> Any:
        code = script(call.script)
        try:
            return client.execute_command("EVALSHA", code.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:
            return client.execute_command("EVAL", code.source, len(call.keys), *call.keys, *call.args)

    def run_replicated(self, call: Call[T], replicas: int, timeout_ms: int = 1000) -> T:
        """As Store.run_replicated."""
        with translated():
            client: Any = self.redis.client()
            try:
                answer = call.parse(self._evaluate(client, call))
                confirmed = client.execute_command("WAIT", replicas, timeout_ms)
            finally:
                client.close()
        _check_confirmed(int(confirmed), replicas)
        return answer

    def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Plain commands in one round trip; an error of one is returned in its place."""
        with translated():
            pipe = self.redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return list(pipe.execute(raise_on_error=False))
