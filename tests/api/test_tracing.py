"""The traceparent header: into the task's metadata, to its handler, and into the worker's logs."""

from __future__ import annotations

import json

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"


def test_the_header_travels_with_the_task_to_the_workers_log(api, world):
    worker = world.worker(log_json=True)
    answer = api.post("/tasks", {"task_type": "trace"}, headers={"traceparent": TRACE})
    plain = api.post("/tasks", {"task_type": "trace"})
    ids = [answer.json()["task_id"], plain.json()["task_id"]]
    world.wait_ended(ids)
    assert [world.result(task_id) for task_id in ids] == [{"traceparent": TRACE}, {"traceparent": None}]
    assert api.task(ids[0])["metadata"] == {"traceparent": TRACE}
    worker.terminate()
    worker.wait()
    lines = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
    ends = {line["task_id"]: line for line in lines if line["event_type"] == "TASK_SUCCEEDED"}
    assert ends[ids[0]]["traceparent"] == TRACE and "traceparent" not in ends[ids[1]]


def test_what_a_submission_says_itself_wins_and_what_is_no_traceparent_is_ignored(api):
    own = {"task_type": "echo", "metadata": {"traceparent": OTHER, "a": 1}}
    first = api.post("/tasks", own, headers={"traceparent": TRACE}).json()["task_id"]
    second = api.post("/tasks", {"task_type": "echo"}, headers={"traceparent": "not one"}).json()["task_id"]
    assert api.task(first)["metadata"] == {"traceparent": OTHER, "a": 1}
    assert api.task(second)["metadata"] == {}


def test_a_batch_shares_the_header(api):
    body = {"tasks": [{"task_type": "echo"}, {"task_type": "echo", "metadata": {"traceparent": OTHER}}]}
    results = api.post("/tasks:batch", body, headers={"traceparent": TRACE}).json()["results"]
    assert [api.task(r["task_id"])["metadata"]["traceparent"] for r in results] == [TRACE, OTHER]
