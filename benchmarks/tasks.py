"""The handlers that the DTQ worker runs here, loaded as a user's would be: DTQ_TASK_MODULES=benchmarks.tasks."""

from __future__ import annotations

from typing import Any

from benchmarks.stamp import send_stamp
from dtq_tasks import TaskContext, task


@task("noop")
async def noop(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Nothing, with a result: the bare loop stores one too."""
    return "done"


@task("stamp")
async def stamp(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Tell the benchmark when this task started."""
    send_stamp(payload["n"])
