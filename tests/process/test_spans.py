"""Spans of a real worker reach a collector: OTEL_EXPORTER_OTLP_ENDPOINT is all that it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.world import World

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP and keeps what came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.requests: list[ExportTraceServiceRequest] = []

    def spans(self) -> list[tuple[str, str, str]]:
        """(service, name, trace id) of each."""
        return sorted(
            (a.value.string_value, span.name, span.trace_id.hex())
            for request in self.requests
            for resource in request.resource_spans
            for a in resource.resource.attributes
            if a.key == "service.name"
            for scope in resource.scope_spans
            for span in scope.spans
        )


class _Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector) and self.path == "/v1/traces"
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_workers_spans_are_exported_before_it_ends(
    world: World, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    worker = world.worker()
    task_id = world.submit("echo", metadata={"traceparent": TRACE})
    world.wait_ended([task_id])
    worker.terminate()
    assert worker.wait() == 0
    trace_id = TRACE.split("-")[1]
    assert collector.spans() == [("dtq-worker", "process echo", trace_id), ("dtq-worker", "wait echo", trace_id)]


def test_a_collector_that_is_away_harms_no_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    worker = world.worker()
    ids = world.submit_many("echo", [{}] * 20)
    world.wait_ended(ids)
    worker.terminate()
    assert worker.wait() == 0
    world.check(ids, starts=1)
