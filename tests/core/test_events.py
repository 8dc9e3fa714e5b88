"""Reading the event feed: contract §8."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from dtq_core.events import EVENT_TYPES, TERMINAL_EVENTS, Event

FULL = {
    "event_id": "3f2a91bc-0000-4000-8000-000000000000",
    "ts": "2026-11-30T12:00:01.250+00:00",
    "type": "TASK_SUCCEEDED",
    "task_id": "a" * 32,
    "queue": "mail",
    "task_type": "send_email",
    "attempt": 2,
    "worker_id": "worker-1a2b3c4d",
    "metadata": {"duration_ms": 12},
}


@pytest.mark.contract(*[f"C8.{n:02}" for n in range(4, 16)], "D14")
def test_the_types():
    assert set(EVENT_TYPES) == {
        "TASK_QUEUED",
        "TASK_STARTED",
        "TASK_SUCCEEDED",
        "TASK_FAILED",
        "TASK_RETRY_SCHEDULED",
        "TASK_RETRIED",
        "TASK_DEAD_LETTERED",
        "TASK_CANCELLED",
        "WORKER_STARTED",
        "WORKER_STOPPED",
        "WORKER_STALE",
        "CONFIGURATION_CHANGED",
        "TASK_EXPIRED",
        "TASK_DUPLICATE_ABSORBED",
    }
    assert len(EVENT_TYPES) == 14
    assert set(EVENT_TYPES) > TERMINAL_EVENTS


@pytest.mark.contract("C8.01")
@pytest.mark.parametrize("message", [json.dumps(FULL), json.dumps(FULL).encode()], ids=["str", "bytes"])
def test_all_fields_are_read(message):
    event = Event.parse(message)
    assert event == Event(**{**FULL, "ts": datetime(2026, 11, 30, 12, 0, 1, 250_000, tzinfo=UTC)})


def test_what_does_not_apply_is_none_and_what_is_new_is_ignored():
    event = Event.parse('{"event_id":"e","ts":"2026-11-30T12:00:01Z","type":"WORKER_STARTED","colour":"red"}')
    assert (event.task_id, event.queue, event.attempt, event.metadata) == (None, None, None, None)
    assert event.ts == datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "hello",
        "[]",
        "7",
        "null",
        "{}",
        b"\xff\xfe",
        '{"type":7,"ts":"2026-11-30T12:00:01Z"}',
        '{"type":"TASK_QUEUED"}',
        '{"type":"TASK_QUEUED","ts":"yesterday"}',
        '{"type":"TASK_QUEUED","ts":1764504001}',
        '{"type":"TASK_QUEUED","ts":"2026-11-30T12:00:01"}',
        "[" * 100_000,
    ],
    ids=lambda m: repr(m)[:40],
)
def test_everything_else_on_the_channel_is_a_value_error(message):
    with pytest.raises(ValueError):
        Event.parse(message)
