"""Any sequence of calls keeps the world legal: each task in the one place that fits its status, the ledger exact.

Seeded random walks of a producer, three workers that fall silent and wake up again, a leader, an administrator and time.
Half of all calls are sent twice, with one effect. After every step the whole world is looked at. A failure names its
seed and its last steps; `pytest -k "seed7"` walks the same way again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.bench import Bench
from support.engines import Server
from support.places import ENDED, LIVE, Snapshot, misplaced, snapshot

from dtq_core.store.transitions import Call, Delivery

WORKERS = ("worker-00000001", "worker-00000002", "worker-00000003")
BANDS = (9, 5, 0)
STEPS = 200
SETTLED = ("succeeded", "retrying", "dead_lettered", "cancelled")


class Walk:
    """One walk. Every step is a method; `step` picks one that can do something."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.rng = random.Random(seed)
        self.held: dict[str, list[Delivery]] = {name: [] for name in WORKERS}
        self.statuses: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.world = Snapshot({})
        self.trace: list[str] = []
        self.reached: Counter[str] = Counter()
        self.ids = 0
        bench.lead()

    def step(self) -> None:
        world, held = self.world, any(self.held.values())
        steps = {
            self.submit: 6,
            self.fetch: 6 * bool(world.entries),
            self.settle: 6 * held,
            self.fall_silent: 3 * held,
            self.restart: held,
            self.hand_back: held,
            self.touch: held,
            self.claim_and_release: 4 * bool(world.schedule),
            self.return_stale: 2 * bool(world.claimed),
            self.cancel: 2 * bool(world.tasks),
            self.redrive: 2 * bool(world.dead),
            self.time_passes: 2,
            self.pause_for_a_moment: bool(world.entries),
            self.copy_an_entry: bool(world.entries),
            self.purge: 0.2 * (len(world.entries) > 5),
            self.keep_house: 1,
            self.lose_the_groups: 0.5,
        }
        (chosen,) = self.rng.choices(list(steps), list(steps.values()))
        self.trace.append(chosen.__name__)
        chosen()
        self.look()

    # -- steps

    def submit(self) -> None:
        rng = self.rng
        self.ids += 1
        key, ttl = rng.choice([None, None, "a", "b"]), rng.choice([None, None, None, 5])
        submission = self.bench.submission(
            rng.choice(["echo", "echo", "echo", "strange"]),
            task_id=f"{self.ids:032x}",
            delay_seconds=rng.choice([0, 0, 0, 1, 100]),
            idempotency_key=key,
            metadata={"ttl_seconds": ttl} if ttl else {},
            priority=rng.choice(BANDS),
            max_attempts=rng.randint(1, 3),
        )
        (answer,) = self.send(self.bench.submit_call(submission))
        assert answer.code in (("OK", "IN_PROGRESS", "DUPLICATE") if key else ("OK",))
        self.reached[answer.code] += 1

    def fetch(self, capacity: int = 0) -> None:
        name, capacity = self.worker(), capacity or self.rng.randint(1, 4)
        reply = self.send(self.bench.fetch_call(name, capacity))
        assert not reply.problems
        assert len(reply.deliveries) <= capacity
        self.take(name, reply.deliveries)
        self.reached.update(ended.status for ended in reply.ended)

    def settle(self) -> None:
        """Late settlements included: what a worker holds may belong to somebody else by now."""
        name, status = self.holder(), self.rng.choice(SETTLED)
        batch = self.let_go(name, self.rng.randint(1, 3))
        expected = [self.expected_answer(d, status) for d in batch]
        answers = self.send(self.bench.calls.settle(name, [self.bench.settling(d, status) for d in batch]))
        assert answers == expected
        self.reached.update(answers)

    def fall_silent(self) -> None:
        """A worker is frozen with what it holds; a peer, or itself after a restart, takes over what is old enough."""
        name, by = self.holder(), self.worker()
        for delivery in self.held[name]:
            record = self.bench.record(delivery.task_id)
            if record["status"] == "running" and record["worker_id"] == name and self.has_group(delivery.band):
                self.bench.orphan(delivery)
        reply = self.send(self.bench.reclaim_call(by))
        assert not reply.problems
        self.reached["taken over"] += len(reply.deliveries)
        self.reached.update(ended.status for ended in reply.ended)
        self.take(by, reply.deliveries)

    def restart(self) -> None:
        """A worker forgets what it holds and adopts it again: all of it, and nothing else."""
        name = self.holder()
        mine = {
            (task_id, self.bench.record(task_id)["fence"])
            for _, _, task_id, owner in self.world.entries
            if owner == name and self.world.status(task_id) == "running"
        }
        found = self.bench.run(self.bench.calls.adopt(name, 500, ["default"])).deliveries
        assert {(d.task_id, d.fence) for d in found} == mine
        self.held[name] = found

    def hand_back(self) -> None:
        name = self.holder()
        self.send(self.bench.calls.hand_back(name, self.let_go(name, 2)))

    def touch(self) -> None:
        name = self.holder()
        answers = self.bench.run(self.bench.calls.touch(name, self.held[name]))
        for delivery, answer in zip(self.held[name], answers, strict=True):
            assert (answer == "LOST") == (self.expected_answer(delivery, "") in ("LOST", "ALREADY"))

    def claim_and_release(self) -> None:
        due = self.send(self.bench.calls.claim_due("leader"))
        assert due.leading
        if due.task_ids and self.rng.random() < 0.7:
            released = self.send(self.bench.calls.release(due.task_ids))
            assert not released.problems
            self.reached["released"] += released.released

    def return_stale(self) -> None:
        self.bench.now_ms += 61_000
        self.reached["returned"] += self.send(self.bench.calls.return_stale("leader", 60_000))

    def cancel(self) -> None:
        """Any task; those in hand as often as all the others."""
        in_hand = [d.task_id for deliveries in self.held.values() for d in deliveries]
        candidates = in_hand if in_hand and self.rng.random() < 0.5 else sorted(self.world.tasks)
        self.reached.update(self.send(self.bench.calls.cancel([self.rng.choice(candidates)])))

    def redrive(self) -> None:
        letter = self.bench.letter(self.rng.choice(self.world.dead))
        call = self.bench.calls.discard if self.rng.random() < 0.3 else self.bench.calls.revive
        assert self.send(call([letter], actor="", request_id="")) == ["OK"]

    def time_passes(self) -> None:
        self.bench.now_ms += self.rng.choice([10, 2_000, 10_000])

    def pause_for_a_moment(self) -> None:
        name = self.worker()
        self.send(self.bench.calls.pause("default", True, actor="", request_id=""))
        assert self.bench.run(self.bench.fetch_call(name)).deliveries == []
        assert self.bench.run(self.bench.reclaim_call(name)).deliveries == []
        self.send(self.bench.calls.pause("default", False, actor="", request_id=""))

    def copy_an_entry(self) -> None:
        """A duplicate of a live task's entry, met by whichever worker: absorbed, and nothing else changes."""
        stream, entry_id, task_id, _ = self.rng.choice(self.world.entries)
        fields = dict(self.bench.redis.xrange(stream, entry_id, entry_id)[0][1])
        copy = self.bench.redis.xadd(stream, fields)
        self.fetch(capacity=500)
        self.fetch(capacity=500)  # the first may stop at what the ledger knows of
        assert self.bench.redis.xrange(stream, copy, copy) == [], f"the copy of {task_id} was not absorbed"

    def purge(self) -> None:
        self.bench.run(self.bench.calls.purge_step("default", self.rng.choice(BANDS), "-", dry_run=False))

    def keep_house(self) -> None:
        self.bench.run(self.bench.calls.prune(["default"], [self.worker()], 0))
        self.bench.run(self.bench.calls.sweep_queue("default"))
        self.bench.run(self.bench.calls.renew(self.bench.keys.schedule, ""))

    def lose_the_groups(self) -> None:
        for band in BANDS:
            if self.has_group(band):
                self.bench.redis.xgroup_destroy(self.bench.keys.stream("default", band), "workers")

    # -- means

    def send(self, call: Call[Any]) -> Any:
        return self.bench.twice(call)[0] if self.rng.random() < 0.5 else self.bench.run(call)

    def worker(self) -> str:
        return self.rng.choice(WORKERS)

    def holder(self) -> str:
        return self.rng.choice([name for name in WORKERS if self.held[name]])

    def take(self, name: str, deliveries: list[Delivery]) -> None:
        """As a worker does: a start that it has in hand already is not taken twice."""
        known = {(d.task_id, d.fence) for d in self.held[name]}
        self.held[name] += [d for d in deliveries if (d.task_id, d.fence) not in known]

    def let_go(self, name: str, count: int) -> list[Delivery]:
        batch, self.held[name] = self.held[name][:count], self.held[name][count:]
        return batch

    def has_group(self, band: int) -> bool:
        stream = self.bench.keys.stream("default", band)
        return bool(self.bench.redis.exists(stream) and self.bench.redis.xinfo_groups(stream))

    def expected_answer(self, delivery: Delivery, status: str) -> str:
        """Only the holder of the fence writes; a cancel that was accepted beats everything."""
        record = self.bench.record(delivery.task_id)
        if record.get("fence") != delivery.fence:
            return "LOST"
        if record["status"] != "running":
            return "ALREADY"
        return "cancelled" if record.get("cancel_requested") == "1" else status

    # -- what must hold after every step

    def look(self) -> None:
        bench = self.bench
        bench.redis.pexpire(bench.keys.lock, 10_000)
        self.world = world = snapshot(bench.redis)
        discarded = {t for t in world.tasks if bench.record(t).get("discarded") == "1"}
        wrong = [line for line in misplaced(world) if not any(t in line for t in discarded)]
        if not all(map(self.has_group, BANDS)):  # without a group nothing is pending for anybody
            wrong = [line for line in wrong if "pending for ''" not in line]
        assert wrong == []
        counters = Counter(status for status, *_ in world.tasks.values())
        ledger = bench.counters()
        assert {status: ledger.get(status, 0) for status in LIVE} == {status: counters[status] for status in LIVE}
        came = ledger.get("submitted", 0) + ledger.get("requeued", 0)
        assert came == sum(ledger.get(status, 0) for status in (*LIVE, *ENDED)), ledger
        assert bench.redis.llen(bench.keys.wake("default")) <= 1
        for task_id, (status, *_) in world.tasks.items():
            self.watch(task_id, status)

    def watch(self, task_id: str, status: str) -> None:
        """Ends are final, but for a dead letter that is put back; the fence never goes back."""
        before, fence = self.statuses.get(task_id, status), int(self.bench.record(task_id)["fence"])
        assert fence >= self.fences.get(task_id, 0)
        if before in ENDED and before != status:
            assert before == "dead_lettered" and status in LIVE, f"{task_id}: {before} → {status}"
        self.statuses[task_id], self.fences[task_id] = status, fence


