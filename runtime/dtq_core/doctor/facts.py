"""Everything the checks look at, read once: a handful of round trips, bounded by the number of queues and a sample of keys.

A fact that the server does not give (a right is missing, a managed service has no CONFIG) is a NotKnown in its place.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from dtq_core.config import Settings
from dtq_core.doctor import rights
from dtq_core.doctor.finding import NotKnown
from dtq_core.doctor.rights import Missing
from dtq_core.doctor.shell import Shell
from dtq_core.errors import RedisUnavailable
from dtq_core.keys import GROUP, Keys
from dtq_core.store import Store
from dtq_core.store.codec import worker_from_row
from dtq_core.store.replies import pairs
from dtq_core.task import BANDS

CONFIG_NAMES = (
    "save", "hash-max-listpack-value", "hash-max-listpack-entries", "min-replicas-to-write", "replica-read-only",
    "stop-writes-on-bgsave-error", "dir",
)  # fmt: skip
MAX_QUEUES = 1000
SCANS, SCAN_COUNT = 20, 500
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Clock:
    """The server's time, and this machine's before it was asked and after; epoch milliseconds."""

    server_ms: int
    before_ms: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a queue that exists. `holders`: consumer → entries it holds, for those that hold some.

    `orphaned`: it has entries, and no group of ours.
    """

    name: str
    queue: str
    orphaned: bool
    holders: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a bounded walk over the keys saw. `eternal` should expire and do not."""

    looked_at: int
    whole: bool
    eternal: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """One installation at one moment."""

    settings: Settings
    grace_period_s: float | None
    clock: Clock | NotKnown
    info: Mapping[str, str] | NotKnown
    config: Mapping[str, str] | NotKnown
    user: str
    rights: Missing | NotKnown
    script_error: str | NotKnown
    """What the server says when a script touches keys it did not declare; empty when it lets it."""
    streams: tuple[Stream, ...] | NotKnown
    workers: Mapping[str, str] | NotKnown
    """Status of every worker with a row: worker id → status."""
    sample: Sample | NotKnown
    latest_due_ms: int | NotKnown
    """When the last of all scheduled tasks is due; 0 when none is scheduled."""
    lock_ttl_s: int | NotKnown
    """What is left of the leader lock: -1 for ever, -2 nobody holds it."""
    lines: Shell
    """How the server is reached from the shell of who asked."""


async def gather(
    store: Store,
    settings: Settings,
    *,
    grace_period_s: float | None = None,
    elsewhere: bool = False,
    host_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Facts:
    """Read everything. `elsewhere`: a bare `dtq` of this shell would use another server.

    Raises RedisUnavailable when the server does not answer, StoreError when it refuses the connection.
    """
    await store.send(
        ("TIME",)
    )  # connects, so that this is not in the measured time; a PING is refused after a failed write
    before_ms = host_ms()
    (now,) = await store.send(("TIME",))
    after_ms = host_ms()
    if "loading" in str(now).lower():
        raise RedisUnavailable("Redis is not ready: it is loading its data")
    info, user, *config = await store.send(
        ("INFO",), ("ACL", "WHOAMI"), *(("CONFIG", "GET", name) for name in CONFIG_NAMES)
    )
    clock = _clock(now, before_ms, after_ms)
    missing, script_error = await _rights(store)
    last, lock_ttl_s = await store.send(
        ("ZREVRANGE", store.keys.schedule, 0, 0, "WITHSCORES"), ("TTL", store.keys.lock)
    )
    return Facts(
        settings=settings,
        grace_period_s=grace_period_s,
        clock=clock,
        info=_refusal("INFO", info) or {str(k): str(v) for k, v in pairs(info).items()},
        config=_config(config),
        user=str(user) if not isinstance(user, Exception) else _user_of(settings),
        rights=missing,
        script_error=script_error,
        streams=await _streams(store),
        workers=await _workers(store, clock),
        sample=await _sample(store),
        latest_due_ms=_refusal("ZREVRANGE", last) or (int(float(last[1])) if last else 0),
        lock_ttl_s=_refusal("TTL", lock_ttl_s) or int(lock_ttl_s),
        lines=Shell.at(settings.redis_url.get_secret_value(), os.environ, elsewhere=elsewhere),
    )


def _refusal(command: str, reply: Any) -> NotKnown | None:
    return NotKnown(f"{command} is refused: {str(reply)[:120]}") if isinstance(reply, Exception) else None


def _clock(now: Any, before_ms: int, after_ms: int) -> Clock | NotKnown:
    refused = _refusal("TIME", now)
    return refused or Clock(int(now[0]) * 1000 + int(now[1]) // 1000, before_ms, after_ms)


def _config(replies: Sequence[Any]) -> Mapping[str, str] | NotKnown:
    found = {name: value for reply in replies for name, value in pairs(reply).items()}
    return found or _refusal("CONFIG GET", replies[0]) or NotKnown("CONFIG GET tells nothing here")


def _user_of(settings: Settings) -> str:
    return unquote(urlsplit(settings.redis_url.get_secret_value()).username or "") or "default"


async def _rights(store: Store) -> tuple[Missing | NotKnown, str | NotKnown]:
    """Missing rights, and whether scripts may touch keys they did not declare."""
    keys = store.keys
    commands = [name for name in rights.ARGUMENTS if name != "WAIT" or store.settings.submit_wait_replicas]
    answers, touched = await store.send(
        ("EVAL", rights.PROBE, 0, rights.question(keys, commands)),
        ("EVAL", rights.KEYS_PROBE, 0, keys.queues, keys.recent),
    )
    if isinstance(answers, Exception):
        if _is_denial(answers) or "unknown command" in str(answers):
            return Missing(("EVAL",)), NotKnown("scripts are refused altogether")
        return NotKnown(f"the server does not tell rights: {str(answers)[:120]}"), _script_error(touched)
    return rights.missing(keys, commands, answers), _script_error(touched)


def _script_error(reply: Any) -> str | NotKnown:
    if not isinstance(reply, Exception):
        return ""
    if _is_denial(reply):
        return NotKnown("a right is missing")
    return str(reply)[:300]


def _is_denial(reply: Any) -> bool:
    return "NOPERM" in str(reply) or "no permissions" in str(reply) or "ACL failure" in str(reply)


async def _streams(store: Store) -> tuple[Stream, ...] | NotKnown:
    (names,) = await store.send(("SMEMBERS", store.keys.queues))
    if refused := _refusal("SMEMBERS", names):
        return refused
    wanted = [(store.keys.stream(q, band), q) for q in sorted(names)[:MAX_QUEUES] for band in BANDS]
    groups = await _in_chunks(store, [("XINFO", "GROUPS", name) for name, _ in wanted])
    found = []
    for (name, queue), reply in zip(wanted, groups, strict=True):
        if isinstance(reply, Exception):
            if _is_denial(reply):
                return NotKnown(f"XINFO GROUPS is refused: {str(reply)[:120]}")
            continue  # no such stream; one of another type is the audit's business
        ours = next((g for g in map(pairs, reply) if g.get("name") == GROUP), None)
        found.append((name, queue, ours))
    held = [name for name, _, ours in found if ours and int(ours.get("pending", 0))]
    replies = await _in_chunks(store, [("XINFO", "CONSUMERS", name, GROUP) for name in held])
    holders = {name: _holders(reply) for name, reply in zip(held, replies, strict=True)}
    bare = [name for name, _, ours in found if ours is None]
    lengths = await _in_chunks(store, [("XLEN", name) for name in bare])
    orphaned = {name for name, length in zip(bare, lengths, strict=True) if length != 0}
    return tuple(Stream(name, queue, name in orphaned, holders.get(name, {})) for name, queue, _ in found)


def _holders(reply: Any) -> dict[str, int]:
    rows = [] if isinstance(reply, Exception) else [pairs(row) for row in reply]
    return {row["name"]: int(row["pending"]) for row in rows if int(row.get("pending", 0))}


async def _workers(store: Store, clock: Clock | NotKnown) -> Mapping[str, str] | NotKnown:
    (ids,) = await store.send(("SMEMBERS", store.keys.workers))
    if isinstance(clock, NotKnown):
        return clock
    if refused := _refusal("SMEMBERS", ids):
        return refused
    rows = await _in_chunks(store, [("HGETALL", store.keys.worker(i)) for i in ids])
    found = [worker_from_row(pairs(row), clock.server_ms) for row in rows]
    return {w.worker_id: w.status for w in found if w is not None}


def should_expire(keys: Keys) -> re.Pattern[str]:
    """Names of keys that the table in dtq_core.keys gives a time to live."""
    p = re.escape(keys.prefix)
    return re.compile(
        rf"{p}:(?:(?:task|result|idempotency|worker|fetch|wake|demo:counter):.+|queue:[^:]+:task_types|lock:scheduler|retry:batch)",
        re.DOTALL,
    )


async def _sample(store: Store) -> Sample | NotKnown:
    """A walk over at most SCANS × SCAN_COUNT keys. A suspect is looked at twice: its TTL may come with the next command."""
    pattern, cursor, looked_at = should_expire(store.keys), "0", 0
    suspects: list[str] = []
    for _ in range(SCANS):
        (reply,) = await store.send(("SCAN", cursor, "MATCH", f"{store.keys.prefix}:*", "COUNT", SCAN_COUNT))
        if refused := _refusal("SCAN", reply):
            return refused
        cursor, names = str(reply[0]), [name for name in reply[1] if pattern.fullmatch(name)]
        looked_at += len(names)
        suspects += await _eternal(store, names)
        if cursor == "0":
            break
    return Sample(looked_at, cursor == "0", tuple(sorted(set(await _eternal(store, suspects)))))


async def _eternal(store: Store, names: Sequence[str]) -> list[str]:
    ttls = await _in_chunks(store, [("TTL", name) for name in names])
    return [name for name, ttl in zip(names, ttls, strict=True) if ttl == -1]


async def _in_chunks(store: Store, commands: Sequence[Sequence[Any]]) -> list[Any]:
    replies: list[Any] = []
    for start in range(0, len(commands), _CHUNK):
        replies += await store.send(*commands[start : start + _CHUNK])
    return replies
