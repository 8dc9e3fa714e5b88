"""The live feed as server-sent events, for clients that cannot speak WebSocket: the same messages, the same filters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from dtq_api import schemas
from dtq_api.dependencies import Reading
from dtq_api.feed import Feed, Filter, Reader

router = APIRouter(prefix="/api/v1", tags=["events"])

PING_S = 15.0


@router.get(
    "/events",
    operation_id="stream_events",
    summary="The live feed as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "One event per message; comments as pings."},
               **schemas.errors(400, 401, 403)},
)  # fmt: skip
async def stream_events(
    services: Reading,
    queue: Annotated[list[str] | None, Query(description="Only of these queues.")] = None,
    type: Annotated[list[str] | None, Query(description="Only of these types.")] = None,
    task_id: Annotated[list[str] | None, Query(description="Only about these tasks.")] = None,
) -> StreamingResponse:
    """Events from now on. A reader that does not keep up is told how many it lost; see docs/backpressure.md."""
    wanted = Filter.make(queue or [], type or [], task_id or [])
    return StreamingResponse(_messages(services.feed, wanted), media_type="text/event-stream")


async def _messages(feed: Feed, wanted: Filter) -> AsyncIterator[str]:
    async with feed.reader(wanted) as reader:
        yield ": connected\n\n"
        while (text := await _next(reader)) is not None:
            yield text


async def _next(reader: Reader) -> str | None:
    """The next message, a ping after a while of silence, None when the reader has to go."""
    message = asyncio.ensure_future(reader.next())
    ended = asyncio.ensure_future(reader.ended.wait())
    try:
        await asyncio.wait((message, ended), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
        if message.done():
            return f"data: {message.result()}\n\n"
        return None if ended.done() else ": ping\n\n"
    finally:
        message.cancel()
        ended.cancel()
