"""The task modules by name: are they there, can they be imported, and what is wrong if not, with file and line."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import traceback
from collections.abc import Iterable
from pathlib import Path

from dtq_core.errors import InvalidArgument, InvalidConfig
from dtq_tasks import registry


def check(modules: Iterable[str]) -> None:
    """A mistyped name would end every worker again and again; say so at once. Imports nothing of the user's.

    Raises InvalidArgument.
    """
    for name in modules:
        top = name.partition(".")[0]
        try:
            found = importlib.util.find_spec(top) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise InvalidArgument(f"task module {name}: there is no module {top!r} here")


def load(modules: Iterable[str]) -> None:
    """Import them, so that their handlers register. Raises InvalidConfig, which names the module, the fault and its line."""
    for name in modules:
        try:
            registry.load([name])
        except (Exception, SystemExit) as exc:
            raise InvalidConfig(
                f"DTQ_TASK_MODULES: {name} cannot be imported: {type(exc).__name__}: {_text(exc)}{_place(exc)}"
            ) from exc


def folders(modules: Iterable[str]) -> set[str]:
    """Where the modules lie, as far as that can be known without importing anything."""
    importlib.invalidate_caches()
    found: set[str] = set()
    for name in modules:
        top, *rest = name.split(".")
        spec = importlib.machinery.PathFinder.find_spec(top)
        if spec is None:
            continue
        for base in spec.submodule_search_locations or ():
            found.add(str(Path(base).parent))  # what a package misses may have to be put beside it
            steps = [Path(base).joinpath(*rest[:n]) for n in range(len(rest) + 1)]
            found |= {str(step) for step in steps if step.is_dir()}
        if spec.origin and spec.submodule_search_locations is None:
            found.add(str(Path(spec.origin).parent))
    return found


def _text(exc: BaseException) -> str:
    return exc.msg if isinstance(exc, SyntaxError) and exc.filename else str(exc)


def _place(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" ({exc.filename} line {exc.lineno})"
    ours = (__file__, registry.__file__)
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [f for f in frames if f.filename not in ours and "importlib" not in f.filename]
    return f" ({theirs[-1].filename} line {theirs[-1].lineno})" if theirs else ""
