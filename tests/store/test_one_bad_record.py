"""One record of a batch is broken by hand: its neighbours go on unharmed, and the broken one is named (decision 4).

Broken in each way a key can be: another type, no record at all, fields that are not numbers, JSON that is none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.bench import W1, W2, Bench, new_id
from support.keyspace import KeyAudit

from dtq_core.store.transitions import Delivery

pytestmark = pytest.mark.contract("D4")


def wrong_type(bench: Bench, task_id: str) -> None:
    bench.redis.delete(bench.keys.task(task_id))
    bench.redis.rpush(bench.keys.task(task_id), "not a hash")


def missing(bench: Bench, task_id: str) -> None:
    bench.redis.delete(bench.keys.task(task_id))


def no_numbers(bench: Bench, task_id: str) -> None:
    bench.redis.hset(bench.keys.task(task_id), mapping={"attempt": "many", "fence": "x", "max_attempts": ""})


def no_json(bench: Bench, task_id: str) -> None:
    bench.redis.hset(bench.keys.task(task_id), mapping={"payload": '{"broken', "metadata": "]", "history": "{\n{"})


BROKEN = {"wrong type": wrong_type, "missing": missing, "no numbers": no_numbers}
Break = Callable[[Bench, str], None]


@pytest.fixture(autouse=True)
def broken_keys(key_audit: KeyAudit) -> None:
    """The broken records themselves are no keys of ours."""
    key_audit.ignore(r"dtq:task:.*")


def in_the_middle(bench: Bench, **fields: object) -> tuple[list[str], str]:
    """Five tasks; the third is the victim. (neighbours, victim)"""
    ids = [bench.submit(**fields) for _ in range(5)]
    return ids[:2] + ids[3:], ids[2]


@pytest.mark.parametrize("how", BROKEN)
def test_fetch(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    BROKEN[how](bench, victim)
    reply = bench.run(bench.fetch_call(capacity=10))
    assert [d.task_id for d in reply.deliveries] == neighbours
    assert len(reply.problems) == 1 and victim in reply.problems[0]
    assert [f["task_id"] for _, f in bench.redis.xrange(bench.keys.dead_letters)] == [victim]
    assert bench.redis.xlen(bench.keys.stream("default", 5)) == 4
    assert all(bench.settle(d) == "succeeded" for d in reply.deliveries)
    counters = bench.counters()
    assert counters == {"submitted": 5, "started": 4, "succeeded": 4, "dead_lettered": 1, "quarantined": 1}


@pytest.mark.parametrize("how", BROKEN)
def test_reclaim(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    deliveries = bench.fetch(W1)
    for delivery in deliveries:
        bench.orphan(delivery)
    BROKEN[how](bench, victim)
    reply = bench.run(bench.reclaim_call(W2))
    assert [(d.task_id, d.attempt) for d in reply.deliveries] == [(task_id, 2) for task_id in neighbours]
    assert len(reply.problems) == 1 and victim in reply.problems[0]
    assert all(bench.settle(d, worker=W2) == "succeeded" for d in reply.deliveries)
    assert bench.counters().get("running", 0) == 0


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("status", ["succeeded", "retrying", "dead_lettered"])
def test_settle(bench: Bench, how: str, status: str) -> None:
    neighbours, victim = in_the_middle(bench)
    deliveries = bench.fetch()
    BROKEN[how](bench, victim)
    answers = bench.run(bench.calls.settle(W1, [bench.settling(d, status) for d in deliveries]))
    assert [a for a, d in zip(answers, deliveries, strict=True) if d.task_id != victim] == [status] * 4
    answer = answers[2]
    assert answer == "LOST" or answer.startswith("ERROR")
    assert {bench.status(task_id) for task_id in neighbours} == {status}


@pytest.mark.parametrize("how", BROKEN)
def test_touch_and_hand_back(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    deliveries = bench.fetch()
    BROKEN[how](bench, victim)
    for call, right in ((bench.calls.touch, "OK"), (bench.calls.hand_back, "OK")):
        answers = bench.run(call(W1, deliveries))
        assert [a for a, d in zip(answers, deliveries, strict=True) if d.task_id != victim] == [right] * 4
        assert answers[2] == "LOST" or answers[2].startswith("ERROR")
    assert {bench.status(task_id) for task_id in neighbours} == {"queued"}


@pytest.mark.parametrize("how", BROKEN)
def test_adopt(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    bench.fetch()
    BROKEN[how](bench, victim)
    adopted = bench.run(bench.calls.adopt(W1, 10, ["default"])).deliveries
    assert [d.task_id for d in adopted if d.task_id != victim] == neighbours


@pytest.mark.parametrize("how", BROKEN)
def test_release(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench, delay_seconds=1)
    bench.claimed(*neighbours, victim)
    BROKEN[how](bench, victim)
    reply = bench.release([*neighbours[:2], victim, *neighbours[2:]])
    assert reply.released == 4
    assert len(reply.problems) == 1 and victim in reply.problems[0]
    assert {bench.status(task_id) for task_id in neighbours} == {"queued"}
    assert bench.redis.zcard(bench.keys.claimed) == 0


@pytest.mark.contract("BQ-12")
def test_release_to_a_stream_of_another_type(bench: Bench, key_audit: KeyAudit) -> None:
    """The target of one is no stream: the others are placed, that one is tried again, nothing of it is half done."""
    good = [bench.submit(delay_seconds=1, priority=4) for _ in range(4)]
    bad = bench.submit(delay_seconds=1, priority=3)
    bench.claimed(*good, bad)
    bench.redis.set(bench.keys.stream("default", 3), "not a stream")
    reply = bench.release([good[0], bad, *good[1:]])
    assert reply.released == 4
    assert len(reply.problems) == 1 and bad in reply.problems[0]
    assert bench.status(bad) == "pending" and bench.record(bad)["entry_id"] == ""
    assert bench.redis.zscore(bench.keys.schedule, bad) == bench.now_ms + 5000
    assert bench.counters() == {"submitted": 5, "queued": 4, "pending": 1}
    bench.redis.delete(bench.keys.stream("default", 3))
    bench.now_ms += 6000
    bench.lead()
    assert bench.release(bench.claim().task_ids).released == 1
    assert bench.counters() == {"submitted": 5, "queued": 5}


@pytest.mark.parametrize("how", BROKEN)
def test_cancel(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    BROKEN[how](bench, victim)
    answers = bench.run(bench.calls.cancel([*neighbours, victim]))
    assert answers[:4] == ["CANCELLED"] * 4
    assert {bench.status(task_id) for task_id in neighbours} == {"cancelled"}
    if how != "no numbers":  # a cancel needs no number
        assert answers[4] == "GONE" or answers[4].startswith("ERROR")


@pytest.mark.parametrize("how", BROKEN)
def test_discard_and_revive(bench: Bench, how: str) -> None:
    ids = [bench.dead() for _ in range(5)]
    letters = [bench.letter(task_id) for task_id in ids]
    BROKEN[how](bench, ids[2])
    answers = bench.run(bench.calls.revive(letters, actor="", request_id=""))
    assert answers[:2] + answers[3:] == ["OK"] * 4
    assert answers[2] == "CHANGED" or answers[2].startswith("ERROR")
    for task_id in ids[:2] + ids[3:]:
        assert bench.status(task_id) == "queued"


@pytest.mark.parametrize("how", BROKEN)
def test_purge(bench: Bench, how: str) -> None:
    neighbours, victim = in_the_middle(bench)
    BROKEN[how](bench, victim)
    step = bench.run(bench.calls.purge_step("default", 5, "-", dry_run=False))
    assert step.changed == 5
    assert bench.redis.xlen(bench.keys.stream("default", 5)) == 0
    assert {bench.status(task_id) for task_id in neighbours} == {"cancelled"}


@pytest.mark.parametrize("how", BROKEN)
def test_renew(bench: Bench, how: str) -> None:
    _, victim = in_the_middle(bench, idempotency_key=None)
    BROKEN[how](bench, victim)
    for task_id in (f["task_id"] for _, f in bench.redis.xrange(bench.keys.stream("default", 5))):
        bench.redis.expire(bench.keys.task(task_id), 100)
    _, renewed, missing_ids = bench.run(bench.calls.renew(bench.keys.stream("default", 5), ""))
    if how == "no numbers":
        assert (renewed, missing_ids) == (5, [])
    else:
        assert (renewed, missing_ids) == (4, [victim])


def test_broken_json_runs_and_breaks_nobody(bench: Bench) -> None:
    """Payload and history are text to the scripts: the entry's own copy runs, and what is broken stays where it is."""
    _, victim = in_the_middle(bench)
    no_json(bench, victim)
    deliveries = bench.fetch()
    assert len(deliveries) == 5
    assert {bench.settle(d, "retrying") for d in deliveries} == {"retrying"}
    assert bench.status(victim) == "retrying"


@pytest.mark.parametrize("entry", [
    {"no": "task"}, {"task_id": ""}, {"task_id": "*"}, {"task_id": "not an id", "queue": "default"},
    {"payload": "{}", "task_id": "0" * 32},
])  # fmt: skip
def test_an_entry_that_names_no_task_of_ours(bench: Bench, entry: dict[str, str]) -> None:
    """Somebody XADDs by hand: set aside as a dead letter, named, acknowledged; the tasks around it run."""
    before, after = bench.submit(), bench.submission()
    bench.redis.xadd(bench.keys.stream("default", 5), entry)
    bench.run(bench.submit_call(after))
    reply = bench.run(bench.fetch_call())
    assert [d.task_id for d in reply.deliveries] == [before, after.task_id]
    assert len(reply.problems) == 1
    assert bench.redis.xlen(bench.keys.dead_letters) == 1
    assert bench.redis.xlen(bench.keys.stream("default", 5)) == 2


def test_a_stream_of_another_type_does_not_stop_the_other_bands(bench: Bench, key_audit: KeyAudit) -> None:
    key_audit.ignore("dtq:stream:default:p7")
    bench.redis.set(bench.keys.stream("default", 7), "not a stream")
    high, low = bench.submit(priority=9), bench.submit(priority=0)
    reply = bench.run(bench.fetch_call())
    assert [d.task_id for d in reply.deliveries] == [high, low]
    assert len(reply.problems) == 1 and "p7" in reply.problems[0]


