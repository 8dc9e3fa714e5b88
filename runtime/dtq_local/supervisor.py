"""`dtq up`: engine, API, scheduler and workers as one thing on this machine, with one log and one way to stop.

One loop over one queue of events: a process ended, the engine came up, a source file changed, a signal arrived, a restart
is due. Threads only report; every decision is made here. The invariants: one supervisor per state directory; a child that
ends is started again, with back-off, and the log says so; on the first signal workers finish what they run, then the
scheduler stops, then the engine, so that nothing writes to an engine that is gone; on the second signal all are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from dtq_core.config import load_settings
from dtq_core.text import redact
from dtq_local import banner, modules, wiping
from dtq_local.child import Child, Exited, how_it_ended
from dtq_local.console import Console, wants_colour
from dtq_local.engine import Engine
from dtq_local.enginelife import NEVER, START_S, EngineEvent, EngineLife
from dtq_local.family import Family
from dtq_local.logfile import LogFile
from dtq_local.options import UpOptions
from dtq_local.readiness import NotReady, Readiness, Ready
from dtq_local.signals import Signalled, as_events
from dtq_local.sources import Changed, Sources
from dtq_local.state import UpRecord

DRAIN_GRACE_S = 10.0
"""Beyond DTQ_DRAIN_TIMEOUT_S, before a worker that does not end is killed."""
SCHEDULER_STOP_S = 10.0
ME = "dtq"


class Supervisor:
    """Runs until a signal. Made once per process, on the main thread, which signals need."""

    def __init__(self, options: UpOptions) -> None:
        self._options = options
        self._settings = options.settings
        self._url = options.settings.redis_url.get_secret_value()
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop_signals: list[int] = []
        self._signalled_already = False
        """A signal waits among the events; nothing more is started before it is handled."""
        self._forced = False
        self._restarts: dict[Child, float] = {}
        self._renewing: dict[Child, float] = {}
        """Children that end because their code has changed, and when they are killed if they do not."""
        self._held = options.reload
        """Whether nothing that imports the task modules is started, because they cannot be imported."""
        names = ["scheduler", "api", *(f"worker-{n}" for n in range(1, options.workers + 1))]
        stream = sys.stderr if options.as_json else sys.stdout
        self._console = Console(stream, [ME, *names], colour=wants_colour(stream))
        self._family = Family(self._settings, options.workers, options.queues, self._child)
        self._engine: EngineLife | None = None
        if options.own_engine:
            engine = Engine(options.state.engine_dir, port=options.engine_port)
            self._engine = EngineLife(engine, self._events.put, self._say)
        self._sources = Sources(self._settings.task_modules, self._events.put) if options.reload else None
        self._readiness: Readiness | None = None
        self._record: UpRecord | None = None
        self._announced = False

    def run(self) -> int:
        """Everything up, until a signal, then down again. 0 after an orderly stop, 1 when something had to be killed,
        128 + the signal when a second one cut the stop short.

        Raises AlreadyRunning, EngineMissing, RedisUnavailable, InvalidArgument before anything was left running.
        """
        with as_events(self._hear):
            try:
                with self._options.state.locked():
                    self._live()
            finally:
                self._console.close()
        if len(self._stop_signals) > 1:
            return 128 + self._stop_signals[1]
        return 1 if self._forced else 0

    def _live(self) -> None:
        try:
            if self._start():
                self._until(self._is_over)
                self._raise_engine_error()
        finally:
            self._shut_down()

    # -- up

    def _start(self) -> bool:
        """False when a signal came before everything was started."""
        modules.check(self._settings.task_modules)
        if self._options.fresh:
            wiping.wipe(self._options.state)
        self._keep_log()
        if self._engine is not None and not self._start_engine(self._engine):
            return False
        self._family.find_ports(self._say)
        self._record = UpRecord(
            pid=os.getpid(),
            url=self._url,
            state_dir=str(self._options.state.path),
            own_engine=self._engine is not None,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            names=self._family.names,
            queues=self._options.queues,
            task_modules=self._settings.task_modules,
            concurrency=self._settings.worker_concurrency,
            reload=self._options.reload,
            api=self._family.api_url,
            api_key=bool(self._settings.api_key.get_secret_value()),
            stop_s=self._settings.drain_timeout_s + DRAIN_GRACE_S + 2 * SCHEDULER_STOP_S + 10,
        )
        self._start_children(child for child in self._family.all if not self._is_held(child))
        if self._signalled_already:
            self._until(self._is_over)
            return False
        if self._sources is not None:
            self._sources.start()
        self._publish()
        settings = load_settings(**{**dict(self._settings), "redis_url": self._url})
        self._readiness = Readiness(settings, self._family, self._events.put)
        self._readiness.start()
        return True

    def _start_engine(self, life: EngineLife) -> bool:
        last = life.engine.last_port
        life.begin()
        self._until(lambda: life.was_up or self._is_over())
        self._raise_engine_error()
        if self._stop_signals:
            return False
        self._url = life.engine.url
        if last and life.engine.port != last and not self._options.engine_port:
            self._say(f"port {last} of last time is taken: the engine listens on {life.engine.port}")
        if os.environ.get("DTQ_REDIS_URL") not in (None, "", self._url):
            self._say("DTQ_REDIS_URL is not used: dtq up starts its own engine (dtq up --redis takes that server)")
        return True

    def _keep_log(self) -> None:
        """From now on in the state directory too. Without room there, the terminal has to do."""
        try:
            self._console.keep(LogFile(self._options.state.log_file))
        except OSError as exc:
            self._say(f"the log is not kept: {self._options.state.log_file.name}: {exc.strerror}")

    def _child(self, name: str, argv: Sequence[str]) -> Child:
        return Child(name, argv, self._console, self._events)

    def _hear(self, event: Signalled) -> None:
        """In a signal handler."""
        self._signalled_already = True
        self._events.put(event)

    def _start_children(self, children: Iterable[Child]) -> None:
        """One after the other, which takes a while when there are many: a signal to stop ends it."""
        for child in children:
            if self._signalled_already:
                return
            self._start_child(child)

    def _start_child(self, child: Child) -> None:
        if child is self._family.api:
            self._family.keep_api_port(self._say)
        try:
            child.start(self._family.environment(child.name, self._url, reload=self._options.reload))
        except OSError as exc:
            delay = child.next_delay_s()
            self._say(f"{child.name} cannot be started ({exc.strerror}); next try in {delay:g} s")
            self._restarts[child] = time.monotonic() + delay

    def _publish(self) -> None:
        """Renew up.json. A disk that is full must not stop the work."""
        if self._record is None:
            return
        engine = None
        if self._engine is not None and self._engine.engine.alive:
            own = self._engine.engine
            engine = {"pid": own.pid, "port": own.port, "version": own.version}
        self._record = replace(self._record, processes=self._family.pids(), engine=engine, api=self._family.api_url)
        try:
            self._options.state.write(self._record)
        except OSError as exc:
            self._say(f"up.json cannot be written ({exc.strerror}): other commands need DTQ_REDIS_URL")

    def _announce(self, missing: tuple[str, ...]) -> None:
        """Say once what runs, and what of it does not yet."""
        record = self._record
        assert record is not None
        if self._options.as_json:
            with contextlib.suppress(OSError, ValueError):
                print(json.dumps({**asdict(record), "url": redact(record.url)}), flush=True)
            return
        self._console.raw(banner.render(record, self._options.state.shown, banner.how_to_call(), missing))

    # -- the loop

    def _until(self, condition: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
        """Handle events until `condition` holds; False when `timeout_s` passed first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            now = time.monotonic()
            if now >= deadline:
                return False
            self._do_what_is_due(now)
            due = self._engine.due if self._engine is not None else float("inf")
            wake = min([deadline, due, *self._restarts.values(), *self._renewing.values()])
            try:
                wait = None if wake == float("inf") else max(0.0, wake - time.monotonic())
                self._handle(self._events.get(timeout=wait))
            except queue.Empty:
                continue
        return True

    def _do_what_is_due(self, now: float) -> None:
        if due_now := [c for c, due in self._restarts.items() if due <= now]:
            for child in due_now:
                del self._restarts[child]
            self._start_children(due_now)
            self._publish()
        for child in [c for c, due in self._renewing.items() if due <= now]:
            self._renewing[child] = float("inf")
            self._say(f"{child.name} does not end and is killed; its tasks are taken over")
            child.kill()
        if self._engine is not None and self._engine.due <= now:
            self._engine.start()

    def _handle(self, event: object) -> None:
        match event:
            case Exited(child, _, code):
                child.ended()
                if not self._stop_signals:
                    self._child_ended(child, code)
                self._publish()
            case EngineEvent() if self._engine is not None:
                self._engine.handle(event, stopping=bool(self._stop_signals))
                self._publish()
            case Changed(names, error) if not self._stop_signals:
                self._sources_changed(names, error)
            case Ready() | NotReady() if not self._stop_signals:
                self._readiness_changed(event)
            case Signalled(signum):
                self._signalled(signum)

    def _child_ended(self, child: Child, code: int) -> None:
        renewed = self._renewing.pop(child, None) is not None
        if self._is_held(child):
            self._say(f"{child.name} {how_it_ended(code)}; it is started again when the task modules can be imported")
        elif renewed:
            self._start_child(child)
        else:
            delay = child.next_delay_s()
            self._say(f"{child.name} {how_it_ended(code)}; it is started again in {delay:g} s")
            self._restarts[child] = time.monotonic() + delay

    def _is_held(self, child: Child) -> bool:
        return self._held and child in self._family.loaders

    def _sources_changed(self, names: tuple[str, ...], error: str) -> None:
        """New code: who runs the old one finishes what it runs. Broken code: who runs stays as it is."""
        self._held = bool(error)
        running = [child for child in self._family.loaders if child.pid is not None]
        if error:
            for child in self._family.loaders:
                self._restarts.pop(child, None)
            self._say(error)
            staying = any(child not in self._renewing for child in running)
            self._say(
                "what runs goes on with the code from before, until that is mended"
                if staying else "no worker is started until that is mended"
            )  # fmt: skip
            return
        if names:
            what = "workers finish what they run and start again with it" if running else "workers start"
            self._say(f"{', '.join(names[:5])} changed: {what}")
        for child in running:
            if child not in self._renewing:
                self._renewing[child] = time.monotonic() + self._settings.drain_timeout_s + DRAIN_GRACE_S
                child.terminate()
        waiting = [child for child in self._family.loaders if child.pid is None]
        for child in waiting:
            self._restarts.pop(child, None)
        self._start_children(waiting)
        self._publish()

    def _readiness_changed(self, event: Ready | NotReady) -> None:
        assert self._record is not None
        if isinstance(event, NotReady) and not event.final:
            self._say(f"waiting for {', '.join(event.missing)}")
            return
        announced = self._announced
        self._announced = True
        ready = isinstance(event, Ready)
        self._record = replace(self._record, ready=ready)
        self._publish()
        if announced:
            self._say("everything runs now")
        else:
            self._announce(event.missing if isinstance(event, NotReady) else ())

    def _is_over(self) -> bool:
        return bool(self._stop_signals) or (self._engine is not None and self._engine.error is not None)

    def _raise_engine_error(self) -> None:
        if self._engine is not None and self._engine.error is not None:
            raise self._engine.error

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGHUP and self._stop_signals:  # the terminal was closed while we stop: that is no haste
            return
        self._stop_signals.append(signum)
        if len(self._stop_signals) == 1:
            if any(worker.pid is not None for worker in self._family.workers):
                limit = self._settings.drain_timeout_s
                self._say(f"stopping: workers finish what they run, at most {limit:g} s (Ctrl-C again kills)")
        elif len(self._stop_signals) == 2:
            self._say("killed")
            for child in self._family.all:
                child.kill()
            if self._engine is not None:
                self._engine.engine.kill()

    # -- down

    def _shut_down(self) -> None:
        """The API and the workers, then the scheduler, then the engine. Also the way out when the start fails."""
        self._restarts.clear()
        for watcher in (self._sources, self._readiness):
            if watcher is not None:
                watcher.stop()
        if not self._stop_signals:
            self._stop_signals.append(0)
        self._stop(self._family.loaders, self._settings.drain_timeout_s + DRAIN_GRACE_S)
        self._stop([self._family.scheduler], SCHEDULER_STOP_S)
        if (life := self._engine) is not None:
            life.due = NEVER
            self._until(lambda: life.was_up or life.error is not None, START_S)
            life.engine.stop()
        with contextlib.suppress(OSError):
            self._options.state.clear()
        if self._record is not None and len(self._stop_signals) == 1:
            self._say("stopped" if self._engine is None else "stopped; the data stays for the next dtq up")

    def _stop(self, children: list[Child], patience_s: float) -> None:
        for child in children:
            if child not in self._renewing:  # it was asked already, and a second signal would make it leave its tasks
                child.terminate()
        if self._until(lambda: all(c.pid is None for c in children), patience_s):
            return
        for child in children:
            if child.pid is not None:
                self._forced = True
                self._say(f"{child.name} does not end and is killed; its tasks are taken over at the next start")
                child.kill()
        self._until(lambda: all(c.pid is None for c in children), SCHEDULER_STOP_S)

    def _say(self, text: str) -> None:
        self._console.line(ME, f"{time.strftime('%H:%M:%S')} {text}")
