"""Which rights DTQ needs, and which of them the user of the connection lacks.

The server is asked from inside a script (redis.acl_check_cmd), which needs no right but EVAL, runs nothing and changes
nothing; ACL DRYRUN would want an administrator. It is always asked with whole commands: with too few arguments a server
may read behind their end and crash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtq_core.keys import GROUP, Keys
from dtq_core.store.scripts import names, script

_CALL = re.compile(r"\b(?:call|try)\('([A-Z]+)'(?:, '([A-Z]+)')?")
_CONTAINERS = ("XGROUP", "XINFO")
KEY = "<key>"
# By the right on the key: to servers, XREADGROUP reads.
_READS: dict[str, tuple[str, ...]] = {
    "EXISTS": (KEY,), "GET": (KEY,), "HGET": (KEY, "f"), "HGETALL": (KEY,), "HLEN": (KEY,), "HMGET": (KEY, "f"),
    "LLEN": (KEY,), "PTTL": (KEY,), "SCARD": (KEY,), "SISMEMBER": (KEY, "m"), "SMEMBERS": (KEY,),
    "SRANDMEMBER": (KEY,), "TTL": (KEY,), "TYPE": (KEY,),
    "XINFO|CONSUMERS": (KEY, GROUP), "XINFO|GROUPS": (KEY,), "XLEN": (KEY,), "XPENDING": (KEY, GROUP),
    "XRANGE": (KEY, "-", "+"), "XREADGROUP": ("GROUP", GROUP, "c", "STREAMS", KEY, ">"),
    "XREVRANGE": (KEY, "+", "-"), "ZCARD": (KEY,), "ZRANGE": (KEY, "0", "-1"),
    "ZRANGEBYSCORE": (KEY, "0", "1"), "ZREVRANGE": (KEY, "0", "-1"), "ZREVRANGEBYSCORE": (KEY, "1", "0"), "ZSCORE": (KEY, "m"),
}  # fmt: skip
_WRITES: dict[str, tuple[str, ...]] = {
    "BLPOP": (KEY, "1"), "DEL": (KEY,), "EXPIRE": (KEY, "60"), "HDEL": (KEY, "f"), "HINCRBY": (KEY, "f", "1"),
    "HSET": (KEY, "f", "v"), "LPUSH": (KEY, "v"), "SADD": (KEY, "m"), "SET": (KEY, "v"), "SREM": (KEY, "m"),
    "XACK": (KEY, GROUP, "1-1"), "XADD": (KEY, "*", "f", "v"), "XAUTOCLAIM": (KEY, GROUP, "c", "1", "0-0"),
    "XCLAIM": (KEY, GROUP, "c", "1", "1-1"), "XDEL": (KEY, "1-1"), "XGROUP|CREATE": (KEY, GROUP, "0"),
    "XGROUP|DELCONSUMER": (KEY, GROUP, "c"),
    "ZADD": (KEY, "1", "m"), "ZPOPMIN": (KEY,), "ZREM": (KEY, "m"), "ZREMRANGEBYRANK": (KEY, "0", "1"),
    "ZREMRANGEBYSCORE": (KEY, "0", "1"),
}  # fmt: skip
_WITHOUT_KEY: dict[str, tuple[str, ...]] = {
    "CLIENT|SETNAME": ("dtq",), "EVAL": ("return 1", "0"), "EVALSHA": ("0" * 40, "0"), "INFO": (), "PING": (),
    "SCAN": ("0",), "SELECT": ("0",), "TIME": (), "UNSUBSCRIBE": (), "WAIT": ("1", "1"),
}  # fmt: skip
_WITH_CHANNEL: dict[str, tuple[str, ...]] = {"PUBLISH": (KEY, "m"), "SUBSCRIBE": (KEY,)}
ARGUMENTS: Mapping[str, tuple[str, ...]] = {**_READS, **_WRITES, **_WITHOUT_KEY, **_WITH_CHANNEL}
"""A whole call of each command that DTQ uses: NAME or NAME|SUBCOMMAND → its arguments."""

PROBE = """
local asked, answers = cjson.decode(ARGV[1]), {}
local function allowed(words, name)
  local whole = {}
  for i, word in ipairs(words) do whole[i] = word == '<key>' and name or word end
  local ok, answer = pcall(redis.acl_check_cmd, unpack(whole))
  return (not ok or answer) and '1' or '0'
