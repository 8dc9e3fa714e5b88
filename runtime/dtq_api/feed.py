"""The live feed: one subscription per process, fanned out to readers with bounded buffers (contract §7, BQ-41).

The subscription is there while somebody reads. Handing an event on never waits: a reader that does not keep up loses
ordinary events first and is told how many; terminal events are kept; with a buffer full of those it is cut off. So one
slow reader costs nobody else anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from dtq_api.prompt_store import PromptStore
from dtq_core.errors import InvalidArgument
from dtq_core.events import EVENT_TYPES, TERMINAL_EVENTS, Event
from dtq_core.periodic import supervised
from dtq_core.task import QUEUE_NAME, TASK_ID

BUFFER = 1000
"""Events kept for one reader (contract §7)."""
BREATH = 16
"""Messages that are read from the subscription before others have their turn on the loop."""
FEW_READERS = 32
GATHER_S = 0.01
"""With more readers than that, events are handed on together, this much later: once per reader and not per event."""
READY_S = 2.0
"""How long a new reader waits for the subscription before it is let in without."""


Item = tuple[int, str]
"""An event as it is kept: its place in the order, and its text. Readers share it."""
_places = itertools.count()


@dataclass(frozen=True, slots=True)
class Filter:
    """What a reader wants to see; an empty set is everything. Events that lack the field do not match it."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    task_ids: frozenset[str] = frozenset()

    @classmethod
    def make(cls, queues: list[str], types: list[str], task_ids: list[str]) -> Filter:
        """Raises InvalidArgument for what no event can match."""
        if not all(QUEUE_NAME.fullmatch(name) for name in queues):
            raise InvalidArgument("queue: not a queue name")
        if not all(name in EVENT_TYPES for name in types):
            raise InvalidArgument(f"type: one of {', '.join(EVENT_TYPES)}")
        if not all(TASK_ID.fullmatch(name) for name in task_ids):
            raise InvalidArgument("task_id: 32 hexadecimal digits")
        return cls(frozenset(queues), frozenset(types), frozenset(task_ids))

    def takes(self, event: Event) -> bool:
        return (
            (not self.queues or event.queue in self.queues)
            and (not self.types or event.type in self.types)
            and (not self.task_ids or event.task_id in self.task_ids)
        )


class Reader:
    """One reader's buffer. The feed offers and never waits; the reader takes until `ended`."""

    def __init__(self, wanted: Filter, size: int = BUFFER) -> None:
        self.wanted = wanted
        self.takes_all = wanted == Filter()
        self.ended = asyncio.Event()
        self.overrun = False
        self._size = size
        self._ordinary: deque[Item] = deque()
        self._terminal: deque[Item] = deque()
        self._dropped = 0
        self._interrupted = False
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._terminal)

    def offer(self, text: str, terminal: bool) -> None:
        """Take an event, or lose one: an ordinary one while there are any, otherwise the reader itself."""
        self.offer_item((next(_places), text), terminal)

    def offer_all(self, items: Sequence[tuple[Item, bool]], ordinary: Sequence[Item]) -> None:
        """As `offer` for each, in order; `ordinary` are those of them that are not terminal."""
        if len(ordinary) < len(items):
            for item, terminal in items:
                self.offer_item(item, terminal)
        elif not self.overrun:
            room = max(0, self._size - len(self))
            self._ordinary.extend(ordinary[:room])
            self._dropped += max(0, len(ordinary) - room)
            self._stirred.set()

    def offer_item(self, item: Item, terminal: bool) -> None:
        """As `offer`."""
        if self.overrun:
            return
        if len(self) >= self._size:
            if not terminal:
                self._dropped += 1
                return
            if not self._ordinary:
                self.overrun = True
                self._terminal.clear()
                self.ended.set()
                return
            self._ordinary.popleft()
            self._dropped += 1
        (self._terminal if terminal else self._ordinary).append(item)
        self._stirred.set()

    def interrupted(self) -> None:
        """The subscription broke: events of unknown number are missing."""
        self._interrupted = True
        self._stirred.set()

    async def filled(self) -> int:
        """Wait until there is something to take; how many messages there are."""
        while not (self._ordinary or self._terminal or self._dropped or self._interrupted):
            self._stirred.clear()
            await self._stirred.wait()
        return len(self) + 1

    def take(self) -> str | None:
        """The next message, if there is one. A gap is told before what comes behind it."""
        if self._interrupted:
            self._interrupted = False
            return _notice({"reason": "feed_interrupted", "dropped": None})
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return _notice({"reason": "slow_reader", "dropped": dropped})
        return self._oldest() if self._ordinary or self._terminal else None

    async def next(self) -> str:
        """The next message, as soon as there is one."""
        while True:
            await self.filled()
            if (text := self.take()) is not None:
                return text

    def _oldest(self) -> str:
        ordinary, terminal = self._ordinary, self._terminal
        if not terminal or (ordinary and ordinary[0][0] < terminal[0][0]):
            return ordinary.popleft()[1]
        return terminal.popleft()[1]


