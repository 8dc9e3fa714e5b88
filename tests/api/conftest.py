"""API tests: the real application, a real engine, real workers where a task has to run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api.service import Service
from support.engines import DEFAULT_KIND, Server, private
from support.world import World


@pytest.fixture
def make_api(engine: Server) -> Iterator[Callable[..., Service]]:
    """An API with settings of the test's choice, as `make_api(api_key="k")`."""
    with contextlib.ExitStack() as stack:
        yield lambda server=engine, **settings: stack.enter_context(Service(server, **settings))


@pytest.fixture
def api(make_api: Callable[..., Service]) -> Service:
    """An API with the defaults."""
    return make_api()


@pytest.fixture
def world(engine: Server, tmp_path: Path) -> Iterator[World]:
    """Workers and gates for tasks that have to run."""
    world = World(engine, tmp_path)
    yield world
    world.close()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Server]:
    """An engine that this test may stop, freeze and start."""
    with private(DEFAULT_KIND, tmp_path / "engine") as server:
        yield server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stampede of this process' own threads starves the service in it: then nobody is to hear of an outage."""
    monkeypatch.setattr("dtq_api.prompt_store.PATIENCE_S", 30.0)
