"""What `dtq up` was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from dtq_core.config import Settings
from dtq_local.state import StateDir


@dataclass(frozen=True)
class UpOptions:
    """`settings` carry task modules, concurrency, and the URL where one was given."""

    settings: Settings
    state: StateDir
    workers: int = 2
    queues: tuple[str, ...] = ("default",)
    own_engine: bool = True
    engine_port: int = 0
    reload: bool = False
    fresh: bool = False
    """Delete first what an earlier one kept."""
    as_json: bool = False
    """One JSON document on stdout once everything runs, the log on stderr."""
