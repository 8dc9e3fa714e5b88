"""doctor, demo, bench: to check an installation, to look around in a full one, to measure it."""

from __future__ import annotations

from dtq_cli.arguments import between, queue, seconds, whole
from dtq_cli.tree.branch import Branch


def add(tree: Branch) -> None:
    doctor = tree.command(
        "doctor", "doctor:doctor", "say what is wrong with this installation, and how to mend it",
        more="It reads in bounded steps and changes nothing. Status 0 without an error, 1 with one, 2 where it could not look."
        " docs/doctor.md explains every finding.",
        example="dtq doctor\ndtq doctor --strict --grace-period 60 --json",
    )  # fmt: skip
    doctor.add_argument(
        "--grace-period",
        type=seconds,
        metavar="S",
        help="seconds that a pod has after SIGTERM, to compare with the drain",
    )
    doctor.add_argument("--strict", action="store_true", help="status 1 with a warning too")

    demo = tree.command(
        "demo", "demo:demo", "fill the server with a believable day of tasks, to look around in",
        more="Everything is made by the calls that real producers and workers make, with the clock moved back, so"
        " `dtq audit verify` holds afterwards. DTQ_KEY_PREFIX=demo keeps it apart from real work.",
        example="dtq demo\nDTQ_KEY_PREFIX=demo dtq demo --seed 7 --tasks 2000",
        no_run="refuses where there are tasks already",
    )  # fmt: skip
    demo.add_argument("--seed", type=whole, default=1, metavar="N", help="the same seed, the same day (default 1)")
    demo.add_argument("--tasks", type=between(100, 10_000), default=500, metavar="N", help="how many (default 500)")
    demo.add_argument("--yes", action="store_true", help="although there are tasks already")

    bench = tree.command(
        "bench", "bench:bench", "measure DTQ on this server, beside a bare loop in the same run",
        more="It works under a key prefix of its own and removes it at the end, after Ctrl-C too. Other traffic on the"
        " server slows both sides.",
        example="dtq bench\ndtq bench --tasks 10000 --concurrency 32 --json",
        no_run="takes a while",
    )  # fmt: skip
    bench.add_argument(
        "--tasks", type=between(100, 1_000_000), default=6000, metavar="N", help="how many (default 6000)"
    )
    bench.add_argument(
        "--concurrency", type=between(1, 1000), metavar="C", help="of the worker (default DTQ_WORKER_CONCURRENCY, 4)"
    )
    bench.add_argument("--queue", type=queue, default="bench", metavar="Q", help="name of its queue (default bench)")
