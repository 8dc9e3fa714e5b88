"""dtq_local.logfile: a log with a bound on its size, that a reader follows across rotations."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dtq_local.logfile import KEPT, LogFile, LogReader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "up.log"


def line(n: int) -> bytes:
    return f"line {n:04}\n".encode()


def numbers(lines: list[str]) -> list[int]:
    return [int(text.removeprefix("line ")) for text in lines]


def test_it_never_takes_more_room_than_it_may(path: Path) -> None:
    log = LogFile(path, max_bytes=100)
    for n in range(1000):
        log.write(line(n))
    sizes = [file.stat().st_size for file in path.parent.iterdir()]
    assert len(sizes) == KEPT + 1 and max(sizes) <= 100
    assert numbers(list(LogReader(path).read())) == list(range(970, 1000)), "the newest lines are kept, in order"


def test_it_is_appended_to_and_private(path: Path) -> None:
    LogFile(path).write(line(1))
    LogFile(path).write(line(2))
    assert numbers(list(LogReader(path).read())) == [1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_its_place_is_not_followed(path: Path) -> None:
    (path.parent / "precious").write_text("mine")
    path.symlink_to("precious")
    with pytest.raises(OSError):
        LogFile(path)


def test_a_reader_misses_nothing_over_rotations(path: Path) -> None:
    log, reader = LogFile(path, max_bytes=100), LogReader(path)
    seen: list[str] = []
    for n in range(500):
        log.write(line(n))
        if n % 7 == 0:
            seen += reader.read()
    seen += reader.read()
    assert numbers(seen) == list(range(500))


def test_a_reader_that_is_far_behind_goes_on_with_the_oldest_line_there_is(path: Path) -> None:
    log, reader = LogFile(path, max_bytes=100), LogReader(path)
    log.write(line(0))
    assert numbers(list(reader.read())) == [0]
    for n in range(1, 100):
        log.write(line(n))
    assert numbers(list(reader.read())) == list(range(70, 100))
    assert list(reader.read()) == []


def test_half_a_line_is_not_read_until_it_is_whole(path: Path) -> None:
    reader = LogReader(path)
    assert not reader.exists() and list(reader.read()) == []
    path.write_bytes(b"whole\nhal")
    assert list(reader.read()) == ["whole"]
    with path.open("ab") as file:
        file.write(b"f\n\xff\n")
    assert list(reader.read()) == ["half", "�"]


def test_a_log_that_was_emptied_is_read_from_its_start(path: Path) -> None:
    reader = LogReader(path)
    path.write_bytes(b"a\nb\n")
    assert list(reader.read()) == ["a", "b"]
    os.truncate(path, 0)
    assert list(reader.read()) == []
    with path.open("ab") as file:
        file.write(b"c\n")
    assert list(reader.read()) == ["c"]
