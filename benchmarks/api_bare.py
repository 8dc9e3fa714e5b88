"""The bare service: what a hand-written FastAPI endpoint does with one pydantic model and one EVALSHA of the same writes.

It has no limits, keys, idempotency, request ids, metrics or errors of its own. Run under the same server with the same
options as DTQ's: `uvicorn benchmarks.api_bare:app`. The environment names the engine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import FastAPI
from pydantic import BaseModel, Field

from benchmarks import bare


class Task(BaseModel):
    """The same fields as a submission of DTQ."""

    task_type: str = Field(min_length=1, max_length=128)
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: str = "default"
    idempotency_key: str | None = None
    max_attempts: int = Field(5, ge=1, le=10)
    priority: int = Field(5, ge=0, le=9)
    timeout_ms: int = Field(30_000, ge=1, le=3_600_000)
    delay_seconds: float = Field(0, ge=0)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Taken(BaseModel):
    task_id: str
    status: str


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.redis = bare.connect(os.environ["DTQ_REDIS_URL"])
    app.state.sha = await cast(Any, app.state.redis.script_load(bare.SAME_WRITES))
    yield
    await app.state.redis.aclose()


app = FastAPI(lifespan=_lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/api/v1/tasks", status_code=202)
async def submit(task: Task) -> Taken:
    task_id = await bare.submit_same_writes(app.state.redis, app.state.sha, task.queue, task.payload)
    return Taken(task_id=task_id, status="queued")
