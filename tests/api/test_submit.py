"""POST /tasks and /tasks:batch: every answer of §11, and the order of the checks (decision 9)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from api.service import check_error

LIMIT = 1000


def payload_of(size: int, sign: str = "x") -> dict[str, str]:
    """A payload of exactly `size` bytes as compact UTF-8 JSON."""
    room = size - len('{"k":""}')
    payload = {"k": sign * (room // len(sign.encode()))}
    assert len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()) == size
    return payload


@pytest.mark.contract("C11.01")
def test_a_new_task_is_202(api):
    answer = api.post("/tasks", {"task_type": "echo", "payload": {"n": 1}})
    assert answer.status_code == 202
    body = answer.json()
    assert body == {"task_id": body["task_id"], "status": "queued"}
    assert answer.headers["Location"] == f"/api/v1/tasks/{body['task_id']}"
    assert api.post("/tasks", {"task_type": "echo", "delay_seconds": 60}).json()["status"] == "pending"


@pytest.mark.contract("C11.08")
def test_fields_left_out_have_the_defaults_of_the_contract(api):
    task = api.task(api.submit())
    told = {k: task[k] for k in ("queue", "max_attempts", "priority", "timeout_ms", "metadata", "idempotency_key")}
    assert told == {
        "queue": "default", "max_attempts": 5, "priority": 5, "timeout_ms": 30_000, "metadata": {}, "idempotency_key": None,
    }  # fmt: skip


@pytest.mark.contract("C11.06", "BQ-37")
@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"1", b'{"payload":{}}', b"\xff\xfe", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
        b'{"task_type":"echo","payload":{"v":NaN}}', b'{"task_type":"echo","payload":{"v":-Infinity}}',
        b'{"task_type":"echo","payload":{"v":1e999}}', b'{"task_type":"echo","metadata":{"v":NaN}}',
        b'{"task_type":"echo","delay_seconds":1e999}', b'{"task_type":"echo","priority":NaN}',
        b'{"task_type":"echo","priority":5.5}', b'{"task_type":"echo","priority":"5"}', b'{"task_type":"echo","priority":10}',
        b'{"task_type":"echo","priority":true}', b'{"task_type":"echo","max_attempts":11}',
        b'{"task_type":"echo","timeout_ms":0}', b'{"task_type":"echo","payload":[]}', b'{"task_type":"echo","queue":"UPPER"}',
        b'{"task_type":"echo","queue":"a\\n"}', b'{"task_type":"echo","idempotency_key":""}', b'{"task_type":1}',
        b'{"task_type":"echo","surprise":1}', b'{"task_type":"echo","delay_seconds":-1}',
        b'{"task_type":"echo","payload":{"s":"\\ud800"}}', b'{"task_type":"echo","payload":{"n":' + b"9" * 5000 + b"}}",
        b'{"task_type":"echo","payload":' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
        b'{"task_type":"echo","payload":{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}}",
    ],
)  # fmt: skip
def test_what_breaks_a_limit_is_400_and_leaves_nothing(api, raw):
    check_error(api.post("/tasks", raw), 400, "INVALID_TASK")
    assert api.redis.keys("*") == []


def test_an_error_repeats_nothing_of_what_was_sent(api):
    """A 422 of the framework would echo the input; ours never does."""
    secret = "4111-1111-1111-1111"
    for body in (
        {"task_type": "echo", "payload": secret},
        {"task_type": "echo", "priority": secret},
        {"task_type": "echo", "metadata": [secret]},
        {"task_type": "echo", "delay_seconds": {"card": secret}},
        f'{{"task_type":"echo","payload":{{"card":"{secret}"'.encode(),
    ):
        answer = api.post("/tasks", body)
        check_error(answer, 400, "INVALID_TASK")
        assert secret not in answer.text


@pytest.mark.contract("C11.07", "C13.04")
@pytest.mark.parametrize("name", ["no_such_task", "os.system", "builtins:eval", "../../etc/passwd", "__import__('os')"])
def test_an_unknown_type_is_400(api, name):
    check_error(api.post("/tasks", {"task_type": name}), 400, "UNKNOWN_TASK_TYPE")


@pytest.mark.contract("C11.05", "C7.04", "BQ-53")
@pytest.mark.parametrize("sign", ["x", "ß", "🦊"])
def test_the_payload_is_measured_in_bytes_of_compact_json(make_api, sign):
    api = make_api(max_payload_bytes=LIMIT)
    assert api.post("/tasks", {"task_type": "echo", "payload": payload_of(LIMIT, sign)}).status_code == 202
    check_error(
        api.post("/tasks", {"task_type": "echo", "payload": payload_of(LIMIT) | {"a": 1}}), 413, "PAYLOAD_TOO_LARGE"
    )


@pytest.mark.contract("BQ-53")
def test_escapes_and_spaces_do_not_change_the_size(make_api):
    api = make_api(max_payload_bytes=LIMIT)
    size = LIMIT - len('{"k":""}')
    escaped = b'{"task_type":"echo","payload":{ "k" : "' + b"\\u0078" * size + b'"} }'
    assert api.post("/tasks", escaped).status_code == 202
    one_more = b'{"task_type":"echo","payload":{"k":"' + b"\\u0078" * (size + 1) + b'"}}'
    check_error(api.post("/tasks", one_more), 413, "PAYLOAD_TOO_LARGE")


@pytest.mark.contract("C11.04", "C7.02", "D24")
def test_a_full_queue_is_429_and_says_when_to_come_back(make_api):
    api = make_api(max_queue_depth=3)
    for _ in range(3):
        api.submit()
    keys = set(api.redis.keys("*"))
    answer = api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"})
    check_error(answer, 429, "QUEUE_FULL")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert set(api.redis.keys("*")) == keys


@pytest.mark.contract("D9")
def test_the_order_of_checks(make_api, world):
    """413 before 400 before replay before 429."""
    api = make_api(max_queue_depth=2, max_payload_bytes=LIMIT)
    world.worker()
    done = api.submit(payload={"n": 1}, idempotency_key="done")
    world.wait_ended([done])
    world.run(world.client.pause("default"))
    for _ in range(2):
        api.submit()
    large, wrong = payload_of(LIMIT + 100), {"priority": 99}
    check_error(api.post("/tasks", {"task_type": "echo", "payload": large, **wrong}), 413, "PAYLOAD_TOO_LARGE")
    check_error(api.post("/tasks", {"task_type": "echo", "idempotency_key": "done", **wrong}), 400, "INVALID_TASK")
    assert api.post("/tasks", {"task_type": "echo", "idempotency_key": "done"}).status_code == 200
    check_error(api.post("/tasks", {"task_type": "echo"}), 429, "QUEUE_FULL")


@pytest.mark.contract("C11.02", "C11.03", "C5.05", "D10")
def test_a_key_in_progress_is_409_with_its_task_and_a_replay_is_200_with_the_task(api, world):
    task_id = api.submit("gate", {"gate": "g"}, idempotency_key="k")
    body = check_error(
        api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"}), 409, "IDEMPOTENCY_IN_PROGRESS"
    )
    assert body["task_id"] == task_id
    world.worker()
    world.journal.open("g")
    world.wait_ended([task_id])
    answer = api.post("/tasks", {"task_type": "echo", "payload": {"other": 1}, "idempotency_key": "k"})
    assert answer.status_code == 200
    replay = answer.json()
    assert replay["duplicate"] is True
    assert (replay["task_id"], replay["status"], replay["payload"]) == (task_id, "succeeded", {"gate": "g"})


@pytest.mark.contract("C11.09", "C5.01")
@pytest.mark.parametrize("key", ["plain", "with space", "ключ-✓", "naïve"])
def test_the_header_wins_over_the_body(api, key):
    headers = {"Idempotency-Key": key.encode()}
    answer = api.post("/tasks", {"task_type": "echo", "idempotency_key": "body"}, headers=headers)
    assert api.task(answer.json()["task_id"])["idempotency_key"] == key
    assert api.post("/tasks", {"task_type": "echo", "idempotency_key": "body"}).status_code == 202
    check_error(api.post("/tasks", {"task_type": "echo"}, headers=headers), 409, "IDEMPOTENCY_IN_PROGRESS")


@pytest.mark.contract("BQ-53")
@pytest.mark.parametrize("key", [b"x" * 513, b"", b"tab\tinside", "🦊".encode() * 129])
def test_a_key_that_is_too_long_empty_or_not_text_is_400(api, key):
    check_error(api.post("/tasks", {"task_type": "echo"}, headers={"Idempotency-Key": key}), 400, "INVALID_TASK")


@pytest.mark.contract("C5.06")
def test_fifty_equal_keys_make_one_task(api, patient):
    with ThreadPoolExecutor(25) as pool:
        answers = list(pool.map(lambda _: api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"}), range(50)))
    codes = [a.status_code for a in answers]
    assert sorted(codes) == [202] + [409] * 49, [a.text for a in answers if a.status_code not in (202, 409)]
    assert {a.json()["task_id"] for a in answers} == {answers[codes.index(202)].json()["task_id"]}
    assert api.redis.xlen("dtq:stream:default:p5") == 1


@pytest.mark.contract("BQ-70", "C7.01")
def test_the_depth_limit_is_exact_under_a_stampede(make_api, patient):
    api = make_api(max_queue_depth=20)
    with ThreadPoolExecutor(25) as pool:
        answers = list(pool.map(lambda _: api.post("/tasks", {"task_type": "echo"}), range(100)))
    codes = sorted(a.status_code for a in answers)
    assert codes == [202] * 20 + [429] * 80, [a.text for a in answers if a.status_code not in (202, 429)]


def test_the_type_s_own_defaults_count_where_nothing_was_said(api):
    """As the command line does: what @task says of its type comes before the installation's defaults."""
    from dtq_api.routes.tasks import _destination

    assert _destination(api.services, {"task_type": "echo"}) == ("default", "echo")
    assert _destination(api.services, {"task_type": "echo", "queue": "mail"}) == ("mail", "echo")
    assert _destination(api.services, ["not", "a", "task"]) == ("", "")


