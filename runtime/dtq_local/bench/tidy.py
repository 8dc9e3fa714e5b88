"""What a benchmark leaves on the server: nothing, or keys that are named, and removed by the next benchmark.

Every benchmark works under a prefix of its own and marks it before it writes anything else. The mark says who lives
there; it is renewed while he does. Only a prefix with a mark that nobody renews is ever swept: one that merely looks like
ours is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import uuid
from collections.abc import AsyncIterator
from typing import Any

from dtq_core.doctor.shell import Shell
from dtq_core.errors import DtqError, RedisUnavailable
from dtq_core.store import Store
from dtq_core.store.replies import sound
from dtq_core.text import redact

RENEWED_S = 5.0
DEAD_AFTER_S = 60
_SCAN_COUNT = 1000
_DELETED_AT_ONCE = 100


class LeftBehind(DtqError):
    """The benchmark could not remove what it has written; the message says what it is and how to remove it."""

    code = RedisUnavailable.code


@contextlib.asynccontextmanager
async def tidied(store: Store, base: str) -> AsyncIterator[None]:
    """Sweep what dead benchmarks under `base` left, hold our own prefix, and clear it at the end. Raises LeftBehind."""
    await sweep(store, base)
    await _renew(store)
    living = asyncio.create_task(_live(store))
    try:
        yield
    finally:
        living.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await living
        try:
            await clear(store, store.keys.prefix)
        except DtqError as exc:
            raise LeftBehind(_what_is_left(store, exc)) from exc


async def sweep(store: Store, base: str) -> int:
    """Delete what benchmarks whose process is gone have left under prefixes made from `base`; how many keys it was."""
    marks = [name async for name in _names(store, f"{_stem(base)}*:bench") if _is_mark(name, base)]
    deleted = 0
    for name in marks:
        mark, now = await store.send(("GET", name), ("TIME",))
        if not _lives(mark, int(sound(now)[0])):
            deleted += await clear(store, name.removesuffix(":bench"))
    return deleted


async def clear(store: Store, prefix: str) -> int:
    """Delete every key under `prefix` in steps, the mark last, so that a sweep that is cut off is finished by the next."""
    deleted, last = 0, _mark(prefix)
    names: list[str] = []
    async for name in _names(store, f"{prefix}:*"):
        if name != last:
            names.append(name)
        if len(names) == _DELETED_AT_ONCE:
            deleted += await _delete(store, names)
            names = []
    return deleted + await _delete(store, names) + await _delete(store, [last])


def own_prefix(base: str) -> str:
    mark = uuid.uuid4().hex[:8]
    return f"{_stem(base)}{mark}}}" if base.startswith("{") else f"{_stem(base)}{mark}"


def _stem(base: str) -> str:
    return f"{{{base.strip('{}')[:40]}-bench-" if base.startswith("{") else f"{base[:40]}-bench-"


def _mark(prefix: str) -> str:
    return f"{prefix}:bench"


def _is_mark(name: str, base: str) -> bool:
    end = r"\}" if base.startswith("{") else ""
    return re.fullmatch(rf"{re.escape(_stem(base))}[0-9a-f]{{8}}{end}:bench", name) is not None


async def _live(store: Store) -> None:
    """Renew the mark; an outage is told by the benchmark itself."""
    while True:
        await asyncio.sleep(RENEWED_S)
        with contextlib.suppress(DtqError):
            await _renew(store)


async def _renew(store: Store) -> None:
    (now,) = await store.send(("TIME",))
    mark = json.dumps({"place": _place(), "pid": os.getpid(), "at_s": int(sound(now)[0])})
    (done,) = await store.send(("SET", _mark(store.keys.prefix), mark))
    sound(done)


def _lives(mark: Any, now_s: int) -> bool:
    """Whether the owner may be at work. Of a process on this machine we know; of others, that they are heard of."""
    try:
        owner = json.loads(sound(mark) or "")
        heard_s, place, pid = now_s - int(owner["at_s"]), owner["place"], int(owner["pid"])
    except (ValueError, TypeError, KeyError):
        return True  # not written by us
    return heard_s < DEAD_AFTER_S and (place != _place() or os.path.exists(f"/proc/{pid}"))


def _place() -> str:
    """The host and, as containers may share its name, the space in which its process numbers hold."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = uuid.uuid4().hex  # not Linux: no process number is trusted
    return f"{socket.gethostname()} {space}"


async def _names(store: Store, pattern: str) -> AsyncIterator[str]:
    cursor = "0"
    while True:
        (reply,) = await store.send(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT))
        cursor, names = str(sound(reply)[0]), reply[1]
        for name in names:
            yield str(name)
        if cursor == "0":
            return


async def _delete(store: Store, names: list[str]) -> int:
    if not names:
        return 0
    (gone,) = await store.send(("DEL", *names))
    return int(sound(gone))


def _what_is_left(store: Store, exc: DtqError) -> str:
    url, prefix = store.settings.redis_url.get_secret_value(), store.keys.prefix
    return (
        f"{exc.message}, at {redact(url)}; what the benchmark wrote stays under {prefix}:*, until the next dtq bench"
        f" removes it, or this: {Shell.at(url, os.environ).removal(prefix)}"
    )
