"""A worker whose log nobody reads works on, keeps its leases and ends when it is told to."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess

import pytest
from support.eventually import eventually
from support.processes import DTQ
from support.world import World


@pytest.mark.contract("BQ-10", "C6.25")
def test_a_full_log_pipe_stops_neither_work_nor_leases_nor_the_end(world: World) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    argv = [DTQ, "worker", "run", "--concurrency", "4"]
    process = subprocess.Popen(argv, env=world.env(), stdout=writer, stderr=writer, cwd=world.folder)
    os.close(writer)
    try:
        long = world.submit("gate", {"gate": "g"}, timeout_ms=60_000, max_attempts=1)
        world.journal.wait_run(long)
        ids = world.submit_many("echo", [{}] * 300)
        world.wait_ended(ids)
        (worker_id,) = world.redis.smembers("dtq:workers")
        beat = int(world.redis.hget(f"dtq:worker:{worker_id}", "last_heartbeat"))
        eventually(
            lambda: int(world.redis.hget(f"dtq:worker:{worker_id}", "last_heartbeat")) > beat + 2500,
            what="the heart beats for longer than a lease",
        )
        world.journal.open("g")
        world.wait_ended([long])
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 0
        world.check([long, *ids], starts=1)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
