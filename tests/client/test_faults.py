"""The client when the network or the service fails: one task whatever gets lost, no retry of what is wrong, and an end in time.

Every test runs with both clients, against a hop that breaks at the moment the test names.
"""

from __future__ import annotations

import socket
import threading
import time
from email.utils import formatdate

import pytest
from api.service import Service
from client.faults import Hop, answer, cut_reply, do_and_hang, hang, lose_reply, passed, reset, trickle, trickle_head
from support.eventually import eventually

import dtq_client
from dtq_client import Submitted, WaitTimeout
from dtq_client.exchange import retry_after_s

FULL = {"code": "QUEUE_FULL", "message": "queue default holds 1 tasks, its limit", "request_id": "r1"}
DOWN = {"code": "REDIS_UNAVAILABLE", "message": "Redis does not answer", "request_id": "r2"}
LATE_S = 3.0
"""How much later than its deadline a call may end on a busy machine."""


def tasks_of(api):
    return [task["task_id"] for task in api.get("/tasks").json()["tasks"]]


@pytest.fixture
def prompt(make_client, hop):
    """A client that gives up a try early."""
    return make_client(hop.url, timeout_s=10, attempt_timeout_s=0.5)


# ------------------------------------------------------------------------------------------------ exactly one task


@pytest.mark.contract("BQ-05", "C5.06")
@pytest.mark.parametrize("fault", [lose_reply, cut_reply, do_and_hang, reset], ids=lambda f: f.__name__)
def test_a_lost_answer_still_makes_exactly_one_task(prompt, hop, api, fault):
    hop.next(fault)
    taken = prompt.submit("echo", {"n": 1})
    assert not taken.duplicate, "a key made up for this call can only be this call's"
    assert tasks_of(api) == [taken.task_id]
    assert len(hop.requests) == 2
    assert len({(request.body, request.headers["x-request-id"]) for request in hop.requests}) == 1


def test_a_lost_answer_whose_task_has_ended_meanwhile_is_that_task(prompt, hop, api, world):
    world.worker()

    def lose_until_it_ended(exchange):
        exchange.forward()
        eventually(lambda: [t["status"] for t in api.get("/tasks").json()["tasks"]] == ["succeeded"])
        exchange.reset()

    prompt.attempt_timeout_s = 20
    hop.next(lose_until_it_ended)
    taken = prompt.submit("echo")
    assert taken == Submitted(tasks_of(api)[0], "succeeded", duplicate=False) and len(tasks_of(api)) == 1


@pytest.mark.contract("C5.04")
def test_a_key_in_progress_gives_the_task(client, hop, api):
    first = client.submit("echo", idempotency_key="k")
    hop.next(lose_reply)
    assert client.submit("echo", idempotency_key="k") == Submitted(first.task_id, None, duplicate=True)
    assert tasks_of(api) == [first.task_id]


def test_many_with_lost_answers_are_each_taken_once(prompt, hop, api):
    prompt.attempt_timeout_s = 5
    hop.next(lose_reply, cut_reply, passed, lose_reply)
    batch = prompt.submit_many([{"task_type": "echo", "payload": {"n": n}} for n in range(1500)])
    assert len({answer.task_id for answer in batch.submitted}) == 1500 and not any(a.duplicate for a in batch.submitted)
    assert api.redis.hget("dtq:ledger:default", "submitted") == "1500"


def test_who_gives_up_can_go_on_with_the_same_key(prompt, hop, api):
    hop.next(*[lose_reply] * 50)
    with pytest.raises(dtq_client.NoAnswer) as caught:
        prompt.submit("echo", timeout_s=0.3)
    error = caught.value
    assert error.may_have_happened and error.idempotency_key and error.request_id
    hop.faults.clear()
    taken = prompt.submit("echo", idempotency_key=error.idempotency_key)
    assert tasks_of(api) == [taken.task_id]


def test_a_cancellation_whose_answer_was_lost_is_still_one(prompt, hop):
    task_id = prompt.submit("echo").task_id
    hop.next(lose_reply)
    assert prompt.cancel(task_id) == dtq_client.Cancellation(task_id, ended=True)
    with pytest.raises(dtq_client.TaskTerminal):  # nobody can say that of a later call
        prompt.cancel(task_id)


