"""Idempotency keys over HTTP: nothing refused keeps one (BQ-05), and none ends before its task does (BQ-27)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error
from support.eventually import eventually
from support.world import World

KEY = "dtq:idempotency:default:k"


@pytest.mark.contract("BQ-05", "C5.03", "C11.03", "D9", "D10")
def test_a_refused_submission_leaves_its_key_free(make_api, own_engine):
    api = make_api(own_engine, max_queue_depth=1, max_payload_bytes=1000)
    task = {"task_type": "echo", "idempotency_key": "k"}
    check_error(api.post("/tasks", {**task, "priority": 99}), 400, "INVALID_TASK")
    check_error(api.post("/tasks", {**task, "task_type": "nobody"}), 400, "UNKNOWN_TASK_TYPE")
    check_error(api.post("/tasks", {**task, "payload": {"k": "x" * 1000}}), 413, "PAYLOAD_TOO_LARGE")
    blocker = api.submit()
    check_error(api.post("/tasks", task), 429, "QUEUE_FULL")
    assert api.post(f"/tasks/{blocker}/cancel").status_code == 202
    own_engine.redis.config_set("maxmemory", 1)
    check_error(api.post("/tasks", task), 503, "REDIS_FULL")
    own_engine.redis.config_set("maxmemory", 0)
    assert own_engine.redis.exists(KEY) == 0
    assert api.post("/tasks", task).status_code == 202


@pytest.mark.contract("BQ-05", "D10")
def test_a_key_whose_task_is_gone_is_taken_over(api):
    gone = api.submit(idempotency_key="k")
    api.redis.delete(f"dtq:task:{gone}")
    answer = api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"})
    assert answer.status_code == 202 and answer.json()["task_id"] != gone


@pytest.mark.contract("BQ-05", "C5.06")
def test_fifty_equal_keys_of_an_ended_task_are_fifty_replays(api, patient):
    task_id = api.submit(idempotency_key="k")
    api.post(f"/tasks/{task_id}/cancel")
    body = {"task_type": "echo", "idempotency_key": "k"}
    with ThreadPoolExecutor(25) as pool:
        answers = list(pool.map(lambda _: api.post("/tasks", body), range(50)))
    assert {(a.status_code, a.json().get("task_id"), a.json().get("duplicate")) for a in answers} == {
        (200, task_id, True)
    }
    assert api.redis.xlen("dtq:stream:default:p5") == 0


def test_a_replay_whose_task_ends_its_retention_in_that_moment_is_a_new_task(api, monkeypatch):
    """The script saw the record, the read after it did not."""
    old = api.submit(idempotency_key="k")
    api.post(f"/tasks/{old}/cancel")
    read = api.services.inspector.task

    async def too_late(task_id):
        api.redis.delete(f"dtq:task:{old}")
        return await read(task_id)

    monkeypatch.setattr(api.services.inspector, "task", too_late, raising=False)
    answer = api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"})
    assert answer.status_code == 202 and answer.json()["task_id"] != old


@pytest.fixture
def brief(engine, tmp_path, make_api):
    """A world and a service whose keys are forgotten a second after their task ended."""
    world = World(engine, tmp_path, idem_ttl_s=1)
    yield world, make_api(idem_ttl_s=1)
    world.close()


@pytest.mark.contract("BQ-27", "D10", "D17")
def test_a_key_lives_as_long_as_its_task_and_then_its_time(brief):
    world, api = brief
    body = {"task_type": "echo", "idempotency_key": "k"}
    first = api.submit(idempotency_key="k", delay_seconds=1.5)
    assert api.redis.pttl(KEY) > 1500, "longer than the delay, although a second is its time"
    world.worker()
    while api.task(first)["status"] not in ("succeeded",):
        answer = api.post("/tasks", body)
        assert answer.json()["task_id"] == first and answer.status_code in (409, 200)
    assert 0 < api.redis.pttl(KEY) <= 1000
    eventually(lambda: not api.redis.exists(KEY))
    second = api.submit(idempotency_key="k")
    assert second != first
    world.wait_ended([second])
    world.verify([first, second])


@pytest.mark.contract("BQ-27", "D10")
def test_an_old_dead_letter_never_takes_the_key_of_a_newer_task(brief):
    world, api = brief
    world.worker()
    old = api.submit("raise", {"kind": "permanent"}, idempotency_key="k")
    world.wait_status(old, "dead_lettered")
    eventually(lambda: not api.redis.exists(KEY))
    newer = api.submit("gate", {"gate": "g"}, idempotency_key="k")
    world.wait_status(newer, "running")
    assert api.post(f"/dlq/{old}/requeue").status_code == 202
    eventually(lambda: len(world.journal.runs(old)) == 2)
    world.wait_status(old, "dead_lettered")
    assert json.loads(api.redis.get(KEY))["task_id"] == newer
    body = check_error(
        api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"}), 409, "IDEMPOTENCY_IN_PROGRESS"
    )
    assert body["task_id"] == newer
    world.journal.open("g")
    world.wait_ended([newer])
    assert 0 < api.redis.pttl(KEY) <= 1000
    world.verify([old, newer])
