"""The wire that the process tests rely on, against a plain engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import redis
from support.engines import Server
from support.eventually import eventually
from support.resp import Framer, decode
from support.wire import AFTER, BEFORE, CUT_ALL, Request, Wire


@pytest.fixture
def wire(engine: Server) -> Iterator[Wire]:
    wire = Wire(engine.port)
    yield wire
    wire.close()


def client(wire: Wire, protocol: int = 2) -> redis.Redis:
    return redis.Redis(port=wire.port, decode_responses=True, protocol=protocol, retry=None, socket_timeout=5)


def sets(key: str) -> object:
    return lambda request: request.command == "SET" and request.args[1] == key.encode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_cut_wherever_the_packets_end(size: int) -> None:
    frames = [
        b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", b"PING\r\n", b"+OK\r\n", b":-7\r\n", b"$-1\r\n", b"$4\r\n\r\n\r\n\r\n",
        b"*-1\r\n", b"*0\r\n", b"*2\r\n*1\r\n:1\r\n$2\r\nab\r\n", b"%1\r\n+a\r\n*1\r\n_\r\n", b"-ERR no\r\n",
        b">2\r\n+message\r\n$1\r\nx\r\n", b"|1\r\n+a\r\n:1\r\n:2\r\n",
    ]  # fmt: skip
    data, framer = b"".join(frames), Framer()
    assert [f for i in range(0, len(data), size) for f in framer.feed(data[i : i + size])] == frames


def test_a_frame_is_read_as_data() -> None:
    assert decode(b"*3\r\n:1\r\n$-1\r\n*1\r\n$2\r\nab\r\n") == [1, None, [b"ab"]]
    assert decode(b"-ERR no\r\n") == b"ERR no"
    assert decode(b"SET a 1\r\n") == [b"SET", b"a", b"1"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_requests_and_replies_are_paired(wire: Wire, protocol: int) -> None:
    r = client(wire, protocol)
    pipe = r.pipeline(transaction=True)
    pipe.set("a", "1").get("a").hset("h", "f", "v").hgetall("h")
    assert pipe.execute() == [True, "1", 1, {"f": "v"}]
    assert r.get("a") == "1"
    (get,) = wire.requests(lambda request: request.command == "GET" and request.reply == b"1")
    assert get.args == [b"GET", b"a"]


def test_messages_of_a_subscription_pass(wire: Wire, engine: Server) -> None:
    feed = client(wire).pubsub(ignore_subscribe_messages=True)
    feed.subscribe("c")
    eventually(lambda: engine.redis.publish("c", "hello") == 1)
    assert eventually(lambda: feed.get_message(timeout=1))["data"] == "hello"


def test_before_a_request_the_engine_has_not_seen_it(wire: Wire, engine: Server) -> None:
    found: list[object] = []
    moment = wire.at(BEFORE, sets("b"), lambda: found.append((engine.redis.get("a"), engine.redis.get("b"))))
    pipe = client(wire).pipeline(transaction=False)
    pipe.set("a", "1").set("b", "1").execute()
    assert moment.wait(0).args[1] == b"b"
    assert found == [("1", None)]
    assert engine.redis.get("b") == "1"


def test_after_a_request_the_engine_has_done_it_and_nobody_knows(wire: Wire, engine: Server) -> None:
    answered: list[object] = []
    found: list[object] = []
    moment = wire.at(AFTER, sets("a"), lambda: found.append((engine.redis.get("a"), list(answered))), nth=1)
    r = client(wire)
    r.set("a", "0")
    r.set("a", "1")
    answered.append("1")
    moment.wait(0)
    assert found == [("1", [])]


def test_a_lost_reply_is_done_and_a_lost_request_is_not(wire: Wire, engine: Server) -> None:
    r = client(wire)
    wire.lose_reply(sets("a"))
    wire.lose_request(sets("b"))
    for key in "ab":
        with pytest.raises(redis.ConnectionError):
            r.set(key, "1")
    assert engine.redis.mget("a", "b") == ["1", None]
    assert r.set("c", "1")


def test_cut_all_reaches_every_connection(wire: Wire) -> None:
    with socket.create_connection(("127.0.0.1", wire.port), 5) as other:
        other.sendall(b"PING\r\n")
        assert other.recv(100) == b"+PONG\r\n"
        wire.at(BEFORE, sets("a"), then=CUT_ALL)
        with pytest.raises(redis.ConnectionError):
            client(wire).set("a", "1")
        with pytest.raises(ConnectionResetError):
            other.recv(100)


def test_a_held_reply_waits_alone(wire: Wire, engine: Server) -> None:
    one, two = client(wire), client(wire)
    moment = wire.hold(AFTER, sets("a"))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (one.set("a", "1"), done.set()))
    thread.start()
    moment.wait()
    assert engine.redis.get("a") == "1" and two.ping() and not done.is_set()
    moment.release()
    thread.join(5)
    assert done.is_set()


def test_an_action_that_fails_is_told(wire: Wire) -> None:
    moment = wire.at(BEFORE, sets("a"), lambda: 1 / 0)
    client(wire).set("a", "1")
    with pytest.raises(ZeroDivisionError):
        moment.wait(1)
    with pytest.raises(AssertionError, match="0 seen"):
        wire.at(BEFORE, sets("never")).wait(0)


def test_black_hole_refusal_and_healing(wire: Wire) -> None:
    r = redis.Redis(port=wire.port, retry=None, socket_timeout=0.2)
    assert r.ping()
    wire.blackhole()
    with pytest.raises(redis.TimeoutError):
        r.ping()
    wire.heal()
    assert r.ping()
    wire.refuse()
    with pytest.raises(redis.ConnectionError):
        r.ping()
    wire.heal()
    assert r.ping()


def test_scripts_are_known_by_name(wire: Wire) -> None:
    from dtq_core.store.scripts import script

    for name in ("submit", "fetch"):
        assert Request([b"EVALSHA", script(name).sha.encode()]).name == name
        assert Request([b"EVAL", script(name).source.encode()]).name == name
    assert Request([b"GET", b"a"]).name == "GET"
