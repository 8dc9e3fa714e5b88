"""The port of a worker and of a scheduler: metrics of contract §9, /health and /ready, each broken on purpose."""

from __future__ import annotations

import asyncio
import re
import socket
import threading

import httpx
import pytest
from api.service import sample
from api.test_metrics import METRICS
from support.engines import DEFAULT_KIND, private
from support.eventually import eventually
from support.world import World

from dtq_core.config import load_settings
from dtq_core.keys import GROUP
from dtq_core.metrics import OTHER, Metrics
from dtq_core.probes import Loops, serve
from dtq_core.store import Store
from dtq_tasks.registry import load
from dtq_worker.worker import Worker

GAUGES_OF_REDIS = {name for name, (kind, _) in METRICS.items() if kind == "gauge"} - {"dtq_worker_inflight"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Port:
    """What listens on DTQ_METRICS_PORT."""

    def __init__(self) -> None:
        self.number = free_port()
        self.settings = {"metrics_port": self.number, "metrics_host": "127.0.0.1"}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.number}{path}", timeout=10)

    def status(self, path: str) -> int:
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return 0

    def trouble(self, path: str) -> dict[str, str]:
        """What the 503 names."""
        answer = self.get(path)
        body = answer.json()
        assert (answer.status_code, body["code"]) == (503, "NOT_READY"), body
        assert set(body) == {"code", "message", "request_id", "dependencies"}
        return body["dependencies"]


