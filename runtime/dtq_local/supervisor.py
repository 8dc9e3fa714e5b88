"""`dtq up`: engine, scheduler and workers as one thing on this machine, with one log and one way to stop.

One loop over one queue of events: a process ended, the engine came up, a signal arrived, a restart is due. Threads only
report; every decision is made here. The invariants: one supervisor per state directory; a child that ends is started
again, with back-off, and the log says so; on the first signal workers finish what they run, then the scheduler stops,
then the engine, so that nothing writes to an engine that is gone; on the second signal all are killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import FrameType

from dtq_core.config import Settings
from dtq_core.errors import DtqError, InvalidArgument
from dtq_local import banner
from dtq_local.child import Child, Exited, how_it_ended
from dtq_local.console import Console
from dtq_local.engine import Engine, stop_leftover
from dtq_local.state import StateDir, UpRecord

DRAIN_GRACE_S = 10.0
"""Beyond DTQ_DRAIN_TIMEOUT_S, before a worker that does not end is killed."""
SCHEDULER_STOP_S = 10.0
ENGINE_START_S = 2.0
"""How long a stop waits for an engine that is just starting, before it stops it in the middle."""
ENGINE_RESTART_S = 0.5
ENGINE_RETRY_S = 5.0
ME = "dtq"


@dataclass(frozen=True)
class UpOptions:
    """What `dtq up` was asked for. `settings` carry task modules, concurrency, and the URL where one was given."""

    settings: Settings
    state: StateDir
    workers: int = 2
    queues: tuple[str, ...] = ("default",)
    own_engine: bool = True
    engine_port: int = 0
    as_json: bool = False
    """One JSON document on stdout once everything runs, the log on stderr."""


@dataclass(frozen=True)
class _Signalled:
    signum: int


@dataclass(frozen=True)
class _EngineUp:
    pass


@dataclass(frozen=True)
class _EngineFailed:
    error: BaseException


@dataclass(frozen=True)
class _EngineEnded:
    code: int


class Supervisor:
    """Runs until a signal. Made once per process, on the main thread, which signals need."""

    def __init__(self, options: UpOptions) -> None:
        self._options = options
        self._settings = options.settings
        self._url = options.settings.redis_url.get_secret_value()
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop_signals: list[int] = []
        self._forced = False
        self._restarts: dict[Child, float] = {}
        self._engine: Engine | None = None
        self._engine_is_up = False
        self._engine_due = float("inf")
        self._engine_error: BaseException | None = None
        if options.own_engine:
            self._engine = Engine(options.state.engine_dir, port=options.engine_port)
        self._record: UpRecord | None = None
        names = ["scheduler", "api", *(f"worker-{n}" for n in range(1, options.workers + 1))]
        stream = sys.stderr if options.as_json else sys.stdout
        self._console = Console(stream, [ME, *names], colour=_wants_colour(stream.isatty()))
        self._scheduler = self._child("scheduler", ["scheduler", "run"])
        self._api = self._child("api", ["api", "run"])
        self._api_address = ("127.0.0.1", 0)
        self._workers = [self._child(name, self._worker_arguments()) for name in names[2:]]
        self._children = [self._scheduler, self._api, *self._workers]

    def run(self) -> int:
        """Everything up, until a signal, then down again. 0 after an orderly stop, 1 when something had to be killed,
        128 + the signal when a second one cut the stop short.

        Raises AlreadyRunning, EngineMissing, RedisUnavailable, InvalidArgument before anything was left running.
        """
        try:
            with self._options.state.locked(), self._signals():
                try:
                    if self._start():
                        self._until(self._is_over)
                        self._raise_engine_error()
                finally:
                    self._shut_down()
        finally:
            self._console.close()
        if len(self._stop_signals) > 1:
            return 128 + self._stop_signals[1]
        return 1 if self._forced else 0

    # -- up

    def _start(self) -> bool:
        """False when a signal came before everything ran."""
        _check_modules(self._settings.task_modules)
        if self._engine is not None:
            if pid := stop_leftover(self._engine.state_dir):
                self._say(f"an engine (pid {pid}) was left over from an earlier run and is stopped")
            self._start_engine()
            self._until(lambda: self._engine_is_up or self._is_over())
            self._raise_engine_error()
            if self._stop_signals:
                return False
            self._url = self._engine.url
            if os.environ.get("DTQ_REDIS_URL") not in (None, "", self._url):
                self._say("DTQ_REDIS_URL is not used: dtq up starts its own engine (dtq up --redis takes that server)")
        self._api_address = self._find_api_address()
        for child in self._children:
            self._start_child(child)
        self._record = UpRecord(
            pid=os.getpid(),
            url=self._url,
            state_dir=str(self._options.state.path),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            queues=self._options.queues,
            task_modules=self._settings.task_modules,
            api="http://{}:{}".format(*self._api_address),
            api_key=bool(self._settings.api_key.get_secret_value()),
        )
        self._publish()
        self._announce(self._record)
        return True

    def _start_engine(self) -> None:
        """In a thread: reading a large append-only file may take a while, in which signals still count."""
        engine = self._engine
        assert engine is not None
        self._engine_due = float("inf")

        def life() -> None:
            try:
                engine.start()
            except BaseException as exc:
                self._events.put(_EngineFailed(exc))
                return
            self._events.put(_EngineUp())
            self._events.put(_EngineEnded(engine.wait()))

        threading.Thread(target=life, name="dtq-engine", daemon=True).start()

    def _child(self, name: str, arguments: list[str]) -> Child:
        return Child(name, [sys.executable, "-m", "dtq_cli", *arguments], self._console, self._events)

    def _worker_arguments(self) -> list[str]:
        wanted = [word for name in self._options.queues for word in ("--queue", name)]
        return ["worker", "run", "--concurrency", str(self._settings.worker_concurrency), *wanted]

    def _environment(self, name: str) -> dict[str, str]:
        """The URL goes through the environment: arguments can be read by every user of the machine."""
        env = dict(os.environ)
        env["DTQ_REDIS_URL"] = self._url
        env["DTQ_TASK_MODULES"] = ",".join(self._settings.task_modules)
        env["PYTHONUNBUFFERED"] = "1"
        env["DTQ_API_HOST"], env["DTQ_API_PORT"] = self._api_address[0], str(self._api_address[1])
        if self._settings.metrics_port:  # a port each: the workers count up from the one that was given
            number = int(name.removeprefix("worker-")) - 1 if name.startswith("worker-") else None
            env["DTQ_METRICS_PORT"] = "0" if number is None else str(self._settings.metrics_port + number)
        if self._settings.worker_id and name.startswith("worker-"):  # one name for several workers would mix them up
            env["DTQ_WORKER_ID"] = f"{self._settings.worker_id}-{name.removeprefix('worker-')}"
        return env

    def _find_api_address(self) -> tuple[str, int]:
        """Where the API listens: without a key on this machine only; on the next free port where the wanted one is taken."""
        host = self._settings.api_host if self._settings.api_key.get_secret_value() else "127.0.0.1"
        wanted = self._settings.api_port
        for candidate in [*range(wanted, min(wanted + 100, 65_536)), 0] if wanted else [0]:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, candidate))
                except OSError:
                    continue
                found = int(probe.getsockname()[1])
            if wanted and found != wanted:
                self._say(f"port {wanted} is taken: the API listens on {found}")
            return host, found
        return host, wanted

    def _start_child(self, child: Child) -> None:
        try:
            child.start(self._environment(child.name))
        except OSError as exc:
            delay = child.next_delay_s()
            self._say(f"{child.name} cannot be started ({exc.strerror}); next try in {delay:g} s")
            self._restarts[child] = time.monotonic() + delay

    def _publish(self) -> None:
        """Renew up.json. A disk that is full must not stop the work."""
        if self._record is None:
            return
        pids = {child.name: child.pid for child in self._children if child.pid is not None}
        engine = None
        if self._engine is not None and self._engine.alive:
            engine = {"pid": self._engine.pid, "port": self._engine.port, "version": self._engine.version}
        self._record = replace(self._record, processes=pids, engine=engine)
        try:
            self._options.state.write(self._record)
        except OSError as exc:
            self._say(f"up.json cannot be written ({exc.strerror}): other commands need DTQ_REDIS_URL")

    def _announce(self, record: UpRecord) -> None:
        if self._options.as_json:
            with contextlib.suppress(OSError, ValueError):
                print(json.dumps(asdict(record)), flush=True)
            return
        self._console.raw(
            banner.render(
                record,
                state_shown=self._options.state.shown,
                concurrency=self._settings.worker_concurrency,
                command=banner.how_to_call(),
            )
        )

    # -- the loop

    def _until(self, condition: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
        """Handle events until `condition` holds; False when `timeout_s` passed first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            now = time.monotonic()
            if now >= deadline:
                return False
            for child in [c for c, due in self._restarts.items() if due <= now]:
                del self._restarts[child]
                self._start_child(child)
                self._publish()
            if self._engine_due <= now:
                self._start_engine()
            wake = min([deadline, self._engine_due, *self._restarts.values()])
            try:
                wait = None if wake == float("inf") else max(0.0, wake - time.monotonic())
                self._handle(self._events.get(timeout=wait))
            except queue.Empty:
                continue
        return True

    def _handle(self, event: object) -> None:
        match event:
            case Exited(child, _, code):
                child.ended()
                self._publish()
                if not self._stop_signals:
                    delay = child.next_delay_s()
                    self._say(f"{child.name} {how_it_ended(code)}; it is started again in {delay:g} s")
                    self._restarts[child] = time.monotonic() + delay
            case _EngineUp():
                if self._engine_is_up:
                    self._say("the engine runs again")
                self._engine_is_up = True
                self._publish()
            case _EngineEnded(code):
                if not self._stop_signals:
                    self._say(f"the engine {how_it_ended(code)}; it is started again in {ENGINE_RESTART_S:g} s")
                    self._engine_due = time.monotonic() + ENGINE_RESTART_S
            case _EngineFailed(error):
                self._engine_failed(error)
            case _Signalled(signum):
                self._signalled(signum)

    def _engine_failed(self, error: BaseException) -> None:
        """At the start that ends `dtq up`; later the workers wait for it, so we keep trying."""
        if not self._engine_is_up or not isinstance(error, DtqError):
            self._engine_error = error
        elif not self._stop_signals:
            self._say(f"the engine does not start: {error.message}; next try in {ENGINE_RETRY_S:g} s")
            self._engine_due = time.monotonic() + ENGINE_RETRY_S

    def _is_over(self) -> bool:
        return bool(self._stop_signals) or self._engine_error is not None

    def _raise_engine_error(self) -> None:
        if self._engine_error is not None:
            raise self._engine_error

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGHUP and self._stop_signals:  # the terminal was closed while we stop: that is no haste
            return
        self._stop_signals.append(signum)
        if len(self._stop_signals) == 1:
            running = [w for w in self._workers if w.pid is not None]
            if running:
                limit = self._settings.drain_timeout_s
                self._say(f"stopping: workers finish what they run, at most {limit:g} s (Ctrl-C again kills)")
        elif len(self._stop_signals) == 2:
            self._say("killed")
            for child in self._children:
                child.kill()
            if self._engine is not None:
                self._engine.kill()

    # -- down

    def _shut_down(self) -> None:
        """The API and the workers, then the scheduler, then the engine. Also the way out when the start fails."""
        self._restarts.clear()
        self._engine_due = float("inf")
        if not self._stop_signals:
            self._stop_signals.append(0)
        self._stop([self._api, *self._workers], self._settings.drain_timeout_s + DRAIN_GRACE_S)
        self._stop([self._scheduler], SCHEDULER_STOP_S)
        if self._engine is not None:
            self._until(lambda: self._engine_is_up or self._engine_error is not None, ENGINE_START_S)
            self._engine.stop()
        with contextlib.suppress(OSError):
            self._options.state.clear()
        if self._record is not None and len(self._stop_signals) == 1:
            self._say("stopped" if self._engine is None else "stopped; the data stays for the next dtq up")

    def _stop(self, children: list[Child], patience_s: float) -> None:
        for child in children:
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

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP (the terminal is closed) as events; a SIGHUP that nohup ignores stays ignored."""

        def put(signum: int, frame: FrameType | None) -> None:
            self._events.put(_Signalled(signum))  # SimpleQueue.put may be called in a signal handler

        before = {}
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                before[signum] = signal.signal(signum, put)
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _check_modules(modules: tuple[str, ...]) -> None:
    """A mistyped module would end every worker again and again; say so at once. Imports nothing of the user's."""
    for name in modules:
        top = name.partition(".")[0]
        try:
            found = importlib.util.find_spec(top) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise InvalidArgument(f"task module {name}: there is no module {top!r} here")


def _wants_colour(is_terminal: bool) -> bool:
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
