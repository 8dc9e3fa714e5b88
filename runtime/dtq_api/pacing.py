"""Turns on the event loop: so that ten thousand messages to five hundred readers do not hold up one submission.

A send to a socket that takes it returns at once, without giving the loop to anybody. So whoever fans out asks for a turn
first. A round of turns happens once per pass of the loop; while requests are under way a round is small, and when there
are none it is large. Nothing waits for a clock, so no processor time is left unused while there is work.
"""

from __future__ import annotations

import asyncio
from collections import deque

BUSY_ROUND = 8
"""Messages per pass of the loop while requests are under way: about a tenth of a millisecond."""
IDLE_ROUND = 128
MOST_PER_TURN = 8


class Turns:
    """First come, first served. `requests` is kept by the gate: how many requests are under way."""

    def __init__(self) -> None:
        self.requests = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._planned = False

    async def take(self, wanted: int) -> int:
        """Wait for a turn; how many messages may be sent in it, at least one and at most `wanted`."""
        loop = asyncio.get_running_loop()
        granted = max(1, min(wanted, MOST_PER_TURN))
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((turn, granted))
        if not self._planned:
            self._planned = True
            loop.call_soon(self._round, loop)
        await turn
        return granted

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        left = BUSY_ROUND if self.requests else IDLE_ROUND
        while self._waiting and left > 0:
            turn, granted = self._waiting.popleft()
            if not turn.done():  # else it was cancelled: its reader has gone
                turn.set_result(None)
                left -= granted
        self._planned = bool(self._waiting)
        if self._planned:
            loop.call_soon(self._round, loop)
