"""The scheduler as a process of its own, so that delays end and retries move with zero workers (decision 15)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from dtq_core import log
from dtq_core.config import Settings
from dtq_core.counted import CountedStore
from dtq_core.errors import DtqError
from dtq_core.periodic import every
from dtq_core.probes import Loops, ProbeServer, Troubles
from dtq_core.store import Store
from dtq_core.store.transitions import Ended
from dtq_scheduler.scheduler import Scheduler

logger = logging.getLogger("dtq.scheduler")


def run(settings: Settings) -> int:
    """Schedule until SIGTERM or SIGINT, then give the lock back. Returns the exit status.

    Raises InvalidConfig, and RedisUnavailable when Redis cannot be reached at start.
    """
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: os._exit(0))  # the lock is not ours yet
    return asyncio.run(_main(settings))


async def _main(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    log.capture_loop_errors(loop)
    store = CountedStore.connect(settings)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    try:
        await store.send(("TIME",))  # a PING is refused after a failed write, which may pass
    except DtqError:
        await store.close()
        raise
    loops = Loops(settings.visibility_timeout_s)
    on_ended, probes = _telemetry(store, settings, loops)
    scheduler = Scheduler(store, settings, on_ended)
    logger.info("scheduler started")
    steps = loop.create_task(every("scheduler", loops.watch("scheduler", scheduler.step), scheduler.interval_s))
    loops.add("scheduler", steps.done)
    try:
        await stop.wait()
    finally:
        loops.stopping = True
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps
        try:
            async with asyncio.timeout(2):
                await scheduler.release_lock()
        except (DtqError, TimeoutError) as exc:
            logger.warning("the lock was not given back and ends by itself: %s", exc)
        if probes is not None:
            probes.shutdown()
        await store.close()
    logger.info("scheduler stopped")
    return 0


def _telemetry(store: Store, settings: Settings, loops: Loops) -> tuple[Callable[[Ended], None], ProbeServer | None]:
    """What counts tasks that a release ended, and the server of DTQ_METRICS_PORT. Raises InvalidConfig."""
    if not settings.metrics_port:
        return (lambda task: None), None
    from dtq_core.metrics import OTHER, Metrics
    from dtq_core.probes import serve

    metrics = Metrics()
    store.counted = metrics.redis

    async def not_ready() -> Troubles:
        await store.ping()
        return {}

    def on_ended(task: Ended) -> None:
        # This process knows no handlers, so nobody vouches for the type.
        metrics.completed(task.queue, OTHER, task.status)

    return on_ended, serve(settings, metrics, loops.troubles, not_ready)
