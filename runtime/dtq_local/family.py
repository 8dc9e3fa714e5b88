"""The processes of a `dtq up`: what each is called with, which environment it gets, and where the API listens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from dtq_core.config import Settings
from dtq_local.child import Child
from dtq_local.ports import free_port
from dtq_local.sources import fresh_code

HERE = "127.0.0.1"
Spawn = Callable[[str, Sequence[str]], Child]


class Family:
    """Children by role. `loaders` are those that import the task modules."""

    def __init__(self, settings: Settings, workers: int, queues: Sequence[str], spawn: Spawn) -> None:
        self.settings = settings
        wanted = [word for name in queues for word in ("--queue", name)]
        worker = ["worker", "run", "--concurrency", str(settings.worker_concurrency), *wanted]
        self.scheduler = spawn("scheduler", _dtq("scheduler", "run"))
        self.api = spawn("api", _dtq("api", "run"))
        self.workers = [spawn(f"worker-{n}", _dtq(*worker)) for n in range(1, workers + 1)]
        self.loaders = [self.api, *self.workers]
        self.all = [self.scheduler, *self.loaders]
        self.api_address = (HERE, 0)
        self._metrics_ports: dict[str, int] = {}
        self._metrics_host = settings.metrics_host if os.environ.get("DTQ_METRICS_HOST") else HERE

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(child.name for child in self.all)

    def pids(self) -> dict[str, int]:
        """Of those that run now."""
        return {child.name: pid for child in self.all if (pid := child.pid) is not None}

    def find_ports(self, say: Callable[[str], None]) -> None:
        """Choose where the API and the metrics of the others listen; whatever is not as wished is said."""
        host, note = api_host(self.settings, os.environ)
        if note:
            say(note)
        wanted = self.settings.api_port
        self.api_address = host, _found(host, wanted, (), "the API listens", say)
        if not self.settings.metrics_port:
            return
        for n, child in enumerate((*self.workers, self.scheduler)):  # they count up from the one that was given
            taken = {self.api_address[1], *self._metrics_ports.values()}
            wanted = self.settings.metrics_port + n
            what = f"the metrics of {child.name} are"
            self._metrics_ports[child.name] = _found(self._metrics_host, wanted, taken, what, say)

    @property
    def api_url(self) -> str:
        host, port = self.api_address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def keep_api_port(self, say: Callable[[str], None]) -> None:
        """Before the API starts again: somebody may have taken its port while nobody listened there."""
        host, port = self.api_address
        self.api_address = host, _found(host, port, (), "the API listens", say)

    def environment(self, name: str, url: str, *, reload: bool) -> dict[str, str]:
        """The URL goes through the environment: arguments can be read by every user of the machine."""
        env = dict(os.environ)
        env["DTQ_REDIS_URL"] = url
        env["DTQ_TASK_MODULES"] = ",".join(self.settings.task_modules)
        env["PYTHONUNBUFFERED"] = "1"
        env["DTQ_API_HOST"], env["DTQ_API_PORT"] = self.api_address[0], str(self.api_address[1])
        env["DTQ_METRICS_HOST"] = self._metrics_host
        env["DTQ_METRICS_PORT"] = str(self._metrics_ports.get(name, 0))
        if self.settings.worker_id and name.startswith("worker-"):  # one name for several workers would mix them up
            env["DTQ_WORKER_ID"] = f"{self.settings.worker_id}-{name.removeprefix('worker-')}"
        return fresh_code(env) if reload else env


def api_host(settings: Settings, env: Mapping[str, str]) -> tuple[str, str]:
    """(address of the API, what to say about it): this machine only, unless DTQ_API_HOST is set and a key protects it.

    The default of DTQ_API_HOST, every address, is meant for a container; a laptop should not be open to a café.
    """
    if not env.get("DTQ_API_HOST"):
        return HERE, ""
    if settings.api_host not in (HERE, "localhost", "::1") and not settings.api_key.get_secret_value():
        return HERE, f"DTQ_API_HOST is not used without DTQ_API_KEY: the API listens on {HERE} only"
    return settings.api_host, ""


def _found(host: str, wanted: int, avoid: tuple[()] | set[int], what: str, say: Callable[[str], None]) -> int:
    found = free_port(host, wanted, avoid)
    if wanted and found != wanted:
        say(f"port {wanted} is taken: {what} on {found}")
    return found


def _dtq(*words: str) -> list[str]:
    return [sys.executable, "-m", "dtq_cli", *words]
