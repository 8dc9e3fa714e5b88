"""What a producer does with the client while nothing breaks: submit, many, get, wait, cancel, and each refusal."""

from __future__ import annotations

import datetime
import inspect
import logging
import pickle
import re
import sys
from collections.abc import Iterator

import pytest
from support.eventually import eventually

import dtq_client
from dtq_client import AsyncClient, Client, InvalidCall, Submitted, WaitTimeout

NOBODY = "f" * 32
KEY = "k-3cret-" + "0" * 24
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_task_is_submitted_with_all_its_fields_and_read_back(client, api):
    taken = client.submit(
        "echo", {"n": 1, "tëxt": "ü"}, queue="mail", idempotency_key="order ü 17", max_attempts=3, priority=9,
        timeout_ms=1000, delay_seconds=60, metadata={"ttl_seconds": 100}, traceparent=TRACE,
    )  # fmt: skip
    assert taken == Submitted(taken.task_id, "pending", duplicate=False)
    task = client.get(taken.task_id)
    assert (task.queue, task.task_type, task.payload) == ("mail", "echo", {"n": 1, "tëxt": "ü"})
    assert (task.idempotency_key, task.max_attempts, task.priority, task.timeout_ms) == ("order ü 17", 3, 9, 1000)
    assert task.metadata["ttl_seconds"] == 100
    assert task.created_at is not None and task.created_at.tzinfo is not None
    assert task.available_at - task.created_at == datetime.timedelta(seconds=60)
    assert (task.ended, task.succeeded, task.attempt, task.history, task.result) == (False, False, 0, (), None)


def test_each_request_says_who_asks_and_carries_what_was_given(make_client, hop):
    client = make_client(hop.url, KEY)
    task_id = client.submit("echo", traceparent=TRACE).task_id
    client.get(task_id)
    first, second = hop.requests
    assert first.headers["traceparent"] == TRACE and "traceparent" not in second.headers
    assert re.fullmatch(r"dtq-client/\S+ python/3\S+ httpx/\S+", first.headers["user-agent"])
    assert first.headers["x-api-key"] == second.headers["x-api-key"] == KEY
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert KEY not in first.path + second.path


def test_a_task_can_be_waited_for_however_it_ends(client, world):
    world.worker()
    done = client.wait(client.submit("echo", {"n": 1}).task_id, 20)
    assert (done.status, done.ended, done.succeeded, done.result) == ("succeeded", True, True, {"n": 1})
    assert len(done.history) == 1 and done.history[0].finished_at == done.finished_at
    dead = client.wait(client.submit("raise", {"kind": "permanent"}).task_id, 20)
    assert (dead.status, dead.succeeded, dead.retryable) == ("dead_lettered", False, False)
    assert dead.error_class


def test_a_wait_ends_at_its_time_with_the_task_as_it_is(client):
    task_id = client.submit("echo").task_id
    with pytest.raises(WaitTimeout) as caught:
        client.wait(task_id, 0.5)
    assert caught.value.task.status == "queued" and caught.value.task_id == task_id
    assert "last seen queued" in str(caught.value)


def test_a_key_of_the_caller_leads_to_its_task(client, world):
    first = client.submit("echo", {"n": 1}, idempotency_key="k")
    again = client.submit("echo", {"n": 2}, idempotency_key="k")
    assert again == Submitted(first.task_id, None, duplicate=True)
    world.worker()
    client.wait(first.task_id, 20)
    assert client.submit("echo", idempotency_key="k") == Submitted(first.task_id, "succeeded", duplicate=True)


def test_calls_without_a_key_are_different_tasks(client):
    first, second = client.submit("echo"), client.submit("echo")
    assert first.task_id != second.task_id and not first.duplicate and not second.duplicate


def test_many_are_split_and_each_has_its_answer_in_order(client, hop):
    tasks = [{"task_type": "echo", "payload": {"n": n}, "queue": f"q{n % 2}"} for n in range(2100)]
    tasks[5] = {"task_type": "echo", "priority": 99}
    tasks[1500] = {"task_type": "echo", "payload": {"n": object()}}
    tasks[7] = tasks[9] = {"task_type": "echo", "idempotency_key": "twice"}
    batch = client.submit_many(task for task in tasks)
    assert [len(request.json["tasks"]) for request in hop.requests] == [1000, 1000, 99]
    assert len(batch.answers) == 2100 and len(batch.submitted) == 2098
    assert {at: error.code for at, error in batch.refused.items()} == {5: "INVALID_TASK", 1500: "INVALID_TASK"}
    assert batch.answers[9] == Submitted(batch.answers[7].task_id, None, duplicate=True)
    assert client.get(batch.answers[2000].task_id).payload == {"n": 2000}
    with pytest.raises(dtq_client.InvalidTask, match="priority"):
        batch.raise_refused()
    assert client.submit_many([]).answers == ()


