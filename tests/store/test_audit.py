"""`dtq audit verify`: silent about a sound world, and it names the very task when somebody breaks one (decision 20)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from support.bench import W1, Bench, new_id
from support.keyspace import KeyAudit, difference, dump

from dtq_core.audit import AuditReport, verify
from dtq_core.store import Store

pytestmark = pytest.mark.contract("D20")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspect is looked at five times; between the looks nothing happens here, so they need no pause."""
    monkeypatch.setattr("dtq_core.audit._LOOK_AGAIN_S", 0.001)


def audited(bench: Bench, **options: object) -> AuditReport:
    async def run() -> AuditReport:
        store = Store.connect(bench.settings, now_ms=lambda: bench.now_ms)
        try:
            return await verify(store, bench.settings, **options)  # type: ignore[arg-type]
        finally:
            await store.close()

    return asyncio.run(run())


class Everything:
    """A sound world with a task in each state."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.retrying = bench.retrying()
        self.dead = bench.dead(idempotency_key="k")
        delivery = bench.running()
        bench.settle(delivery)
        self.succeeded = delivery.task_id
        self.running = bench.running(priority=2).task_id
        self.claimed = bench.submit(delay_seconds=1)
        bench.claimed(self.claimed)
        self.pending = bench.submit(delay_seconds=600)
        self.queued = bench.submit()
        self.neighbours = [bench.submit(priority=8) for _ in range(5)]

    def entry(self, task_id: str) -> tuple[str, str]:
        record = self.bench.record(task_id)
        return self.bench.keys.stream(record["queue"], int(record["priority"])), record["entry_id"]


Break = Callable[[Bench, Everything], str]


def entry_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.xdel(*world.entry(world.queued))
    return world.queued


def entry_of_a_running_task_deleted(bench: Bench, world: Everything) -> str:
    stream, entry_id = world.entry(world.running)
    bench.redis.xack(stream, "workers", entry_id)
    bench.redis.xdel(stream, entry_id)
    return world.running


def acknowledged_too_early(bench: Bench, world: Everything) -> str:
    stream, entry_id = world.entry(world.running)
    bench.redis.xack(stream, "workers", entry_id)
    return world.running


def acknowledged_before_its_start(bench: Bench, world: Everything) -> str:
    stream, entry_id = world.entry(world.queued)
    bench.redis.xreadgroup("workers", W1, {stream: ">"}, count=1)
    bench.redis.xack(stream, "workers", entry_id)
    return world.queued


def priority_unreadable(bench: Bench, world: Everything) -> str:
    bench.redis.hset(bench.keys.task(world.queued), "priority", "5.0")
    return world.queued


def dead_letters_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.delete(bench.keys.dead_letters)
    return world.dead


def entry_duplicated(bench: Bench, world: Everything) -> str:
    stream, entry_id = world.entry(world.queued)
    ((_, fields),) = bench.redis.xrange(stream, entry_id, entry_id)
    bench.redis.xadd(stream, fields)
    return world.queued


def entry_of_an_ended_task(bench: Bench, world: Everything) -> str:
    bench.redis.xadd(bench.keys.stream("default", 5), {"task_id": world.succeeded, "queue": "default"})
    return world.succeeded


def entry_of_nobody(bench: Bench, world: Everything) -> str:
    task_id = new_id()
    bench.redis.xadd(bench.keys.stream("default", 5), {"task_id": task_id, "queue": "default"})
    return task_id


def record_of_a_queued_task_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.delete(bench.keys.task(world.queued))
    return world.queued


def record_of_a_delayed_task_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.delete(bench.keys.task(world.pending))
    return world.pending


def record_unreadable(bench: Bench, world: Everything) -> str:
    bench.redis.hset(bench.keys.task(world.queued), "fence", "x")
    return world.queued


def record_of_another_type(bench: Bench, world: Everything) -> str:
    bench.redis.delete(bench.keys.task(world.queued))
    bench.redis.set(bench.keys.task(world.queued), "text")
    return world.queued


def schedule_member_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.zrem(bench.keys.schedule, world.pending)
    return world.pending


def claim_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.zrem(bench.keys.claimed, world.claimed)
    return world.claimed


def in_schedule_and_claims(bench: Bench, world: Everything) -> str:
    bench.redis.zadd(bench.keys.claimed, {world.pending: 1})
    return world.pending


def queued_and_scheduled(bench: Bench, world: Everything) -> str:
    bench.redis.zadd(bench.keys.schedule, {world.queued: 1})
    return world.queued


def member_of_nobody(bench: Bench, world: Everything) -> str:
    task_id = new_id()
    bench.redis.zadd(bench.keys.schedule, {task_id: 1})
    return task_id


def dead_letter_deleted(bench: Bench, world: Everything) -> str:
    bench.redis.xdel(bench.keys.dead_letters, bench.letter(world.dead).letter_id)
    return world.dead


def dead_letter_of_a_live_task(bench: Bench, world: Everything) -> str:
    bench.redis.xadd(bench.keys.dead_letters, {"task_id": world.queued, "original_queue": "default"})
    return world.queued


def status_edited(bench: Bench, world: Everything) -> str:
    bench.redis.hset(bench.keys.task(world.running), "status", "succeeded")
    return world.running


def status_set_back(bench: Bench, world: Everything) -> str:
    bench.redis.hset(bench.keys.task(world.succeeded), "status", "queued")
    return world.succeeded


BREAKS: list[Break] = [
    entry_deleted, entry_of_a_running_task_deleted, acknowledged_too_early, acknowledged_before_its_start,
    entry_duplicated, entry_of_an_ended_task, entry_of_nobody, record_of_a_queued_task_deleted,
    record_of_a_delayed_task_deleted, record_unreadable, priority_unreadable, record_of_another_type,
    schedule_member_deleted, claim_deleted, in_schedule_and_claims, queued_and_scheduled, member_of_nobody,
    dead_letter_deleted, dead_letters_deleted, dead_letter_of_a_live_task, status_edited, status_set_back,
]  # fmt: skip


def test_a_sound_world_is_sound(bench: Bench) -> None:
    Everything(bench)
    report = audited(bench)
    assert report.findings == []
    assert (report.tasks, report.entries, report.scheduled, report.letters, report.queues) == (12, 7, 3, 1, 1)


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_what_is_broken_by_hand_is_named(bench: Bench, key_audit: KeyAudit, breaks: Break) -> None:
    """The finding names the task, and no other task is named."""
    key_audit.ignore("dtq:task:.*")
    victim = breaks(bench, Everything(bench))
    report = audited(bench)
    assert not report.ok
    assert {finding.task_id for finding in report.findings if finding.task_id} == {victim}
    assert any(victim in finding.message for finding in report.findings)


@pytest.mark.parametrize(
    "field", ["submitted", "queued", "running", "pending", "retrying", "succeeded", "dead_lettered"]
)
@pytest.mark.parametrize("by", [1, -1])
def test_an_edited_counter_is_found(bench: Bench, field: str, by: int) -> None:
    Everything(bench)
    bench.redis.hincrby(bench.keys.ledger("default"), field, by)
    report = audited(bench)
    assert report.findings
    assert all("default" in finding.message or finding.kind == "schedule" for finding in report.findings)


def test_a_task_that_vanished_without_a_trace_is_missed_by_the_sums(bench: Bench) -> None:
    """Record and entry both gone: the ledger still knows that it came; with receipts it is named."""
    world = Everything(bench)
    bench.redis.xdel(*world.entry(world.queued))
    bench.redis.delete(bench.keys.task(world.queued))
    assert {finding.kind for finding in audited(bench).findings} == {"depth"}
    report = audited(bench, receipts=[world.queued, world.succeeded, world.dead])
    assert [finding.task_id for finding in report.findings if finding.kind == "receipt"] == [world.queued]


def test_trimmed_letters_are_excused_and_removed_ones_are_named(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(dlq_maxlen=100)
    for _ in range(4):
        for _ in range(100):
            bench.submit()
        bench.now_ms += 1
        bench.run(bench.calls.settle(W1, [bench.settling(d, "dead_lettered") for d in bench.fetch(capacity=100)]))
    left = {f["task_id"]: entry_id for entry_id, f in bench.redis.xrange(bench.keys.dead_letters)}
    assert len(left) < 400 and audited(bench).ok
    removed = min(left.values()), max(left.values())
    bench.redis.xdel(bench.keys.dead_letters, *removed)
    assert {f.task_id for f in audited(bench).findings} == {t for t, entry_id in left.items() if entry_id in removed}
    bench.redis.delete(bench.keys.dead_letters)
    assert {f.task_id for f in audited(bench).findings} == set(left)


def test_a_ledger_that_is_no_hash_is_named(bench: Bench, key_audit: KeyAudit) -> None:
    key_audit.ignore("dtq:ledger:other")
    Everything(bench)
    bench.submit(queue="other")
    bench.redis.delete(bench.keys.ledger("other"))
    bench.redis.set(bench.keys.ledger("other"), "text")
    assert [(f.kind, f.queue) for f in audited(bench).findings if f.queue] == [("wrong-type", "other")]


def test_many_queues_are_counted_in_steps(bench: Bench) -> None:
    """More queues than fit into one call: each is looked at."""
    names = [f"q{n:02}" for n in range(45)]
    for name in names:
        bench.submit(queue=name)
    for name in (names[0], names[20], names[44]):
        bench.redis.hincrby(bench.keys.ledger(name), "queued", 1)
    assert {f.queue for f in audited(bench).findings} == {names[0], names[20], names[44]}


def test_one_queue_alone(bench: Bench) -> None:
    world = Everything(bench)
    bench.submit(queue="other")
    bench.redis.xdel(*world.entry(world.queued))
    assert audited(bench, queue="other").ok
    assert not audited(bench, queue="default").ok


def test_looking_changes_nothing(bench: Bench) -> None:
    Everything(bench)
    audited(bench)
    before = dump(bench.redis)
    audited(bench)
    assert difference(before, dump(bench.redis)) == {}


def test_it_stays_green_under_full_load(bench: Bench) -> None:
    """Tasks are born, run, retried, cancelled and buried while it walks: what is on its way is not a fault."""
    world = Everything(bench)
    stop = threading.Event()
    problems: list[BaseException] = []

    def churn() -> None:
        mine = Bench(bench.server)
        mine.now_ms = bench.now_ms
        try:
            n = 0
            while not stop.is_set():
                n += 1
                mine.run(mine.submit_call(*(mine.submission(delay_seconds=n % 2) for _ in range(20))))
                taken = mine.fetch("worker-0000000c", 30)
                how = ["succeeded", "retrying", "dead_lettered", "cancelled"][n % 4]
                if taken:
                    mine.run(mine.calls.settle(W1, [mine.settling(d, how) for d in taken]))
                mine.now_ms += 5000
                mine.lead()
                mine.release(mine.claim().task_ids)
        except BaseException as exc:
            problems.append(exc)
        finally:
            mine.store.close()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(15):
            assert audited(bench).findings == []
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert audited(bench, receipts=[world.queued, *world.neighbours]).findings == []
