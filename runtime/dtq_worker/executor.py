"""One task from its delivery to its settlement: invoke → decide → settle. Also watches deadlines and lost leases.

The outcome is a value, the decision is pure, and only the settler writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Callable
from types import SimpleNamespace

from dtq_core.config import Settings
from dtq_core.log import RateLimited
from dtq_core.retry import Failed, Outcome, RetryPolicy, TimedOut, decide
from dtq_core.store import Delivery
from dtq_core.store.transitions import Settling
from dtq_core.task import TaskStatus
from dtq_core.tracing import joined, split, tracing
from dtq_tasks.registry import AnyHandler, Registry
from dtq_worker.children import in_handler
from dtq_worker.inflight import InFlight, Key, Run, Stop
from dtq_worker.invoke import context_of, invoke, stopped
from dtq_worker.looptick import LoopTick
from dtq_worker.settler import Settler
from dtq_worker.threads import Threads

logger = logging.getLogger("dtq.worker")
_limited = RateLimited(logger)

WATCH_INTERVAL_S = 0.05
IDLE_TICK_S = 0.5
"""How often the loop of an idle worker shows that it turns."""
STOP_GRACE_S = 1.0
"""How long a coroutine may take to end after it was cancelled, before its task is settled without it."""


class Executor:
    """Starts runs and brings each to exactly one decision. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        registry: Registry,
        inflight: InFlight,
        settler: Settler,
        on_start: Callable[[Delivery], None] = lambda delivery: None,
    ) -> None:
        self.settings = settings
        self.worker_id = worker_id
        self.registry = registry
        self.inflight = inflight
        self.settler = settler
        self._on_start = on_start
        self.state = SimpleNamespace()
        self.policy = RetryPolicy.of(settings)
        self.tick = LoopTick(
            inflight,
            STOP_GRACE_S + settings.visibility_timeout_s,
            settings.drain_timeout_s,
            settings.heartbeat_interval_s,
        )
        self._tracing = tracing()
        self._threads = Threads()
        self._rng = random.Random()
        self._work = asyncio.Event()

    def start(self, delivery: Delivery) -> bool:
        """Begin to run a delivery; False where this very start is known already (a late or doubled answer)."""
        key = (delivery.task_id, delivery.fence)
        if self.inflight.knows(key):
            return False
        now = time.monotonic()
        run = Run(delivery, self.registry.handlers[delivery.task_type], now, now + delivery.timeout_ms / 1000)
        run.is_async = run.handler.is_async
        self.inflight.add(run)
        run.task = asyncio.get_running_loop().create_task(self._execute(run))
        self._work.set()
        self._on_start(delivery)
        return True

    async def _execute(self, run: Run) -> None:
        run.began = True
        in_handler.set(True)
        if run.stop is not None:
            self.inflight.handler_ended(run)
            return self.conclude(run, stopped(run))
        if self._tracing is None:
            return self.conclude(
                run, await self._invoke(run, split(run.delivery.trace)[0] if run.delivery.trace else "")
            )
        with self._tracing.attempt(run.delivery) as span:
            run.extra["trace"] = joined(run.delivery.trace, span.traceparent)
            outcome = await self._invoke(run, span.traceparent)
            span.ended(outcome)
        return self.conclude(run, outcome)

    async def _invoke(self, run: Run, traceparent: str) -> Outcome | None:
        context = context_of(run, self.worker_id, self.state, traceparent)
        ended = self.inflight.handler_ended
        return await invoke(run, context, self._threads, lambda: ended(run), self.settings.result_max_bytes)

    def conclude(self, run: Run, outcome: Outcome | None) -> None:
        """Decide about a run, once. None means that nothing may be written: the entry stays for whoever owns it."""
        if run.decided:
            return
        run.decided = True
        if outcome is None:
            self.inflight.settled(run)
            return
        d = run.delivery
        duration_ms = max(0, round((time.monotonic() - run.started) * 1000))
        delay_s = None
        if isinstance(outcome, (Failed, TimedOut)):
            delay_s = self._delay_s(run)
        settlement = decide(outcome, d.attempt, d.max_attempts, self.policy, self._rng, delay_s)
        record = ""
        if settlement.status is TaskStatus.RETRYING:
            record = _record(d, self.worker_id, duration_ms, settlement.error_class, settlement.error_message,
                             settlement.retry_delay_ms or 0)  # fmt: skip
        trace = run.extra.get("trace", "")
        self.settler.put(run, Settling(d, settlement, duration_ms, record, trace), outcome)

    def stop_all(self, why: Stop) -> None:
        """Stop every coroutine. A thread cannot be stopped: what it does is written if the task is still ours then."""
        for run in self.inflight.runs():
            if run.is_async or why is Stop.DRAIN:
                self._stop(run, why)

    def lose(self, key: Key) -> None:
        """Another worker owns the task: stop its handler, write nothing."""
        run = self.inflight.get(key)
        if run is not None and not run.settled:
            logger.warning(
                "task %s was taken over by another worker; this run is stopped and writes nothing", key[0],
                extra=_fields(run.delivery),
            )  # fmt: skip
            self._stop(run, Stop.LOST)
            self.conclude(run, None)

    def cancel(self, key: Key) -> None:
        """Somebody asked to cancel the task. A thread runs on; its settlement is written as CANCELLED."""
        run = self.inflight.get(key)
        if run is not None and run.stop is None and run.is_async:
            self._stop(run, Stop.CANCEL)

    async def watch(self) -> None:
        """For ever: stop runs past their deadline, and settle those whose handler ignores it."""
        while True:
            if not len(self.inflight):
                await self._wait_for_work()
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.tick.turned()
            now = time.monotonic()
            for run in self.inflight.runs():
                if run.decided:
                    continue
                if run.stop is None and now >= run.deadline:
                    self._stop(run, Stop.TIMEOUT)
                elif run.stop is not None and now - run.stopped_at > STOP_GRACE_S:
                    _limited.log(
                        logging.WARNING, f"ignores {run.delivery.task_type}",
                        "a handler of %s ignores its cancellation; its slot stays taken until it ends", run.delivery.task_type,
                    )  # fmt: skip
                    self.conclude(run, stopped(run))

    async def _wait_for_work(self) -> None:
        self._work.clear()
        while not self._work.is_set():
            self.tick.turned()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_TICK_S):
                    await self._work.wait()

    def _stop(self, run: Run, why: Stop) -> None:
        run.tell_to_stop(why)

    def _delay_s(self, run: Run) -> float | None:
        asked = run.extra.get("delay_s")
        return asked if asked is not None else _handler_delay(run.handler, run.delivery.attempt)


def _handler_delay(handler: AnyHandler, attempt: int) -> float | None:
    try:
        return handler.delay_s(attempt)
    except BaseException:  # a SystemExit in it is no wish to end the worker
        logger.exception("the backoff of %s failed; the installation's is used", handler.name)
        return None


def _record(d: Delivery, worker_id: str, duration_ms: int, error_class: str, message: str, delay_ms: int) -> str:
    """The attempt as a JSON object without its closing brace: the script adds the moment on the server's clock."""
    return json.dumps(
        {
            "attempt": d.attempt,
            "started_at": d.started_at_ms,
            "worker_id": worker_id,
            "duration_ms": duration_ms,
            "error_class": error_class,
            "error_message": message,
            "retryable": True,
            "retry_delay_ms": delay_ms,
        },
        separators=(",", ":"),
    )[:-1]


def _fields(d: Delivery) -> dict[str, object]:
    return {"task_id": d.task_id, "task_type": d.task_type, "queue": d.queue, "attempt": d.attempt}
