"""Start-up and shutdown functions that misbehave where a gate of that name is open; imported after support.handlers."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from support.handlers import _is_open

from dtq_tasks import on_shutdown, on_startup


@on_startup
async def start(state: SimpleNamespace) -> None:
    print("start-up began", flush=True)
    if _is_open("start-up fails"):
        raise RuntimeError("no database")
    if _is_open("start-up is cancelled"):
        raise asyncio.CancelledError
    while _is_open("start-up waits"):
        await asyncio.sleep(0.01)
    while _is_open("start-up blocks"):
        time.sleep(0.01)
    state.pool = "a pool"


@on_shutdown
async def stop(state: SimpleNamespace) -> None:
    print(f"shutdown saw {state.pool}", flush=True)
    if _is_open("shutdown fails"):
        raise SystemExit(7)
    if _is_open("shutdown is cancelled"):
        raise asyncio.CancelledError
    while _is_open("shutdown hangs"):
        await asyncio.sleep(0.01)
