"""When the source files of the task modules change: what --reload of `dtq up` and of `dtq worker run` waits for.

Before anything is restarted, the modules are imported in a process of their own (dtq_local.look). That tells whether
the new code can be loaded at all, so that a half-written file stops nobody, and which files to look at: those that were
really imported, wherever they are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dtq_core.errors import InvalidArgument
from dtq_local import modules
from dtq_local.spawn import popen

IMPORT_S = 60.0
"""How long the modules may take to import."""
_LOOK_MS = 1000
"""How often files are looked at where the system tells of no change: between two watches, on some network disks."""
_GATHER_MS = 400

Signature = dict[str, tuple[int, int]]
"""Modification time and size by file; what is not there is not in it."""


@dataclass(frozen=True)
class Changed:
    """What the modules are now. `names` are the files that changed, none at the first look; `error` is the fault."""

    names: tuple[str, ...] = ()
    error: str = ""


def require_watchfiles() -> None:
    """Raises InvalidArgument where the package is not installed."""
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise InvalidArgument("--reload needs the package watchfiles: pip install 'dtq[local]'") from None


def fresh_code(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for processes of which the code changes: a file saved twice in a second must not be taken from a cache."""
    return {**env, "PYTHONDONTWRITEBYTECODE": "1"}


class Sources:
    """Reports `Changed` once at the start and after each change, from a thread of its own."""

    def __init__(self, names: Sequence[str], report: Callable[[Changed], None]) -> None:
        self._names = tuple(names)
        self._report = report
        self._stopped = threading.Event()
        self._files: frozenset[str] = frozenset()
        self._folders = frozenset(map(os.path.realpath, modules.folders(names)))
        self._error = "not yet imported"
        self._thread = threading.Thread(target=self._run, name="dtq-sources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        seen = self._renew()
        self._report(Changed((), self._error))
        while not self._stopped.is_set():
            for _ in self._ticks():
                now = self._signature()
                if now == seen:
                    continue
                changed = [path for path in {*seen, *now} if seen.get(path) != now.get(path)]
                folders = self._folders
                seen = self._renew()
                if not self._stopped.is_set():
                    self._report(Changed(tuple(sorted(map(_shown, changed))), self._error))
                if self._folders != folders:
                    break

    def _renew(self) -> Signature:
        """Look at the modules; what the files were before that, so that a change in between is seen next time."""
        before = self._signature()
        self._look()
        watched = self._watched()
        return {**self._signature(), **{path: value for path, value in before.items() if path in watched}}

    def _ticks(self) -> Iterator[None]:
        """Now and then, and soon after something has changed in our folders."""
        from watchfiles import watch

        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # that something changed is said better by us
        yield
        there = sorted(folder for folder in self._folders if os.path.isdir(folder))
        with contextlib.suppress(Exception):  # too many watches, a folder that goes: then only the clock is left
            for _ in watch(
                *there, watch_filter=lambda _, path: path.endswith(".py"), debounce=_GATHER_MS,
                rust_timeout=_LOOK_MS, yield_on_timeout=True, stop_event=self._stopped, raise_interrupt=False,
                recursive=False,
            ):  # fmt: skip
                yield
        self._stopped.wait(_LOOK_MS / 1000)

    def _watched(self) -> set[str]:
        """The files that count: while the modules cannot be imported, every one beside them may be the cure."""
        if not self._error:
            return set(self._files)
        beside = {str(path) for folder in self._folders for path in Path(folder).glob("*.py")}
        return {*self._files, *beside}

    def _signature(self) -> Signature:
        found: Signature = {}
        for path in self._watched():
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _look(self) -> None:
        error, files = _look(self._names)
        self._error = error
        self._files = frozenset(files) | (self._files if error else frozenset())
        places = {os.path.realpath(folder) for folder in modules.folders(self._names)}
        self._folders = frozenset(places | {os.path.dirname(path) for path in self._files})


def _look(names: Sequence[str]) -> tuple[str, list[str]]:
    """(fault, files) of the modules as they are now."""
    process = popen(
        [sys.executable, "-m", "dtq_local.look", *names], env=fresh_code(os.environ), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    shown = ", ".join(names)
    try:
        answer, _ = process.communicate(timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"DTQ_TASK_MODULES: importing {shown} takes longer than {IMPORT_S:g} s", []
    try:
        found = json.loads(answer)
        return str(found["error"]), list(found["files"])
    except (ValueError, KeyError, TypeError):
        return f"DTQ_TASK_MODULES: the process that imports {shown} ended with {process.returncode}", []


def _shown(path: str) -> str:
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
