"""The two clients. Each method is a plan and the function that runs it; what they do is in plans.py and batch.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from dtq_client import batch, plans
from dtq_client.address import LONGEST_ATTEMPT_S, address, seconds
from dtq_client.deadline import bounded_client
from dtq_client.exchange import Call
from dtq_client.model import Batch, Cancellation, Submitted, Task, TaskFields, TaskOptions
from dtq_client.transport import run, run_async

TIMEOUT_S = 30.0
ATTEMPT_TIMEOUT_S = 10.0
WAIT_S = 60.0


class _Client:
    """What both have: where to ask, and how long."""

    def __init__(
        self, base_url: str | None, api_key: str | None, *, timeout_s: float, attempt_timeout_s: float
    ) -> None:
        self._address = address(base_url, api_key)
        self.timeout_s = seconds("timeout_s", timeout_s)
        self.attempt_timeout_s = seconds("attempt_timeout_s", attempt_timeout_s, LONGEST_ATTEMPT_S)

    def _call(self, timeout_s: float | None, traceparent: str | None = None) -> Call:
        whole = self.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)
        return Call(whole, self.attempt_timeout_s, plans.trace_headers(traceparent))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.url!r})"


class Client(_Client):
    """Submits tasks over HTTP, waits for them and cancels them. Thread-safe. Make one per process, after any fork.

    `base_url` and `api_key` default to DTQ_API_URL and DTQ_API_KEY. `timeout_s` bounds a whole call with all its tries,
    `attempt_timeout_s` one try. `http` is a client of your own (proxies, certificates): it is
    not closed with this one, and its requests are bounded per read and not as a whole.

    Every method raises InvalidCall before anything is sent, NoAnswer or Unavailable when the time is up, and an ApiError
    for what the service refuses.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout_s=timeout_s, attempt_timeout_s=attempt_timeout_s)
        self._owns_http = http is None
        self._http = http or bounded_client()

    def submit(
        self,
        task_type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Submitted:
        """Submit one task, exactly one, however often it has to be sent.

        Without an `idempotency_key` the call makes up its own. A key that is taken already leads to its task, and is no
        error. Raises InvalidTask, UnknownTaskType, PayloadTooLarge, QueueFull, QueueLimit, Unauthorized, Forbidden.
        """
        call, draft = self._call(timeout_s, traceparent), _draft(task_type, payload, options)
        return run(self._http, self._address, plans.submit(call, draft))

    def submit_many(
        self, tasks: Iterable[TaskFields], *, traceparent: str | None = None, timeout_s: float | None = None
    ) -> Batch:
        """Submit any number of tasks, a thousand in a request. `timeout_s` bounds the whole.

        One answer for each, in order; what fails is an answer too, so look at `refused` or call `raise_refused()`.
        """
        return run(self._http, self._address, batch.submit_many(self._call(timeout_s, traceparent), list(tasks)))

    def get(self, task_id: str, *, timeout_s: float | None = None) -> Task:
        """The task as it is now. Raises TaskNotFound."""
        return run(self._http, self._address, plans.get(self._call(timeout_s), task_id))

    def wait(self, task_id: str, timeout_s: float = WAIT_S) -> Task:
        """The task once it has ended, in whatever way. Lost connections and restarts of the service do not end the wait.

        Raises WaitTimeout when it has not ended within `timeout_s` seconds, and TaskNotFound.
        """
        return run(self._http, self._address, plans.wait(self._call(timeout_s), task_id))

    def cancel(self, task_id: str, *, timeout_s: float | None = None) -> Cancellation:
        """Cancel a task. Raises TaskTerminal when it has ended in another way, TaskNotFound, Unauthorized, Forbidden."""
        return run(self._http, self._address, plans.cancel(self._call(timeout_s), task_id))

    def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Client):
    """As Client, for asyncio. Belongs to the event loop that first uses it."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout_s=timeout_s, attempt_timeout_s=attempt_timeout_s)
        self._owns_http = http is None
        self._http = http or httpx.AsyncClient()

    async def submit(
        self,
        task_type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Submitted:
        """As Client.submit."""
        call, draft = self._call(timeout_s, traceparent), _draft(task_type, payload, options)
        return await run_async(self._http, self._address, plans.submit(call, draft))

    async def submit_many(
        self, tasks: Iterable[TaskFields], *, traceparent: str | None = None, timeout_s: float | None = None
    ) -> Batch:
        """As Client.submit_many."""
        plan = batch.submit_many(self._call(timeout_s, traceparent), list(tasks))
        return await run_async(self._http, self._address, plan)

    async def get(self, task_id: str, *, timeout_s: float | None = None) -> Task:
        """As Client.get."""
        return await run_async(self._http, self._address, plans.get(self._call(timeout_s), task_id))

    async def wait(self, task_id: str, timeout_s: float = WAIT_S) -> Task:
        """As Client.wait."""
        return await run_async(self._http, self._address, plans.wait(self._call(timeout_s), task_id))

    async def cancel(self, task_id: str, *, timeout_s: float | None = None) -> Cancellation:
        """As Client.cancel."""
        return await run_async(self._http, self._address, plans.cancel(self._call(timeout_s), task_id))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _draft(task_type: str, payload: Mapping[str, Any] | None, options: TaskOptions) -> plans.Draft:
    fields: TaskFields = {"task_type": task_type, "payload": payload, **options}
    return plans.Draft(fields)
