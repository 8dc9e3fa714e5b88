"""`@task`: registration, defaults, payload models, typed submission; contract §15."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
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
    ],
    ids=["none", "zero", "number", "list", "function"],
)
def test_back_off_of_a_type(backoff, delays):
    @task("x", backoff=backoff)
    def x(payload, ctx): ...

    assert [x.delay_s(attempt) for attempt in (1, 2, 3, 4)] == delays


@pytest.mark.parametrize("returns", [-1, float("nan"), float("inf"), "soon", None])
def test_a_back_off_that_is_no_delay_is_an_error_which_the_worker_passes_over(returns):
    @task("x", backoff=lambda attempt: returns)
    def x(payload, ctx): ...

    with pytest.raises((ValueError, TypeError)):
        x.delay_s(1)


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

    payload = {"a": [1]}
    assert one.parse(payload) is two.parse(payload) is payload


def test_other_annotations_need_not_exist_at_run_time():
    @task("mail")
    def mail(payload: Mail, ctx: SomeContext) -> SomeContext: ...

    assert mail.model is Mail


@dataclasses.dataclass
class NotAModel:
    to: str


@pytest.mark.parametrize("hint", ["SomeModelForTypeCheckers", Mail | None, NotAModel, list[int], str])
def test_a_payload_annotation_that_would_check_nothing_is_refused(own_registry, hint):
    def handler(payload, ctx): ...

    handler.__annotations__["payload"] = hint
    with pytest.raises(TaskError, match=r"task 'x': .*payload"):
        task("x")(handler)
    assert not own_registry.handlers


@pytest.mark.parametrize("hint", [dict, dict[str, Any], Mapping[str, Any], Any, object])
def test_a_payload_annotation_of_a_plain_object(hint):
    def handler(payload, ctx): ...

    handler.__annotations__["payload"] = hint
    assert task("x")(handler).model is None


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

        model_validate_json = model_validate

    def handler(payload, ctx): ...

    handler.__annotations__["payload"] = Odd
    odd = task("odd")(handler)
    with pytest.raises(InvalidPayload, match="payload of odd"):
        odd.parse({})


# ------------------------------------------------------------------------------------------------ submission


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    sender: str = pydantic.Field(alias="from")
    at: datetime
    tags: frozenset[str] = frozenset()

    @pydantic.computed_field
    def domain(self) -> str:
        return self.sender.partition("@")[2]


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr = pydantic.SecretStr("")
    hidden: int = pydantic.Field(0, exclude=True)


def test_a_model_comes_out_of_json_as_it_went_in(sent):
    """Aliases, strict times, sets, computed fields: what the handler gets is what was submitted."""

    @task("aliased")
    def aliased(payload: Aliased, ctx: TaskContext): ...

    model = Aliased(**{"from": "a@b.c"}, at=datetime(2026, 1, 1, tzinfo=UTC), tags=frozenset({"x"}))
    aliased.submit(model)
    ((_, payload, _),) = sent
    assert aliased.parse(json.loads(json.dumps(payload))) == model and "domain" not in payload


@pytest.mark.parametrize("model", [Secret(password=pydantic.SecretStr("hunter2")), Secret(hidden=5)])
def test_what_json_would_change_is_refused_at_submission(sent, model):
    @task("secret")
    def secret(payload: Secret, ctx: TaskContext): ...

    with pytest.raises(InvalidPayload, match="Secret") as caught:
        secret.submit(model)
    assert "hunter2" not in str(caught.value) and not sent
    secret.submit(Secret())


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": "BAD Q"}, {"queue": 7}, {"max_attempts": 2.5}, {"max_attempts": True}, {"priority": True}, {"priority": 10},
        {"backoff": -5}, {"backoff": ["x"]}, {"backoff": "12"}, {"backoff": []}, {"backoff": math.nan}, {"backoff": [1, -1]},
        {"timeout": math.nan}, {"timeout": -1}, {"timeout": "3"}, {"timeout": 0},
    ],
    ids=str,
)  # fmt: skip
def test_defaults_that_no_task_can_have_are_refused_at_import(own_registry, wrong):
    with pytest.raises(ValueError, match="task 'x': "):
        task("x", **wrong)(lambda payload, ctx: None)
    assert not own_registry.handlers


@pytest.mark.parametrize(
    "fn", [lambda: None, lambda payload: None, lambda payload, ctx, more: None], ids=["0", "1", "3"]
)
def test_a_handler_takes_a_payload_and_a_context(own_registry, fn):
    with pytest.raises(TaskError, match=r"takes \(payload, ctx\)"):
        task("x")(fn)
    task("x")(lambda payload, ctx, more=None: None)
