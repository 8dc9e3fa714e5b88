"""`@task`: registration, defaults, payload models, typed submission; contract §15."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from dtq_tasks import (
    DuplicateTask,
    InvalidPayload,
    SubmittedTask,
    TaskContext,
    TaskError,
    on_shutdown,
    on_startup,
    producer,
    task,
)
from dtq_tasks.registry import load

if TYPE_CHECKING:
    from nowhere import SomeContext


class Mail(pydantic.BaseModel):
    to: str
    copies: int = 1


class Recorder:
    """A producer that keeps what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def submit(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        self.sent.append((task_type, payload, fields))
        return SubmittedTask("a" * 32, "queued")

    async def submit_async(self, task_type: str, payload: dict[str, Any], fields: dict[str, Any]) -> SubmittedTask:
        return self.submit(task_type, payload, fields)


@pytest.fixture
def sent():
    recorder = Recorder()
    producer.use(recorder)
    return recorder.sent


# ------------------------------------------------------------------------------------------------ registration


@pytest.mark.contract("C15.01", "C13.01")
def test_a_registered_function_can_be_found_and_still_be_called(own_registry):
    @task("send_email")
    def send(payload, ctx):
        """Send it."""
        return payload["to"]

    assert own_registry.handlers == {"send_email": send}
    assert send({"to": "ann"}, None) == "ann"
    assert (send.name, send.__name__, send.__doc__, repr(send)) == (
        "send_email",
        "send",
        "Send it.",
        "<task send_email>",
    )


@pytest.mark.contract("C15.03")
def test_async_functions_are_known_as_such():
    @task("one")
    async def one(payload, ctx): ...

    @task("two")
    def two(payload, ctx): ...

    assert one.is_async and not two.is_async


@pytest.mark.contract("C15.01")
def test_a_name_is_taken_once_and_the_error_names_both():
    @task("twice")
    def first(payload, ctx): ...

    with pytest.raises(DuplicateTask, match=r"twice.*first.*second"):

        @task("twice")
        def second(payload, ctx): ...


@pytest.mark.parametrize("name", ["a", "send_email", "mail.send:v2/fast-1", "x" * 128, "9"])
def test_names_that_fit(name, own_registry):
    task(name)(lambda payload, ctx: None)
    assert name in own_registry.handlers


@pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "a\n", "ä", "x" * 129, None, 7])
def test_names_that_do_not(name):
    with pytest.raises(ValueError, match="task name"):
        task(name)


@pytest.mark.parametrize(
    "defaults",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": 3600.001},
        {"timeout": math.inf},
        {"timeout": math.nan},
        {"priority": -1},
        {"priority": 10},
        {"backoff": []},
        {"retry_on": ("KeyError",)},
        {"retry_on": (object,)},
    ],
    ids=str,
)
def test_defaults_that_no_task_may_have_are_refused_at_import(defaults):
    with pytest.raises(ValueError):
        task("x", **defaults)


def test_defaults_are_kept():
    @task("x", queue="mail", max_attempts=3, timeout=1.5, retry_on=[KeyError], backoff=2, priority=9)
    def x(payload, ctx): ...

    kept = x.defaults
    assert (kept.queue, kept.max_attempts, kept.timeout_ms, kept.priority) == ("mail", 3, 1500, 9)
    assert (kept.retry_on, kept.backoff) == ((KeyError,), 2)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (None, [None, None, None, None]),
        (2, [2, 2, 2, 2]),
        (0, [0, 0, 0, 0]),
        ([1, 5, 30], [1, 5, 30, 30]),
        (lambda attempt: attempt * 10, [10, 20, 30, 40]),
        (lambda attempt: -1, [0, 0, 0, 0]),
    ],
    ids=["none", "zero", "number", "list", "function", "negative"],
)
def test_back_off_of_a_type(backoff, delays):
    @task("x", backoff=backoff)
    def x(payload, ctx): ...

    assert [x.delay_s(attempt) for attempt in (1, 2, 3, 4)] == delays


def test_hooks_are_kept_in_order(own_registry):
    @on_startup
    def one(state): ...

    @on_startup
    async def two(state): ...

    @on_shutdown
    def three(state): ...

    assert (own_registry.startup, own_registry.shutdown) == ([one, two], [three])


