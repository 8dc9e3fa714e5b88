"""What the system and the engine count: CPU and memory of a process, commands and round trips of the engine.

Linux only: the CPU clock of another process and /proc have no portable twin.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.bare import Connection
from dtq_local.bench.gauge import calls_of, micros_of, process_cpu_s

REQUESTS = frozenset({"eval", "evalsha", "fcall", "blpop", "blmove", "bzpopmin"})
"""What a worker sends; everything else is called by its scripts."""
NOTHING: Counter[str] = Counter()


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its threads have used."""
    used = process_cpu_s(pid)
    if used is None:
        raise RuntimeError(f"process {pid} has no clock any more")
    return used


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no memory any more")


@dataclass(frozen=True)
class Reading:
    """Counters at one moment. `commands` counts those that scripts call too; `reads` are packets from clients."""

    at_s: float
    engine_cpu_s: float
    worker_cpu_s: float
    reads: int
    commands: Counter[str]
    micros: Counter[str]


@dataclass(frozen=True)
class Span:
    """What happened between two readings. Commands of ours, the observer's, are taken out."""

    tasks: int
    """Tasks that were done in it."""
    seconds: float
    engine_cpu_s: float
    worker_cpu_s: float
    round_trips: int
    commands: Counter[str] = field(default_factory=Counter)
    micros: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """Script calls and blocking reads: what a client sent, as against what scripts did for it."""
        return sum(n for name, n in self.commands.items() if name in REQUESTS)


async def read(observer: Connection, engine_pid: int, worker_pid: int | None = None) -> Reading:
    info: dict[str, Any] = await cast(Any, observer.info("everything"))
    return Reading(
        time.monotonic(),
        cpu_s(engine_pid),
        cpu_s(worker_pid) if worker_pid is not None else 0.0,
        int(info["total_reads_processed"]),
        calls_of(info),
        micros_of(info),
    )


def between(start: Reading, end: Reading, own: Counter[str], tasks: int = 0) -> Span:
    """The difference of two readings, less the `own` commands that the observer sent, one per round trip."""
    commands = end.commands - start.commands - own - Counter({"info": 1})
    return Span(
        tasks,
        end.at_s - start.at_s,
        end.engine_cpu_s - start.engine_cpu_s,
        end.worker_cpu_s - start.worker_cpu_s,
        end.reads - start.reads - own.total() - 1,
        commands,
        end.micros - start.micros,
    )


async def used_memory(observer: Connection) -> int:
    info: dict[str, Any] = await cast(Any, observer.info("memory"))
    return int(info["used_memory"])


async def ping_s(observer: Connection) -> float:
    """One round trip."""
    start = time.perf_counter()
    await cast(Any, observer.ping())
    return time.perf_counter() - start
