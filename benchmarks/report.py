"""Which figures come out of the samples, what DTQ wants of each, and the table.

A figure with a bare counterpart is compared round by round, so that a slow minute of the machine slows both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.measure import Sample

Samples = dict[str, dict[str, list[Sample]]]
"""By measurement and side ("dtq" or "bare"), one sample per round."""


@dataclass(frozen=True)
class Target:
    """A bound for the median, of the ratio to the bare loop or of the value itself; `offset` is added to the bound."""

    bound: float
    at_least: bool = False
    of_ratio: bool = False
    offset: Callable[[Samples], float] | None = None


@dataclass(frozen=True)
class Figure:
    """One line: `key` of DTQ's samples of one measurement beside `bare_key` of the bare loop's (None: no counterpart)."""

    measurement: str
    label: str
    key: str
    target: Target | None = None
    bare_key: str | None = None
    scale: float = 1.0
    bare_measurement: str | None = None


def _faster(bound: float) -> Target:
    return Target(bound, at_least=True, of_ratio=True)


def _one_and_a_half_round_trips(samples: Samples) -> float:
    """What a start may take beyond the bare loop's, in ms."""
    rounds = samples["latency"]["bare"]
    return statistics.median(s["p50"] + 1.5 * s["ping_p50"] for s in rounds)


def _imports_mb(samples: Samples) -> float:
    rounds = samples.get("memory", {}).get("bare")
    return statistics.median(s["imports_rss"] for s in rounds) / 1e6 if rounds else 45.0


FIGURES = (
    Figure("drain", "drain, concurrency 100 · tasks/s (bare: 32 a trip)", "per_s", _faster(0.40), "per_s"),
    Figure("drain", "  worker CPU · s per 1,000", "worker_cpu", Target(0.05), "worker_cpu"),
    Figure("drain", "  engine CPU · s per 1,000", "engine_cpu", Target(0.05), "engine_cpu"),
    Figure("drain", "  engine commands per task", "commands", Target(14), "commands"),
    Figure("drain", "  requests per task", "requests", None, "requests"),
    Figure("drain", "  round trips per task", "round_trips", None, "round_trips"),
    Figure("drain", "  worker RSS after it · MB", "rss", Target(20, offset=_imports_mb), "rss", 1e-6),
    Figure("drain-default", "drain, default concurrency · tasks/s (bare: 1 a trip)", "per_s", _faster(1.2), "per_s"),
    Figure("drain-default", "  worker CPU · s per 1,000", "worker_cpu", None, "worker_cpu"),
    Figure("drain-default", "  engine CPU · s per 1,000", "engine_cpu", None, "engine_cpu"),
    Figure("drain-default", "  engine commands per task", "commands", None, "commands"),
    Figure("drain-default", "  round trips per task", "round_trips", None, "round_trips"),
    Figure("submit", "submit one by one · tasks/s (bare: one EVALSHA, same writes)", "per_s", _faster(0.85), "per_s"),
    Figure("submit", "  producer CPU · s per 1,000", "producer_cpu", None, "producer_cpu"),
    Figure("submit", "  engine CPU · s per 1,000", "engine_cpu", None, "engine_cpu"),
    Figure("submit", "  engine commands per task", "commands", Target(14), "commands"),
    Figure("submit-many", "submit_many · tasks/s (bare: XADD pipeline)", "per_s", _faster(0.4), "per_s"),
    Figure("submit-many", "  producer CPU · s per 1,000", "producer_cpu", None, "producer_cpu"),
    Figure("submit-many", "  engine CPU · s per 1,000", "engine_cpu", None, "engine_cpu"),
    Figure("submit-many", "  engine commands per task", "commands", None, "commands"),
    Figure(
        "latency", "submit → start, idle worker · p50 ms", "p50", Target(0, offset=_one_and_a_half_round_trips), "p50"
    ),
    Figure("latency", "  p99 ms", "p99", Target(4.0), "p99"),
    Figure("latency", "  p50 ms of the fastest priority", "fastest_band"),
    Figure("latency", "  p50 ms of the slowest priority", "slowest_band"),
    Figure("idle", "idle worker · round trips/s", "round_trips_per_s", Target(2.0), "round_trips_per_s"),
    Figure("idle", "  worker CPU · %", "worker_cpu_percent", Target(0.3), "worker_cpu_percent"),
    Figure("idle", "  engine commands/s", "commands_per_s", None, "commands_per_s"),
    Figure("idle", "  engine CPU · %", "engine_cpu_percent", None, "engine_cpu_percent"),
    Figure("idle", "  worker RSS · MB", "rss", Target(20, offset=_imports_mb), "rss", 1e-6),
    Figure("memory", "queued task, 100 B payload, engine's defaults · bytes", "per_task_64", Target(1800), "per_task"),
    Figure("memory", "  with hash-max-listpack-value 512 · bytes", "per_task_512", Target(850), "per_task"),
)


