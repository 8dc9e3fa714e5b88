"""The bare loop beside DTQ: XADD, XREADGROUP, XACK and XDEL by hand, and none of what a task queue is for.

No states, results, attempts, retries, priorities, events or counters; a crash loses nothing, and that is all it can do.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from dtq_core.periodic import raise_if_cancelled
from dtq_core.store import Store
from dtq_core.store.replies import sound

GROUP = "bare"
KEPT_S = 3600
_BATCH = 100
"""XADDs per round trip; as many as DTQ puts into one call."""


class BareLoop:
    """One stream, one producer, one consumer, on a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stream = f"{store.keys.prefix}:bare"

    async def prepare(self) -> None:
        for reply in await self._store.send(
            ("DEL", self._stream),
            ("XGROUP", "CREATE", self._stream, GROUP, "0", "MKSTREAM"),
            ("EXPIRE", self._stream, KEPT_S),
        ):
            sound(reply)

    async def submit(self, payload: dict[str, Any], count: int) -> None:
        for start in range(0, count, _BATCH):
            raise_if_cancelled()  # the client library swallows a cancellation now and then
            adds = [
                ("XADD", self._stream, "*", "task_id", uuid4().hex, "payload", json.dumps(payload))
                for _ in range(min(_BATCH, count - start))
            ]
            for reply in await self._store.send(*adds):
                sound(reply)

    async def drain(self, batch: int) -> int:
        """Read and acknowledge until the stream is empty: one round trip a batch; how many there were."""
        done = 0
        read = ("XREADGROUP", "GROUP", GROUP, "me", "COUNT", batch, "STREAMS", self._stream, ">")
        (reply,) = await self._store.send(read)
        while sound(reply):
            raise_if_cancelled()
            ids = [entry_id for entry_id, fields in reply[0][1] if json.loads(_payload(fields)) is not None]
            done += len(ids)
            *acks, reply = await self._store.send(
                ("XACK", self._stream, GROUP, *ids), ("XDEL", self._stream, *ids), read
            )
            for ack in acks:
                sound(ack)
        return done


def _payload(fields: Any) -> str:
    return str(fields["payload"] if isinstance(fields, dict) else fields[3])