# ------------------------------------------------------------------------------------------------ what is tried again


def test_a_burst_of_outages_is_ridden_out(client, hop, api):
    hop.next(answer(503, DOWN), answer(502, b"<html>bad gateway</html>"), reset, answer(408))
    taken = client.submit("echo")
    assert tasks_of(api) == [taken.task_id] and len(hop.requests) == 5


def test_retry_after_is_honoured(client, hop):
    hop.next(answer(429, FULL, retry_after="1"))
    began = time.monotonic()
    client.submit("echo")
    assert time.monotonic() - began >= 1 and len(hop.requests) == 2


def test_what_a_batch_refuses_for_the_moment_is_asked_again_and_nothing_else(client, hop, api):
    busy = {"status_code": 429, **FULL, "retry_after_s": 1}
    wrong = {"status_code": 400, "code": "INVALID_TASK", "message": "no"}
    hop.next(answer(200, {"results": [{"status_code": 202, "task_id": "a", "status": "queued"}, busy, wrong]}))
    began = time.monotonic()
    batch = client.submit_many([{"task_type": "echo", "payload": {"n": n}} for n in range(3)])
    assert time.monotonic() - began >= 1
    assert batch.answers[:2] == (Submitted("a", "queued"), Submitted(tasks_of(api)[0], "queued"))
    assert [list(batch.refused), batch.refused[2].code] == [[2], "INVALID_TASK"]
    assert [[task["payload"]["n"] for task in request.json["tasks"]] for request in hop.requests] == [[0, 1, 2], [1]]


def test_a_retry_after_beyond_the_deadline_is_told_at_once(client, hop):
    hop.next(answer(429, FULL, retry_after="60"))
    began = time.monotonic()
    with pytest.raises(dtq_client.QueueFull) as caught:
        client.submit("echo")
    assert time.monotonic() - began < LATE_S
    assert (caught.value.retry_after_s, caught.value.request_id) == (60, "r1")
    assert not caught.value.may_have_happened and len(hop.requests) == 1


def test_items_of_a_batch_that_stay_refused_say_why_and_the_others_are_taken(make_api, make_client):
    client = make_client(make_api(max_queue_depth=2).base, timeout_s=2)
    batch = client.submit_many([{"task_type": "echo", "idempotency_key": f"k{n}"} for n in range(5)])
    assert len(batch.submitted) == 2
    assert {at: (e.code, e.idempotency_key) for at, e in batch.refused.items()} == {
        n: ("QUEUE_FULL", f"k{n}") for n in (2, 3, 4)
    }
    assert all(isinstance(e, dtq_client.QueueFull) and e.retry_after_s for e in batch.refused.values())


def test_what_is_wrong_is_not_tried_again(make_client, lonely):
    client = make_client(lonely.url)
    for status in (400, 401, 403, 404, 405, 409, 410, 413, 422, 500):
        lonely.requests.clear()
        lonely.next(answer(status, {"code": "FROM_THE_FUTURE", "message": "no", "request_id": "r"}))
        with pytest.raises(dtq_client.ApiError) as caught:
            client.submit("echo")
        assert (caught.value.status, caught.value.code, len(lonely.requests)) == (status, "FROM_THE_FUTURE", 1)
        assert caught.value.may_have_happened == (status == 500)


def test_what_is_not_the_api_is_told(make_client, lonely):
    client = make_client(lonely.url)
    strange = (b"<html>", b"[]", b"[" * 100_000, b'{"task_id": 5, "status": "queued"}')
    for fault in (answer(302, location="/login"), answer(204), *(answer(200, body) for body in strange)):
        for call in (
            lambda: client.submit("echo"),
            lambda: client.get("a"),
            lambda: client.wait("a"),
            lambda: client.cancel("a"),
        ):
            lonely.requests.clear()
            lonely.next(fault)
            with pytest.raises(dtq_client.BadAnswer, match="base URL"):
                call()
            assert len(lonely.requests) == 1
    lonely.next(answer(200, {"results": []}))
    assert [e.code for e in client.submit_many([{"task_type": "echo"}] * 2).refused.values()] == ["BAD_ANSWER"] * 2
    lonely.next(answer(404, b"not here"))
    assert [e.code for e in client.submit_many([{"task_type": "echo"}] * 2).refused.values()] == ["HTTP_404"] * 2


