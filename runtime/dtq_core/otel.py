"""Spans through OpenTelemetry (extra `otel`): one per submission, per wait and per attempt. The only importer of opentelemetry.

The wait and the attempts are children of the submission, so a task is one trace across processes; an attempt links to
the one before it. Names and attributes follow the semantic conventions for messaging. Payloads never become attributes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dtq_core.retry import Cancelled, Failed, Outcome, TimedOut
from dtq_core.tracing import METADATA_KEY, of_metadata, split, with_traceparent

if TYPE_CHECKING:
    from dtq_core.store.transitions import Delivery

_PROPAGATOR = TraceContextTextMapPropagator()
_SYSTEM = {"messaging.system": "dtq"}


def tracing() -> OpenTelemetry | None:
    """None while no provider is set: its spans would be empty."""
    return None if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) else _spans()


def configure(service: str) -> None:
    """A provider that exports by OTLP over HTTP, where none is set yet. OTEL_SDK_DISABLED and the other variables of the
    SDK hold as well. Raises ImportError where the SDK or the exporter is missing."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"dtq-{service}"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@cache
def _spans() -> OpenTelemetry:
    return OpenTelemetry()


class OpenTelemetry:
    """See dtq_core.tracing.Tracing."""

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("dtq")

    @contextmanager
    def submitting(self, raws: list[Any]) -> Iterator[list[Any]]:
        """One span for all; its parent is the traceparent of a single submission, else whatever span is current."""
        single = raws[0] if len(raws) == 1 and isinstance(raws[0], dict) else {}
        given = of_metadata(single.get("metadata"))
        name, queue = _text(single.get("task_type")), _text(single.get("queue")) or "default"
        attributes: dict[str, Any] = {**_SYSTEM, "messaging.operation.type": "send"}
        if single:
            attributes |= {"messaging.destination.name": queue, "dtq.task_type": name}
        else:
            attributes["messaging.batch.message_count"] = len(raws)
        with self._tracer.start_as_current_span(
            f"submit {name}".rstrip(), _context_of(given), SpanKind.PRODUCER, attributes
        ) as span:
            ours = _traceparent(span)
            yield [_renamed(raw, ours) if raw is single else with_traceparent(raw, ours) for raw in raws]

    def inside_one(self) -> bool:
        return trace.get_current_span().get_span_context().is_valid

    def attempt(self, delivery: Delivery) -> _Attempt:
        submitted, last = split(delivery.trace)
        parent = _context_of(submitted)
        common: dict[str, Any] = {
            **_SYSTEM, "messaging.destination.name": delivery.queue, "messaging.message.id": delivery.task_id,
            "dtq.task_type": delivery.task_type, "dtq.attempt": delivery.attempt,
        }  # fmt: skip
        attributes = {**common, "messaging.operation.type": "process"}
        span = self._tracer.start_span(
            f"process {delivery.task_type}", parent, SpanKind.CONSUMER, attributes, links=_links(last)
        )
        started_ns = delivery.started_at_ms * 1_000_000
        since_ns = min(started_ns, (delivery.available_at_ms or delivery.created_at_ms) * 1_000_000)
        wait = self._tracer.start_span(
            f"wait {delivery.task_type}", parent or trace.set_span_in_context(span), SpanKind.INTERNAL, common,
            start_time=since_ns,
        )  # fmt: skip
        wait.end(started_ns)
        return _Attempt(span, submitted)


class _Attempt:
    """See dtq_core.tracing.AttemptSpan."""

    def __init__(self, span: Span, submitted: str) -> None:
        self._span = span
        self._token: Any = None
        self.traceparent = _traceparent(span) or submitted

    def __enter__(self) -> _Attempt:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, *exc: object) -> None:
        context.detach(self._token)
        self._span.end()

    def ended(self, outcome: Outcome | None) -> None:
        self._span.set_attribute("dtq.outcome", type(outcome).__name__.lower() if outcome is not None else "lost")
        match outcome:
            case Failed(error_class=kind, error_message=message):
                self._span.set_attribute("error.type", kind)
                self._span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}"))
            case TimedOut():
                self._span.set_attribute("error.type", "timeout")
                self._span.set_status(Status(StatusCode.ERROR, "the handler took longer than its timeout"))
            case Cancelled() | None:
                pass
            case _:
                self._span.set_status(Status(StatusCode.OK))


def _context_of(traceparent: str) -> Context | None:
    """None leaves it to the current span."""
    return _PROPAGATOR.extract({METADATA_KEY: traceparent}, context=Context()) if traceparent else None


def _links(traceparent: str) -> list[Link]:
    earlier = _context_of(traceparent)
    return [Link(trace.get_current_span(earlier).get_span_context())] if earlier is not None else []


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get(METADATA_KEY, "")


def _renamed(raw: dict[str, Any], traceparent: str) -> dict[str, Any]:
    """`raw` with this traceparent in place of the one that it came with: the attempts are children of our span."""
    if not traceparent or not of_metadata(raw.get("metadata")):
        return dict(with_traceparent(raw, traceparent))
    return {**raw, "metadata": {**raw["metadata"], METADATA_KEY: traceparent}}


def _text(value: object) -> str:
    return value[:128] if isinstance(value, str) else ""
