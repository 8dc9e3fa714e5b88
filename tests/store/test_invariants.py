"""Any sequence of calls keeps the world legal: each task in the one place that fits its status, the ledger exact.

Hypothesis makes the sequences: producers, three workers that die and wake up again, a leader, an administrator, time.
Every call may be sent twice. A failing sequence is shrunk to the shortest one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.bench import Bench
from support.engines import Server
from support.places import ENDED, LIVE, misplaced, snapshot

from dtq_core.store.transitions import Call, Delivery
from dtq_core.task import TRANSITIONS, TaskStatus

WORKERS = ("worker-00000001", "worker-00000002", "worker-00000003")
_server: list[Server] = []

worker = st.sampled_from(WORKERS)
twice = st.booleans()


class Sequences(RuleBasedStateMachine):
    """One engine, emptied for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(_server[0], visibility_timeout_s=30, dlq_maxlen=10_000)
        self.bench.server.redis.flushall()
        self.held: dict[str, list[Delivery]] = {name: [] for name in WORKERS}
        self.statuses: dict[str, str] = {}
        self.fences: dict[str, int] = {}

    def teardown(self) -> None:
        self.bench.store.close()

    def send(self, call: Call[Any], again: bool) -> Any:
        return self.bench.twice(call)[0] if again else self.bench.run(call)

    @initialize()
    def lead(self) -> None:
        self.bench.lead()

    @rule(
        again=twice,
        priority=st.sampled_from([0, 5, 9]),
        delay=st.sampled_from([0, 0, 0, 1, 100]),
        ttl=st.sampled_from([None, None, 5]),
        key=st.sampled_from([None, None, "a", "b"]),
        task_type=st.sampled_from(["echo", "echo", "echo", "strange"]),
        attempts=st.integers(1, 3),
    )
    def submit(self, again: bool, task_type: str, delay: int, ttl: int | None, key: str | None, **fields: Any) -> None:
        metadata = {"ttl_seconds": ttl} if ttl else {}
        submission = self.bench.submission(
            task_type,
            delay_seconds=delay,
            idempotency_key=key,
            metadata=metadata,
            priority=fields["priority"],
            max_attempts=fields["attempts"],
        )
        (answer,) = self.send(self.bench.submit_call(submission), again)
        assert answer.code in (("OK", "IN_PROGRESS", "DUPLICATE") if key else ("OK",))

    @rule(name=worker, capacity=st.integers(1, 4), again=twice)
    def fetch(self, name: str, capacity: int, again: bool) -> None:
        reply = self.send(self.bench.fetch_call(name, capacity), again)
        assert not reply.problems
        assert len(reply.deliveries) <= capacity
        self.held[name] += reply.deliveries

    def reclaim(self, name: str, again: bool) -> None:
        reply = self.send(self.bench.reclaim_call(name), again)
        assert not reply.problems
        self.held[name] += reply.deliveries

    @rule(name=worker, by=worker, again=twice)
    def fall_silent(self, name: str, by: str, again: bool) -> None:
        """A worker is frozen with what it holds, and a peer (or itself, restarted) takes over what is old enough."""
        for delivery in self.held[name]:
            record = self.bench.record(delivery.task_id)
            if record["status"] == "running" and record["worker_id"] == name and self.has_group(delivery):
                self.bench.orphan(delivery)
        self.reclaim(by, again)

    def has_group(self, delivery: Delivery) -> bool:
        return bool(self.bench.redis.xinfo_groups(self.bench.keys.stream(delivery.queue, delivery.band)))

    @rule(name=worker)
    def adopt(self, name: str) -> None:
        known = {(d.task_id, d.fence) for d in self.held[name]}
        found = self.bench.run(self.bench.calls.adopt(name, 50, ["default"]))
        self.held[name] += [d for d in found if (d.task_id, d.fence) not in known]

    @rule(
        name=worker,
        status=st.sampled_from(["succeeded", "retrying", "dead_lettered", "cancelled"]),
        count=st.integers(1, 3),
        again=twice,
    )
    def settle(self, name: str, status: str, count: int, again: bool) -> None:
        """Late settlements included: what a worker holds may belong to somebody else by now."""
        batch, self.held[name] = self.held[name][:count], self.held[name][count:]
        if not batch:
            return
        expected = [self._expected_answer(d, status) for d in batch]
        answers = self.send(self.bench.calls.settle(name, [self.bench.settling(d, status) for d in batch]), again)
        assert answers == expected

    def _expected_answer(self, delivery: Delivery, status: str) -> str:
        """Only the holder of the fence writes; a cancel that was accepted beats everything."""
        record = self.bench.record(delivery.task_id)
        if record.get("fence") != delivery.fence:
            return "LOST"
        if record["status"] != "running":
            return "ALREADY"
        return "cancelled" if record.get("cancel_requested") == "1" else status

    @rule(name=worker, again=twice)
    def hand_back(self, name: str, again: bool) -> None:
        batch, self.held[name] = self.held[name][:2], self.held[name][2:]
        if batch:
            self.send(self.bench.calls.hand_back(name, batch), again)

    @rule(name=worker)
    def touch(self, name: str) -> None:
        if self.held[name]:
            self.bench.run(self.bench.calls.touch(name, self.held[name]))

    @rule(ms=st.sampled_from([10, 2_000, 70_000]))
    def time_passes(self, ms: int) -> None:
        self.bench.now_ms += ms
        self.bench.redis.pexpire(self.bench.keys.lock, 10_000)

    @rule(again=twice)
    def claim_and_release(self, again: bool) -> None:
        due = self.send(self.bench.calls.claim_due("leader"), again)
        assert due.leading
        if due.task_ids:
            self.send(self.bench.calls.release(due.task_ids), again)

    @rule()
    def claim_and_die(self) -> None:
        self.bench.claim()

    @rule(again=twice)
    def return_stale(self, again: bool) -> None:
        self.send(self.bench.calls.return_stale("leader", 60_000), again)

    @rule(data=st.data(), again=twice)
    def cancel(self, data: st.DataObject, again: bool) -> None:
        if self.statuses:
            task_id = data.draw(st.sampled_from(sorted(self.statuses)))
            self.send(self.bench.calls.cancel([task_id], actor=""), again)

    @rule(data=st.data(), again=twice, discard=st.booleans())
    def redrive(self, data: st.DataObject, again: bool, discard: bool) -> None:
        dead = sorted(t for t, status in self.statuses.items() if status == "dead_lettered")
        if dead:
            letter = self.bench.letter(data.draw(st.sampled_from(dead)))
            if letter.letter_id:
                call = self.bench.calls.discard if discard else self.bench.calls.revive
                self.send(call([letter], actor="", request_id="r"), again)

    @rule(band=st.sampled_from([0, 5, 9]))
    def purge(self, band: int) -> None:
        self.bench.run(self.bench.calls.purge_step("default", band, "-", dry_run=False))

    @rule(name=worker, again=twice)
    def pause_for_a_moment(self, name: str, again: bool) -> None:
        self.send(self.bench.calls.pause("default", True, actor="", request_id=""), again)
        assert self.bench.run(self.bench.fetch_call(name)).deliveries == []
        assert self.bench.run(self.bench.reclaim_call(name)).deliveries == []
        self.send(self.bench.calls.pause("default", False, actor="", request_id=""), again)

    @rule(name=worker)
    def tidy(self, name: str) -> None:
        self.bench.run(self.bench.calls.prune(["default"], [name], 0))
        self.bench.run(self.bench.calls.sweep_queue("default"))
        self.bench.run(self.bench.calls.renew(self.bench.keys.schedule, ""))

    @rule()
    def group_is_lost(self) -> None:
        for band in range(10):
            stream = self.bench.keys.stream("default", band)
            if self.bench.redis.exists(stream):
                self.bench.redis.xgroup_destroy(stream, "workers")

    @invariant()
    def everything_is_legal(self) -> None:
        world = snapshot(self.bench.redis)
        discarded = {t for t in world.tasks if self.bench.record(t).get("discarded") == "1"}
        wrong = [
            line for line in misplaced(world) if not any(t in line for t in discarded) and "pending for" not in line
        ]
        assert wrong == []
        counters = Counter(status for status, *_ in world.tasks.values())
        ledger = self.bench.counters()
        for status in LIVE:
            assert ledger.get(status, 0) == counters[status], f"{status}: ledger {ledger}, tasks {dict(counters)}"
        came = ledger.get("submitted", 0) + ledger.get("requeued", 0)
        assert came == sum(ledger.get(status, 0) for status in (*LIVE, *ENDED)), ledger
        assert self.bench.redis.llen(self.bench.keys.wake("default")) <= 1
        self._watch_edges({task_id: status for task_id, (status, *_) in world.tasks.items()})

    def _watch_edges(self, now: dict[str, str]) -> None:
        for task_id, status in now.items():
            before = self.statuses.get(task_id)
            fence = int(self.bench.record(task_id)["fence"])
            assert fence >= self.fences.get(task_id, 0), "the fence never goes back"
            if before == status == "running" and fence == self.fences[task_id]:
                continue
            if before is not None and before != status and TRANSITIONS[TaskStatus(before)] == frozenset():
                assert (before, status) == ("dead_lettered", "queued"), f"{task_id}: {before} → {status}"
            self.fences[task_id] = fence
        self.statuses = now


@pytest.mark.contract("C1.05", "D3", "D19", "D20", "D29")
def test_any_sequence_keeps_the_world_legal(engine: Server, pytestconfig: pytest.Config) -> None:
    _server[:] = [engine]
    nightly = pytestconfig.getoption("nightly")
    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=1000 if nightly else 60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
