"""The measurements of `dtq bench`: interleaved rounds of bare loop and DTQ, then single tasks on an idle worker."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtq_core import ledger
from dtq_core.client import Client
from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.events import Event
from dtq_core.periodic import raise_if_cancelled
from dtq_local.bench.bare import BareLoop
from dtq_local.bench.gauge import percentile
from dtq_local.bench.ground import Ground, Reading
from dtq_local.bench.hint import limit
from dtq_local.bench.tidy import tidied

ROUNDS = 3
PAYLOAD = {"data": "x" * 87}
"""100 bytes as compact JSON."""
TASK_TYPE = "bench.echo"
WARM_UP = 0.05
"""Share of a round's tasks that is done before the drain is timed: the worker has woken up by then."""
SINGLE_TIMEOUT_S = 10.0
_PAUSE_S = (0.005, 0.015)
_PINGS = 50


@dataclass(frozen=True)
class Wanted:
    """What to measure: tasks in all rounds together, of a worker with this concurrency."""

    tasks: int
    concurrency: int
    queue: str


@dataclass
class BenchReport:
    """Rates are tasks per second, medians of the rounds; a ratio is the quotient of the two beside it, and its spread the
    least and the greatest quotient of a single round. None: not told."""

    tasks: int
    concurrency: int
    rounds: int
    submit_per_s: float
    bare_submit_per_s: float
    submit_ratio: float
    submit_spread: tuple[float, float]
    drain_per_s: float
    bare_drain_per_s: float
    drain_ratio: float
    drain_spread: tuple[float, float]
    latency_ms: dict[str, dict[str, float]]
    """submit, start and end, each from before the submission: p50, p90, p99."""
    commands_per_task: float | None
    commands: dict[str, float]
    """The most frequent ones, per task; those that scripts call are among them."""
    round_trip_ms: float
    engine_cpu_percent: float | None
    worker_cpu_percent: float | None
    limit: str
    limited_by: str
    notes: list[str] = field(default_factory=list)


@dataclass
class _Round:
    submit_per_s: float
    bare_submit_per_s: float
    drain_per_s: float
    bare_drain_per_s: float
    start: Reading
    end: Reading


async def measure(settings: Settings, wanted: Wanted, progress: Callable[[int], None] | None = None) -> BenchReport:
    """Measure on the server of `settings`, under a prefix of its own, which is empty again when this returns or raises.

    What benchmarks that were killed have left is removed first. Raises LeftBehind where the server is gone in the midst,
    DtqError when it or the worker fails otherwise.
    """
    ground = Ground(settings, wanted.queue, wanted.concurrency, wanted.tasks)
    try:
        async with tidied(ground.store, settings.key_prefix):
            bench = _Bench(ground, wanted, progress)
            quiet = await bench.others_per_s()
            async with ground.worker():
                rounds = [await bench.round(number) for number in range(ROUNDS)]
                latency = await bench.singles()
            round_trip_ms = await bench.round_trip_ms()
    finally:
        await ground.store.close()
    return _report(wanted, rounds, latency, round_trip_ms, quiet)


