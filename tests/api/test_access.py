"""Keys (contract §13, decision 23): what they close, what stays open, how they are rotated."""

from __future__ import annotations

import logging

import httpx
import pytest
from api.service import check_error
from websockets.exceptions import InvalidStatus

from dtq_core import log
from dtq_core.config import load_settings
from dtq_core.errors import InvalidConfig

KEY = "s3cret-key-0123456789"
NOBODY = "f" * 32
DESTRUCTIVE = [
    f"/tasks/{NOBODY}/cancel", f"/dlq/{NOBODY}/requeue", f"/dlq/{NOBODY}/discard", "/dlq/purge", "/queue/a/pause",
    "/queue/a/resume", "/queue/a/purge", "/queues/a/pause", "/queues/a/resume", "/queues/a/purge",
]  # fmt: skip


@pytest.mark.contract(*[f"C13.{n:02}" for n in range(5, 12)], "D23", "C11.15")
@pytest.mark.parametrize("path", DESTRUCTIVE)
def test_destructive_calls_need_the_key(make_api, path):
    api = make_api(api_key=KEY)
    before = set(api.redis.keys("*"))
    for headers in ({}, {"X-API-Key": ""}):
        answer = api.post(path, headers=headers)
        check_error(answer, 401, "UNAUTHORIZED")
        assert answer.headers["WWW-Authenticate"]
    for wrong in (
        "wrong",
        KEY[:-1],
        KEY + "x",
        KEY.upper(),
        f"{KEY},{KEY}",
        "schlüssel-é".encode(),
        "é".encode("latin-1"),
    ):
        check_error(api.post(path, headers={"X-API-Key": wrong}), 403, "FORBIDDEN")
    assert set(api.redis.keys("*")) == before
    assert api.post(path, headers={"X-API-Key": KEY}).status_code in (200, 404)


@pytest.mark.contract("D23")
def test_the_key_is_asked_for_before_anything_is_looked_at(make_api):
    """A caller without it learns nothing: not whether a task exists, not whether the queue can."""
    api = make_api(api_key=KEY)
    task_id = api.submit()
    for path in (
        f"/tasks/{task_id}/cancel",
        f"/tasks/{NOBODY}/cancel",
        "/queue/UPPER/pause",
        "/dlq/purge?dry_run=perhaps",
    ):
        check_error(api.post(path), 401, "UNAUTHORIZED")


@pytest.mark.contract("C13.12")
def test_reads_and_submissions_stay_open_whatever_key_they_carry(make_api):
    api = make_api(api_key=KEY)
    task_id = api.post("/tasks", {"task_type": "echo"}, headers={"X-API-Key": "wrong"}).json()["task_id"]
    for path in ("/tasks", f"/tasks/{task_id}", "/queues", "/queues/default", "/workers", "/dlq"):
        assert api.get(path).status_code == 200
    for path in ("/health", "/ready", "/metrics", "/openapi.json"):
        assert api.http.get(path).status_code == 200


@pytest.mark.contract("C13.13")
def test_without_a_key_everything_is_open_and_the_log_says_so(make_api, caplog):
    api = make_api()
    assert api.post("/queue/a/pause").status_code == 200
    assert "DTQ_API_KEY is not set" in caplog.text


def test_keys_are_rotated_by_a_list(make_api):
    api = make_api(api_key="old-key-123, new-key-456")
    for key in ("old-key-123", "new-key-456"):
        assert api.post("/queue/a/pause", headers={"X-API-Key": key}).status_code == 200
    check_error(api.post("/queue/a/pause", headers={"X-API-Key": "old-key-123, new-key-456"}), 403, "FORBIDDEN")


