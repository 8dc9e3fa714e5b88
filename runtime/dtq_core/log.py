"""Logging of every DTQ process: text for people, or one JSON object a line (contract §13). Called once at start.

    logger.info("succeeded in %d ms", 12, extra={"task_id": …, "task_type": …, "status": …, "duration_ms": 12})

Whatever a message, an exception or a field holds, a record stays in its own line: line breaks, control characters and
lone surrogates become spaces, passwords are replaced, megabytes are cut. Payloads and results are never handed to a
logger; nothing here could tell them apart from a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from dtq_core.clock import iso
from dtq_core.outlet import Outlet
from dtq_core.retry import describe
from dtq_core.spelling import misspelt
from dtq_core.text import clean

if TYPE_CHECKING:
    from dtq_core.config import Settings

RECORD_FIELDS = ("worker_id", "task_id", "task_type", "queue", "attempt", "status", "duration_ms", "event_type")
"""What `extra` may carry. A line of JSON has these and timestamp, level, service and message; null where unknown.

Of a traced task it also has `traceparent`."""

MAX_MESSAGE_CHARS = 4000
MAX_FIELD_CHARS = 200
MAX_TRACEBACK_LINES = 100
_FRAMES_PER_EXCEPTION = 15
_MAX_KEY_FILE_CHARS = 65_536
_SHORT_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}

logger = logging.getLogger("dtq")


def configure(settings: Settings, service: str) -> None:
    """Send all records of this process to stderr; calling it again replaces what it set up before.

    `service` is worker, scheduler, api or cli. Warnings and uncaught exceptions of the main thread, other
    threads and finalizers become records too; for those of an event loop see `capture_loop_errors`.
    """
    process = _Process(service, _secrets_of(settings))
    handler = _Handler(process)
    handler.setFormatter(JsonFormatter(process) if settings.log_json else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [h for h in root.handlers if not isinstance(h, _Handler)] + [handler]
    root.setLevel(settings.log_level)
    # What our lines do not show need not be looked up for each of them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    for note in misspelt(os.environ, type(settings).model_fields):
        logger.warning(note)


def set_worker_id(worker_id: str) -> None:
    """Name this process in every record from now on that names no worker itself."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.process.worker_id = worker_id


