"""The service as a process: started by our command and by uvicorn's own, stopped with open sockets, with siblings, with bad settings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from api.service import Sleeper, sample
from support.engines import Server
from support.eventually import eventually
from support.processes import TESTS, Process
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

LOG_FIELDS = {
    "timestamp",
    "level",
    "service",
    "worker_id",
    "task_id",
    "task_type",
    "queue",
    "attempt",
    "status",
    "duration_ms",
    "event_type",
}
UVICORN = str(Path(sys.executable).parent / "uvicorn")


class Api:
    """One process and the address it has."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self.port, self.base = process, port, f"http://127.0.0.1:{port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.base + path, timeout=10)

    def post(self, path: str, **options) -> httpx.Response:
        return httpx.post(f"{self.base}/api/v1{path}", timeout=10, **options)


@pytest.fixture
def start(engine: Server, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Starts API processes, by default with `python -m dtq_api`."""
    started: list[Process] = []

    def begin(*argv: str, wait: bool = True, **settings: object) -> Api:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DTQ_", "PYTEST_"))}
        env |= {
            "DTQ_REDIS_URL": engine.url(), "DTQ_API_HOST": "127.0.0.1", "DTQ_API_PORT": str(port), "PYTHONPATH": str(TESTS),
            "DTQ_TASK_MODULES": "support.handlers", "DTQ_LOG_JSON": "true", "TMPDIR": str(tmp_path),
            **{f"DTQ_{name.upper()}": str(value) for name, value in settings.items()},
        }  # fmt: skip
        command = [part.replace("{port}", str(port)) for part in argv] or [sys.executable, "-m", "dtq_api"]
        process = Process(f"api{len(started)}", command, env, tmp_path)
        started.append(process)
        api = Api(process, port)
        if wait:

            def up() -> bool:
                assert process.alive, process.tail()
                with contextlib.suppress(httpx.TransportError):
                    return api.get("/health").status_code == 200
                return False

            eventually(up, 20, lambda: f"the API runs\n{process.tail()}")
        return api

    yield begin
    for process in started:
        process.kill()


def close_code(reader: ClientConnection) -> int | None:
    """Reads to the end."""
    try:
        while True:
            reader.recv(timeout=10)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


OURS = ()
THEIRS = (UVICORN, "dtq_api.app:create_app", "--factory", "--host", "127.0.0.1", "--port", "{port}")


@pytest.mark.contract("BQ-43")
@pytest.mark.parametrize(("argv", "code"), [(OURS, 0), (THEIRS, -signal.SIGTERM)], ids=["dtq", "uvicorn"])
def test_it_stops_in_time_with_sockets_open(start, engine, argv, code):
    """Readers hear 1001, one does not read at all, one request waits: the end comes all the same."""
    others = {client["id"] for client in engine.redis.client_list()}
    api = start(*argv)
    task_id = api.post("/tasks", json={"task_type": "echo"}).json()["task_id"]
    readers = [connect(f"ws://127.0.0.1:{api.port}/ws/events") for _ in range(3)]
    sleeper = Sleeper(api.port)
    pad = json.dumps(
        {"event_id": "e", "ts": "2026-01-01T00:00:00Z", "type": "TASK_QUEUED", "metadata": {"pad": "p" * 50_000}}
    )
    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader)
        stream = stack.enter_context(httpx.stream("GET", f"{api.base}/api/v1/events", timeout=20))
        waiting = stack.enter_context(
            httpx.stream("GET", f"{api.base}/api/v1/tasks/{task_id}", params={"wait": 0}, timeout=20)
        )
        assert stream.status_code == waiting.status_code == 200
        for _ in range(200):
            engine.redis.publish("dtq:events", pad)
        api.process.terminate()
        for reader in readers:
            assert close_code(reader) == 1001
        assert api.process.wait(10) == code
    sleeper.socket.close()
    log = api.process.log()
    assert "Traceback" not in log and "never retrieved" not in log
    eventually(lambda: not [c for c in engine.redis.client_list() if c["name"] == "dtq" and c["id"] not in others])


@pytest.mark.contract("BQ-43")
def test_a_waiting_call_does_not_hold_up_the_end(start, engine):
    api = start()
    task_id = api.post("/tasks", json={"task_type": "echo"}).json()["task_id"]
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as connection:
        connection.sendall(f"GET /api/v1/tasks/{task_id}?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1, what="the call waits")
        api.process.terminate()
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65_536):
                answer += part
    assert api.process.wait(10) == 0
    assert not answer or b'"status":"queued"' in answer


@pytest.mark.contract("C13.21", "C10.25", "C13.15")
@pytest.mark.parametrize("argv", [OURS, THEIRS], ids=["dtq", "uvicorn"])
def test_the_log_is_json_with_all_fields_and_holds_no_payload_and_no_secret(start, argv):
    api = start(*argv, api_key="s3cret-key", log_level="DEBUG")
    card = "4111-1111-1111-1111"
    task_id = api.post("/tasks", json={"task_type": "echo", "payload": {"card": card}}).json()["task_id"]
    api.get(f"/api/v1/tasks/{task_id}?token={card}")
    api.post("/tasks", content=f'{{"task_type":"echo","payload":{{"card":"{card}'.encode())
    headers = {"X-API-Key": "s3cret-key", "X-Request-ID": "req-9"}
    assert api.post("/queue/a/pause", headers=headers).status_code == 200
    assert api.post("/queue/a/pause", headers={"X-API-Key": "wr0ng-key"}).status_code == 403
    api.process.terminate()
    api.process.wait(10)
    lines = api.process.log().splitlines()
    strays = [line for line in lines if not line.startswith("{")]
    assert strays == []
    records = [json.loads(line) for line in lines]
    assert all(set(record) >= LOG_FIELDS and record["service"] == "api" for record in records)
    deeds = [r for r in records if r["event_type"] == "queue.pause"]
    assert len(deeds) == 1 and "req-9" in deeds[0]["message"] and deeds[0]["queue"] == "a"
    for secret in (card, "s3cret-key", "wr0ng-key"):
        assert secret not in api.process.log()


@pytest.mark.contract("C10.01")
@pytest.mark.parametrize("argv", [OURS, THEIRS], ids=["dtq", "uvicorn"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_PORT", "70000"),
        ("REDIS_URL", "http://user:hunter2secret@x"),
        ("MAX_PAYLOAD_BYTES", "-1"),
        ("LOG_LEVEL", "LOUD"),
        ("API_KEY", ","),
    ],
)
def test_a_bad_setting_ends_the_start_with_a_line_that_names_it(start, argv, name, value):
    api = start(*argv, wait=False, **{name.lower(): value})
    assert api.process.wait(20) == 2
    assert f"DTQ_{name}" in api.process.log()
    assert "Traceback" not in api.process.log() and "hunter2secret" not in api.process.log()


def test_task_modules_that_are_not_there_leave_the_rest_running(start):
    """The API of an image without the handlers: workers say which types there are."""
    api = start(task_modules="no_such_module.tasks")
    assert api.post("/tasks", json={"task_type": "anything"}).status_code == 202
    assert "no_such_module" in api.process.log()
    assert sample(api.get("/metrics").text, "dtq_tasks_submitted_total", task_type="(other)") == 1


def test_a_port_that_is_taken_is_status_1(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        api = start(wait=False, api_port=taken.getsockname()[1])
        assert api.process.wait(20) == 1
        assert "address already in use" in api.process.log().lower()
        assert "Traceback" not in api.process.log()


def test_redis_may_come_later(start, tmp_path):
    from support.engines import DEFAULT_KIND, private

    with private(DEFAULT_KIND, tmp_path / "later") as server:
        server.stop()
        api = start(redis_url=server.url())
        assert api.get("/ready").status_code == 503
        server.start()
        eventually(lambda: api.get("/ready").status_code == 200)


RUN_THREE = """
from dtq_api.server import run
from dtq_core.config import load_settings
raise SystemExit(run(load_settings(), workers=3))
"""


@pytest.mark.contract("BQ-55")
@pytest.mark.parametrize(
    "argv", [(sys.executable, "-c", RUN_THREE), (*THEIRS, "--workers", "3")], ids=["dtq", "uvicorn"]
)
def test_several_processes_behind_one_port_count_as_one(start, argv, tmp_path):
    """Every scrape sees the sum, whoever answers it; the depth is what Redis says, once."""
    api = start(*argv)
    for _ in range(30):
        assert api.post("/tasks", json={"task_type": "echo"}).status_code == 202
    for _ in range(10):
        text = api.get("/metrics").text
        assert sample(text, "dtq_tasks_submitted_total", queue="default", task_type="echo") == 30
        assert sample(text, "dtq_queue_depth", queue="default") in (0, 30)
    eventually(lambda: sample(api.get("/metrics").text, "dtq_queue_depth", queue="default") == 30)
    api.process.terminate()
    assert api.process.wait(15) in (0, -signal.SIGTERM)
    assert "Traceback" not in api.process.log()
    api = start(*argv)
    assert sample(api.get("/metrics").text, "dtq_tasks_submitted_total") == 0, "a new start counts anew"
    assert len(list(tmp_path.glob("dtq-metrics-*"))) == 1, "what the first left behind is gone"


@pytest.mark.parametrize(
    "argv", [(sys.executable, "-c", RUN_THREE), (*THEIRS, "--workers", "3")], ids=["dtq", "uvicorn"]
)
def test_several_processes_end_with_the_one_that_watches_over_them(start, argv):
    """kill -9 of it must not leave a port that nobody can stop."""
    api = start(*argv)
    api.process.kill()

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", api.port)) != 0

    eventually(refused, 15, "nobody listens any more")
