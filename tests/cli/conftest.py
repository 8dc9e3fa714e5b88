"""The command on the private engine of this test process, and workers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.calls import Cli, clean_environment
from support.engines import DEFAULT_KIND, Server, private
from support.eventually import eventually
from support.processes import DTQ, Process


@pytest.fixture
def cli(engine: Server, tmp_path: Path) -> Cli:
    return Cli(tmp_path, clean_environment(DTQ_REDIS_URL=engine.url()))


@pytest.fixture
def worker(cli: Cli, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`worker(…)` starts a `dtq worker run` with these arguments and waits until it is ready; killed at the end."""
    started: list[Process] = []

    def start(*args: str, **env: str) -> Process:
        name = f"worker{len(started)}"
        quick = {"DTQ_RETRY_BASE_DELAY": "0.05", "DTQ_WORKER_ID": name}
        process = Process(name, [DTQ, "worker", "run", *args], {**cli.env, **quick, **env}, tmp_path)
        started.append(process)

        def ready() -> bool:
            assert process.alive, process.tail()
            found = {w["worker_id"]: w["status"] for w in cli.json("workers")["workers"]}
            return found.get(process.name) in ("ready", "busy")

        eventually(ready, 20, lambda: f"the worker to be ready:\n{process.tail()}")
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Server]:
    """An engine that may be stopped and started."""
    with private(DEFAULT_KIND, tmp_path / "engine") as server:
        yield server
