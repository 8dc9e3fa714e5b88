"""An absolute end for blocking requests. asyncio has one; httpx limits each read, and a trickle never ends a read.

Under a client of ours lies a network backend whose streams give each operation no more than what is left of the time
of the request that the thread is at.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

_LEAST_S = 0.001
"""A timeout of 0 would mean "do not block", and not "time out"."""


class _Current(threading.local):
    ends_at: float | None = None


_current = _Current()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Requests of this thread end within `seconds`, with a timeout of httpx."""
    _current.ends_at = time.monotonic() + seconds
    try:
        yield
    finally:
        _current.ends_at = None


def bounded_client() -> httpx.Client:
    """An httpx.Client for which `within` holds. httpx has no argument for a backend, so it is put in afterwards."""
    http = httpx.Client()
    for transport in (http._transport, *http._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _Backend(backend)
    return http


def _left(timeout: float | None) -> float | None:
    if _current.ends_at is None:
        return timeout
    left = max(_LEAST_S, _current.ends_at - time.monotonic())
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, _left(timeout), local_address, socket_options))
