"""Process tests: real workers and schedulers, real signals, and a key audit after every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import engines
from support.engines import Server
from support.keyspace import KeyAudit
from support.world import World


@pytest.fixture
def key_audit() -> KeyAudit:
    """Looked at when the test is over; see KeyAudit."""
    return KeyAudit()


@pytest.fixture
def make_world(engine: Server, tmp_path: Path, key_audit: KeyAudit) -> Iterator[Callable[..., World]]:
    """A world with settings of the test's choice, as `make_world(task_timeout_ms=500)`; at most one a test."""
    made: list[World] = []

    def make(server: Server = engine, **settings: Any) -> World:
        made.append(World(server, tmp_path, **settings))
        return made[-1]

    yield make
    for world in made:
        try:
            problems = key_audit.problems(world.redis)
        finally:
            world.close()
        assert problems == []


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A private world with short times."""
    return make_world()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Server]:
    """An engine that this test may stop and start: with an append-only file, so that it loses nothing."""
    with engines.private(engines.DEFAULT_KIND, tmp_path / "engine") as server:
        yield server
