"""What the system and the engine count, for `dtq bench` and for the benchmarks of the project: CPU, commands, percentiles."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds that a process and its threads have used, from the kernel's clock of that process; None where the
    system has no such clock (it is Linux') or the process is gone."""
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return None


def calls_of(info: Mapping[str, Any]) -> Counter[str]:
    """How often each command was called, those inside scripts included, from a parsed INFO commandstats."""
    return Counter({name: int(row["calls"]) for name, row in _stats(info)})


def micros_of(info: Mapping[str, Any]) -> Counter[str]:
    """Microseconds that each command took in all; the time of a script counts the commands it calls once more."""
    return Counter({name: int(row["usec"]) for name, row in _stats(info)})


def percentile(values: Sequence[float], percent: int) -> float:
    """The `percent`th percentile of two or more values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _stats(info: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name.removeprefix("cmdstat_"), row) for name, row in info.items() if name.startswith("cmdstat_")]
