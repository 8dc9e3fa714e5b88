"""The live feed as server-sent events, for clients that cannot speak WebSocket: the same messages, the same filters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from dtq_api.dependencies import Reading
from dtq_api.feed import Feed, Filter, Reader
from dtq_api.refusals import READING, refusals
from dtq_core.events import EVENT_TYPES
from dtq_core.task import QUEUE_NAME, TASK_ID

router = APIRouter(prefix="/api/v1", tags=["events"])

PING_S = 15.0
_EXAMPLE = (
    'data: {"event_id":"0f9a…","ts":"2026-01-01T12:00:00.000+00:00","type":"TASK_SUCCEEDED",'
    '"task_id":"9b2d1c4e5f60718293a4b5c6d7e8f901","queue":"default","task_type":"echo_task","attempt":1,'
    '"worker_id":"worker-1a2b3c4d"}\n\n'
)


def _only(description: str, **item: Any) -> Any:
    """A filter that may be given several times."""
    shape = {"anyOf": [{"type": "array", "items": {"type": "string", **item}}, {"type": "null"}]}
    return Query(description=description, json_schema_extra=shape)


@router.get(
    "/events",
    operation_id="stream_events",
    summary="The live feed as server-sent events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
              "description": "One event per message; comments as pings."},
        **refusals(*READING, "INVALID_ARGUMENT"),
    },
)  # fmt: skip
async def stream_events(
    services: Reading,
    queue: Annotated[list[str] | None, _only("Only of these queues.", pattern=rf"^{QUEUE_NAME.pattern}$")] = None,
    type: Annotated[list[str] | None, _only("Only of these types.", enum=list(EVENT_TYPES))] = None,
    task_id: Annotated[list[str] | None, _only("Only about these tasks.", pattern=rf"^{TASK_ID.pattern}$")] = None,
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