class Feed:
    """The subscription of this process and who listens to it. `run` for as long as the service lives."""

    def __init__(self, store: PromptStore, buffer: int = BUFFER) -> None:
        self._store = store
        self._buffer = buffer
        self._readers: set[Reader] = set()
        self._gathered: list[tuple[Event, Item, bool]] = []
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._wanted = asyncio.Event()
        self._ready = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether the service is about to stop: readers go, nobody waits any more."""
        return self._closing

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def run(self) -> None:
        """For ever: subscribe while somebody listens; after a break tell the readers and subscribe again."""
        await supervised("event feed", self._listen)

    @contextlib.asynccontextmanager
    async def reader(self, wanted: Filter) -> AsyncIterator[Reader]:
        """A reader of events from now on."""
        self._hand_out()  # what came before is not for it
        reader = Reader(wanted, self._buffer)
        if self._closing:
            reader.ended.set()
        self._readers.add(reader)
        self._empty.clear()
        self._wanted.set()
        try:
            await self._subscribed()
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._empty.set()
            self._rest()

    @contextlib.asynccontextmanager
    async def waiting_for(self, task_id: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when the task ends, and when the service is about to stop."""
        stirred = asyncio.Event()
        if self._closing:
            stirred.set()
        self._waiters.setdefault(task_id, set()).add(stirred)
        self._wanted.set()
        try:
            await self._subscribed()
            yield stirred
        finally:
            waiters = self._waiters[task_id]
            waiters.discard(stirred)
            if not waiters:
                del self._waiters[task_id]
            self._rest()

    async def farewell(self) -> None:
        """Send everybody home, and wait until the last reader has gone."""
        self.close()
        await self._empty.wait()

    def close(self) -> None:
        """Send every reader and waiter home."""
        self._closing = True
        for reader in self._readers:
            reader.ended.set()
        for waiters in self._waiters.values():
            for stirred in waiters:
                stirred.set()

    async def _listen(self) -> None:
        handed_on = 0
        while True:
            await self._wanted.wait()
            try:
                async with aclosing(self._store.subscribe(self._store.keys.events, self._ready.set)) as messages:
                    async for text in messages:
                        if not self._wanted.is_set():
                            self._ready.clear()
                            break
                        self._hand_on(text)
                        handed_on += 1
                        if handed_on % BREATH == 0:
                            await asyncio.sleep(0)
            except BaseException:
                self._ready.clear()
                self._hand_out()
                for reader in self._readers:
                    reader.interrupted()
                raise

    def _hand_on(self, text: str) -> None:
        try:
            event = Event.parse(text)
        except ValueError:
            return
        terminal = event.type in TERMINAL_EVENTS
        self._gathered.append((event, (next(_places), text), terminal))
        if len(self._readers) <= FEW_READERS:
            self._hand_out()
        elif len(self._gathered) == 1:
            asyncio.get_running_loop().call_later(GATHER_S, self._hand_out)
        if terminal and event.task_id in self._waiters:
            for stirred in self._waiters[event.task_id]:
                stirred.set()

    def _hand_out(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        everything = [(item, terminal) for _, item, terminal in gathered]
        ordinary = [item for item, terminal in everything if not terminal]
        for reader in self._readers:
            if reader.takes_all:
                reader.offer_all(everything, ordinary)
                continue
            for event, item, terminal in gathered:
                if reader.wanted.takes(event):
                    reader.offer_item(item, terminal)

    async def _subscribed(self) -> None:
        if not self._ready.is_set() and not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await self._ready.wait()

    def _rest(self) -> None:
        """Nobody listens: the next message ends the subscription."""
        if not self._readers and not self._waiters:
            self._wanted.clear()


def _notice(metadata: dict[str, object]) -> str:
    """A message about the reader's own connection, in the shape of an event."""
    return json.dumps(
        {
            "event_id": str(uuid4()), "ts": datetime.now(UTC).isoformat(timespec="milliseconds"), "type": DROPPED,
            "task_id": None, "queue": None, "task_type": None, "attempt": None, "worker_id": None, "metadata": metadata,
        },
        separators=(",", ":"),
    )  # fmt: skip


DROPPED = "EVENTS_DROPPED"
"""Type of the message that tells a reader of a gap. It is never published, only put into the reader's own stream."""
