"""One function per measurement and side. Each starts on an empty engine and returns one sample: numbers by name.

Latencies are in milliseconds, CPU in seconds per 1,000 tasks, memory in bytes.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from benchmarks import bare, gauge
from benchmarks.gauge import Span
from benchmarks.stage import QUEUE, BenchmarkFailed, Stage
from benchmarks.stamp import StampReceiver
from dtq_core.submission import encode_json
from dtq_local.bench.gauge import percentile

Sample = dict[str, float]
Measure = Callable[[Stage, int], Awaitable[Sample]]

WARM_UP = 0.05
"""Share of the tasks that is done before a drain is measured."""
LATENCY_PAUSE_S = (0.008, 0.016)
"""Between two single tasks: long enough for the worker to be asleep again."""
IDLE_S = 10.0
SETTLE_IN_S = 2.0
_PADDING = 100 - len(encode_json({"data": ""}, "payload"))
PAYLOAD = {"data": "x" * _PADDING}
"""100 bytes as compact JSON."""


# -- drain


async def drain_bare(stage: Stage, tasks: int, batch: int) -> Sample:
    await bare.prepare(stage.observer)
    await bare.submit_many(stage.observer, PAYLOAD, tasks)
    async with stage.bare_worker(batch) as pid:

        async def done() -> int:
            return tasks - await bare.left(stage.observer)

        return _drained(await stage.observe_drain(pid, done, round(tasks * WARM_UP), tasks, "xlen"), pid)


async def drain_dtq(stage: Stage, tasks: int, concurrency: int | None) -> Sample:
    await _seed(stage, tasks)
    async with stage.dtq_worker(concurrency) as pid:

        async def done() -> int:
            return await stage.ledger("succeeded")

        sample = _drained(await stage.observe_drain(pid, done, round(tasks * WARM_UP), tasks, "hget"), pid)
    await stage.verify(tasks)
    return sample


def _drained(span: Span, pid: int) -> Sample:
    per_task = {f"cmd_{name}": n / span.tasks for name, n in span.commands.most_common()}
    micros = {f"usec_{name}": n / span.tasks for name, n in span.micros.most_common()}
    return {
        "per_s": span.tasks / span.seconds,
        "worker_cpu": span.worker_cpu_s / span.tasks * 1000,
        "engine_cpu": span.engine_cpu_s / span.tasks * 1000,
        "commands": span.commands.total() / span.tasks,
        "requests": span.requests / span.tasks,
        "round_trips": span.round_trips / span.tasks,
        "rss": gauge.rss_bytes(pid),
        **per_task,
        **micros,
    }


# -- submit


async def submit_bare(stage: Stage, tasks: int) -> Sample:
    sha = await cast(Any, stage.observer.script_load(bare.SAME_WRITES))
    return await _submitted(
        stage, tasks, lambda: _times(tasks, lambda: bare.submit_same_writes(stage.observer, sha, QUEUE, PAYLOAD))
    )


async def submit_dtq(stage: Stage, tasks: int) -> Sample:
    await stage.client.submit(_noop())  # the connection is open, the script known
    sample = await _submitted(stage, tasks, lambda: _times(tasks, lambda: stage.client.submit(_noop())))
    await stage.verify(0)
    return sample


async def submit_many_bare(stage: Stage, tasks: int) -> Sample:
    await bare.prepare(stage.observer)
    return await _submitted(stage, tasks, lambda: bare.submit_many(stage.observer, PAYLOAD, tasks))


async def submit_many_dtq(stage: Stage, tasks: int) -> Sample:
    await stage.client.submit(_noop())
    sample = await _submitted(stage, tasks, lambda: _seed(stage, tasks))
    await stage.verify(0)
    return sample


async def _submitted(stage: Stage, tasks: int, produce: Callable[[], Awaitable[None]]) -> Sample:
    start = await gauge.read(stage.observer, stage.engine.pid)
    cpu_before = time.process_time()
    await produce()
    cpu_s = time.process_time() - cpu_before
    span = gauge.between(start, await gauge.read(stage.observer, stage.engine.pid), gauge.NOTHING, tasks)
    return {
        "per_s": tasks / span.seconds,
        "producer_cpu": cpu_s / tasks * 1000,
        "engine_cpu": span.engine_cpu_s / tasks * 1000,
        "commands": span.commands.total() / tasks,
        **{f"cmd_{name}": n / tasks for name, n in span.commands.most_common()},
        **{f"usec_{name}": n / tasks for name, n in span.micros.most_common()},
    }


async def _times(count: int, submit: Callable[[], Awaitable[object]]) -> None:
    for _ in range(count):
        await submit()


# -- latency


async def latency_bare(stage: Stage, tasks: int) -> Sample:
    await bare.prepare(stage.observer)
    with StampReceiver(stage.stamp_path) as stamps:
        async with stage.bare_worker(1, stamp=True):

            async def submit(number: int) -> None:
                await bare.submit(stage.observer, {"n": number, **PAYLOAD})

            delays = await _latencies(stamps, submit, tasks)
        round_trips = []
        for _ in range(tasks):
            await asyncio.sleep(random.uniform(*LATENCY_PAUSE_S))
            round_trips.append(await gauge.ping_s(stage.observer) * 1000)
    return {"p50": percentile(delays, 50), "p99": percentile(delays, 99), "ping_p50": percentile(round_trips, 50)}


async def latency_dtq(stage: Stage, tasks: int) -> Sample:
    """Priorities take turns: a p0 task must start as fast as a p9 task."""
    with StampReceiver(stage.stamp_path) as stamps:
        async with stage.dtq_worker():

            async def submit(number: int) -> None:
                task = {"task_type": "stamp", "queue": QUEUE, "payload": {"n": number, **PAYLOAD}}
                await stage.client.submit({**task, "priority": number % 10})

            delays = await _latencies(stamps, submit, tasks)
    await stage.verify(tasks + 1)
    by_band = [percentile(delays[band::10], 50) for band in range(10)]
    return {
        "p50": percentile(delays, 50),
        "p99": percentile(delays, 99),
        "slowest_band": max(by_band),
        "fastest_band": min(by_band),
        **{f"p{band}_p50": value for band, value in enumerate(by_band)},
    }


async def _latencies(stamps: StampReceiver, submit: Callable[[int], Awaitable[None]], tasks: int) -> Sequence[float]:
    """Milliseconds from before each submission to the start of its handler; the first one only warms up."""
    delays = []
    for number in range(-1, tasks):
        await asyncio.sleep(random.uniform(*LATENCY_PAUSE_S))
        start_ns = time.monotonic_ns()
        await submit(number)
        delays.append((await stamps.next(number, 10.0) - start_ns) / 1e6)
    return delays[1:]


# -- at rest


async def idle_bare(stage: Stage, tasks: int) -> Sample:
    await bare.prepare(stage.observer)
    async with stage.bare_worker(32) as pid:
        return await _at_rest(stage, pid)


async def idle_dtq(stage: Stage, tasks: int) -> Sample:
    """Default settings, the scheduler apart: somebody else is the leader."""
    await cast(Any, stage.observer.set(stage.store.keys.lock, "somebody else", px=600_000))
    async with stage.dtq_worker() as pid:
        sample = await _at_rest(stage, pid)
    await stage.verify(0)
    return sample


async def _at_rest(stage: Stage, pid: int) -> Sample:
    await asyncio.sleep(SETTLE_IN_S)
    start = await gauge.read(stage.observer, stage.engine.pid, pid)
    await asyncio.sleep(IDLE_S)
    span = gauge.between(start, await gauge.read(stage.observer, stage.engine.pid, pid), gauge.NOTHING)
    return {
        "commands_per_s": span.commands.total() / span.seconds,
        "requests_per_s": span.requests / span.seconds,
        "round_trips_per_s": span.round_trips / span.seconds,
        "worker_cpu_percent": 100 * span.worker_cpu_s / span.seconds,
        "engine_cpu_percent": 100 * span.engine_cpu_s / span.seconds,
        "rss": gauge.rss_bytes(pid),
        **{f"cmd_{name}": n / span.seconds for name, n in span.commands.most_common()},
    }


# -- memory


async def memory_bare(stage: Stage, tasks: int) -> Sample:
    """The engine's memory per entry, and the memory of a process that imports DTQ's dependencies and does nothing."""
    await bare.prepare(stage.observer)
    before = await gauge.used_memory(stage.observer)
    await bare.submit_many(stage.observer, PAYLOAD, tasks)
    per_task = (await gauge.used_memory(stage.observer) - before) / tasks
    return {"per_task": per_task, "imports_rss": await asyncio.to_thread(_imports_rss)}


async def memory_dtq(stage: Stage, tasks: int) -> Sample:
    """At the engine's own default and at the recommended setting."""
    sample = {}
    for listpack_value in (64, 512):
        await stage.clear()
        await cast(Any, stage.observer.config_set("hash-max-listpack-value", listpack_value))
        await stage.client.submit(_noop())
        before = await gauge.used_memory(stage.observer)
        await _seed(stage, tasks)
        sample[f"per_task_{listpack_value}"] = (await gauge.used_memory(stage.observer) - before) / tasks
        await stage.verify(0)
    return sample


_IMPORTS = """
import asyncio, hiredis, pydantic, pydantic_settings, redis.asyncio, uvloop
for line in open("/proc/self/status"):
    if line.startswith("VmRSS:"):
        print(line.split()[1])
"""


def _imports_rss() -> float:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024


# -- shared


def _noop() -> dict[str, Any]:
    return {"task_type": "noop", "queue": QUEUE, "payload": PAYLOAD}


async def _seed(stage: Stage, tasks: int) -> None:
    """`tasks` no-op tasks through submit_many, a thousand at a time as a producer with a long list would."""
    for start in range(0, tasks, 1000):
        for answer in await stage.client.submit_many([_noop()] * min(1000, tasks - start)):
            if isinstance(answer, Exception):
                raise BenchmarkFailed(f"a submission was refused: {answer}")
