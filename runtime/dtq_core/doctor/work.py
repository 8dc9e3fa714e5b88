"""Checks of queues, workers, keys and settings. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dtq_core.doctor.facts import Facts
from dtq_core.doctor.finding import WHY, Finding, NotKnown, Severity, known
from dtq_core.keys import GROUP

ERROR, WARNING, ADVICE = Severity
NAMED = 3
KILL_MARGIN_S = 5.0
"""What a worker needs beyond its drain: to sign off, and to end."""


def groups(facts: Facts) -> Iterator[Finding]:
    bare = [stream for stream in known(facts.streams) if stream.orphaned]
    if bare:
        queues = sorted({stream.queue for stream in bare})
        yield _finding(
            "GROUP_MISSING", WARNING, f"no group {GROUP!r} on {some([s.name for s in bare])}",
            f"start a worker, which makes it: {_serving(facts, queues)}",
        )  # fmt: skip


def dead_consumers(facts: Facts) -> Iterator[Finding]:
    workers = known(facts.workers)
    held: dict[str, int] = {}
    queues: dict[str, None] = {}
    for stream in known(facts.streams):
        for consumer, entries in stream.holders.items():
            if workers.get(consumer, "stopped") in ("stopped", "stale"):
                held[consumer] = held.get(consumer, 0) + entries
                queues[stream.queue] = None
    if held:
        yield _finding(
            "DEAD_CONSUMER", WARNING,
            f"running tasks are held by workers of whom nothing is heard: {sum(held.values())}, by {some(sorted(held))}",
            f"a worker of the queue takes them over after {facts.settings.visibility_timeout_s:g} s:"
            f" {_serving(facts, list(queues))}",
        )  # fmt: skip


def timeouts(facts: Facts) -> Iterator[Finding]:
    s = facts.settings
    if s.task_timeout_ms > s.visibility_timeout_s * 1000:
        yield _finding(
            "TIMEOUT_ABOVE_VISIBILITY", WARNING,
            f"DTQ_TASK_TIMEOUT_MS is {s.task_timeout_ms}, DTQ_VISIBILITY_TIMEOUT_S only {s.visibility_timeout_s:g}",
            f"DTQ_VISIBILITY_TIMEOUT_S={-(-s.task_timeout_ms // 1000)}",
        )  # fmt: skip
    if s.visibility_timeout_s < 2 * s.heartbeat_interval_s:
        yield _finding(
            "LEASE_MARGIN", WARNING,
            f"DTQ_HEARTBEAT_INTERVAL_S is {s.heartbeat_interval_s:g}, DTQ_VISIBILITY_TIMEOUT_S only"
            f" {s.visibility_timeout_s:g}",
            f"DTQ_HEARTBEAT_INTERVAL_S={s.visibility_timeout_s / 3:g}",
        )  # fmt: skip
    if s.drain_timeout_s * 1000 < s.task_timeout_ms:
        yield _finding(
            "DRAIN_BELOW_TIMEOUT", WARNING,
            f"DTQ_DRAIN_TIMEOUT_S is {s.drain_timeout_s:g}, DTQ_TASK_TIMEOUT_MS {s.task_timeout_ms}",
            f"DTQ_DRAIN_TIMEOUT_S={-(-s.task_timeout_ms // 1000)}",
        )  # fmt: skip


def grace_period(facts: Facts) -> Iterator[Finding]:
    grace_s, drain_s = facts.grace_period_s, facts.settings.drain_timeout_s
    if grace_s is None:
        raise NotKnown("--grace-period was not given")
    if drain_s + KILL_MARGIN_S > grace_s:
        yield _finding(
            "DRAIN_ABOVE_GRACE", ERROR,
            f"DTQ_DRAIN_TIMEOUT_S is {drain_s:g} and wants {KILL_MARGIN_S:g} s more; the grace period is {grace_s:g} s",
            f"terminationGracePeriodSeconds: {drain_s + KILL_MARGIN_S:.0f}"
            + (f", or DTQ_DRAIN_TIMEOUT_S={grace_s - KILL_MARGIN_S:g}" if grace_s > KILL_MARGIN_S else ""),
        )  # fmt: skip


def _serving(facts: Facts, queues: list[str]) -> str:
    """A worker for all these queues; the names come from the server and may be anything."""
    return facts.lines.dtq("worker", "run", *(word for name in queues for word in ("--queue", name)))


def _finding(code: str, severity: Severity, what: str, fix: str) -> Finding:
    return Finding(code, severity, what, WHY[code], fix)


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
