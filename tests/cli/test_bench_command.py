"""`dtq bench` on a real server: what it measures, and that nothing of it is left behind, whatever ends it."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from cli.calls import Cli, clean_environment
from support.engines import DEFAULT_KIND, Server, private
from support.eventually import eventually
from support.keyspace import dump
from support.processes import DTQ, Process

from dtq_local.bench.ground import KEPT_S
from dtq_local.bench.hint import limit


def test_it_measures_and_leaves_nothing(cli: Cli, engine: Server) -> None:
    """Beside work that is there: it is not touched, not even the list of recent tasks."""
    cli.submit("echo_task", "{}", "--queue", "mail")
    before = dump(engine.redis)
    found = cli.json("bench", "--tasks", "300", "--concurrency", "8", "--queue", "measured")
    assert dump(engine.redis) == before
    assert (found["tasks"], found["concurrency"], found["rounds"]) == (300, 8, 3)
    for name in ("submit", "drain"):
        assert found[f"{name}_per_s"] > 0 and found[f"bare_{name}_per_s"] > 0
        ratio, (least, most) = found[f"{name}_ratio"], found[f"{name}_spread"]
        assert ratio == pytest.approx(found[f"{name}_per_s"] / found[f"bare_{name}_per_s"]) and 0 < least <= most < 20
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
        for words in ("submitted, 100 a call", "drained by one worker"):
            own, bare, ratio, least, most = re.search(
                rf"^{words} +(\S+) +(\S+) +(\S+) +(\S+) to (\S+)$", text, re.M
            ).groups()
            assert float(ratio) == pytest.approx(int(own.replace(",", "")) / int(bare.replace(",", "")), abs=0.02)
            assert float(least) <= float(most)
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


def test_an_engine_that_dies_in_its_midst(tmp_path: Path) -> None:
    """What is left is named with the line that removes it; the next benchmark removes it too, and nothing else."""
    with private(DEFAULT_KIND, tmp_path / "engine", ("--appendonly", "yes", "--appendfsync", "always")) as server:
        cli = Cli(tmp_path, clean_environment(DTQ_REDIS_URL=server.url()))
        process = Process("bench", [DTQ, "bench", "--tasks", "100000"], cli.env, tmp_path)
        try:
            eventually(lambda: server.redis.keys("dtq-bench-*:task:*"), 30, process.tail)
            (mark,) = server.redis.keys("dtq-bench-????????:bench")
            server.stop(hard=True)
            assert process.wait() == 1
            prefix = mark.removesuffix(":bench")
            log = process.log()
            assert log.startswith("error REDIS_UNAVAILABLE: ") and log.count("\n") == 1, log
            assert f"{prefix}:*" in log and f"redis-cli -u {server.url()} --scan" in log and "unlink" in log
        finally:
            process.kill()
        server.start()
        assert server.redis.exists(mark)
        ttls = {server.redis.ttl(key) for key in server.redis.scan_iter(f"{prefix}:task:*")}
        assert ttls and max(ttls) <= 2 * KEPT_S
        living = json.dumps({"place": "elsewhere", "pid": 1, "at_s": int(time.time())})
        others = {
            "dtq-bench-00000001:bench": living,  # another machine, heard of just now
            "dtq-bench-00000001:task:1": "x",
            "dtq-bench-00000002:task:1": "x",  # no mark: somebody's prefix that looks like ours
            "dtq-bench-00000003:bench": "mine",
            "shop-bench-00000004:bench": json.dumps({"place": "elsewhere", "pid": 1, "at_s": 0}),
        }
        dead = {"dtq-bench-00000005:bench": others["shop-bench-00000004:bench"], "dtq-bench-00000005:ledger:x": "x"}
        server.redis.mset(others | dead)
        cli.ok("bench", "--tasks", "100")
        assert sorted(server.redis.keys("*")) == sorted(others)
        server.stop(hard=True)


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
