"""Redis down, frozen, full, and back: 503 with a code of its own within two seconds, and recovery without help (decision 23)."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error, sample
from support.eventually import eventually

from dtq_core.log import RateLimited

NOBODY = "f" * 32


def every_call(api):
    """One call of each kind that needs Redis."""
    yield lambda: api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"})
    yield lambda: api.post("/tasks:batch", {"tasks": [{"task_type": "echo"}]})
    for path in (
        "/tasks",
        f"/tasks/{NOBODY}",
        f"/tasks/{NOBODY}?wait=30",
        "/queues",
        "/queues/a",
        "/workers",
        "/workers/w",
        "/dlq",
        f"/dlq/{NOBODY}",
    ):
        yield lambda path=path: api.http.get(f"/api/v1{path}")
    for path in (
        f"/tasks/{NOBODY}/cancel",
        "/queue/a/pause",
        "/queue/a/resume",
        "/queue/a/purge",
        "/dlq/purge",
        f"/dlq/{NOBODY}/requeue",
        f"/dlq/{NOBODY}/discard",
    ):
        yield lambda path=path: api.post(path)
    yield lambda: api.http.get("/ready")


@pytest.mark.contract("D23", "BQ-48", "C11.34")
@pytest.mark.parametrize("how", ["down", "frozen"])
def test_every_call_says_so_in_time_and_works_again_by_itself(make_api, own_engine, how):
    api = make_api(own_engine)
    api.submit()
    pid = own_engine.engine.pid
    if how == "down":
        own_engine.stop(hard=True)
    else:
        os.kill(pid, signal.SIGSTOP)

    def timed(call):
        began = time.monotonic()
        return call(), time.monotonic() - began

    try:
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(timed, every_call(api)))
        for answer, took_s in answers:
            body = check_error(answer, 503, "REDIS_UNAVAILABLE")
            assert answer.headers["Retry-After"]
            assert took_s < 2.5, "two seconds, and a moment for a busy machine"
            assert "127.0.0.1" not in body["message"]
        assert answers[-1][0].json()["dependencies"]["redis"]
        assert api.http.get("/health").status_code == 200
    finally:
        if how == "down":
            own_engine.start()
        else:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: api.http.get("/ready").status_code == 200)
    assert api.post("/tasks", {"task_type": "echo"}).status_code == 202


@pytest.mark.contract("BQ-25", "D31")
def test_a_full_redis_takes_nothing_and_finishes(make_api, own_engine):
    api = make_api(own_engine)
    task_id = api.submit()
    own_engine.redis.config_set("maxmemory", 1)
    try:
        check_error(api.post("/tasks", {"task_type": "echo"}), 503, "REDIS_FULL")
        assert api.get(f"/tasks/{task_id}").status_code == 200
        assert api.post(f"/tasks/{task_id}/cancel").status_code == 202
    finally:
        own_engine.redis.config_set("maxmemory", 0)
    assert api.post("/tasks", {"task_type": "echo"}).status_code == 202
    assert sample(api.metrics(), "dtq_ingest_rejected_total", reason="redis_full") == 1


@pytest.mark.contract("BQ-40")
def test_more_callers_than_connections_wait_instead_of_failing(api):
    with ThreadPoolExecutor(100) as pool:
        codes = set(pool.map(lambda _: api.post("/tasks", {"task_type": "echo"}).status_code, range(500)))
    assert codes == {202}
    assert len([c for c in api.redis.client_list() if c["name"] == "dtq"]) <= 66


def test_readers_of_the_feed_are_told_of_the_gap_and_go_on(make_api, own_engine):
    api = make_api(own_engine)
    with api.socket() as client:
        own_engine.restart(hard=True)
        notice = json.loads(client.recv(timeout=10))
        assert (notice["type"], notice["metadata"]["reason"]) == ("EVENTS_DROPPED", "feed_interrupted")
        eventually(lambda: own_engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
        api.publish("TASK_QUEUED")
        while (event := json.loads(client.recv(timeout=10)))["type"] == "EVENTS_DROPPED":
            pass
        assert event["type"] == "TASK_QUEUED"


@pytest.mark.contract("BQ-48")
def test_a_feed_that_falls_silent_is_noticed(make_api, own_engine, monkeypatch):
    """Half-open: nobody says goodbye, nothing comes any more."""
    monkeypatch.setattr("dtq_core.store.connection.SILENCE_S", 0.1)
    monkeypatch.setattr("dtq_core.store.connection.REPLY_TIMEOUT_S", 0.5)
    api = make_api(own_engine)
    pid = own_engine.engine.pid
    with api.socket() as client:
        for _ in range(3):
            api.publish("TASK_QUEUED")
            assert json.loads(client.recv(timeout=10))["type"] == "TASK_QUEUED"
        os.kill(pid, signal.SIGSTOP)
        try:
            assert json.loads(client.recv(timeout=10))["type"] == "EVENTS_DROPPED"
        finally:
            os.kill(pid, signal.SIGCONT)


def test_an_outage_fills_no_log(make_api, own_engine, caplog, monkeypatch):
    monkeypatch.setattr("dtq_core.periodic._limited", RateLimited(logging.getLogger("dtq.loops")))
    api = make_api(own_engine)
    with api.socket():
        own_engine.stop(hard=True)
        for _ in range(50):
            api.get("/queues")
        eventually(lambda: [r for r in caplog.records if "event feed" in r.getMessage()])
        assert len([r for r in caplog.records if r.name.startswith("dtq")]) < 10
        own_engine.start()
