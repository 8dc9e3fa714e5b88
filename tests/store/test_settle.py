"""settle.lua, handback.lua, touch.lua, cancel.lua: how an execution ends, and who may say so (contract §3, §4; decisions 4, 5, 6, 11)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.bench import START_MS, W1, W2, Bench


@pytest.mark.contract("C1.16", "C3.08", "C3.09", "C3.10", "C5.07", "C2.22", "D6")
def test_success(bench: Bench) -> None:
    delivery = bench.running(idempotency_key="k")
    bench.now_ms += 250
    answers, changes = bench.changes(bench.calls.settle(W1, [bench.settling(delivery)]))
    assert answers == ["succeeded"]
    assert changes[bench.keys.task(delivery.task_id)] == {
        "status": "succeeded", "finished_at": str(START_MS + 250), "duration_ms": "12",
    }  # fmt: skip
    assert changes["dtq:stream:default:p5"] == {"entries": {}, "pending": {"workers": {}}}, "acknowledged and deleted"
    assert changes[bench.keys.result(delivery.task_id)] == '{"ok":1}'
    assert bench.key_state("default", "k") == "completed"
    assert bench.counters() == {"submitted": 1, "started": 1, "succeeded": 1}
    assert set(changes) == {
        bench.keys.task(delivery.task_id), "dtq:stream:default:p5", bench.keys.result(delivery.task_id),
        "dtq:ledger:default", "dtq:idempotency:default:k",
    }  # fmt: skip
    assert 0 < bench.redis.ttl(bench.keys.result(delivery.task_id)) <= bench.settings.result_retention_s


@pytest.mark.contract("C1.17", "C1.05", "C1.43", "C1.47", "C1.50", "C2.05", "C3.10", "C4.15")
def test_a_retry(bench: Bench) -> None:
    delivery = bench.running(idempotency_key="k")
    answers, changes = bench.changes(
        bench.calls.settle(W1, [bench.settling(delivery, "retrying", retry_delay_ms=1500)])
    )
    assert answers == ["retrying"]
    record = bench.record(delivery.task_id)
    assert (record["status"], record["entry_id"], record["available_at"]) == ("retrying", "", str(START_MS + 1500))
    assert (record["error_class"], record["error_message"], record["retry_delay_ms"]) == ("Boom", "it broke", "1500")
    assert json.loads(record["history"]) == {"attempt": 1, "worker_id": W1, "finished_at": START_MS}
    assert changes["dtq:retry:schedule"] == {delivery.task_id: START_MS + 1500}
    assert changes["dtq:stream:default:p5"] == {"entries": {}, "pending": {"workers": {}}}
    assert bench.key_state("default", "k") == "processing"
    assert bench.counters() == {"submitted": 1, "started": 1, "retrying": 1, "retried": 1}


@pytest.mark.contract("C1.19", "C2.04", "C2.18", "C3.10", "C4.16", "C5.07")
def test_a_dead_letter(bench: Bench) -> None:
    delivery = bench.running(idempotency_key="k", payload={"n": 1}, priority=4)
    bench.changes(bench.calls.settle(W1, [bench.settling(delivery, "dead_lettered")]))
    ((entry_id, letter),) = bench.redis.xrange(bench.keys.dead_letters)
    assert letter == {
        "task_id": delivery.task_id, "queue": "default", "task_type": "echo", "payload": '{"n":1}', "attempt": "1",
        "max_attempts": "5", "priority": "4", "timeout_ms": "30000", "idempotency_key": "k", "failed_at_ms": str(START_MS),
        "attempts_made": "1", "last_error": "it broke", "last_error_class": "Boom", "retryable": "1", "worker_id": W1,
        "original_queue": "default",
    }  # fmt: skip
    assert bench.redis.zrange(bench.keys.dead("default"), 0, -1, withscores=True) == [
        (delivery.task_id, float(entry_id.split("-")[0]))
    ]
    assert (bench.status(delivery.task_id), bench.key_state("default", "k")) == ("dead_lettered", "failed")
    assert bench.redis.xlen(bench.keys.stream("default", 4)) == 0


@pytest.mark.contract("C2.04", "C7.08")
def test_dead_letters_are_bounded_and_the_trimmed_ones_are_counted(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(dlq_maxlen=100)
    for _ in range(4):
        ids = [bench.submit() for _ in range(100)]
        bench.run(bench.calls.settle(W1, [bench.settling(d, "dead_lettered") for d in bench.fetch(capacity=100)]))
    kept = bench.redis.xlen(bench.keys.dead_letters)
    assert 100 <= kept < 320
    assert bench.counters()["letters_trimmed"] == 400 - kept
    assert bench.redis.zcard(bench.keys.dead("default")) <= kept + 100
    assert set(ids) <= set(bench.redis.zrange(bench.keys.dead("default"), 0, -1))


@pytest.mark.contract("D19")
def test_a_queues_own_limit_of_letters(bench: Bench) -> None:
    bench.redis.hset(bench.keys.policy("default"), "dlq_maxlen", 2)
    ids = {bench.dead() for _ in range(4)}
    kept = {f["task_id"] for _, f in bench.redis.xrange(bench.keys.dead_letters)}
    assert len(kept) == 2 and set(bench.redis.zrange(bench.keys.dead("default"), 0, -1)) == kept
    assert {t for t in ids if bench.record(t).get("letter_gone") == "limit"} == ids - kept
    assert bench.counters()["letters_trimmed"] == 2


@pytest.mark.contract("BQ-09", "D5")
def test_the_fence_refuses_everybody_but_the_owner(bench: Bench) -> None:
    """Whatever a late finisher reports, nothing at all changes."""
    delivery = bench.running()
    bench.orphan(delivery)
    bench.run(bench.reclaim_call(W2))
    for status in ("succeeded", "retrying", "dead_lettered", "cancelled"):
        answers, changes = bench.changes(bench.calls.settle(W1, [bench.settling(delivery, status)]))
        assert (answers, changes) == (["LOST"], {})
    answers, changes = bench.changes(bench.calls.hand_back(W1, [delivery]))
    assert (answers, changes) == (["LOST"], {})


@pytest.mark.contract("BQ-09", "D5")
def test_a_requeued_task_is_out_of_reach_for_its_earlier_life(bench: Bench) -> None:
    """The fence is never reset: attempt and worker may be the same again."""
    delivery = bench.running()
    bench.settle(delivery, "dead_lettered")
    bench.run(bench.calls.revive([bench.letter(delivery.task_id)], actor="", request_id=""))
    (again,) = bench.fetch(W1)
    assert again.attempt == delivery.attempt == 1
    assert int(again.fence) > int(delivery.fence)
    assert bench.settle(delivery) == "LOST"
    assert bench.settle(again) == "succeeded"


@pytest.mark.contract("BQ-09", "D5")
@pytest.mark.parametrize("status", ["succeeded", "cancelled"])
def test_a_task_given_up_by_a_peer_and_requeued_is_out_of_reach_too(bench: Bench, status: str) -> None:
    """Nobody started it again, so only giving it up or requeueing it can have raised the fence."""
    delivery = bench.running(max_attempts=1)
    bench.orphan(delivery)
    bench.run(bench.reclaim_call(W2))
    assert bench.status(delivery.task_id) == "dead_lettered"
    bench.run(bench.calls.revive([bench.letter(delivery.task_id)], actor="", request_id=""))
    answers, changes = bench.changes(bench.calls.settle(W1, [bench.settling(delivery, status)]))
    assert (answers, changes) == (["LOST"], {})


@pytest.mark.contract("C1.20", "D11")
@pytest.mark.parametrize("status", ["succeeded", "retrying", "dead_lettered"])
def test_an_accepted_cancel_beats_every_end(bench: Bench, status: str) -> None:
    delivery = bench.running(idempotency_key="k")
    assert bench.run(bench.calls.cancel([delivery.task_id])) == ["REQUESTED"]
    assert bench.settle(delivery, status) == "cancelled"
    assert bench.counters() == {"submitted": 1, "started": 1, "cancelled": 1}
    assert not bench.redis.exists(bench.keys.result(delivery.task_id), bench.keys.dead_letters, bench.keys.schedule)
    assert bench.key_state("default", "k") == "failed"


@pytest.mark.contract("D14")
def test_a_start_that_is_handed_back_does_not_count(bench: Bench) -> None:
    delivery = bench.running()
    answers, _ = bench.changes(bench.calls.hand_back(W1, [delivery]))
    assert answers == ["OK"]
    record = bench.record(delivery.task_id)
    assert (record["status"], record["attempt"]) == ("queued", "0")
    assert int(record["fence"]) > int(delivery.fence)
    assert record["entry_id"] != delivery.entry_id
    assert bench.counters() == {"submitted": 1, "started": 1, "queued": 1, "handed_back": 1}
    (again,) = bench.fetch(W2)
    assert again.attempt == 1


@pytest.mark.contract("C6.07", "D7")
def test_touch_renews_and_never_takes_back(bench: Bench) -> None:
    delivery = bench.running()
    bench.orphan(delivery)
    assert bench.run(bench.calls.touch(W1, [delivery])) == ["OK"]
    stream = bench.keys.stream("default", 5)
    (row,) = bench.redis.xpending_range(stream, "workers", "-", "+", 9)
    assert row["consumer"] == W1 and row["time_since_delivered"] < 10_000
    bench.orphan(delivery)
    bench.run(bench.reclaim_call(W2))
    assert bench.run(bench.calls.touch(W1, [delivery])) == ["LOST"]
    (row,) = bench.redis.xpending_range(stream, "workers", "-", "+", 9)
    assert row["consumer"] == W2


@pytest.mark.contract("D11")
def test_touch_tells_of_a_cancel(bench: Bench) -> None:
    delivery = bench.running()
    bench.run(bench.calls.cancel([delivery.task_id]))
    assert bench.run(bench.calls.touch(W1, [delivery])) == ["CANCEL"]


@pytest.mark.contract("C1.11", "C1.14", "C1.22", "C1.23", "C2.15", "C11.11", "D11")
@pytest.mark.parametrize("state", ["queued", "pending", "retrying", "claimed"])
def test_a_cancel_takes_the_entry_or_the_member_along(bench: Bench, state: str) -> None:
    task_id = {
        "queued": lambda: bench.submit(idempotency_key="k"),
        "pending": lambda: bench.submit(idempotency_key="k", delay_seconds=5),
        "claimed": lambda: bench.submit(idempotency_key="k", delay_seconds=5),
        "retrying": lambda: bench.retrying(idempotency_key="k"),
    }[state]()
    if state == "claimed":
        bench.claimed(task_id)
    assert bench.run(bench.calls.cancel([task_id], actor="ann", request_id="r1")) == ["CANCELLED"]
    assert bench.status(task_id) == "cancelled"
    assert bench.redis.xlen(bench.keys.stream("default", 5)) == 0
    assert bench.redis.zcard(bench.keys.schedule) == bench.redis.zcard(bench.keys.claimed) == 0
    assert bench.key_state("default", "k") == "failed"
    ((_, audit),) = bench.redis.xrange(bench.keys.audit)
    assert (audit["actor"], audit["action"], audit["task_id"], audit["request_id"]) == (
        "ann",
        "task.cancel",
        task_id,
        "r1",
    )
    assert bench.fetch() == [] and bench.release([task_id]).released == 0


@pytest.mark.contract("D11")
def test_ten_thousand_cancelled_tasks_take_no_room(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_queue_depth=50)
    for _ in range(3):
        ids = [bench.submit() for _ in range(50)]
        assert bench.run(bench.calls.cancel(ids)) == ["CANCELLED"] * 50
    bench.submit()


@pytest.mark.contract("C1.24", "D11")
def test_an_ended_or_unknown_task_cannot_be_cancelled(bench: Bench) -> None:
    delivery = bench.running()
    bench.settle(delivery)
    answers, changes = bench.changes(bench.calls.cancel([delivery.task_id, "f" * 32], actor="ann"))
    assert (answers, changes) == (["TERMINAL", "GONE"], {})


@pytest.mark.contract("D34")
def test_nine_earlier_attempts_are_kept(bench: Bench) -> None:
    """With the last one they are the ten that a task shows; the oldest go first."""
    task_id = bench.submit(max_attempts=10)
    for attempt in range(1, 11):
        (delivery,) = bench.fetch()
        assert delivery.attempt == attempt
        if attempt < 10:
            bench.settle(delivery, "retrying")
            bench.claimed(task_id)
            bench.release([task_id])
    assert [json.loads(line)["attempt"] for line in bench.record(task_id)["history"].splitlines()] == list(range(1, 10))
    bench.orphan(delivery)
    bench.redis.hset(bench.keys.task(task_id), "attempt", "9")
    ((entry_id, fields),) = bench.redis.xrange(bench.keys.stream("default", 5))
    (again,) = bench.run(bench.reclaim_call(W2)).deliveries
    kept = [json.loads(line)["attempt"] for line in bench.record(task_id)["history"].splitlines()]
    assert len(kept) == 9 and kept[0] == 2 and again.entry_id == entry_id and fields["max_attempts"] == "10"