def walk(bench: Bench, seed: int) -> Counter[str]:
    way = Walk(bench, seed)
    for _ in range(STEPS):
        try:
            way.step()
        except BaseException as exc:
            exc.add_note(f"seed {seed}, after {len(way.trace)} steps: … {' '.join(way.trace[-12:])}")
            raise
    return way.reached


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        count = 200 if metafunc.config.getoption("nightly") else 12
        metafunc.parametrize("seed", range(count), ids=lambda seed: f"seed{seed}")


@pytest.fixture
def default_bench(engine: Server) -> Iterator[Bench]:
    bench = Bench(engine, visibility_timeout_s=30)
    yield bench
    bench.store.close()


@pytest.mark.contract("C1.24", "C1.25", "D2", "D3", "D5", "D19", "D20", "D29")
def test_any_sequence_keeps_the_world_legal(default_bench: Bench, seed: int) -> None:
    walk(default_bench, seed)


@pytest.mark.contract("D20")
def test_the_walks_come_to_everything(default_bench: Bench) -> None:
    """A walk that reaches nothing proves nothing: what four of them come to."""
    reached: Counter[str] = Counter()
    for seed in range(1000, 1004):
        default_bench.redis.flushall()
        reached += walk(default_bench, seed)
    for what in (
        *SETTLED, "LOST", "expired", "taken over", "released", "returned",
        "OK", "IN_PROGRESS", "DUPLICATE", "CANCELLED", "REQUESTED", "TERMINAL",
    ):  # fmt: skip
        assert reached[what], f"{what}: {reached}"
