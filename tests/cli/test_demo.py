"""`dtq demo`: the same seed gives the same day, the audit holds afterwards, and every view has something to show."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from cli.calls import Cli
from support.engines import Server
from support.eventually import eventually
from support.keyspace import KeyAudit
from support.processes import DTQ, Process

from dtq_core.task import TaskStatus


def _picture(engine: Server) -> dict[str, Any]:
    """The tasks by id, as they ended or stand, without what depends on the hour of the test."""
    found = {}
    for key in engine.redis.scan_iter(match="dtq:task:*", count=1000):
        row = engine.redis.hgetall(key)
        found[key] = {name: row.get(name) for name in ("status", "queue", "task_type", "payload", "attempt", "error_message",
                                                       "worker_id", "duration_ms")}  # fmt: skip
    return found


def test_a_day(cli: Cli, engine: Server) -> None:
    first = cli.json("demo", "--seed", "7", "--tasks", "300")
    picture = _picture(engine)
    assert (first["seed"], first["tasks"], first["alone"]) == (7, 300, True) and len(picture) == 300
    assert all(first["statuses"][str(status)] > 0 for status in TaskStatus), first["statuses"]

    # Every view has something to show, and what it shows adds up.
    assert cli.json("audit", "verify")["ok"]
    assert not KeyAudit().problems(engine.redis)
    tasks = cli.json("list", "--limit", "1000")["tasks"]
    shown = Counter(task["status"] for task in tasks)
    assert shown == first["statuses"]
    letters = cli.json("dlq", "list")["dead_letters"]
    assert len(letters) == first["dead_letters"] and {x["last_error_class"] for x in letters} >= {"RetryableError"}
    queues = {q["queue"]: q for q in cli.json("queue", "stats")["queues"]}
    assert set(queues) == set(first["queues"])
    assert queues["reports"]["paused"] and queues["reports"]["waiting"] == 5
    workers = {w["status"] for w in cli.json("workers")["workers"]}
    assert workers >= {"ready", "busy", "stopped", "stale"}
    assert any(a["error_class"] == "WorkerLost" for t in tasks for a in t["history"])
    assert any("previous_attempts" in t["metadata"] and t["status"] == "succeeded" for t in tasks)
    assert any(t["metadata"].get("discarded") for t in tasks)
    actions = {fields["action"] for _, fields in engine.redis.xrange("dtq:stream:audit")}
    assert {"queue.pause", "queue.resume", "task.cancel", "dlq.requeue", "dlq.discard"} <= actions

    # It is not put among tasks unless somebody says so, and the day of a second call is another one.
    err = cli.refused("INVALID_ARGUMENT", "demo", status=2)
    assert "--yes" in err and "DTQ_KEY_PREFIX=demo dtq demo keeps it apart" in err
    cli.ok("demo", "--tasks", "100", env={"DTQ_KEY_PREFIX": "demo"})
    err = cli.refused("INVALID_ARGUMENT", "demo", status=2, env={"DTQ_KEY_PREFIX": "demo"})
    assert "DTQ_KEY_PREFIX" not in err and "--scan --pattern 'demo:*'" in err
    engine.redis.delete(*engine.redis.keys("demo:*"))
    assert cli.json("demo", "--seed", "7", "--tasks", "300", "--yes")["tasks"] == 600
    assert cli.json("audit", "verify")["ok"]

    engine.clean()
    again = cli.json("demo", "--seed", "7", "--tasks", "300")
    assert _picture(engine) == picture
    assert {k: v for k, v in again.items() if k != "remove"} == {k: v for k, v in first.items() if k != "remove"}

    # Removed as it says.
    assert "--scan --pattern 'dtq:*'" in again["remove"] and str(engine.port) in again["remove"]
    engine.clean()
    text = cli.ok("demo", "--seed", "8", "--tasks", "100", env={"DTQ_KEY_PREFIX": "{shop}"})
    assert "{shop}:*" in text and "succeeded" in text and "its workers are only rows" in text
    assert all(key.startswith("{shop}:") for key in engine.redis.scan_iter())
    if shutil.which("redis-cli"):
        engine.redis.set("{shop}x", "not of it")
        engine.redis.set("{shop}:a\n{shop}x", "a name that would be two")
        engine.redis.set("{shop}:$(touch hurt) 'a\"", "a name that would be more")
        line = next(line for line in text.splitlines() if line.startswith("remove ")).removeprefix("remove  ")
        done = subprocess.run(["bash", "-c", line], env=dict(cli.env), cwd=cli.folder, capture_output=True, timeout=30)
        assert done.returncode == 0 and not (cli.folder / "hurt").exists(), done
        assert set(engine.redis.keys("*")) == {"{shop}x", "{shop}:a\n{shop}x"}


def test_beside_a_scheduler_that_runs(cli: Cli, engine: Server, tmp_path: Path) -> None:
    """As `dtq up` has one: what is due is moved by it, in its own time; nothing is lost by that."""
    scheduler = Process("scheduler", [DTQ, "scheduler", "run"], cli.env, tmp_path)
    try:
        eventually(lambda: engine.redis.exists("dtq:lock:scheduler"), 20, scheduler.tail)
        found = cli.json("demo", "--tasks", "100")
        assert found["alone"] is False and found["tasks"] == 100
        assert cli.json("audit", "verify")["ok"]
    finally:
        scheduler.kill()
