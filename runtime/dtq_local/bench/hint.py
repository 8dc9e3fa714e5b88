"""What limits the rate: a guess from what was measured, in words that say what to do. Pure."""

from __future__ import annotations

BUSY_PERCENT = 75.0
FAR_MS = 1.0


def limit(
    engine_percent: float | None, worker_percent: float | None, round_trip_ms: float, concurrency: int
) -> tuple[str, str]:
    """(code, sentence): engine, worker, round_trips, or nothing that stands out."""
    if engine_percent is not None and engine_percent >= BUSY_PERCENT and engine_percent >= (worker_percent or 0.0):
        return "engine", (
            f"the server: its one thread was busy for {engine_percent:.0f} % of the time. A faster core, or queues on a"
            " second server, help; more workers do not"
        )
    if worker_percent is not None and worker_percent >= BUSY_PERCENT:
        return "worker", (
            f"the worker: it used {worker_percent:.0f} % of one core, and Python uses no more than one. Start more worker"
            " processes; more concurrency does not help"
        )
    if round_trip_ms >= FAR_MS:
        return "round_trips", (
            f"the way to the server: a round trip takes {round_trip_ms:.1f} ms. Raise the concurrency above {concurrency}, so"
            " that more tasks share one, start more workers, or move them nearer"
        )
    if engine_percent is None and worker_percent is None:
        return "unknown", "not known: neither the server nor this system tells how busy it was"
    return "shared", (
        "nothing alone: neither the server's thread nor the worker's was busy all the time. They may share cores with each"
        f" other or with others, or the concurrency of {concurrency} leaves too little to do at once"
    )
