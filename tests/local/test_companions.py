"""status, down, logs, --fresh: what one does with a `dtq up`, on real ones and in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from local.running import Up, environment
from support.eventually import always, eventually
from support.processes import DTQ

from dtq_core.config import load_settings
from dtq_core.errors import AlreadyRunning, InvalidArgument
from dtq_local import wiping
from dtq_local.engine import Engine, ask
from dtq_local.family import api_host
from dtq_local.spawn import popen
from dtq_local.state import StateDir
from dtq_local.stopping import stop


def dtq(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [DTQ, *args],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr
    return done


def test_up_is_said_when_a_task_would_be_run(up: Callable[..., Up]) -> None:
    """Every worker has its row and the API answers at the moment of "DTQ is up."."""
    one = up()
    one.saying(r"^DTQ is up\.")
    assert [w["status"] for w in one.json("workers")["workers"]] == ["ready", "ready"]
    assert one.record["ready"] is True

    told = one.dtq("status")
    assert f"dtq up runs with pid {one.process.pid} since 20" in told
    assert all(f"pid {pid}" in told for pid in one.record["processes"].values())
    document = one.json("status")
    assert document["running"] is True and document["processes"] == one.record["processes"]

    record = one.record
    done = dtq(one.folder, "down", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"stopped": one.process.pid})
    assert one.process.wait(1) == 0, "it has ended when down says so"
    one.everything_is_gone(record)

    assert (dtq(one.folder, "status").returncode, dtq(one.folder, "down").returncode) == (1, 0)
    assert "nothing runs on .dtq" in dtq(one.folder, "down").stdout
    assert json.loads(dtq(one.folder, "status", "--json").stdout) == {"running": False, "starting": False}

    kept = dtq(one.folder, "logs", "dtq", "-n", "1")
    assert re.fullmatch(r"dtq       \| [\d:]{8} stopped; the data stays for the next dtq up\n", kept.stdout)


def test_down_waits_for_what_runs_and_now_does_not(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    task_id = one.submit("sleep_task", '{"seconds": 25}')
    one.wait_for(task_id, "running")
    slow = dtq(one.folder, "down", "--timeout", "0.2")
    assert slow.returncode == 1 and slow.stdout == ""
    assert "has not ended after 0.2 s (dtq down --now kills what runs)" in slow.stderr
    done = dtq(one.folder, "down", "--now")
    assert done.returncode == 0 and one.process.wait(1) == 128 + signal.SIGTERM
    two = up("--workers", "1").ready(1)
    assert two.json("get", task_id)["status"] in ("running", "queued", "retrying"), "its task is not lost"


@pytest.mark.skipif(sys.platform != "linux", reason="the proof is in /proc")
def test_down_ends_nobody_else(tmp_path: Path) -> None:
    """A pid in the lock file is believed only of the process that has the lock file open."""
    holder = """
import os, sys
from dtq_local.state import StateDir
with StateDir(sys.argv[1]).locked():
    open(os.path.join(sys.argv[1], "up.lock"), "w").write(sys.argv[2])
    print("held", flush=True)
    sys.stdin.read()
