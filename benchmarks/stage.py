"""Where measurements take place: one private engine, worker processes of both sides, the audit.

Every measurement begins on an empty engine and ends with no worker running. A DTQ measurement that `audit verify` does
not confirm is no measurement: the run fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks import bare, gauge
from benchmarks.gauge import Reading, Span
from benchmarks.stamp import SOCKET_VARIABLE
from dtq_core import audit
from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.store import Store
from dtq_local.engine import Engine
from dtq_local.spawn import popen
from dtq_tasks.registry import load

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "bench"
TASK_MODULES = "benchmarks.tasks"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 40.0
STALL_S = 20.0
"""A drain that does not move for this long has failed."""
POLL_S = 0.005


class BenchmarkFailed(Exception):
    """The run proves nothing: a process failed, or the audit found something."""


class Stage:
    """One engine and what talks to it. `folder` holds its data, the logs and the stamp socket."""

    def __init__(self, engine: Engine, folder: Path, max_tasks: int) -> None:
        self.engine = engine
        self.folder = folder
        self.observer = bare.connect(engine.url)
        self.settings: Settings = load_settings(
            redis_url=engine.url, task_modules=TASK_MODULES, max_queue_depth=max_tasks
        )
        self.store = Store.connect(self.settings)
        self.client = Client(self.store, self.settings, registry=load([TASK_MODULES]))
        self._count = 0
        self._log = folder

    @property
    def stamp_path(self) -> str:
        return str(self.folder / "stamp.sock")

    async def close(self) -> None:
        await self.store.close()
        await self.observer.aclose()

    async def clear(self) -> None:
        """An empty engine with its counters at zero."""
        await cast(Any, self.observer).execute_command("FLUSHALL", "SYNC")  # a lazy one would go on while we measure
        await cast(Any, self.observer.config_resetstat())

    async def ledger(self, field: str) -> int:
        """One number of DTQ's ledger; one HGET."""
        return int(await cast(Any, self.observer.hget(self.store.keys.ledger(QUEUE), field)) or 0)

    async def verify(self, expected: int) -> None:
        """Raises BenchmarkFailed unless DTQ's own audit is content and `expected` tasks succeeded."""
        report = await audit.verify(self.store, self.settings)
        if not report.ok:
            raise BenchmarkFailed("audit verify: " + "; ".join(f"{f.kind}: {f.message}" for f in report.findings[:5]))
        if (succeeded := await self.ledger("succeeded")) != expected:
            raise BenchmarkFailed(f"{expected} tasks should have succeeded, {succeeded} did")

    @contextlib.asynccontextmanager
    async def bare_worker(self, batch: int, *, stamp: bool = False) -> AsyncIterator[int]:
        """The worker of the bare loops; its pid, once it reads."""
        argv = [sys.executable, "-m", "benchmarks.bare", "--url", self.engine.url, "--batch", str(batch)]
        async with self._process(argv + ["--stamp"] * stamp, self._bare_is_ready, None) as pid:
            yield pid

    @contextlib.asynccontextmanager
    async def dtq_worker(self, concurrency: int | None = None) -> AsyncIterator[int]:
        """DTQ's worker as a user starts it, `concurrency` None being the default; its pid, once it is ready.

        Raises BenchmarkFailed where it does not end with 0 after SIGTERM.
        """
        argv = [str(Path(sys.executable).parent / "dtq"), "worker", "run", "--queue", QUEUE]
        if concurrency is not None:
            argv += ["--concurrency", str(concurrency)]
        async with self._process(argv, self._dtq_is_ready, 0) as pid:
            yield pid

    async def observe_drain(
        self, pid: int, done: Callable[[], Awaitable[int]], first: int, last: int, own: str
    ) -> Span:
        """What happens from the moment that `done()` is `first` or more until it is `last`.

        So neither the start of the process nor its first tasks are measured. `own` is the command that `done` sends.
        """
        own_commands: Counter[str] = Counter()
        moved_at, earlier = time.monotonic(), -1
        start: Reading | None = None
        skipped = 0
        while True:
            count = await done()
            own_commands[own] += 1
            if count != earlier:
                moved_at, earlier = time.monotonic(), count
            if start is None and count >= first:
                start, skipped = await gauge.read(self.observer, self.engine.pid, pid), count
                own_commands.clear()
            if count >= last:
                break
            if time.monotonic() > moved_at + STALL_S:
                raise BenchmarkFailed(f"{count} of {last} tasks are done and it does not go on: {tail(self._log)}")
            await asyncio.sleep(POLL_S)
        assert start is not None
        end = await gauge.read(self.observer, self.engine.pid, pid)
        return gauge.between(start, end, own_commands, last - skipped)

    @contextlib.asynccontextmanager
    async def _process(
        self, argv: Sequence[str], is_ready: Callable[[], Awaitable[bool]], exit_code: int | None
    ) -> AsyncIterator[int]:
        self._count += 1
        self._log = log = self.folder / f"worker-{self._count}.log"
        environment = os.environ | {
            "DTQ_REDIS_URL": self.engine.url,
            "DTQ_TASK_MODULES": TASK_MODULES,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            SOCKET_VARIABLE: self.stamp_path,
        }
        with log.open("wb") as output:
            process = popen([*argv], cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            await self._await_ready(process, is_ready, log)
            yield process.pid
            if process.poll() is not None:
                raise BenchmarkFailed(f"the worker ended while it was measured: {tail(log)}")
            process.send_signal(signal.SIGTERM)
            try:
                code = await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise BenchmarkFailed(f"the worker does not end after SIGTERM: {tail(log)}") from None
            if exit_code is not None and code != exit_code:
                raise BenchmarkFailed(f"the worker ended with {code}: {tail(log)}")
        finally:
            process.kill()
            process.wait()

    async def _await_ready(
        self, process: subprocess.Popen[bytes], is_ready: Callable[[], Awaitable[bool]], log: Path
    ) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"the worker does not start: {tail(log)}")
            await asyncio.sleep(POLL_S)

    async def _bare_is_ready(self) -> bool:
        groups = await cast(Any, self.observer.xinfo_groups(bare.STREAM))
        return bool(groups and groups[0]["consumers"])

    async def _dtq_is_ready(self) -> bool:
        keys = self.store.keys
        for worker_id in await cast(Any, self.observer.smembers(keys.workers)):
            row = await cast(Any, self.observer.hget(keys.worker(worker_id.decode()), "status"))
            if row in (b"ready", b"busy"):
                return True
        return False


def tail(log: Path) -> str:
    """The last words of a log."""
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:]) or "it said nothing"
