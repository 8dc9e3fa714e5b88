"""With DTQ_KEY_PREFIX={dtq} every key that any script touches is in one cluster slot (decision 27).

MONITOR shows what each script really does, keys it makes up itself included; the server says which arguments are keys.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest
import redis
from support.bench import Bench
from support.every_script import walk
from support.slots import slot

from dtq_core.keys import Keys
from dtq_core.store import scripts

pytestmark = pytest.mark.contract("D27")
END = "the walk is over"


def test_the_slot_is_computed_as_the_specification_says() -> None:
    assert slot("123456789") == 12739
    assert slot("{user1000}.following") == slot("{user1000}.followers") == slot("user1000")
    assert slot("foo{{bar}}zap") == slot("{bar")
    assert slot("foo{}{bar}") != slot("bar")


def test_every_key_of_every_script(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(key_prefix="{dtq}")
    touched: dict[str, set[str]] = {}
    ran: set[str] = set()
    for name in scripts.names():
        bench.redis.script_load(scripts.script(name).source)
    names = {scripts.script(name).sha: name for name in scripts.names()}
    with (
        socket.create_connection(("127.0.0.1", bench.server.port), 10) as connection,
        connection.makefile("rb") as feed,
    ):
        connection.sendall(b"MONITOR\r\n")
        assert feed.readline() == b"+OK\r\n"
        walk(bench)
        bench.redis.echo(END)
        for words, from_script in monitored(feed):
            command = words[0].upper()
            if command == "EVALSHA":
                ran.add(names.get(words[1], ""))
            if from_script or command == "EVALSHA":
                for key in keys_of(bench.redis, words):
                    touched.setdefault(key, set()).add(command)
    assert ran >= set(scripts.names()), "the walk misses a script"
    assert len(touched) > 30
    elsewhere = {key: how for key, how in touched.items() if slot(key) != slot("dtq") or not key.startswith("{dtq}:")}
    assert not elsewhere


def test_every_name_in_python_follows_the_prefix() -> None:
    keys = Keys("{dtq}")
    names = [
        value for name in dir(Keys) if isinstance(getattr(Keys, name), property) for value in [getattr(keys, name)]
    ]
    names += [keys.stream("q", 1), keys.task("a"), keys.result("a"), keys.idempotency("q", "k"), keys.worker("w")]
    names += [keys.fetch("w", "a"), keys.paused("q"), keys.policy("q"), keys.task_types("q"), keys.dead("q")]
    names += [keys.ledger("q"), keys.wake("q"), keys.nudge("w")]
    assert {slot(name) for name in names} == {slot("dtq")}


def monitored(feed: BinaryIO) -> Iterator[tuple[list[str], bool]]:
    """(words of a command, whether a script sent it) from the lines of MONITOR, until the walk is over."""
    while True:
        head, _, rest = feed.readline().decode().partition("] ")
        words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r'"((?:[^"\\]|\\.)*)"', rest)]
        if words == ["ECHO", END]:
            return
        yield words, head.endswith(" lua")


def keys_of(client: redis.Redis, words: list[str]) -> list[str]:
    try:
        return [str(key) for key in client.execute_command("COMMAND GETKEYS", *words)]
    except redis.ResponseError:  # "The command has no key arguments", PUBLISH among them
        return []
