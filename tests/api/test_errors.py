"""Errors: one body for all of them, request ids in and out, bodies that are too large or too slow, hostile headers."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from pathlib import Path

import pytest
from api.service import check_error, sample
from support.eventually import eventually

from dtq_api.errors import HTTP_STATUS
from dtq_api.gate import clean_request_id
from dtq_core.errors import STATUS_OF_CODE

NOBODY = "f" * 32


def raw_request(port: int, data: bytes, read: bool = True) -> bytes:
    """Bytes as they are, over a socket of its own; everything that comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        answer = b""
        while read and b"\r\n\r\n" not in answer:
            part = connection.recv(65_536)
            if not part:
                break
            answer += part
        return answer


def test_the_codes_of_the_service_are_the_core_s_and_these():
    assert set(HTTP_STATUS) - set(STATUS_OF_CODE) == {
        "UNAUTHORIZED", "FORBIDDEN", "NOT_FOUND", "METHOD_NOT_ALLOWED", "REQUEST_TIMEOUT", "NOT_READY",
    }  # fmt: skip
    assert all(HTTP_STATUS[code] == http for code, (http, _) in STATUS_OF_CODE.items())


def test_the_page_names_every_code_beside_its_status():
    page = (Path(__file__).resolve().parents[2] / "docs" / "http-api.md").read_text()
    table = page[page.index("| status | codes |") :].split("\n\n")[0]
    told: dict[str, set[str]] = {}
    for row in table.splitlines()[2:]:
        _, statuses, codes, _ = row.split("|")
        told |= {code: set(re.findall(r"\d+", statuses)) for code in re.findall(r"`(?!DTQ_)([A-Z_]{5,})`", codes)}
    assert [code for code in told if str(HTTP_STATUS[code]) not in told[code]] == []
    assert set(told) >= set(HTTP_STATUS) - set(STATUS_OF_CODE)


@pytest.mark.contract("D23")
def test_what_does_not_exist_answers_like_everything_else(api):
    check_error(api.http.get("/nowhere"), 404, "NOT_FOUND")
    check_error(api.http.get("/api/v1/tasks/a/b/c"), 404, "NOT_FOUND")
    check_error(api.http.post("/api/v1/tasks/", json={}), 404, "NOT_FOUND")
    answer = api.http.delete("/api/v1/tasks")
    check_error(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["Allow"] == "GET, POST"
    check_error(api.http.put(f"/api/v1/tasks/{NOBODY}"), 405, "METHOD_NOT_ALLOWED")


def test_what_nobody_foresaw_is_500_without_a_word_about_it(api, monkeypatch, caplog):
    async def broken(*_, **__):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(type(api.services.inspector), "task", broken)
    answer = api.get(f"/tasks/{NOBODY}")
    body = check_error(answer, 500, "INTERNAL")
    assert "secret" not in answer.text and "Traceback" not in answer.text
    (record,) = [r for r in caplog.records if body["request_id"] in r.getMessage()]
    assert record.exc_info and record.levelno == logging.ERROR
    assert api.http.get("/health").status_code == 200


def test_a_key_of_the_wrong_type_is_500_with_its_own_code(api, caplog):
    api.redis.set(f"dtq:task:{NOBODY}", "not a hash")
    api.redis.set("dtq:queues", "not a set")
    check_error(api.get("/queues"), 500, "STORE_ERROR")
    assert api.get(f"/tasks/{NOBODY}").status_code in (404, 500)


# ------------------------------------------------------------------------------------------------ request ids


@pytest.mark.contract("D23")
def test_a_request_id_is_made_or_kept(api):
    given = api.http.get(f"/api/v1/tasks/{NOBODY}", headers={"X-Request-ID": "req-1:a.b/c@d"})
    assert given.headers["X-Request-ID"] == given.json()["request_id"] == "req-1:a.b/c@d"
    made = {api.http.get("/health").headers["X-Request-ID"] for _ in range(3)}
    assert len(made) == 3 and all(len(i) == 32 for i in made)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"plain", "plain"), (b"a b\tc", "abc"), (b"x" * 5000, "x" * 128), (b'"},{"level":"FATAL', "level:FATAL"), (b"a\r\nb", "ab"),
     (b"a\x1b[31mb", "a31mb"), ("é".encode(), None), (b"", None), (None, None), (b"\xff\xfe", None)],
)  # fmt: skip
def test_request_ids_are_bounded_and_harmless(given, kept):
    cleaned = clean_request_id(given)
    assert cleaned == kept if kept else len(cleaned) == 32


