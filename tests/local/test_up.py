"""`dtq up`, the real one: engine, scheduler and workers start, work, die, come back and stop as one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from local.running import Up, environment
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ

from dtq_local.engine import ask
from dtq_local.spawn import popen


def test_the_walk_of_the_readme(up: Callable[..., Up]) -> None:
    one = up().ready()
    record = one.record
    assert set(record["processes"]) == {"scheduler", "api", "worker-1", "worker-2"}
    assert record["pid"] == one.process.pid and record["url"] == f"redis://127.0.0.1:{record['engine']['port']}/0"

    hello = one.submit("echo_task", '{"hello": "world"}')
    assert one.wait_for(hello, "succeeded")["result"] == {"hello": "world"}
    assert '"hello": "world"' in one.dtq("get", hello)

    flaky = one.wait_for(one.submit("flaky_task", '{"fail_times": 2}'), "succeeded")
    assert flaky["attempt"] == 3 and [a["error_class"] for a in flaky["history"]] == [
        "RetryableError",
        "RetryableError",
        None,
    ]

    dead = one.submit("always_fail_task")
    assert one.wait_for(dead, "dead_lettered")["error_class"]
    assert [letter["task_id"] for letter in one.json("dlq", "list")["dead_letters"]] == [dead]
    assert dead in one.dtq("dlq", "list")
    assert one.json("queue", "stats", "default")["dlq_depth"] == 1
    one.dtq("retry-dlq", dead)
    again = eventually(
        lambda: (
            (t := one.json("get", dead))["status"] == "dead_lettered" and "previous_attempts" in t["metadata"] and t
        ),
        20,
    )
    assert again
    one.dtq("discard-dlq", dead)
    assert one.json("dlq", "list")["dead_letters"] == []

    delayed = one.submit("echo_task", "{}", "--delay-seconds", "0.3")
    one.wait_for(delayed, "succeeded")
    later = one.submit("echo_task", "{}", "--delay-seconds", "600")
    one.dtq("cancel", later)
    assert {t["task_id"] for t in one.json("list")["tasks"]} == {hello, flaky["task_id"], dead, delayed, later}

    stats = one.json("queue", "stats", "default")
    assert (stats["depth"], stats["pending"], stats["retry_scheduled"], stats["workers_active"]) == (0, 0, 0, 2)
    assert re.search(r"^ok     1 queue, 5 tasks, \d+ ent", one.dtq("audit", "verify"), re.MULTILINE)

    assert one.stop() == 0
    one.everything_is_gone(record)
    assert not (one.folder / ".dtq" / "up.json").exists()
    assert "stopped; the data stays" in one.log


def test_the_log_and_the_banner(up: Callable[..., Up]) -> None:
    one = up(
        "--workers", "1", "--concurrency", "7", "--queue", "a", "--queue", "b", "--tasks", "dtq_examples.tasks"
    ).ready(1)
    one.saying("^Ctrl-C")
    banner = one.log[: one.log.index("Ctrl-C finishes")]
    assert re.search(r"engine +(Valkey|Redis) [\d.]+ on 127\.0\.0\.1:\d+, pid \d+, data in \.dtq/engine", banner)
    assert re.search(r"worker-1 +pid \d+, 7 at a time, queue a, b", banner)
    assert re.search(r"api +pid \d+, http://127\.0\.0\.1:\d+; for this machine only", banner)
    assert "tasks      dtq_examples.tasks" in banner
    rows = banner[banner.index("DTQ is up.") : banner.index("In another terminal")]
    assert [line for line in rows.splitlines() if len(line) > 80] == []
    assert f"export DTQ_REDIS_URL={one.record['url']}" in banner
    assert "submit --type echo_task" in banner and "--queue a" in banner
    lines = [*one.log.partition("\nDTQ is up.")[0].splitlines(), *one.log.partition("everything.\n\n")[2].splitlines()]
    assert len(lines) > 3 and all(re.match(r"(dtq|scheduler|api|worker-1) +\| ", line) for line in lines), one.log
    assert len({line.index("|") for line in lines}) == 1
    assert "\x1b" not in one.log
    (worker,) = one.json("workers")["workers"]
    assert (worker["concurrency"], worker["queues"]) == (7, ["a", "b"])
    one.wait_for(one.submit("echo_task", "{}", "--queue", "b"), "succeeded")


def ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def test_the_api_answers_and_moves_when_its_port_is_taken(up: Callable[..., Up]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one = up("--workers", "1", DTQ_API_PORT=str(port)).ready(1)
        eventually(lambda: f"port {port} is taken" in one.log)
        url = one.record["api"]
        assert url.startswith("http://127.0.0.1:") and not url.endswith(f":{port}")
        assert eventually(lambda: ready(url))


def test_data_and_address_survive_a_restart(up: Callable[..., Up]) -> None:
    first = up("--workers", "1").ready(1)
    url = first.record["url"]
    first.dtq("queue", "pause", "default")
    waiting = first.submit("echo_task", '{"n": 1}')
    delayed = first.submit("echo_task", "{}", "--delay-seconds", "1")
    assert first.stop() == 0
    second = up("--workers", "1").ready(1)
    assert second.record["url"] == url
    assert second.json("queue", "stats", "default")["paused"] is True
    assert second.json("get", waiting)["status"] == "queued"
    second.dtq("queue", "resume", "default")
    assert second.wait_for(waiting, "succeeded")["result"] == {"n": 1}
    second.wait_for(delayed, "succeeded")
    second.dtq("audit", "verify")
    assert second.stop() == 0


def test_a_second_one_is_refused(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    done = subprocess.run([DTQ, "up"], env=one.env, cwd=one.folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert all(f"pid {pid}" in done.stdout for pid in one.record["processes"].values()), "it says what runs where"
    assert done.stderr.startswith("error ALREADY_RUNNING: ") and done.stderr.count("\n") == 1
    assert str(one.process.pid) in done.stderr and one.record["url"] in done.stderr
    one.wait_for(one.submit("echo_task"), "succeeded")


def test_two_in_two_directories(up: Callable[..., Up], tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    a, b = (up("--workers", "1", folder=folder) for folder in folders)
    a.ready(1), b.ready(1)
    assert a.record["url"] != b.record["url"]
    a.submit("echo_task")
    assert b.json("list")["tasks"] == []


def test_killed_children_are_started_again(up: Callable[..., Up]) -> None:
    one = up().ready()
    before = one.record["processes"]
    for name in ("worker-1", "scheduler"):
        os.kill(before[name], signal.SIGKILL)
        assert "is started again in 0.5 s" in one.saying(rf"{name} was killed by SIGKILL")
    after = eventually(
        lambda: set(one.record["processes"]) == set(before) and one.record["processes"],
        20,
        lambda: f"{set(before)} to run again, not {one.record['processes']}:\n{one.log}",
    )
    assert after["worker-2"] == before["worker-2"] and after["worker-1"] != before["worker-1"]
    assert after["scheduler"] != before["scheduler"]
    one.ready(2)
    one.wait_for(one.submit("echo_task"), "succeeded")
    assert one.stop() == 0


def test_a_killed_engine_is_started_again_with_its_data(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    task_id = one.submit("echo_task", "{}", "--delay-seconds", "1")
    before = one.record
    os.kill(before["engine"]["pid"], signal.SIGKILL)
    one.saying("the engine was killed by SIGKILL")
    one.saying("the engine runs again")
    assert one.record["url"] == before["url"] and one.record["engine"]["pid"] != before["engine"]["pid"]
    one.wait_for(task_id, "succeeded")
    assert one.stop() == 0


HELD = """
import asyncio, os
from dtq_tasks import task

