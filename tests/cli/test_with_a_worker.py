"""The commands that need somebody who works: dead letters, cancelling what runs, workers, the feed, and the worker itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from cli.calls import Cli
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ, Process

Worker = Callable[..., Process]


def dead_letter(cli: Cli, worker: Worker, queue: str = "default") -> str:
    task_id = cli.submit("always_fail_task", '{"n": 1}', "--max-attempts", "2", "--queue", queue)
    process = worker("--queue", queue)
    cli.wait(task_id, "dead_lettered")
    process.terminate()
    assert process.wait() == 0, process.tail()
    return task_id


@pytest.mark.contract("C12.05", "C12.06")
def test_a_dead_letter_is_shown_and_requeued(cli: Cli, worker: Worker) -> None:
    task_id = dead_letter(cli, worker)
    (letter,) = cli.json("dlq", "list")["dead_letters"]
    assert (letter["task_id"], letter["attempts_made"], letter["payload"]) == (task_id, 2, {"n": 1})
    header, line = cli.ok("dlq", "list").splitlines()
    assert header.split() == ["TASK", "TYPE", "QUEUE", "ATT", "AGE", "ERROR"]
    assert line.startswith(task_id) and len(line) <= 80
    assert cli.json("dlq", "list", "--queue", "other") == {"dead_letters": [], "more": False}
    text = cli.ok("get", task_id)
    assert "dead_lettered" in text and text.count("RetryableError") == 2 and "always fails" in text
    assert all(len(line) <= 80 for line in text.splitlines())

    assert cli.json("retry-dlq", task_id) == {"task_id": task_id, "status": "queued"}
    task = cli.json("get", task_id)
    assert (task["status"], task["attempt"]) == ("queued", 0) and task["metadata"]["previous_attempts"]
    assert cli.ok("dlq", "list") == "no dead letters\n"
    cli.refused("DEAD_LETTER_NOT_FOUND", "retry-dlq", task_id)


@pytest.mark.contract("C12.07")
def test_a_dead_letter_is_discarded(cli: Cli, worker: Worker) -> None:
    task_id = dead_letter(cli, worker)
    assert cli.json("discard-dlq", task_id) == {"task_id": task_id, "status": "dead_lettered", "discarded": True}
    task = cli.json("get", task_id)
    assert (task["status"], task["metadata"]["discarded"]) == ("dead_lettered", True)
    done = cli("discard-dlq", task_id)
    assert done.code == 1 and done.err.startswith("error DEAD_LETTER_"), done
    cli.ok("audit", "verify")


@pytest.mark.contract("C12.08")
def test_purge_dlq_asks_first(cli: Cli, worker: Worker, engine: Server) -> None:
    ids = {dead_letter(cli, worker, "a"), dead_letter(cli, worker, "b")}
    cli.refused("INVALID_ARGUMENT", "purge-dlq", status=2)
    dry = cli.json("purge-dlq", "--dry-run")
    assert (dry["matched"], dry["changed"], set(dry["sample"])) == (2, 0, ids)
    assert cli.ok("purge-dlq", "--queue", "a", "--yes") == "1 dead letter of queue a dropped\n"
    assert cli.json("purge-dlq", "--yes")["changed"] == 1
    assert engine.redis.xlen("dtq:stream:dead-letter") == 0
    cli.ok("audit", "verify")


def test_cancel_of_what_runs(cli: Cli, worker: Worker) -> None:
    worker()
    task_id = cli.submit("sleep_task", '{"seconds": 25}')
    cli.wait(task_id, "running")
    err = cli.refused("CANCEL_REQUESTED", "cancel", task_id)
    assert f"dtq get {task_id}" in err
    cli.wait(task_id, "cancelled")


def test_an_unknown_type_is_refused_where_one_can_know(cli: Cli, worker: Worker) -> None:
    worker()
    assert "dtq workers" in cli.refused("UNKNOWN_TASK_TYPE", "submit", "--type", "no_such_task")


@pytest.mark.contract("C12.13")
def test_workers_and_queues(cli: Cli, worker: Worker) -> None:
    process = worker("--queue", "a", "--queue", "b", "--queue", "a", "--concurrency", "3")
    (row,) = cli.json("workers")["workers"]
    assert (row["worker_id"], row["concurrency"], row["queues"], row["status"]) == (
        process.name,
        3,
        ["a", "b"],
        "ready",
    )
    header, line = cli.ok("workers").splitlines()
    assert header.split()[:4] == ["WORKER", "HOST", "STATUS", "BUSY"] and process.name in line and "0/3" in line
    for queue in ("a", "b"):
        assert cli.json("queue", "stats", queue)["workers_active"] == 1
        cli.wait(cli.submit("echo_task", "{}", "--queue", queue), "succeeded")
    process.terminate()
    assert process.wait() == 0, process.tail()


def test_events_as_json_lines(cli: Cli, worker: Worker, engine: Server) -> None:
    worker()
    follower = subprocess.Popen(
        [DTQ, "events", "--follow", "--json", "--queue", "default"], stdout=subprocess.PIPE, env=dict(cli.env)
    )
    try:
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] >= 1)
        task_id = cli.submit()
        seen = []
        assert follower.stdout is not None
        while "TASK_SUCCEEDED" not in seen:
            event = json.loads(follower.stdout.readline())
            assert event["task_id"] == task_id and event["queue"] == "default"
            seen.append(event["type"])
        assert seen == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
    finally:
        follower.kill()
        follower.wait()


def test_a_worker_logs_json_when_asked(cli: Cli, worker: Worker) -> None:
    process = worker("--json")
    cli.wait(cli.submit(), "succeeded")
    process.terminate()
    assert process.wait() == 0
    lines = [json.loads(line) for line in process.log().splitlines()]
    assert lines and all(line["service"] == "worker" for line in lines)


def test_handlers_of_the_current_directory(cli: Cli, worker: Worker) -> None:
    (cli.folder / "shop.py").write_text(
        "from dtq_tasks import task\n@task('greet')\ndef greet(payload, ctx):\n    return 'hi'\n"
    )
    worker(DTQ_TASK_MODULES="shop")
    assert cli.wait(cli.submit("greet"), "succeeded")["result"] == "hi"


@pytest.mark.parametrize(
    "source, words",
    [
        ("raise ValueError('at import')", "ValueError: at import"),
        ("def f(:", "SyntaxError"),
        ("import no_such_library", "no_such_library"),
        ("from dtq_tasks import task\nfor _ in 'ab':\n    task('same')(lambda payload, ctx: None)", "registered twice"),
    ],
)
def test_modules_that_cannot_be_imported(cli: Cli, source: str, words: str) -> None:
    (cli.folder / "broken.py").write_text(source)
    err = cli.refused("INVALID_CONFIG", "worker", "run", status=2, env={"DTQ_TASK_MODULES": "broken"})
    assert words in err and "broken" in err


def test_processes_without_a_server(cli: Cli) -> None:
    """A worker that cannot reach Redis at its start ends and says where it looked."""
    err = cli("worker", "run", "--redis", "redis://127.0.0.1:1/0").err
    assert "error REDIS_UNAVAILABLE: " in err and "127.0.0.1:1" in err and "--redis" in err


def test_the_scheduler_as_a_process(cli: Cli, engine: Server) -> None:
    process = Process("scheduler", [DTQ, "scheduler", "run"], cli.env, cli.folder)
    try:
        task_id = cli.submit("demo", "{}", "--delay-seconds", "0.5")
        cli.wait(task_id, "queued")
        process.terminate()
        assert process.wait() == 0, process.tail()
        assert not engine.redis.exists("dtq:lock:scheduler")
    finally:
        process.kill()