def test_a_key_from_a_file(make_api, tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text("from-file-1\nfrom-file-2\n")
    monkeypatch.setenv("DTQ_API_KEY_FILE", str(file))
    api = make_api(api_key="from-env")
    for key in ("from-env", "from-file-1", "from-file-2"):
        assert api.post("/queue/a/pause", headers={"X-API-Key": key}).status_code == 200
    check_error(api.post("/queue/a/pause"), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("content", [None, "", " \n,\n"])
def test_a_key_file_without_a_key_ends_the_start_instead_of_opening_everything(
    make_api, tmp_path, monkeypatch, content
):
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("DTQ_API_KEY_FILE", str(file))
    with pytest.raises(InvalidConfig, match="DTQ_API_KEY_FILE"):
        make_api()


@pytest.mark.parametrize("value", [",", " ", " , ,"])
def test_a_list_of_keys_without_a_key_ends_the_start(make_api, value):
    with pytest.raises(InvalidConfig, match="DTQ_API_KEY"):
        make_api(api_key=value)


def test_reading_and_submitting_can_be_closed_too(make_api, monkeypatch):
    monkeypatch.setenv("DTQ_API_READ_KEY", "reader-key")
    monkeypatch.setenv("DTQ_API_SUBMIT_KEY", "producer-key")
    api = make_api(api_key=KEY)
    reads = [
        "/api/v1/tasks",
        f"/api/v1/tasks/{NOBODY}",
        "/api/v1/queues",
        "/api/v1/workers",
        "/api/v1/dlq",
        "/metrics",
        "/api/v1/events",
    ]
    for path in reads:
        check_error(api.http.get(path), 401, "UNAUTHORIZED")
        check_error(api.http.get(path, headers={"X-API-Key": "producer-key"}), 403, "FORBIDDEN")
    for key in ("reader-key", KEY):
        assert api.http.get("/api/v1/tasks", headers={"X-API-Key": key}).status_code == 200
        with api.socket(additional_headers={"X-API-Key": key}):
            pass
    body = {"task_type": "echo"}
    for path, raw in (("/tasks", body), ("/tasks:batch", {"tasks": [body]})):
        check_error(api.post(path, raw), 401, "UNAUTHORIZED")
        check_error(api.post(path, raw, headers={"X-API-Key": "reader-key"}), 403, "FORBIDDEN")
        for key in ("producer-key", KEY):
            assert api.post(path, raw, headers={"X-API-Key": key}).status_code in (200, 202)
    check_error(api.post("/queue/a/pause", headers={"X-API-Key": "producer-key"}), 403, "FORBIDDEN")
    with pytest.raises(InvalidStatus) as refused, api.socket():
        pass
    assert refused.value.response.status_code == 401
    for path in ("/health", "/ready"):
        assert api.http.get(path).status_code == 200


def test_pages_of_other_sites_cannot_act(api):
    """The service of a developer listens on his loopback interface, and so do the pages that he visits."""
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{api.port + 1}", ""):
        for path in ("/tasks", "/dlq/purge"):
            answer = api.http.post(f"/api/v1{path}", headers={"Origin": origin}, content=b'{"task_type":"echo"}')
            check_error(answer, 403, "FORBIDDEN")
        with (
            pytest.raises(InvalidStatus) as refused,
            api.socket(origin=origin or None, additional_headers={} if origin else {"Origin": ""}),
        ):
            pass
        assert refused.value.response.status_code == 403
    assert api.redis.keys("*") == []
    own = {"Origin": f"http://127.0.0.1:{api.port}"}
    assert api.http.post("/api/v1/queue/a/pause", headers=own).status_code == 200


def test_no_page_of_another_site_may_read(api):
    """No CORS headers, whatever the page asks."""
    origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (api.http.get("/api/v1/tasks", headers=origin), api.http.options("/api/v1/tasks", headers=origin)):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_has_the_security_headers(api):
    for answer in (
        api.http.get("/health"), api.get("/tasks"), api.get(f"/tasks/{NOBODY}"), api.http.get("/nowhere"), api.post("/tasks", b"{"),
        httpx.delete(f"{api.base}/api/v1/tasks"),
    ):  # fmt: skip
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Request-ID"]


@pytest.mark.contract("C13.20")
def test_no_key_is_in_any_line_of_the_log(monkeypatch, tmp_path):
    """Whatever a library or a handler logs: every key that this process was given is replaced."""
    file = tmp_path / "keys"
    file.write_text("from-file-1\nfrom-file-2,from-file-3\n")
    monkeypatch.setenv("DTQ_API_KEY_FILE", str(file))
    monkeypatch.setenv("DTQ_API_READ_KEY", "reader-old, reader-new")
    monkeypatch.setenv("DTQ_API_SUBMIT_KEY", "producer")
    keys = ["admin-1", "admin-2", "from-file-1", "from-file-2", "from-file-3", "reader-old", "reader-new", "producer"]
    secrets = log._secrets_of(load_settings(api_key="admin-1,admin-2"))
    for formatter in (log.TextFormatter(log._Process("api", secrets)), log.JsonFormatter(log._Process("api", secrets))):
        record = logging.LogRecord("dtq", logging.INFO, "", 0, "sent %s and %s", (" ".join(keys), {"k": keys[2]}), None)
        record.queue = keys[-1]
        line = formatter.format(record)
        assert "***" in line and not [key for key in keys if key in line]


def test_a_key_file_that_cannot_be_read_costs_no_line_of_the_log(monkeypatch, tmp_path):
    for value in (str(tmp_path / "nowhere"), str(tmp_path), "x" * 5000):
        monkeypatch.setenv("DTQ_API_KEY_FILE", value)
        assert log._secrets_of(load_settings(api_key="admin-1")) == ("admin-1",)


@pytest.mark.contract("D23")
def test_a_purge_with_a_misspelt_parameter_is_no_purge(api):
    task_id = api.submit(queue="a")
    for path, query in (
        ("/queue/a/purge", "dryrun=true"),
        ("/queue/a/purge", "dry_run=true&x=1"),
        ("/dlq/purge", "que=a"),
    ):
        check_error(api.http.post(f"/api/v1{path}?{query}"), 400, "INVALID_ARGUMENT")
    check_error(api.http.post(f"/api/v1/tasks/{task_id}/cancel?why=x"), 400, "INVALID_ARGUMENT")
    assert api.task(task_id)["status"] == "queued"
