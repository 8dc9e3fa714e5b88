"""The worker: puts the parts together, runs them under one roof, and drains on SIGTERM.

    starting → ready ⇄ busy → draining → stopped

A loop that fails goes on with a back-off; nothing here ends by itself, so a worker is never half alive.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any
from uuid import uuid4

from dtq_core import log, tracing
from dtq_core.config import Settings
from dtq_core.counted import CountedStore
from dtq_core.doctor import rights
from dtq_core.errors import DtqError, HookFailed, InvalidConfig, StoreError
from dtq_core.periodic import every, raise_if_cancelled, supervised
from dtq_core.probes import Loops, Troubles
from dtq_core.readiness import queues_without_group
from dtq_core.retry import describe
from dtq_core.store import Store, SyncStore
from dtq_core.store.transitions import Ended
from dtq_core.task import QUEUE_NAME
from dtq_scheduler.scheduler import Scheduler
from dtq_tasks import registry as handlers
from dtq_tasks.registry import Hook, Registry
from dtq_worker import report
from dtq_worker.children import task_factory
from dtq_worker.executor import Executor
from dtq_worker.inflight import InFlight, Stop
from dtq_worker.lease import LeaseKeeper, row_ttl_s
from dtq_worker.poller import LANES, Poller
from dtq_worker.reaper import Reaper
from dtq_worker.settler import Pending, Settler
from dtq_worker.telemetry import Telemetry

logger = logging.getLogger("dtq.worker")

EXIT_NOW = 1
LAST_WORD_S = 0.5
"""How long a signal that ends the process waits for the event loop to say so first."""
_SCRIPTS = ("ensure_groups", "register", "fetch", "adopt", "settle", "touch", "handback", "reclaim", "stale")
"""What a worker cannot do without."""
_FOR_COMFORT = ("PUBLISH", "SUBSCRIBE")
"""Without events and nudges tasks run as well."""
NUDGES_AGAIN_S = 600.0
HOOK_S = 5.0
"""How long a shutdown function may take."""


class Worker:
    """One worker on one event loop. `run` returns when it has drained."""

    def __init__(self, settings: Settings, queues: Sequence[str], store: Store, registry: Registry) -> None:
        self.settings = settings
        self.queues = list(dict.fromkeys(queues)) or ["default"]
        self.store = store
        self.registry = registry
        self.worker_id = settings.worker_id or new_worker_id()
        self.stop_asked = asyncio.Event()
        self.registered = False
        """Whether anybody has heard of us; before that there is nothing to drain."""
        self.stop_signalled: float | None = None
        self.inflight = InFlight(settings.worker_concurrency)
        self.telemetry = Telemetry(settings, registry.handlers)
        self.loops = Loops(settings.visibility_timeout_s)
        self.status: Callable[[], str] = lambda: "starting"
        store.counted = self.telemetry.redis
        self.settler = Settler(self.inflight, self._settled)
        self.scheduler = Scheduler(store, settings, self.telemetry.ended)
        self._leases = SyncStore.connect(
            settings, reply_timeout_s=min(5.0, max(0.5, settings.visibility_timeout_s / 2))
        )

    async def run(self) -> int:
        """Work until `stop_asked`, then drain. Returns the exit status."""
        state = SimpleNamespace()
        await self._start_up(state)
        await self._register()
        self.registered = True
        log.set_worker_id(self.worker_id)
        self.telemetry.serve(self.worker_id, lambda: self.inflight.active, self.loops.troubles, self._not_ready)
        loop = asyncio.get_running_loop()
        executor = Executor(
            self.settings, self.worker_id, self.registry, self.inflight, self.settler, self.telemetry.started
        )
        poller = Poller(self.store, self.worker_id, self.queues, self.inflight, self.settler, executor, self._ended)
        reaper = Reaper(self.store, self.worker_id, self.queues, self.inflight, poller)
        keeper = LeaseKeeper(self._leases, self.worker_id, self.queues, executor, self.settler.counters, loop)
        executor.state = state
        logger.info(
            "started: queues %s, concurrency %d, task types %s",
            ", ".join(self.queues), self.inflight.concurrency, ", ".join(sorted(self.registry.handlers)),
        )  # fmt: skip
        executor.tick.stop_signalled = lambda: self.stop_signalled
        keeper.started_ms = self._started_ms
        keeper.status = "ready"
        self.status = lambda: keeper.status
        keeper.start()
        schedule = self.loops.watch("scheduler", self.scheduler.step, lambda: not self._in_time())
        work = [
            *(supervised(f"lane {name}", partial(poller.serve, name)) for name in LANES),
            supervised("wait", poller.wait),
            supervised("nudges", lambda: self._nudges(keeper)),
            every("reaper", reaper.step, reaper.interval_s),
            every("scheduler", schedule, self.scheduler.interval_s),
        ]
        watch = loop.create_task(supervised("watch", executor.watch))
        self.loops.add("watch", watch.done)
        loops = [loop.create_task(step) for step in work]
        names = (*(f"lane {name}" for name in LANES), "wait", "nudges", "reaper", "scheduler")
        for name, task in zip(names, loops, strict=True):
            self.loops.add(name, task.done)
        self.loops.add("leases", lambda: not keeper.is_alive())
        self.loops.expect("fetching", lambda: poller.turned_at, self._wants_work)
        try:
            await self.stop_asked.wait()
            await self._drain(keeper, poller, executor, scheduling=loops[-1])
        finally:
            for task in loops:
                task.cancel()
            await asyncio.wait(loops, timeout=2.0)
            await self._shut_down(state)
            watch.cancel()  # not before: it shows that the loop turns, which a shutdown function may keep from it
            await asyncio.wait([watch], timeout=2.0)
            self.telemetry.close()
            keeper.stop()
            await asyncio.to_thread(keeper.join, 2.0)
            await self._sign_off()
        return 0

    async def _drain(
        self, keeper: LeaseKeeper, poller: Poller, executor: Executor, scheduling: asyncio.Task[None]
    ) -> None:
        """Stop taking work at once, let what runs go on for the drain time; leases are kept all the while."""
        deadline = time.monotonic() + self.settings.drain_timeout_s
        poller.draining = True
        self.loops.stopping = True
        keeper.status = "draining"
        keeper.nudge()
        # First the scheduler has really ended: a step under way would take the lock again behind our back.
        scheduling.cancel()
        await asyncio.wait([scheduling], timeout=2.0)
        await self._quietly(self.scheduler.release_lock())
        logger.info("draining: %d tasks in hand, at most %.0f s", len(self.inflight), self.settings.drain_timeout_s)
        await self._quietly(self._mark("draining"))
        self.inflight.changed.set()
        while time.monotonic() < deadline or not self.inflight.runs():
            if not self.inflight.runs() and (poller.quiet or time.monotonic() > deadline + 2):
                return
            await asyncio.sleep(0.02)
        left = len(self.inflight)
        logger.warning("the drain time is up: %d tasks are left to other workers", left)
        executor.stop_all(Stop.DRAIN)
        if ending := [run.task for run in self.inflight.runs() if run.task]:
            await asyncio.wait(ending, timeout=1.0)

    async def _register(self) -> None:
        """Take our id. A fixed one that is in use, or whose last life left work behind, gets a unique part (BQ-62)."""
        for queue in self.queues:
            if not QUEUE_NAME.fullmatch(queue):
                raise InvalidConfig(f"queue {queue!r}: lower-case letters, digits, '_' and '-', 1 to 64")
        await self._check_rights()
        made = await self.store.run(self.store.calls.ensure_groups(self.queues))
        if 0 in made:
            raise InvalidConfig(f"DTQ_MAX_QUEUES: there are {self.settings.max_queues} queues already")
        wanted = self.worker_id
        for _ in range(5):
            (now,) = await self.store.send(("TIME",))
            self._started_ms = int(now[0]) * 1000 + int(now[1]) // 1000
            row = {
                "worker_id": self.worker_id,
                "status": "starting",
                "started_at": str(self._started_ms),
                "last_heartbeat": str(self._started_ms),
                "interval_ms": str(round(self.settings.heartbeat_interval_s * 1000)),
                "queues": ",".join(self.queues),
            }
            if await self.store.run(self.store.calls.register(self._row_ttl_s, self.queues, row)):
                if self.worker_id != wanted:
                    logger.warning("worker id %s is in use or left work behind; this is %s", wanted, self.worker_id)
                return
            self.worker_id = f"{wanted}-{uuid4().hex[:4]}" if self.settings.worker_id else new_worker_id()
        raise InvalidConfig(f"DTQ_WORKER_ID: {wanted} is in use")

    async def _check_rights(self) -> None:
        """Raises InvalidConfig where the Redis user may not do what running tasks takes: better no worker than half of one."""
        commands = sorted({*rights.used_in_scripts(*_SCRIPTS), "EVALSHA", *_FOR_COMFORT})
        question = rights.question(self.store.keys, commands)
        (answer,) = await self.store.send(("EVAL", rights.PROBE, 0, question))
        if isinstance(answer, Exception):
            if "NOPERM" in str(answer) or "permission" in str(answer):
                raise InvalidConfig(
                    "DTQ_REDIS_URL: its user may not run scripts (EVAL, EVALSHA); `dtq doctor` shows what is missing"
                )
            return  # not a matter of rights: the next script says what it is
        lacking = rights.missing(self.store.keys, commands, answer)
        if missing := [
            *(name.replace("|", " ").lower() for name in lacking.commands if name not in _FOR_COMFORT),
            *lacking.keys,
        ]:
            raise InvalidConfig(
                f"DTQ_REDIS_URL: its user lacks rights: {', '.join(missing)}; `dtq doctor` shows the line that grants them"
            )

    async def _nudges(self, keeper: LeaseKeeper) -> None:
        """Listen on our own channel; a nudge makes the lease thread look at the tasks now instead of at the next beat."""
        try:
            async for _ in self.store.subscribe(self.store.keys.nudge(self.worker_id)):
                keeper.nudge()
        except StoreError as exc:
            logger.warning("cancels are seen with the next heartbeat only, since nudges cannot be heard: %s", exc)
            await asyncio.sleep(NUDGES_AGAIN_S)

    def _in_time(self) -> bool:
        """Whether a handler runs that may still hold up the event loop; see LoopTick for one that may not."""
        now = time.monotonic()
        return any(run.deadline > now for run in self.inflight.runs())

    def _wants_work(self) -> bool:
        return self.inflight.active < self.inflight.concurrency and not self._in_time()

    async def _not_ready(self) -> Troubles:
        """What keeps this worker from taking tasks. Raises DtqError when Redis does not answer."""
        status = self.status()
        if status != "ready":
            return {"worker": f"is {status}"}
        missing = await queues_without_group(self.store, self.queues)
        return {"groups": f"missing on {', '.join(missing)}"} if missing else {}

    def _settled(self, pending: Pending, status: str) -> None:
        report.settled(pending, status)
        self.telemetry.settled(pending, status)

    def _ended(self, task: Ended) -> None:
        report.ended(task)
        self.telemetry.ended(task)

    async def _start_up(self, state: SimpleNamespace) -> None:
        """The authors' start-up functions, before anybody hears of this worker. Raises HookFailed."""
        for hook in self.registry.startup:
            try:
                await _call(hook, state)
            except (Exception, SystemExit, asyncio.CancelledError) as exc:
                raise_if_cancelled()
                logger.exception("the start-up function %s failed", _name_of(hook))
                kind, text = describe(exc)
                raise HookFailed(f"the start-up function {_name_of(hook)} failed: {kind}: {text}") from None

    async def _shut_down(self, state: SimpleNamespace) -> None:
        for hook in reversed(self.registry.shutdown):
            try:
                async with asyncio.timeout(HOOK_S):
                    await _call(hook, state)
            except (Exception, SystemExit, asyncio.CancelledError):
                raise_if_cancelled()
                logger.exception("the shutdown function %s failed", _name_of(hook))

    @property
    def _row_ttl_s(self) -> int:
        return row_ttl_s(self.settings.heartbeat_interval_s)

    async def _mark(self, status: str) -> None:
        """Say in Redis what we are doing. From `draining` on no fetch starts anything for us, even one under way."""
        row = {"worker_id": self.worker_id, "status": status}
        await self.store.run(self.store.calls.beat(self._row_ttl_s, row, born_ms=self._started_ms))

    async def _sign_off(self) -> None:
        left = len(self.inflight)
        await self._quietly(self._mark("stopped"))
        await self._quietly(self.store.run(self.store.calls.sign_off(self.worker_id, self.queues)))
        self._leases.close()
        logger.info("stopped%s", f", {left} tasks left" if left else "")

    async def _quietly(self, step: Awaitable[Any]) -> None:
        """Do it if Redis lets us; a drain never hangs on it, and whatever it meets never ends a drain."""
        try:
            async with asyncio.timeout(2.0):
                await step
        except (Exception, asyncio.CancelledError) as exc:
            raise_if_cancelled()
            known = isinstance(exc, (DtqError, TimeoutError))
            logger.warning("while stopping: %s: %s", *describe(exc), exc_info=None if known else exc)


async def _call(hook: Hook, state: SimpleNamespace) -> None:
    done = hook(state)
    if inspect.isawaitable(done):
        await done


def _name_of(hook: Hook) -> str:
    return f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', hook)}"


def new_worker_id() -> str:
    """worker- and eight random hex digits (§6)."""
    return f"worker-{uuid4().hex[:8]}"


def run(settings: Settings, queues: Sequence[str] = ("default",)) -> int:
    """A worker process, to its end: loads the handler modules, works, drains on SIGTERM or SIGINT. Returns the exit code.

    Raises InvalidConfig, ImportError of a handler module, RedisUnavailable when Redis cannot be reached at start.
    A second signal exits at once and acknowledges nothing.
    """
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: os._exit(0))  # nobody has heard of us yet
    registry = handlers.load(settings.task_modules)
    tracing.configure("worker")
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    status = EXIT_NOW
    try:
        status = loop.run_until_complete(_main(settings, queues, registry))
        return status
    except (SystemExit, KeyboardInterrupt) as exc:
        # Not a signal, which is heard elsewhere: a callback on the loop that nobody guards.
        logger.error(
            "%s was raised on the event loop, outside of any task: leaving, nothing is acknowledged", type(exc).__name__
        )
        return EXIT_NOW
    finally:
        _close(loop, status)


