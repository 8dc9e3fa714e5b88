"""The core's store with two additions a service needs: answers in time, and counted calls.

Whoever asks over HTTP must hear of an outage within two seconds (decision 23), while a worker rather waits. A call that
is given up may have been executed all the same; the answer says so, and a submission is safe to repeat with its
idempotency key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from dtq_core.errors import DtqError, RedisUnavailable
from dtq_core.store import Call, Store

T = TypeVar("T")
Counted = Callable[[str, str], None]

PATIENCE_S = 1.8
"""For one call, with the wait for a connection and the connect. Below the two seconds that are promised."""


class PromptStore(Store):
    """Store whose calls end after PATIENCE_S. `counted(operation, result)` hears of each."""

    counted: Counted = staticmethod(lambda operation, result: None)

    async def ping(self) -> None:
        async with self._prompt("ping"):
            await super().ping()

    async def run(self, call: Call[T]) -> T:
        async with self._prompt(call.script):
            return await super().run(call)

    async def run_replicated(self, call: Call[T], replicas: int, timeout_ms: int = 1000) -> T:
        async with self._prompt(call.script):
            return await super().run_replicated(call, replicas, timeout_ms)

    async def send(self, *commands: Sequence[Any]) -> list[Any]:
        if not commands:
            return []
        async with self._prompt(str(commands[0][0]).lower()):
            return await super().send(*commands)

    @contextlib.asynccontextmanager
    async def _prompt(self, operation: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield
        except TimeoutError:
            self.counted(operation, "timeout")
            raise RedisUnavailable(
                "Redis does not answer in time; what was asked for may have been done, so repeat it with an idempotency key"
            ) from None
        except DtqError as exc:
            self.counted(operation, exc.code.lower())
            raise
        self.counted(operation, "ok")
