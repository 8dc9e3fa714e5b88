"""The law of places: every task is in exactly the one place that fits its status.

Read in one step, so it may be asked at any moment. Written against
the contract's key names, not against the product's own audit: the two check each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import redis

_SNAPSHOT = """
local P, out = ARGV[1], { tasks = {}, entries = {}, schedule = {}, claimed = {}, dead = {} }
for _, key in ipairs(redis.call('KEYS', P .. ':task:*')) do
  local r = redis.call('HMGET', key, 'status', 'entry_id', 'worker_id', 'queue', 'priority', 'attempt', 'max_attempts')
  for i = 1, 7 do r[i] = r[i] or '' end
  out.tasks[string.sub(key, #P + 7)] = r
end
for _, key in ipairs(redis.call('KEYS', P .. ':stream:*:p?')) do
  if redis.call('TYPE', key).ok == 'stream' then
    local owner = {}
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      for _, row in ipairs(redis.call('XPENDING', key, group[2], '-', '+', 100000)) do owner[row[1]] = row[2] end
    end
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      out.entries[#out.entries + 1] = { key, entry[1], entry[2][2], owner[entry[1]] or '' }
      owner[entry[1]] = nil
    end
    for id, consumer in pairs(owner) do out.entries[#out.entries + 1] = { key, id, '', consumer } end
  end
end
out.schedule = redis.call('ZRANGE', P .. ':retry:schedule', 0, -1)
out.claimed = redis.call('ZRANGE', P .. ':retry:claimed', 0, -1)
for _, entry in ipairs(redis.call('XRANGE', P .. ':stream:dead-letter', '-', '+')) do
  out.dead[#out.dead + 1] = entry[2][2]
end
return cjson.encode(out)
"""
LIVE = ("pending", "queued", "running", "retrying")
_LEGAL = {
    "queued": (1, 0, 0),
    "running": (1, 0, 0),
    "pending": (0, 1, 0),
    "retrying": (0, 1, 0),
    "dead_lettered": (0, 0, 1),
}
"""How many stream entries, places in schedule and claims, and dead letters a task of a status has; else none."""
ENDED = ("succeeded", "failed", "dead_lettered", "cancelled", "expired")


@dataclass
class Snapshot:
    """Where everything is at one moment."""

    tasks: dict[str, list[str]]
    entries: list[list[str]] = field(default_factory=list)
    schedule: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def status(self, task_id: str) -> str:
        return self.tasks[task_id][0] if task_id in self.tasks else "no record"


def snapshot(client: redis.Redis, prefix: str = "dtq") -> Snapshot:
    raw = json.loads(client.eval(_SNAPSHOT, 0, prefix))
    lists = {name: list(raw[name] or []) for name in ("entries", "schedule", "claimed", "dead")}
    return Snapshot(dict(raw["tasks"] or {}), **lists)


def misplaced(world: Snapshot, prefix: str = "dtq") -> list[str]:
    """One line for each task that is in no place, in two, or in one that does not fit its status."""
    found = []
    waits = world.schedule + world.claimed
    for task_id, (status, entry_id, worker, queue, priority, _, _) in world.tasks.items():
        mine = [entry for entry in world.entries if entry[2] == task_id]
        there = len(mine), waits.count(task_id), world.dead.count(task_id)
        here = f"{task_id} is {status}: {there[0]} entries, {there[1]} waits, {there[2]} letters"
        if there != _LEGAL.get(status, (0, 0, 0)):
            found.append(here)
            continue
        if mine:
            stream, entry, _, owner = mine[0]
            if stream != f"{prefix}:stream:{queue}:p{priority}" or entry != entry_id:
                found.append(f"{here}; {entry} on {stream}, the record says {entry_id} on {queue}:p{priority}")
            elif status == "running" and owner != worker:
                found.append(f"{here}; the entry is pending for {owner!r}, the record says {worker!r}")
    for stream, entry, task_id, owner in world.entries:
        if not task_id:
            found.append(f"{stream} {entry}: pending for {owner}, but the entry is gone")
        elif task_id not in world.tasks:
            found.append(f"{stream} {entry}: task {task_id} has no record")
    found += [f"{task_id}: waits, but has no record" for task_id in waits if task_id not in world.tasks]
    return found
