"""The signals that end a process in the foreground, as events for its one loop instead of interruptions anywhere."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True)
class Signalled:
    """A signal arrived."""

    signum: int


@contextlib.contextmanager
def as_events(report: Callable[[Signalled], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP (the terminal is closed) as events; a SIGHUP that nohup ignores stays ignored.

    `report` is called in a signal handler: SimpleQueue.put may be, most else may not.
    """

    def put(signum: int, frame: FrameType | None) -> None:
        report(Signalled(signum))

    before = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            before[signum] = signal.signal(signum, put)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
