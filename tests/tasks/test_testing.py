"""The test kit's inline half: make_context, run, run_async."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pydantic
import pytest

from dtq_tasks import InvalidPayload, PermanentError, RetryableError, TaskContext, TaskError, task
from dtq_tasks.testing import make_context, run, run_async


class Order(pydantic.BaseModel):
    number: int


@pytest.mark.contract("C15.02")
def test_a_made_up_context_looks_like_a_real_one():
    ctx = make_context()
    assert len(ctx.task_id) == 32 and ctx.task_id != make_context().task_id
    assert (ctx.attempt, ctx.queue, ctx.idempotency_key, ctx.fence) == (1, "default", None, 1)
    assert 0 < (ctx.deadline - datetime.now(UTC)).total_seconds() <= 30
    with pytest.raises(dataclasses.FrozenInstanceError):
        ctx.attempt = 2


def test_any_field_may_be_given_and_no_other():
    state = SimpleNamespace(http=object())
    ctx = make_context(attempt=3, state=state, queue="mail")
    assert (ctx.attempt, ctx.state, ctx.queue) == (3, state, "mail")
    with pytest.raises(TypeError):
        make_context(atempt=3)


@pytest.mark.contract("C15.01", "C15.03")
def test_sync_and_async_handlers_run_alike():
    @task("one")
    def one(payload, ctx):
        return {"type": ctx.task_type, "attempt": ctx.attempt, "payload": payload}

    @task("two")
    async def two(payload, ctx):
        await asyncio.sleep(0)
        return {"type": ctx.task_type, "attempt": ctx.attempt, "payload": payload}

    for handler in (one, two):
        expected = {"type": handler.name, "attempt": 2, "payload": {"a": 1}}
        assert run(handler, {"a": 1}, make_context(attempt=2)) == expected
        assert run(handler.name, {"a": 1}, make_context(attempt=2)) == expected
        assert asyncio.run(run_async(handler, {"a": 1}, make_context(attempt=2))) == expected
        assert run(handler)["payload"] == {}


def test_in_a_loop_a_sync_handler_gets_a_thread():
    @task("where")
    def where(payload, ctx):
        return threading.current_thread() is threading.main_thread()

    assert asyncio.run(run_async(where)) is False
    assert run(where) is True


def test_payloads_go_through_the_model_as_in_a_worker():
    @task("charge")
    def charge(payload: Order, ctx: TaskContext):
        return payload.number

    assert run(charge, {"number": 7}) == run(charge, Order(number=7)) == 7
    with pytest.raises(InvalidPayload, match="number"):
        run(charge, {"number": "seven"})
    with pytest.raises(InvalidPayload):
        asyncio.run(run_async(charge, {}))


def test_what_is_not_json_comes_to_light():
    @task("odd")
    def odd(payload, ctx):
        return {"set": {1}, "nan": float("nan"), "tuple": (1, 2), "none": None}[payload["kind"]]

    assert run(odd, {"kind": "tuple"}) == [1, 2]
    assert run(odd, {"kind": "none"}) is None
    for kind in ("set", "nan"):
        with pytest.raises(PermanentError, match="result is not JSON"):
            run(odd, {"kind": kind})
    with pytest.raises(PermanentError, match="payload is not JSON"):
        run(odd, {"kind": {1}})


def test_what_a_handler_raises_comes_out_as_it_is():
    @task("fails")
    async def fails(payload, ctx):
        raise RetryableError("later", retry_after_s=5)

    with pytest.raises(RetryableError) as caught:
        run(fails)
    assert caught.value.retry_after_s == 5


def test_an_unknown_name_is_named():
    with pytest.raises(TaskError, match="nobody"):
        run("nobody")


def test_the_kit_and_the_package_need_the_standard_library_only():
    code = "import sys, dtq_tasks.testing; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0]={sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"pytest", "pydantic", "redis", "dtq_core", "dtq_local"} & set(done.stdout.replace("'", " ").split())
