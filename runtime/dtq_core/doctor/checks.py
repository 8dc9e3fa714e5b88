"""From facts to findings: every check in its order, the worst finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dtq_core.doctor import expiry, server, work
from dtq_core.doctor.facts import Facts
from dtq_core.doctor.finding import Finding, NotChecked, NotKnown, Report, Severity

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("server version", server.version),
    ("undeclared keys", server.script_keys),
    ("rights", server.rights),
    ("eviction", server.eviction),
    ("persistence", server.persistence),
    ("failing writes", server.failing_writes),
    ("replica", server.replica),
    ("replicas of this server", server.replicas),
    ("clock", server.clock),
    ("listpack", server.listpack),
    ("consumer groups", work.groups),
    ("dead consumers", work.dead_consumers),
    ("leader lock", expiry.leader_lock),
    ("time to live", expiry.eternal_keys),
    ("timeouts", work.timeouts),
    ("grace period", work.grace_period),
)
_ORDER = tuple(Severity)


def examine(facts: Facts) -> Report:
    """Run every check; one whose facts are not known is named, and harms no other."""
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    for name, check in CHECKS:
        try:
            for found in check(facts):
                findings.append(found)
        except NotKnown as exc:
            not_checked.append(NotChecked(name, str(exc)))
    findings.sort(key=lambda f: _ORDER.index(f.severity))
    return Report(tuple(findings), tuple(not_checked))