# ------------------------------------------------------------------------------------------------ batches


def test_a_batch_has_one_answer_per_task_in_order(make_api, world):
    api = make_api(max_queue_depth=3)
    done = api.submit(idempotency_key="done")
    world.worker()
    world.wait_ended([done])
    world.run(world.client.pause("default"))
    held = api.submit(idempotency_key="held")
    answer = api.post(
        "/tasks:batch",
        {
            "tasks": [
                {"task_type": "echo", "payload": {"n": 0}},
                {"task_type": "echo", "priority": 77},
                {"task_type": "echo", "idempotency_key": "done"},
                {"task_type": "echo", "idempotency_key": "held"},
                {"task_type": "no_such_task"},
                "not an object",
                {"task_type": "echo", "payload": {"n": 1}},
                {"task_type": "echo", "payload": {"n": 2}},
            ]
        },
    )
    assert answer.status_code == 200
    body = answer.json()
    results = body["results"]
    assert [r["status_code"] for r in results] == [202, 400, 200, 409, 400, 400, 202, 429]
    assert [r.get("code") for r in results] == [
        None, "INVALID_TASK", None, "IDEMPOTENCY_IN_PROGRESS", "UNKNOWN_TASK_TYPE", "INVALID_TASK", None, "QUEUE_FULL",
    ]  # fmt: skip
    assert (results[2]["task_id"], results[2]["duplicate"], results[3]["task_id"]) == (done, True, held)
    assert 1 <= results[7]["retry_after_s"] <= 60
    assert (body["accepted"], body["refused"]) == (3, 5)
    assert api.task(results[6]["task_id"])["payload"] == {"n": 1}


@pytest.mark.parametrize(
    "body",
    [{}, [], {"tasks": []}, {"tasks": {}}, {"tasks": [{"task_type": "echo"}], "more": 1}, {"tasks": [{"task_type": "echo"}] * 1001}],
)  # fmt: skip
def test_what_is_no_batch_is_400_and_takes_nothing(api, body):
    check_error(api.post("/tasks:batch", body), 400, "INVALID_TASK")
    assert api.redis.keys("*") == []


def test_a_thousand_tasks_in_one_call(api):
    answer = api.post("/tasks:batch", {"tasks": [{"task_type": "echo", "payload": {"n": n}} for n in range(1000)]})
    assert answer.json()["accepted"] == 1000
    entries = api.redis.xrange("dtq:stream:default:p5")
    assert [json.loads(fields["payload"])["n"] for _, fields in entries] == list(range(1000))
