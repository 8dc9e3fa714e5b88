"""What a producer may ask for, and its limits (contract §1, §11). API, CLI, bulk and `.submit()` share it.

`Submission.make` turns raw input into a value that submit.lua can write as it is; nothing that breaks a limit gets past
it. Pure: limits and the task id are arguments.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from dtq_core import tracing
from dtq_core.config import Settings
from dtq_core.errors import InvalidTask, PayloadTooLarge, UnknownTaskType
from dtq_core.task import QUEUE_NAME, TASK_ID, TASK_TYPE_NAME
from dtq_core.text import clean

MAX_METADATA_BYTES = 4096
MAX_KEY_BYTES = 512
MAX_DELAY_S = 30 * 86_400
MAX_NESTING = 128
MAX_DIGITS = 4300
"""Longer whole numbers are refused by Python itself, with advice for programmers."""
MAX_COMPLAINT_CHARS = 500
MAX_TTL_S = 10 * 365 * 86_400


class SubmissionInput(BaseModel):
    """The body of POST /api/v1/tasks. None means the default of the task type, of the queue, of the installation."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    task_type: StrictStr = Field(min_length=1, max_length=128)
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: StrictStr = "default"
    idempotency_key: StrictStr | None = None
    max_attempts: StrictInt | None = None
    priority: StrictInt | None = Field(None, ge=0, le=9)
    timeout_ms: StrictInt | None = Field(None, ge=1, le=3_600_000)
    delay_seconds: StrictFloat = Field(0, ge=0, le=MAX_DELAY_S)
    metadata: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submission:
    """One checked submission. JSON is compact UTF-8. timeout_ms 0, max_attempts 0 and priority -1 mean the default."""

    task_id: str
    queue: str
    task_type: str
    payload: bytes
    idempotency_key: str
    max_attempts: int
    priority: int
    timeout_ms: int
    delay_ms: int
    metadata: bytes
    ttl_ms: int
    trace: str = ""
    """The traceparent of its metadata, or ""."""

    @classmethod
    def make(cls, raw: SubmissionInput | dict[str, Any], task_id: str, settings: Settings) -> Submission:
        """Check `raw` against every limit.

        Raises PayloadTooLarge before any other complaint (decision 9), then InvalidTask with the field named.
        """
        if not isinstance(raw, (dict, SubmissionInput)):
            raise InvalidTask("a submission is a JSON object")
        given = raw.get("payload") if isinstance(raw, dict) else raw.payload
        payload, problem = _encode_payload(given, settings.max_payload_bytes)
        if isinstance(raw, dict):
            raw = _parse(raw)
        if problem is not None:
            raise problem
        metadata = encode_json(raw.metadata, "metadata") if raw.metadata else b"{}"
        if len(metadata) > MAX_METADATA_BYTES:
            raise InvalidTask(f"metadata has {len(metadata)} bytes, at most {MAX_METADATA_BYTES} are taken")
        if not QUEUE_NAME.fullmatch(raw.queue):
            raise InvalidTask(
                "queue: lower-case letters, digits, '_' and '-', 1 to 64, starting with a letter or digit"
            )
        if not TASK_TYPE_NAME.fullmatch(raw.task_type):
            raise UnknownTaskType("no task type can have that name: letters, digits and _ . : / -, at most 128")
        if not TASK_ID.fullmatch(task_id):
            raise InvalidTask("task_id: 32 hexadecimal digits")
        if raw.max_attempts is not None and not 1 <= raw.max_attempts <= settings.max_attempts:
            raise InvalidTask(f"max_attempts: 1 to {settings.max_attempts}")
        return cls(
            task_id=task_id,
            queue=raw.queue,
            task_type=raw.task_type,
            payload=payload,
            idempotency_key=_check_key(raw.idempotency_key),
            max_attempts=raw.max_attempts or 0,
            priority=-1 if raw.priority is None else raw.priority,
            timeout_ms=raw.timeout_ms or 0,
            delay_ms=round(raw.delay_seconds * 1000),
            metadata=metadata,
            ttl_ms=_ttl_ms(raw.metadata),
            trace=tracing.of_metadata(raw.metadata) if raw.metadata else "",
        )


def encode_json(value: Any, what: str) -> bytes:
    """`value` as compact UTF-8 JSON: the one byte form in which limits are counted.

    Raises InvalidTask for NaN, infinities, lone surrogates, more than MAX_NESTING levels, and what JSON does not have.
    """
    if _nesting(value) > MAX_NESTING:
        raise InvalidTask(f"{what}: nested deeper than {MAX_NESTING} levels")
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidTask(f"{what}: a lone surrogate is not text") from None
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidTask(f"{what}: {str(exc)[:200]}") from None


def decode_json(text: str | bytes, what: str = "body") -> Any:
    """Strict JSON: no NaN, no infinities (1e999 included). Raises InvalidTask."""
    try:
        return _STRICT.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise InvalidTask(f"{what}: not JSON: nested deeper than {MAX_NESTING} levels") from None
    except UnicodeDecodeError as exc:
        raise InvalidTask(f"{what}: not JSON: byte {exc.start + 1} is not UTF-8") from None
    except ValueError as exc:
        raise InvalidTask(f"{what}: not JSON: {str(exc)[:200]}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits, at most {MAX_DIGITS} are taken")
    return int(text)


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number out of range")
    return number


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=_whole_number)


def _parse(raw: dict[str, Any]) -> SubmissionInput:
    try:
        return SubmissionInput.model_validate(raw)
    except ValidationError as exc:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors(include_input=False)[:5])
        raise InvalidTask(clean("; ".join(problems), MAX_COMPLAINT_CHARS)) from None


def _encode_payload(payload: Any, limit: int) -> tuple[bytes, InvalidTask | None]:
    """The payload's bytes and what is wrong with it, except for its size, which is complained about at once.

    So 413 comes before every 400 (decision 9), and the payload is encoded once. The size of what is not valid JSON is
    measured as if NaN and lone surrogates were allowed.
    """
    try:
        encoded, problem = encode_json({} if payload is None else payload, "payload"), None
    except InvalidTask as exc:
        encoded, problem = _encode_leniently(payload), exc
    if len(encoded) > limit:
        raise PayloadTooLarge(f"payload has {len(encoded)} bytes, at most {limit} are taken")
    return encoded, problem


def _encode_leniently(payload: Any) -> bytes:
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return b""


def _check_key(key: str | None) -> str:
    if not key:
        if key == "":
            raise InvalidTask("idempotency_key: must not be empty")
        return ""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidTask("idempotency_key: a lone surrogate is not text") from None
    if size > MAX_KEY_BYTES:
        raise InvalidTask(f"idempotency_key: at most {MAX_KEY_BYTES} bytes")
    if any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise InvalidTask("idempotency_key: control characters are not taken")
    return key


def _ttl_ms(metadata: dict[str, Any]) -> int:
    ttl = metadata.get("ttl_seconds")
    if ttl is None:
        return 0
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= MAX_TTL_S:
        raise InvalidTask("metadata.ttl_seconds: a number of seconds greater than 0")
    return max(1, round(ttl * 1000))


def _nesting(value: Any) -> int:
    """Depth of containers, counted without recursion; stops as soon as it is too deep."""
    depth, level = 0, [value] if isinstance(value, _CONTAINERS) else []
    while level and depth <= MAX_NESTING:
        depth += 1
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, _CONTAINERS)
        ]
    return depth


_CONTAINERS = (dict, list, tuple)
