"""The handler that the worker of `dtq bench` runs: DTQ_TASK_MODULES=dtq_local.bench.tasks."""

from __future__ import annotations

from typing import Any

from dtq_tasks import TaskContext, task


@task("bench.echo")
async def echo(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Return the payload as it came."""
    return payload
