"""`dtq up --fresh`: delete what an earlier `dtq up` kept in a state directory, and never anything else that lies there.

Only names that DTQ and its engine give are touched, only in a directory that carries our lock file, and no link is
followed: a mistyped --state must not cost anybody a file. engine.json stays: the engine keeps its port.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dtq_core.errors import InvalidArgument
from dtq_local.state import StateDir

_OURS = {
    "": re.compile(r"up\.json(\.new)?|up\.log(\.\d+)?"),
    "engine": re.compile(r"engine\.log(\.\d+)?|dump\.rdb|temp-.*\.(rdb|aof)|appendonly\.aof.*"),
    "engine/appendonlydir": re.compile(r"(temp-)?appendonly\.aof.*|temp-.*\.aof"),
}


def contents(state: StateDir) -> list[Path]:
    """The files that would go; none where there is nothing yet.

    Raises InvalidArgument for a directory that is not empty and was never that of a `dtq up`, and for links in it.
    """
    if not state.path.exists():
        return []
    try:
        if not state.lock_file.is_file():
            if any(state.path.iterdir()):
                raise InvalidArgument(
                    f"state directory {state.shown}: no dtq up has kept anything there, nothing is deleted"
                )
            return []
        return list(_files(state))
    except OSError as exc:
        raise InvalidArgument(f"state directory {state.shown}: {exc.strerror}") from None


def size(paths: list[Path]) -> int:
    """Bytes."""
    return sum(path.stat().st_size for path in paths if path.exists())


def wipe(state: StateDir) -> None:
    """Delete them. For the holder of the lock. Raises InvalidArgument where a file cannot be deleted."""
    for path in contents(state):
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            raise InvalidArgument(f"state directory {state.shown}: {path.name}: {exc.strerror}") from None


def _files(state: StateDir) -> Iterator[Path]:
    for folder, ours in _OURS.items():
        place = state.path / folder
        if place.is_symlink():
            raise InvalidArgument(f"state directory {state.shown}: {folder} is a link; delete by hand what it leads to")
        if not place.is_dir():
            continue
        for path in sorted(place.iterdir()):
            if ours.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode):
                yield path
