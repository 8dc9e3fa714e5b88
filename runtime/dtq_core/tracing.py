"""Trace context: a W3C traceparent given at submission travels with its task to the handler and the logs.

It lives in the task's metadata, and once more in the hash field `trace`, where the start of an attempt finds it. With the
extra `dtq[otel]` submissions, waits and attempts become spans too (`dtq_core.otel`); without it nothing here costs
anything. A traceparent that is not one is ignored, as the recommendation asks for.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dtq_core.retry import Outcome
    from dtq_core.store.transitions import Delivery

logger = logging.getLogger("dtq.tracing")

METADATA_KEY = "traceparent"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid(text: object) -> str:
    """`text` if it is a traceparent of version 00 or one that reads like it, else ""."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else ""


def of_metadata(metadata: object) -> str:
    """The traceparent in a task's metadata, or ""."""
    return valid(metadata.get(METADATA_KEY)) if isinstance(metadata, Mapping) else ""


def with_traceparent(raw: Any, traceparent: str | None) -> Any:
    """A raw submission with this traceparent in its metadata, unless it names one itself. Anything else is left alone."""
    if not valid(traceparent) or not isinstance(raw, dict):
        return raw
    metadata = raw.get("metadata")
    if metadata is not None and (not isinstance(metadata, dict) or METADATA_KEY in metadata):
        return raw
    return {**raw, "metadata": {**(metadata or {}), METADATA_KEY: traceparent}}


def incoming(header: str | None) -> str:
    """The traceparent of a request, or "" where a span for it is open already, which is then the parent."""
    spans = tracing()
    return "" if spans is not None and spans.inside_one() else valid(header)


class AttemptSpan(Protocol):
    """One attempt under way; what the handler does inside belongs to it."""

    traceparent: str

    def __enter__(self) -> AttemptSpan: ...

    def __exit__(self, *exc: object) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """How it ended; None: it was lost to another worker."""


class Tracing(Protocol):
    """What makes spans."""

    def submitting(self, raws: list[Any]) -> AbstractContextManager[list[Any]]:
        """The span of a submission; gives the submissions with its traceparent in them."""

    def inside_one(self) -> bool:
        """Whether a span is current."""

    def attempt(self, delivery: Delivery) -> AttemptSpan:
        """The span of an attempt, and that of the wait before it."""


def tracing() -> Tracing | None:
    """What makes spans in this process: None unless somebody set a tracer provider of OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from dtq_core import otel

    return otel.tracing()


def configure(service: str) -> None:
    """Send spans where the environment says (OTEL_EXPORTER_OTLP_ENDPOINT), unless somebody has set that up already.

    `service` is worker or api. Logs a warning where the extra `otel` is not installed.
    """
    if not any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT")):
        return
    try:
        from dtq_core import otel

        otel.configure(service)
    except ImportError:
        logger.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: pip install 'dtq[otel]'"
        )


def split(trace: str) -> tuple[str, str]:
    """The field `trace` as the submission's traceparent and that of the last attempt; "" where there is none."""
    submitted, _, last = trace.partition(" ")
    return valid(submitted), valid(last)


def joined(trace: str, attempt: str) -> str:
    """What the field `trace` becomes when this attempt is to be retried."""
    return f"{trace.partition(' ')[0] or '-'} {attempt}" if attempt else ""
