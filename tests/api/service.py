"""The real application on a real server: uvicorn in a thread of the test, on a port of its own."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn
from support.engines import Server
from support.eventually import eventually
from websockets.sync.client import ClientConnection, connect

from dtq_api.app import create_app
from dtq_api.dependencies import Services
from dtq_core.config import load_settings

ERROR_KEYS = {"code", "message", "request_id"}


class Service:
    """One API process' worth of API. Use as a context manager."""

    def __init__(self, server: Server, *, url: str | None = None, **settings: object) -> None:
        self.redis = server.redis
        defaults = {"redis_url": url or server.url(), "task_modules": "support.handlers"}
        self.settings = load_settings(**{**defaults, **settings})
        self.app = create_app(self.settings)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(self.app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="api", daemon=True)
        limits = httpx.Limits(max_connections=200)
        hooks = {"response": [self._check_documented]}
        self.http = httpx.Client(base_url=self.base, timeout=20, limits=limits, event_hooks=hooks)

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    def __enter__(self) -> Service:
        self._thread.start()
        eventually(lambda: self._server.started, 10, "the API runs")
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the API did not end"

    def _check_documented(self, answer: httpx.Response) -> None:
        """Whatever a test calls: the document knows the status of the answer, and the code of an error."""
        path = re.sub(r"^/api/v1/queues/([^/]+)/(?=pause|resume|purge)", r"/api/v1/queue/\1/", answer.request.url.path)
        for template, item in self.app.openapi()["paths"].items():
            operation = item.get(answer.request.method.lower())
            if operation and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
                told = operation["responses"].get(str(answer.status_code))
                assert told, f"{operation['operationId']} does not tell of {answer.status_code}"
                if answer.is_error:
                    code = json.loads(answer.read())["code"]
                    assert code in told["content"]["application/json"]["examples"], (operation["operationId"], code)

    # -- calls

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        """POST under /api/v1; `body` is JSON, or raw bytes."""
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        if body is None:
            return self.http.post(f"/api/v1{path}", headers=options.pop("headers", headers), **options)
        raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return self.http.post(f"/api/v1{path}", content=raw, headers=headers, **options)

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.http.get(f"/api/v1{path}", params=params)

    def submit(self, task_type: str = "echo", payload: object = None, **fields: Any) -> str:
        """One task that must be taken; its id."""
        answer = self.post("/tasks", {"task_type": task_type, "payload": payload or {}, **fields})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    def task(self, task_id: str) -> dict[str, Any]:
        answer = self.get(f"/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def metrics(self) -> str:
        answer = self.http.get("/metrics")
        assert answer.status_code == 200
        return answer.text

    def value(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name with those labels."""
        return sample(self.metrics(), name, **labels)

    @contextlib.contextmanager
    def socket(self, path: str = "/ws/events", **options: Any) -> Iterator[ClientConnection]:
        """A WebSocket client."""
        with connect(f"ws://127.0.0.1:{self.port}{path}", open_timeout=10, **options) as client:
            yield client

    def publish(self, type_: str, task_id: str = "0" * 32, pad: str = "", queue: str = "default") -> None:
        """An event on the channel, as a script would publish it."""
        event = {
            "event_id": "x", "ts": "2026-01-01T00:00:00+00:00", "type": type_, "task_id": task_id, "queue": queue,
            "task_type": "echo", "attempt": 1, "worker_id": None, "metadata": {"pad": pad},
        }  # fmt: skip
        self.redis.publish("dtq:events", json.dumps(event))


def check_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer is this error, in the one shape that errors have; its body."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert set(body) - {"task_id", "dependencies"} == ERROR_KEYS, body
    assert body["code"] == code, body
    assert body["message"]
    assert body["request_id"] == answer.headers["X-Request-ID"]
    assert ("task_id" in body) <= (status == 409)
    return body


def sample(text: str, name: str, **labels: str) -> float:
    """Sum of the samples of that name with those labels, in Prometheus' text format."""
    total = 0.0
    for line in text.splitlines():
        head, _, number = line.rpartition(" ")
        found, _, rest = head.partition("{")
        if found == name and all(f'{key}="{value}"' in rest for key, value in labels.items()):
            total += float(number)
    return total


class Sleeper:
    """A WebSocket client that shakes hands and then does not read."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(1)
        assert b" 101 " in self.data
        self.data = b""

    def wake_up(self, last: str = "close") -> list[str]:
        """Texts until one that holds `last`, or until the server closes; a close frame is "close" and its code."""
        while True:
            part = self.socket.recv(1 << 20)
            self.data += part
            if not part or last.encode() in self.data[-300:]:
                return self.frames()

    def frames(self) -> list[str]:
        found, at, data = [], 0, self.data
        while len(data) - at >= 2:
            size, start = data[at + 1] & 0x7F, at + 2
            if size == 126:
                size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if start + size > len(data):
                break
            body = data[start : start + size]
            opcode = data[at] & 0x0F
            if opcode == 1:
                found.append(body.decode())
            elif opcode == 8:
                found.append(f"close {struct.unpack('!H', body[:2])[0]}")
            at = start + size
        return found
