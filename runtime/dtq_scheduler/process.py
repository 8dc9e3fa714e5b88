"""The scheduler as a process of its own, so that delays end and retries move with zero workers (decision 15)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal

from dtq_core import log
from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.periodic import every
from dtq_core.store import Store
from dtq_scheduler.scheduler import Scheduler

logger = logging.getLogger("dtq.scheduler")


def run(settings: Settings) -> int:
    """Schedule until SIGTERM or SIGINT, then give the lock back. Returns the exit status. Raises InvalidConfig."""
    return asyncio.run(_main(settings))


async def _main(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    log.capture_loop_errors(loop)
    store = Store.connect(settings)
    scheduler = Scheduler(store, settings)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    logger.info("scheduler started")
    steps = loop.create_task(every("scheduler", scheduler.step, scheduler.interval_s))
    try:
        await stop.wait()
    finally:
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps
        try:
            async with asyncio.timeout(2):
                await scheduler.release_lock()
        except (DtqError, TimeoutError) as exc:
            logger.warning("the lock was not given back and ends by itself: %s", exc)
        await store.close()
    logger.info("scheduler stopped")
    return 0
