"""bench: measure DTQ on the user's own server."""

from __future__ import annotations

import argparse
import asyncio
import signal
from dataclasses import asdict

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_cli.output import Column
from dtq_cli.session import Session, run
from dtq_cli.streams import progress
from dtq_local.bench import BenchReport, Wanted, measure

EXIT_TERMINATED = 143


def bench(args: argparse.Namespace) -> int:
    async def look(session: Session) -> BenchReport:
        # As after Ctrl-C: what was written is removed on the way out.
        me = asyncio.current_task()
        if me is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        concurrency = args.concurrency or session.settings.worker_concurrency
        with progress() as tick:
            return await measure(session.settings, Wanted(args.tasks, concurrency, args.queue), tick)

    try:
        report = run(args, look)
    except asyncio.CancelledError:
        return EXIT_TERMINATED
    if wants_json(args):
        output.document(asdict(report))
    else:
        _show(report)
    return 0


def _show(r: BenchReport) -> None:
    rates = [
        Column("TASKS A SECOND"),
        Column("DTQ", right=True),
        Column("BARE LOOP", right=True),
        Column("RATIO", right=True),
        Column("IN ROUNDS", right=True),
    ]
    output.table(
        rates,
        [
            ("submitted, 100 a call", *_compared(r.submit_per_s, r.bare_submit_per_s, r.submit_ratio, r.submit_spread)),
            ("drained by one worker", *_compared(r.drain_per_s, r.bare_drain_per_s, r.drain_ratio, r.drain_spread)),
        ],
        empty="",
    )
    print()
    columns = [Column("ONE TASK, MS UNTIL"), *(Column(name, right=True) for name in ("P50", "P90", "P99"))]
    names = {"submit": "submitted", "start": "started", "end": "done"}
    output.table(
        columns,
        [(names[name], *(f"{ms[p]:.2f}" for p in ("p50", "p90", "p99"))) for name, ms in r.latency_ms.items()],
        empty="",
    )
    print()
    rows = [
        ("tasks", f"{r.tasks}, concurrency {r.concurrency}, {r.rounds} rounds, medians"),
        ("round trip", f"{r.round_trip_ms:.2f} ms"),
        ("server CPU", _percent(r.engine_cpu_percent)),
        ("worker CPU", _percent(r.worker_cpu_percent)),
    ]
    if r.commands_per_task is not None:
        most = ", ".join(f"{name} {n:.1f}" for name, n in list(r.commands.items())[:4])
        rows.append(("commands", f"{r.commands_per_task:.1f} a task: {most}"))
    output.fields(rows)
    print()
    output.paragraph("limit", r.limited_by)
    for note in r.notes:
        output.paragraph("note", note)


def _compared(own: float, bare: float, ratio: float, spread: tuple[float, float]) -> tuple[str, ...]:
    return f"{own:,.0f}", f"{bare:,.0f}", f"{ratio:.2f}", f"{spread[0]:.2f} to {spread[1]:.2f}"


def _percent(value: float | None) -> str:
    return "not told" if value is None else f"{value:.0f} % of one core, while draining"
