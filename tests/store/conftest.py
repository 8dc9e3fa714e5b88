"""Store tests: scripts on real engines, a stopped clock, and a key audit after every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.bench import Bench
from support.engines import Server
from support.keyspace import KeyAudit


@pytest.fixture(autouse=True)
def key_audit(request: pytest.FixtureRequest) -> Iterator[KeyAudit]:
    """After the test every key must be in the table of keys, with its type, and with a TTL where the table says so."""
    audit = KeyAudit()
    name = next((name for name in ("any_engine", "engine") if name in request.fixturenames), None)
    server: Server | None = request.getfixturevalue(name) if name else None
    yield audit
    if server is not None:
        assert audit.problems(server.redis) == []


@pytest.fixture
def bench(any_engine: Server) -> Iterator[Bench]:
    """The scripts on each engine in turn."""
    bench = Bench(any_engine)
    yield bench
    bench.store.close()


@pytest.fixture
def make_bench(any_engine: Server, key_audit: KeyAudit) -> Iterator[Callable[..., Bench]]:
    """As `bench`, with settings of the test's choice."""
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        bench = Bench(any_engine, **settings)
        key_audit.prefix = bench.settings.key_prefix
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.store.close()
