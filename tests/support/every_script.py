"""A walk that runs every script at least once: for what must hold for all of them."""

from __future__ import annotations

from support.bench import W1, W2, Bench


def walk(bench: Bench) -> None:
    """Tasks down every arrow of the state chart, a leader, a worker that registers, and the administrator's calls."""
    calls = bench.calls
    bench.run(calls.ensure_groups(["default", "other"]))
    bench.register(W1, queues=["default", "other"])
    bench.run(bench.calls.beat(50, {"worker_id": W1}, queues=["default"], types=["echo"], types_kept_s=9))
    bench.announce("elsewhere")
    bench.submit(idempotency_key="k", metadata={"ttl_seconds": 60})
    bench.submit(priority=9, queue="other")
    bench.submit(task_type="elsewhere")
    bench.submit(task_type="nowhere")
    first = bench.run(bench.fetch_call(queues=["default", "other"])).deliveries
    assert bench.run(calls.touch(W1, first)) == ["OK", "OK"]
    assert bench.settle(first[0], "retrying") == "retrying"
    assert bench.settle(first[1]) == "succeeded"

    lost = bench.running()
    bench.orphan(lost)
    assert bench.run(calls.stale("default")) is True
    assert bench.run(calls.stale("default")) is True
    (again,) = bench.run(bench.reclaim_call(W2)).deliveries
    assert bench.run(calls.stale("default")) is False
    assert len(bench.run(calls.adopt(W2, 10, ["default"])).deliveries) == 1
    assert bench.run(calls.hand_back(W2, [again])) == ["OK"]
    (again,) = bench.fetch(W2)
    assert bench.settle(again, "dead_lettered", worker=W2) == "dead_lettered"
    assert bench.run(calls.revive([bench.letter(lost.task_id)], actor="ann", request_id="")) == ["OK"]
    bench.run(calls.cancel([lost.task_id], actor="ann"))
    bench.run(calls.discard([bench.letter(bench.dead())], actor="ann", request_id=""))

    late = bench.submit(delay_seconds=1, idempotency_key="late")
    bench.run(calls.renew(bench.keys.schedule, ""))
    bench.claimed(late)
    bench.now_ms += 61_000
    assert bench.run(calls.return_stale(bench.lead(), 60_000)) >= 1
    assert late in bench.claim().task_ids
    assert bench.release([late]).released == 1
    bench.run(calls.renew(bench.keys.stream("default", 5), ""))
    bench.run(calls.purge_step("default", 5, "-", dry_run=False))
    bench.run(calls.pause("default", True, actor="ann", request_id=""))
    bench.run(calls.pause("default", False, actor="ann", request_id=""))
    bench.run(calls.prune(["default", "other"], [W1, W2], 1))
    bench.run(calls.sweep_queue("other"))
    bench.run(calls.sign_off(W1, ["default", "other"]))
    bench.run(calls.lock("leader", 0))
    bench.run(calls.call("audit_check", [bench.keys.task(lost.task_id)], [lost.task_id], list))
    bench.run(calls.call("audit_counts", [bench.keys.queues], ["1", "default"], list))
