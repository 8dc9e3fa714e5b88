"""The vocabulary of the doctor: a finding, a check that could not be made, and why each finding matters.

The codes are API: docs/doctor.md lists them, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Severity(StrEnum):
    """Error: work is lost or stands still, now or at the next fault. Warning: look at it. Advice: it costs something."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what is so, why it matters, and the command that mends it."""

    code: str
    severity: Severity
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A check that could not be made, and because of what."""

    check: str
    because: str


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all checks: worst findings first."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]


class NotKnown(Exception):
    """Stands in the place of a fact that could not be had; raised when a check asks for it."""


def known(fact: T | NotKnown) -> T:
    """The fact. Raises NotKnown, which says why there is none."""
    if isinstance(fact, NotKnown):
        raise fact
    return fact


WHY: Mapping[str, str] = {
    "SERVER_TOO_OLD": "DTQ's scripts use what Redis 7.0 and Valkey brought; on an older server they are refused.",
    "SCRIPT_KEYS": "DTQ's scripts build the names of keys from the prefix. Here no task can be submitted or run.",
    "ACL_COMMANDS": "A script that meets a missing right stops in the middle of its work.",
    "ACL_KEYS": "Every key of DTQ begins with its prefix; without a right on them tasks cannot be written or run.",
    "ACL_CHANNELS": "Events are published and heard there: without the right the feed stays silent, cancels come late.",
    "EVICTION": "When memory is full the server throws away keys on its own: tasks vanish without a trace.",
    "NO_PERSISTENCE": "Everything that waits, runs or is scheduled is gone when the server restarts.",
    "NO_AOF": "A crash loses every task that was submitted or finished since the last snapshot.",
    "AOF_WRITE_FAILED": "The server cannot write its append-only file and refuses every write: nothing is taken or finished.",
    "SNAPSHOT_FAILED": "The last snapshot failed. Unless told otherwise the server then refuses every write.",
    "IS_REPLICA": "A replica takes no writes, or takes ones that are lost with the next synchronisation.",
    "TOO_FEW_REPLICAS": "The server refuses every write until enough replicas are connected.",
    "WAIT_REPLICAS": "A submission waits for more replicas than there are, so every one is answered REDIS_UNAVAILABLE.",
    "REPLICA_GAP": "A primary that is cut off from its replicas goes on taking tasks; a failover forgets them.",
    "CLOCK": "DTQ goes by the server's clock; ages on this machine and times in its logs do not fit to it.",
    "GROUP_MISSING": "Entries wait on a stream that no worker has read yet, or whose group went with a failover or flush.",
    "DEAD_CONSUMER": "Tasks are in the hands of a worker that is gone; they wait until a living one takes them over.",
    "LEADER_LOCK": "Nobody leads while it is held: delayed tasks and retries stand still, on every scheduler and worker.",
    "NO_TTL": "DTQ gives these keys a time to live. Without one they stay for ever and fill the memory.",
    "TIMEOUT_ABOVE_VISIBILITY": "A handler that holds the interpreter lock that long loses its lease, and a peer runs its task again.",
    "LEASE_MARGIN": "One heartbeat that comes late loses the lease, and a peer runs the task again.",
    "DRAIN_BELOW_TIMEOUT": "A task that runs at SIGTERM may be cut off before its own time limit, and is run again elsewhere.",
    "DRAIN_ABOVE_GRACE": "The pod is killed before its drain is over: its tasks wait for the visibility timeout and run again.",
    "LISTPACK": "Records of tasks are kept as hash tables, which take about twice the memory.",
}
"""Why each finding matters, by its code."""
