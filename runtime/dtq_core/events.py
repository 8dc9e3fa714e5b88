"""The event value of contract §8: its types, and how a message of the feed becomes one again.

Events are built inside the scripts, in the same breath as the change they tell of, so there is no moment with one and
without the other. Python only reads them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

TASK_EVENTS = (
    "TASK_QUEUED",
    "TASK_STARTED",
    "TASK_SUCCEEDED",
    "TASK_FAILED",
    "TASK_RETRY_SCHEDULED",
    "TASK_RETRIED",
    "TASK_DEAD_LETTERED",
    "TASK_CANCELLED",
    "TASK_EXPIRED",
    "TASK_DUPLICATE_ABSORBED",
)
WORKER_EVENTS = ("WORKER_STARTED", "WORKER_STOPPED", "WORKER_STALE")
OTHER_EVENTS = ("CONFIGURATION_CHANGED",)
EVENT_TYPES = TASK_EVENTS + WORKER_EVENTS + OTHER_EVENTS
TERMINAL_EVENTS = frozenset({"TASK_SUCCEEDED", "TASK_FAILED", "TASK_DEAD_LETTERED", "TASK_CANCELLED", "TASK_EXPIRED"})


@dataclass(frozen=True, slots=True)
class Event:
    """One message of the feed. What does not apply (a worker has no task_id) is None."""

    event_id: str
    ts: datetime
    type: str
    task_id: str | None = None
    queue: str | None = None
    task_type: str | None = None
    attempt: int | None = None
    worker_id: str | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def parse(cls, message: str | bytes) -> Event:
        """Read one message of the channel. Raises ValueError for anything that is not an event."""
        try:
            raw = json.loads(message)
        except RecursionError:
            raise ValueError("not an event") from None
        if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
            raise ValueError("not an event")
        ts = datetime.fromisoformat(str(raw.get("ts")))
        if ts.tzinfo is None:
            raise ValueError("an event whose time has no offset")
        known = {k: raw.get(k) for k in ("task_id", "queue", "task_type", "attempt", "worker_id", "metadata")}
        return cls(str(raw.get("event_id")), ts, raw["type"], **known)
