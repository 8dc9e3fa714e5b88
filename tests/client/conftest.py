"""Client tests: the real API on a real engine behind a hop with faults, and both clients through the same calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api.service import Service
from client.faults import Hop
from support import engines
from support.engines import Server
from support.world import World

from dtq_client import AsyncClient, Client


class Blocking:
    """AsyncClient with the methods of Client, so that one test proves both. Runs a loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(*args, **options)

    def close(self) -> None:
        self._runner.run(self.client.aclose())
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **options: self._runner.run(method(*args, **options))

    def __repr__(self) -> str:
        return repr(self.client)


@pytest.fixture
def make_api(engine: Server) -> Iterator[Callable[..., Service]]:
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Service(engine, **settings))


@pytest.fixture(scope="module")
def _api(_engine_folder: Callable[[str], Path]) -> Iterator[Service]:
    with Service(engines.shared(engines.DEFAULT_KIND, _engine_folder)) as service:
        yield service


@pytest.fixture
def api(engine: Server, _api: Service) -> Service:
    """An API with the defaults: the same for all tests of a module, with an empty engine for each."""
    return _api


@pytest.fixture
def hop(api: Service) -> Iterator[Hop]:
    with Hop(api.port) as hop:
        yield hop


@pytest.fixture
def lonely() -> Iterator[Hop]:
    """A hop with no API behind it: for what must not be sent, and for what the hop answers itself."""
    with Hop(1) as hop:
        yield hop


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`make_client(url, …)`: each of the two clients in turn."""
    kind = Client if request.param == "sync" else Blocking
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Any:
            client = kind(*args, **options)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def client(make_client: Callable[..., Any], hop: Hop) -> Any:
    """One that talks through the hop."""
    return make_client(hop.url, timeout_s=10)


@pytest.fixture
def world(engine: Server, tmp_path: Path) -> Iterator[World]:
    world = World(engine, tmp_path)
    yield world
    world.close()
