"""Ports that are free on this machine, so that nobody has to look for what else listens there."""

from __future__ import annotations

import socket
from collections.abc import Collection

_NEXT = 100


def free_port(host: str, wanted: int, avoid: Collection[int] = ()) -> int:
    """`wanted`, else the next free port after it, else any; 0 wants any. `wanted` where the host cannot be bound at all."""
    candidates = [*range(wanted, min(wanted + _NEXT, 65_536)), 0] if wanted else [0]
    for candidate in candidates:
        if candidate in avoid:
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted
