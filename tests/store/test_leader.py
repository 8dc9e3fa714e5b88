"""The leader's scripts: claim, release, return, and keeping house (contract §4; decisions 15, 17, 21, 35)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from support.bench import W1, W2, Bench
from support.keyspace import KeyAudit

from dtq_core.client import Client
from dtq_core.errors import DeadLetterGone
from dtq_core.inspector import Inspector
from dtq_core.store import Store


@pytest.mark.contract("C2.06", "C4.19")
def test_a_claim_moves_what_is_due_and_no_more(bench: Bench) -> None:
    due = [bench.submit(delay_seconds=n) for n in (1, 2)]
    later = bench.submit(delay_seconds=100)
    bench.now_ms += 3000
    found, changes = bench.changes(bench.calls.claim_due(bench.lead()))
    assert (found.leading, list(found.task_ids), found.next_in_ms) == (True, due, 97_000)
    assert changes == {
        "dtq:retry:schedule": dict.fromkeys(due),
        "dtq:retry:claimed": dict.fromkeys(due, float(bench.now_ms)),
        "dtq:retry:batch": " ".join(due),
    }
    assert bench.redis.zrange(bench.keys.schedule, 0, -1) == [later]


@pytest.mark.contract("C7.07")
def test_a_claim_takes_a_hundred_at_a_time(bench: Bench) -> None:
    for _ in range(3):
        bench.run(bench.submit_call(*(bench.submission(delay_seconds=1) for _ in range(50))))
    bench.now_ms += 2000
    bench.lead()
    assert [len(bench.claim().task_ids) for _ in range(3)] == [100, 50, 0]


@pytest.mark.contract("BQ-14", "D15")
def test_who_does_not_lead_claims_and_returns_nothing(bench: Bench) -> None:
    bench.claimed(bench.submit(delay_seconds=1))
    bench.submit(delay_seconds=1)
    bench.now_ms += 70_000
    found, changes = bench.changes(bench.calls.claim_due("somebody else"))
    assert (found.leading, found.task_ids, changes) == (False, (), {})
    assert bench.changes(bench.calls.return_stale("somebody else", 60_000)) == (0, {})


@pytest.mark.contract("C2.16", "C4.20", "BQ-14", "D15")
def test_the_lock_is_compared_before_it_is_touched(bench: Bench) -> None:
    bench.lead("mine")
    assert 0 < bench.redis.pttl(bench.keys.lock) <= 10_000
    bench.redis.set(bench.keys.lock, "theirs", px=5000)
    assert bench.run(bench.calls.lock("mine", 10_000)) is False
    assert bench.run(bench.calls.lock("mine", 0)) is False
    assert bench.redis.get(bench.keys.lock) == "theirs" and bench.redis.pttl(bench.keys.lock) <= 5000


@pytest.mark.contract("C1.10", "C1.21", "C4.21", "C4.22", "D14")
@pytest.mark.parametrize("state", ["pending", "retrying"])
def test_a_release_puts_the_task_on_its_stream(bench: Bench, state: str) -> None:
    task_id = bench.submit(delay_seconds=1, priority=2) if state == "pending" else bench.retrying(priority=2)
    bench.claimed(task_id)
    released = bench.release([task_id])
    assert (released.released, released.problems, released.ended) == (1, (), ())
    ((entry_id, fields),) = bench.redis.xrange(bench.keys.stream("default", 2))
    assert fields["attempt"] == ("1" if state == "pending" else "2"), "the attempt that it is meant to execute"
    record = bench.record(task_id)
    assert (record["status"], record["entry_id"]) == ("queued", entry_id)
    assert bench.redis.zcard(bench.keys.claimed) == 0
    assert bench.redis.lrange(bench.keys.wake("default"), 0, -1) == ["1"]


@pytest.mark.contract("C1.12", "C1.21", "D14")
def test_a_delayed_task_past_its_time_to_live_expires_and_a_retry_goes_on(bench: Bench) -> None:
    """PENDING may expire; RETRYING goes to QUEUED first and expires there (§1 has no other edge)."""
    delayed = bench.submit(delay_seconds=5, metadata={"ttl_seconds": 1})
    retrying = bench.retrying(metadata={"ttl_seconds": 2})
    bench.claimed(delayed, retrying)
    released = bench.release([delayed, retrying])
    assert [(e.task_id, e.status) for e in released.ended] == [(delayed, "expired")]
    assert bench.status(retrying) == "queued"
    assert [(e.task_id, e.status) for e in bench.run(bench.fetch_call()).ended] == [(retrying, "expired")]


@pytest.mark.contract("C2.07", "C4.23", "BQ-12")
def test_a_stale_claim_goes_back(bench: Bench) -> None:
    task_id = bench.submit(delay_seconds=1)
    bench.claimed(task_id)
    bench.now_ms += 59_000
    assert bench.run(bench.calls.return_stale(bench.lead(), 60_000)) == 0
    bench.now_ms += 2000
    assert bench.run(bench.calls.return_stale(bench.lead(), 60_000)) == 1
    assert bench.redis.zscore(bench.keys.schedule, task_id) == bench.now_ms
    assert bench.claim().task_ids == (task_id,)


@pytest.mark.contract("BQ-14")
def test_a_late_release_of_an_earlier_leader_places_nothing_twice(bench: Bench) -> None:
    task_id = bench.submit(delay_seconds=1)
    bench.claimed(task_id)
    assert bench.release([task_id]).released == 1
    (delivery,) = bench.fetch()
    bench.settle(delivery, "retrying", retry_delay_ms=60_000)
    answer, changes = bench.changes(bench.calls.release([task_id]))
    assert (answer.released, changes) == (0, {})


@pytest.mark.contract("C2.08", "D17")
def test_records_of_live_tasks_do_not_expire(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(task_retention_s=1000, idem_ttl_s=100)
    queued = bench.submit(idempotency_key="q")
    delayed = bench.submit(delay_seconds=500, idempotency_key="d")
    for task_id in (queued, delayed):
        bench.redis.expire(bench.keys.task(task_id), 10)
    for key in "qd":
        bench.redis.expire(bench.keys.idempotency("default", key), 10)
    assert bench.run(bench.calls.renew(bench.keys.stream("default", 5), "")) == ("", 1, [])
    assert bench.run(bench.calls.renew(bench.keys.schedule, "")) == ("", 1, [])
    assert bench.redis.ttl(bench.keys.task(queued)) > 990
    assert bench.redis.ttl(bench.keys.task(delayed)) > 1490
    assert bench.redis.ttl(bench.keys.idempotency("default", "q")) > 90
    assert bench.redis.ttl(bench.keys.idempotency("default", "d")) > 590


@pytest.mark.contract("D17", "D33")
def test_a_renewal_goes_in_steps(bench: Bench) -> None:
    for _ in range(5):
        bench.run(bench.submit_call(*(bench.submission() for _ in range(5))))
    seen, cursor = 0, ""
    while True:
        cursor, _, missing = bench.run(bench.calls.renew(bench.keys.stream("default", 5), cursor, 10))
        seen += 1
        assert missing == []
        if not cursor:
            break
    assert seen == 3


@pytest.mark.contract("C2.11", "D17", "BQ-38")
def test_dead_workers_are_forgotten_and_their_consumers_dropped_only_when_empty(bench: Bench) -> None:
    first = bench.running(W1)
    bench.settle(bench.running(W2), worker=W2)
    bench.redis.sadd(bench.keys.workers, W1, W2)
    stale, forgotten, dropped = bench.run(bench.calls.prune(["default"], [W1, W2], -1))
    assert (stale, forgotten) == ([], 2)
    names = {c["name"] for c in bench.redis.xinfo_consumers(bench.keys.stream("default", 5), "workers")}
    assert (names, dropped) == ({W1}, 1), "the one that holds an entry stays"
    assert bench.settle(first) == "succeeded"


@pytest.mark.contract("C6.24", "C8.14", "D17")
def test_a_silent_worker_is_told_of_once(bench: Bench) -> None:
    bench.register(W1)
    bench.now_ms += 16_000
    assert bench.run(bench.calls.prune([], [W1], 1000))[0] == [W1]
    assert bench.run(bench.calls.prune([], [W1], 1000))[0] == []


@pytest.mark.contract("D35")
def test_an_empty_queue_is_forgotten_after_the_retention(bench: Bench) -> None:
    bench.settle(bench.running())
    assert bench.run(bench.calls.sweep_queue("default")) is False
    bench.now_ms += bench.settings.task_retention_s * 1000 // 2
    assert bench.run(bench.calls.sweep_queue("default")) is False
    bench.now_ms += bench.settings.task_retention_s * 1000 // 2 + 1
    assert bench.run(bench.calls.sweep_queue("default")) is True
    left = set(bench.redis.scan_iter("dtq:*default*"))
    assert left == set()
    assert bench.redis.smembers(bench.keys.queues) == set()


@pytest.mark.contract("D35")
@pytest.mark.parametrize("keeps", ["a task", "a dead letter", "a pause", "a policy", "a worker", "work meanwhile"])
def test_what_keeps_a_queue(bench: Bench, keeps: str) -> None:
    bench.settle(bench.running())
    bench.run(bench.calls.sweep_queue("default"))
    if keeps == "a task":
        bench.submit(delay_seconds=1)
    elif keeps == "a dead letter":
        bench.dead()
    elif keeps == "a pause":
        bench.run(bench.calls.pause("default", True, actor="", request_id=""))
    elif keeps == "a policy":
        bench.redis.hset(bench.keys.policy("default"), "max_depth", 5)
    elif keeps == "a worker":
        bench.register(W1)
    else:
        bench.settle(bench.running())
    bench.now_ms += bench.settings.task_retention_s * 1000 + 1
    assert bench.run(bench.calls.sweep_queue("default")) is False


@pytest.mark.contract("BQ-62")
def test_a_worker_id_is_given_once(bench: Bench) -> None:
    assert bench.register(W1) is True
    assert bench.register(W1) is False
    bench.redis.delete(bench.keys.worker(W1))
    bench.running(W1)
    assert bench.register(W1) is False, "its last life left an entry behind"
    assert bench.register(W2) is True


@pytest.mark.contract("D13", "BQ-62")
def test_a_heartbeat_writes_the_row_and_the_types(bench: Bench) -> None:
    bench.register(W1, started_at="7", stale="1")
    beat = partial(bench.calls.beat, 50, born_ms=7, queues=["a", "b"], types=["x", "y"], types_kept_s=100)
    for queue in ("a", "b"):
        bench.redis.zadd(bench.keys.task_types(queue), {"old": bench.now_ms - 100_000, "new": bench.now_ms - 99_000})
    assert bench.run(beat({"worker_id": W1, "status": "busy"})) == []
    row = bench.redis.hgetall(bench.keys.worker(W1))
    assert (row["status"], row["last_heartbeat"], row.get("stale")) == ("busy", str(bench.now_ms), None)
    for queue in ("a", "b"):
        announced = bench.redis.zrange(bench.keys.task_types(queue), 0, -1, withscores=True)
        assert dict(announced) == {"new": bench.now_ms - 99_000, "x": bench.now_ms, "y": bench.now_ms}
    bench.register(W2, started_at="9")
    answer, changes = bench.changes(beat({"worker_id": W2, "status": "busy"}))
    assert (answer, changes) == (None, {}), "another life took this id"
    bench.redis.delete(bench.keys.worker(W2), bench.keys.workers)
    assert bench.run(beat({"worker_id": W2, "status": "busy"})) == [], "a row that expired is written anew"
    assert bench.redis.smembers(bench.keys.workers) == {W2}


def test_a_spoiled_key_harms_nothing_else_of_a_heartbeat(bench: Bench, key_audit: KeyAudit) -> None:
    key_audit.ignore(r"dtq:queue:a:task_types")
    bench.redis.set(bench.keys.task_types("a"), "spoiled")
    types = [f"type-{n}" for n in range(5000)]
    row = {"worker_id": W1, "status": "ready"}
    errors = bench.run(bench.calls.beat(50, row, queues=["a", "b"], types=types, types_kept_s=100))
    assert errors is not None
    assert {e.split(":")[0].split(" ")[0] for e in errors} == {"ZADD", "ZREMRANGEBYSCORE"}
    assert all("dtq:queue:a:task_types" in e and "WRONGTYPE" in e for e in errors)
    assert bench.redis.zcard(bench.keys.task_types("b")) == 5000
    assert bench.redis.hget(bench.keys.worker(W1), "status") == "ready"


@pytest.mark.contract("D4", "BQ-12")
def test_a_delayed_task_without_a_record_becomes_a_letter(bench: Bench, key_audit: KeyAudit) -> None:
    """Its payload is lost, its name is not: it can be read and discarded, and not be run."""
    key_audit.ignore(r"dtq:task:.*")
    task_id = bench.submit(delay_seconds=1)
    bench.redis.delete(bench.keys.task(task_id))
    bench.claimed(task_id)
    released = bench.release([task_id])
    assert (released.released, [task_id in p for p in released.problems]) == (0, [True])
    assert not bench.redis.zcard(bench.keys.schedule) and not bench.redis.zcard(bench.keys.claimed)
    ((_, letter),) = bench.redis.xrange(bench.keys.dead_letters)
    assert (letter["task_id"], letter["last_error_class"]) == (task_id, "Quarantined")

    async def try_both() -> None:
        store = Store.connect(bench.settings, now_ms=lambda: bench.now_ms)
        client = Client(store, bench.settings, actor="ann")
        try:
            assert (await Inspector(store, bench.settings).task(task_id)).status == "dead_lettered"
            with pytest.raises(DeadLetterGone):
                await client.requeue(task_id)
            await client.discard(task_id)
        finally:
            await store.close()

    asyncio.run(try_both())
    assert bench.redis.xlen(bench.keys.dead_letters) == 0
