"""A worker whose Redis user lacks rights says so and takes nothing; rights that are only for comfort it can do without."""

from __future__ import annotations

import pytest
from support.world import World


def limited(world: World, *rules: str) -> str:
    world.redis.execute_command("ACL", "SETUSER", "lim", "reset", "on", ">pw", *rules)
    return world.server.url().replace("redis://", "redis://lim:pw@")


@pytest.mark.contract("D4")
@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (("~*", "&*", "+@all", "-hmget"), "hmget"),
        (("~*", "&*", "+@all", "-xautoclaim", "-xdel"), "xautoclaim, xdel"),
        (("~*", "&*", "+@all", "-eval"), "EVAL"),
        (("~dtq:[a-s]*", "~dtq:worker*", "~dtq:wake:*", "&*", "+@all"), "dtq:task:*"),
    ],
    ids=["a command", "two commands", "scripts", "keys"],
)
def test_a_worker_without_its_rights_takes_no_task(world: World, rules: tuple[str, ...], named: str) -> None:
    ids = world.submit_many("echo", [{}] * 3)
    worker = world.worker(redis_url=limited(world, *rules), ready=False)
    assert worker.wait() == 2
    assert "INVALID_CONFIG: DTQ_REDIS_URL: its user" in worker.log() and named in worker.log()
    assert "pw" not in worker.log().replace("pwd", "")
    assert set(world.statuses(ids).values()) == {"queued"}
    world.worker()
    world.wait_ended(ids)
    world.check(ids, starts=1)


@pytest.mark.contract("C8.01")
@pytest.mark.parametrize("rules", [("~*", "resetchannels", "+@all"), ("~*", "&*", "+@all", "-publish", "-subscribe")])
def test_without_the_feed_tasks_run_as_well(world: World, rules: tuple[str, ...]) -> None:
    world.worker(redis_url=limited(world, *rules))
    ids = world.submit_many("echo", [{}] * 3)
    assert set(world.wait_ended(ids).values()) == {"succeeded"}
    world.check(ids, starts=1)
