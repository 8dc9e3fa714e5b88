"""`dtq bench` on a real server: what it measures, and that nothing of it is left behind, whatever ends it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cli.calls import Cli
from support.engines import Server
from support.eventually import eventually
from support.keyspace import dump
from support.processes import DTQ, Process

from dtq_local.bench.hint import limit


def test_it_measures_and_leaves_nothing(cli: Cli, engine: Server) -> None:
    """Beside work that is there: it is not touched, not even the list of recent tasks."""
    cli.submit("echo_task", "{}", "--queue", "mail")
    before = dump(engine.redis)
    found = cli.json("bench", "--tasks", "300", "--concurrency", "8", "--queue", "measured")
    assert dump(engine.redis) == before
    assert (found["tasks"], found["concurrency"], found["rounds"]) == (300, 8, 3)
    for name in ("submit", "drain"):
        assert found[f"{name}_per_s"] > 0 and found[f"bare_{name}_per_s"] > 0 and 0 < found[f"{name}_ratio"] < 20
    for name in ("submit", "start", "end"):
        ms = found["latency_ms"][name]
        assert 0 < ms["p50"] <= ms["p90"] <= ms["p99"]
    assert found["latency_ms"]["submit"]["p50"] < found["latency_ms"]["end"]["p50"]
    assert 3 < found["commands_per_task"] < 40 and found["commands"]["hset"] >= 1
    assert found["round_trip_ms"] > 0 and found["engine_cpu_percent"] > 0 and found["worker_cpu_percent"] > 0
    assert found["limit"] in ("engine", "worker", "round_trips", "shared") and found["limited_by"]


def test_for_people_and_where_info_is_forbidden(cli: Cli, engine: Server) -> None:
    engine.redis.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">secret", "~*", "&*", "+@all", "-info")
    try:
        url = f"redis://shop:secret@127.0.0.1:{engine.port}/0"
        text = cli.ok("bench", "--tasks", "100", env={"DTQ_REDIS_URL": url})
        assert all(len(line) <= 80 for line in text.splitlines()), text
        assert "INFO is refused" in text and "not told" in text and "secret" not in text
        assert not engine.redis.keys("*")
    finally:
        engine.redis.execute_command("ACL", "DELUSER", "shop")


@pytest.mark.parametrize(
    "number, code, tasks, midst",
    [(signal.SIGINT, 130, 1_000_000, "dtq-bench-*:bare"), (signal.SIGTERM, 143, 20_000, "dtq-bench-*:result:*")],
)
def test_ended_in_its_midst(
    cli: Cli, engine: Server, tmp_path: Path, number: int, code: int, tasks: int, midst: str
) -> None:
    """While the bare loop runs, and while the worker has tasks in hand."""
    process = Process("bench", [DTQ, "bench", "--tasks", str(tasks)], cli.env, tmp_path)
    try:
        eventually(lambda: engine.redis.keys(midst), 30, process.tail)
        process.signal(number)
        assert process.wait() == code, process.tail()
        assert process.log().strip() == ""
        assert not engine.redis.keys("*")
    finally:
        process.kill()


def test_a_server_that_is_not_there(cli: Cli) -> None:
    cli.refused("REDIS_UNAVAILABLE", "bench", env={"DTQ_REDIS_URL": "redis://127.0.0.1:1/0"})
    cli.refused("INVALID_ARGUMENT", "bench", "--tasks", "10", status=2)


@pytest.mark.parametrize(
    "engine, worker, round_trip_ms, code",
    [
        (95, 80, 0.1, "engine"),
        (80, 95, 0.1, "worker"),
        (20, 30, 3.0, "round_trips"),
        (20, 30, 0.1, "shared"),
        (None, 90, 0.1, "worker"),
        (None, None, 0.1, "unknown"),
    ],
)
def test_what_limits_it(engine: float | None, worker: float | None, round_trip_ms: float, code: str) -> None:
    assert limit(engine, worker, round_trip_ms, 4)[0] == code
