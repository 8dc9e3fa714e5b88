"""A reply is lost and the caller sends the same request again: one effect. Every script, on every engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.bench import W1, W2, Bench
from support.keyspace import KeyAudit

from dtq_core.store import scripts
from dtq_core.store.transitions import FIRST_CURSORS

pytestmark = pytest.mark.contract("D29")
FREE = {"audit_check", "audit_counts", "stale"}
"""Scripts that only read; their own tests hold them to that."""


@pytest.mark.parametrize(
    "fields", [{}, {"idempotency_key": "k"}, {"delay_seconds": 5}, {"metadata": {"ttl_seconds": 9}}]
)
def test_submit(bench: Bench, fields: dict[str, object]) -> None:
    call = bench.submit_call(bench.submission(**fields), bench.submission())
    first, second = bench.twice(call)
    assert first == second
    assert [answer.code for answer in second] == ["OK", "OK"]
    assert bench.counters()["submitted"] == 2


def test_submit_that_filled_the_queue(make_bench: Callable[..., Bench]) -> None:
    """The answer to the second sending is about the task, not about the room that it itself has taken."""
    bench = make_bench(max_queue_depth=1, max_scheduled=1)
    for fields in ({}, {"delay_seconds": 5}):
        first, second = bench.twice(bench.submit_call(bench.submission(**fields)))
        assert first == second


def test_submit_that_has_run_meanwhile(bench: Bench) -> None:
    call = bench.submit_call(bench.submission())
    bench.run(call)
    (delivery,) = bench.fetch()
    bench.settle(delivery)
    first, _ = bench.twice(call)
    assert (first[0].code, first[0].detail) == ("OK", "succeeded")


def test_fetch(bench: Bench) -> None:
    ids = {bench.submit() for _ in range(3)}
    late = [bench.submission()]
    call = bench.fetch_call(capacity=3)
    first, second = bench.twice(call)
    assert {d.task_id for d in first.deliveries} == ids
    assert second.replayed and not second.deliveries
    bench.run(bench.submit_call(*late))
    assert bench.run(call).replayed, "a fetch that was served takes nothing more, whatever has come meanwhile"
    adopted = bench.run(bench.calls.adopt(W1, 10, ["default"])).deliveries
    assert [(d.task_id, d.attempt, d.fence) for d in adopted] == [
        (d.task_id, d.attempt, d.fence) for d in first.deliveries
    ]
    assert bench.counters()["started"] == 3


def test_adopt(bench: Bench) -> None:
    delivery = bench.running()
    first, second = bench.twice(bench.calls.adopt(W1, 10, ["default"]))
    assert first == second
    assert [(d.task_id, d.fence, d.adopted) for d in first.deliveries] == [(delivery.task_id, delivery.fence, True)]
    assert bench.run(bench.calls.adopt(W2, 10, ["default"])).deliveries == []


def test_reclaim(bench: Bench) -> None:
    bench.orphan(bench.running())
    first, second = bench.twice(bench.calls.reclaim(W2, "default", 10, FIRST_CURSORS, ["echo"]))
    assert [d.attempt for d in first.deliveries] == [2]
    assert second.deliveries == []
    (adopted,) = bench.run(bench.calls.adopt(W2, 10, ["default"])).deliveries
    assert (adopted.attempt, adopted.fence) == (2, first.deliveries[0].fence)


@pytest.mark.parametrize("status", ["succeeded", "retrying", "dead_lettered", "cancelled"])
def test_settle(bench: Bench, status: str) -> None:
    delivery = bench.running(idempotency_key="k")
    first, second = bench.twice(bench.calls.settle(W1, [bench.settling(delivery, status)]))
    assert (first, second) == ([status], ["ALREADY"])


def test_settle_of_a_batch_whose_reply_was_lost(bench: Bench) -> None:
    ids = [bench.submit() for _ in range(4)]
    deliveries = bench.fetch()
    assert [d.task_id for d in deliveries] == ids
    first, second = bench.twice(bench.calls.settle(W1, [bench.settling(d) for d in deliveries]))
    assert (first, second) == (["succeeded"] * 4, ["ALREADY"] * 4)


def test_settle_after_the_retry_has_begun(bench: Bench) -> None:
    """The late copy of a settlement meets the next attempt: it must not touch it."""
    delivery = bench.running()
    call = bench.calls.settle(W1, [bench.settling(delivery, "retrying")])
    bench.run(call)
    bench.claimed(delivery.task_id)
    bench.release([delivery.task_id])
    (again,) = bench.fetch(W2)
    first, second = bench.twice(call)
    assert (first, second) == (["LOST"], ["LOST"])
    assert bench.settle(again, worker=W2) == "succeeded"


def test_hand_back(bench: Bench) -> None:
    delivery = bench.running()
    first, second = bench.twice(bench.calls.hand_back(W1, [delivery]))
    assert (first, second) == (["OK"], ["LOST"])


def test_touch(bench: Bench) -> None:
    delivery = bench.running()
    assert bench.twice(bench.calls.touch(W1, [delivery])) == (["OK"], ["OK"])


@pytest.mark.parametrize("state", ["queued", "pending", "retrying", "running"])
def test_cancel(bench: Bench, state: str) -> None:
    task_id = {
        "queued": bench.queued,
        "pending": lambda: bench.submit(delay_seconds=60),
        "retrying": bench.retrying,
        "running": lambda: bench.running().task_id,
    }[state]()
    first, second = bench.twice(bench.calls.cancel([task_id]))
    expected = (["REQUESTED"], ["REQUESTED"]) if state == "running" else (["CANCELLED"], ["TERMINAL"])
    assert (first, second) == expected


def test_claim_due(bench: Bench) -> None:
    ids = {bench.submit(delay_seconds=1) for _ in range(3)}
    bench.now_ms += 2000
    first, second = bench.twice(bench.calls.claim_due(bench.lead()))
    assert (set(first.task_ids), second.task_ids) == (ids, ())


def test_release(bench: Bench) -> None:
    ids = [bench.submit(delay_seconds=1), bench.retrying()]
    bench.claimed(*ids)
    first, second = bench.twice(bench.calls.release(ids))
    assert (first.released, second.released) == (2, 0)


def test_return_stale(bench: Bench) -> None:
    bench.claimed(bench.submit(delay_seconds=1))
    bench.now_ms += 61_000
    assert bench.twice(bench.calls.return_stale(bench.lead(), 60_000)) == (1, 0)


def test_revive(bench: Bench) -> None:
    letter = bench.letter(bench.dead(idempotency_key="k"))
    first, second = bench.twice(bench.calls.revive([letter], actor="ann", request_id="r1"))
    assert first == ["OK"]
    assert second == ["CHANGED"]
    assert bench.counters()["requeued"] == 1


def test_discard(bench: Bench) -> None:
    letter = bench.letter(bench.dead())
    first, second = bench.twice(bench.calls.discard([letter], actor="ann", request_id="r1"))
    assert (first, second) == (["OK"], ["CHANGED"])


def test_purge(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    first, second = bench.twice(bench.calls.purge_step("default", 5, "-", dry_run=False))
    assert (first.changed, second.changed) == (3, 0)


def test_pause(bench: Bench) -> None:
    for paused in (True, False):
        assert bench.twice(bench.calls.pause("default", paused, actor="", request_id="")) == (True, False)


def test_register(bench: Bench) -> None:
    bench.run(bench.calls.ensure_groups(["default"]))
    row = {"worker_id": W1, "status": "starting", "queues": "default"}
    first, _ = bench.twice(bench.calls.register(50, ["default"], row))
    assert first is True


def test_beat(bench: Bench) -> None:
    bench.register(W1, started_at="7")
    row = {"worker_id": W1, "status": "busy"}
    first, second = bench.twice(bench.calls.beat(50, row, born_ms=7, queues=["q"], types=["x"], types_kept_s=9))
    assert first == second == []


def test_sign_off(bench: Bench) -> None:
    bench.register()
    bench.settle(bench.running())
    assert bench.twice(bench.calls.sign_off(W1, ["default"])) == (1, 0)


def test_ensure_groups(bench: Bench) -> None:
    first, second = bench.twice(bench.calls.ensure_groups(["default", "other"]))
    assert first == second == [1, 1]


def test_lock(bench: Bench) -> None:
    assert bench.twice(bench.calls.lock("mine", 10_000)) == (True, True)
    assert bench.twice(bench.calls.lock("theirs", 10_000)) == (False, False)
    first, _ = bench.twice(bench.calls.lock("mine", 0))
    assert first is True


def test_renew(bench: Bench) -> None:
    bench.submit(idempotency_key="k")
    first, second = bench.twice(bench.calls.renew(bench.keys.stream("default", 5), ""))
    assert first == second


def test_prune(bench: Bench) -> None:
    bench.submit()
    bench.register(W1, last_heartbeat="1")
    bench.fetch(W2)
    bench.redis.sadd(bench.keys.workers, "worker-gone")
    first, second = bench.twice(bench.calls.prune(["default"], [W1, "worker-gone"], 1))
    assert (first[0], first[1]) == ([W1], 1)
    assert second[0] == []


def test_sweep_queue(bench: Bench, key_audit: KeyAudit) -> None:
    bench.settle(bench.running())
    bench.twice(bench.calls.sweep_queue("default"))
    bench.now_ms += bench.settings.task_retention_s * 1000 + 1
    first, second = bench.twice(bench.calls.sweep_queue("default"))
    assert first is True
    assert second is False


def test_every_script_is_sent_twice_here() -> None:
    import sys

    tests = " ".join(vars(sys.modules[__name__]))
    names = {"handback": "hand_back", "renew_lock": "lock"}
    missing = [n for n in scripts.names() if n not in FREE and f"test_{names.get(n, n)}" not in tests]
    assert not missing