@pytest.mark.contract("C13.20")
@pytest.mark.parametrize(
    "name", [b"X-Request-ID", b"X-Forwarded-For", b"User-Agent", b"X-API-Key", b"Idempotency-Key", b"Host", b"Origin"]
)
def test_hostile_headers_forge_no_log_line(api, name, caplog, capfd):
    """What uvicorn lets through of control characters ends in no line of the log and no entry of the audit."""
    forged = b"\x1b[2J\x85FORGED \xe2\x80\xa8FORGED"
    with caplog.at_level(logging.DEBUG):
        raw_request(
            api.port,
            b"POST /api/v1/queue/a/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
            + name
            + b": "
            + forged
            + b"\r\n\r\n",
        )
        raw_request(api.port, b"GET /api/v1/tasks/%0aFORGED%0d HTTP/1.1\r\nHost: x\r\n\r\n")
    from dtq_core.log import TextFormatter, _Process

    formatter = TextFormatter(_Process("api", ()))
    for record in caplog.records:
        if record.name.startswith(("dtq", "uvicorn")):
            assert formatter.format(record).isprintable()
    assert all(value.isprintable() for _, entry in api.redis.xrange("dtq:stream:audit") for value in entry.values())


# ------------------------------------------------------------------------------------------------ bodies


@pytest.mark.contract("C7.04", "BQ-53")
def test_a_body_that_is_much_too_large_is_refused_while_it_is_read(make_api):
    api = make_api(max_payload_bytes=1000)
    raw = b'{"task_type":"echo","payload":{"k":"' + b"x" * 8_000_000 + b'"}}'
    check_error(api.post("/tasks", raw), 413, "PAYLOAD_TOO_LARGE")
    check_error(api.post("/tasks", iter_chunks(8)), 413, "PAYLOAD_TOO_LARGE")
    check_error(api.post("/queue/a/purge", b" " * 100_000), 413, "PAYLOAD_TOO_LARGE")
    assert api.http.get("/health").status_code == 200
    assert sample(api.metrics(), "dtq_ingest_rejected_total", reason="payload_too_large") == 2


def iter_chunks(megabytes: int) -> bytes:
    return b"".join(b"x" * 1_000_000 for _ in range(megabytes))


@pytest.mark.contract("BQ-53")
def test_without_an_announced_length_the_limit_is_the_same(make_api, monkeypatch):
    """A chunked body that never ends is read for a while, so that its sender sees the answer, and then cut off."""
    monkeypatch.setattr("dtq_api.gate.DISCARD_BYTES", 2_000_000)
    api = make_api(max_payload_bytes=1000)
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as connection:
        connection.sendall(b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        answer = b""
        connection.setblocking(False)
        for _ in range(10_000):
            try:
                connection.send(chunk)
            except (BlockingIOError, ConnectionError):
                pass
            try:
                answer += connection.recv(65_536)
            except BlockingIOError:
                continue
            except ConnectionError:
                break
            if b"request_id" in answer:
                break
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()


@pytest.mark.contract("BQ-53")
def test_a_body_that_does_not_come_is_408(api, monkeypatch):
    monkeypatch.setattr("dtq_api.gate.BODY_TIMEOUT_S", 0.1)
    began = time.monotonic()
    answer = raw_request(api.port, b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer.lower()
    assert time.monotonic() - began < 5


def test_a_client_that_leaves_in_mid_body_is_no_error(api, caplog):
    for length in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
        raw_request(api.port, b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n", read=False)
    eventually(lambda: not api._server.server_state.connections or api.http.get("/health").is_success)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_compressed_bodies_are_not_unpacked(api):
    import gzip

    bomb = gzip.compress(json.dumps({"task_type": "echo", "payload": {"k": "x" * 100_000}}).encode())
    check_error(api.post("/tasks", bomb, headers={"Content-Encoding": "gzip"}), 400, "INVALID_TASK")