def test_modules_are_loaded_by_name_once(own_registry, tmp_path, monkeypatch):
    (tmp_path / "shop_tasks_a.py").write_text("from dtq_tasks import task\n@task('a')\ndef a(p, c): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(load(["shop_tasks_a"]).handlers) == {"a"}
    assert set(load(["shop_tasks_a"]).handlers) == {"a"}
    with pytest.raises(ImportError):
        load(["shop_tasks_missing"])
    sys.modules.pop("shop_tasks_a")


# ------------------------------------------------------------------------------------------------ payload models


@pytest.mark.contract("C15.01", "C4.05")
def test_a_model_parses_the_payload():
    @task("mail")
    def mail(payload: Mail, ctx: TaskContext): ...

    assert mail.model is Mail
    assert mail.parse({"to": "ann"}) == Mail(to="ann", copies=1)


def test_without_a_model_the_payload_is_what_was_sent():
    @task("one")
    def one(payload: dict[str, Any], ctx: TaskContext): ...

    @task("two")
    def two(*args): ...

    @task("three")
    def three(): ...

    payload = {"a": [1]}
    assert one.parse(payload) is two.parse(payload) is three.parse(payload) is payload


def test_other_annotations_need_not_exist_at_run_time():
    @task("mail")
    def mail(payload: Mail, ctx: SomeContext) -> SomeContext: ...

    @task("other")
    def other(payload: SomeContext, ctx: TaskContext): ...

    assert mail.model is Mail and other.model is None


@pytest.mark.contract("C4.05", "C13.22")
def test_a_payload_that_does_not_fit_is_permanent_and_the_error_names_fields_not_values():
    @task("mail")
    def mail(payload: Mail, ctx: TaskContext): ...

    with pytest.raises(InvalidPayload) as caught:
        mail.parse({"to": {"secret": "hunter2"}, "copies": "hunter2"})
    text = str(caught.value)
    assert "to: " in text and "copies: " in text and "hunter2" not in text and "\n" not in text


def test_a_validator_of_ones_own_may_raise_an_empty_error():
    class Odd:
        @classmethod
        def model_validate(cls, obj: Any) -> Any:
            raise ValueError

    def handler(payload, ctx): ...

    handler.__annotations__["payload"] = Odd
    odd = task("odd")(handler)
    with pytest.raises(InvalidPayload, match="payload of odd"):
        odd.parse({})


# ------------------------------------------------------------------------------------------------ submission


def test_submission_by_keywords_dict_or_model(sent):
    @task("mail")
    def mail(payload: Mail, ctx: TaskContext): ...

    mail.submit(to="ann")
    mail.submit({"to": "ann", "copies": 2})
    mail.submit(Mail(to="ann", copies=3))
    assert sent == [("mail", {"to": "ann", "copies": n}, {}) for n in (1, 2, 3)]


def test_submission_without_a_model(sent):
    @task("any")
    def anything(payload, ctx): ...

    assert anything.submit() == SubmittedTask("a" * 32, "queued", duplicate=False)
    anything.submit(a=1)
    anything.submit({"a": 1})
    assert [payload for _, payload, _ in sent] == [{}, {"a": 1}, {"a": 1}]


def test_submission_from_asyncio(sent):
    @task("mail")
    async def mail(payload: Mail, ctx: TaskContext): ...

    assert asyncio.run(mail.submit_async(to="ann")).task_id == "a" * 32
    assert sent == [("mail", {"to": "ann", "copies": 1}, {})]


def test_defaults_and_options_travel_along_and_options_win(sent):
    @task("mail", queue="mail", priority=9, timeout=2)
    def mail(payload, ctx): ...

    mail.submit()
    urgent = mail.options(priority=0, delay_seconds=5, idempotency_key="k", metadata={"ttl_seconds": 9})
    urgent.submit()
    urgent.options(max_attempts=1).submit()
    mail.submit()
    base = {"queue": "mail", "timeout_ms": 2000}
    wished = base | {"priority": 0, "delay_seconds": 5, "idempotency_key": "k", "metadata": {"ttl_seconds": 9}}
    assert [fields for _, _, fields in sent] == [
        base | {"priority": 9},
        wished,
        wished | {"max_attempts": 1},
        base | {"priority": 9},
    ]


@pytest.mark.contract("C4.05")
def test_what_does_not_fit_is_refused_before_it_is_sent(sent):
    @task("mail")
    def mail(payload: Mail, ctx: TaskContext): ...

    class Other(pydantic.BaseModel):
        to: str = "ann"

    for call in (
        lambda: mail.submit(),
        lambda: mail.submit(to=1),
        lambda: mail.submit({"copies": 1}),
        lambda: mail.submit(Other()),
        lambda: mail.submit({"to": "ann"}, copies=1),
    ):
        with pytest.raises(InvalidPayload):
            call()
    assert sent == []


def test_without_an_installed_producer_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(producer, "entry_points", lambda group: [])
    with pytest.raises(TaskError, match="install dtq"):
        producer.current()
