"""Where `dtq bench` takes place: a key prefix of its own on the user's server, a worker process, and its counters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.inspector import Inspector
from dtq_core.periodic import raise_if_cancelled
from dtq_core.store import Store
from dtq_core.store.replies import sound
from dtq_local.bench.gauge import calls_of, process_cpu_s
from dtq_local.bench.tidy import own_prefix
from dtq_local.spawn import popen

START_S = 30.0
STALL_S = 30.0
"""A measurement that does not move for this long has failed."""
POLL_S = 0.005
KEPT_S = 3600
"""How long records of tasks stay if nobody removes them."""


@dataclass(frozen=True)
class Reading:
    """Counters at one moment; None for what the server or the system does not tell."""

    at_s: float
    engine_cpu_s: float | None
    worker_cpu_s: float | None
    commands: Counter[str] | None
    done: int


class Ground:
    """One store under a prefix of its own, and the worker on it."""

    def __init__(self, settings: Settings, queue: str, concurrency: int, most_tasks: int) -> None:
        self.settings = settings.model_copy(
            update={
                "key_prefix": own_prefix(settings.key_prefix),
                "max_queue_depth": most_tasks + 1000,
                "task_retention_s": KEPT_S,
                "result_retention_s": KEPT_S,
                "idem_ttl_s": KEPT_S,
            }
        )
        self.queue = queue
        self.concurrency = concurrency
        self.store = Store.connect(self.settings)
        self.pid = 0

    async def read(self) -> Reading:
        """The counters and how many tasks are done, in one round trip."""
        info, stats, done = await self.store.send(
            ("INFO", "cpu"), ("INFO", "commandstats"), ("HGET", self.store.keys.ledger(self.queue), "succeeded")
        )
        return Reading(
            time.perf_counter(),
            None if isinstance(info, Exception) else _engine_cpu_s(info),
            process_cpu_s(self.pid),
            None if isinstance(stats, Exception) else calls_of(stats),
            int(sound(done) or 0),
        )

    async def until(self, count: Callable[[], Awaitable[int]], wanted: int) -> None:
        """Wait until `count()` is `wanted` or more. Raises DtqError when it stands still."""
        last, moved_at = -1, time.monotonic()
        while (now := await count()) < wanted:
            raise_if_cancelled()
            if now != last:
                last, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at > STALL_S:
                raise DtqError(f"{now} of {wanted} tasks are done, and for {STALL_S:.0f} s it does not go on")
            await asyncio.sleep(POLL_S)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """A worker as a user starts it, once it is ready; killed at the end. Raises DtqError where it does not come up."""
        with tempfile.TemporaryFile() as log:
            process = popen(
                [sys.executable, "-m", "dtq_cli", "worker", "run", "--queue", self.queue, "--concurrency", str(self.concurrency)],
                env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            self.pid = process.pid
            try:
                deadline = time.monotonic() + START_S
                while not await self._worker_is_ready():
                    raise_if_cancelled()
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise DtqError(f"the worker of the benchmark does not start: {_last_words(log)}")
                    await asyncio.sleep(POLL_S)
                yield
            finally:
                process.kill()  # no drain: what it holds is deleted next, and Ctrl-C shall not have to wait for it
                process.wait()

    async def _worker_is_ready(self) -> bool:
        workers = await Inspector(self.store, self.settings).workers()
        return any(worker.status in ("ready", "busy") for worker in workers)

    def _environment(self) -> dict[str, str]:
        """The user's settings, but for what makes this worker ours."""
        return os.environ | {
            "DTQ_REDIS_URL": self.settings.redis_url.get_secret_value(),
            "DTQ_KEY_PREFIX": self.settings.key_prefix,
            "DTQ_TASK_MODULES": "dtq_local.bench.tasks",
            "DTQ_TASK_RETENTION_S": str(KEPT_S),
            "DTQ_RESULT_RETENTION_S": str(KEPT_S),
            "DTQ_IDEM_TTL_S": str(KEPT_S),
            "DTQ_WORKER_ID": "",
            "DTQ_METRICS_PORT": "0",
            "DTQ_LOG_LEVEL": "ERROR",
        }


def _engine_cpu_s(info: dict[str, Any]) -> float | None:
    """Of the thread that runs commands, where it is told apart."""
    for names in (("used_cpu_user_main_thread", "used_cpu_sys_main_thread"), ("used_cpu_user", "used_cpu_sys")):
        if all(name in info for name in names):
            return sum(float(info[name]) for name in names)
    return None


def _last_words(log: Any) -> str:
    log.seek(0)
    lines = log.read()[-4000:].decode(errors="replace").splitlines()
    return lines[-1][:300] if lines else "it said nothing"
