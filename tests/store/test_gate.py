"""fetch.lua and reclaim.lua: what happens to each delivered entry — started, absorbed, ended, put off (decisions 2, 3, 8, 13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.bench import START_MS, W1, W2, Bench


@pytest.mark.contract("C1.13", "C1.33", "C1.43", "C1.46", "C8.05", "D1")
def test_a_start_is_written_before_the_handler_runs(bench: Bench) -> None:
    task_id = bench.submit(priority=3, idempotency_key="k")
    bench.now_ms += 500
    reply, changes = bench.changes(bench.fetch_call())
    (delivery,) = reply.deliveries
    assert (delivery.task_id, delivery.band, delivery.attempt, delivery.fence) == (task_id, 3, 1, "1")
    assert (delivery.created_at_ms, delivery.started_at_ms, delivery.adopted) == (START_MS, START_MS + 500, False)
    assert changes[bench.keys.task(task_id)] == {
        "status": "running", "attempt": "1", "fence": "1", "started_at": str(bench.now_ms), "worker_id": W1,
    }  # fmt: skip
    assert changes["dtq:stream:default:p3"]["pending"] == {"workers": {delivery.entry_id: W1}}
    assert bench.counters() == {"submitted": 1, "started": 1, "running": 1}
    assert set(changes) == {
        bench.keys.task(task_id), "dtq:stream:default:p3", "dtq:ledger:default", f"dtq:fetch:{W1}:a",
        "dtq:idempotency:default:k",
    }  # fmt: skip


@pytest.mark.contract("C1.36", "C2.03", "C6.12", "C6.13", "BQ-13")
def test_strictly_by_priority_and_within_capacity(bench: Bench) -> None:
    ids = {priority: bench.submit(priority=priority) for priority in (3, 9, 0, 7)}
    reply = bench.run(bench.fetch_call(capacity=3))
    assert [d.task_id for d in reply.deliveries] == [ids[9], ids[7], ids[3]]
    assert reply.more is True
    assert bench.redis.lrange(bench.keys.wake("default"), 0, -1) == ["1"], "a token for the next worker"
    reply = bench.run(bench.fetch_call(W2, capacity=3))
    assert [d.task_id for d in reply.deliveries] == [ids[0]] and reply.more is False


@pytest.mark.contract("D8", "BQ-13")
def test_entries_made_by_hand_are_met_behind_work_that_never_ends(bench: Bench) -> None:
    """A call may leave bands out once it has what the ledger knows of; not every call, and never when it knows of nothing."""
    by_hand = bench.submit(priority=0)
    bench.redis.hincrby(bench.keys.ledger("default"), "queued", -1)  # nobody counted it
    met = 0
    for _ in range(8):
        bench.submit(priority=9)
        met += by_hand in [d.task_id for d in bench.fetch(capacity=10)]
        bench.now_ms += 1
    assert met == 1
    alone = bench.submit(priority=0)
    bench.redis.hset(bench.keys.ledger("default"), "queued", 0)
    bench.now_ms += 1 - bench.now_ms % 8
    assert [d.task_id for d in bench.fetch()] == [alone]


@pytest.mark.contract("D8")
def test_queues_in_the_order_that_is_asked_for(bench: Bench) -> None:
    a, b = bench.submit(queue="a"), bench.submit(queue="b")
    assert [d.task_id for d in bench.fetch(queues=["b", "a"])] == [b, a]


@pytest.mark.contract("C6.11", "D21")
def test_a_paused_queue_starts_nothing(bench: Bench) -> None:
    bench.orphan(bench.running())
    bench.submit()
    other = bench.submit(queue="other")
    bench.run(bench.calls.pause("default", True, actor="", request_id=""))
    reply = bench.run(bench.fetch_call(queues=["default", "other"]))
    assert ([d.task_id for d in reply.deliveries], reply.paused) == ([other], ("default",))
    reply = bench.run(bench.reclaim_call())
    assert (reply.deliveries, reply.paused) == ([], ("default",))


@pytest.mark.contract("C6.25")
@pytest.mark.parametrize("status", ["draining", "stopped"])
def test_a_worker_that_drains_starts_nothing(bench: Bench, status: str) -> None:
    task_id = bench.submit()
    bench.redis.delete(bench.keys.wake("default"))
    bench.register(W1)
    bench.redis.hset(bench.keys.worker(W1), "status", status)
    reply, changes = bench.changes(bench.fetch_call())
    assert reply.draining and bench.status(task_id) == "queued"
    assert changes == {"dtq:wake:default": ["1"]}, "the token goes to a peer"


@pytest.mark.contract("C3.06", "C4.24", "C4.25", "C6.14", "C6.17", "D2")
@pytest.mark.parametrize("state", ["succeeded", "dead_lettered", "cancelled", "running", "queued", "retrying"])
def test_an_entry_that_is_not_the_tasks_own_is_absorbed(bench: Bench, state: str) -> None:
    """Terminal, or another entry than the record names: acknowledged, counted, never run, whatever the task does."""
    delivery = bench.running(idempotency_key="k")
    stream = bench.keys.stream("default", 5)
    ((_, fields),) = bench.redis.xrange(stream)
    if state == "queued":
        bench.run(bench.calls.hand_back(W1, [delivery]))
        bench.run(bench.calls.pause("other", True, actor="", request_id=""))
    elif state != "running":
        bench.settle(delivery, state)
    record = bench.record(delivery.task_id)
    copy = bench.redis.xadd(stream, fields)
    reply = bench.run(bench.fetch_call(W2))
    assert bench.redis.xrange(stream, copy, copy) == []
    assert bench.counters()["absorbed"] == 1
    if state == "queued":
        assert [d.entry_id for d in reply.deliveries] == [record["entry_id"]]
    else:
        assert reply.deliveries == []
        assert bench.record(delivery.task_id) == record


@pytest.mark.contract("C1.15", "C2.13", "C6.15", "C6.16", "D14")
def test_expired_and_cancelled_ones_end_at_the_gate(bench: Bench) -> None:
    expired = bench.submit(metadata={"ttl_seconds": 1}, idempotency_key="e")
    cancelled = bench.submit(idempotency_key="c")
    runs = bench.submit(metadata={"ttl_seconds": 100})
    bench.redis.sadd(bench.keys.cancelled, cancelled)
    bench.now_ms += 1000
    reply = bench.run(bench.fetch_call())
    assert [d.task_id for d in reply.deliveries] == [runs]
    assert {(e.task_id, e.status) for e in reply.ended} == {(expired, "expired"), (cancelled, "cancelled")}
    assert bench.counters() == {
        "submitted": 3, "started": 1, "running": 1, "expired": 1, "cancelled": 1,
    }  # fmt: skip
    assert bench.redis.scard(bench.keys.cancelled) == 0
    assert (bench.key_state("default", "e"), bench.key_state("default", "c")) == ("failed", "failed")


@pytest.mark.contract("C1.34", "C3.04", "C6.04", "BQ-01", "D2")
def test_a_redelivery_is_the_next_attempt(bench: Bench) -> None:
    delivery = bench.running()
    bench.orphan(delivery)
    bench.now_ms += 31_000
    reply, changes = bench.changes(bench.reclaim_call(W2))
    (again,) = reply.deliveries
    assert (again.entry_id, again.attempt, again.fence) == (delivery.entry_id, 2, "2")
    assert bench.record(delivery.task_id)["history"].count("WorkerLost") == 1
    assert changes["dtq:stream:default:p5"]["pending"] == {"workers": {delivery.entry_id: W2}}
    assert bench.counters() == {"submitted": 1, "started": 2, "running": 1, "redelivered": 1}
    assert bench.settle(delivery) == "LOST"
    assert bench.run(bench.calls.touch(W1, [delivery])) == ["LOST"]


@pytest.mark.contract("C6.07", "D5")
def test_who_is_not_silent_keeps_its_task(bench: Bench) -> None:
    delivery = bench.running()
    assert bench.run(bench.reclaim_call(W2)).deliveries == []
    bench.orphan(delivery)
    assert bench.run(bench.calls.touch(W1, [delivery])) == ["OK"]
    assert bench.run(bench.reclaim_call(W2)).deliveries == []


@pytest.mark.contract("C4.09", "C5.07", "BQ-03", "D3")
def test_the_last_attempt_that_was_lost_is_a_dead_letter(bench: Bench) -> None:
    delivery = bench.running(max_attempts=1, idempotency_key="k")
    bench.orphan(delivery)
    reply = bench.run(bench.reclaim_call(W2))
    assert reply.deliveries == []
    assert [(e.task_id, e.status) for e in reply.ended] == [(delivery.task_id, "dead_lettered")]
    ((_, letter),) = bench.redis.xrange(bench.keys.dead_letters)
    assert (letter["attempts_made"], letter["last_error_class"], letter["worker_id"]) == ("1", "WorkerLost", W1)
    assert bench.key_state("default", "k") == "failed"
    assert bench.counters() == {"submitted": 1, "started": 1, "dead_lettered": 1}


@pytest.mark.contract("D11")
def test_a_cancel_that_was_asked_for_beats_the_redelivery(bench: Bench) -> None:
    delivery = bench.running()
    assert bench.run(bench.calls.cancel([delivery.task_id])) == ["REQUESTED"]
    bench.orphan(delivery)
    reply = bench.run(bench.reclaim_call(W2))
    assert reply.deliveries == [] and bench.status(delivery.task_id) == "cancelled"
    assert bench.counters() == {"submitted": 1, "started": 1, "cancelled": 1}


@pytest.mark.contract("C7.05", "BQ-17", "D32")
def test_a_takeover_takes_no_more_than_there_is_room_for(bench: Bench) -> None:
    for _ in range(5):
        bench.submit()
    for delivery in bench.fetch():
        bench.orphan(delivery)
    assert len(bench.run(bench.reclaim_call(W2, capacity=2)).deliveries) == 2
    assert len(bench.run(bench.reclaim_call(W2, capacity=9)).deliveries) == 3


@pytest.mark.contract("D13", "BQ-18")
def test_an_unknown_type_is_put_off_while_a_live_peer_knows_it(bench: Bench) -> None:
    """1 s, then longer, up to 30 s; five minutes in all; no attempt used."""
    task_id = bench.submit("fresh")
    waits = []
    began = bench.now_ms
    while bench.now_ms - began < 300_000:
        bench.announce("fresh")
        reply = bench.run(bench.fetch_call())
        assert (reply.deliveries, reply.deferred) == ([], 1)
        record = bench.record(task_id)
        assert (record["status"], record["attempt"], record["entry_id"]) == ("pending", "0", "")
        waits.append(int(record["available_at"]) - bench.now_ms)
        assert bench.redis.zscore(bench.keys.schedule, task_id) == int(record["available_at"])
        bench.now_ms = int(record["available_at"])
        bench.lead()
        bench.release(bench.claim().task_ids)
    assert waits[:3] == [1000, 1500, 2250] and max(waits) == 30_000
    bench.announce("fresh")
    reply = bench.run(bench.fetch_call())
    assert [(e.task_id, e.status) for e in reply.ended] == [(task_id, "dead_lettered")]
    assert bench.record(task_id)["error_message"] == "unknown_task_type:fresh"


@pytest.mark.contract("D13")
@pytest.mark.parametrize("where", ["queued", "running"])
def test_after_an_outage_the_peers_have_time_to_announce_their_types_again(bench: Bench, where: str) -> None:
    """Nobody could beat for an hour, so no announcement is fresh; that is no reason to end what a peer can run."""
    if where == "running":
        bench.submit("fresh")
        (delivery,) = bench.fetch(types=["fresh"])
    else:
        task_id = bench.submit("fresh")
    bench.announce("fresh")
    bench.now_ms += 3_600_000

    def met_by_another() -> tuple[int, list[str]]:
        if where == "running":
            bench.orphan(delivery)
        elif bench.status(task_id) == "pending":
            bench.lead()
            bench.release(bench.claim().task_ids)
        reply = bench.run(bench.reclaim_call() if where == "running" else bench.fetch_call())
        return reply.deferred, [e.status for e in reply.ended]

    assert met_by_another() == (1, [])
    bench.now_ms += 49_000
    assert met_by_another() == (1, [])
    bench.now_ms += 31_000
    assert met_by_another() == (0, ["dead_lettered"]), "still silent after ten heartbeats: nobody knows it"


@pytest.mark.contract("D13")
def test_a_start_ends_the_time_of_putting_off(bench: Bench) -> None:
    """Else a redelivery hours later would find its five minutes used up."""
    task_id = bench.submit("fresh")
    bench.announce("fresh")
    bench.run(bench.fetch_call())
    assert {"deferred_at", "deferrals"} <= set(bench.record(task_id))
    bench.now_ms += 1000
    bench.lead()
    bench.release(bench.claim().task_ids)
    bench.fetch(types=["fresh"])
    assert not {"deferred_at", "deferrals"} & set(bench.record(task_id))


@pytest.mark.contract("D19", "D20")
def test_an_entry_made_by_hand_leaves_the_ledger_in_balance(bench: Bench) -> None:
    """It was never taken in; a submitted one that lost its record was."""
    lost, foreign = bench.submit(), "f" * 32
    bench.redis.delete(bench.keys.task(lost))
    bench.redis.xadd(bench.keys.stream("default", 5), {"task_id": foreign, "task_type": "echo"})
    reply = bench.run(bench.fetch_call())
    assert len(reply.problems) == 2
    assert bench.counters() == {"submitted": 2, "dead_lettered": 2, "quarantined": 2}
    assert {f["task_id"] for _, f in bench.redis.xrange(bench.keys.dead_letters)} == {lost, foreign}


@pytest.mark.contract("D19")
@pytest.mark.parametrize(
    ("word", "ends"),
    [("1", "dead_lettered"), ("True", "dead_lettered"), ("yes", "dead_lettered"), ("ON", "dead_lettered"),
     ("0", "failed"), ("False", "failed"), ("no", "failed"), ("off", "failed"), ("maybe", "dead_lettered")],
)  # fmt: skip
def test_a_queues_switch_for_dead_letters(bench: Bench, word: str, ends: str) -> None:
    """What is neither on nor off leaves it to the installation."""
    bench.redis.hset(bench.keys.policy("default"), "dlq_enabled", word)
    delivery = bench.running()
    assert bench.settle(delivery, "dead_lettered") == ends
    assert bench.redis.xlen(bench.keys.dead_letters) == (ends == "dead_lettered")


@pytest.mark.contract("C4.06", "C4.18", "D13")
def test_a_type_that_nobody_announces_is_one_attempt_and_the_end(bench: Bench) -> None:
    task_id = bench.submit("nobodys", max_attempts=5)
    reply = bench.run(bench.fetch_call())
    assert reply.deliveries == []
    ((_, letter),) = bench.redis.xrange(bench.keys.dead_letters)
    assert (letter["last_error"], letter["attempts_made"], letter["retryable"]) == (
        "unknown_task_type:nobodys",
        "1",
        "0",
    )
    assert bench.record(task_id)["attempt"] == "1"


@pytest.mark.contract("C1.06", "C4.17")
def test_without_dead_letters_the_gate_fails_a_task(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(dlq_enabled=False)
    task_id = bench.submit("nobodys")
    bench.run(bench.fetch_call())
    assert bench.status(task_id) == "failed"
    assert not bench.redis.exists(bench.keys.dead_letters)
    assert bench.counters() == {"submitted": 1, "failed": 1}


@pytest.mark.contract("C2.02", "D30", "BQ-07")
def test_a_missing_group_is_made_again_from_the_first_entry(bench: Bench) -> None:
    ids = [bench.submit() for _ in range(3)]
    stream = bench.keys.stream("default", 5)
    if bench.redis.xinfo_groups(stream):
        bench.redis.xgroup_destroy(stream, "workers")
    assert [d.task_id for d in bench.fetch()] == ids


@pytest.mark.contract("D30")
def test_a_group_made_anew_leaves_running_tasks_with_their_owner(bench: Bench) -> None:
    delivery = bench.running()
    stream = bench.keys.stream("default", 5)
    bench.redis.xgroup_destroy(stream, "workers")
    assert bench.fetch(W2) == []
    (row,) = bench.redis.xpending_range(stream, "workers", "-", "+", 9)
    assert row["consumer"] == W1
    assert bench.settle(delivery) == "succeeded"
