"""The event feed as a test sees it: everything published since it was opened."""

from __future__ import annotations

import uuid

import redis

from dtq_core.events import Event

CHANNEL = "dtq:events"


class Feed:
    """A subscription of its own. Reading goes up to the moment of the call: a marker of ours is the last thing read."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._subscription = client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(CHANNEL)
        self._events: list[Event] = []
        self.events()

    def events(self) -> list[Event]:
        """All events so far, in order."""
        marker = uuid.uuid4().hex
        self._client.publish(CHANNEL, marker)
        while True:
            message = self._subscription.get_message(timeout=5.0)
            if message is None:
                continue
            if message["data"] == marker:
                return list(self._events)
            self._events.append(Event.parse(message["data"]))

    def of(self, task_id: str) -> list[str]:
        """Types of the events of one task, in order."""
        return [event.type for event in self.events() if event.task_id == task_id]

    def close(self) -> None:
        self._subscription.close()