def test_a_ledger_of_another_type_stops_a_batch_before_its_first_write(bench: Bench, key_audit: KeyAudit) -> None:
    """The ledger belongs to all of a batch: without it nothing starts and nothing is half done."""
    from support.keyspace import difference, dump

    from dtq_core.errors import StoreError

    key_audit.ignore("dtq:ledger:default")
    bench.submit()
    running: list[Delivery] = bench.fetch(capacity=1)
    bench.submit()
    bench.redis.delete(bench.keys.ledger("default"))
    bench.redis.set(bench.keys.ledger("default"), "not a hash")
    world = dump(bench.redis)
    for call in (
        bench.fetch_call(),
        bench.submit_call(bench.submission(), bench.submission()),
        bench.calls.settle(W1, [bench.settling(running[0])]),
        bench.calls.hand_back(W1, running),
    ):
        try:
            answer = bench.run(call)
        except StoreError:
            answer = None
        changed = difference(world, dump(bench.redis))
        assert not changed, f"{call.script} left a half behind: {answer}; {changed}"


def test_submit_of_a_taken_name(bench: Bench, key_audit: KeyAudit) -> None:
    """The idempotency key is occupied by another type: that submission alone is refused, and leaves nothing."""
    key_audit.ignore("dtq:idempotency:default:k")
    bench.redis.rpush(bench.keys.idempotency("default", "k"), "not a string")
    bad = bench.submission(idempotency_key="k", task_id=new_id())
    good = [bench.submission(), bench.submission()]
    answers = bench.run(bench.submit_call(good[0], bad, good[1]))
    assert [a.code for a in answers] == ["OK", "ERROR", "OK"]
    assert not bench.redis.exists(bench.keys.task(bad.task_id))
    assert bench.counters() == {"submitted": 2, "queued": 2}
