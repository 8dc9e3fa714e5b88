"""Behind the `dtq` pytest fixture: a queue, a scheduler and a worker in the test's own process, with a stopped clock.

It runs the scripts, the scheduler's step and the executor that production runs; only the loops around them are its own,
so that a test decides when something happens. Every script is handed the bed's time instead of the server's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch
from uuid import uuid4

from dtq_core.admission import Admission
from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.errors import StoreError
from dtq_core.inspector import DeadLetter, Inspector
from dtq_core.producer import submit_blocking
from dtq_core.store import Delivery, Store, SyncStore
from dtq_core.task import Task
from dtq_local.engine import Engine
from dtq_scheduler.scheduler import Scheduler
from dtq_tasks import producer
from dtq_tasks.producer import SubmittedTask
from dtq_tasks.registry import AnyHandler, Hook, registry
from dtq_worker import report
from dtq_worker.children import task_factory
from dtq_worker.executor import Executor
from dtq_worker.inflight import InFlight
from dtq_worker.settler import Settler

T = TypeVar("T")
WORKER_ID = "worker-testbed0"
_LOOK_S = 0.5
_LOOP_ENDED = "the event loop of `dtq` has ended: a callback that a handler left on it raised SystemExit or the like"
_THROW_AWAY = ("--appendonly", "no", "--save", "")


class Testbed:
    """One embedded engine per test session; `fresh()` gives each test an empty bed on it. Raises EngineMissing."""

    __test__ = False  # for pytest, which would take a class of this name for tests

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dtq-test-", ignore_cleanup_errors=True)
        self._engine = Engine(self._folder.name, args=_THROW_AWAY)

    def __enter__(self) -> Self:
        self._engine.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._engine.stop()
        self._folder.cleanup()

    @contextmanager
    def fresh(self, **settings: Any) -> Iterator[Bed]:
        """An empty bed. What the test registers, the producer and the DTQ_REDIS_URL it sees end with it.

        `settings` are fields of Settings. Retries have no jitter unless they say so, so their delays are exact.
        """
        fields = {"key_prefix": "dtq", "retry_jitter": 0.0, **settings, "redis_url": self._engine.url}
        foreign = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        with patch.dict(os.environ, foreign, clear=True):  # a test must not depend on what this shell happens to have
            wanted = load_settings(**fields)
        environment = {"DTQ_REDIS_URL": self._engine.url, "DTQ_KEY_PREFIX": wanted.key_prefix}
        copies = {name: getattr(registry, name).copy() for name in ("handlers", "startup", "shutdown")}
        with (
            patch.dict(os.environ, environment),
            patch.multiple(registry, **copies),
            closing(Bed(wanted)) as bed,
            patch.object(producer, "_current", bed.producer),
        ):
            yield bed


class Bed:
    """What a test gets as `dtq`. Its methods block, in tests with and without an event loop; handlers run on its own.

    Tasks run one at a time in the order of priorities, so a test sees the same each time. Handlers live in real time:
    their timeouts are real, and the TTLs of Redis keys go by the engine's clock.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now_ms = time.time_ns() // 1_000_000
        """The bed's time in epoch milliseconds; only `advance` moves it."""
        self.producer = _Producer(self)
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(task_factory)
        self._thread = threading.Thread(target=self._loop.run_forever, name="dtq-testbed", daemon=True)
        self._thread.start()
        self._room = self._wait_for(_Room.open(self))

    def submit(self, handler: AnyHandler | str, payload: Any = None, **fields: Any) -> str:
        """Submit a task with the other fields of a submission; returns its id.

        By handler it is `handler.submit(payload)`, checked against the model; by name it is what a client of the API
        sends: any JSON object. Raises what producers meet: InvalidPayload, InvalidTask, UnknownTaskType, QueueFull …
        """
        if isinstance(handler, str):
            return self.producer.submit(handler, {} if payload is None else payload, fields).task_id
        return handler.options(**fields).submit(payload).task_id

    def run_until_idle(self, at_most: int = 1000) -> int:
        """Release what is due and run every task there is, until nothing is left to do now; how many runs that took.

        Raises AssertionError after `at_most` runs: tasks that submit tasks may never come to an end.
        """
        return self._wait_for(self._room.work(at_most))

    def advance(self, seconds: float) -> None:
        """Move the clock. What becomes due by that runs with the next `run_until_idle`."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self.now_ms += round(seconds * 1000)

    def task(self, task_id: str) -> Task:
        """The task as its record says now. Raises TaskNotFound."""
        return self._wait_for(self._room.inspector.task(task_id))

    def result(self, task_id: str) -> Any:
        """What the handler returned, from JSON; None while there is none."""
        return self._wait_for(self._room.inspector.result(task_id))

    def dead_letters(self, queue: str | None = None) -> list[DeadLetter]:
        """The dead letters, newest first."""
        return self._wait_for(self._room.inspector.dead_letters(queue=queue, limit=1000)).items

    def cancel(self, task_id: str) -> None:
        """As dtq_core.client.Client.cancel."""
        self._wait_for(self._room.client.cancel(task_id))

    def requeue(self, task_id: str) -> None:
        """Put a dead letter back on its queue, as dtq_core.client.Client.requeue."""
        self._wait_for(self._room.client.requeue(task_id))

    def pause(self, queue: str = "default") -> None:
        """Stop new starts on a queue, as Client.pause."""
        self._wait_for(self._room.client.pause(queue))

    def resume(self, queue: str = "default") -> None:
        """Let a paused queue start tasks again."""
        self._wait_for(self._room.client.resume(queue))

    def close(self) -> None:
        """Run the shutdown functions and let go of everything."""
        try:
            if self._thread.is_alive():  # else the test has heard of it already
                self._wait_for(self._room.close())
        finally:
            self.producer.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("of `dtq`, a handler may use submit only: the rest waits for handlers to end")
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError(_LOOP_ENDED)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while not concurrent.futures.wait([future], timeout=_LOOK_S).done:
            if not self._thread.is_alive():
                raise RuntimeError(_LOOP_ENDED)
        return future.result()


class _Producer:
    """What `handler.submit(…)` uses while a bed is made: as production's, but on the bed's time."""

    def __init__(self, bed: Bed) -> None:
        self._store = SyncStore.connect(bed.settings, now_ms=lambda: bed.now_ms)
        self._admission = Admission(bed.settings, self._store.calls, registry)

    def submit(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        return submit_blocking(self._store, self._admission, {"task_type": task_type, "payload": payload, **fields})

    async def submit_async(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        return await asyncio.to_thread(self.submit, task_type, payload, fields)

    def close(self) -> None:
        self._store.close()


class _Room:
    """The parts of a worker and a scheduler without their loops. Lives on the bed's event loop."""

    def __init__(self, bed: Bed, store: Store) -> None:
        self.store = store
        self.client = Client(store, bed.settings, actor="test", registry=registry)
        self.inspector = Inspector(store, bed.settings)
        self._scheduler = Scheduler(store, bed.settings)
        self._inflight = InFlight(concurrency=1)
        self._settler = Settler(self._inflight, report.settled)
        self._executor = Executor(bed.settings, WORKER_ID, registry, self._inflight, self._settler)
        self._watch = asyncio.create_task(self._executor.watch())
        self._started = False

    @classmethod
    async def open(cls, bed: Bed) -> _Room:
        store = Store.connect(bed.settings, now_ms=lambda: bed.now_ms)
        (emptied,) = await store.send(("FLUSHALL",))
        if isinstance(emptied, Exception):
            raise StoreError(str(emptied))
        return cls(bed, store)

    async def work(self, at_most: int) -> int:
        if not self._started:
            await self._call(registry.startup)
            self._started = True
        runs = 0
        while True:
            while await self._scheduler.step() == 0:
                pass
            fetched = await self._fetch()
            if fetched is None:
                return runs
            for delivery in fetched:
                assert runs < at_most, f"not idle after {at_most} runs; the next would be {delivery.task_type}"
                runs += 1
                await self._run(delivery)

    async def close(self) -> None:
        try:
            if self._started:
                await self._call(reversed(registry.shutdown))
        finally:
            self._watch.cancel()
            await self.store.close()

    async def _fetch(self) -> list[Delivery] | None:
        """The next task to run; an empty list if the gate ended others, None when there is nothing to do now."""
        queues = await self.inspector.queue_names()
        if not queues:
            return None
        calls = self.store.calls
        await self.store.run(calls.ensure_groups(queues))
        fetch = calls.fetch(WORKER_ID, "a", uuid4().hex, 1, queues, sorted(registry.handlers))
        reply = await self.store.run(fetch)
        if reply.problems:
            raise StoreError("; ".join(reply.problems))
        for ended in reply.ended:
            report.ended(ended)
        return reply.deliveries if reply.deliveries or reply.ended or reply.deferred else None

    async def _run(self, delivery: Delivery) -> None:
        """Execute one task and write what became of it, as a worker does."""
        self._executor.start(delivery)
        while self._inflight.runs():
            self._inflight.changed.clear()
            if not len(self._settler):
                await self._inflight.changed.wait()
            if batch := self._settler.take():
                settle = self.store.calls.settle(WORKER_ID, [pending.settling for pending in batch])
                answers = await self.store.run(settle)
                if not self._settler.apply(batch, answers):
                    raise StoreError(f"the end of task {delivery.task_id} cannot be written")

    async def _call(self, hooks: Iterable[Hook]) -> None:
        for hook in hooks:
            done = hook(self._executor.state)
            if inspect.isawaitable(done):
                await done