def check_metrics(text: str, *, of_redis: bool = False) -> set[str]:
    """Only metrics of §9, with their types and exactly their labels; the names of those that have a sample."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    expected = {name: kind for name, (kind, _) in METRICS.items() if of_redis or name not in GAUGES_OF_REDIS}
    assert types == expected
    seen = set()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            family = name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)
            assert set(re.findall(r'(\w+)="', labels or "")) - {"le"} == METRICS[family][1], line
            seen.add(family)
    return seen


@pytest.mark.contract(*[f"C9.{n:02}" for n in (*range(2, 9), *range(14, 21), 22, 23)])
def test_a_worker_counts_what_it_does(world):
    port = Port()
    stranger = world.submit("made_up_by_a_user", queue="a")
    process = world.worker("a", **port.settings)
    ids = [
        world.submit("echo", queue="a"), world.submit("raise", {"kind": "permanent"}, queue="a"),
        world.submit("raise", {"kind": "retryable"}, queue="a", max_attempts=2),
        world.submit("sleep", {"seconds": 60}, queue="a", timeout_ms=50, max_attempts=1),
    ]  # fmt: skip
    world.wait_ended([stranger, *ids])
    text = eventually(lambda: (t := port.get("/metrics").text) and sample(t, "dtq_tasks_completed_total") >= 5 and t)
    never = {"dtq_tasks_submitted_total", "dtq_tasks_failed_total", "dtq_ingest_rejected_total"}
    assert check_metrics(text) == set(METRICS) - GAUGES_OF_REDIS - never
    assert sample(text, "dtq_tasks_succeeded_total", queue="a", task_type="echo") == 1
    assert sample(text, "dtq_tasks_retried_total", queue="a", task_type="raise") == 1
    results = {r: sample(text, "dtq_task_attempts_total", result=r) for r in ("success", "failure", "timeout")}
    assert results == {"success": 1, "failure": 3, "timeout": 1}
    assert sample(text, "dtq_worker_tasks_total", worker_id=process.worker_id) == 5
    assert sample(text, "dtq_tasks_dead_lettered_total", queue="a", task_type=OTHER) == 1
    for hostile in ("made_up_by_a_user", stranger, *ids):
        assert hostile not in text


@pytest.mark.contract("C9.07", "C9.20")
def test_a_scheduler_counts_too(world):
    port = Port()
    late = world.submit("echo", delay_seconds=0.2, metadata={"ttl_seconds": 0.05})
    process = world.scheduler(**port.settings)
    world.wait_status(late, "expired")
    text = eventually(lambda: (t := port.get("/metrics").text) and sample(t, "dtq_tasks_completed_total") and t)
    assert check_metrics(text) == {"dtq_tasks_completed_total", "dtq_redis_operations_total"}
    assert sample(text, "dtq_tasks_completed_total", queue="default", task_type=OTHER, status="expired") == 1
    assert sample(text, "dtq_redis_operations_total", operation="claim_due", result="ok") >= 1
    assert port.get("/health").json() == {"status": "ok"} and port.get("/ready").json() == {"status": "ready"}
    assert port.status("/nowhere") == 404
    process.terminate()
    assert process.wait() == 0


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_a_port_that_is_taken_ends_the_start_with_a_line(world, kind):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"metrics_port": taken.getsockname()[1], "metrics_host": "127.0.0.1"}
        process = (
            world.worker(ready=False, **settings) if kind == "worker" else world.scheduler(leads=False, **settings)
        )
        assert process.wait() == 2
    assert "DTQ_METRICS_PORT" in process.log() and "Traceback" not in process.log()


@pytest.mark.contract("C11.34")
@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_without_redis_a_process_is_healthy_and_not_ready(tmp_path, kind):
    port = Port()
    with private(DEFAULT_KIND, tmp_path / "engine") as server:
        world = World(server, tmp_path)
        try:
            process = world.worker(**port.settings) if kind == "worker" else world.scheduler(**port.settings)
            eventually(lambda: port.status("/ready") == 200)
            server.stop(hard=True)
            eventually(lambda: port.status("/ready") == 503)
            assert set(port.trouble("/ready")) == {"redis"}
            assert port.status("/health") == 200 and port.status("/metrics") == 200
            server.start()
            eventually(lambda: port.status("/ready") == 200)
            assert process.alive
        finally:
            world.close()


@pytest.mark.contract("C11.34", "D30")
def test_a_worker_whose_group_is_gone_is_not_ready(world):
    port = Port()
    world.worker("a", **port.settings)
    eventually(lambda: port.status("/ready") == 200)
    world.run(world.client.pause("a"))
    task_id = world.submit("echo", queue="a")

    def gone():
        world.redis.xgroup_destroy("dtq:stream:a:p5", GROUP)
        return port.status("/ready") == 503

    eventually(gone)
    assert port.trouble("/ready") == {"groups": "missing on a"}
    assert port.status("/health") == 200
    world.run(world.client.resume("a"))
    world.wait_status(task_id, "succeeded")
    eventually(lambda: port.status("/ready") == 200)


def test_a_worker_that_drains_is_healthy_and_not_ready(world):
    port = Port()
    process = world.worker("a", **port.settings)
    held = world.submit("gate", {"gate": "g"}, queue="a")
    world.wait_status(held, "running")
    process.terminate()
    eventually(lambda: port.status("/ready") == 503)
    assert port.trouble("/ready") == {"worker": "is draining"} and port.status("/health") == 200
    world.journal.open("g")
    assert process.wait() == 0


# ------------------------------------------------------------------------------------------------ loops that stop


@pytest.fixture
def worker(engine, monkeypatch, tmp_path):
    """A worker in this process, whose loops a test can break, and its port."""
    monkeypatch.setenv("DTQ_TEST_FOLDER", str(tmp_path))
    port = Port()
    settings = load_settings(
        redis_url=engine.url(), task_modules="support.handlers", drain_timeout_s=0, visibility_timeout_s=2,
        heartbeat_interval_s=0.5, **port.settings,
    )  # fmt: skip
    found: list[tuple[Worker, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        store = Store.connect(settings)
        worker = Worker(settings, ["a"], store, load(settings.task_modules))
        found.append((worker, asyncio.get_running_loop()))
        await worker.run()
        await store.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    eventually(lambda: port.status("/ready") == 200)
    worker, loop = found[0]
    yield worker, loop, port
    loop.call_soon_threadsafe(worker.stop_asked.set)
    thread.join(15)
    assert not thread.is_alive()
    for client in engine.redis.client_list():  # elsewhere the end of the process does that
        if client["name"] == "dtq":
            engine.redis.client_kill_filter(_id=client["id"])


def test_a_loop_that_ended_is_told(worker):
    worker, loop, port = worker
    assert port.get("/health").json() == {"status": "ok"}
    reaper = worker.loops._ended["reaper"].__self__
    loop.call_soon_threadsafe(reaper.cancel)
    eventually(lambda: port.status("/health") == 503)
    assert port.trouble("/health") == {"reaper": "ended"}


@pytest.mark.contract("BQ-06")
@pytest.mark.parametrize(
    ("name", "method"),
    [("scheduler", "dtq_scheduler.scheduler.Scheduler._lead"), ("fetching", "dtq_worker.poller.Poller._wait_once")],
)
def test_a_loop_that_hangs_is_told(worker, monkeypatch, name, method):
    worker, _, port = worker
    worker.loops.late_s = 3.0
    assert port.get("/health").json() == {"status": "ok"}

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(method, hang)
    eventually(lambda: port.status("/health") == 503, 20)
    assert "has not turned for" in port.trouble("/health")[name]


def test_the_port_answers_while_a_handler_holds_up_the_loop(worker):
    """A handler within its time is no reason to end the process; after that the worker leaves by itself."""
    worker, loop, port = worker
    worker.loops.late_s = -1.0
    free = threading.Event()
    assert port.status("/health") == 503, "everything is late"
    worker._in_time = lambda: True
    loop.call_soon_threadsafe(free.wait, 10)
    try:
        assert port.status("/health") == 200 and port.status("/metrics") == 200
        assert port.trouble("/ready") == {"process": "does not answer in time"}
    finally:
        free.set()


def test_loops_are_late_after_their_time_and_only_while_they_are_awaited():
    now, awaited = [0.0], [True]
    loops = Loops(5, clock=lambda: now[0])

    async def step() -> None:
        raise ZeroDivisionError

    watched = loops.watch("loop", step, lambda: awaited[0])
    now[0] = loops.late_s
    assert loops.troubles() == {}
    now[0] += 1
    assert loops.troubles() == {"loop": f"has not turned for {now[0]:.0f} s"}
    awaited[0] = False
    assert loops.troubles() == {}
    awaited[0] = True
    with pytest.raises(ZeroDivisionError):
        asyncio.run(watched())
    assert loops.troubles() == {}, "a round that failed is a round"
    loops.add("other", lambda: True)
    assert loops.troubles() == {"other": "ended"}
    loops.stopping = True
    assert loops.troubles() == {}


def test_a_client_that_says_nothing_or_nonsense_holds_up_nobody(monkeypatch, caplog):
    monkeypatch.setattr("dtq_core.probes._Handler.timeout", 0.2)
    port = Port()

    async def main() -> None:
        async def fine() -> dict[str, str]:
            return {}

        server = serve(load_settings(**port.settings), Metrics(), dict, fine)
        try:
            await asyncio.to_thread(hostile)
        finally:
            server.shutdown()
            server.server_close()

    def hostile() -> None:
        silent = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(20)]
        for raw in (
            b"\x00\xff\r\n\r\n",
            b"GET /%0aFORGED HTTP/1.1\r\n\r\n",
            b"POST /metrics HTTP/1.1\r\n\r\n",
            b"G" * 100_000,
        ):
            with socket.create_connection(("127.0.0.1", port.number), timeout=5) as connection:
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        assert port.status("/ready") == port.status("/metrics") == 200
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()

    asyncio.run(main())
    assert caplog.text == ""
