"""Checks of the server and of what this user may do there. Pure: facts in, findings out.

Each raises NotKnown where a fact it needs is missing, after it has said what it could.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dtq_core.doctor.facts import Facts
from dtq_core.doctor.finding import WHY, Finding, NotKnown, Severity, known
from dtq_core.doctor.shell import quote

ERROR, WARNING, ADVICE = Severity
OLDEST = 7
LISTPACK_VALUE, LISTPACK_ENTRIES = 512, 64
MAX_SKEW_MS = 1000


def version(facts: Facts) -> Iterator[Finding]:
    info = known(facts.info)
    if "valkey_version" in info:
        return
    found = info.get("redis_version", "")
    major = found.partition(".")[0]
    if not major.isdecimal() or int(major) < OLDEST:
        yield _finding(
            "SERVER_TOO_OLD", ERROR, f"the server says it is Redis {found or '?'}", "use Redis 7.0 or newer, or Valkey"
        )


def script_keys(facts: Facts) -> Iterator[Finding]:
    said = known(facts.script_error)
    if said:
        prefix = facts.settings.key_prefix
        clustered = "slot" in said.lower() and not prefix.startswith("{")
        fix = f"DTQ_KEY_PREFIX='{{{prefix}}}'" if clustered else "use Redis or Valkey, not in a mode that declares keys"
        yield _finding("SCRIPT_KEYS", ERROR, f"a script may not touch DTQ's keys here: {said}", fix)


def rights(facts: Facts) -> Iterator[Finding]:
    missing = known(facts.rights)
    if missing.commands:
        names = [name.lower() for name in missing.commands]
        yield _finding(
            "ACL_COMMANDS", ERROR, f"user {facts.user} may not run: {', '.join(names)}",
            _allow(facts, "+", names),
        )  # fmt: skip
    if missing.keys:
        yield _finding(
            "ACL_KEYS", ERROR, f"user {facts.user} may not read and write: {', '.join(missing.keys)}",
            _allow(facts, "~", missing.keys),
        )  # fmt: skip
    if missing.channels:
        yield _finding(
            "ACL_CHANNELS", ERROR, f"user {facts.user} may not use the channels: {', '.join(missing.channels)}",
            _allow(facts, "&", missing.channels),
        )  # fmt: skip
    if "EVAL" in missing.commands and len(missing.commands) == 1:
        raise NotKnown("without EVAL the server cannot be asked about the others")


def eviction(facts: Facts) -> Iterator[Finding]:
    info = known(facts.info)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        limited = info.get("maxmemory", "0") != "0"
        yield _finding(
            "EVICTION", ERROR if limited else WARNING,
            f"maxmemory-policy is {policy}" + ("" if limited else " (no maxmemory is set, so nothing is evicted yet)"),
            _set(facts, "maxmemory-policy", "noeviction"),
        )  # fmt: skip


def persistence(facts: Facts) -> Iterator[Finding]:
    if known(facts.info).get("aof_enabled", "0") != "0":
        return
    on = _set(facts, "appendonly", "yes")
    save = None if isinstance(facts.config, NotKnown) else facts.config.get("save", "")
    if save == "":
        yield _finding("NO_PERSISTENCE", ERROR, "neither an append-only file nor snapshots are written", on)
    else:
        often = "as its service sets them" if save is None else f"save {save}"
        yield _finding("NO_AOF", WARNING, f"there is no append-only file, only snapshots ({often})", on)


def failing_writes(facts: Facts) -> Iterator[Finding]:
    info = known(facts.info)
    if info.get("aof_enabled", "0") != "0" and info.get("aof_last_write_status", "ok") != "ok":
        yield _finding(
            "AOF_WRITE_FAILED", ERROR, "the last write to the append-only file failed",
            _after_room(facts, "BGREWRITEAOF"),
        )  # fmt: skip
    if info.get("rdb_last_bgsave_status", "ok") == "ok":
        return
    config = {} if isinstance(facts.config, NotKnown) else facts.config
    refuses = config.get("save") != "" and config.get("stop-writes-on-bgsave-error", "yes") == "yes"
    yield _finding(
        "SNAPSHOT_FAILED", ERROR if refuses else WARNING, "the last snapshot failed",
        _after_room(facts, "BGSAVE"),
    )  # fmt: skip


def replica(facts: Facts) -> Iterator[Finding]:
    info = known(facts.info)
    if info.get("role") != "slave":
        return
    where = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    link = "" if info.get("master_link_status") == "up" else ", and the link to it is down"
    writable = isinstance(facts.config, Mapping) and facts.config.get("replica-read-only") == "no"
    takes = "; it takes writes, which are lost" if writable else ""
    yield _finding(
        "IS_REPLICA", ERROR, f"this server is a replica of {where}{link}{takes}",
        f"let DTQ_REDIS_URL name the primary: {where}",
    )  # fmt: skip


def replicas(facts: Facts) -> Iterator[Finding]:
    info = known(facts.info)
    if info.get("role") != "master":
        return
    connected = _number(info.get("connected_slaves"))
    wanted = facts.settings.submit_wait_replicas
    if wanted > connected:
        yield _finding(
            "WAIT_REPLICAS", ERROR, f"DTQ_SUBMIT_WAIT_REPLICAS is {wanted}, connected are {connected}",
            f"start replicas, or DTQ_SUBMIT_WAIT_REPLICAS={connected}",
        )  # fmt: skip
    least = _number(known(facts.config).get("min-replicas-to-write"))
    good = _number(info.get("min_slaves_good_slaves", str(connected)))
    if least > good:
        yield _finding(
            "TOO_FEW_REPLICAS", ERROR, f"min-replicas-to-write is {least}, good replicas are {good}",
            f"start replicas, or: {_set(facts, 'min-replicas-to-write', str(good))}",
        )  # fmt: skip
    if connected and not least and not wanted:
        yield _finding(
            "REPLICA_GAP", WARNING, f"there are {connected} replicas, and writes wait for none of them",
            f"DTQ_SUBMIT_WAIT_REPLICAS=1, or: {_set(facts, 'min-replicas-to-write', '1')}",
        )  # fmt: skip


def clock(facts: Facts) -> Iterator[Finding]:
    seen = known(facts.clock)
    off_ms = seen.server_ms - (seen.before_ms + seen.after_ms) // 2
    if abs(off_ms) - (seen.after_ms - seen.before_ms) // 2 > MAX_SKEW_MS:
        side = "ahead of" if off_ms > 0 else "behind"
        yield _finding(
            "CLOCK", WARNING, f"the server's clock is {abs(off_ms) / 1000:.1f} s {side} this machine's",
            "let both be set by NTP: timedatectl set-ntp true",
        )  # fmt: skip


def listpack(facts: Facts) -> Iterator[Finding]:
    config = known(facts.config)
    for name, least, advised in (
        ("hash-max-listpack-value", LISTPACK_VALUE, 512),
        ("hash-max-listpack-entries", LISTPACK_ENTRIES, 512),
    ):
        if name not in config:
            raise NotKnown(f"the server does not tell {name}")
        if _number(config[name]) < least:
            yield _finding("LISTPACK", ADVICE, f"{name} is {config[name]}", _set(facts, name, str(advised)))


def _finding(code: str, severity: Severity, what: str, fix: str) -> Finding:
    return Finding(code, severity, what, WHY[code], fix)


def _set(facts: Facts, name: str, value: str) -> str:
    """The command, or what to do where the server is a service that does not let its users configure it."""
    if isinstance(facts.config, NotKnown):
        return f"in the settings of your Redis service: {name} {value}"
    return facts.lines.redis("CONFIG", "SET", name, value)


def _allow(facts: Facts, sign: str, what: Sequence[str]) -> str:
    return facts.lines.redis("ACL", "SETUSER", facts.user, *(f"{sign}{name}" for name in what))


def _after_room(facts: Facts, command: str) -> str:
    """Only somebody on the server's machine can make room; then the command writes what could not be written."""
    folder = "" if isinstance(facts.config, NotKnown) else facts.config.get("dir", "")
    look = f"df -h {quote(folder)}" if folder else "df -h"
    return f"make room on the server's disk ({look}), then: {facts.lines.redis(command)}"


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
