"""A server that is not there or refuses the password, by one rule: worker, scheduler and API say so at once; the first two
end with 1, the API goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from local.running import environment
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ, Process

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("words", [["worker", "run"], ["scheduler", "run"]], ids=" ".join)
def test_worker_and_scheduler_end(engine: Server, words: list[str]) -> None:
    wrong = f"redis://nobody:secret-word@127.0.0.1:{engine.port}/0"
    for url, said in ((NOWHERE, "Connection refused"), (wrong, "Redis refuses the user or the password")):
        for more in ([], ["--json"]):
            env = environment(DTQ_REDIS_URL=url)
            done = subprocess.run([DTQ, *words, *more], env=env, capture_output=True, text=True, timeout=30)
            assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
            line = json.loads(done.stderr)["message"] if more else done.stderr
            assert "REDIS_UNAVAILABLE: " in line and said in line and "DTQ_REDIS_URL" in line
            assert "secret-word" not in done.stderr


def test_the_api_goes_on(engine: Server, tmp_path: Path) -> None:
    """It warns before it serves, once for a while, and says when the server can be used."""
    url = f"redis://shop:secret-word@127.0.0.1:{engine.port}/0"
    argv = [DTQ, "api", "run", "--host", "127.0.0.1"]
    process = Process("api", argv, environment(DTQ_REDIS_URL=url, DTQ_API_PORT="0"), tmp_path)
    try:
        eventually(lambda: "Application startup complete" in process.log(), 20, process.tail)
        eventually(
            lambda: "REDIS_UNAVAILABLE: Redis refuses the user or the password" in process.log(), 5, process.tail
        )
        engine.redis.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">secret-word", "~*", "&*", "+@all")
        eventually(lambda: "Redis answers now" in process.log(), 20, process.tail)
        assert process.log().count("requests are answered with 503") == 1 and "secret-word" not in process.log()
    finally:
        process.kill()
        engine.redis.execute_command("ACL", "DELUSER", "shop")
