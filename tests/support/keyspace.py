"""The keyspace as plain data, and the audit that holds it against the table in dtq_core.keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import redis

import dtq_core.keys

_PLACES = {
    "<queue>": r"[a-z0-9][a-z0-9_-]{0,63}",
    "<task_id>": r"[0-9a-f]{32}",
    "<worker_id>": r"[A-Za-z0-9_.-]+",
    "<lane>": r"[a-z0-9-]+",
    "<key>": r".+",
    "<0-9>": r"[0-9]",
}
_TYPES = {"stream, group `workers`": "stream", "sorted set": "zset"}
_HAS_TTL = re.compile(r"(DTQ_[A-Z]+_(TTL|RETENTION)_S|\d+ (heartbeat intervals|minutes|days?|s))\b")


def dump(client: redis.Redis) -> dict[str, Any]:
    """Every key with its whole value: two equal dumps are two equal worlds.

    Left out is what merely looking changes: TTLs, idle times, delivery counts. Streams are
    {"entries": {id: fields}, "pending": {group: {id: consumer}}}.
    """
    world: dict[str, Any] = {}
    for key in sorted(client.scan_iter(count=1000)):
        kind = client.type(key)
        if kind == "string":
            world[key] = client.get(key)
        elif kind == "hash":
            world[key] = dict(sorted(client.hgetall(key).items()))
        elif kind == "set":
            world[key] = set(client.smembers(key))
        elif kind == "zset":
            world[key] = dict(client.zrange(key, 0, -1, withscores=True))
        elif kind == "list":
            world[key] = client.lrange(key, 0, -1)
        elif kind == "stream":
            world[key] = {"entries": dict(client.xrange(key)), "pending": _pending(client, key)}
    return world


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What changed between two dumps: key → new value, of hashes only the changed fields; None means gone."""
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    return {key: _changed(before.get(key), after.get(key)) for key in keys}


def _changed(before: Any, after: Any) -> Any:
    both_hashes = isinstance(before, dict) and isinstance(after, dict) and "entries" not in after
    if not both_hashes:
        return after
    return {field: after.get(field) for field in before | after if before.get(field) != after.get(field)}


def _pending(client: redis.Redis, stream: str) -> dict[str, dict[str, str]]:
    found = {}
    for group in client.xinfo_groups(stream):
        rows = client.xpending_range(stream, group["name"], "-", "+", 100_000)
        found[group["name"]] = {row["message_id"]: row["consumer"] for row in rows}
    return found


@dataclass(frozen=True)
class Row:
    """One row of the table of keys, as a rule."""

    name: str
    pattern: re.Pattern[str]
    type: str
    has_ttl: bool


def table(prefix: str = "dtq") -> list[Row]:
    """The rows of the table in dtq_core.keys' docstring; channels are no keys."""
    rows = []
    for line in (dtq_core.keys.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 4 or not cells[0].startswith("`dtq:") or cells[1] == "channel":
            continue
        name, kind, _, bound = cells
        name = name.strip("`")
        parts = re.split(r"(<[^>]+>)", name.replace("dtq:", f"{prefix}:", 1))
        pattern = "".join(_PLACES[part] if part in _PLACES else re.escape(part) for part in parts)
        rows.append(Row(name, re.compile(pattern), _TYPES.get(kind, kind), bool(_HAS_TTL.match(bound))))
    assert len(rows) > 20, "the table of keys was not understood"
    return rows


class KeyAudit:
    """What every key must satisfy after a test. A test that breaks keys on purpose names them with `ignore`."""

    def __init__(self) -> None:
        self.prefix = "dtq"
        self._ignored: list[re.Pattern[str]] = []

    def ignore(self, pattern: str) -> None:
        self._ignored.append(re.compile(pattern))

    def problems(self, client: redis.Redis) -> list[str]:
        """One line per key that is not in the table, has another type, or lives for ever without leave."""
        rows = table(self.prefix)
        found = []
        for key in client.scan_iter(count=1000):
            if any(pattern.fullmatch(key) for pattern in self._ignored):
                continue
            kind, ttl = client.type(key), client.ttl(key)
            if ttl == -2:  # gone meanwhile
                continue
            row = next((row for row in rows if row.pattern.fullmatch(key)), None)
            if row is None:
                found.append(f"{key}: not in the table of keys")
            elif kind != row.type:
                found.append(f"{key}: a {kind}, the table says {row.type}")
            elif row.has_ttl and ttl == -1:
                found.append(f"{key}: no TTL, although `{row.name}` has one")
            elif row.name == "dtq:wake:<queue>" and client.llen(key) > 1:
                found.append(f"{key}: {client.llen(key)} tokens")
            elif row.name == "dtq:tasks:recent" and client.zcard(key) > dtq_core.keys.RECENT_MAX:
                found.append(f"{key}: {client.zcard(key)} members")
        return found
