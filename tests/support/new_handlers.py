"""The next release of the handlers: everything of support.handlers and one type more (for rolling deployments)."""

from __future__ import annotations

from typing import Any

from support.handlers import noted

from dtq_tasks import TaskContext


@noted("brand_new")
async def brand_new(payload: dict[str, Any], ctx: TaskContext) -> Any:
    return {"new": True}
