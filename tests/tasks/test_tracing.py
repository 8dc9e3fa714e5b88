"""A traced task: its traceparent reaches the handler, and with OpenTelemetry it is one trace of spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dtq_core import otel
from dtq_tasks import PermanentError, RetryableError, task

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was ended, as an SDK of the application would export it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = otel.OpenTelemetry(provider.get_tracer("dtq"))
    monkeypatch.setattr(otel, "tracing", lambda: made)
    yield exporter
    provider.shutdown()


def context_id(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def seen_traceparents(**defaults: Any) -> tuple[Any, list[str | None]]:
    seen: list[str | None] = []

    @task("traced", **defaults)
    async def handler(payload, ctx):
        seen.append(ctx.traceparent)
        if ctx.attempt <= payload.get("fails", 0):
            raise RetryableError("not yet")

    return handler, seen


def test_without_spans_the_handler_gets_what_the_submission_gave(dtq):
    handler, seen = seen_traceparents()
    dtq.submit("traced", {"fails": 1}, metadata={"traceparent": TRACE})
    dtq.run_until_idle()
    dtq.advance(60)
    dtq.run_until_idle()
    handler.options(traceparent=TRACE, metadata={"a": 1}).submit()
    handler.options(metadata={"a": 1}).options(traceparent=TRACE).submit()
    dtq.run_until_idle()
    handler.submit()
    dtq.run_until_idle()
    assert seen == [TRACE, TRACE, TRACE, TRACE, None]


def test_a_task_is_one_trace_across_its_retries(spans, dtq):
    _, seen = seen_traceparents()
    task_id = dtq.submit("traced", {"fails": 2}, metadata={"traceparent": TRACE})
    for _ in range(3):
        dtq.run_until_idle()
        dtq.advance(60)
    assert dtq.task(task_id).status == "succeeded"
    (submitted,) = named(spans, "submit traced")
    waits, attempts = named(spans, "wait traced"), named(spans, "process traced")
    assert f"{submitted.parent.span_id:016x}" == SPAN_ID
    assert {f"{s.context.trace_id:032x}" for s in spans.get_finished_spans()} == {TRACE_ID}
    assert {s.parent.span_id for s in (*waits, *attempts)} == {submitted.context.span_id}
    assert [[f"{link.context.span_id:016x}" for link in s.links] for s in attempts] == [
        [], [context_id(attempts[0])], [context_id(attempts[1])],
    ]  # fmt: skip
    assert [s.status.status_code for s in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.OK]
    assert [(s.attributes["dtq.attempt"], s.attributes["dtq.outcome"]) for s in attempts] == [
        (1, "failed"), (2, "failed"), (3, "succeeded"),
    ]  # fmt: skip
    assert {s.attributes["messaging.message.id"] for s in (*waits, *attempts)} == {task_id}
    assert all(wait.start_time <= wait.end_time for wait in waits) and len(waits) == 3
    assert seen == [f"00-{TRACE_ID}-{context_id(s)}-01" for s in attempts]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_what_a_handler_does_belongs_to_its_attempt(spans, dtq, kind):
    """Spans of its libraries, and the tasks that it submits."""
    inner: list[int] = []

    @task("inner")
    async def leaf(payload, ctx):
        pass

    def note() -> None:
        inner.append(otel_trace.get_current_span().get_span_context().span_id)

    if kind == "thread":

        @task("outer")
        def outer(payload, ctx):
            note()

    else:

        @task("outer")
        async def outer(payload, ctx):
            note()
            await leaf.submit_async()

    outer.submit()
    dtq.run_until_idle()
    (attempt,) = named(spans, "process outer")
    assert inner == [attempt.context.span_id]
    if kind == "coroutine":
        (submitted,) = named(spans, "submit inner")
        assert submitted.parent.span_id == attempt.context.span_id
        assert named(spans, "process inner")[0].context.trace_id == attempt.context.trace_id


def test_an_error_is_on_the_span_and_the_payload_is_not(spans, dtq):
    @task("leaky")
    async def leaky(payload, ctx):
        raise PermanentError("no such account")

    leaky.submit({"card": "4111-1111"})
    dtq.run_until_idle()
    (attempt,) = named(spans, "process leaky")
    assert attempt.attributes["error.type"] == "PermanentError"
    assert attempt.status.description == "PermanentError: no such account"
    assert not any("4111" in str(span.to_json()) for span in spans.get_finished_spans())


def test_a_batch_is_one_span(spans, dtq):
    seen_traceparents()

    async def submit():
        return await dtq._room.client.submit_many([{"task_type": "traced"} for _ in range(3)])

    dtq._wait_for(submit())
    dtq.run_until_idle()
    (batch,) = named(spans, "submit")
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert [s.parent.span_id for s in named(spans, "process traced")] == [batch.context.span_id] * 3
