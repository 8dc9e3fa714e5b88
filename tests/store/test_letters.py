"""revive.lua, discard.lua, purge.lua: what an administrator does with dead letters and queues (contract §11; decisions 14, 22, 34)."""

from __future__ import annotations

import pytest
from support.bench import W1, Bench

from dtq_core.store.transitions import Letter


@pytest.mark.contract("C11.24", "C11.26", "C11.28", "D14")
def test_a_letter_goes_back_to_its_queue(bench: Bench) -> None:
    task_id = bench.dead(priority=3, idempotency_key="k", max_attempts=2)
    fence = int(bench.record(task_id)["fence"])
    bench.now_ms += 1000
    (answer,), _ = bench.changes(bench.calls.revive([bench.letter(task_id)], actor="ann", request_id="r1"))
    assert answer == "OK"
    record = bench.record(task_id)
    assert (record["status"], record["attempt"]) == ("queued", "0")
    assert int(record["fence"]) >= fence, "the fence goes on"
    assert not {"error_class", "finished_at", "history"} & set(record)
    ((entry_id, fields),) = bench.redis.xrange(bench.keys.stream("default", 3))
    assert (entry_id, fields["attempt"], fields["max_attempts"]) == (record["entry_id"], "1", "2")
    assert bench.redis.xlen(bench.keys.dead_letters) == bench.redis.zcard(bench.keys.dead("default")) == 0
    assert bench.key_state("default", "k") == "processing"
    counters = bench.counters()
    assert (counters["requeued"], counters["queued"], counters["dead_lettered"]) == (1, 1, 1)
    ((_, audit),) = bench.redis.xrange(bench.keys.audit)
    assert (audit["actor"], audit["action"], audit["task_id"]) == ("ann", "dlq.requeue", task_id)
    (delivery,) = bench.fetch()
    assert delivery.attempt == 1 and int(delivery.fence) > fence


@pytest.mark.contract("D17")
def test_a_record_that_is_gone_is_rebuilt_from_its_letter(bench: Bench) -> None:
    task_id = bench.dead(payload={"n": 1})
    letter = bench.letter(task_id)
    bench.redis.delete(bench.keys.task(task_id))
    gone = Letter(**{name: getattr(letter, name) for name in Letter.__slots__} | {"fence": ""})
    assert bench.run(bench.calls.revive([gone], actor="", request_id="")) == ["OK"]
    (delivery,) = bench.fetch()
    assert (delivery.task_id, delivery.payload) == (task_id, '{"n":1}')
    assert bench.settle(delivery) == "succeeded"


def test_two_administrators_at_once(bench: Bench) -> None:
    letter = bench.letter(bench.dead())
    assert bench.run(bench.calls.revive([letter], actor="", request_id="")) == ["OK"]
    answers, changes = bench.changes(bench.calls.discard([letter], actor="ann", request_id=""))
    assert (answers, changes) == (["CHANGED"], {})
    answers, changes = bench.changes(bench.calls.revive([letter], actor="ann", request_id=""))
    assert (answers, changes) == (["CHANGED"], {})


@pytest.mark.contract("C11.27", "C11.29")
def test_a_discarded_letter_leaves_its_record(bench: Bench) -> None:
    task_id = bench.dead()
    letter = bench.letter(task_id)
    assert bench.run(bench.calls.discard([letter], actor="ann", request_id="r")) == ["OK"]
    record = bench.record(task_id)
    assert (record["status"], record["discarded"]) == ("dead_lettered", "1")
    assert bench.redis.xlen(bench.keys.dead_letters) == bench.redis.zcard(bench.keys.dead("default")) == 0
    assert bench.counters()["discarded"] == 1
    assert bench.run(bench.calls.revive([letter], actor="", request_id="")) == ["CHANGED"]


@pytest.mark.contract("D22", "BQ-46")
def test_a_purge_cancels_what_waits_and_leaves_what_runs(bench: Bench) -> None:
    running = bench.running(idempotency_key="r")
    waiting = [bench.submit(idempotency_key=f"w{n}") for n in range(3)]
    bench.redis.xadd(bench.keys.stream("default", 5), {"task_id": "f" * 32})
    dry = bench.run(bench.calls.purge_step("default", 5, "-", dry_run=True))
    assert (dry.matched, dry.changed) == (4, 0)
    step = bench.run(bench.calls.purge_step("default", 5, "-", dry_run=False))
    assert (step.next_id, step.matched, step.changed) == ("", 4, 4)
    assert {bench.status(t) for t in waiting} == {"cancelled"}
    assert [bench.key_state("default", f"w{n}") for n in range(3)] == ["failed"] * 3
    assert [f["task_id"] for _, f in bench.redis.xrange(bench.keys.stream("default", 5))] == [running.task_id]
    assert bench.settle(running, worker=W1) == "succeeded"
    assert bench.counters() == {"submitted": 4, "started": 1, "succeeded": 1, "cancelled": 3}


@pytest.mark.contract("D33")
def test_a_purge_goes_in_steps(bench: Bench) -> None:
    for _ in range(5):
        bench.run(bench.submit_call(*(bench.submission() for _ in range(50))))
    changed, after = [], "-"
    while True:
        step = bench.run(bench.calls.purge_step("default", 5, after, dry_run=False))
        changed.append(step.changed)
        if not step.next_id:
            break
        after = "(" + step.next_id
    assert max(changed) <= 100 and sum(changed) == 250


@pytest.mark.contract("C2.12", "C2.15", "D21")
def test_a_pause_has_no_end_of_its_own_and_is_audited(bench: Bench) -> None:
    assert bench.run(bench.calls.pause("default", True, actor="ann", request_id="r")) is True
    assert bench.redis.get(bench.keys.paused("default")) == "1"
    assert bench.redis.ttl(bench.keys.paused("default")) == -1
    assert bench.run(bench.calls.pause("default", True, actor="ann", request_id="r")) is False
    assert bench.run(bench.calls.pause("default", False, actor="ann", request_id="r")) is True
    assert not bench.redis.exists(bench.keys.paused("default"))
    actions = [f["action"] for _, f in bench.redis.xrange(bench.keys.audit)]
    assert actions[0] == "queue.pause" and actions[-1] == "queue.resume"
