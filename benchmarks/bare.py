"""The bare loops: the least that a durable queue on a stream has to do, written by hand with the same client library.

A worker finishes its last batch (state and result written, entry acknowledged and deleted) and reads the next in one
script: one round trip per batch, whose tasks run side by side as in any asyncio worker. It keeps state and results and
survives a kill, and that is all: no attempts, retries, priorities, events, counters, fences. The gap to it is the price
of the rest. `python -m benchmarks.bare` is the worker, a process of its own as DTQ's is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import uuid4

import redis.asyncio
import uvloop

from benchmarks.stamp import send_stamp

STREAM = "bare:stream"
GROUP = "workers"
PIPELINE = 100
"""XADDs per round trip of the bulk producer; as many as DTQ puts into one call."""

IDLE_WAIT_MS = 1000

FINISH_AND_READ = """
for i = 4, #ARGV, 3 do
  redis.call('HSET', 'bare:task:' .. ARGV[i + 1], 'status', 'done', 'result', ARGV[i + 2], 'finished_at', ARGV[3])
  redis.call('XACK', KEYS[1], 'workers', ARGV[i])
  redis.call('XDEL', KEYS[1], ARGV[i])
end
return redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[1], 'COUNT', ARGV[2], 'STREAMS', KEYS[1], '>')
"""

SAME_WRITES = """
local id, queue, now = ARGV[1], ARGV[2], ARGV[5]
local entry = redis.call('XADD', 'bare:stream:' .. queue .. ':p5', '*', 'task_id', id, 'queue', queue,
  'task_type', ARGV[3], 'payload', ARGV[4], 'attempt', '1', 'max_attempts', '5', 'priority', '5',
  'timeout_ms', '30000', 'idempotency_key', '')
redis.call('HSET', 'bare:task:' .. id, 'task_id', id, 'queue', queue, 'task_type', ARGV[3], 'payload', ARGV[4],
  'status', 'queued', 'created_at', now, 'available_at', now, 'attempt', '0', 'max_attempts', '5', 'priority', '5',
  'timeout_ms', '30000', 'idempotency_key', '', 'metadata', '{}', 'fence', '0', 'entry_id', entry)
redis.call('EXPIRE', 'bare:task:' .. id, 604800)
redis.call('ZADD', 'bare:recent', now, id)
redis.call('ZREMRANGEBYRANK', 'bare:recent', 0, -10001)
redis.call('HINCRBY', 'bare:ledger:' .. queue, 'submitted', 1)
redis.call('HINCRBY', 'bare:ledger:' .. queue, 'queued', 1)
redis.call('PUBLISH', 'bare:events', ARGV[6])
if redis.call('LLEN', 'bare:wake:' .. queue) == 0 then redis.call('LPUSH', 'bare:wake:' .. queue, '1') end
return id
"""
"""What a DTQ submission leaves behind, without one check: the floor of what submitting in one call can cost."""

Connection = redis.asyncio.Redis


def connect(url: str) -> Connection:
    return redis.asyncio.Redis.from_url(url, protocol=2)


async def prepare(connection: Connection) -> None:
    """An empty stream with its group."""
    await cast(Any, connection.xgroup_create(STREAM, GROUP, id="0", mkstream=True))


async def submit(connection: Connection, payload: dict[str, Any]) -> None:
    """One XADD."""
    await cast(Any, connection.xadd(STREAM, {"task_id": uuid4().hex, "payload": json.dumps(payload)}))


async def submit_many(connection: Connection, payload: dict[str, Any], count: int) -> None:
    """XADDs in pipelines."""
    for start in range(0, count, PIPELINE):
        pipe = connection.pipeline(transaction=False)
        for _ in range(min(PIPELINE, count - start)):
            pipe.xadd(STREAM, {"task_id": uuid4().hex, "payload": json.dumps(payload)})
        await cast(Any, pipe.execute())


async def submit_same_writes(connection: Connection, sha: str, queue: str, payload: dict[str, Any]) -> str:
    """One EVALSHA that writes what a DTQ submission writes (SAME_WRITES, loaded as `sha`); the id of the task."""
    task_id, now_ms = uuid4().hex, time.time_ns() // 1_000_000
    event = json.dumps(
        {
            "event_id": str(uuid4()),
            "ts": "2026-01-01T00:00:00.000+00:00",
            "type": "TASK_QUEUED",
            "task_id": task_id,
            "queue": queue,
            "task_type": "noop",
            "attempt": 0,
            "worker_id": None,
        },
        separators=(",", ":"),
    )
    await cast(Any, connection.evalsha(sha, 0, task_id, queue, "noop", json.dumps(payload), str(now_ms), event))
    return task_id


async def left(connection: Connection) -> int:
    """Entries not yet finished."""
    return int(await cast(Any, connection.xlen(STREAM)))


async def _noop(payload: dict[str, Any]) -> str:
    return "done"


async def _stamp(payload: dict[str, Any]) -> str:
    send_stamp(payload["n"])
    return "done"


async def work(url: str, batch: int, handler: Callable[[dict[str, Any]], Awaitable[str]]) -> None:
    """For ever: finish the last batch and read the next; block on the stream when there is none."""
    connection = connect(url)
    cast(Any, connection).set_response_callback("XREADGROUP", lambda reply, **_: reply)
    sha = await cast(Any, connection.script_load(FINISH_AND_READ))
    me = uuid4().hex
    await cast(Any, connection.xgroup_createconsumer(STREAM, GROUP, me))  # how the benchmark sees that we run
    blocking = ("GROUP", GROUP, me, "COUNT", batch, "BLOCK", IDLE_WAIT_MS, "STREAMS", STREAM, ">")
    finished: list[Any] = []
    while True:
        now_ms = time.time_ns() // 1_000_000
        reply = await cast(Any, connection.evalsha(sha, 1, STREAM, me, batch, now_ms, *finished))
        finished = []
        if not reply:
            reply = await cast(Any, connection).execute_command("XREADGROUP", *blocking)
        entries = reply[0][1] if reply else ()
        results = await asyncio.gather(*(handler(json.loads(fields[3])) for _, fields in entries))
        for (entry_id, fields), result in zip(entries, results, strict=True):
            finished += (entry_id, fields[1], json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description="The worker of the bare loops.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--batch", type=int, required=True, help="tasks per round trip")
    parser.add_argument("--stamp", action="store_true", help="tell when each task starts")
    args = parser.parse_args()
    uvloop.run(work(args.url, args.batch, _stamp if args.stamp else _noop))


if __name__ == "__main__":
    main()
