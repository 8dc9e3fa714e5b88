"""Any sequence of calls keeps the world legal: each task in the one place that fits its status, the ledger exact.

Hypothesis makes the sequences: a producer, three workers that fall silent and wake up again, a leader, an
administrator, time. Every call may be sent twice, with one effect. A failing sequence is shrunk to the shortest one.
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
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.bench import Bench
from support.engines import Server
from support.places import ENDED, LIVE, Snapshot, misplaced, snapshot

from dtq_core.store.transitions import Call, Delivery

WORKERS = ("worker-00000001", "worker-00000002", "worker-00000003")
BANDS = (9, 5, 0)
_server: list[Server] = []
_reached: Counter[str] = Counter()
"""What the sequences of one run came to: a run that reaches nothing proves nothing."""

worker = st.sampled_from(WORKERS)
twice = st.booleans()


class Sequences(RuleBasedStateMachine):
    """One engine, emptied for each sequence. Rules look at the last snapshot, so that few steps are idle."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(_server[0], visibility_timeout_s=30)
        self.bench.redis.flushall()
        self.held: dict[str, list[Delivery]] = {name: [] for name in WORKERS}
        self.statuses: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.world = Snapshot({})
        self.ids = 0

    def teardown(self) -> None:
        self.bench.store.close()

    def send(self, call: Call[Any], again: bool) -> Any:
        _reached[call.script] += 1
        return self.bench.twice(call)[0] if again else self.bench.run(call)

    def any_held(self) -> bool:
        return any(self.held.values())

    def any_dead(self) -> bool:
        return bool(self.world.dead)

    @initialize()
    def begin(self) -> None:
        self.bench.lead()
        for band in BANDS:
            self.bench.submit(priority=band, task_id=self.next_id())

    def next_id(self) -> str:
        """Ids in order: what Hypothesis draws from must be the same in each run of a sequence."""
        self.ids += 1
        return f"{self.ids:032x}"

    @rule(
        again=twice,
        band=st.sampled_from(BANDS),
        delay=st.sampled_from([0, 0, 0, 1, 100]),
        ttl=st.sampled_from([None, None, None, 5]),
        key=st.sampled_from([None, None, "a", "b"]),
        task_type=st.sampled_from(["echo", "echo", "echo", "strange"]),
        attempts=st.integers(1, 3),
    )
    def submit(
        self, again: bool, band: int, delay: int, ttl: int | None, key: str | None, task_type: str, attempts: int
    ) -> None:
        submission = self.bench.submission(
            task_type,
            task_id=self.next_id(),
            delay_seconds=delay,
            idempotency_key=key,
            metadata={"ttl_seconds": ttl} if ttl else {},
            priority=band,
            max_attempts=attempts,
        )
        (answer,) = self.send(self.bench.submit_call(submission), again)
        assert answer.code in (("OK", "IN_PROGRESS", "DUPLICATE") if key else ("OK",))

    @precondition(lambda self: self.world.entries)
    @rule(name=worker, capacity=st.integers(1, 4), again=twice)
    def fetch(self, name: str, capacity: int, again: bool) -> None:
        reply = self.send(self.bench.fetch_call(name, capacity), again)
        assert not reply.problems
        assert len(reply.deliveries) <= capacity
        self.held[name] += reply.deliveries

    @precondition(any_held)
    @rule(name=worker, by=worker, again=twice)
    def fall_silent(self, name: str, by: str, again: bool) -> None:
        """A worker is frozen with what it holds; a peer, or itself after a restart, takes over what is old enough."""
        for delivery in self.held[name]:
            record = self.bench.record(delivery.task_id)
            if record["status"] == "running" and record["worker_id"] == name and self.has_group(delivery):
                self.bench.orphan(delivery)
        reply = self.send(self.bench.reclaim_call(by), again)
        assert not reply.problems
        _reached["taken over"] += len(reply.deliveries)
        self.held[by] += reply.deliveries

    def has_group(self, delivery: Delivery) -> bool:
        return bool(self.bench.redis.xinfo_groups(self.bench.keys.stream(delivery.queue, delivery.band)))

    @precondition(any_held)
    @rule(name=worker)
    def restart(self, name: str) -> None:
        """The worker forgets what it holds and adopts it again: nobody else could."""
        mine = {
            (task_id, self.bench.record(task_id)["fence"])
            for _, _, task_id, owner in self.world.entries
            if owner == name and self.world.status(task_id) == "running"
        }
        found = self.bench.run(self.bench.calls.adopt(name, 50, ["default"]))
        assert {(d.task_id, d.fence) for d in found} == mine
        self.held[name] = found

    @precondition(any_held)
    @rule(
        name=worker,
        status=st.sampled_from(["succeeded", "retrying", "dead_lettered", "cancelled"]),
        count=st.integers(1, 3),
        again=twice,
    )
    def settle(self, name: str, status: str, count: int, again: bool) -> None:
        """Late settlements included: what a worker holds may belong to somebody else by now."""
        batch, self.held[name] = self.held[name][:count], self.held[name][count:]
        if batch:
            expected = [self._expected_answer(d, status) for d in batch]
            answers = self.send(self.bench.calls.settle(name, [self.bench.settling(d, status) for d in batch]), again)
            assert answers == expected
            _reached.update(answers)

    def _expected_answer(self, delivery: Delivery, status: str) -> str:
        """Only the holder of the fence writes; a cancel that was accepted beats everything."""
        record = self.bench.record(delivery.task_id)
        if record.get("fence") != delivery.fence:
            return "LOST"
        if record["status"] != "running":
            return "ALREADY"
        return "cancelled" if record.get("cancel_requested") == "1" else status

    @precondition(any_held)
    @rule(name=worker, again=twice)
    def hand_back(self, name: str, again: bool) -> None:
        batch, self.held[name] = self.held[name][:2], self.held[name][2:]
        if batch:
            self.send(self.bench.calls.hand_back(name, batch), again)

    @precondition(any_held)
    @rule(name=worker)
    def touch(self, name: str) -> None:
        if self.held[name]:
            answers = self.bench.run(self.bench.calls.touch(name, self.held[name]))
            for delivery, answer in zip(self.held[name], answers, strict=True):
                ours = self._expected_answer(delivery, "ours") in ("ours", "cancelled")
                assert (answer != "LOST") == ours

    @rule(ms=st.sampled_from([10, 2_000, 70_000]))
    def time_passes(self, ms: int) -> None:
        self.bench.now_ms += ms
        self.bench.redis.pexpire(self.bench.keys.lock, 10_000)

    @precondition(lambda self: self.world.schedule)
    @rule(again=twice, dies=st.booleans())
    def claim_and_release(self, again: bool, dies: bool) -> None:
        due = self.send(self.bench.calls.claim_due("leader"), again)
        assert due.leading
        if due.task_ids and not dies:
            self.send(self.bench.calls.release(due.task_ids), again)

    @precondition(lambda self: self.world.claimed)
    @rule(again=twice)
    def return_stale(self, again: bool) -> None:
        self.bench.now_ms += 61_000
        self.send(self.bench.calls.return_stale("leader", 60_000), again)

    @precondition(lambda self: self.world.tasks)
    @rule(data=st.data(), again=twice)
    def cancel(self, data: st.DataObject, again: bool) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.world.tasks)))
        self.send(self.bench.calls.cancel([task_id]), again)

    @precondition(any_dead)
    @rule(data=st.data(), again=twice, discard=st.booleans())
    def redrive(self, data: st.DataObject, again: bool, discard: bool) -> None:
        letter = self.bench.letter(data.draw(st.sampled_from(sorted(self.world.dead))))
        call = self.bench.calls.discard if discard else self.bench.calls.revive
        assert self.send(call([letter], actor="", request_id=""), again) == ["OK"]

    @precondition(lambda self: len(self.world.entries) > 3)
    @rule(band=st.sampled_from(BANDS))
    def purge(self, band: int) -> None:
        self.bench.run(self.bench.calls.purge_step("default", band, "-", dry_run=False))

    @precondition(lambda self: self.world.entries)
    @rule(name=worker, again=twice)
    def pause_for_a_moment(self, name: str, again: bool) -> None:
        self.send(self.bench.calls.pause("default", True, actor="", request_id=""), again)
        assert self.bench.run(self.bench.fetch_call(name)).deliveries == []
        assert self.bench.run(self.bench.reclaim_call(name)).deliveries == []
        self.send(self.bench.calls.pause("default", False, actor="", request_id=""), again)

    @rule(name=worker)
    def keep_house(self, name: str) -> None:
        self.bench.run(self.bench.calls.prune(["default"], [name], 0))
        self.bench.run(self.bench.calls.sweep_queue("default"))
        self.bench.run(self.bench.calls.renew(self.bench.keys.schedule, ""))

    @precondition(lambda self: self.world.entries)
    @rule(data=st.data(), name=worker)
    def somebody_copies_an_entry(self, data: st.DataObject, name: str) -> None:
        """A duplicate of a live task's entry, met by whichever worker: absorbed, nothing else changes."""
        stream, entry_id, task_id, _ = data.draw(st.sampled_from(self.world.entries))
        fields = dict(self.bench.redis.xrange(stream, entry_id, entry_id)[0][1])
        copy = self.bench.redis.xadd(stream, fields)
        self.fetch(name, 500, False)
        assert self.bench.redis.xrange(stream, copy, copy) == [], f"the copy of {task_id} was not absorbed"

    @rule()
    def the_groups_are_lost(self) -> None:
        for band in BANDS:
            self.bench.redis.xgroup_destroy(self.bench.keys.stream("default", band), "workers")
        self.bench.fetch_call()

    @invariant()
    def everything_is_legal(self) -> None:
        self.world = world = snapshot(self.bench.redis)
        world.entries.sort()
        groups = {band: bool(self._groups(band)) for band in BANDS}
        discarded = {t for t in world.tasks if self.bench.record(t).get("discarded") == "1"}
        wrong = [line for line in misplaced(world) if not any(t in line for t in discarded)]
        if not all(groups.values()):  # without a group nothing is pending for anybody
            wrong = [line for line in wrong if "pending for ''" not in line]
        assert wrong == []
        counters = Counter(status for status, *_ in world.tasks.values())
        ledger = self.bench.counters()
        for status in LIVE:
            assert ledger.get(status, 0) == counters[status], f"{status}: ledger {ledger}, tasks {dict(counters)}"
        came = ledger.get("submitted", 0) + ledger.get("requeued", 0)
        assert came == sum(ledger.get(status, 0) for status in (*LIVE, *ENDED)), ledger
        assert self.bench.redis.llen(self.bench.keys.wake("default")) <= 1
        for task_id, (status, *_) in world.tasks.items():
            self._watch(task_id, status)

    def _groups(self, band: int) -> list[Any]:
        stream = self.bench.keys.stream("default", band)
        return list(self.bench.redis.xinfo_groups(stream)) if self.bench.redis.exists(stream) else []

    def _watch(self, task_id: str, status: str) -> None:
        """Ends are final, but for a dead letter that is put back; the fence never goes back."""
        before, fence = self.statuses.get(task_id, status), int(self.bench.record(task_id)["fence"])
        assert fence >= self.fences.get(task_id, 0)
        if before in ENDED and before != status:
            assert before == "dead_lettered" and status in LIVE, f"{task_id}: {before} → {status}"
        self.statuses[task_id], self.fences[task_id] = status, fence


@pytest.mark.contract("C1.05", "D2", "D3", "D5", "D19", "D20", "D29")
def test_any_sequence_keeps_the_world_legal(engine: Server, pytestconfig: pytest.Config) -> None:
    _server[:] = [engine]
    _reached.clear()
    nightly = pytestconfig.getoption("nightly")
    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=1000 if nightly else 80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
    ends = ("succeeded", "retrying", "dead_lettered", "LOST", "taken over", "release", "handback", "revive")
    assert all(_reached[end] for end in ends), _reached