@task("held")
async def held(payload, ctx):
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    return "done"
"""


def test_running_work_is_finished_before_the_engine_goes(up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    one = up("--workers", "1", "--tasks", "held").ready(1)
    task_id = one.submit("held")
    one.wait_for(task_id, "running")
    one.process.send_signal(signal.SIGINT)
    one.saying("stopping: workers finish what they run, at most 30 s")
    (tmp_path / "go").touch()
    assert one.process.wait(30) == 0
    again = up("--workers", "1", "--tasks", "held").ready(1)
    task = again.json("get", task_id)
    assert (task["status"], task["attempt"], task["result"]) == ("succeeded", 1, "done")


def test_a_second_ctrl_c_kills(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    one.wait_for(one.submit("sleep_task", '{"seconds": 25}'), "running")
    record = one.record
    one.process.send_signal(signal.SIGINT)
    one.saying("stopping")
    assert one.stop(signal.SIGINT, timeout=10) == 130
    one.everything_is_gone(record)


def test_a_hang_up_of_the_terminal_drains(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    record = one.record
    assert one.stop(signal.SIGHUP) == 0
    one.everything_is_gone(record)


def test_kill_9_leaves_nothing_behind_and_the_next_one_starts(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    record = one.record
    task_id = one.submit("echo_task", "{}", "--delay-seconds", "600")
    one.process.kill()
    one.process.wait()
    two = up("--workers", "1").ready(1)
    one.everything_is_gone(record)
    assert two.json("get", task_id)["status"] == "pending"
    assert two.stop() == 0


def test_work_goes_on_when_stdout_is_gone(up: Callable[..., Up], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = popen(
        [DTQ, "up", "--workers", "1"],
        env=environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    try:
        os.read(reader, 10)
        os.close(reader)
        one = object.__new__(Up)
        one.folder, one.env, one.process, one._log = tmp_path, environment(), process, Path(os.devnull)
        one.ready(1)
        one.wait_for(one.submit("echo_task"), "succeeded")
        assert one.stop() == 0
    finally:
        process.kill()


def test_colours_on_a_terminal(tmp_path: Path) -> None:
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        master, slave = pty.openpty()
        process = popen(
            [DTQ, "up", "--workers", "1"], env=environment(TERM="xterm", **env), cwd=tmp_path,
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        shown = b""
        try:
            while b"scheduler started" not in shown:
                shown += os.read(master, 65_536)
            assert (b"\x1b[" in shown) is coloured
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    if not os.read(master, 65_536):
                        break
                except OSError:  # the other end is closed
                    break
            assert process.wait(20) == 0
        finally:
            process.kill()
            os.close(master)


def test_on_a_given_server(up: Callable[..., Up], engine: Server) -> None:
    one = up("--workers", "1", "--redis", engine.url(db=3)).ready(1)
    assert one.record["engine"] is None and one.record["url"] == engine.url(db=3)
    task_id = one.submit("echo_task")
    one.wait_for(task_id, "succeeded")
    assert engine.client(db=3).exists(f"dtq:task:{task_id}")
    assert not (one.folder / ".dtq" / "engine").exists()
    assert one.stop() == 0
    assert ask(engine.port, "PING") == b"+PONG\r\n"


def test_a_given_server_from_the_environment(up: Callable[..., Up], engine: Server) -> None:
    one = up("--workers", "1", "--redis", DTQ_REDIS_URL=engine.url(db=4)).ready(1)
    assert one.record["url"] == engine.url(db=4)
    two = subprocess.run(
        [DTQ, "up", "--redis"], env=environment(), cwd=one.folder, capture_output=True, text=True, timeout=30
    )
    assert two.returncode == 2 and "DTQ_REDIS_URL, which is not set" in two.stderr


@pytest.mark.parametrize(
    "args, env, code, words",
    [
        (["--tasks", "no_such_module"], {}, 2, "no_such_module"),
        (["--tasks", "not a module"], {}, 2, "DTQ_TASK_MODULES"),
        (["--queue", "No Queue"], {}, 2, "queue"),
        (["--redis", "redis://:secret-word@127.0.0.1:1/0"], {}, 1, "127.0.0.1:1"),
        (["--redis", "nonsense"], {}, 2, "DTQ_REDIS_URL"),
        (["--state", "up.log"], {}, 2, "state directory up.log"),
        ([], {"DTQ_MAX_ATTEMPTS": "many"}, 2, "DTQ_MAX_ATTEMPTS"),
        (["--concurrency", "5000"], {}, 2, "5000 is not from 1 to 1000"),
        (["--workers", "100000"], {}, 2, "100000 is not from 1 to 64"),
        (["--workers", "65"], {}, 2, "65 is not from 1 to 64"),
        (["--state", "."], {}, 2, "state directory .: it holds other things (up.log, for one)"),
    ],
)
def test_what_cannot_start_says_so_and_leaves_nothing(
    up: Callable[..., Up], args: list[str], env: dict[str, str], code: int, words: str
) -> None:
    one = up(*args, **env)
    assert one.process.wait(20) == code, one.log
    assert one.log.startswith("error ") and one.log.count("\n") == 1 and words in one.log, one.log
    assert "secret-word" not in one.log
    assert not (one.folder / ".dtq" / "up.json").exists()


def test_an_unused_url_is_pointed_out(up: Callable[..., Up]) -> None:
    one = up("--workers", "1", DTQ_REDIS_URL="redis://127.0.0.1:1/0")
    assert "DTQ_REDIS_URL is not used" in one.saying("DTQ_REDIS_URL is not")
    assert one.stop() == 0


def test_modules_of_the_current_directory(up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from dtq_tasks import task\n\n@task('greet')\ndef greet(payload, ctx):\n    return f\"hello {payload['name']}\"\n"
    )
    one = up("--workers", "1", "--tasks", "shop").ready(1)
    assert one.wait_for(one.submit("greet", '{"name": "Ann"}'), "succeeded")["result"] == "hello Ann"


def test_a_module_that_cannot_be_imported_is_named_with_its_line_and_tried_again(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    module = tmp_path / "shop.py"
    module.write_text("\nraise RuntimeError('half-written')\n")
    one = up("--workers", "1", "--tasks", "shop")
    line = one.saying("worker-1 .*cannot be imported")
    assert "RuntimeError: half-written" in line and "shop.py line 2" in line and "INVALID_CONFIG" in line
    one.saying("worker-1 exited with 2; it is started again")
    module.write_text("")
    one.ready(1)


def test_json_is_one_document_on_stdout(tmp_path: Path) -> None:
    process = popen(
        [DTQ, "up", "--workers", "1", "--json"], env=environment(), cwd=tmp_path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        assert ask(document["engine"]["port"], "PING") == b"+PONG\r\n"
        process.terminate()
        rest, log = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, b"")
        assert b"dtq       | " in log
    finally:
        process.kill()


def test_a_fixed_worker_id_is_made_unique(up: Callable[..., Up]) -> None:
    one = up(DTQ_WORKER_ID="mine").ready(2)
    assert {w["worker_id"] for w in one.json("workers")["workers"]} == {"mine-1", "mine-2"}


def test_a_signal_between_two_starts_is_heard_at_once(up: Callable[..., Up]) -> None:
    """Of many workers only those are started that were before it; the stop is an orderly one."""
    one = up("--workers", "64", "--json")

    def children() -> int:
        lists = Path(f"/proc/{one.process.pid}/task").glob("*/children")
        return sum(len(file.read_text().split()) for file in lists)

    eventually(lambda: children() >= 3, 30, lambda: one.log)
    one.process.send_signal(signal.SIGTERM)
    most = 0
    while one.process.poll() is None:
        with contextlib.suppress(OSError):
            most = max(most, children())
    assert one.process.returncode == 0, one.log
    assert most < 50, (most, one.log)


def test_modules_without_a_task_are_told(up: Callable[..., Up]) -> None:
    one = up("--workers", "1", "--tasks", "os")
    one.saying(r"worker-1 .*WARN .*DTQ_TASK_MODULES: os: .* no @task")
    assert one.stop() == 0
