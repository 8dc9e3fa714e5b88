"""Turns on the event loop: few messages per pass while requests are under way, many when there are none, first come, first served."""

from __future__ import annotations

import asyncio

from dtq_api.pacing import BUSY_ROUND, IDLE_ROUND, MOST_PER_TURN, Turns


async def passes_needed(turns: Turns, takers: int, wanted: int) -> tuple[int, list[int]]:
    """How many passes of the loop it takes until all had their turn, and in which order they had it."""
    order: list[int] = []

    async def taker(number: int) -> None:
        granted = await turns.take(wanted)
        assert 1 <= granted <= min(MOST_PER_TURN, max(1, wanted))
        order.append(number)

    tasks = [asyncio.create_task(taker(n)) for n in range(takers)]
    passes = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        passes += 1
    return passes, order


def test_rounds_are_small_while_requests_are_under_way():
    async def both() -> None:
        turns = Turns()
        idle, order = await passes_needed(turns, 400, 8)
        assert order == list(range(400))
        turns.requests = 1
        busy, order = await passes_needed(turns, 400, 8)
        assert order == list(range(400))
        assert idle <= 400 * 8 / IDLE_ROUND + 4
        assert 400 * 8 / BUSY_ROUND <= busy <= 400 * 8 / BUSY_ROUND + 4

    asyncio.run(both())


def test_one_message_is_one_turn_and_who_has_gone_takes_none():
    async def scenario() -> None:
        turns = Turns()
        assert await turns.take(0) == 1
        gone = [asyncio.create_task(turns.take(8)) for _ in range(1000)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        assert await turns.take(3) == 3
        await asyncio.gather(*gone, return_exceptions=True)
        assert not turns._waiting and not turns._planned

    asyncio.run(scenario())
