"""/metrics, /health and /ready: exactly the metrics of contract §9, bounded labels, one cached reader; both probes broken on purpose."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error, sample
from support.eventually import eventually

from dtq_core.metrics import OTHER, Labels

QT = {"queue", "task_type"}
METRICS = {
    "dtq_tasks_submitted_total": ("counter", QT),
    "dtq_tasks_started_total": ("counter", QT),
    "dtq_tasks_succeeded_total": ("counter", QT),
    "dtq_tasks_failed_total": ("counter", QT),
    "dtq_tasks_retried_total": ("counter", QT),
    "dtq_tasks_dead_lettered_total": ("counter", QT),
    "dtq_tasks_completed_total": ("counter", QT | {"status"}),
    "dtq_task_attempts_total": ("counter", QT | {"result"}),
    "dtq_queue_depth": ("gauge", {"queue"}),
    "dtq_queue_pending": ("gauge", {"queue"}),
    "dtq_retry_scheduled": ("gauge", set()),
    "dtq_dlq_depth": ("gauge", set()),
    "dtq_workers_active": ("gauge", set()),
    "dtq_worker_inflight": ("gauge", {"worker_id"}),
    "dtq_worker_tasks_total": ("counter", {"worker_id", "task_type", "result"}),
    "dtq_task_duration_seconds": ("histogram", QT),
    "dtq_task_execution_seconds": ("histogram", QT),
    "dtq_task_wait_seconds": ("histogram", QT),
    "dtq_retry_delay_seconds": ("histogram", QT),
    "dtq_redis_operations_total": ("counter", {"operation", "result"}),
    "dtq_ingest_rejected_total": ("counter", {"queue", "reason"}),
}
"""Contract §9, word for word."""


@pytest.fixture
def fresh(monkeypatch):
    """Scrapes that are read anew each time."""
    monkeypatch.setattr("dtq_api.numbers.MAX_AGE_S", 0.0)


@pytest.mark.contract(*[f"C9.{n:02}" for n in range(1, 22)], "C11.35")
def test_exactly_the_metrics_of_the_contract(api):
    metrics = api.services.metrics
    metrics.started("q", "t", 1)
    metrics.attempted("w", "q", "t", "success", 1)
    metrics.retried("q", "t", 1)
    for status in ("succeeded", "failed", "dead_lettered", "cancelled", "expired"):
        metrics.completed("q", "t", status, 1)
    metrics.inflight("w", lambda: 1)
    api.submit()
    api.post("/tasks", {"task_type": "echo", "priority": 99})
    answer = api.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", answer.text, re.MULTILINE))
    assert types == {name: kind for name, (kind, _) in METRICS.items()}
    assert set(re.findall(r"^# HELP (\S+) \S", answer.text, re.MULTILINE)) == set(METRICS)
    seen: dict[str, set[str]] = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            family = name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)
            seen[family] = set(re.findall(r'(\w+)="', labels or "")) - {"le"}
    assert seen == {name: labels for name, (_, labels) in METRICS.items()}


@pytest.mark.contract("C9.01", "C9.21")
def test_what_the_service_counts(api):
    for n in range(3):
        api.submit(queue="a", idempotency_key=f"k{n}")
    api.post(
        "/tasks:batch", {"tasks": [{"task_type": "echo", "queue": "a"}] * 4 + [{"task_type": "echo", "priority": 99}]}
    )
    api.post("/tasks", {"task_type": "echo", "queue": "a", "idempotency_key": "k0"})
    api.post("/tasks", {"task_type": "no_such_task", "queue": "a"})
    assert api.value("dtq_tasks_submitted_total", queue="a", task_type="echo") == 7
    refused = {
        reason: api.value("dtq_ingest_rejected_total", reason=reason)
        for reason in ("idempotency_in_progress", "unknown_task_type", "invalid_task")
    }
    assert refused == {"idempotency_in_progress": 1, "unknown_task_type": 1, "invalid_task": 1}
    assert api.value("dtq_redis_operations_total", operation="submit", result="ok") == 6


@pytest.mark.contract("C9.07", "BQ-66")
def test_a_task_that_the_service_ends_is_counted_once(api):
    queued, delayed = api.submit(queue="a"), api.submit(queue="a", delay_seconds=60)
    for task_id in (queued, queued, delayed):
        api.post(f"/tasks/{task_id}/cancel")
    assert api.value("dtq_tasks_completed_total", queue="a", task_type="echo", status="cancelled") == 2
    api.post("/tasks:batch", {"tasks": [{"task_type": "echo", "queue": "a"}] * 3})
    api.post("/queue/a/purge", params={"dry_run": "true"})
    api.post("/queue/a/purge")
    assert api.value("dtq_tasks_completed_total", queue="a", status="cancelled") == 5


@pytest.mark.contract("C9.09", "C9.10", "C9.11", "C9.12", "C9.13", "BQ-72")
def test_the_gauges_say_what_redis_says(api, world, fresh):
    world.worker("a")
    for priority in (0, 5, 9):
        api.submit(queue="b", priority=priority)
    api.submit(queue="b", delay_seconds=60)
    held = api.submit("gate", {"gate": "g"}, queue="a")
    world.wait_status(held, "running")
    world.wait_status(api.submit("raise", {"kind": "permanent"}, queue="a"), "dead_lettered")
    text = api.metrics()
    assert sample(text, "dtq_queue_depth", queue="b") == 3 and sample(text, "dtq_queue_depth", queue="a") == 1
    assert sample(text, "dtq_queue_pending", queue="b") == 0 and sample(text, "dtq_queue_pending", queue="a") == 1
    assert (sample(text, "dtq_retry_scheduled"), sample(text, "dtq_dlq_depth"), sample(text, "dtq_workers_active")) == (
        1,
        1,
        1,
    )
    world.journal.open("g")


@pytest.mark.contract("BQ-55")
def test_redis_is_read_once_however_often_is_asked(api):
    api.submit()
    before = api.value("dtq_redis_operations_total", operation="smembers")
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: api.metrics(), range(100)))
    assert api.value("dtq_redis_operations_total", operation="smembers") == before


@pytest.mark.contract("C9.22")
def test_label_values_are_never_text_of_users(api):
    task_id = api.submit(queue="a", metadata={"user": "jane"})
    for body in (
        {"task_type": "echo", "queue": "Evil queue\n{}"}, {"task_type": "echo", "queue": "x" * 200}, {"task_type": 'evil"type'},
        {"task_type": "echo", "queue": {"a": 1}}, {"task_type": ["echo"]}, ["echo"],
    ):  # fmt: skip
        assert api.post("/tasks", body).status_code == 400
    text = api.metrics()
    for hostile in ("Evil", "evil", "xxxx", "jane", task_id):
        assert hostile not in text
    assert sample(text, "dtq_ingest_rejected_total", queue=OTHER) == 4


@pytest.mark.contract("C9.22")
def test_made_up_queue_names_do_not_make_series_without_end(api):
    for n in range(150):
        api.post("/tasks", {"task_type": "echo", "queue": f"made-up-{n}", "priority": 99})
    text = api.metrics()
    assert len(set(re.findall(r'queue="(made-up-\d+)"', text))) == 100
    assert sample(text, "dtq_ingest_rejected_total", queue=OTHER) == 50
    api.submit(queue="real")
    api.post("/tasks", {"task_type": "echo", "queue": "real", "priority": 99})
    assert api.value("dtq_ingest_rejected_total", queue="real") == 1


def test_labels():
    labels = Labels(["echo"])
    assert (labels.task_type("echo"), labels.task_type("other")) == ("echo", OTHER)
    labels.learn(queues=["a"], task_types=["other"])
    assert (labels.task_type("other"), labels.queue("a"), labels.queue("Not a queue")) == ("other", "a", OTHER)
    assert labels.replace_queues(["b"]) == {"a"} and labels.replace_queues(["b"]) == set()


@pytest.mark.contract("BQ-55")
def test_series_of_queues_that_are_gone_go(api, fresh):
    api.submit(queue="gone")
    api.submit(queue="here")
    assert 'queue="gone"' in api.metrics()
    api.redis.srem("dtq:queues", "gone")
    assert 'queue="gone"' not in api.metrics()
    assert 'queue="here"' in api.metrics()


@pytest.mark.contract("BQ-55")
def test_without_redis_a_scrape_has_the_counters(make_api, own_engine, fresh):
    api = make_api(own_engine)
    api.submit(queue="a")
    assert api.value("dtq_queue_depth", queue="a") == 1
    own_engine.stop(hard=True)
    text = api.metrics()
    assert sample(text, "dtq_tasks_submitted_total", queue="a") == 1
    assert "\ndtq_queue_depth{" not in text and "\ndtq_dlq_depth " not in text
    own_engine.start()
    eventually(lambda: "\ndtq_dlq_depth " in api.metrics())


# ------------------------------------------------------------------------------------------------ probes


@pytest.mark.contract("C11.33")
def test_health_means_that_the_loops_are_alive(api):
    assert api.http.get("/health").json() == {"status": "ok"}
    (loop,) = api.app.state.loops
    loop.get_loop().call_soon_threadsafe(loop.cancel)
    body = check_error(eventually(lambda: (a := api.http.get("/health")).is_error and a), 503, "NOT_READY")
    assert body["dependencies"] == {"event feed": "ended"}


@pytest.mark.contract("C11.34", "D30")
def test_ready_means_that_redis_answers_and_the_groups_exist(api, world):
    assert api.http.get("/ready").json() == {"status": "ready", "dependencies": {"redis": "ok", "groups": "ok"}}
    api.submit(queue="nobody-works-here")
    assert api.http.get("/ready").status_code == 200
    beat = int(time.time() * 1000) + 60_000
    row = {"worker_id": "worker-1", "queues": "a,b", "status": "ready", "last_heartbeat": beat}
    api.redis.hset("dtq:worker:worker-1", mapping=row)
    api.redis.sadd("dtq:workers", "worker-1")
    assert api.http.get("/ready").status_code == 200, "nothing to do yet"
    task_id = api.submit(queue="a")
    answer = api.http.get("/ready")
    body = check_error(answer, 503, "NOT_READY")
    assert body["dependencies"] == {"redis": "ok", "groups": "missing on a"} and answer.headers["Retry-After"]
    world.worker("a")
    world.wait_status(task_id, "succeeded")
    assert api.http.get("/ready").status_code == 200
