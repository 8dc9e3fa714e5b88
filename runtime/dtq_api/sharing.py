"""Metrics of several API processes behind one port: a scrape reaches one of them and must see the sum (BQ-55).

uvicorn's `--workers` starts siblings that share a listening socket. Each keeps its numbers in files of one directory,
which is named after the parent and removed by the first start that finds its parent gone. prometheus_client decides at
its import whether to work that way, so this module comes before dtq_core.metrics and imports neither.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_NAME = "dtq-metrics"


def share_between_processes() -> None:
    """Share the numbers of this process if it has siblings. Does nothing in a single process, or where the variable is set."""
    parent = multiprocessing.parent_process()
    if parent is None or os.environ.get(_VARIABLE):
        return
    folder = Path(tempfile.gettempdir())
    _remove_leftovers(folder)
    mine = folder / f"{_NAME}-{os.getuid()}-{parent.pid}"
    with contextlib.suppress(FileExistsError):
        mine.mkdir(mode=0o700)
    if mine.is_symlink() or mine.stat().st_uid != os.getuid():
        raise PermissionError(f"{mine} belongs to somebody else")
    os.environ[_VARIABLE] = str(mine)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{_NAME}-{os.getuid()}-*"):
        pid = path.name.rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
