"""A real `dtq up` in a directory of its own, and how to wait for what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import redis
from support.eventually import eventually
from support.processes import DTQ

from dtq_local.spawn import popen


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DTQ_", "NO_COLOR"))}
    return kept | {"DTQ_RETRY_BASE_DELAY": "0.05", "DTQ_HEARTBEAT_INTERVAL_S": "0.5"} | more


class Up:
    """A `dtq up` in `folder`; what it says is in `folder/up.log`."""

    def __init__(self, folder: Path, *args: str, **env: str) -> None:
        self.folder = folder
        self.env = environment(**env)
        self._log = folder / "up.log"
        with self._log.open("ab") as log:
            self.process = popen(
                [DTQ, "up", *args],
                env=self.env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / ".dtq" / "up.json").read_text())
        return found

    def saying(self, pattern: str, timeout: float = 20) -> str:
        """The first line of the log that matches."""

        def said() -> str | None:
            assert self.process.poll() is None or re.search(pattern, self.log), f"it ended:\n{self.log}"
            return next((line for line in self.log.splitlines() if re.search(pattern, line)), None)

        return eventually(said, timeout, lambda: f"{pattern!r} in the log:\n{self.log}") or ""

    def ready(self, workers: int = 2) -> Up:
        """Wait until that many workers announced themselves."""

        def there() -> bool:
            assert self.process.poll() is None, self.log
            redis = self.redis
            rows = [redis.hget(f"dtq:worker:{worker}", "status") for worker in redis.smembers("dtq:workers")]
            return rows.count("ready") >= workers

        eventually(there, 30, lambda: f"{workers} workers:\n{self.log}")
        return self

    @property
    def redis(self) -> Any:
        """A client of the server: to look often costs too much as a process each time."""
        return redis.Redis.from_url(self.record["url"], decode_responses=True, protocol=2)

    def dtq(self, *args: str) -> str:
        """stdout of a command in the same directory, which has to find this `dtq up` by itself."""
        done = subprocess.run([DTQ, *args], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (args, done.stdout, done.stderr, self.log)
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.dtq(*args, "--json"))

    def submit(self, task_type: str, payload: str = "{}", *more: str) -> str:
        return self.dtq("submit", "-q", "--type", task_type, "--payload", payload, *more).strip()

    def wait_for(self, task_id: str, status: str) -> dict[str, Any]:
        redis = self.redis
        eventually(
            lambda: redis.hget(f"dtq:task:{task_id}", "status") == status, 30,
            lambda: f"{task_id} {status}: {self.dtq('get', task_id)}\n{self.log}",
        )  # fmt: skip
        task: dict[str, Any] = self.json("get", task_id)
        return task

    def stop(self, signum: int = signal.SIGTERM, timeout: float = 30) -> int:
        self.process.send_signal(signum)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"dtq up does not stop:\n{self.log}") from None

    def everything_is_gone(self, record: dict[str, Any]) -> None:
        pids = [*record["processes"].values(), *([record["engine"]["pid"]] if record["engine"] else [])]
        for pid in pids:
            eventually(lambda pid=pid: is_gone(pid), what=f"process {pid} of {record} to end")


def is_gone(pid: int) -> bool:
    """Ended; a zombie that nobody reaps counts too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