"""
    victim = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    other = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path), str(victim.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyRunning, match="not by a process that can be told"):
            stop(StateDir(tmp_path), 1.0)
        for text in ("", "x", "-1", "1", "9" * 30):
            (tmp_path / "up.lock").write_text(text)
            with pytest.raises(AlreadyRunning):
                stop(StateDir(tmp_path), 1.0)
        always(lambda: victim.poll() is None, 0.1)
    finally:
        for process in (other, victim):
            process.communicate(b"")
    assert stop(StateDir(tmp_path), 1.0) is None


def test_logs_are_followed_filtered_and_quiet_in_a_broken_pipe(up: Callable[..., Up]) -> None:
    one = up("--workers", "1").ready(1)
    followers = [
        popen([DTQ, "logs", *args], cwd=one.folder, env=one.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for args in (["-f", "-n", "0", "worker-1"], ["--follow"])
    ]
    try:
        of_worker, broken = followers
        assert of_worker.stdout is not None and broken.stdout is not None
        broken.stdout.readline()
        broken.stdout.close()
        task_id = one.submit("echo_task")
        seen = of_worker.stdout.readline().decode()
        while task_id[:8] not in seen:
            assert seen.startswith("worker-1  | ")
            seen = of_worker.stdout.readline().decode()
        of_worker.send_signal(signal.SIGINT)
        assert of_worker.communicate(timeout=20)[1] == b"" and of_worker.returncode == 130
        assert broken.wait(20) == 141
        assert broken.stderr is not None and broken.stderr.read() == b""
    finally:
        for follower in followers:
            follower.kill()
    assert "Ready to accept connections" in dtq(one.folder, "logs", "engine").stdout
    [last] = [json.loads(text) for text in dtq(one.folder, "logs", "worker-1", "-n", "1", "--json").stdout.splitlines()]
    assert last["name"] == "worker-1" and "succeeded" in last["line"]
    unknown = dtq(one.folder, "logs", "worker-9")
    assert unknown.returncode == 2 and "api, dtq, engine, scheduler, worker-1" in unknown.stderr


def test_without_a_log(tmp_path: Path) -> None:
    done = dtq(tmp_path, "logs")
    assert done.returncode == 2 and done.stderr.startswith("error INVALID_ARGUMENT: there is no log in .dtq")
    assert list(tmp_path.iterdir()) == []


def answer(folder: Path, text: str, *args: str) -> tuple[subprocess.Popen[bytes], str]:
    """`dtq up --fresh` in a terminal, after `text` was typed at its question: the process, and what it showed until then."""
    master, slave = pty.openpty()
    process = popen(
        [DTQ, "up", "--fresh", *args], env=environment(), cwd=folder, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = ""
    while "[y/N] " not in shown:
        shown += os.read(master, 65_536).decode()
    os.write(master, text.encode())
    return process, shown


def test_fresh_asks_and_begins_with_nothing(up: Callable[..., Up], tmp_path: Path) -> None:
    state = StateDir(tmp_path / ".dtq")
    with state.locked(), Engine(state.engine_dir) as engine:
        ask(engine.port, "SET mine 1")
        (state.path / "notes.txt").write_text("mine")
        state.log_file.write_text("old\n")
    before = wiping.contents(state)
    assert {"up.log", "engine.log"} <= {path.name for path in before}

    refused, shown = answer(tmp_path, "n\n")
    assert re.search(r"Delete all tasks and logs that are kept in \.dtq \(\d+\.\d MB\)\? \[y/N\]", shown)
    assert refused.wait(20) == 1
    nobody = dtq(tmp_path, "up", "--fresh")
    assert nobody.returncode == 2 and "say --yes" in nobody.stderr
    assert wiping.contents(state) == before, "asking costs nothing"

    one = up("--workers", "1", "--fresh", "--yes").ready(1)
    assert one.record["engine"]["port"] == engine.port
    assert ask(engine.port, "EXISTS mine") == b":0\r\n"
    assert "old" not in state.log_file.read_text()
    ask(engine.port, "SET mine 2")
    second = dtq(tmp_path, "up", "--fresh", "--yes")
    assert second.returncode == 1 and "ALREADY_RUNNING" in second.stderr
    assert ask(engine.port, "GET mine") == b"$1\r\n2\r\n", "what runs is not touched"
    assert (state.path / "notes.txt").read_text() == "mine"
    assert one.stop() == 0


def test_fresh_deletes_only_what_a_state_directory_holds(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "engine").mkdir(parents=True)
    (foreign / "engine" / "dump.rdb").write_text("a database of somebody else")
    with pytest.raises(InvalidArgument, match="no dtq up has kept anything there"):
        wiping.wipe(StateDir(foreign))
    assert wiping.contents(StateDir(tmp_path / "none")) == []

    state = StateDir(tmp_path / "state")
    with state.locked():
        ours = [
            "up.log",
            "up.log.1",
            "engine/engine.log",
            "engine/dump.rdb",
            "engine/appendonlydir/appendonly.aof.1.incr.aof",
        ]
        theirs = ["notes.txt", "up.log.bak", "engine/redis.conf", "engine/appendonlydir/readme", "engine/engine.json"]
        (state.path / "engine" / "appendonlydir").mkdir(parents=True)
        for name in (*ours, *theirs):
            (state.path / name).write_text("x")
        (state.path / "up.log.2").symlink_to(foreign / "engine" / "dump.rdb")
        wiping.wipe(state)
        left = {str(path.relative_to(state.path)) for path in state.path.rglob("*") if path.is_file()}
        assert left == {*theirs, "up.log.2", "up.lock", ".gitignore"}
        assert (foreign / "engine" / "dump.rdb").exists()

        linked = StateDir(tmp_path / "linked")
        with linked.locked():
            linked.engine_dir.symlink_to(foreign / "engine")
            with pytest.raises(InvalidArgument, match="engine is a link"):
                wiping.wipe(linked)
    assert (foreign / "engine" / "dump.rdb").exists()


@pytest.mark.parametrize(
    "args, words",
    [
        (["up", "--yes"], "--yes answers the question of --fresh"),
        (
            ["up", "--fresh", "--yes", "--redis", "redis://127.0.0.1:1/0"],
            "--fresh is for the engine that dtq up starts",
        ),
        (["down", "--timeout", "-1"], "not a number of seconds from 0"),
        (["logs", "-n", "many"], "not a whole number"),
        (["logs", "--state", "/dev/null"], "there is no log"),
    ],
)
def test_wrong_calls(tmp_path: Path, args: list[str], words: str) -> None:
    done = dtq(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr and done.stderr.count("\n") == 1


def test_what_is_in_the_way_is_replaced_and_said(up: Callable[..., Up], tmp_path: Path) -> None:
    """Last time's port of the engine, the port of the metrics, the place of the log."""
    engine_dir = tmp_path / ".dtq" / "engine"
    engine_dir.mkdir(parents=True)
    (tmp_path / ".dtq" / "up.log").mkdir()
    (tmp_path / ".dtq" / "up.lock").touch()
    with socket.socket() as engine, socket.socket() as metrics:
        for taken in (engine, metrics):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        last, wanted = engine.getsockname()[1], metrics.getsockname()[1]
        (engine_dir / "engine.json").write_text(json.dumps({"port": last}))
        one = up("--workers", "1", DTQ_METRICS_HOST="127.0.0.1", DTQ_METRICS_PORT=str(wanted), DTQ_API_KEY="k")
        one.saying(r"^DTQ is up\.")
        assert f"port {last} of last time is taken: the engine listens on {one.record['engine']['port']}" in one.log
        assert re.search(rf"port {wanted} is taken: the metrics of worker-1 are on \d+", one.log)
        assert "the log is not kept: up.log: Is a directory" in one.log
        assert one.record["api"].startswith("http://127.0.0.1:"), "a key alone does not open the API to the network"

        port = int(one.record["api"].rpartition(":")[2])
        with socket.socket() as thief:  # somebody takes the port of the API while that is started again
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            os.kill(one.record["processes"]["api"], signal.SIGKILL)
            eventually(lambda: thief.bind(("127.0.0.1", port)) is None)
            thief.listen()
            one.saying(rf"port {port} is taken: the API listens on \d+")
        moved = eventually(lambda: one.record["api"] if "api" in one.record["processes"] else "")
        assert moved.startswith("http://127.0.0.1:") and not moved.endswith(f":{port}")
        assert one.stop() == 0


