"""Reading, waiting for and cancelling tasks (contract §11)."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error
from support.eventually import eventually

NOBODY = "f" * 32


@pytest.mark.contract("C11.10", "C1.49", "BQ-71")
def test_a_task_with_its_execution_and_result(api, world):
    world.worker()
    task_id = api.submit("echo", {"n": 1}, metadata={"a": 1}, priority=7)
    world.wait_ended([task_id])
    task = api.task(task_id)
    assert (task["status"], task["attempt"], task["priority"], task["payload"]) == ("succeeded", 1, 7, {"n": 1})
    assert task["result"] == {"n": 1}
    assert task["duration_ms"] >= 0 and task["worker_id"] and task["error_class"] is None
    assert [a["attempt"] for a in task["history"]] == [1]
    for name in ("created_at", "available_at", "started_at", "finished_at"):
        assert task[name].endswith("+00:00")


@pytest.mark.contract("C11.10")
@pytest.mark.parametrize("task_id", [NOBODY, "nonsense", "F" * 32, "x" * 3000, "%00", "%F0%9F%A6%8A"])
def test_no_such_task_is_404(api, task_id):
    check_error(api.http.get(f"/api/v1/tasks/{task_id}"), 404, "TASK_NOT_FOUND")


@pytest.mark.contract("BQ-37", "BQ-65")
def test_a_record_by_another_hand_is_shown_and_spoils_no_page(api):
    """Numbers that JSON does not have become null; a record that is no task is passed over."""
    good, strange, gone = api.submit(), api.submit(), api.submit()
    api.redis.hset(f"dtq:task:{strange}", "payload", '{"v": NaN, "w": [1e999, 1.5], "s": "\\ud800"}')
    api.redis.delete(f"dtq:task:{gone}")
    assert api.task(strange)["payload"] == {"v": None, "w": [None, 1.5], "s": "\ud800"}
    assert [t["task_id"] for t in api.get("/tasks").json()["tasks"]] == [strange, good]


# ------------------------------------------------------------------------------------------------ lists


@pytest.mark.contract("C11.16")
def test_the_list_is_newest_first_filtered_and_paged(api):
    ids = [api.submit(queue="a" if n % 2 else "b", payload={"n": n}) for n in range(7)]
    api.post(f"/tasks/{ids[3]}/cancel")

    def listed(**params):
        return [t["task_id"] for t in api.get("/tasks", **params).json()["tasks"]]

    newest = sorted(ids, key=lambda i: (int(api.redis.zscore("dtq:tasks:recent", i)), i), reverse=True)
    assert listed() == newest
    assert set(listed(queue="a")) == set(ids[1::2])
    assert listed(status="cancelled") == [ids[3]]
    assert listed(task_type="echo", queue="a", status="queued", limit=10) == [
        i for i in newest if i in ids[1::2] and i != ids[3]
    ]
    assert listed(task_type="other") == []
    seen, cursor = [], None
    while True:
        page = api.get("/tasks", limit=3, **({"cursor": cursor} if cursor else {})).json()
        seen += [t["task_id"] for t in page["tasks"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == newest


@pytest.mark.contract("C11.16")
def test_fifty_are_listed_unless_told_otherwise(api):
    api.post("/tasks:batch", {"tasks": [{"task_type": "echo"}] * 60})
    assert len(api.get("/tasks").json()["tasks"]) == 50
    assert len(api.get("/tasks", limit=1000).json()["tasks"]) == 60


@pytest.mark.contract("C11.16", "C13.16", "BQ-65")
@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0}, {"limit": -1}, {"limit": 1001}, {"limit": "1e9"}, {"limit": "x"}, {"limit": "1.5"}, {"status": "nonsense"},
        {"queue": "UPPER"}, {"cursor": "nonsense"}, {"cursor": "x" * 500}, {"task_type": "x" * 200}, {"cursor": "🦊"},
    ],
)  # fmt: skip
def test_bad_parameters_are_400_and_are_not_repeated(api, params):
    answer = api.get("/tasks", **params)
    check_error(answer, 400, "INVALID_ARGUMENT")
    ((name, value),) = params.items()
    assert name in answer.json()["message"]
    assert len(str(value)) < 5 or str(value) not in answer.json()["message"]


# ------------------------------------------------------------------------------------------------ waiting


def test_a_waiting_call_is_answered_when_the_task_ends(api, world):
    world.worker()
    task_id = api.submit("gate", {"gate": "g"})
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(api.get, f"/tasks/{task_id}", wait=30)
        eventually(lambda: api.services.feed._waiters)
        assert not waiting.done()
        world.journal.open("g")
        assert waiting.result(10).json()["status"] == "succeeded"
        assert time.monotonic() - began < 5, "it waited for its next look instead of the event"
    assert api.services.feed._waiters == {}


def test_an_ended_task_is_not_waited_for(api):
    task_id = api.submit()
    api.post(f"/tasks/{task_id}/cancel")
    assert api.get(f"/tasks/{task_id}", wait=60).json()["status"] == "cancelled"


def test_when_the_time_is_up_the_answer_says_how_it_stands(api):
    assert api.get(f"/tasks/{api.submit()}", wait=0.05).json()["status"] == "queued"


def test_a_lost_event_costs_a_moment_and_nothing_else(api, monkeypatch):
    monkeypatch.setattr("dtq_api.routes.tasks.LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(api.services.feed, "_hand_on", lambda text: None)
    task_id = api.submit()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.get, f"/tasks/{task_id}", wait=30)
        eventually(lambda: api.services.feed._waiters)
        api.post(f"/tasks/{task_id}/cancel")
        assert waiting.result(10).json()["status"] == "cancelled"


@pytest.mark.parametrize("wait", ["-1", "61", "x", "nan", "inf"])
def test_a_wait_that_is_none_is_400(api, wait):
    check_error(api.get(f"/tasks/{NOBODY}", wait=wait), 400, "INVALID_ARGUMENT")


# ------------------------------------------------------------------------------------------------ cancelling


@pytest.mark.contract("C11.11", "C11.12", "C11.13", "C11.14", "D11")
def test_the_answers_of_cancel(api, world):
    queued, delayed = api.submit(queue="idle"), api.submit(queue="idle", delay_seconds=60)
    for task_id in (queued, delayed):
        answer = api.post(f"/tasks/{task_id}/cancel")
        assert (answer.status_code, answer.json()) == (202, {"task_id": task_id, "status": "cancelled"})
        check_error(api.post(f"/tasks/{task_id}/cancel"), 410, "TASK_TERMINAL")
    check_error(api.post(f"/tasks/{NOBODY}/cancel"), 404, "TASK_NOT_FOUND")
    check_error(api.post("/tasks/nonsense/cancel"), 404, "TASK_NOT_FOUND")
    world.worker()
    running = api.submit("gate", {"gate": "never"})
    world.wait_status(running, "running")
    assert check_error(api.post(f"/tasks/{running}/cancel"), 409, "CANCEL_REQUESTED")["task_id"] == running
    world.wait_status(running, "cancelled")
    assert api.redis.xlen("dtq:stream:idle:p5") == 0 and api.redis.zcard("dtq:retry:schedule") == 0


@pytest.mark.contract("D11")
def test_of_parallel_cancels_one_wins(api):
    task_id = api.submit()
    with ThreadPoolExecutor(10) as pool:
        codes = sorted(a.status_code for a in pool.map(lambda _: api.post(f"/tasks/{task_id}/cancel"), range(10)))
    assert codes == [202] + [410] * 9


@pytest.mark.contract("BQ-21")
def test_a_cancel_that_meets_the_start_has_one_outcome(api, world):
    """202 means that the handler never ran; 409 and 410 that it did."""
    world.worker(concurrency=8)
    outcomes = {}
    for _ in range(40):
        task_id = api.submit("sleep", {"seconds": 0.01})
        outcomes[task_id] = api.post(f"/tasks/{task_id}/cancel").status_code
    statuses = world.wait_ended(outcomes)
    for task_id, code in outcomes.items():
        ran = bool(world.journal.runs(task_id))
        assert code in (202, 409, 410)
        assert (code == 202) <= (statuses[task_id] == "cancelled" and not ran)
        assert (code == 410) <= (statuses[task_id] == "succeeded")
    world.verify(outcomes)


@pytest.mark.contract("C8.03")
def test_json_is_ascii(api):
    """Any client can read it, whatever it takes the encoding for."""
    task_id = api.submit(payload={"s": "🦊 ключ"})
    raw = api.get(f"/tasks/{task_id}").content
    assert raw.isascii() and json.loads(raw)["payload"] == {"s": "🦊 ключ"}
