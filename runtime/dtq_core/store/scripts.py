"""The Lua scripts by name: source put together from its preludes, and the SHA by which the server knows it.

A script that frees memory or finishes work may run when the engine is full (decision 31); those that take work may not.
The status tables of the preludes are written here from TRANSITIONS, so Lua and Python cannot disagree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from dtq_core.task import LIVE, NAMED_TRANSITIONS, TERMINAL, TRANSITIONS

ALLOW_OOM = frozenset(
    {
        "adopt", "audit_check", "audit_counts", "beat", "cancel", "claim_due", "discard", "ensure_groups", "handback",
        "pause", "prune", "purge", "reclaim", "register", "release", "renew", "renew_lock", "return_stale", "settle", "sign_off",
        "stale", "sweep_queue", "touch",
    }
)  # fmt: skip
PRELUDES = {
    "fetch": ("_prelude", "_letters", "_strays", "_gate"),
    "reclaim": ("_prelude", "_letters", "_strays", "_gate"),
    "purge": ("_prelude", "_letters", "_strays"),
    "settle": ("_prelude", "_letters"),
    "release": ("_prelude", "_letters"),
    "prune": ("_prelude", "_workers"),
    "register": ("_prelude", "_workers"),
    "sign_off": ("_prelude", "_workers"),
}


@dataclass(frozen=True, slots=True)
class Script:
    """One script as the server gets it."""

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script `name`. Raises FileNotFoundError for a name without a file."""
    parts = [_read(part) for part in (*PRELUDES.get(name, ("_prelude",)), name)]
    head = "#!lua flags=allow-oom" if name in ALLOW_OOM else "#!lua"
    source = "\n".join([head, _status_tables(), *parts])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """Every script that has a file of its own."""
    found = (item.name for item in files("dtq_core.store").joinpath("lua").iterdir())
    return sorted(name.removesuffix(".lua") for name in found if name.endswith(".lua") and not name.startswith("_"))


def _read(name: str) -> str:
    return files("dtq_core.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _status_tables() -> str:
    def as_set(values: list[str]) -> str:
        return "{" + ",".join(f"['{value}']=true" for value in values) + "}"

    legal = [f"{source}>{target}" for source, targets in TRANSITIONS.items() for target in sorted(targets)]
    return (
        f"local TERMINAL, LIVE = {as_set([*TERMINAL])}, {as_set([*LIVE])}\n"
        f"local LEGAL = {as_set(legal)}\n"
        f"-- and by name: {', '.join(sorted(NAMED_TRANSITIONS))}"
    )
