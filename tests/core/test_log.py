"""Log lines: one record, one line, no secrets, in both modes; contract §13, BQ-50."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
import types
import warnings
from datetime import UTC, datetime

import pytest

from dtq_core import log
from dtq_core.config import Settings
from dtq_core.log import RECORD_FIELDS, RateLimited, capture_loop_errors, configure, set_worker_id
from dtq_core.text import clean, redact

logger = logging.getLogger("tests.log")
FORGED = '\r\n{"level":"INFO","event_type":"forged"}\nforged-line-2'
TASK = {
    "worker_id": "worker-1a2b3c4d",
    "task_id": "3f2a91bc" + "0" * 24,
    "task_type": "send_email",
    "queue": "mail",
    "attempt": 2,
    "status": "succeeded",
    "duration_ms": 12,
    "event_type": "TASK_SUCCEEDED",
}


@pytest.fixture(autouse=True)
def undo():
    """configure() owns the process; give it back to the next test as it was."""
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook, sys.unraisablehook)
    flags = (logging.logThreads, logging.logProcesses, logging.logMultiprocessing)
    yield
    root.handlers[:], root.level = handlers, level
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = flags
    logging.captureWarnings(False)


@pytest.fixture(params=["json", "text"])
def mode(request):
    return request.param


def start(mode: str, capsys: pytest.CaptureFixture[str], **settings: object) -> types.SimpleNamespace:
    """configure() in `mode`, and a function that returns the lines written since the last call."""
    configure(Settings(log_json=mode == "json", **settings), "worker")
    set_worker_id("worker-0badcafe")
    logging.getLogger().handlers[:-1] = []  # pytest's own handlers raise what a production handler must not

    def lines() -> list[str]:
        captured = capsys.readouterr()
        assert captured.out == "", "standard output belongs to the program"
        assert captured.err == "" or captured.err.endswith("\n")
        return captured.err.split("\n")[:-1]

    return types.SimpleNamespace(lines=lines, documents=lambda: [json.loads(line) for line in lines()])


# ------------------------------------------------------------------------------------------------ the two shapes


@pytest.mark.contract("C13.21", "C10.25")
def test_json_has_exactly_the_fields_of_the_contract(capsys):
    out = start("json", capsys)
    before = datetime.now(UTC)
    logger.info("succeeded in %d ms", 12, extra=TASK)
    [document] = out.documents()
    stamp = datetime.fromisoformat(document.pop("timestamp"))
    assert stamp.utcoffset().total_seconds() == 0
    assert abs((stamp - before).total_seconds()) < 5
    assert document == {"level": "INFO", "service": "worker", "message": "succeeded in 12 ms"} | TASK


@pytest.mark.contract("C13.21")
def test_json_without_a_task_has_the_same_fields(capsys):
    out = start("json", capsys)
    logger.warning("hello", extra={"unknown": "x", "payload": {"secret": 1}})
    [document] = out.documents()
    assert set(document) == {"timestamp", "level", "service", "message", *RECORD_FIELDS}
    assert document["worker_id"] == "worker-0badcafe"
    assert document["task_id"] is document["attempt"] is document["duration_ms"] is None


@pytest.mark.contract("C13.21")
def test_text_reads_like_a_sentence(capsys):
    out = start("text", capsys)
    logger.info("succeeded in %d ms", 12, extra=TASK)
    logger.warning("no task here")
    logging.getLogger("other").critical("%d%%", 100)
    first, second, third = out.lines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO  worker-1a2b3c4d  send_email 3f2a91bc… succeeded in 12 ms", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARN  worker-0badcafe  no task here", second)
    assert re.fullmatch(r"\d\d:\d\d:\d\d FATAL worker-0badcafe  100%", third)


@pytest.mark.contract("C10.25")
def test_text_is_the_default(capsys):
    configure(Settings(), "scheduler")
    logger.info("hello")
    assert re.fullmatch(r"[\d:]+ INFO  scheduler  hello\n", capsys.readouterr().err)


@pytest.mark.contract("C10.24")
def test_the_level_is_the_setting(mode, capsys):
    out = start(mode, capsys, log_level="ERROR")
    logger.warning("not this")
    logger.error("but this")
    [line] = out.lines()
    assert "but this" in line


def test_configuring_again_replaces_what_was_there(mode, capsys):
    start("text", capsys)
    out = start(mode, capsys)
    logger.info("once")
    assert len(out.lines()) == 1


# ------------------------------------------------------------------------------------------------ hostile content


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")


HOSTILE = {
    "newlines": FORGED,
    "ansi": "\x1b[31mred\x1b[0m\x07\x08",
    "controls": "".join(map(chr, range(32))) + "\x7f\x85\x9b",
    "unicode breaks": "a\u2028b\u2029c\u202egnp.exe",
    "surrogate": "a\ud800b\udfff",
    "huge": "x" * 10_000_000,
    "percent": "%s %d %(name)s {level}",
    "unreadable": Unreadable(),
}


def assert_one_clean_line(lines: list[str], mode: str) -> str:
    assert len(lines) == 1
    [line] = lines
    line.encode()
    assert line.isprintable() and len(line) < 10_000
    if mode == "json":
        assert line.isascii()
        document = json.loads(line)
        assert all(v.isprintable() for v in document.values() if isinstance(v, str))
        assert document["level"] == "ERROR"
    else:
        assert re.match(r"\d\d:\d\d:\d\d ERROR", line)
    return line


@pytest.mark.contract("C13.20", "BQ-50")
@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_message_stays_in_its_line(mode, capsys, kind):
    out = start(mode, capsys)
    logger.error("handler said: %s", HOSTILE[kind], extra=TASK)
    assert_one_clean_line(out.lines(), mode)


@pytest.mark.contract("C13.20", "BQ-50")
@pytest.mark.parametrize("kind", list(HOSTILE))
@pytest.mark.parametrize("field", RECORD_FIELDS)
def test_a_hostile_field_stays_in_its_line(mode, capsys, kind, field):
    out = start(mode, capsys)
    logger.error("failed", extra={"task_id": "a" * 32, field: HOSTILE[kind]})
    assert_one_clean_line(out.lines(), mode)


@pytest.mark.contract("C13.20")
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**80, 10**5000, {"a": [1]}, b"\xff\n", True, object()],
    ids=lambda v: type(v).__name__,
)
def test_odd_values_of_fields_do_not_break_the_line(mode, capsys, value):
    out = start(mode, capsys)
    logger.error("failed", extra={"duration_ms": value, "attempt": value, "task_id": value, "worker_id": value})
    assert_one_clean_line(out.lines(), mode)


def test_arguments_that_do_not_fit_lose_no_line(mode, capsys):
    out = start(mode, capsys)
    logger.error("%d tasks", "seven")
    logger.error("%s", "one", "two")
    first, second = out.lines()
    assert "%d tasks" in first and "%s" in second


def fail(text: object, causes: int = 0) -> None:
    try:
        if causes:
            fail(text, causes - 1)
    except ValueError as exc:
        raise ValueError(text) from exc
    raise ValueError(text)


def caught(text: object, causes: int = 0) -> ValueError:
    with pytest.raises(ValueError) as info:
        fail(text, causes)
    return info.value


@pytest.mark.contract("C13.20", "BQ-50")
@pytest.mark.parametrize("kind", [k for k in HOSTILE if k != "percent"])
def test_a_traceback_cannot_forge_lines(mode, capsys, kind):
    out = start(mode, capsys)
    logger.error("loop failed", exc_info=caught(HOSTILE[kind]))
    lines = out.lines()
    assert all(line.isprintable() for line in lines)
    if mode == "json":
        line = assert_one_clean_line(lines, mode)
    else:
        assert re.match(r"[\d:]+ ERROR worker-0badcafe  loop failed$", lines[0])
        assert all(line.startswith("  | ") for line in lines[1:])
        line = "\n".join(lines)
    assert "ValueError: " in line and "test_log.py" in line and ", in fail" in line


@pytest.mark.contract("BQ-50")
def test_a_thousand_causes_are_cut(mode, capsys):
    exc: BaseException = ValueError("the last")
    for number in range(1000):
        outer = ValueError(f"cause {number}")
        outer.__cause__ = exc
        exc = outer
    out = start(mode, capsys)
    logger.error("failed", exc_info=exc)
    assert sum(len(line) for line in out.lines()) < 20_000


def test_a_chain_that_bites_its_tail_ends(mode, capsys):
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    out = start(mode, capsys)
    logger.error("failed", exc_info=one)
    assert "".join(out.lines()).count("two") == 1


def test_causes_contexts_and_groups_are_shown(mode, capsys):
    out = start(mode, capsys)
    group = ExceptionGroup("both", [KeyError("left"), caught("right", causes=1)])
    logger.error("failed", exc_info=group)
    text = "".join(out.lines())
    assert all(
        part in text for part in ("both", "in the group: KeyError", "in the group: ValueError: right", "caused by")
    )
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise OSError("second")  # noqa: B904
    except OSError:
        logger.exception("failed")
    assert "while handling: KeyError" in "".join(out.lines())


def test_a_stack_is_folded_too(mode, capsys):
    out = start(mode, capsys)
    logger.error("here", stack_info=True)
    lines = out.lines()
    assert len(lines) == 1 if mode == "json" else all(line.startswith("  | ") for line in lines[1:])
    assert "test_a_stack_is_folded_too" in "".join(lines)


# ------------------------------------------------------------------------------------------------ secrets


@pytest.mark.contract("C13.22")
@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("at redis://user:pw@host:6379/0 now", "at redis://user:***@host:6379/0 now"),
        ("redis://:pw@host", "redis://:***@host"),
        ("REDISS://u:p@ss/w:o@rd@host/1", "REDISS://u:***@host/1"),
        ("'redis+sentinel://u:p@h1,h2/m'", "'redis+sentinel://u:***@h1,h2/m'"),
        ("one amqp://a:b@c two https://d:e@f/g", "one amqp://a:***@c two https://d:***@f/g"),
        ("redis://h/0?password=pw&db=1", "redis://h/0?password=***&db=1"),
        ("GET /x?a=1&API_KEY=pw", "GET /x?a=1&API_KEY=***"),
        ("https://user@host:80/path is fine", "https://user@host:80/path is fine"),
        ("mail ann@example.org: hello", "mail ann@example.org: hello"),
        ("http://host:8000/health", "http://host:8000/health"),
    ],
)
def test_passwords_in_urls_are_replaced(text, safe):
    assert redact(text) == safe


@pytest.mark.contract("C13.22")
def test_a_cut_leaves_no_half_a_password():
    text = "x" * 485 + " redis://u:" + "p" * 400 + "@host"
    assert "ppp" not in clean(text, 500)


def test_redacting_a_hostile_text_is_quick():
    started = time.perf_counter()
    redact("a://" * 2000 + ":" * 2000)
    redact("a:" * 4000 + "?token=" * 1000)
    assert time.perf_counter() - started < 2


@pytest.mark.contract("C13.22")
def test_secrets_of_the_process_are_in_no_line(mode, capsys):
    out = start(mode, capsys, redis_url="redis://user:hunter2%21@host:1/0", api_key="open-sesame")
    logger.error("cannot reach %s", "redis://user:hunter2%21@host:1/0")
    logger.error("AUTH user hunter2! was refused, and so was hunter2%21")
    logger.error("x", extra={"task_id": "a" * 32, "task_type": "key-open-sesame"})
    logger.error("x", exc_info=caught("for open-sesame at redis://user:hunter2%21@host:1/0"))
    text = "\n".join(out.lines())
    assert "hunter2" not in text and "open-sesame" not in text
    assert "redis://user:***@host:1/0" in text


# ------------------------------------------------------------------------------------------------ what Python says


def one_record(out: types.SimpleNamespace, mode: str) -> str:
    lines = out.lines()
    if mode == "json":
        [line] = lines
        json.loads(line)
        return line
    assert re.match(r"\d\d:\d\d:\d\d ", lines[0]) and all(line.startswith("  | ") for line in lines[1:])
    return "\n".join(lines)


def test_warnings_are_records(mode, capsys):
    out = start(mode, capsys)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn(f"old{FORGED}", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in one_record(out, mode)


def test_an_uncaught_exception_is_a_record(mode, capsys):
    out = start(mode, capsys)
    exc = caught(FORGED)
    sys.excepthook(type(exc), exc, exc.__traceback__)
    line = one_record(out, mode)
    assert "uncaught ValueError" in line and ", in fail" in line


def test_an_interrupt_has_no_traceback(mode, capsys):
    out = start(mode, capsys)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert len(out.lines()) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_uncaught_exception_of_a_thread_is_a_record(mode, capsys):
    out = start(mode, capsys)
    for target in (lambda: fail(FORGED), sys.exit):
        thread = threading.Thread(target=target, name="renewal\nforged")
        thread.start()
        thread.join()
    line = one_record(out, mode)
    assert "thread renewal forged" in line and ", in fail" in line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_a_finalizer_is_a_record(mode, capsys):
    out = start(mode, capsys)

    class Ends:
        def __del__(self) -> None:
            raise ValueError(FORGED)

    Ends()
    assert "ValueError" in one_record(out, mode)


def test_what_an_event_loop_reports_is_a_record(mode, capsys):
    out = start(mode, capsys)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        capture_loop_errors(loop)
        loop.call_soon(fail, FORGED)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert "event loop: Exception in callback" in one_record(out, mode)


def test_a_closed_stderr_raises_nothing(mode, capsys, monkeypatch):
    start(mode, capsys)
    [handler] = [h for h in logging.getLogger().handlers if isinstance(h, log._Handler)]

    class Broken:
        def write(self, text: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(handler, "stream", Broken())
    logger.error("nobody hears this")


# ------------------------------------------------------------------------------------------------ rate limit


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def limited(caplog):
    clock = Clock()
    return types.SimpleNamespace(log=RateLimited(logger, 10, clock).log, clock=clock, messages=lambda: caplog.messages)


@pytest.mark.contract("BQ-47")
def test_one_line_per_key_and_interval_with_a_count_of_the_rest(limited):
    written = [limited.log(logging.ERROR, "redis", "no %s", "answer") for _ in range(1000)]
    assert written == [True] + [False] * 999
    limited.clock.now += 9.9
    assert not limited.log(logging.ERROR, "redis", "no %s", "answer")
    limited.clock.now += 0.1
    assert limited.log(logging.ERROR, "redis", "no %s", "answer")
    limited.clock.now += 60
    assert limited.log(logging.ERROR, "redis", "no %s", "answer")
    assert limited.messages() == [
        "no answer",
        "no answer (and 1000 more like it since the last line)",
        "no answer",
    ]


def test_keys_do_not_share_their_limit(limited):
    assert limited.log(logging.ERROR, "a", "one") and limited.log(logging.ERROR, "b", "two")
    assert limited.messages() == ["one", "two"]


def test_the_number_of_keys_is_bounded(limited):
    for number in range(5000):
        limited.log(logging.DEBUG, str(number), "x")
    assert len(limited.log.__self__._keys) <= 1000


def test_threads_share_one_limit(limited):
    threads = [threading.Thread(target=limited.log, args=(logging.ERROR, "k", "x")) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limited.messages() == ["x"]
