"""Checks of keys that should expire: each family is mended with its own time to live, and the leader lock is no such key.

Pure: facts in, findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dtq_core.doctor.facts import Facts
from dtq_core.doctor.finding import WHY, Finding, NotKnown, Severity, known
from dtq_core.doctor.work import NAMED, some

LOCK_S = 60
"""A leader renews its lock for ten seconds; one that lasts much longer is nobody's, and locks every leader out."""
_DAY_S = 86_400
_ROW_INTERVALS = 10
_ODD = 20
"""So many keys with names that a pipe cannot carry are written out."""


def leader_lock(facts: Facts) -> Iterator[Finding]:
    left_s = known(facts.lock_ttl_s)
    if left_s == -1 or left_s > LOCK_S:
        lock = _lock(facts)
        how_long = "for ever" if left_s == -1 else f"for {left_s} s more"
        yield Finding(
            "LEADER_LOCK", Severity.ERROR, f"the leader lock {lock} is held {how_long}, which no leader asks for",
            WHY["LEADER_LOCK"], facts.lines.redis("DEL", lock),
        )  # fmt: skip


def eternal_keys(facts: Facts) -> Iterator[Finding]:
    """One finding per family of keys. Raises NotKnown."""
    sample = known(facts.sample)
    seen = "all" if sample.whole else "the first"
    ttls = lifetimes(facts)
    families: dict[str, list[str]] = {}
    for key in sample.eternal:
        if key != _lock(facts):
            families.setdefault(_family(facts, key, ttls), []).append(key)
    for family, names in families.items():
        yield Finding(
            "NO_TTL", Severity.WARNING,
            f"{len(names)} of {seen} {sample.looked_at} keys that should expire do not: {some(names)}",
            WHY["NO_TTL"], _mended(facts, family, names, ttls[family]),
        )  # fmt: skip


def lifetimes(facts: Facts) -> Mapping[str, int]:
    """Seconds that keys of each family live, by their first words after the prefix, as the table of dtq_core.keys has it.

    The record of a task that is scheduled must not end before it is due.
    """
    s = facts.settings
    ahead_s = 30 * _DAY_S
    if not isinstance(facts.latest_due_ms, NotKnown) and not isinstance(facts.clock, NotKnown):
        ahead_s = max(0, -(-(facts.latest_due_ms - facts.clock.server_ms) // 1000))
    return {
        "task": s.task_retention_s + ahead_s,
        "result": s.result_retention_s,
        "idempotency": s.idem_ttl_s + ahead_s,
        "worker": max(1, round(_ROW_INTERVALS * s.heartbeat_interval_s)),
        "fetch": 600,
        "wake": 600,
        "demo:counter": _DAY_S,
        "queue": 7 * _DAY_S,
        "retry": 60,
    }


def _lock(facts: Facts) -> str:
    return f"{facts.settings.key_prefix}:lock:scheduler"


def _family(facts: Facts, key: str, ttls: Mapping[str, int]) -> str:
    rest = key.removeprefix(f"{facts.settings.key_prefix}:")
    return next(name for name in ttls if rest.startswith(f"{name}:"))


def _mended(facts: Facts, family: str, names: list[str], ttl_s: int) -> str:
    """Few keys by name; many by a pipe over the family, and by name what a pipe cannot carry."""
    shell = facts.lines
    odd = names
    lines = []
    if len(names) > NAMED:
        odd = [name for name in names if not name.isprintable() or any(sign in name for sign in '"\\')]
        end = ":task_types" if family == "queue" else ""  # its other keys are kept until they are removed
        lines = [shell.expire(f"{facts.settings.key_prefix}:{family}", end, ttl_s)]
    return "; ".join([*lines, *(shell.redis("EXPIRE", name, str(ttl_s), "NX") for name in odd[:_ODD])])
