"""The live feed over WebSocket (contract §7, §8): /ws/events, or wherever DTQ_WS_PATH says, and /ws.

Close codes: 1001 the service stops; 1013 the reader was too slow even for the events that are never dropped, come back
and read the tasks themselves. A request that is not let in is answered with 400, 401 or 403 and the usual body. What a
client sends is read and thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect

from dtq_api.dependencies import Services, api_key
from dtq_api.errors import Forbidden, error_response
from dtq_api.feed import Filter, Reader
from dtq_api.gate import is_foreign, telling_headers
from dtq_api.pacing import Turns
from dtq_core.errors import DtqError

GOING_AWAY = 1001
TRY_AGAIN_LATER = 1013
GOODBYE_S = 0.5
"""How long the farewell may take; a reader that does not read cannot be told."""


async def events(websocket: WebSocket) -> None:
    """One client, from its request to its end."""
    services: Services = websocket.app.state.services
    try:
        wanted = _admit(websocket, services)
    except DtqError as exc:
        await websocket.send_denial_response(error_response(exc, websocket.scope["state"]["request_id"]))
        return
    async with services.feed.reader(wanted) as reader:
        try:
            await websocket.accept()
        except (OSError, WebSocketDisconnect):
            return
        if not await _serve(websocket, reader, services.turns):
            code = TRY_AGAIN_LATER if reader.overrun else GOING_AWAY
            reason = "too slow" if reader.overrun else "the service stops"
            with contextlib.suppress(TimeoutError, OSError, WebSocketDisconnect, RuntimeError):
                async with asyncio.timeout(GOODBYE_S):
                    await websocket.close(code, reason)


def _admit(websocket: WebSocket, services: Services) -> Filter:
    """Raises Unauthorized, Forbidden or InvalidArgument."""
    if is_foreign(telling_headers(websocket.scope)):
        raise Forbidden("a page of another site may not do this")
    services.access.check("read", api_key(websocket.scope["headers"]))
    query = websocket.query_params
    return Filter.make(query.getlist("queue"), query.getlist("type"), query.getlist("task_id"))


async def _serve(websocket: WebSocket, reader: Reader, turns: Turns) -> bool:
    """Send until something ends it; True if that was the client."""
    loop = asyncio.get_running_loop()
    sending = loop.create_task(_send(websocket, reader, turns))
    listening = loop.create_task(_until_gone(websocket))
    ended = loop.create_task(reader.ended.wait())
    tasks = (sending, listening, ended)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return sending.done() or listening.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(websocket: WebSocket, reader: Reader, turns: Turns) -> None:
    """For ever; ends with an exception when the client is gone."""
    while True:
        for _ in range(await turns.take(await reader.filled())):
            text = reader.take()
            if text is None:
                break
            await websocket.send({"type": "websocket.send", "text": text})


async def _until_gone(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
