"""The store with counted calls, for dtq_redis_operations_total. The requests of a worker's lanes count themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from dtq_core.errors import DtqError
from dtq_core.store import Call, Store

T = TypeVar("T")


class CountedStore(Store):
    """`counted(operation, result)` hears of every call: script or first command, and ok or an error code in lower case."""

    async def ping(self) -> None:
        async with self._counting("ping"):
            await super().ping()

    async def run(self, call: Call[T]) -> T:
        async with self._counting(call.script):
            return await super().run(call)

    async def run_replicated(self, call: Call[T], replicas: int, timeout_ms: int = 1000) -> T:
        async with self._counting(call.script):
            return await super().run_replicated(call, replicas, timeout_ms)

    async def send(self, *commands: Sequence[Any]) -> list[Any]:
        if not commands:
            return []
        async with self._counting(str(commands[0][0]).lower()):
            return await super().send(*commands)

    @contextlib.asynccontextmanager
    async def _counting(self, operation: str) -> AsyncIterator[None]:
        try:
            yield
        except DtqError as exc:
            self.counted(operation, exc.code.lower())
            raise
        self.counted(operation, "ok")