end
for i, words in ipairs(asked.commands) do
  local row = {}
  for j, name in ipairs(asked.names[i]) do row[j] = allowed(words, name) end
  answers[i] = table.concat(row)
end
local function why(...)
  local answer = redis.pcall(...)
  return type(answer) == 'table' and answer.err or ''
end
return { answers, why('GET', asked.absent), why('EXPIRE', asked.absent, 60) }
"""
"""ARGV 1: {"commands": whole calls, "names": per command the keys or channels to put in, "absent": a key that is not there}.
Returns one string of 1 and 0 per command, and what a read and a write of the absent key are refused with."""

KEYS_PROBE = """#!lua flags=no-writes,allow-oom,allow-stale
return { redis.call('EXISTS', ARGV[1]), redis.call('EXISTS', ARGV[2]) }
"""
"""Looks at two keys that were not declared, as every script of DTQ does."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Rights that the user lacks: commands as ACLs name them, patterns of keys and of channels."""

    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()


def used_in_scripts(*of: str) -> set[str]:
    """The commands of these scripts (none: of all), as NAME or NAME|SUBCOMMAND; read from their own text."""
    found = set()
    for name in of or names():
        for command, second in _CALL.findall(script(name).source):
            found.add(f"{command}|{second}" if command in _CONTAINERS else command)
    return found


def question(keys: Keys, commands: Sequence[str]) -> str:
    """The argument of PROBE about `commands`."""
    return json.dumps(
        {
            "commands": [[*name.split("|"), *ARGUMENTS[name]] for name in commands],
            "names": [list(_names_for(keys, name).values()) for name in commands],
            "absent": keys.task("doctor"),
        }
    )


def missing(keys: Keys, commands: Sequence[str], answer: Sequence[Any]) -> Missing:
    """What PROBE's answer says.

    A command that passes for some key is allowed, and a key for which some command passes is open; where nothing passes
    at all the server's own words tell whether commands or keys are meant.
    """
    rows, why_no_read, why_no_write = answer
    passed = {
        name: {family for family, yes in zip(_names_for(keys, name), row, strict=True) if yes == "1"}
        for name, row in zip(commands, rows, strict=True)
    }
    refused = {name for name, families in passed.items() if not families}
    closed: dict[str, None] = {}
    for group, why in ((_READS, why_no_read), (_WRITES, why_no_write)):
        families = set[str]().union(*(passed[name] for name in group if name in passed))
        if families or "key" in why:
            closed |= dict.fromkeys(family for family in _families(keys) if family not in families)
        if not families and "key" in why:
            refused -= group.keys()
    channels = {f for name in _WITH_CHANNEL if name not in refused for f in _channels(keys) if f not in passed[name]}
    if _WITH_CHANNEL.keys() <= refused and not {"SET", "GET"} & refused:
        # Both refused for every channel, while other commands are not: more likely the channels than the commands.
        refused -= _WITH_CHANNEL.keys()
        channels = set(_channels(keys))
    return Missing(
        tuple(sorted(refused)), _patterns(keys, closed, _families(keys)), _patterns(keys, channels, _channels(keys))
    )


def _patterns(keys: Keys, some: Any, every: Mapping[str, str]) -> tuple[str, ...]:
    if len(some) == len(every):
        return (f"{keys.prefix}:*",)
    return tuple(f"{keys.prefix}:{family}" for family in every if family in some)


def _names_for(keys: Keys, command: str) -> dict[str, str]:
    if command in _WITH_CHANNEL:
        return _channels(keys)
    return {"": ""} if command in _WITHOUT_KEY else _families(keys)


def _families(keys: Keys) -> dict[str, str]:
    """One key of each family: its pattern without the prefix → the key."""
    return {
        "stream:*": keys.stream("doctor", 5), "retry:*": keys.schedule, "task:*": keys.task("doctor"),
        "result:*": keys.result("doctor"), "idempotency:*": keys.idempotency("doctor", "k"),
        "worker:*": keys.worker("doctor"), "workers": keys.workers, "fetch:*": keys.fetch("doctor", "a"),
        "queue:*": keys.paused("doctor"), "queues": keys.queues, "ledger:*": keys.ledger("doctor"),
        "wake:*": keys.wake("doctor"), "cancelled": keys.cancelled, "tasks:recent": keys.recent, "lock:*": keys.lock,
        "audit:*": keys.audit_server,
    }  # fmt: skip


def _channels(keys: Keys) -> dict[str, str]:
    return {"events": keys.events, "nudge:*": keys.nudge("doctor")}
