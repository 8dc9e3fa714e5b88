"""submit.lua: what a submission writes, and that a refused one writes nothing (contract §1, §5, §7; decisions 9, 10, 13, 35)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.bench import START_MS, Bench

EMPTY: dict[str, Any] = {}


def entry_of(changes: dict[str, Any], stream: str) -> tuple[str, dict[str, str]]:
    ((entry_id, fields),) = changes[stream]["entries"].items()
    return entry_id, fields


@pytest.mark.contract("C1.02", "C1.29", "C1.30", "C1.41", "C1.42", "C2.01", "C2.08", "C2.09", "C2.14", "C2.17", "C5.03")
def test_a_task_is_written_whole(bench: Bench) -> None:
    """Record, entry, index, queue, counters and a wake token: all of it, and nothing else."""
    task = bench.submission(
        "echo", {"to": "ann"}, priority=7, max_attempts=3, timeout_ms=1000, idempotency_key="k",
        metadata={"ttl_seconds": 60, "tenant": "a"},
    )  # fmt: skip
    (answer,), changes = bench.changes(bench.submit_call(task))
    assert (answer.code, answer.task_id, answer.detail) == ("OK", task.task_id, "queued")
    entry_id, fields = entry_of(changes, "dtq:stream:default:p7")
    assert fields == {
        "task_id": task.task_id, "queue": "default", "task_type": "echo", "payload": '{"to":"ann"}', "attempt": "1",
        "max_attempts": "3", "priority": "7", "timeout_ms": "1000", "idempotency_key": "k",
    }  # fmt: skip
    record = bench.record(task.task_id)
    assert record == {
        "task_id": task.task_id, "queue": "default", "task_type": "echo", "payload": '{"to":"ann"}', "status": "queued",
        "created_at": str(START_MS), "available_at": str(START_MS), "attempt": "0", "max_attempts": "3", "priority": "7",
        "timeout_ms": "1000", "idempotency_key": "k", "metadata": '{"ttl_seconds":60,"tenant":"a"}', "fence": "0",
        "entry_id": entry_id, "expires_at": str(START_MS + 60_000), "cancel_requested": "0",
    }  # fmt: skip
    assert set(changes) == {
        "dtq:stream:default:p7", f"dtq:task:{task.task_id}", "dtq:idempotency:default:k", "dtq:ledger:default",
        "dtq:queues", "dtq:tasks:recent", "dtq:wake:default",
    }  # fmt: skip
    assert bench.counters() == {"submitted": 1, "queued": 1}
    assert changes["dtq:queues"] == {"default"}
    assert changes["dtq:tasks:recent"] == {task.task_id: START_MS}
    assert changes["dtq:wake:default"] == ["1"]
    assert bench.key_state("default", "k") == "processing"
    assert 0 < bench.redis.ttl("dtq:idempotency:default:k") <= bench.settings.idem_ttl_s


@pytest.mark.contract("C1.01", "C1.31", "C1.32", "C2.05", "D17")
def test_a_delayed_task_waits_in_the_schedule(bench: Bench) -> None:
    task = bench.submission(delay_seconds=90)
    (answer,), changes = bench.changes(bench.submit_call(task))
    assert answer.detail == "pending"
    assert changes["dtq:retry:schedule"] == {task.task_id: START_MS + 90_000}
    assert bench.record(task.task_id)["status"] == "pending"
    assert not [key for key in changes if key.startswith("dtq:stream:")] and "dtq:wake:default" not in changes
    assert bench.counters() == {"submitted": 1, "pending": 1}
    assert bench.redis.ttl(bench.keys.task(task.task_id)) > bench.settings.task_retention_s + 80


@pytest.mark.contract("C1.35", "C1.36", "C1.38")
def test_what_is_not_said_is_the_installations(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(task_timeout_ms=1234)
    record = bench.record(bench.submit())
    assert (record["max_attempts"], record["priority"], record["timeout_ms"]) == ("5", "5", "1234")


@pytest.mark.contract("D19")
def test_the_queues_policy_replaces_the_installations(bench: Bench) -> None:
    policy = {
        "max_attempts": 2,
        "default_priority": 8,
        "default_timeout_ms": 777,
        "max_depth": 1,
        "max_payload_bytes": 20,
    }
    bench.redis.hset(bench.keys.policy("default"), mapping=policy)
    record = bench.record(bench.submit())
    assert (record["max_attempts"], record["priority"], record["timeout_ms"]) == ("2", "8", "777")
    assert refused(bench, priority=1)[0] == "FULL"
    assert refused(bench, payload={"x": "y" * 30})[0] == "TOO_LARGE"


def refused(bench: Bench, task_type: str = "echo", **fields: Any) -> tuple[str, str]:
    """Code and detail of a refusal; it has left nothing."""
    ask = fields.pop("ask", 0)
    submission = bench.submission(task_type, fields.pop("payload", None), idempotency_key="free", **fields)
    (answer,), changes = bench.changes(bench.calls.submit([submission], ask=lambda _: ask))
    assert answer.code not in ("OK", "DUPLICATE")
    assert changes == EMPTY
    return answer.code, answer.detail


@pytest.mark.contract("C7.02", "D9", "D21", "D35", "BQ-05")
def test_a_refused_submission_leaves_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_queue_depth=2, max_scheduled=1, max_queues=1)
    bench.submit()
    bench.submit()
    assert refused(bench) == ("FULL", "2")
    bench.submit(delay_seconds=5)
    assert refused(bench, delay_seconds=5)[0] == "SCHEDULE_FULL"
    assert refused(bench, queue="one-more")[0] == "QUEUE_LIMIT"
    bench.announce("other")
    assert refused(bench, "unheard", ask=1)[0] == "UNKNOWN"
    assert refused(bench, "unheard", ask=2)[0] == "UNKNOWN"


@pytest.mark.contract("D13")
def test_announcements_decide_where_the_producer_does_not_know(bench: Bench) -> None:
    """Nothing announced: accepted (1) or refused (2); announced: accepted."""
    for ask, code in ((1, "OK"), (2, "UNKNOWN")):
        (answer,) = bench.run(bench.calls.submit([bench.submission("later")], ask=lambda _, ask=ask: ask))
        assert answer.code == code
    bench.announce("later")
    (answer,) = bench.run(bench.calls.submit([bench.submission("later")], ask=lambda _: 2))
    assert answer.code == "OK"


@pytest.mark.contract("C7.01", "C7.02")
def test_the_depth_is_exact_within_a_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_queue_depth=3)
    answers = bench.run(bench.submit_call(*(bench.submission() for _ in range(5))))
    assert [a.code for a in answers] == ["OK", "OK", "OK", "FULL", "FULL"]
    bench.fetch(capacity=2)
    (answer,) = bench.run(bench.submit_call(bench.submission()))
    assert answer.code == "FULL", "running tasks take room too"


@pytest.mark.contract("C5.02", "C5.04", "C5.05", "C5.06")
def test_one_key_one_task(bench: Bench) -> None:
    first = bench.submit(idempotency_key="k")
    for state in ("queued", "running"):
        answer = again(bench)
        assert (answer.code, answer.task_id, answer.detail) == ("IN_PROGRESS", first, state)
        deliveries = bench.fetch()
    bench.settle(deliveries[0]) if deliveries else None
    if bench.status(first) == "running":
        (delivery,) = bench.run(bench.calls.adopt("worker-00000001", 10, ["default"])).deliveries
        bench.settle(delivery)
    answer = again(bench)
    assert (answer.code, answer.task_id, answer.detail) == ("DUPLICATE", first, "succeeded")
    assert again(bench, queue="other").code == "OK", "the scope of a key is its queue"
    assert bench.counters()["submitted"] == 1


def again(bench: Bench, **fields: Any) -> Any:
    (answer,) = bench.run(bench.submit_call(bench.submission(idempotency_key="k", **fields)))
    return answer


@pytest.mark.contract("D9")
def test_a_replay_is_answered_though_the_queue_is_full(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_queue_depth=1)
    done = bench.running(idempotency_key="k")
    bench.settle(done)
    bench.submit()
    assert again(bench).code == "DUPLICATE"


@pytest.mark.contract("D10")
def test_a_key_whose_task_is_gone_is_free(bench: Bench) -> None:
    first = bench.submit(idempotency_key="k")
    bench.redis.delete(bench.keys.task(first))
    bench.redis.delete(bench.keys.stream("default", 5))
    second = bench.submit(idempotency_key="k")
    assert second != first and f'"{second}"' in str(bench.redis.get(bench.keys.idempotency("default", "k")))


@pytest.mark.contract("D8")
def test_one_wake_token_is_enough(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    assert bench.redis.lrange(bench.keys.wake("default"), 0, -1) == ["1"]
