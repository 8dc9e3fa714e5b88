"""Queues, workers and dead letters: looked at, paused, purged, requeued (contract §11), each deed in the audit (§13)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error
from support.eventually import eventually

NOBODY = "f" * 32


@pytest.fixture
def dead(api, world):
    """Makes dead letters."""
    world.worker()

    def make(queue="default", **fields):
        task_id = api.submit("raise", {"kind": "permanent"}, queue=queue, **fields)
        world.wait_status(task_id, "dead_lettered")
        return task_id

    return make


def audit(api):
    return [fields for _, fields in api.redis.xrange("dtq:stream:audit")]


# ------------------------------------------------------------------------------------------------ queues


@pytest.mark.contract("C11.17", "C11.18", "BQ-72")
def test_the_numbers_of_a_queue(api):
    for _ in range(3):
        api.submit(queue="a")
    for _ in range(2):
        api.submit(queue="a", delay_seconds=60)
    api.submit(queue="b")
    api.post("/queue/a/pause")
    expected = {
        "queue": "a", "depth": 3, "waiting": 3, "pending": 0, "paused": True, "retry_scheduled": 2, "dlq_depth": 0,
        "workers_active": 0,
    }  # fmt: skip
    assert api.get("/queues/a").json() == expected
    assert [row["queue"] for row in api.get("/queues").json()["queues"]] == ["a", "b"]
    assert api.get("/queues").json()["queues"][0] == expected


def test_a_queue_nobody_knows_has_zeros_and_an_impossible_one_is_400(api):
    row = api.get("/queues/nobody").json()
    assert row.pop("queue") == "nobody" and not any(row.values())
    check_error(api.get("/queues/UPPER"), 400, "INVALID_ARGUMENT")
    assert api.get("/queues").json() == {"queues": []}


@pytest.mark.contract("C11.18")
def test_running_tasks_workers_and_dead_letters_are_counted(api, world, dead):
    dead()
    held = api.submit("gate", {"gate": "g"})
    world.wait_status(held, "running")
    row = api.get("/queues/default").json()
    assert (row["depth"], row["pending"], row["waiting"], row["dlq_depth"], row["workers_active"]) == (1, 1, 0, 1, 1)
    world.journal.open("g")


@pytest.mark.contract("C11.31", "C11.32", "D22")
@pytest.mark.parametrize("path", ["/queue/a", "/queues/a"])
def test_pause_and_resume(api, path):
    answer = api.post(f"{path}/pause")
    assert (answer.status_code, answer.json()) == (200, {"queue": "a", "paused": True, "changed": True})
    assert api.redis.get("dtq:queue:a:paused") == "1"
    assert api.post(f"{path}/pause").json()["changed"] is False
    assert api.post(f"{path}/resume").json() == {"queue": "a", "paused": False, "changed": True}
    assert api.redis.exists("dtq:queue:a:paused") == 0
    check_error(api.post(path.replace("/a", "/UPPER") + "/pause"), 400, "INVALID_ARGUMENT")


@pytest.mark.contract("C11.31", "C11.32", "D21")
def test_a_pause_in_the_middle_of_submissions_refuses_none_and_starts_none(api, world, patient):
    """Between the event of the pause and that of the resume no task starts; everything is taken, and runs in the end."""
    feed = world.feed()
    world.worker(concurrency=4)
    with ThreadPoolExecutor(8) as pool:
        submitted = [pool.submit(api.submit, queue="default") for _ in range(120)]
        eventually(lambda: sum(f.done() for f in submitted) > 20)
        api.post("/queue/default/pause")
        ids = [f.result() for f in submitted]
    eventually(lambda: api.get("/queues/default").json()["pending"] == 0)
    assert api.get("/queues/default").json()["paused"] is True
    api.post("/queue/default/resume")
    world.wait_ended(ids)
    types = [e.type for e in feed.events() if e.type in ("TASK_STARTED", "CONFIGURATION_CHANGED")]
    paused, resumed = (n for n, type_ in enumerate(types) if type_ == "CONFIGURATION_CHANGED")
    assert resumed == paused + 1 and types.count("TASK_STARTED") == 120
    world.check(ids, starts=1)


@pytest.mark.contract("D22", "BQ-46")
@pytest.mark.parametrize("path", ["/queue/a/purge", "/queues/a/purge"])
def test_purging_a_queue_cancels_what_has_not_started(api, path):
    ids = [api.submit(queue="a", priority=p) for p in (0, 5, 9)] + [api.submit(queue="a", delay_seconds=60)]
    other = api.submit(queue="b")
    for how in ({"params": {"dry_run": "true"}}, {"body": {"dry_run": True}}):
        report = api.post(path, **how).json()
        assert (report["matched"], report["changed"], report["dry_run"]) == (4, 0, True)
        assert set(report["sample"]) == set(ids)
    assert audit(api) == []
    report = api.post(path).json()
    assert (report["matched"], report["changed"], report["dry_run"]) == (4, 4, False)
    assert {api.task(i)["status"] for i in ids} == {"cancelled"} and api.task(other)["status"] == "queued"
    assert [a["action"] for a in audit(api)] == ["queue.purge"]
    assert api.post(path).json()["matched"] == 0, "purging nothing is fine"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"dry_run":1}', b'{"dry_run":"yes"}', b'{"dry_run":NaN}'])
def test_a_purge_whose_body_cannot_be_understood_does_nothing(api, body):
    task_id = api.submit(queue="a")
    check_error(api.post("/queue/a/purge", body), 400, "INVALID_ARGUMENT")
    check_error(api.post("/dlq/purge", body), 400, "INVALID_ARGUMENT")
    check_error(api.post("/queue/a/purge", params={"dry_run": "perhaps"}), 400, "INVALID_ARGUMENT")
    assert api.task(task_id)["status"] == "queued"


# ------------------------------------------------------------------------------------------------ workers


@pytest.mark.contract("C11.20", "C11.21")
def test_workers_and_their_liveness(api, world):
    assert api.get("/workers").json() == {"workers": []}
    process = world.worker("a", "b", concurrency=3)
    (row,) = api.get("/workers").json()["workers"]
    assert api.get(f"/workers/{process.worker_id}").json()["worker_id"] == row["worker_id"] == process.worker_id
    assert (row["queues"], row["concurrency"], row["status"]) == (["a", "b"], 3, "ready")
    process.kill()
    eventually(lambda: api.get(f"/workers/{process.worker_id}").json()["status"] == "stale")
    for name in ("nobody", "x" * 3000, "%00"):
        check_error(api.http.get(f"/api/v1/workers/{name}"), 404, "WORKER_NOT_FOUND")


# ------------------------------------------------------------------------------------------------ dead letters


@pytest.mark.contract("C11.22", "C11.23")
def test_dead_letters_are_listed_newest_first_and_paged(api, dead):
    ids = [dead(), dead(), dead()]
    page = api.get("/dlq", limit=2).json()
    assert [x["task_id"] for x in page["dead_letters"]] == ids[:0:-1]
    rest = api.get("/dlq", limit=2, cursor=page["cursor"]).json()
    assert [x["task_id"] for x in rest["dead_letters"]] == ids[:1] and rest["cursor"] is None
    letter = api.get(f"/dlq/{ids[0]}").json()
    assert (letter["attempts_made"], letter["last_error_class"], letter["retryable"]) == (1, "PermanentError", False)
    assert letter["failed_at"].endswith("+00:00") and "raw" not in letter
    assert api.get("/dlq", queue="other").json() == {"dead_letters": [], "cursor": None}
    for params in ({"limit": 0}, {"cursor": "nonsense"}, {"queue": "UPPER"}):
        check_error(api.get("/dlq", **params), 400, "INVALID_ARGUMENT")


@pytest.mark.contract("C11.24", "C11.25", "C11.26", "D1")
def test_requeue_starts_anew_and_keeps_history(api, world, dead):
    task_id = dead()
    api.post("/queue/default/pause")
    answer = api.post(f"/dlq/{task_id}/requeue")
    assert (answer.status_code, answer.json()) == (202, {"task_id": task_id, "status": "queued"})
    task = api.task(task_id)
    assert task["attempt"] == 0 and len(task["metadata"]["previous_attempts"]) == 1
    check_error(api.post(f"/dlq/{task_id}/requeue"), 404, "DEAD_LETTER_NOT_FOUND")
    api.post("/queue/default/resume")
    world.wait_status(task_id, "dead_lettered")


@pytest.mark.contract("C11.27", "C11.28", "C11.29")
def test_discard_is_never_silent(api, dead):
    task_id = dead()
    answer = api.post(f"/dlq/{task_id}/discard")
    assert answer.json() == {"task_id": task_id, "status": "dead_lettered", "discarded": True}
    assert api.task(task_id)["metadata"]["discarded"] is True
    assert [(a["action"], a["task_id"]) for a in audit(api)] == [("dlq.discard", task_id)]
    for verb in ("requeue", "discard"):
        check_error(api.post(f"/dlq/{task_id}/{verb}"), 404, "DEAD_LETTER_GONE")
    check_error(api.get(f"/dlq/{task_id}"), 404, "DEAD_LETTER_GONE")


def test_the_404s_of_dead_letters_say_why(api):
    queued = api.submit(queue="idle")
    for call in (
        lambda i: api.get(f"/dlq/{i}"),
        lambda i: api.post(f"/dlq/{i}/requeue"),
        lambda i: api.post(f"/dlq/{i}/discard"),
    ):
        check_error(call(NOBODY), 404, "TASK_NOT_FOUND")
        check_error(call("nonsense"), 404, "TASK_NOT_FOUND")
        check_error(call(queued), 404, "DEAD_LETTER_NOT_FOUND")


@pytest.mark.contract("C11.30")
def test_purging_the_dead_letters(api, dead):
    ids = [dead(), dead()]
    report = api.post("/dlq/purge", params={"dry_run": "true"}).json()
    assert (report["matched"], report["changed"], set(report["sample"])) == (2, 0, set(ids))
    assert api.post("/dlq/purge", params={"queue": "other"}).json()["matched"] == 0
    report = api.post("/dlq/purge").json()
    assert (report["matched"], report["changed"]) == (2, 2)
    assert api.redis.xlen("dtq:stream:dead-letter") == 0
    assert all(api.task(i)["metadata"]["discarded"] is True for i in ids)
    assert [a["action"] for a in audit(api)] == ["dlq.purge", "dlq.purge"]
    assert api.post("/dlq/purge").status_code == 200


# ------------------------------------------------------------------------------------------------ audit


@pytest.mark.contract("C13.14", "C13.15")
def test_each_deed_is_audited_and_logged_with_its_request_and_its_caller(make_api, caplog):
    api = make_api(api_key="s3cret-one,s3cret-two")
    headers = {"X-API-Key": "s3cret-two", "X-Request-ID": "req-7"}
    task_id = api.submit()
    with caplog.at_level("INFO", "dtq.api"):
        for path in (
            f"/tasks/{task_id}/cancel",
            "/queue/default/pause",
            "/queue/default/resume",
            "/queue/default/purge",
            "/dlq/purge",
        ):
            assert api.post(path, headers=headers).status_code in (200, 202)
    entries = audit(api)
    actions = ["task.cancel", "queue.pause", "queue.resume", "queue.purge", "dlq.purge"]
    assert [a["action"] for a in entries] == actions
    assert {(a["actor"], a["request_id"]) for a in entries} == {("api:key-2@127.0.0.1", "req-7")}
    assert [a["task_id"] for a in entries] == [task_id, "", "", "", ""]
    lines = [r.getMessage() for r in caplog.records if "req-7" in r.getMessage()]
    assert len(lines) == len(actions) and all(a in line for a, line in zip(actions, lines, strict=True))
    assert "s3cret" not in str(entries) + caplog.text
