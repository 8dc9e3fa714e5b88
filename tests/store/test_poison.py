"""One key or one value that somebody spoiled harms nothing beside it, is named, and leaves the books exact (decisions 4, 19, 20)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.bench import W1, W2, Bench
from support.keyspace import KeyAudit, difference, dump

from dtq_core.errors import StoreError
from dtq_core.store import Store
from dtq_core.store.connection import SyncStore
from dtq_scheduler.scheduler import Scheduler

pytestmark = pytest.mark.contract("D4", "BQ-12")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUEUES = ("a", "b", "c")


def ledgers(bench: Bench, *queues: str) -> dict[str, dict[str, str]]:
    found = {q: bench.redis.hgetall(bench.keys.ledger(q)) for q in queues}
    return {q: {field: n for field, n in row.items() if n != "0"} for q, row in found.items()}


# -- a whole queue


@pytest.mark.parametrize("how", ["a counter is no number", "the ledger is no hash"])
def test_a_spoiled_queue_stops_no_other(bench: Bench, key_audit: KeyAudit, how: str) -> None:
    key_audit.ignore("dtq:ledger:b")
    ids = {q: bench.submit(queue=q) for q in QUEUES}
    if "number" in how:
        bench.redis.hset(bench.keys.ledger("b"), "queued", "abc")
    elif "hash" in how:
        bench.redis.delete(bench.keys.ledger("b"))
        bench.redis.set(bench.keys.ledger("b"), "text")
    reply = bench.run(bench.fetch_call(queues=QUEUES))
    started = {d.task_id for d in reply.deliveries}
    assert {ids["a"], ids["c"]} <= started
    assert ledgers(bench, "a", "c") == {q: {"submitted": "1", "running": "1", "started": "1"} for q in "ac"}
    if "hash" in how:
        assert started == {ids["a"], ids["c"]} and any("queue b: WRONGTYPE" in p for p in reply.problems)
        bench.orphan(reply.deliveries[0])
        reply = bench.run(bench.calls.reclaim(W2, "b", 10, ["0-0"] * 10, ["echo"]))
        assert any("queue b: WRONGTYPE" in p for p in reply.problems)
    else:
        assert started == set(ids.values())
        assert bench.submit(queue="b"), "and it takes tasks"


# -- keys beside the task


@pytest.mark.parametrize("name", ["dtq:tasks:recent", "dtq:wake:default"])
def test_a_key_that_is_only_for_comfort_holds_nothing_up(bench: Bench, key_audit: KeyAudit, name: str) -> None:
    key_audit.ignore(name)
    bench.redis.set(name, "text")
    first = bench.submit()
    answers = bench.run(bench.submit_call(bench.submission(), bench.submission()))
    assert [a.code for a in answers] == ["OK", "OK"]
    later = bench.submit(delay_seconds=1)
    bench.claimed(later)
    assert bench.release([later]).released == 1
    started = bench.fetch()
    assert {first, later} < {d.task_id for d in started} and len(started) == 4
    assert bench.counters() == {"submitted": 4, "started": 4, "running": 4}


def test_a_policy_that_cannot_be_read_is_no_policy(bench: Bench, key_audit: KeyAudit) -> None:
    key_audit.ignore("dtq:queue:default:policy")
    bench.redis.set(bench.keys.policy("default"), "text")
    assert bench.settle(bench.running(), "dead_lettered") == "dead_lettered"
    assert bench.counters() == {"submitted": 1, "started": 1, "dead_lettered": 1}


def test_what_cannot_be_audited_is_not_done(bench: Bench, key_audit: KeyAudit) -> None:
    key_audit.ignore(bench.keys.audit)
    dead = bench.dead()
    task_id = bench.submit()
    letter = bench.letter(dead)
    bench.redis.set(bench.keys.audit, "text")
    world = dump(bench.redis)
    calls = [
        bench.calls.cancel([task_id], actor="ann"),
        bench.calls.revive([letter], actor="ann", request_id=""),
        bench.calls.discard([letter], actor="ann", request_id=""),
    ]
    for call in calls:
        assert bench.run(call)[0].startswith("ERROR")
    with pytest.raises(StoreError):
        bench.run(bench.calls.pause("default", True, actor="ann", request_id=""))
    assert difference(world, dump(bench.redis)) == {}


# -- records


def test_a_status_that_is_none_is_set_aside(bench: Bench) -> None:
    running = bench.running()
    queued, other = bench.submit(), bench.submit()
    for task_id in (queued, running.task_id):
        bench.redis.hset(bench.keys.task(task_id), "status", "banana")
    reply = bench.run(bench.fetch_call(W2))
    assert [d.task_id for d in reply.deliveries] == [other]
    assert [queued in p and "its record says banana" in p for p in reply.problems] == [True]
    assert bench.settle(running) == "LOST", "its worker writes nothing and says nothing of success"
    bench.orphan(running)
    reply = bench.run(bench.reclaim_call(W2))
    assert [running.task_id in p for p in reply.problems] == [True]
    assert {bench.status(t) for t in (queued, running.task_id)} == {"dead_lettered"}
    assert bench.counters() == {
        "submitted": 3, "running": 1, "dead_lettered": 2, "quarantined": 2, "started": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "queue_known"),
    [
        ("priority", "12", True), ("attempt", "x", True), ("max_attempts", "5.0", True), ("timeout_ms", "", True),
        ("payload", None, True), ("task_type", None, True), ("queue", "BAD QUEUE:x", False), ("queue", None, False),
    ],
)  # fmt: skip
def test_a_delayed_record_that_cannot_be_run_becomes_a_letter(
    bench: Bench, key_audit: KeyAudit, field: str, value: str | None, queue_known: bool
) -> None:
    task_id, good = bench.submit(delay_seconds=1), bench.submit(delay_seconds=1)
    key = bench.keys.task(task_id)
    if value is None:
        bench.redis.hdel(key, field)
    else:
        bench.redis.hset(key, field, value)
    bench.now_ms += 2000
    bench.lead()
    released = bench.release(bench.claim().task_ids)
    assert released.released == 1 and [task_id in p for p in released.problems] == [True]
    assert (bench.status(task_id), bench.status(good)) == ("dead_lettered", "queued")
    assert [d.task_id for d in bench.fetch()] == [good]
    assert bench.redis.zcard(bench.keys.schedule) == bench.redis.zcard(bench.keys.claimed) == 0
    ((_, letter),) = bench.redis.xrange(bench.keys.dead_letters)
    assert (letter["task_id"], letter["last_error_class"]) == (task_id, "Quarantined")
    if queue_known:
        assert bench.counters() == {
            "submitted": 2, "running": 1, "started": 1, "dead_lettered": 1, "quarantined": 1,
        }  # fmt: skip


def test_a_traced_task_with_a_spoiled_time_runs(bench: Bench) -> None:
    task_id = bench.submit(metadata={"traceparent": TRACE})
    bench.redis.hset(bench.keys.task(task_id), "available_at", "abc")
    (delivery,) = bench.fetch()
    assert (delivery.task_id, delivery.trace, delivery.available_at_ms) == (task_id, TRACE, 0)
    again = bench.run(bench.calls.adopt(W1, 10, ["default"]))
    assert ([d.task_id for d in again.deliveries], again.problems) == ([task_id], ())


def test_the_record_of_an_ended_task_is_never_written_again(bench: Bench) -> None:
    """Its entry came back, and something about it cannot be read."""
    delivery = bench.running()
    bench.settle(delivery)
    record = bench.record(delivery.task_id)
    fields = {"task_id": delivery.task_id, "queue": "default"}
    bench.redis.xadd(bench.keys.stream("default", 5), fields)
    bench.run(bench.fetch_call())
    assert bench.record(delivery.task_id) == record
    assert not bench.redis.exists(bench.keys.dead_letters)


# -- the schedule and the leader


@pytest.mark.parametrize("score", ["inf", "1e19", "-inf"])
def test_a_score_made_by_hand_stops_neither_the_schedule_nor_the_renewal(bench: Bench, score: str) -> None:
    odd, waiting, due = bench.submit(delay_seconds=600), bench.submit(), bench.submit(delay_seconds=1)
    bench.redis.zadd(bench.keys.schedule, {odd: float(score)})
    for task_id in (odd, waiting):
        bench.redis.expire(bench.keys.task(task_id), 60)
    bench.now_ms += 2000
    bench.lead()
    found = bench.claim()
    assert due in found.task_ids and -1 <= found.next_in_ms <= 86_400_000
    for name in (bench.keys.schedule, bench.keys.stream("default", 5)):
        bench.run(bench.calls.renew(name, ""))
    assert bench.redis.ttl(bench.keys.task(waiting)) > 600
    if score != "-inf":
        assert bench.redis.ttl(bench.keys.task(odd)) > 600


def test_a_leader_goes_on_without_the_name_of_the_last_batch(bench: Bench) -> None:
    due = bench.submit(delay_seconds=1)
    bench.now_ms += 2000
    bench.redis.lpush(bench.keys.batch, "x")

    async def lead() -> None:
        store = Store.connect(bench.settings, now_ms=lambda: bench.now_ms)
        try:
            await Scheduler(store, bench.settings).step()
        finally:
            await store.close()

    asyncio.run(lead())
    assert bench.status(due) == "queued"


def test_a_spoiled_row_of_a_worker_stops_no_pruning(bench: Bench) -> None:
    bench.register(W1)
    bench.redis.hset(bench.keys.worker(W1), mapping={"last_heartbeat": "abc", "interval_ms": "x"})
    bench.redis.sadd(bench.keys.workers, "worker-gone")
    stale, forgotten, _ = bench.run(bench.calls.prune([], [W1, "worker-gone"], 60_000))
    assert (stale, forgotten) == ([W1], 1)


# -- rights


@pytest.mark.parametrize(
    "command", ["hmget", "xack", "xdel", "hdel", "hset", "sismember", "hincrby", "expire", "publish"]
)
def test_a_missing_right_ends_no_task(bench: Bench, command: str) -> None:
    """It is about us and not about the tasks: once the right is there, all of them run as if nothing had been."""
    bench.redis.execute_command("ACL", "SETUSER", "lim", "on", ">pw", "~*", "&*", "+@all", f"-{command}")
    try:
        retrying, finished = bench.retrying(), bench.running(idempotency_key="k")
        ids = [retrying, *(bench.submit() for _ in range(3))]
        url = bench.server.url().replace("redis://", "redis://lim:pw@")
        limited = SyncStore.connect(bench.settings.model_copy(update={"redis_url": type(bench.settings.redis_url)(url)}),
                                    now_ms=lambda: bench.now_ms)  # fmt: skip
        bench.now_ms += 2000
        bench.lead()
        bench.release(bench.claim().task_ids)
        for call in (bench.calls.settle(W1, [bench.settling(finished)]), bench.fetch_call(W1), bench.reclaim_call(W2)):
            with contextlib.suppress(StoreError):
                limited.run(call)
        limited.close()
        assert not bench.redis.exists(bench.keys.dead_letters)
        assert not {bench.status(t) for t in (*ids, finished.task_id)} & {"dead_lettered", "failed"}
    finally:
        bench.redis.execute_command("ACL", "DELUSER", "lim")
