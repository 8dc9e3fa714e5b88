"""The core's store with one addition that a service needs: answers in time.

Whoever asks over HTTP must hear of an outage within two seconds (decision 23), while a worker rather waits. A call that
is given up may have been executed all the same; the answer says so, and a submission is safe to repeat with its
idempotency key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dtq_core.counted import CountedStore
from dtq_core.errors import DtqError, RedisUnavailable

PATIENCE_S = 1.8
"""For one call, with the wait for a connection and the connect. Below the two seconds that are promised."""


class PromptStore(CountedStore):
    """Store whose calls end after PATIENCE_S, and are counted."""

    @contextlib.asynccontextmanager
    async def _counting(self, operation: str) -> AsyncIterator[None]:
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
