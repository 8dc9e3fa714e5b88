"""However a task ends, it ends once: one terminal event, one step of dtq_tasks_completed_total, whoever ended it (BQ-66)."""

from __future__ import annotations

import pytest
from api.service import sample
from api.test_probes import Port
from support.eventually import eventually

from dtq_core.events import TERMINAL_EVENTS

EVENT_OF = {
    "succeeded": "TASK_SUCCEEDED",
    "dead_lettered": "TASK_DEAD_LETTERED",
    "cancelled": "TASK_CANCELLED",
    "expired": "TASK_EXPIRED",
}


@pytest.mark.contract("BQ-66", "C9.07", "C9.22")
def test_every_way_to_end_is_told_and_counted_once(api, world):
    feed = world.feed()
    doomed, port = world.worker("crashing", concurrency=1), Port()
    unknown = world.submit("nobody_knows_it", queue="strange")
    lost = api.submit("crash", {"times": 9}, queue="crashing", max_attempts=1)
    eventually(lambda: not doomed.alive)
    world.redis.delete("dtq:lock:scheduler")  # it led, and its lock would go on for ten seconds

    waited_too_long = api.submit(metadata={"ttl_seconds": 0.01})
    api.post("/queue/pausing/pause")
    purged = [api.submit(queue="pausing"), api.submit(queue="pausing", delay_seconds=60)]
    assert api.post("/queue/pausing/purge").json()["changed"] == 2
    cancelled = [api.submit(queue="idle"), api.submit(queue="idle", delay_seconds=60)]
    for task_id in cancelled:
        assert api.post(f"/tasks/{task_id}/cancel").status_code == 202

    world.worker("default", "crashing", "strange", **port.settings)
    delayed_too_long = api.submit(delay_seconds=0.3, metadata={"ttl_seconds": 0.1})
    failed = api.submit("raise", {"kind": "permanent"})
    retried = api.submit("flaky", {"fail_times": 1})
    stopped = api.submit("gate", {"gate": "never"})
    world.wait_status(stopped, "running")
    assert api.post(f"/tasks/{stopped}/cancel").status_code == 409

    expected = {
        api.submit(): "succeeded", retried: "succeeded", failed: "dead_lettered", lost: "dead_lettered", unknown: "dead_lettered",
        waited_too_long: "expired", delayed_too_long: "expired", stopped: "cancelled",
        **dict.fromkeys((*purged, *cancelled), "cancelled"),
    }  # fmt: skip
    assert world.wait_ended(expected) == expected
    for task_id, status in expected.items():
        assert [e for e in feed.of(task_id) if e in TERMINAL_EVENTS] == [EVENT_OF[status]], (task_id, status)

    def counted():
        texts = api.metrics(), port.get("/metrics").text
        return {s: sum(sample(t, "dtq_tasks_completed_total", status=s) for t in texts) for s in EVENT_OF}

    wanted = {status: list(expected.values()).count(status) for status in EVENT_OF}
    eventually(lambda: counted() == wanted, what=lambda: f"{counted()} is {wanted}")
    world.verify(expected)