class _Bench:
    def __init__(self, ground: Ground, wanted: Wanted, progress: Callable[[int], None] | None) -> None:
        self.ground = ground
        self.wanted = wanted
        self.client = Client(ground.store, ground.settings)
        self.bare = BareLoop(ground.store)
        self.done = 0
        self._progress = progress or (lambda number: None)

    async def others_per_s(self) -> float | None:
        """Commands that others send meanwhile: their part of the count is taken off."""
        start = await self.ground.read()
        await asyncio.sleep(0.5)
        end = await self.ground.read()
        if start.commands is None or end.commands is None:
            return None
        return max(0.0, (end.commands - start.commands).total() - 2) / (end.at_s - start.at_s)

    async def round(self, number: int) -> _Round:
        """Both sides, next to each other; they take turns in going first."""
        raise_if_cancelled()
        share = self.wanted.tasks // ROUNDS
        if number % 2:
            own = await self._dtq(share)
            bare = await self._bare(share)
        else:
            bare = await self._bare(share)
            own = await self._dtq(share)
        (submit, drain, start, end), (bare_submit, bare_drain) = own, bare
        return _Round(submit, bare_submit, drain, bare_drain, start, end)

    async def singles(self) -> dict[str, list[float]]:
        """Single tasks on an idle worker, one after the other: ms from before the submission, as this process sees it."""
        count = min(200, max(20, self.wanted.tasks // 15))
        heard: dict[tuple[str, str], float] = {}
        news, ready = asyncio.Event(), asyncio.Event()
        listener = asyncio.create_task(self._listen(heard, news, ready))
        found: dict[str, list[float]] = {"submit": [], "start": [], "end": []}
        try:
            async with asyncio.timeout(SINGLE_TIMEOUT_S):
                await ready.wait()
            for _ in range(count + 1):  # the first one only warms up
                raise_if_cancelled()
                await asyncio.sleep(random.uniform(*_PAUSE_S))
                began = time.perf_counter()
                task_id = (await self.client.submit(self._task())).task_id
                found["submit"].append((time.perf_counter() - began) * 1000)
                for name, event in (("start", "TASK_STARTED"), ("end", "TASK_SUCCEEDED")):
                    found[name].append((await _moment(heard, news, (event, task_id)) - began) * 1000)
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, DtqError):
                await listener
        return {name: values[1:] for name, values in found.items()}

    async def round_trip_ms(self) -> float:
        times = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            await self.ground.store.send(("PING",))
            times.append((time.perf_counter() - began) * 1000)
        return statistics.median(times)

    async def _dtq(self, count: int) -> tuple[float, float, Reading, Reading]:
        """Submit to a paused queue, let it go, and time the drain between its first tasks and its last."""
        await self.client.pause(self.wanted.queue)
        before = self.done
        submit = await _rate(count, lambda: self._submit_many(count))
        await self.client.resume(self.wanted.queue)
        await self.ground.until(self._succeeded, before + max(1, round(count * WARM_UP)))
        start = await self.ground.read()
        await self.ground.until(self._succeeded, before + count)
        end = await self.ground.read()
        return submit, (end.done - start.done) / (end.at_s - start.at_s), start, end

    async def _bare(self, count: int) -> tuple[float, float]:
        await self.bare.prepare()
        submit = await _rate(count, lambda: self.bare.submit(PAYLOAD, count))
        return submit, await _rate(count, lambda: self.bare.drain(self.wanted.concurrency))

    async def _submit_many(self, count: int) -> None:
        for start in range(0, count, 1000):
            raise_if_cancelled()
            for answer in await self.client.submit_many([self._task()] * min(1000, count - start)):
                if isinstance(answer, DtqError):
                    raise answer

    async def _succeeded(self) -> int:
        self.done = (await ledger.read(self.ground.store, self.wanted.queue))["succeeded"]
        self._progress(self.done)
        return self.done

    async def _listen(self, heard: dict[tuple[str, str], float], news: asyncio.Event, ready: asyncio.Event) -> None:
        async for message in self.ground.store.subscribe(self.ground.store.keys.events, ready.set):
            event = Event.parse(message)
            heard[event.type, event.task_id or ""] = time.perf_counter()
            news.set()

    def _task(self) -> dict[str, Any]:
        return {"task_type": TASK_TYPE, "queue": self.wanted.queue, "payload": PAYLOAD}


async def _moment(heard: dict[tuple[str, str], float], news: asyncio.Event, what: tuple[str, str]) -> float:
    try:
        async with asyncio.timeout(SINGLE_TIMEOUT_S):
            while what not in heard:
                news.clear()
                await news.wait()
    except TimeoutError:
        raise DtqError(f"no {what[0]} was heard for a single task within {SINGLE_TIMEOUT_S:.0f} s") from None
    return heard[what]


async def _rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return count / (time.perf_counter() - began)


def _report(
    wanted: Wanted,
    rounds: Sequence[_Round],
    latency: dict[str, list[float]],
    round_trip_ms: float,
    others_per_s: float | None,
) -> BenchReport:
    def median(value: Callable[[_Round], float]) -> float:
        return statistics.median(value(r) for r in rounds)

    submit, bare_submit = median(lambda r: r.submit_per_s), median(lambda r: r.bare_submit_per_s)
    drain, bare_drain = median(lambda r: r.drain_per_s), median(lambda r: r.bare_drain_per_s)
    engine = _percent(rounds, lambda reading: reading.engine_cpu_s)
    worker = _percent(rounds, lambda reading: reading.worker_cpu_s)
    commands, notes = _commands(rounds, others_per_s)
    code, sentence = limit(engine, worker, round_trip_ms, wanted.concurrency)
    return BenchReport(
        tasks=wanted.tasks,
        concurrency=wanted.concurrency,
        rounds=len(rounds),
        submit_per_s=submit,
        bare_submit_per_s=bare_submit,
        submit_ratio=submit / bare_submit,
        submit_spread=_spread([r.submit_per_s / r.bare_submit_per_s for r in rounds]),
        drain_per_s=drain,
        bare_drain_per_s=bare_drain,
        drain_ratio=drain / bare_drain,
        drain_spread=_spread([r.drain_per_s / r.bare_drain_per_s for r in rounds]),
        latency_ms={name: {f"p{p}": percentile(ms, p) for p in (50, 90, 99)} for name, ms in latency.items()},
        commands_per_task=None if commands is None else sum(commands.values()),
        commands=dict(Counter(commands or {}).most_common(8)),
        round_trip_ms=round_trip_ms,
        engine_cpu_percent=engine,
        worker_cpu_percent=worker,
        limit=code,
        limited_by=sentence,
        notes=notes,
    )


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _percent(rounds: Sequence[_Round], of: Callable[[Reading], float | None]) -> float | None:
    """Share of the time of all drains, in percent of one core."""
    spans = [(of(r.start), of(r.end)) for r in rounds]
    if any(start is None or end is None for start, end in spans):
        return None
    used = sum((end or 0.0) - (start or 0.0) for start, end in spans)
    return 100 * used / sum(r.end.at_s - r.start.at_s for r in rounds)


def _commands(rounds: Sequence[_Round], others_per_s: float | None) -> tuple[dict[str, float] | None, list[str]]:
    """Commands per task by name, without the observer's own, which are the looks at the ledger and at INFO."""
    if others_per_s is None or any(r.start.commands is None or r.end.commands is None for r in rounds):
        return None, ["commands per task: not measured, because INFO is refused"]
    counted: Counter[str] = Counter()
    for r in rounds:
        counted += (r.end.commands or Counter()) - (r.start.commands or Counter())
    own = Counter({name: counted[name] for name in ("info", "hgetall")})
    done = sum(r.end.done - r.start.done for r in rounds)
    found = {name: n / done for name, n in (counted - own).items()}
    notes = []
    if others_per_s > 20:
        notes.append(f"others send about {others_per_s:.0f} commands a second to this server; they are counted too")
    return found, notes
