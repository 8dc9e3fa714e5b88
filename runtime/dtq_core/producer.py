"""What `.submit()` of a handler uses: a producer on Redis, made from the environment at the first submission."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from dtq_core.admission import Admission
from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.errors import DtqError
from dtq_core.store import Store, SyncStore
from dtq_core.tracing import tracing
from dtq_tasks.producer import SubmittedTask
from dtq_tasks.registry import registry


class RedisProducer:
    """Submits tasks, blocking or on the running event loop. Thread-safe; one asyncio client per loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = SyncStore.connect(settings)
        self._admission = Admission(settings, self._store.calls, registry)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()

    def submit(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        """Submit and wait for the answer: one round trip. Raises as dtq_core.client.Client.submit."""
        return submit_blocking(self._store, self._admission, {"task_type": task_type, "payload": payload, **fields})

    async def submit_async(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        """As `submit`, on the running loop."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = Client(Store.connect(self.settings), self.settings, registry=registry)
        answer = await client.submit({"task_type": task_type, "payload": payload, **fields})
        return SubmittedTask(answer.task_id, answer.status, answer.duplicate)


def submit_blocking(store: SyncStore, admission: Admission, raw: dict[str, Any]) -> SubmittedTask:
    """Submit one task through a blocking store. Raises as dtq_core.client.Client.submit."""
    if (spans := tracing()) is not None:
        with spans.submitting([raw]) as (raw,):
            return _submit(store, admission, raw)
    return _submit(store, admission, raw)


def _submit(store: SyncStore, admission: Admission, raw: dict[str, Any]) -> SubmittedTask:
    submission = admission.check(raw)
    call, replicas = admission.call([submission]), store.settings.submit_wait_replicas
    (reply,) = store.run_replicated(call, replicas) if replicas else store.run(call)
    answer = admission.answer(reply, submission)
    if isinstance(answer, DtqError):
        raise answer
    return SubmittedTask(answer.task_id, answer.status, answer.duplicate)


def from_environment() -> RedisProducer:
    """The producer for the DTQ_ variables of this process. Raises InvalidConfig."""
    return RedisProducer(load_settings())
