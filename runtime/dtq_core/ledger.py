"""The ledger of a queue: exact counters that every script bumps in the same breath as its change (decisions 19, 20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dtq_core.clock import iso
from dtq_core.errors import StoreError
from dtq_core.keys import AUDIT_MAXLEN
from dtq_core.store import Store

LIVE_FIELDS = ("pending", "queued", "running", "retrying")
END_FIELDS = ("succeeded", "failed", "dead_lettered", "cancelled", "expired")
EVENT_FIELDS = (
    "submitted", "requeued", "started", "retried", "redelivered", "absorbed", "deferred", "handed_back", "quarantined",
    "discarded", "letters_trimmed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counters of one queue: events since it exists, and tasks now in each live status."""

    counts: Mapping[str, int]

    def __getitem__(self, field: str) -> int:
        return self.counts.get(field, 0)

    @property
    def depth(self) -> int:
        """Waiting and running tasks: what admission looks at."""
        return self["queued"] + self["running"]

    @property
    def scheduled(self) -> int:
        return self["pending"] + self["retrying"]

    @property
    def live(self) -> int:
        return sum(self[field] for field in LIVE_FIELDS)

    @property
    def finished(self) -> int:
        return sum(self[field] for field in END_FIELDS)

    @property
    def balance(self) -> int:
        """Taken in minus accounted for; 0 always (decision 20)."""
        return self["submitted"] + self["requeued"] - self.live - self.finished


def from_hash(raw: Mapping[str, str]) -> Ledger:
    """A ledger from its hash; a field that is not a number counts as 0 and is left to the audit."""
    counts: dict[str, int] = {}
    for field, value in raw.items():
        try:
            counts[field] = int(value)
        except ValueError:
            continue
    return Ledger(counts)


async def read(store: Store, queue: str) -> Ledger:
    """The ledger of `queue`; all zero for a queue nobody knows."""
    (raw,) = await store.send(("HGETALL", store.keys.ledger(queue)))
    if isinstance(raw, Exception):
        raise StoreError(f"ledger of {queue}: {str(raw)[:200]}")
    flat = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=False))
    return from_hash(flat)


async def write_audit(store: Store, actor: str, action: str, request_id: str, detail: str) -> None:
    """One audit entry for an operation that ran in several steps; single ones are written by their script."""
    (now,) = await store.send(("TIME",))
    stamp = iso(int(now[0]) * 1000 + int(now[1]) // 1000)
    entry = {"actor": actor, "action": action, "task_id": "", "ts": stamp, "request_id": request_id, "detail": detail}
    fields = [part for pair in entry.items() for part in pair]
    (written,) = await store.send(("XADD", store.keys.audit, "MAXLEN", "~", AUDIT_MAXLEN, "*", *fields))
    if isinstance(written, Exception):
        raise StoreError(f"the audit entry was not written: {str(written)[:200]}")