# ------------------------------------------------------------------------------------------------ the deadline


@pytest.mark.parametrize("fault", [hang, trickle, trickle_head, reset, answer(503, DOWN)])
def test_a_deadline_ends_everything(make_client, lonely, fault):
    client = make_client(lonely.url, timeout_s=0.2)
    calls = [lambda: client.submit("echo"), lambda: client.wait("a", 0.2)]
    if fault is hang:
        many = [{"task_type": "echo"}] * 1001
        calls += [lambda: client.get("a"), lambda: client.cancel("a"), lambda: client.submit_many(many).raise_refused()]
    for call in calls:
        lonely.faults.clear()
        lonely.next(*[fault] * 100)
        began = time.monotonic()
        with pytest.raises((dtq_client.NoAnswer, dtq_client.Unavailable, WaitTimeout)) as caught:
            call()
        assert time.monotonic() - began < 0.2 + LATE_S
        assert caught.value.code in ("NO_ANSWER", "REDIS_UNAVAILABLE", "WAIT_TIMEOUT")


def test_nobody_listens(make_client):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = make_client(f"http://127.0.0.1:{port}", timeout_s=0.5)
    with pytest.raises(dtq_client.NoAnswer) as caught:
        client.submit("echo")
    assert not caught.value.may_have_happened and "ConnectError" in str(caught.value)


# ------------------------------------------------------------------------------------------------ waiting


@pytest.mark.contract("BQ-24")
def test_a_wait_outlives_lost_connections_and_outages(client, hop, world):
    task_id = client.submit("gate", {"gate": "g"}).task_id
    world.worker()

    def open_the_gate(exchange):
        world.journal.open("g")
        passed(exchange)

    hop.requests.clear()
    hop.next(reset, answer(503, DOWN), answer(504), cut_reply_now, open_the_gate)
    assert client.wait(task_id, 20).succeeded
    assert len(hop.requests) == 5 and all("?wait=" in request.path for request in hop.requests)


def cut_reply_now(exchange):
    """An answer of "not yet", before its time, as from a service that stops."""
    exchange.seen = type(exchange.seen)("GET", exchange.seen.path.split("?")[0], exchange.seen.headers, b"")
    passed(exchange)


def test_a_wait_outlives_a_restart_of_the_service(make_client, engine, world):
    with Hop(1) as hop, Service(engine) as second:
        client = make_client(hop.url)
        with Service(engine) as first:
            hop.api_port = first.port
            task_id = client.submit("echo").task_id

            def stop_while_it_waits(exchange):
                under_way = threading.Thread(target=passed, args=[exchange])
                under_way.start()
                eventually(lambda: first.services.turns.requests)
                first._server.config.timeout_graceful_shutdown = 0
                first._server.should_exit = True
                under_way.join(20)
                hop.api_port = second.port
                world.worker(ready=False)

            hop.next(stop_while_it_waits)
            assert client.wait(task_id, 30).succeeded
    assert len(hop.requests) >= 3


def test_an_early_answer_is_not_asked_for_in_a_tight_loop(make_client, lonely):
    client = make_client(lonely.url)
    lonely.next(*[answer(200, {"task_id": "a", "status": "running", "surprise": 1})] * 1000)
    with pytest.raises(WaitTimeout) as caught:
        client.wait("a", 0.6)
    assert caught.value.task.status == "running" and len(lonely.requests) < 10


def test_a_wait_that_reaches_nobody_says_so(make_client, lonely):
    client = make_client(lonely.url)
    lonely.next(*[reset] * 100)
    with pytest.raises(WaitTimeout, match="never seen; NO_ANSWER") as caught:
        client.wait("a", 0.3)
    assert caught.value.task is None and isinstance(caught.value.__cause__, dtq_client.NoAnswer)


def test_retry_after_is_a_number_or_a_date_and_else_ignored():
    assert [retry_after_s(text) for text in ("0", " 7 ", "60")] == [0, 7, 60]
    assert 8 < (retry_after_s(formatdate(time.time() + 10, usegmt=True)) or 0) <= 10
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert [retry_after_s(t) for t in (None, "", "-1", "nan", "inf", "1e9", "9" * 30, "soon", "²")] == [None] * 9
