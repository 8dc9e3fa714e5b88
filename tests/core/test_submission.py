"""What a producer may ask for, and every limit at its edge: contract §1 and §11, decision 9."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pytest

from dtq_core.config import Settings
from dtq_core.errors import InvalidTask, PayloadTooLarge, UnknownTaskType
from dtq_core.submission import (
    MAX_COMPLAINT_CHARS,
    MAX_DELAY_S,
    MAX_KEY_BYTES,
    MAX_METADATA_BYTES,
    MAX_NESTING,
    MAX_TTL_S,
    Submission,
    SubmissionInput,
    decode_json,
    encode_json,
)

TASK_ID = uuid.uuid4().hex
SETTINGS = Settings(max_payload_bytes=1000, max_attempts=10)


def make(**fields: Any) -> Submission:
    return Submission.make({"task_type": "send_email", **fields}, TASK_ID, SETTINGS)


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidTask) as caught:
        make(**fields)
    assert type(caught.value) is InvalidTask
    return caught.value.message


def nested(levels: int) -> dict[str, Any]:
    """`levels` objects within each other."""
    payload: dict[str, Any] = {}
    for _ in range(levels - 1):
        payload = {"a": payload}
    return payload


# ------------------------------------------------------------------------------------------------ defaults


@pytest.mark.contract("C1.27", "C1.29", "C1.35", "C1.36", "C1.38", "C1.40", "C1.41", "C11.08")
def test_defaults():
    assert make() == Submission(
        task_id=TASK_ID,
        queue="default",
        task_type="send_email",
        payload=b"{}",
        idempotency_key="",
        max_attempts=0,
        priority=-1,
        timeout_ms=0,
        delay_ms=0,
        metadata=b"{}",
        ttl_ms=0,
    )


@pytest.mark.contract("C11.08", "C1.31", "C1.42")
def test_every_field_arrives():
    made = make(
        payload={"to": "änn", "n": [1, 2.5, None, True]},
        queue="mail",
        idempotency_key="order-7",
        max_attempts=3,
        priority=9,
        timeout_ms=1500,
        delay_seconds=1.25,
        metadata={"ttl_seconds": 90, "trace": "x"},
    )
    assert made == Submission(
        task_id=TASK_ID,
        queue="mail",
        task_type="send_email",
        payload='{"to":"änn","n":[1,2.5,null,true]}'.encode(),
        idempotency_key="order-7",
        max_attempts=3,
        priority=9,
        timeout_ms=1500,
        delay_ms=1250,
        metadata=b'{"ttl_seconds":90,"trace":"x"}',
        ttl_ms=90_000,
    )


def test_a_parsed_input_is_checked_like_raw_fields():
    assert Submission.make(SubmissionInput(task_type="send_email"), TASK_ID, SETTINGS) == make()
    with pytest.raises(PayloadTooLarge):
        Submission.make(SubmissionInput(task_type="x", payload={"a": "x" * 1000}), TASK_ID, SETTINGS)
    with pytest.raises(InvalidTask, match="max_attempts"):
        Submission.make(SubmissionInput(task_type="x", max_attempts=11), TASK_ID, SETTINGS)


@pytest.mark.contract("C1.26")
@pytest.mark.parametrize("task_id", ["", "1", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "a" * 32 + "\n"])
def test_a_task_id_is_32_hexadecimal_digits(task_id):
    with pytest.raises(InvalidTask, match="task_id"):
        Submission.make({"task_type": "x"}, task_id, SETTINGS)


# ------------------------------------------------------------------------------------------------ the payload


@pytest.mark.contract("C1.29", "BQ-53")
@pytest.mark.parametrize(
    "letter", ["x", "é", "漢", "😀", '"', "\n", "\x7f"], ids=["1", "2", "3", "4", "quote", "escape", "del"]
)
def test_the_payload_limit_counts_bytes_of_compact_utf8_and_is_exact(letter):
    overhead, each = len(b'{"a":""}'), len(encode_json(letter, "x")) - 2
    filling = letter * ((1000 - overhead) // each)
    fits = {"a": filling + "x" * (1000 - overhead - len(filling) * each)}
    assert len(make(payload=fits).payload) == 1000
    with pytest.raises(PayloadTooLarge, match="1001 bytes, at most 1000"):
        make(payload={"a": fits["a"] + "x"})


@pytest.mark.contract("BQ-53")
def test_escapes_and_blanks_of_the_sender_do_not_count():
    text = json.dumps({"a": "é" * 300}, ensure_ascii=True, indent=4)
    assert len(text) > 1000
    assert len(make(payload=decode_json(text)).payload) == 608


@pytest.mark.contract("C1.29", "C10.10")
def test_the_default_limit_is_a_quarter_of_a_mebibyte():
    settings = Settings()
    fits = {"a": "x" * (262_144 - 8)}
    assert len(Submission.make({"task_type": "x", "payload": fits}, TASK_ID, settings).payload) == 262_144
    with pytest.raises(PayloadTooLarge):
        Submission.make({"task_type": "x", "payload": {"a": fits["a"] + "x"}}, TASK_ID, settings)


@pytest.mark.contract("D9")
@pytest.mark.parametrize(
    "also_wrong",
    [
        {"queue": "NO"},
        {"task_type": ""},
        {"task_type": 7},
        {"priority": 99},
        {"unknown": 1},
        {"metadata": {"a": "x" * 5000}},
        {"payload": {"a": "x" * 1000, "b": math.nan}},
        {"payload": {"a": "x" * 1000, "b": "\ud800"}},
        {"payload": "x" * 1000},
        {"payload": ["x" * 1000]},
    ],
    ids=str,
)
def test_too_large_is_said_before_anything_else(also_wrong):
    with pytest.raises(PayloadTooLarge):
        make(**({"payload": {"a": "x" * 1000}} | also_wrong))


@pytest.mark.contract("C1.29")
@pytest.mark.parametrize("payload", [None, [], [1], "text", 1, 1.5, True, b"{}"], ids=repr)
def test_a_payload_that_is_no_object_is_refused(payload):
    assert "payload" in refused(payload=payload)


@pytest.mark.contract("BQ-37")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", ["payload", "metadata"])
def test_numbers_that_json_does_not_have_are_refused_at_any_depth(number, place):
    assert place in refused(**{place: {"a": [{"b": number}]}})


@pytest.mark.contract("BQ-37")
@pytest.mark.parametrize("text", ['{"a":NaN}', '{"a":[Infinity]}', "-Infinity", "1e999", '{"a":-1e400}'])
def test_strict_json_takes_no_nan_and_no_number_out_of_range(text):
    with pytest.raises(InvalidTask, match="not JSON"):
        decode_json(text)


@pytest.mark.parametrize("text", ["", "{", "'a'", "{a:1}", b"\xff", b'{"a":"\xff"}', "[" * 100_000, "1" * 5000])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(InvalidTask, match=r"^body: not JSON"):
        decode_json(text)


@pytest.mark.parametrize("where", ["payload", "metadata"])
def test_nesting_is_bounded(where):
    assert make(**{where: nested(MAX_NESTING)})
    assert "nested deeper" in refused(**{where: nested(MAX_NESTING + 1)})
    assert "nested deeper" in refused(**{where: nested(160)})


def test_nesting_counts_lists_too_and_ends_on_a_value_that_contains_itself():
    deep: list[Any] = []
    for _ in range(MAX_NESTING):
        deep = [deep]
    assert "nested deeper" in refused(payload={"a": deep})
    ring: dict[str, Any] = {}
    ring["a"] = ring
    assert "nested deeper" in refused(payload=ring)


def test_wide_payloads_are_not_deep():
    assert make(payload={"a": [[], {}, []] * 40})


@pytest.mark.parametrize(
    "payload", [{"a": "\ud800"}, {"\udfff": 1}, {"a": [{"b": "x\udc80y"}]}], ids=["value", "key", "deep"]
)
def test_lone_surrogates_are_refused(payload):
    assert "surrogate" in refused(payload=payload)
    assert "surrogate" in refused(metadata=payload)


def test_pairs_of_surrogates_are_one_letter():
    assert make(payload=decode_json('{"a":"\\ud83d\\ude00"}')).payload == '{"a":"😀"}'.encode()


def test_huge_integers_are_kept_exactly_or_refused_but_never_rounded():
    number = 2**64 + 1
    assert json.loads(make(payload={"n": number}).payload)["n"] == number
    assert "payload" in refused(payload={"n": 10**5000})


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j, uuid.uuid4()], ids=lambda v: type(v).__name__)
def test_values_without_a_json_form_are_refused(value):
    assert "payload" in refused(payload={"a": value})


def test_names_in_a_payload_are_texts():
    refused(payload={1: "a"})
    refused(payload={(1, 2): "a"})


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.contract("C1.40")
@pytest.mark.parametrize("queue", ["", "A", "a b", "a:b", "-a", "a" * 65, "ä", "a\n", "a\x00", "\ud800"])
def test_queue_names_outside_the_rule_are_refused(queue):
    assert "queue" in refused(queue=queue)


@pytest.mark.contract("C1.28", "C11.07")
@pytest.mark.parametrize("name", ["a b", "a\n", "-a", ".a", "ä", "a;b", "\x00"])
def test_a_type_that_cannot_exist_is_unknown(name):
    with pytest.raises(UnknownTaskType):
        make(task_type=name)


@pytest.mark.contract("C1.28")
@pytest.mark.parametrize("name", ["", "x" * 129, None, 7, ["a"]], ids=repr)
def test_a_type_that_is_no_name_is_refused(name):
    assert "task_type" in refused(task_type=name)


def test_longest_names():
    assert make(task_type="x" * 128, queue="q" * 64)


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.contract("C1.35", "C1.36", "C1.38", "C10.12")
@pytest.mark.parametrize(
    ("field", "low", "high"),
    [("max_attempts", 1, 10), ("priority", 0, 9), ("timeout_ms", 1, 3_600_000), ("delay_seconds", 0, MAX_DELAY_S)],
)
def test_numbers_at_their_edges(field, low, high):
    make(**{field: low})
    make(**{field: high})
    for value in (low - 1, high + 1, -(10**30), 10**30, math.inf, -math.inf, math.nan):
        assert field in refused(**{field: value})


@pytest.mark.parametrize("field", ["max_attempts", "priority", "timeout_ms", "delay_seconds"])
@pytest.mark.parametrize("value", [True, False, "3", [3], {}, b"3"], ids=repr)
def test_other_types_are_not_numbers(field, value):
    assert field in refused(**{field: value})


@pytest.mark.parametrize("field", ["max_attempts", "priority", "timeout_ms"])
def test_whole_numbers_are_whole(field):
    assert field in refused(**{field: 1.5})
    assert make(**{field: None}) == make()


def test_a_delay_may_be_a_fraction():
    assert make(delay_seconds=0.0005).delay_ms == 0
    assert make(delay_seconds=2.0006).delay_ms == 2001
    assert make(delay_seconds=3).delay_ms == 3000


@pytest.mark.contract("C10.12")
def test_the_cap_of_attempts_is_the_setting():
    settings = Settings(max_attempts=3)
    Submission.make({"task_type": "x", "max_attempts": 3}, TASK_ID, settings)
    with pytest.raises(InvalidTask, match="1 to 3"):
        Submission.make({"task_type": "x", "max_attempts": 4}, TASK_ID, settings)


# ------------------------------------------------------------------------------------------------ metadata and key


@pytest.mark.contract("C1.41")
def test_metadata_is_limited_to_four_kibibytes():
    fits = {"a": "x" * (MAX_METADATA_BYTES - 8)}
    assert len(make(metadata=fits).metadata) == 4096
    assert "4097 bytes" in refused(metadata={"a": fits["a"] + "x"})
    assert "metadata" in refused(metadata={"a": "é" * 2045})


@pytest.mark.contract("C1.41")
@pytest.mark.parametrize("metadata", [None, [], "x", 1], ids=repr)
def test_metadata_is_an_object(metadata):
    assert "metadata" in refused(metadata=metadata)


@pytest.mark.contract("C1.42")
def test_ttl_in_milliseconds():
    assert make(metadata={"ttl_seconds": 1.5}).ttl_ms == 1500
    assert make(metadata={"ttl_seconds": 0.0001}).ttl_ms == 1, "as short as can be, but still a limit"
    assert make(metadata={"ttl_seconds": None}).ttl_ms == 0
    assert make(metadata={"ttl_seconds": MAX_TTL_S}).ttl_ms == MAX_TTL_S * 1000


@pytest.mark.contract("C1.42")
@pytest.mark.parametrize("ttl", [0, -1, True, "60", [], {}, MAX_TTL_S + 1, 10**400], ids=lambda t: repr(t)[:12])
def test_a_ttl_that_is_no_time_is_refused(ttl):
    assert "ttl_seconds" in refused(metadata={"ttl_seconds": ttl})


@pytest.mark.contract("C1.27", "BQ-53")
def test_the_idempotency_key_is_bounded_in_bytes():
    assert make(idempotency_key="k" * MAX_KEY_BYTES)
    assert "512 bytes" in refused(idempotency_key="k" * (MAX_KEY_BYTES + 1))
    assert "512 bytes" in refused(idempotency_key="é" * 257)
    assert "512 bytes" in refused(idempotency_key="k" * 1_000_000)


@pytest.mark.contract("C1.27")
@pytest.mark.parametrize("key", ["", "a\nb", "a\x00", "\x7f", "\ud800", 7, True, ["k"]], ids=repr)
def test_keys_that_are_refused(key):
    assert "idempotency_key" in refused(idempotency_key=key)


# ------------------------------------------------------------------------------------------------ complaints


@pytest.mark.parametrize("raw", [[], "text", 7, None, True], ids=repr)
def test_a_submission_is_an_object(raw):
    with pytest.raises(InvalidTask, match="JSON object"):
        Submission.make(raw, TASK_ID, SETTINGS)


def test_unknown_fields_are_refused_by_name():
    assert "priorty" in refused(priorty=3)
    assert "task_id" in refused(task_id="a" * 32)


@pytest.mark.contract("C13.20", "C13.22")
def test_complaints_are_short_printable_and_do_not_repeat_values():
    message = refused(**{"x" * 5000: 1, "new\nline": 1, "\ud800": 1}, priority="hunter2", queue=["hunter2"])
    assert len(message) <= MAX_COMPLAINT_CHARS and message.isprintable()
    message.encode()
    assert "hunter2" not in message + refused(payload="hunter2") + refused(queue="hunter2 hunter2")


@pytest.mark.parametrize(("levels", "taken"), [(128, True), (129, False)])
def test_how_deep_a_payload_may_be(levels: int, taken: bool) -> None:
    payload: dict[str, Any] = {}
    for _ in range(levels - 1):
        payload = {"a": payload}
    raw = {"task_type": "echo", "payload": payload}
    if taken:
        Submission.make(raw, "a" * 32, Settings())
    else:
        with pytest.raises(InvalidTask, match="nested deeper than 128 levels"):
            Submission.make(raw, "a" * 32, Settings())