@pytest.mark.parametrize(
    "env, host, words",
    [
        ({}, "127.0.0.1", ""),
        ({"DTQ_API_KEY": "k"}, "127.0.0.1", ""),
        ({"DTQ_API_HOST": "0.0.0.0"}, "127.0.0.1", "DTQ_API_HOST is not used without DTQ_API_KEY"),
        ({"DTQ_API_HOST": "::1"}, "::1", ""),
        ({"DTQ_API_KEY": "k", "DTQ_API_HOST": "0.0.0.0"}, "0.0.0.0", ""),
    ],
)
def test_the_api_is_for_this_machine_unless_asked(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], host: str, words: str
) -> None:
    for name in ("DTQ_API_KEY", "DTQ_API_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found, note = api_host(load_settings(), os.environ)
    assert found == host and note.startswith(words) and bool(note) is bool(words)


def test_every_process_serves_its_numbers_on_this_machine_only(up: Callable[..., Up]) -> None:
    """DTQ_METRICS_PORT is the first of a row: the workers', then the scheduler's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1]
    one = up("--workers", "2", DTQ_METRICS_PORT=str(first))
    one.saying(r"^DTQ is up\.")
    served = {}
    for port in range(first, first + 3):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            served[port] = answer.read().decode()
    assert ["dtq_worker_inflight{" in text for text in served.values()] == [True, True, False]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, port = address.split(":")
        if int(port, 16) in served and state == "0A":
            assert host == "0100007F", "it listens on the loopback address"
    assert one.stop() == 0