@dataclass(frozen=True)
class Line:
    """A figure over all rounds: medians, the ratio's median, and the extremes of what the target looks at."""

    label: str
    dtq: float
    bare: float | None
    ratio: float | None
    low: float
    high: float
    target: str
    met: bool | None


def lines(samples: Samples) -> Iterator[Line]:
    """The figures of the measurements that were made."""
    for figure in FIGURES:
        if figure.measurement in samples:
            yield _line(figure, samples)


def _line(figure: Figure, samples: Samples) -> Line:
    sides = samples[figure.measurement]
    dtq = [s[figure.key] * figure.scale for s in sides["dtq"]]
    bare = [s[figure.bare_key] * figure.scale for s in sides["bare"]] if figure.bare_key else None
    ratios = [d / b for d, b in zip(dtq, bare, strict=True)] if bare and all(bare) else None
    ratio = statistics.median(ratios) if ratios else None
    target, met = figure.target, None
    text = ""
    if target is not None:
        judged = ratio if target.of_ratio and ratio is not None else statistics.median(dtq)
        bound = target.bound + (target.offset(samples) if target.offset else 0.0)
        met = judged >= bound if target.at_least else judged <= bound
        text = f"{'≥' if target.at_least else '≤'} {_number(bound)}{' ×' if target.of_ratio else ''}"
    shown = ratios or dtq
    return Line(
        figure.label,
        statistics.median(dtq),
        statistics.median(bare) if bare else None,
        ratio,
        min(shown),
        max(shown),
        text,
        met,
    )


def table(samples: Samples) -> str:
    """The table for people. The spread is that of the ratios, where there is one, over the rounds."""
    head = ("figure", "DTQ", "bare", "ratio", "spread", "target", "")
    rows = [head]
    for line in lines(samples):
        rows.append(
            (
                line.label,
                _number(line.dtq),
                "–" if line.bare is None else _number(line.bare),
                "–" if line.ratio is None else f"{_number(line.ratio)} ×",
                f"{_number(line.low)} … {_number(line.high)}",
                line.target or "–",
                {True: "met", False: "missed", None: ""}[line.met],
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(_padded(row, widths) for row in rows)


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others, last = row
    cells = [
        first.ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=False)),
        last,
    ]
    return "  ".join(cells).rstrip()


def costs(samples: Samples, top: int = 12) -> str:
    """Where the engine's time goes, command by command: calls and microseconds per task, medians over the rounds."""
    out = []
    for measurement, sides in samples.items():
        names = {k.removeprefix("usec_") for s in sides["dtq"] for k in s if k.startswith("usec_")}
        if not names:
            continue
        rows = []
        for name in names:
            calls = statistics.median(s.get(f"cmd_{name}", 0.0) for s in sides["dtq"])
            micros = statistics.median(s.get(f"usec_{name}", 0.0) for s in sides["dtq"])
            if calls >= 0.005:
                rows.append((micros, calls, name))
        cells = [f"{name} {calls:.2f} × {micros / calls:.2f} µs" for micros, calls, name in sorted(rows)[::-1][:top]]
        out.append(f"{measurement}: " + " · ".join(cells))
    return "\n".join(out)


def _number(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.995 else f"{value:.3f}".rstrip("0").rstrip(".") if size else "0"
