"""`dtq new NAME`: a project of one's own from the templates of this package, which runs and passes its tests as it is."""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from dtq_core.errors import InvalidArgument
from dtq_core.text import clean

_NAME = re.compile(r"[a-z]([a-z0-9_]{0,38}[a-z0-9])?")
_HIDDEN = ("gitignore", "dockerignore")
_TAKEN = {"tests", "dist", "build"}
"""Directories of the project itself, or of what tools put there."""


def make(name: str, parent: Path) -> Path:
    """Make the directory `name` in `parent`; its path.

    Raises InvalidArgument for a name that cannot be that of a package, a directory that is there already, and a place
    where nothing can be written; nothing is left behind then.
    """
    _check(name)
    place = parent / name
    try:
        place.mkdir()
    except FileExistsError:
        raise InvalidArgument(f"{name} is here already; nothing was changed") from None
    except OSError as exc:
        raise InvalidArgument(f"{name} cannot be made here: {exc.strerror}") from None
    try:
        for target, text in _files(name):
            path = place / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as exc:
        with contextlib.suppress(OSError):
            shutil.rmtree(place)
        raise InvalidArgument(f"{name} cannot be written: {exc.strerror}") from None
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return place


def _check(name: str) -> None:
    shown = clean(name, 60)
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").lstrip("0123456789_")[:40].strip("_")
        hint = f"; {near}, perhaps" if _NAME.fullmatch(near) else ""
        raise InvalidArgument(
            f"{shown!r} is no name for a project: lower-case letters, digits and '_', at most 40, beginning with a letter"
            f" and not ending with '_', as it becomes a Python package{hint}"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise InvalidArgument(f"{shown!r} is a word of Python; take another name")
    if name in sys.stdlib_module_names or name in _TAKEN:
        raise InvalidArgument(f"{shown!r} would hide Python's own module {name}, or a directory of the project")
    if name == "dtq" or name.startswith("dtq_"):
        raise InvalidArgument(f"{shown!r}: names with dtq belong to DTQ; take another one")
    if _is_installed(name):
        raise InvalidArgument(f"{shown!r} would hide an installed package of that name; take another one")


def _is_installed(name: str) -> bool:
    """Whether `import name` finds something; a directory without code, as may lie here, is nothing."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _files(name: str) -> Iterator[tuple[str, str]]:
    """(path in the project, content) of every file."""
    words = {"PROJECT_NAME": name, "PROJECT_DNS": re.sub("_+", "-", name)}
    for path, text in _templates(files("dtq_local") / "templates", ""):
        folder, _, file = path.rpartition("/")
        file = f".{file}" if file in _HIDDEN else file
        target = f"{folder}/{file}" if folder else file
        for word, value in words.items():
            target, text = target.replace(word, value), text.replace(word, value)
        yield target, text


def _templates(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".tmpl"):
            yield prefix + entry.name.removesuffix(".tmpl"), entry.read_text(encoding="utf-8")
