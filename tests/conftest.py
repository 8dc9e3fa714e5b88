"""Fixtures for all tests. Pure tests use none of them; whoever asks for `engine` gets a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import engines
from support.engines import KINDS, Server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="the long variants: 30 rounds of the crash matrix, not 3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`crash_round`: how often each moment of the crash matrix is tried."""
    if "crash_round" in metafunc.fixturenames:
        metafunc.parametrize("crash_round", range(30 if metafunc.config.getoption("nightly") else 3))


@pytest.fixture(scope="session")
def _engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    yield lambda name: tmp_path_factory.mktemp(name)
    engines.stop_shared()


@pytest.fixture
def engine(_engine_folder: Callable[[str], Path]) -> Server:
    """The default engine of this test process, empty."""
    return engines.shared(engines.DEFAULT_KIND, _engine_folder)


@pytest.fixture(params=sorted(KINDS))
def any_engine(request: pytest.FixtureRequest, _engine_folder: Callable[[str], Path]) -> Server:
    """Each engine that DTQ promises to run on, in turn, empty."""
    return engines.shared(request.param, _engine_folder)
