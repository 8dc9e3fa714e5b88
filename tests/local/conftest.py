"""`up(…)`: a real `dtq up` for a test, and nothing left of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local.running import Up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """`up(…)` starts one; killed at the end, and its children with it."""
    started: list[Up] = []

    def start(*args: str, folder: Path = tmp_path, **env: str) -> Up:
        started.append(Up(folder, *args, **env))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