@pytest.fixture
def long_numbers() -> Iterator[None]:
    """A producer that may write numbers which the service cannot read."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("long_numbers")
def test_many_large_ones_are_split_by_size_and_an_unreadable_one_spoils_no_other(client, hop):
    deep: object = 1
    for _ in range(200):
        deep = {"a": deep}
    tasks = [{"task_type": "echo", "payload": {"pad": "x" * 250_000}} for _ in range(20)]
    tasks[3] = {"task_type": "echo", "payload": deep}
    tasks[11] = {"task_type": "echo", "payload": {"pad": "x" * 6_000_000}}
    tasks[5] = {"task_type": "echo", "payload": {"n": 10**5000}}
    batch = client.submit_many(tasks)
    assert {at: error.code for at, error in batch.refused.items()} == {
        3: "INVALID_TASK", 5: "INVALID_TASK", 11: "PAYLOAD_TOO_LARGE",
    }  # fmt: skip
    assert all(len(request.body) < 4_200_000 or len(request.json["tasks"]) == 1 for request in hop.requests)


def test_cancelling(client, world):
    waiting = client.submit("echo", queue="nobody").task_id
    assert client.cancel(waiting) == dtq_client.Cancellation(waiting, ended=True)
    with pytest.raises(dtq_client.TaskTerminal) as caught:
        client.cancel(waiting)
    assert caught.value.status == 410
    world.worker()
    running = client.submit("gate", {"gate": "never"}).task_id
    eventually(lambda: client.get(running).status == "running")
    assert client.cancel(running) == dtq_client.Cancellation(running, ended=False)
    assert client.wait(running, 20).status == "cancelled"


REFUSALS = [
    (lambda c: c.submit("echo", priority=10), dtq_client.InvalidTask, 400, "INVALID_TASK"),
    (lambda c: c.submit("no_such_type"), dtq_client.UnknownTaskType, 400, "UNKNOWN_TASK_TYPE"),
    (lambda c: c.submit("echo", {"x": "x" * 300_000}), dtq_client.PayloadTooLarge, 413, "PAYLOAD_TOO_LARGE"),
    (lambda c: c.submit("echo", idempotency_key=""), dtq_client.InvalidTask, 400, "INVALID_TASK"),
    (lambda c: c.get(NOBODY), dtq_client.TaskNotFound, 404, "TASK_NOT_FOUND"),
    (lambda c: c.wait(NOBODY), dtq_client.TaskNotFound, 404, "TASK_NOT_FOUND"),
    (lambda c: c.cancel(NOBODY), dtq_client.TaskNotFound, 404, "TASK_NOT_FOUND"),
]


def test_a_refusal_has_its_class_and_code_and_is_asked_once(client, hop):
    for call, kind, status, code in REFUSALS:
        hop.requests.clear()
        with pytest.raises(kind) as caught:
            call(client)
        error = caught.value
        assert (error.status, error.code, error.may_have_happened) == (status, code, False)
        assert error.request_id == hop.requests[0].headers["x-request-id"] and error.request_id in str(error)
        assert len(hop.requests) == 1
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.facts) == (type(error), str(error), error.facts)


def test_keys_open_what_they_should(make_api, make_client):
    base = make_api(api_key="right").base
    task_id = make_client(base).submit("echo").task_id
    with pytest.raises(dtq_client.Unauthorized):
        make_client(base).cancel(task_id)
    with pytest.raises(dtq_client.Forbidden):
        make_client(base, "wrong").cancel(task_id)
    assert make_client(base, "right\n").cancel(task_id).ended


def test_address_and_key_come_from_the_environment(make_client, hop, monkeypatch):
    monkeypatch.setenv("DTQ_API_URL", f"{hop.url}/")
    monkeypatch.setenv("DTQ_API_KEY", "new, old")
    make_client().submit("echo")
    make_client(api_key="").submit("echo")
    assert [request.headers.get("x-api-key") for request in hop.requests] == ["new", None]


NONSENSE = [
    lambda c: c.get(""), lambda c: c.get(".."), lambda c: c.get("a/b"), lambda c: c.get("a?wait=1"), lambda c: c.get(None),
    lambda c: c.cancel("a\n"), lambda c: c.wait(NOBODY, 0), lambda c: c.wait(NOBODY, -1),
    lambda c: c.wait(NOBODY, float("nan")), lambda c: c.get(NOBODY, timeout_s="5"), lambda c: c.get(NOBODY, timeout_s=True),
    lambda c: c.submit("echo", traceparent="nonsense"), lambda c: c.submit("echo", traceparent=f"{TRACE}\r\nx: y"),
]  # fmt: skip


def test_a_call_that_makes_no_sense_is_not_sent(make_client, lonely):
    client = make_client(lonely.url)
    for call in NONSENSE:
        with pytest.raises(InvalidCall) as caught:
            call(client)
        assert isinstance(caught.value, ValueError) and caught.value.code == "INVALID_CALL"
    assert lonely.requests == []


def test_what_is_not_json_is_an_invalid_task_and_its_content_is_not_repeated(make_client, lonely):
    client = make_client(lonely.url)
    circle: dict[str, object] = {}
    circle["self"] = circle
    for value in (float("nan"), {1, 2}, b"4111", "\ud800 4111", 10**5000, circle, {(1, 2): 3}):
        with pytest.raises(dtq_client.InvalidTask) as caught:
            client.submit("echo", {"x": value})
        assert "4111" not in repr(caught.value)
    with pytest.raises(dtq_client.InvalidTask):
        client.submit_many(["echo"]).raise_refused()
    assert lonely.requests == []


@pytest.mark.parametrize(
    "url",
    [None, "", "dtq-api:8000", "ftp://x", "http://", "http://u:p4ss@h", "http://h?x=1", "http://h:99999", " http://h"],
)
def test_a_base_url_that_cannot_be_used_is_refused_and_not_repeated(make_client, monkeypatch, url):
    monkeypatch.delenv("DTQ_API_URL", raising=False)
    with pytest.raises(InvalidCall) as caught:
        make_client(url)
    assert "base URL" in str(caught.value) and "p4ss" not in repr(caught.value)


@pytest.mark.parametrize(
    "options", [{"api_key": "a\nb"}, {"api_key": "a\x00b"}, {"timeout_s": 0}, {"attempt_timeout_s": 1e9}]
)
def test_a_setting_that_cannot_be_used_is_refused(make_client, options):
    with pytest.raises(InvalidCall) as caught:
        make_client("http://h", **options)
    assert "a\nb" not in str(caught.value)


def test_the_key_is_nowhere_but_in_its_header(make_client, make_api, caplog):
    caplog.set_level(logging.DEBUG)
    client = make_client(make_api(api_key="other").base, KEY, timeout_s=0.5)
    with pytest.raises(dtq_client.Forbidden) as refused:
        client.cancel(client.submit("echo").task_id)
    with pytest.raises(dtq_client.NoAnswer) as unheard:
        make_client("http://127.0.0.1:1", KEY, timeout_s=0.5).submit("echo")
    shown = [repr(client), repr(client._address), *(repr(e.value) + repr(vars(e.value)) for e in (refused, unheard))]
    assert client.__repr__().endswith(f"('{client._address.url}')")
    assert KEY not in "".join(shown) + caplog.text


def test_a_closed_client_says_so(make_client, api):
    client = make_client(api.base)
    task_id = client.submit("echo").task_id
    if hasattr(client, "_runner"):
        client._runner.run(client.client.aclose())
    else:
        client.close()
    with pytest.raises(InvalidCall, match="closed"):
        client.get(task_id)


def test_both_clients_have_the_same_calls():
    def calls(kind):
        return {
            name: str(inspect.signature(method)).replace("http: 'httpx.AsyncClient", "http: 'httpx.Client")
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")) and "close" not in name
        }

    assert calls(Client) == calls(AsyncClient)


def test_context_managers_close(api):
    import asyncio

    with Client(api.base) as client:
        client.submit("echo")
    assert client._http.is_closed

    async def use() -> AsyncClient:
        async with AsyncClient(api.base) as client:
            await asyncio.gather(*(client.submit("echo") for _ in range(50)))
        return client

    assert asyncio.run(use())._http.is_closed
