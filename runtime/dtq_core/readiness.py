"""Whether the consumer group is there where there is work: what /ready asks, of the API and of a worker (contract §11)."""

from __future__ import annotations

from collections.abc import Sequence

from dtq_core.keys import GROUP
from dtq_core.store import Store
from dtq_core.task import BANDS


async def queues_without_group(store: Store, queues: Sequence[str]) -> list[str]:
    """Those of `queues` with entries on a stream that lacks the group. An empty stream gets it with its first entry."""
    streams = [(queue, store.keys.stream(queue, band)) for queue in queues for band in BANDS]
    commands = [command for _, name in streams for command in (("XLEN", name), ("XINFO", "GROUPS", name))]
    found = await store.send(*commands)
    missing = {
        queue
        for (queue, _), length, groups in zip(streams, found[::2], found[1::2], strict=True)
        if isinstance(length, int)
        and length
        and isinstance(groups, list)
        and not any(_name(g) == GROUP for g in groups)
    }
    return sorted(missing)


def _name(group: object) -> str:
    """The name of a group, whether the client library made a mapping of its reply or not."""
    if isinstance(group, dict):
        return str(group.get("name"))
    flat = list(group) if isinstance(group, (list, tuple)) else []
    return str(dict(zip(flat[::2], flat[1::2], strict=False)).get("name"))
