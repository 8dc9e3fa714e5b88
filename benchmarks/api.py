"""The HTTP service beside a bare one: `make bench-api`, or `python -m benchmarks.api --help`.

Each figure is a ratio of two sides that take turns in short slices on one engine, so a slow moment of the machine meets
both; the median of the slices' ratios is reported. Absolute numbers are for orientation only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.api_load import call, request
from benchmarks.bare import connect
from benchmarks.measure import PAYLOAD
from benchmarks.stage import ROOT, BenchmarkFailed, tail
from dtq_local.engine import Engine
from dtq_local.spawn import popen

CONNECTIONS = 32
BATCH = 100
READERS, SLOW = 500, 50
TASK = {"task_type": "noop", "payload": PAYLOAD}
SINGLE = request("/api/v1/tasks", json.dumps(TASK).encode())
MANY = request("/api/v1/tasks:batch", json.dumps({"tasks": [TASK] * BATCH}).encode())

Slice = Callable[[], Awaitable[float]]
"""One measurement of one side; tasks per second."""
Clear = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Figure:
    """One line of the table: what is compared with what, and the least that the median ratio should be."""

    label: str
    dtq: list[float]
    other: list[float]
    target: float

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.dtq, self.other, strict=True)]

    def line(self) -> str:
        ratio = statistics.median(self.ratios)
        verdict = "met" if ratio >= self.target else "missed"
        spread = f"{min(self.ratios):.2f} … {max(self.ratios):.2f}"
        numbers = f"{statistics.median(self.dtq):>9,.0f} {statistics.median(self.other):>9,.0f}"
        return f"{self.label:62}{numbers}  {ratio:5.2f} ×  {spread:16} ≥ {self.target:g} ×  {verdict}"


class Service:
    """A server process of one side."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid

    def submit(self, count: int) -> Slice:
        async def one() -> float:
            return count / await call(self.port, SINGLE, count, CONNECTIONS)

        return one

    def submit_batches(self, count: int) -> Slice:
        async def one() -> float:
            return count / await call(self.port, MANY, count // BATCH, 4, b"200")

        return one


@contextlib.contextmanager
def _serving(name: str, argv: list[str], engine: Engine, folder: Path) -> Iterator[Service]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = folder / f"{name}.log"
    env = os.environ | {
        "DTQ_REDIS_URL": engine.url, "DTQ_TASK_MODULES": "benchmarks.tasks", "DTQ_API_HOST": "127.0.0.1",
        "DTQ_API_PORT": str(port), "DTQ_MAX_QUEUE_DEPTH": "100000000", "DTQ_LOG_LEVEL": "WARNING",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }  # fmt: skip
    with log.open("wb") as output:
        process = popen([part.format(port=port) for part in argv], cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"{name} does not start: {tail(log)}")
            time.sleep(0.02)
        yield Service(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def _readers(port: int) -> AsyncIterator[None]:
    """The readers of the feed, in a process of their own."""
    argv = ["-m", "benchmarks.api_load", "--port", str(port), "--readers", str(READERS), "--slow", str(SLOW)]
    process = popen(
        [sys.executable, *argv], cwd=ROOT, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        if await asyncio.to_thread(process.stdout.readline) != b"open\n":
            raise BenchmarkFailed("the readers could not open their sockets")
        yield
        process.stdin.close()
        if int(await asyncio.to_thread(process.stdout.readline) or 0) == 0:
            raise BenchmarkFailed("the readers have read nothing")
    finally:
        process.kill()
        process.wait()


async def _compare(label: str, ours: Slice, theirs: Slice, rounds: int, target: float, clear: Clear) -> Figure:
    sides: dict[Slice, list[float]] = {ours: [], theirs: []}
    for number in range(-1, rounds):
        print(f"{label}: slice {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for side in (ours, theirs) if number % 2 else (theirs, ours):
            await clear()
            measured = await side()
            if number >= 0:  # the first one only warms up
                sides[side].append(measured)
    return Figure(label, sides[ours], sides[theirs], target)


async def _run(engine: Engine, dtq: Service, bare: Service, tasks: int, rounds: int) -> list[Figure]:
    observer = connect(engine.url)

    async def clear() -> None:
        await cast(Any, observer).execute_command("FLUSHALL", "SYNC")

    async def with_readers() -> float:
        async with _readers(dtq.port):
            return await dtq.submit(tasks)()

    try:
        return [
            await _compare(
                "POST /tasks · tasks/s (bare: one model, one EVALSHA)",
                dtq.submit(tasks), bare.submit(tasks), rounds, 0.7, clear,
            ),
            await _compare(
                f"POST /tasks:batch of {BATCH} · tasks/s (beside: POST /tasks)",
                dtq.submit_batches(tasks * 4), dtq.submit(tasks), rounds, 5.0, clear,
            ),
            await _compare(
                f"POST /tasks with {READERS} readers, {SLOW} slow · tasks/s (beside: none)",
                with_readers, dtq.submit(tasks), rounds, 0.5, clear,
            ),
        ]  # fmt: skip
    finally:
        await observer.aclose()


def main() -> int:
    """0 after a whole run, whether or not targets are met; 1 when the run proves nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000, help="tasks per slice (2000)")
    parser.add_argument("--rounds", type=int, default=7, help="slices of each side (7)")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("DTQ_")]:
        del os.environ[name]
    bare_argv = [
        sys.executable, "-m", "uvicorn", "benchmarks.api_bare:app", "--port", "{port}", "--no-access-log",
        "--no-server-header", "--log-level", "warning",
    ]  # fmt: skip
    dtq_argv = [str(Path(sys.executable).parent / "dtq"), "api", "run"]
    with tempfile.TemporaryDirectory(prefix="dtq-bench-") as name:
        folder = Path(name)
        try:
            with (
                Engine(folder / "engine", args=("--appendonly", "no")) as engine,
                _serving("dtq", dtq_argv, engine, folder) as dtq,
                _serving("bare", bare_argv, engine, folder) as bare,
            ):
                figures = uvloop.run(_run(engine, dtq, bare, options.tasks, options.rounds))
        except BenchmarkFailed as exc:
            print(f"the benchmark failed: {exc}", file=sys.stderr)
            return 1
    print(f"{'figure':62}{'ours':>9} {'other':>9}   ratio    spread           target")
    print("\n".join(figure.line() for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
