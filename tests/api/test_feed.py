"""The live feed: what a reader's buffer keeps (contract §7), the fan-out, WebSocket and server-sent events (§8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from api.service import Sleeper, check_error
from hypothesis import given
from hypothesis import strategies as st
from support.eventually import eventually
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dtq_api.feed import DROPPED, Filter, Reader
from dtq_core.errors import InvalidArgument
from dtq_core.events import Event

ALL = Filter()


@pytest.fixture
def drain() -> Iterator[Callable[[Reader], list[str]]]:
    """Everything a reader has, as it would be sent."""

    async def read(reader: Reader) -> list[str]:
        texts = []
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.01):
                    texts.append(await reader.next())
        return texts

    with asyncio.Runner() as runner:
        yield lambda reader: runner.run(read(reader))


# ------------------------------------------------------------------------------------------------ one buffer


@pytest.mark.contract("C7.09", "C7.10", "BQ-41")
def test_a_full_buffer_loses_ordinary_events_and_keeps_terminal_ones(drain):
    reader = Reader(ALL, size=4)
    for n in range(6):
        reader.offer(f"o{n}", terminal=False)
    for n in range(3):
        reader.offer(f"t{n}", terminal=True)
    assert len(reader) == 4 and not reader.overrun
    first, *rest = drain(reader)
    assert rest == ["o3", "t0", "t1", "t2"], "in order, the oldest ordinary ones made room"
    notice = json.loads(first)
    assert (notice["type"], notice["metadata"]) == (DROPPED, {"reason": "slow_reader", "dropped": 5})
    assert set(notice) == {
        "event_id",
        "ts",
        "type",
        "task_id",
        "queue",
        "task_type",
        "attempt",
        "worker_id",
        "metadata",
    }


@pytest.mark.contract("C7.11")
def test_past_the_cap_the_reader_goes():
    reader = Reader(ALL, size=3)
    for n in range(3):
        reader.offer(f"t{n}", terminal=True)
    reader.offer("o", terminal=False)
    assert not reader.overrun
    reader.offer("t3", terminal=True)
    assert reader.overrun and reader.ended.is_set()
    for n in range(10_000):
        reader.offer(f"t{n}", terminal=True)
    assert len(reader) == 0, "a reader that is to go holds nothing"


def test_order_is_kept_and_a_gap_is_told_once(drain):
    reader = Reader(ALL, size=2)
    reader.offer("t0", terminal=True)
    reader.offer("o1", terminal=False)
    reader.offer("o2", terminal=False)
    texts = drain(reader)
    assert json.loads(texts[0])["metadata"]["dropped"] == 1 and texts[1:] == ["t0", "o1"]
    reader.offer("o3", terminal=False)
    assert drain(reader) == ["o3"]
    reader.interrupted()
    assert [json.loads(t)["metadata"] for t in drain(reader)] == [{"reason": "feed_interrupted", "dropped": None}]


@pytest.mark.contract("C7.09", "C7.10", "C7.11")
@given(st.lists(st.lists(st.booleans(), max_size=8), max_size=12))
def test_events_that_are_handed_on_together_are_kept_as_one_by_one(batches):
    """With many readers the feed gathers; what a reader keeps, loses and is told of is the same."""
    alone, together = Reader(Filter(), size=10), Reader(Filter(), size=10)
    number = 0
    for batch in batches:
        items = []
        for terminal in batch:
            number += 1
            alone.offer(str(number), terminal)
            items.append(((number, str(number)), terminal))
        together.offer_all(items, [item for item, terminal in items if not terminal])
    kept = [(r.overrun, r.ended.is_set(), r._dropped, [r._oldest() for _ in range(len(r))]) for r in (alone, together)]
    assert kept[0] == kept[1]


def test_more_readers_than_a_few_all_get_every_event_in_order(api, monkeypatch):
    monkeypatch.setattr("dtq_api.feed.FEW_READERS", 2)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(api.socket()) for _ in range(4)]
        chosen = stack.enter_context(api.socket("/ws/events?type=TASK_STARTED"))
        for n in range(50):
            api.publish("TASK_STARTED" if n % 10 == 0 else "TASK_QUEUED", task_id=f"{n:032x}")
        for reader in readers:
            assert [int(json.loads(reader.recv(timeout=10))["task_id"], 16) for _ in range(50)] == list(range(50))
        assert [int(json.loads(chosen.recv(timeout=10))["task_id"], 16) for _ in range(5)] == [0, 10, 20, 30, 40]


def test_filters():
    event = Event.parse(
        '{"event_id":"e","ts":"2026-01-01T00:00:00Z","type":"TASK_QUEUED","queue":"a","task_id":"' + "0" * 32 + '"}'
    )
    worker = Event.parse('{"event_id":"e","ts":"2026-01-01T00:00:00Z","type":"WORKER_STARTED","worker_id":"w"}')
    assert ALL.takes(event) and ALL.takes(worker)
    assert Filter.make(["a", "b"], [], []).takes(event) and not Filter.make(["b"], [], []).takes(event)
    assert not Filter.make(["a"], [], []).takes(worker)
    assert Filter.make([], ["WORKER_STARTED"], []).takes(worker) and not Filter.make([], ["WORKER_STARTED"], []).takes(
        event
    )
    assert Filter.make(["a"], ["TASK_QUEUED"], ["0" * 32]).takes(event) and not Filter.make([], [], ["1" * 32]).takes(
        event
    )
    for bad in (["UPPER"], [], []), ([], ["NONSENSE"], []), ([], [], ["nonsense"]):
        with pytest.raises(InvalidArgument):
            Filter.make(*bad)


# ------------------------------------------------------------------------------------------------ WebSocket


def read_until(client, type_: str) -> list[dict]:
    """Messages up to the first of this type."""
    seen = []
    while True:
        seen.append(json.loads(client.recv(timeout=10)))
        if seen[-1]["type"] == type_:
            return seen


@pytest.mark.contract("C8.03", "C11.36", "D22", "C10.04")
def test_every_client_gets_what_is_published_from_its_handshake_on(make_api):
    api = make_api(ws_path="/custom/feed")
    subscription = api.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe("dtq:events")
    with closing(subscription), api.socket("/custom/feed") as one, api.socket("/ws") as two:
        api.submit(queue="a")
        api.post("/queue/a/pause")
        for client in (one, two):
            seen = [client.recv(timeout=10) for _ in range(2)]
            assert [json.loads(text)["type"] for text in seen] == ["TASK_QUEUED", "CONFIGURATION_CHANGED"]
        published = [m["data"] for _ in range(5) if (m := subscription.get_message(timeout=0.2))]
    assert seen == published, "word for word"
    with pytest.raises(InvalidStatus), api.socket("/ws/events"):
        pass


def test_one_subscription_per_process_while_somebody_reads(api):
    def subscribers() -> int:
        return int(api.redis.pubsub_numsub("dtq:events")[0][1])

    assert subscribers() == 0
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(api.socket())
        assert subscribers() == 1
    eventually(lambda: api.services.feed.readers == 0)
    api.publish("TASK_QUEUED")
    eventually(lambda: subscribers() == 0)
    with api.socket() as client:
        api.publish("TASK_STARTED")
        assert json.loads(client.recv(timeout=10))["type"] == "TASK_STARTED"


def test_filters_of_a_socket(api):
    with api.socket("/ws/events?queue=a&queue=b&type=TASK_QUEUED&type=TASK_CANCELLED") as client:
        api.submit(queue="c")
        wanted = api.submit(queue="b")
        api.post(f"/tasks/{wanted}/cancel")
        assert [json.loads(client.recv(timeout=10))["task_id"] for _ in range(2)] == [wanted, wanted]
    for query in ("queue=UPPER", "type=NONSENSE", "task_id=1"):
        with pytest.raises(InvalidStatus) as refused, api.socket(f"/ws/events?{query}"):
            pass
        assert refused.value.response.status_code == 400
        assert json.loads(refused.value.response.body)["code"] == "INVALID_ARGUMENT"


@pytest.mark.contract("C8.03")
def test_what_a_client_says_does_not_matter(api):
    with api.socket() as client:
        for garbage in ("not json", "[]", '{"type": 5}', b"\x00\xff", "x" * 50_000):
            client.send(garbage)
        api.publish("TASK_QUEUED")
        assert json.loads(client.recv(timeout=10))["type"] == "TASK_QUEUED"


def test_what_is_no_event_is_not_passed_on(api):
    with api.socket() as client:
        for garbage in ("not json", "[]", "{}", '{"type": 5}', '{"type":"TASK_QUEUED","ts":"never"}', "[" * 50_000):
            api.redis.publish("dtq:events", garbage)
        api.publish("TASK_STARTED")
        assert json.loads(client.recv(timeout=10))["type"] == "TASK_STARTED"


@pytest.mark.contract("C7.09", "C7.10", "BQ-41")
def test_a_client_that_does_not_read_loses_ordinary_events_only_and_holds_up_nobody(api):
    sleeper = Sleeper(api.port)
    with api.socket(compression=None) as healthy:
        counts: list[str] = []
        got_all = threading.Event()

        def read() -> None:
            while True:
                event = json.loads(healthy.recv(timeout=20))
                counts.append(event["type"])
                if event["type"] == "WORKER_STOPPED":
                    return got_all.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        pad = "p" * 4000
        for batch in range(20):
            for _ in range(200):
                api.publish("TASK_QUEUED", pad=pad)
            wanted = 200 * (batch + 1)
            eventually(lambda wanted=wanted: len(counts) >= wanted, 20, "the healthy client keeps up")
        for _ in range(5):
            api.publish("TASK_SUCCEEDED")
        api.publish("WORKER_STOPPED")
        assert got_all.wait(20), "the healthy client was held up"
    eventually(lambda: len(api.services.feed._readers) == 1, what="the healthy client is gone")
    (reader,) = api.services.feed._readers
    assert 0 < len(reader) <= 1000
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(sleeper.wake_up, "WORKER_STARTED")
        eventually(lambda: len(reader) == 0)
        api.publish("WORKER_STARTED")
        texts = [json.loads(text) for text in reading.result(20)]
    kinds = [t["type"] for t in texts]
    assert kinds.count("TASK_SUCCEEDED") == 5
    assert kinds.count("TASK_QUEUED") < 4000
    told = sum(t["metadata"]["dropped"] for t in texts if t["type"] == DROPPED)
    assert told + len([k for k in kinds if k != DROPPED]) == 4007, "every event arrived or was counted"


@pytest.mark.contract("C7.11", "BQ-41")
def test_a_client_that_cannot_even_take_terminal_events_is_cut_off(api, monkeypatch):
    monkeypatch.setattr(api.services.feed, "_buffer", 10)
    sleeper = Sleeper(api.port)
    pad = "p" * 30_000
    eventually(lambda: api.publish("TASK_SUCCEEDED", pad=pad) or api.services.feed.readers == 0, 20)
    frames = sleeper.wake_up()
    assert frames and all(f.startswith("close 1013") or "TASK_SUCCEEDED" in f or DROPPED in f for f in frames)
    assert api.http.get("/health").status_code == 200


def test_clients_that_vanish_leave_nothing_behind(api):
    """BQ-40: handshake and gone, many times; no task, no subscription, no connection stays."""
    for n in range(60):
        sleeper = Sleeper(api.port)
        if n % 3 == 0:
            sleeper.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sleeper.socket.close()
    eventually(lambda: api.services.feed.readers == 0)
    with api.socket() as client:
        api.publish("TASK_QUEUED")
        assert json.loads(client.recv(timeout=10))["type"] == "TASK_QUEUED"
    assert len([c for c in api.redis.client_list() if c["name"] == "dtq"]) < 10


@pytest.mark.contract("BQ-43")
def test_when_the_service_stops_clients_hear_1001(api):
    with api.socket() as client:
        loop = api._server.servers[0].get_loop()
        loop.call_soon_threadsafe(api.services.feed.close)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=10)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


# ------------------------------------------------------------------------------------------------ server-sent events


def test_server_sent_events(api):
    with api.http.stream("GET", "/api/v1/events", params={"queue": "a"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        api.submit(queue="b")
        task_id = api.submit(queue="a")
        event = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert (event["type"], event["task_id"]) == ("TASK_QUEUED", task_id)
    eventually(lambda: api.services.feed.readers == 0)
    check_error(api.get("/events", type="NONSENSE"), 400, "INVALID_ARGUMENT")


def test_a_silent_stream_is_pinged(api, monkeypatch):
    monkeypatch.setattr("dtq_api.routes.events.PING_S", 0.02)
    with api.http.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith(": ping"))
        api.publish("TASK_QUEUED")
        assert next(line for line in lines if line.startswith("data: "))
