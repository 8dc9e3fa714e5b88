"""Every command as a process, straight on a server that no worker and no API serves (contract §12)."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli.calls import Cli
from support.engines import Server
from support.processes import DTQ

NOBODY = "f" * 32
TASK_KEYS = {
    "task_id", "queue", "task_type", "status", "payload", "priority", "attempt", "max_attempts", "timeout_ms",
    "idempotency_key", "metadata", "created_at", "available_at", "cancel_requested", "started_at", "finished_at",
    "duration_ms", "worker_id", "error_class", "error_message", "retryable", "retry_delay_ms", "history",
}  # fmt: skip


@pytest.mark.contract("C12.01", "C12.15")
def test_submit_with_every_option(cli: Cli, engine: Server) -> None:
    answer = cli.json(
        "submit", "--type", "demo", "--payload", '{"a": [1, "é"]}', "--queue", "orders", "--idempotency-key", "k",
        "--max-attempts", "4", "--priority", "8", "--timeout-ms", "1234", "--metadata", '{"ttl_seconds": 60}',
    )  # fmt: skip
    assert set(answer) == {"task_id", "status", "duplicate"}
    assert (answer["status"], answer["duplicate"]) == ("queued", False)
    task = cli.json("get", answer["task_id"])
    assert set(task) == TASK_KEYS | {"result"}
    assert task["payload"] == {"a": [1, "é"]}
    assert (task["queue"], task["task_type"], task["idempotency_key"], task["metadata"]) == (
        "orders", "demo", "k", {"ttl_seconds": 60},
    )  # fmt: skip
    assert (task["max_attempts"], task["priority"], task["timeout_ms"], task["result"]) == (4, 8, 1234, None)
    assert engine.redis.xlen("dtq:stream:orders:p8") == 1


def test_submit_to_a_program_is_a_document(cli: Cli, engine: Server) -> None:
    document = json.loads(cli.ok("submit", "--type", "demo"))
    assert set(document) == {"task_id", "status", "duplicate"} and engine.redis.exists(
        f"dtq:task:{document['task_id']}"
    )


def test_quiet_submit_prints_the_id_and_nothing_else(cli: Cli, engine: Server) -> None:
    out = cli.ok("submit", "-q", "--type", "demo")
    assert engine.redis.exists(f"dtq:task:{out.strip()}") and out.count("\n") == 1


def test_delay(cli: Cli, engine: Server) -> None:
    task_id = cli.submit("demo", "{}", "--delay-seconds", "3630")
    assert engine.redis.zcard("dtq:retry:schedule") == 1
    text = cli.ok("get", task_id)
    assert "pending" in text and "(in 60m)" in text


def test_payload_from_a_file_and_from_stdin(cli: Cli) -> None:
    (cli.folder / "p.json").write_text('{"from": "file"}')
    assert cli.json("get", cli.submit("demo", "@p.json"))["payload"] == {"from": "file"}
    task_id = cli.ok("submit", "-q", "--type", "demo", "--payload", "-", stdin='{"from": "stdin"}').strip()
    assert cli.json("get", task_id)["payload"] == {"from": "stdin"}


@pytest.mark.parametrize(
    "code, payload",
    [
        ("INVALID_TASK", '{"x": NaN}'),
        ("INVALID_TASK", '{"x": -Infinity}'),
        ("INVALID_TASK", '{"x": 1e999}'),
        ("INVALID_TASK", "[1]"),
        ("INVALID_TASK", "text"),
        ("INVALID_TASK", ""),
        ("INVALID_TASK", '{"x": "\\ud800"}'),
        ("INVALID_TASK", "[" * 100_000),
        ("INVALID_TASK", '{"x":' * 200 + "1" + "}" * 200),
        ("PAYLOAD_TOO_LARGE", "@large"),
        ("INVALID_ARGUMENT", "@missing"),
        ("INVALID_ARGUMENT", "@."),
        ("INVALID_TASK", "@bytes"),
    ],
)
def test_bad_payloads(cli: Cli, engine: Server, code: str, payload: str) -> None:
    (cli.folder / "large").write_text(json.dumps({"x": "y" * 262_137}))  # one byte more than DTQ_MAX_PAYLOAD_BYTES
    (cli.folder / "bytes").write_bytes(b'{"x": "\xff"}')
    cli.refused(code, "submit", "--type", "demo", "--payload", payload, status=2)
    assert engine.redis.dbsize() == 0


def test_the_largest_payload_is_taken_whatever_its_spaces(cli: Cli) -> None:
    (cli.folder / "large").write_text("  " + json.dumps({"x": "y" * 262_136}, indent=40))
    cli.submit("demo", "@large")


@pytest.mark.parametrize(
    "words",
    [
        ["--type", "no type"],
        ["--queue", "No Queue"],
        ["--priority", "10"],
        ["--max-attempts", "0"],
        ["--max-attempts", "11"],
        ["--timeout-ms", "3600001"],
        ["--delay-seconds", "1e9"],
        ["--metadata", '{"x": NaN}'],
        ["--metadata", "[]"],
        ["--metadata", '{"ttl_seconds": -1}'],
        ["--idempotency-key", ""],
        ["--idempotency-key", "k" * 600],
    ],
)
def test_bad_fields_leave_nothing_behind(cli: Cli, engine: Server, words: list[str]) -> None:
    done = cli("submit", *(["--type", "demo"] if words[0] != "--type" else []), *words)
    assert done.code in (1, 2) and done.err.startswith("error ") and done.err.count("\n") == 1, done
    assert engine.redis.dbsize() == 0


def test_bytes_that_are_no_text_in_arguments(cli: Cli, engine: Server) -> None:
    done = subprocess.run(
        [DTQ.encode(), b"submit", b"--type", b"demo", b"--payload", b'{"x": "\xff"}'],
        capture_output=True, env=dict(cli.env), timeout=30,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith(b"error INVALID_TASK: ")
    assert engine.redis.dbsize() == 0


@pytest.mark.contract("C5.04")
def test_a_taken_key(cli: Cli) -> None:
    task_id = cli.submit("demo", "{}", "--idempotency-key", "k")
    err = cli.refused("IDEMPOTENCY_IN_PROGRESS", "submit", "--type", "demo", "--idempotency-key", "k")
    assert f"(dtq get {task_id})" in err
    cli.ok("cancel", task_id)
    again = cli("submit", "-q", "--type", "demo", "--idempotency-key", "k")
    assert again.out.strip() == task_id and "earlier task, cancelled" in again.err
    assert cli.json("submit", "--type", "demo", "--idempotency-key", "k")["duplicate"] is True


def test_a_full_queue_says_when_to_come_back(cli: Cli) -> None:
    env = {"DTQ_MAX_QUEUE_DEPTH": "1"}
    cli.ok("submit", "--type", "demo", env=env)
    err = cli.refused("QUEUE_FULL", "submit", "--type", "demo", env=env)
    assert "(try again in " in err


@pytest.mark.contract("C12.02", "C12.04", "C12.06", "C12.07")
@pytest.mark.parametrize("command", ["get", "cancel", "retry-dlq", "discard-dlq"])
@pytest.mark.parametrize("task_id", [NOBODY, "no id", "", "\x1b[31m"])
def test_ids_of_nobody(cli: Cli, command: str, task_id: str) -> None:
    assert "\x1b" not in cli.refused("TASK_NOT_FOUND", command, task_id)


def test_a_live_task_is_no_dead_letter(cli: Cli) -> None:
    task_id = cli.submit("demo")
    for command in ("retry-dlq", "discard-dlq"):
        cli.refused("DEAD_LETTER_NOT_FOUND", command, task_id)


@pytest.mark.contract("C12.03")
def test_list(cli: Cli) -> None:
    assert cli.ok("list") == "no tasks\n"
    first, second = cli.submit("one"), cli.submit("two", "{}", "--queue", "other", "--delay-seconds", "60")
    header, *lines = cli.ok("list").splitlines()
    assert header.split() == ["TASK", "TYPE", "QUEUE", "STATUS", "ATT", "AGE"]
    assert [line.split()[:4] for line in lines] == [
        [second, "two", "other", "pending"],
        [first, "one", "default", "queued"],
    ]
    assert [t["task_id"] for t in cli.json("list")["tasks"]] == [second, first]
    assert [t["task_id"] for t in cli.json("list", "--queue", "other")["tasks"]] == [second]
    assert [t["task_id"] for t in cli.json("list", "--status", "queued")["tasks"]] == [first]
    assert [t["task_id"] for t in cli.json("list", "--type", "one")["tasks"]] == [first]
    page = cli.json("list", "--limit", "1")
    assert (len(page["tasks"]), page["more"], set(page["tasks"][0])) == (1, True, TASK_KEYS)
    cli.refused("INVALID_ARGUMENT", "list", "--queue", "No Queue", status=2)


def test_list_over_many_pages(cli: Cli, engine: Server) -> None:
    seed = cli.submit("demo")
    row = engine.redis.hgetall(f"dtq:task:{seed}")
    with engine.redis.pipeline(transaction=False) as pipe:
        for n in range(349):
            task_id = f"{n:032x}"
            pipe.hset(f"dtq:task:{task_id}", mapping={**row, "task_id": task_id})
            pipe.zadd("dtq:tasks:recent", {task_id: n})
        pipe.execute()
    page = cli.json("list", "--limit", "300")
    assert (len({t["task_id"] for t in page["tasks"]}), page["more"]) == (300, True)
    page = cli.json("list", "--limit", "2000")
    assert (len({t["task_id"] for t in page["tasks"]}), page["more"]) == (350, False)


def test_everything_fits_80_columns(cli: Cli) -> None:
    queue, task_type = "q" * 64, "t" * 128
    task_id = cli.submit(task_type, json.dumps({"text": "x " * 60}), "--queue", queue)
    for command in (["list"], ["queue", "stats"], ["workers"], ["dlq", "list"], ["audit", "verify"]):
        assert all(len(line) <= 80 for line in cli.ok(*command).splitlines()), command
    assert task_id in cli.ok("list")


@pytest.mark.contract("C12.04", "D26")
def test_cancel(cli: Cli, engine: Server) -> None:
    task_id = cli.submit("demo")
    assert cli.json("cancel", task_id) == {"task_id": task_id, "status": "cancelled"}
    assert cli.json("get", task_id)["status"] == "cancelled"
    cli.refused("TASK_TERMINAL", "cancel", task_id)
    ((_, entry),) = engine.redis.xrange("dtq:stream:audit")
    assert entry["task_id"] == task_id and "cancel" in entry["action"] and len(entry["request_id"]) == 32
    assert entry["actor"] == f"cli:{getpass.getuser()}@{socket.gethostname()}"


@pytest.mark.contract("C12.09", "D22")
def test_purge_asks_first_and_clears_the_queue(cli: Cli, engine: Server) -> None:
    ids = [cli.submit("demo", "{}", "--queue", "full") for _ in range(2)]
    ids.append(cli.submit("demo", "{}", "--queue", "full", "--delay-seconds", "600"))
    keep = cli.submit("demo")
    err = cli.refused("INVALID_ARGUMENT", "purge", "--queue", "full", status=2)
    assert "--yes" in err and "--dry-run" in err
    dry = cli.json("purge", "--queue", "full", "--dry-run")
    assert (dry["matched"], dry["changed"], dry["dry_run"], sorted(dry["sample"])) == (3, 0, True, sorted(ids))
    assert cli.ok("purge", "--queue", "full", "--dry-run").startswith(
        "dry run, would be: 3 tasks of queue full cancelled\n"
    )
    assert cli.json("queue", "stats", "full")["depth"] == 2
    assert cli.ok("purge", "--queue", "full", "--yes") == "3 tasks of queue full cancelled\n"
    assert {cli.json("get", i)["status"] for i in ids} == {"cancelled"}
    assert cli.json("get", keep)["status"] == "queued"
    assert cli.json("purge", "--queue", "full", "--yes")["changed"] == 0
    assert any("purge" in fields["action"] for _, fields in engine.redis.xrange("dtq:stream:audit"))


@pytest.mark.contract("C12.10", "C12.11", "C12.12")
def test_queue_pause_resume_stats(cli: Cli) -> None:
    cli.submit("demo"), cli.submit("demo", "{}", "--delay-seconds", "3600")
    assert cli.json("queue", "pause", "default") == {"queue": "default", "paused": True, "changed": True}
    assert cli.ok("queue", "pause", "default") == "queue default was paused already\n"
    stats = cli.json("queue", "stats", "default")
    assert {"queue", "depth", "pending", "paused", "retry_scheduled", "dlq_depth", "workers_active"} <= set(stats)
    assert (stats["depth"], stats["pending"], stats["paused"], stats["retry_scheduled"]) == (1, 0, True, 1)
    assert cli.ok("queue", "stats").splitlines()[1].split() == ["default", "1", "0", "1", "0", "0", "paused"]
    assert cli.json("queue", "resume", "default")["changed"] is True
    assert cli.json("queue", "stats") == {"queues": [{**stats, "paused": False}]}
    assert cli.json("queue", "stats", "unknown")["depth"] == 0
    assert cli("queue", "stats", "unknown").err == "there is no queue unknown yet\n"
    for words in ("pause", "resume", "stats"):
        assert cli("queue", words, "defalt").err == "there is no queue defalt yet; did you mean default?\n"
        assert cli("queue", words, "default").err == ""
    cli.refused("INVALID_ARGUMENT", "queue", "pause", "No Queue", status=2)


def test_empty_places_say_so(cli: Cli) -> None:
    assert cli.ok("workers").startswith("no workers")
    assert cli.ok("dlq", "list") == "no dead letters\n"
    assert cli.ok("queue", "stats").startswith("no queues yet")
    assert cli.json("workers") == {"workers": []}
    assert cli.json("dlq", "list") == {"dead_letters": [], "more": False}
    assert cli.json("queue", "stats") == {"queues": []}


@pytest.mark.contract("D20")
def test_audit_verify(cli: Cli, engine: Server) -> None:
    task_id = cli.submit("demo")
    assert "ok     1 queue, 1 task, 1 entry: nothing is lost" in cli.ok("audit", "verify")
    report = cli.json("audit", "verify", "--queue", "default")
    assert (report["ok"], report["findings"], report["tasks"]) == (True, [], 1)
    engine.redis.xtrim("dtq:stream:default:p5", maxlen=0)
    broken = cli("audit", "verify")
    assert broken.code == 1 and task_id in broken.out and broken.err == ""
    report = cli("audit", "verify", "--json")
    assert report.code == 1
    document = json.loads(report.out)
    assert document["ok"] is False and task_id in {finding["task_id"] for finding in document["findings"]}


@pytest.mark.contract("D20")
def test_audit_receipts(cli: Cli) -> None:
    task_id = cli.submit("demo")
    receipts = cli.folder / "receipts"
    receipts.write_text(f"# kept by the shop\n\n{task_id} order 7\n")
    cli.ok("audit", "verify", "--receipts", "receipts")
    cli.ok("audit", "verify", "--receipts", "-", stdin=f"{task_id}\n")
    receipts.write_text(f"{task_id}\n{NOBODY}\n")
    lost = cli("audit", "verify", "--receipts", "receipts")
    assert lost.code == 1 and NOBODY in lost.out
    receipts.write_text(f"{task_id}\norder 7\n")
    assert "line 2" in cli.refused("INVALID_ARGUMENT", "audit", "verify", "--receipts", "receipts", status=2)
    cli.refused("INVALID_ARGUMENT", "audit", "verify", "--receipts", "missing", status=2)


def test_no_server(cli: Cli) -> None:
    nowhere = "redis://:very-secret@127.0.0.1:1/0"
    for command in (["list"], ["submit", "--type", "demo"], ["purge", "--queue", "q", "--yes"], ["audit", "verify"]):
        err = cli.refused("REDIS_UNAVAILABLE", *command, env={"DTQ_REDIS_URL": nowhere})
        assert "127.0.0.1:1" in err and "DTQ_REDIS_URL" in err and "very-secret" not in err
    err = cli.refused("REDIS_UNAVAILABLE", "list", "--redis", nowhere)
    assert "--redis" in err and "very-secret" not in err


def test_redis_flag_wins(cli: Cli, engine: Server) -> None:
    cli.submit("demo")
    assert len(cli.json("list", "--redis", engine.url(), env={"DTQ_REDIS_URL": "redis://127.0.0.1:1/0"})["tasks"]) == 1
    assert cli.json("list", "--redis", engine.url(db=1))["tasks"] == []


@pytest.mark.contract("C10.27")
def test_a_bad_setting_names_its_variable(cli: Cli) -> None:
    for name, value in [("DTQ_REDIS_URL", "nonsense"), ("DTQ_MAX_ATTEMPTS", "many"), ("DTQ_LOG_LEVEL", "LOUD")]:
        for command in (["list"], ["worker", "run"], ["scheduler", "run"]):
            assert name in cli.refused("INVALID_CONFIG", *command, status=2, env={name: value})


def test_a_key_of_the_wrong_type_is_an_error_not_a_crash(cli: Cli, engine: Server) -> None:
    engine.redis.set("dtq:tasks:recent", "x")
    cli.refused("STORE_ERROR", "list")


def test_version(cli: Cli) -> None:
    assert cli.ok("--version").startswith("dtq 0.")


def test_events_for_a_while(cli: Cli) -> None:
    assert cli.ok("events", "--seconds", "0.1") == ""


def test_only_what_a_command_needs_is_imported(cli: Cli) -> None:
    """What makes `dtq get` start quickly: no server, no worker, no handlers. Its time is measured in benchmarks/."""
    heavy = (
        "fastapi",
        "uvicorn",
        "prometheus_client",
        "dtq_api",
        "dtq_worker",
        "dtq_scheduler",
        "dtq_examples",
        "uvloop",
    )
    code = (
        "import sys, dtq_cli.cli; sys.argv = ['dtq', 'get', '0' * 32]; dtq_cli.cli.main();"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cli.folder, env=dict(cli.env), timeout=60
    )
    assert done.stdout.strip() == "[]", done


def test_works_from_a_directory_with_a_hostile_name(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "redis.py"
    folder.mkdir()
    (folder / "json.py").write_text("raise SystemExit('imported from the current directory')")
    assert Cli(folder, cli.env).ok("list") == "no tasks\n"
