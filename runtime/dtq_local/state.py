"""The state directory of a `dtq up`: who runs there, so that a second one is refused and other commands find the first.

`up.lock` is locked for as long as the supervisor lives, and holds its pid; the lock, not the pid, says whether it does.
`up.json` says what runs where. Light to import: every command looks here before it connects.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dtq_core.errors import AlreadyRunning, InvalidArgument
from dtq_core.text import redact

DEFAULT = ".dtq"
_IGNORE = ".gitignore"
_PATIENCE_S = 0.5
"""A reader of `discover` holds the lock for a moment too."""


@dataclass(frozen=True)
class UpRecord:
    """What up.json holds. `url` may contain a password, so the file is for its owner only."""

    pid: int
    url: str
    state_dir: str
    started_at: str
    engine: dict[str, Any] | None = None
    """`{"pid", "port", "version"}` of our own engine while it runs, None on a given server."""
    own_engine: bool = True
    api: str | None = None
    """URL of the HTTP API."""
    api_key: bool = False
    """Whether destructive calls need a key."""
    processes: dict[str, int] = field(default_factory=dict)
    """Pid by name: scheduler, worker-1 …; a process between two lives is missing."""
    names: tuple[str, ...] = ()
    """All processes that belong to it, running or not."""
    queues: tuple[str, ...] = ()
    task_modules: tuple[str, ...] = ()
    concurrency: int = 0
    """Tasks at a time in each worker."""
    reload: bool = False
    """Whether workers are started again when the task modules change."""
    ready: bool = False
    """Whether each worker took its place and the API answered, once."""
    stop_s: float = 60.0
    """How long an orderly stop may take."""


class StateDir:
    """One state directory, made on first use. Raises InvalidArgument where it cannot be used."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self.shown = str(path)
        """The path as the user wrote it."""

    @property
    def engine_dir(self) -> Path:
        return self.path / "engine"

    @property
    def log_file(self) -> Path:
        return self.path / "up.log"

    @property
    def lock_file(self) -> Path:
        return self.path / "up.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory. Raises AlreadyRunning, which names the pid and the URL of who has it, and InvalidArgument."""
        try:
            self._take()
            lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise InvalidArgument(f"state directory {self.shown}: {exc.strerror}") from None
        try:
            if not _lock(lock, fcntl.LOCK_EX, _PATIENCE_S):
                raise AlreadyRunning(f"dtq up runs on {self.shown} already: {self._who()}")
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            self.clear()  # what a killed one left behind
            yield
        finally:
            os.close(lock)

    def _take(self) -> None:
        """Make the directory, or make an empty one ours. One with other things in it belongs to somebody else."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.lock_file.is_file():
            return
        if others := sorted({entry.name for entry in self.path.iterdir()} - {_IGNORE, self.lock_file.name}):
            raise InvalidArgument(
                f"state directory {self.shown}: it holds other things ({others[0]}, for one); name one that is empty or"
                " not there yet"
            )
        self.path.chmod(0o700)
        (self.path / _IGNORE).write_text("*\n")

    def write(self, record: UpRecord) -> None:
        """Replace up.json in one step; a reader never sees half of it."""
        fresh = self.path / "up.json.new"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(record), file, indent=1)
        fresh.replace(self.path / "up.json")

    def clear(self) -> None:
        (self.path / "up.json").unlink(missing_ok=True)

    def running(self) -> UpRecord | None:
        """The record of the `dtq up` that holds this directory now, None where there is none that is ours."""
        record = self._read()
        return record if record is not None and self.held() else None

    def held(self) -> bool:
        """Whether a `dtq up` has this directory now, one that is just starting included."""
        try:
            lock = os.open(self.lock_file, os.O_RDONLY)
        except OSError:
            return False
        try:
            return not _lock(lock, fcntl.LOCK_SH, 0)
        finally:
            os.close(lock)

    def holder(self) -> int | None:
        """The pid that the holder of the lock wrote down; None where it is not there or not this user's."""
        try:
            with self.lock_file.open() as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                text = file.read(20).strip()
        except (OSError, ValueError):
            return None
        return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) and text != "1" else None

    def _read(self) -> UpRecord | None:
        """up.json, if it is well-formed and was written by this user: a planted one would redirect our tasks."""
        try:
            with (self.path / "up.json").open() as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                raw = json.load(file)
            known = {f.name: raw[f.name] for f in fields(UpRecord) if f.name in raw}
            known |= {name: tuple(known.get(name, ())) for name in ("names", "queues", "task_modules")}
            return UpRecord(**known) if isinstance(raw["url"], str) and isinstance(raw["pid"], int) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _who(self) -> str:
        record = self._read()
        return "it is just starting" if record is None else f"pid {record.pid}, {redact(record.url)}"


def discover() -> UpRecord | None:
    """The `dtq up` that runs on the default state directory of the current directory, if any."""
    return StateDir(DEFAULT).running()


def _lock(fd: int, kind: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.02)
