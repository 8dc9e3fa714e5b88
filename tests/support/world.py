"""One private world of a process test: an engine, real DTQ processes, wires, a journal, and the final check."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.engines import Server
from support.eventually import eventually
from support.feed import Feed
from support.journal import Journal
from support.places import ENDED, Snapshot, misplaced, snapshot
from support.processes import DTQ, TESTS, Process, Supervised
from support.wire import Wire

from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.inspector import Inspector
from dtq_core.store import Store
from dtq_core.task import Task

T = TypeVar("T")

SHORT = {
    "DTQ_VISIBILITY_TIMEOUT_S": "2",
    "DTQ_HEARTBEAT_INTERVAL_S": "0.5",
    "DTQ_RETRY_BASE_DELAY": "0.05",
    "DTQ_RETRY_MAX_DELAY": "0.2",
    "DTQ_DRAIN_TIMEOUT_S": "10",
    "DTQ_TASK_MODULES": "support.handlers",
}
"""Times that keep the suite lean. No test depends on their values, only on their order."""


class World:
    """Everything a process test touches. Processes, wires and connections end with it, also when the test fails."""

    def __init__(self, server: Server, folder: Path, **settings: object) -> None:
        self.server = server
        self.redis = server.redis
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self._variables = SHORT | {f"DTQ_{name.upper()}": str(value) for name, value in settings.items()}
        self._processes: list[Process] = []
        self._supervised: list[Supervised] = []
        self._wires: list[Wire] = []
        self._feeds: list[Feed] = []
        self._loop = asyncio.Runner()
        self._store = Store.connect(self.settings())
        self.client = Client(self._store, self.settings(), actor="test")
        self.inspector = Inspector(self._store, self.settings())

    # -- processes

    def env(self, wire: Wire | None = None, **settings: object) -> dict[str, str]:
        """The environment of a DTQ process that reaches the engine directly or through a wire."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("DTQ_", "PYTEST_"))}
        return {
            **base, **self._variables,
            "DTQ_REDIS_URL": self.server.url(port=wire.port if wire else None),
            "DTQ_TEST_FOLDER": str(self.journal.folder),
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1",
            **{f"DTQ_{name.upper()}": str(value) for name, value in settings.items()},
        }  # fmt: skip

    def settings(self, **overrides: object) -> Settings:
        """The same settings for code in this process."""
        names = {name.removeprefix("DTQ_").lower(): value for name, value in self._variables.items()}
        return load_settings(**{**names, "redis_url": self.server.url(), **overrides})

    def worker(
        self, *queues: str, concurrency: int = 4, wire: Wire | None = None, ready: bool = True, **settings: object
    ) -> Process:
        """Start a worker of these queues, else "default"; wait until it says that it takes work, unless not `ready`."""
        options = [part for queue in queues or ("default",) for part in ("--queue", queue)]
        argv = [DTQ, "worker", "run", "--concurrency", str(concurrency), *options]
        process = self.start("worker", argv, wire, settings)
        if ready:
            self.wait_ready(process)
        return process

    def scheduler(self, *, wire: Wire | None = None, leads: bool = True, **settings: object) -> Process:
        """Start a scheduler process; wait until somebody holds the lock, unless not `leads`."""
        process = self.start("scheduler", [DTQ, "scheduler", "run"], wire, settings)
        if leads:
            eventually(lambda: self._alive(process) and self.redis.exists("dtq:lock:scheduler"), 15, "somebody leads")
        return process

    def supervised_worker(self, *queues: str, **options: Any) -> Supervised:
        """As `worker`, and started again whenever it ends. The first is not waited for either."""
        supervised = Supervised(lambda: self.worker(*queues, ready=False, **options))
        self._supervised.append(supervised)
        return supervised

    def start(
        self, kind: str, argv: Sequence[str], wire: Wire | None = None, settings: dict[str, object] | None = None
    ) -> Process:
        """Start any DTQ command as a process of this world."""
        name = f"{kind}{len(self._processes) + 1}"
        process = Process(name, argv, self.env(wire, **(settings or {})), self.folder)
        self._processes.append(process)
        return process

    def wait_ready(self, process: Process) -> str:
        """The id of this worker, once it takes work."""

        def ready() -> str | None:
            self._alive(process)
            for worker_id in self.redis.smembers("dtq:workers"):
                row = self.redis.hgetall(f"dtq:worker:{worker_id}")
                if row.get("pid") == str(process.pid) and row.get("status") in ("ready", "busy"):
                    return str(worker_id)
            return None

        process.worker_id = eventually(ready, 20, lambda: f"{process.name} is ready\n{process.tail()}") or ""
        return process.worker_id

    def wire(self) -> Wire:
        wire = Wire(self.server.port)
        self._wires.append(wire)
        return wire

    def feed(self) -> Feed:
        """What is published from now on."""
        feed = Feed(self.redis)
        self._feeds.append(feed)
        return feed

    # -- tasks

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something async on this world's loop."""
        return self._loop.run(coroutine)

    def submit(self, task_type: str, payload: dict[str, Any] | None = None, **fields: Any) -> str:
        """Submit one task; its id."""
        raw = {"task_type": task_type, "payload": payload or {}, **fields}
        return self.run(self.client.submit(raw)).task_id

    def submit_many(self, task_type: str, payloads: Sequence[dict[str, Any]], **fields: Any) -> list[str]:
        """Submit in batches; every one must be taken."""
        raws = [{"task_type": task_type, "payload": payload, **fields} for payload in payloads]
        answers = self.run(self.client.submit_many(raws))
        ids = []
        for answer in answers:
            assert not isinstance(answer, Exception), answer
            ids.append(answer.task_id)
        return ids

    def task(self, task_id: str) -> Task:
        return self.run(self.inspector.task(task_id))

    def result(self, task_id: str) -> Any:
        return self.run(self.inspector.result(task_id))

    def status(self, task_id: str) -> str:
        """As the record says; "" without one."""
        return str(self.redis.hget(f"dtq:task:{task_id}", "status") or "")

    def statuses(self, ids: Iterable[str]) -> dict[str, str]:
        ids = list(ids)
        pipe = self.redis.pipeline(transaction=False)
        for task_id in ids:
            pipe.hget(f"dtq:task:{task_id}", "status")
        return {task_id: status or "no record" for task_id, status in zip(ids, pipe.execute(), strict=True)}

    def wait_status(self, task_id: str, status: str, timeout: float = 15.0) -> None:
        eventually(
            lambda: self.status(task_id) == status, timeout, lambda: f"{task_id} {status}, is {self.status(task_id)}"
        )

    def wait_ended(self, ids: Iterable[str], timeout: float = 30.0) -> dict[str, str]:
        """Status of each task, once all have ended."""
        ids = list(ids)

        def ended() -> dict[str, str] | None:
            found = self.statuses(ids)
            return found if all(status in ENDED for status in found.values()) else None

        def waiting() -> str:
            left = {t: s for t, s in self.statuses(ids).items() if s not in ENDED}
            logs = "\n".join(f"--- {p.name} ({p.exit_code}):\n{p.tail(1500)}" for p in self._processes[-4:])
            return f"{len(ids)} tasks end; {len(left)} have not: {dict(list(left.items())[:5])}\n{logs}"

        return eventually(ended, timeout, waiting) or {}

    # -- what must hold

    def snapshot(self) -> Snapshot:
        return snapshot(self.redis)

    def check_places(self, when: str = "") -> Snapshot:
        """Every task is in its one legal place, at this very moment."""
        world = self.snapshot()
        wrong = misplaced(world)
        assert not wrong, f"{when}: {wrong[:10]}"
        return world

    def pending(self) -> dict[str, list[str]]:
        """Task ids by the worker that has them in hand."""
        found: dict[str, list[str]] = {}
        for _, _, task_id, owner in self.snapshot().entries:
            if owner:
                found.setdefault(owner, []).append(task_id)
        return found

    def check(self, ids: Iterable[str], *, starts: int | None = None, overlaps: bool = False) -> None:
        """The final account: every task has ended in a legal place, the ledger is exact, no two executions at once.

        `starts`: no task was executed more often. `overlaps`: this test stops a process for longer than its lease.
        """
        ids = list(ids)
        world = self.check_places("at the end")
        assert all(world.status(t) in ENDED for t in ids), {t: world.status(t) for t in ids}
        for task_id in ids:
            runs = self.journal.runs(task_id)
            attempts = [run.attempt for run in runs]
            assert len(attempts) == len(set(attempts)), f"{task_id}: attempts {attempts}"
            allowed = int(world.tasks[task_id][6]) if starts is None else starts
            assert len(runs) <= allowed, f"{task_id} was executed {len(runs)} times, {allowed} allowed"
        if not overlaps:
            assert not self.journal.overlaps()
        self.verify(ids)

    def verify(self, ids: Iterable[str] = ()) -> None:
        """`dtq audit verify` finds nothing."""
        from dtq_core.audit import verify

        report = self.run(verify(self._store, self.settings(), receipts=list(ids)))
        assert report.ok, report.findings

    def close(self) -> None:
        for supervised in self._supervised:
            supervised._stopping.set()
        for supervised in self._supervised:
            supervised.stop()
        for process in self._processes:
            process.kill()
        for wire in self._wires:
            wire.close()
        for feed in self._feeds:
            feed.close()
        with contextlib.suppress(Exception):
            self.run(self._store.close())
        self._loop.close()

    @staticmethod
    def _alive(process: Process) -> bool:
        if not process.alive:  # not an AssertionError: `eventually` must not wait for what cannot come
            pytest.fail(f"{process.name} ended with {process.exit_code}:\n{process.tail()}", pytrace=False)
        return True