async def _main(settings: Settings, queues: Sequence[str], registry: Registry) -> int:
    loop = asyncio.get_running_loop()
    log.capture_loop_errors(loop)
    loop.set_task_factory(task_factory)
    for note in settings.warnings():
        logger.warning("%s", note)
    store = CountedStore.connect(settings)
    worker = Worker(settings, queues, store, registry)

    def asked() -> None:
        if not worker.registered:
            logger.info("stopped before any work was taken")
            logging.shutdown()
            os._exit(0)
        if worker.stop_asked.is_set():
            logger.warning("second signal: leaving now, nothing is acknowledged")
            logging.shutdown()
            os._exit(EXIT_NOW)
        worker.stop_asked.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _listener(worker, loop, asked))
    try:
        return await worker.run()
    finally:
        await store.close()


def _listener(
    worker: Worker, loop: asyncio.AbstractEventLoop, asked: Callable[[], None]
) -> Callable[[int, FrameType | None], None]:
    """A signal handler that hands `asked` to the event loop, and does without it where a coroutine blocks it.

    It runs between two byte codes of the main thread, which may hold any lock: so it logs nothing and waits for nothing.
    """
    heard, ours = 0, os.getpid()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        nonlocal heard
        if os.getpid() != ours:  # a handler forked: its child ends as any process does, and the worker hears nothing
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        heard += 1
        worker.stop_signalled = worker.stop_signalled or time.monotonic()
        loop.call_soon_threadsafe(asked)
        if heard > 1 or not worker.registered:
            last_word = threading.Timer(LAST_WORD_S, os._exit, (EXIT_NOW if worker.registered else 0,))
            last_word.daemon = True
            last_word.start()

    return on_signal


def _close(loop: asyncio.AbstractEventLoop, status: int) -> None:
    """End the loop. A handler that ignores its cancellation cannot keep the process: its task is not ours any more."""
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        _, stubborn = loop.run_until_complete(asyncio.wait(left, timeout=0.5))
        if stubborn:
            logger.warning("%d tasks ignore their cancellation and end with the process", len(stubborn))
            logging.shutdown()
            os._exit(status)
    loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