def capture_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Make one record of what a loop would report by itself: callbacks that raise, exceptions that nobody fetched."""
    loop.set_exception_handler(_loop_error)


class RateLimited:
    """For loops that may fail many times a second: one line per key and interval, with a count of what was swallowed.

    Safe to share between threads. Remembers at most a thousand keys.
    """

    def __init__(
        self, target: logging.Logger, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[float, int]] = {}

    def log(self, level: int, key: str, message: str, *args: object, **options: Any) -> bool:
        """Log unless a line of `key` was written less than the interval ago; True if it was written."""
        now = self._clock()
        with self._lock:
            written_at, swallowed = self._keys.get(key, (-math.inf, 0))
            if now - written_at < self._interval_s:
                self._keys[key] = (written_at, swallowed + 1)
                return False
            if len(self._keys) >= 1000:
                self._keys.clear()
            self._keys[key] = (now, 0)
        if swallowed:
            message += " (and %d more like it since the last line)"
            args = (*args, swallowed)
        self._target.log(level, message, *args, **options)
        return True


class _Process:
    """What both formatters need to know of this process, and how they read a record."""

    def __init__(self, service: str, secrets: tuple[str, ...]) -> None:
        self.service = service
        self.worker_id = ""
        self.secrets = secrets

    def clean(self, text: str, limit: int) -> str:
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, "***")
        return clean(text, limit)

    def message(self, record: logging.LogRecord) -> str:
        try:
            text = record.getMessage()
        except BaseException:  # a bad format string or a hostile __str__ must not lose the line, nor end the process
            text = f"{_text(record.msg)} (its arguments cannot be shown)"
        return self.clean(text.rstrip(), MAX_MESSAGE_CHARS)

    def field(self, value: object) -> str | int | float | None:
        if value is None or isinstance(value, str):
            return self.clean(value, MAX_FIELD_CHARS) if value else None
        if (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self.clean(_text(value), MAX_FIELD_CHARS)

    def traceback(self, record: logging.LogRecord) -> list[str]:
        """Exceptions and frames, outermost first, one clean line each."""
        lines = traceback_lines(record.exc_info[1]) if record.exc_info and record.exc_info[1] else []
        if record.stack_info:
            lines += record.stack_info.splitlines()
        return [self.clean(line, MAX_MESSAGE_CHARS) for line in lines[:MAX_TRACEBACK_LINES]]


class JsonFormatter(logging.Formatter):
    """One JSON object of ASCII characters, in one line; a traceback is part of the message, folded."""

    def __init__(self, process: _Process) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        process = self._process
        message = " | ".join([process.message(record), *process.traceback(record)])
        return self.line(record.created, record.levelname, message, record.__dict__)

    def line(self, created: float, level: str, message: str, fields: Mapping[str, Any]) -> str:
        """One line of `message`, which is clean, and what RECORD_FIELDS names of `fields`."""
        process = self._process
        out: dict[str, Any] = {"timestamp": iso(int(created * 1000)), "level": level, "service": process.service}
        for name in RECORD_FIELDS:
            out[name] = process.field(fields.get(name))
        out["worker_id"] = out["worker_id"] or process.worker_id or None
        if traceparent := process.field(fields.get("traceparent")):
            out["traceparent"] = traceparent
        out["message"] = message
        return json.dumps(out)


class TextFormatter(logging.Formatter):
    """`12:00:01 INFO  worker-1a2b3c4d  send_email 3f2a91bc… succeeded in 12 ms`, in local time.

    Type and id are put before the message of a record that has a task. The lines of a traceback follow, marked with |.
    """

    def __init__(self, process: _Process) -> None:
        super().__init__()
        self._process = process
        self._second, self._clock = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        process = self._process
        head = self.line(record.created, record.levelname, process.message(record), record.__dict__)
        return "\n  | ".join([head, *process.traceback(record)])

    def line(self, created: float, level: str, message: str, fields: Mapping[str, Any]) -> str:
        """As JsonFormatter.line."""
        process = self._process
        second = int(created)
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        level = _SHORT_LEVELS.get(level, level)
        who = process.field(fields.get("worker_id")) or process.worker_id or process.service
        task_id = process.field(fields.get("task_id"))
        task = f"{process.field(fields.get('task_type')) or 'task'} {str(task_id)[:8]}… " if task_id else ""
        return f"{self._clock} {level:<5} {who}  {task}{message}"


class _Handler(logging.StreamHandler[Any]):
    """stderr. A closed or full pipe loses lines, never a task (dtq_core.outlet)."""

    def __init__(self, process: _Process) -> None:
        super().__init__(sys.stderr)
        self.process = process
        self._outlet = Outlet(self.stream)
        self.held: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.put(self.format(record))
        except Exception:
            self.handleError(record)

    def put(self, line: str) -> None:
        if self.held is not None:
            self.held.append(line + "\n")
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        if self._outlet.stream is not self.stream:  # somebody put another stream in its place
            self._outlet = Outlet(self.stream)
        self._outlet.write(text)

    def write_held(self) -> None:
        with self.lock or contextlib.nullcontext():
            lines, self.held = self.held, None
            if lines:
                with contextlib.suppress(Exception):
                    self._write("".join(lines))

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def info(source: logging.Logger, message: str, fields: Mapping[str, Any]) -> None:
    """`source.info(message, extra=fields)` for a message without secrets, without the record where nobody else looks at it.

    A record costs more than all the rest that a worker does for a small task.
    """
    if not source.isEnabledFor(logging.INFO):
        return
    handlers = logging.getLogger().handlers
    ours = handlers[0] if len(handlers) == 1 else None
    if isinstance(ours, _Handler) and not (ours.level or ours.filters or _looked_at(source)):
        with contextlib.suppress(Exception):
            formatter = cast("TextFormatter | JsonFormatter", ours.formatter)
            ours.put(formatter.line(time.time(), "INFO", message, fields))
    else:
        source.info("%s", message, extra=dict(fields))


def _looked_at(source: logging.Logger) -> bool:
    """Whether somebody put a handler or a filter between `source` and the root, or made records of another class."""
    if logging.getLogRecordFactory() is not logging.LogRecord:
        return True
    step: logging.Logger | None = source
    while step is not None and step.parent is not None:
        if step.handlers or step.filters or not step.propagate:
            return True
        step = step.parent
    return False


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Write the lines of this block in one go: a batch of tasks is one system call, not one per task."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, _Handler) and h.held is None]
    for handler in handlers:
        handler.held = []
    try:
        yield
    finally:
        for handler in handlers:
            handler.write_held()


def traceback_lines(exc: BaseException) -> list[str]:
    """An exception with its frames, causes and group members. At most a dozen exceptions; never local variables."""
    lines: list[str] = []
    waiting: list[tuple[str, BaseException]] = [("", exc)]
    seen: set[int] = set()
    while waiting and len(seen) < 12:
        label, current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        lines.append(f"{label}{': '.join(describe(current))}")
        for frame in traceback.extract_tb(current.__traceback__, limit=-_FRAMES_PER_EXCEPTION):
            lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}: {frame.line}')
        if isinstance(current, BaseExceptionGroup):
            waiting += [("in the group: ", member) for member in current.exceptions]
        if current.__cause__ is not None:
            waiting.append(("caused by: ", current.__cause__))
        elif current.__context__ is not None and not current.__suppress_context__:
            waiting.append(("while handling: ", current.__context__))
    return lines


def _secrets_of(settings: Settings) -> tuple[str, ...]:
    """The secrets this process knows, as they could turn up in a text. Those of three characters are in every text."""
    url = settings.redis_url.get_secret_value()
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        password = ""
    keys = ",".join((settings.api_key.get_secret_value(), *_other_keys()))
    known = {password, unquote(password), *keys.replace("\n", ",").split(",")}
    return tuple(sorted((secret for secret in map(str.strip, known) if len(secret) > 3), key=len, reverse=True))


def _other_keys() -> Iterator[str]:
    """Keys of the API that are no settings of the core: the API's own variables, and the content of its key file."""
    for name, value in os.environ.items():
        if name.upper() in ("DTQ_API_READ_KEY", "DTQ_API_SUBMIT_KEY"):
            yield value
        elif name.upper() == "DTQ_API_KEY_FILE":
            with contextlib.suppress(OSError, ValueError), open(value, encoding="utf-8") as file:
                yield file.read(_MAX_KEY_FILE_CHARS)


def _text(value: object) -> str:
    try:
        return str(value)
    except BaseException:
        return "(unreadable)"


def _uncaught(kind: type[BaseException], exc: BaseException, tb: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        logger.critical("interrupted")
    else:
        logger.critical("the process ends with an uncaught %s", kind.__name__, exc_info=(kind, exc, tb))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "unknown"
        logger.error("thread %s ended with an uncaught exception", name, exc_info=args.exc_value)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    logger.error("%s in %s", args.err_msg or "exception ignored", type(args.object).__name__, exc_info=args.exc_value)


def _loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.error("event loop: %s", context.get("message", "unhandled error"), exc_info=context.get("exception"))
