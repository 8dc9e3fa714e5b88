"""The log of `dtq up` in its state directory: written with a bound on its size, read and followed across rotations.

up.log, then up.log.1, then up.log.2, each at most MAX_BYTES. The writer renames and goes on; a reader finds its place
again by the file's identity, so it misses nothing unless it falls a whole log behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 5_000_000
KEPT = 2
"""How many older files are kept beside the one that is written."""
_FIRST_LINE = 200


class LogFile:
    """Appends to `path`, readable by its owner only. Raises OSError where that cannot be done."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max = max_bytes
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        if self._size and self._size + len(data) > self._max:
            self._rotate()
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _rotate(self) -> None:
        for older in range(KEPT, 0, -1):
            source = _aged(self._path, older - 1)
            if source.exists():
                source.replace(_aged(self._path, older))
        os.close(self._fd)
        self._fd = self._open()
        self._size = 0


class LogReader:
    """Reads a log that is rotated while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: _Identity | None = None
        self._offset = 0

    def exists(self) -> bool:
        return any(_aged(self._path, age).exists() for age in range(KEPT + 1))

    def read(self) -> Iterator[str]:
        """The lines that came since the last call, oldest first; at the first call all that are kept."""
        for path, identity in self._unread():
            try:
                file = path.open("rb")
            except OSError:
                return
            with file:
                if _identity(file) != identity:  # rotated in this very moment: the next call finds it by its new name
                    return
                if identity != self._place or os.fstat(file.fileno()).st_size < self._offset:
                    self._place, self._offset = identity, 0
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):  # still being written
                        break
                    self._offset += len(line)
                    yield line.decode(errors="replace").rstrip("\r\n")

    def _unread(self) -> list[tuple[Path, _Identity]]:
        """The files from the one where we are to the newest; all of them where ours is gone."""
        there = []
        for age in range(KEPT, -1, -1):
            path = _aged(self._path, age)
            with contextlib.suppress(OSError), path.open("rb") as file:
                there.append((path, _identity(file)))
        known = [identity for _, identity in there]
        return there[known.index(self._place) :] if self._place in known else there


_Identity = tuple[int, bytes]


def _identity(file: BinaryIO) -> _Identity:
    """What tells a file from others whatever its name: the number of its inode, which the next new file may be given
    when this one is deleted, and therefore its first line too."""
    first = file.readline(_FIRST_LINE)
    return os.fstat(file.fileno()).st_ino, first if first.endswith(b"\n") or len(first) == _FIRST_LINE else b""


def _aged(path: Path, age: int) -> Path:
    return path.with_name(f"{path.name}.{age}") if age else path
