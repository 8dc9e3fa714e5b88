"""Run the measurements in interleaved rounds and print the table. See `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

import uvloop

from benchmarks import measure, report
from benchmarks.measure import Measure
from benchmarks.report import Samples
from benchmarks.stage import BenchmarkFailed, Stage
from dtq_core.errors import DtqError
from dtq_local.engine import Engine

Plan = dict[str, tuple[int, dict[str, Measure]]]
"""By measurement: how many tasks, and what measures each side."""


def _plan(tasks: int) -> Plan:
    fewer, few = max(400, tasks // 4), max(200, tasks // 100)
    return {
        "drain": (
            tasks,
            {
                "bare": partial(measure.drain_bare, batch=32),
                "dtq": partial(measure.drain_dtq, concurrency=100),
            },
        ),
        "drain-default": (
            fewer,
            {
                "bare": partial(measure.drain_bare, batch=1),
                "dtq": partial(measure.drain_dtq, concurrency=None),
            },
        ),
        "submit": (fewer, {"bare": measure.submit_bare, "dtq": measure.submit_dtq}),
        "submit-many": (tasks, {"bare": measure.submit_many_bare, "dtq": measure.submit_many_dtq}),
        "latency": (few, {"bare": measure.latency_bare, "dtq": measure.latency_dtq}),
        "idle": (0, {"bare": measure.idle_bare, "dtq": measure.idle_dtq}),
        "memory": (tasks, {"bare": measure.memory_bare, "dtq": measure.memory_dtq}),
    }


async def _run(engine: Engine, folder: Path, plan: Plan, rounds: int) -> Samples:
    stage = Stage(engine, folder, max_tasks=10 * max(count for count, _ in plan.values()) + 10_000)
    samples: Samples = {name: {side: [] for side in sides} for name, (_, sides) in plan.items()}
    try:
        for number in range(rounds):
            for name, (count, sides) in plan.items():
                # The sides take turns in going first, so that neither always has the warmer machine.
                for side in list(sides) if number % 2 == 0 else reversed(list(sides)):
                    print(f"round {number + 1}/{rounds}  {name}  {side} …", file=sys.stderr, flush=True)
                    await stage.clear()
                    samples[name][side].append(await sides[side](stage, count))
    finally:
        await stage.close()
    return samples


def _machine(engine: Engine, options: argparse.Namespace) -> dict[str, str]:
    return {
        "machine": f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "engine": f"{engine.version}, appendonly {'yes' if options.aof else 'no'}, hash-max-listpack-value 512",
        "versions": ", ".join(f"{name} {version(name)}" for name in ("dtq", "redis", "hiredis", "uvloop", "pydantic")),
        "run": f"{options.rounds} rounds, {options.tasks} tasks, payloads of 100 bytes, medians; load {_load()} before",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure DTQ beside bare loops on one private engine; every figure a ratio of one run.",
    )
    names = list(_plan(1))
    parser.add_argument("--only", default=",".join(names), help=f"comma list of: {', '.join(names)}")
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks per drain; the others follow (20000)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument("--engine", metavar="BINARY", help="server to run; default: the embedded one")
    parser.add_argument("--aof", action="store_true", help="with an append-only file, as `dtq up` runs it")
    options = parser.parse_args()
    options.only = [name.strip() for name in options.only.split(",") if name.strip()]
    if unknown := set(options.only) - set(names):
        parser.error(f"--only knows no {', '.join(sorted(unknown))}")
    if options.tasks < 400 or options.rounds < 1:
        parser.error("at least 400 tasks and one round")
    return options


def _engine_options(options: argparse.Namespace) -> Iterator[str]:
    if not options.aof:
        yield from ("--appendonly", "no")


def main() -> int:
    """0 after a whole run, whether or not targets are met; 1 when the run proves nothing."""
    options = _arguments()
    if sys.platform != "linux":
        print("the benchmark reads the CPU clocks of other processes, which only Linux has", file=sys.stderr)
        return 1
    for name in [name for name in os.environ if name.startswith("DTQ_")]:
        del os.environ[name]  # defaults are measured, not what this shell happens to have
    plan = {name: entry for name, entry in _plan(options.tasks).items() if name in options.only}
    with tempfile.TemporaryDirectory(prefix="dtq-bench-") as name:
        try:
            with Engine(Path(name) / "engine", binary=options.engine, args=[*_engine_options(options)]) as engine:
                about = _machine(engine, options)
                samples = uvloop.run(_run(engine, Path(name), plan, options.rounds))
        except (BenchmarkFailed, DtqError) as exc:
            print(f"the benchmark failed: {exc}", file=sys.stderr)
            return 1
    print("\n".join(f"{key:9}{value}" for key, value in about.items()))
    print(f"\n{report.table(samples)}\n\nengine, calls per task × time each:\n{report.costs(samples)}")
    if options.json:
        result = {"about": about, "figures": [asdict(x) for x in report.lines(samples)], "samples": samples}
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
