"""--reload, of `dtq up` and of `dtq worker run`: new code is taken, what runs is finished, broken code stops nobody."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local.running import Up, environment
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ, Process

from dtq_core.config import load_settings
from dtq_local import readiness
from dtq_local.readiness import NotReady, Readiness, Ready
from dtq_local.sources import Changed, Sources

HANDLER = """
import asyncio
from dtq_tasks import task
from words import WORD

@task("say")
async def say(payload, ctx):
    open("started", "a").write("x")
    while payload.get("wait") and not __import__("os").path.exists("go"):
        await asyncio.sleep(0.02)
    return WORD
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "tasks.py").write_text(HANDLER)
    (tmp_path / "words.py").write_text("WORD = 'one'\n")
    return tmp_path


def test_up_takes_new_code_and_survives_broken_code(up: Callable[..., Up], modules: Path) -> None:
    one = up("--workers", "1", "--tasks", "shop.tasks", "--reload").ready(1)
    assert one.wait_for(one.submit("say"), "succeeded")["result"] == "one"
    scheduler = one.record["processes"]["scheduler"]

    # A module that the task module imports counts too; what runs is finished by the worker that started it.
    (modules / "started").unlink()
    slow = one.submit("say", '{"wait": true}')
    eventually((modules / "started").exists)
    (modules / "words.py").write_text("WORD = 'two'\n")
    one.saying("words.py changed: workers finish what they run and start again with it")
    (modules / "go").touch()
    task = one.wait_for(slow, "succeeded")
    assert (task["result"], task["attempt"]) == ("one", 1)
    eventually(lambda: one.wait_for(one.submit("say"), "succeeded")["result"] == "two", 20)
    assert one.record["processes"]["scheduler"] == scheduler, "the scheduler does not load the modules"

    (modules / "shop" / "tasks.py").write_text("def broken(:\n" + HANDLER)
    assert "shop.tasks cannot be imported: SyntaxError" in one.saying(r"shop/tasks\.py line 1\)")
    one.saying("what runs goes on with the code from before")
    assert one.wait_for(one.submit("say"), "succeeded")["result"] == "two"
    before = one.record["processes"]["worker-1"]
    os.kill(before, signal.SIGKILL)
    one.saying("worker-1 was killed by SIGKILL; it is started again when the task modules can be imported")

    (modules / "shop" / "tasks.py").write_text(HANDLER.replace("return WORD", "return WORD * 2"))
    eventually(lambda: one.record["processes"].get("worker-1") not in (None, before), 20, lambda: one.log)
    assert one.wait_for(one.submit("say"), "succeeded")["result"] == "twotwo"
    assert one.log.count("exited with") == 0, "nothing has crashed"
    assert one.stop() == 0


def test_up_with_code_that_is_broken_from_the_start(up: Callable[..., Up], modules: Path) -> None:
    (modules / "words.py").unlink()
    one = up("--workers", "1", "--tasks", "shop.tasks", "--reload")
    assert "ModuleNotFoundError: No module named 'words'" in one.saying("cannot be imported")
    one.saying("no worker is started until that is mended")
    (modules / "words.py").write_text("WORD = 'here'\n")
    one.saying(r"^DTQ is up\.")
    assert one.wait_for(one.submit("say"), "succeeded")["result"] == "here"
    assert one.stop() == 0


@pytest.fixture
def reloading(engine: Server, modules: Path) -> Iterator[Process]:
    """A `dtq worker run --reload` that has started its worker."""
    env = environment(DTQ_REDIS_URL=engine.url(), DTQ_TASK_MODULES="shop.tasks")
    process = Process("reloading", [DTQ, "worker", "run", "--reload"], env, modules)
    eventually(lambda: "started: queues default" in process.log(), 20, process.log)
    yield process
    if process.alive:
        process.signal(signal.SIGTERM)
        eventually(lambda: not process.alive, 20, process.log)


def result(folder: Path, engine: Server, *args: str) -> Callable[[], Any]:
    from cli.calls import Cli, clean_environment

    cli = Cli(folder, clean_environment(DTQ_REDIS_URL=engine.url()))
    task_id = cli.submit("say", *args)
    return lambda: cli.wait(task_id, "succeeded")["result"]


def test_a_worker_takes_new_code_and_drains_once(engine: Server, modules: Path, reloading: Process) -> None:
    slow = result(modules, engine, '{"wait": true}')
    eventually((modules / "started").exists)
    (modules / "words.py").write_text("WORD = 'new'\n")
    eventually(lambda: "draining: 1 tasks in hand" in reloading.log(), 20, reloading.log)
    reloading.signal(signal.SIGINT)  # Ctrl-C in the middle of it: the worker still finishes what it runs
    (modules / "go").touch()
    eventually(lambda: not reloading.alive, 20, reloading.log)
    assert reloading.exit_code == 0 and slow() == "one"
    assert "second signal" not in reloading.log()


def test_a_worker_survives_broken_code_and_is_not_started_in_a_loop(
    engine: Server, modules: Path, reloading: Process
) -> None:
    (modules / "words.py").write_text("WORD = 1 / 0\n")
    eventually(lambda: "ZeroDivisionError" in reloading.log(), 20, reloading.log)
    assert "words.py line 1" in reloading.log()
    eventually(lambda: "goes on with the code from before" in reloading.log())
    assert result(modules, engine)() == "one"
    (modules / "words.py").write_text("WORD = 'mended'\n")
    eventually(lambda: reloading.log().count("started: queues default") == 2, 20, reloading.log)
    assert result(modules, engine)() == "mended"
    reloading.signal(signal.SIGTERM)
    eventually(lambda: not reloading.alive, 20, reloading.log)
    assert reloading.exit_code == 0
    assert "change detected" not in reloading.log(), "nobody needs to hear of the watcher"


def test_every_change_is_seen_also_one_in_the_same_second_and_of_the_same_size(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(modules)
    monkeypatch.syspath_prepend(str(modules))
    heard: queue.SimpleQueue[Changed] = queue.SimpleQueue()
    sources = Sources(("shop.tasks",), heard.put)
    sources.start()
    try:
        assert heard.get(timeout=20) == Changed()
        (modules / "words.py").write_text("WORD = 'uno'\n")
        assert heard.get(timeout=20) == Changed(("words.py",))
        (modules / "unrelated.py").write_text("")  # nobody imports it
        (modules / "words.py").write_text("raise SystemExit(3)\n")
        told = heard.get(timeout=20)
        assert "words.py" in told.names and "unrelated.py" not in told.names and "SystemExit: 3" in told.error
        (modules / "words.py").write_text("import os\nos._exit(7)\n")
        assert "the process that imports shop.tasks ended with 7" in heard.get(timeout=20).error
        (modules / "words.py").write_text("WORD = 'dos'\n")
        assert heard.get(timeout=20) == Changed(("words.py",))
    finally:
        sources.stop()


def test_what_is_missing_is_said_and_then_that_all_is_there(engine: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(readiness, "SOON_S", 0.1)
    monkeypatch.setattr(readiness, "LIMIT_S", 0.2)
    heard: queue.SimpleQueue[Ready | NotReady] = queue.SimpleQueue()
    row = {"hostname": socket.gethostname(), "status": "ready"}
    engine.redis.sadd("dtq:workers", "worker-a", "worker-b")
    engine.redis.hset("dtq:worker:worker-a", mapping={**row, "pid": "111", "hostname": "elsewhere"})
    engine.redis.hset("dtq:worker:worker-b", mapping={**row, "pid": "111", "status": "starting"})

    class Processes:
        names = ("scheduler", "worker-1")
        api_address = ("127.0.0.1", 1)

        def pids(self) -> dict[str, int]:
            return {"scheduler": 1, "worker-1": 111}

    waiting = Readiness(load_settings(redis_url=engine.url()), Processes(), heard.put)
    waiting.start()
    try:
        assert heard.get(timeout=20) == NotReady(("worker-1",), final=False)
        assert heard.get(timeout=20) == NotReady(("worker-1",), final=True)
        engine.redis.hset("dtq:worker:worker-b", "status", "ready")
        assert heard.get(timeout=20) == Ready()
    finally:
        waiting.stop()


def test_without_watchfiles_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "watchfiles.py").write_text("raise ImportError\n")
    env = environment(PYTHONPATH=str(tmp_path))
    for words in (["up"], ["worker", "run"]):
        process = Process("-".join(words), [DTQ, *words, "--reload"], env, tmp_path)
        eventually(lambda process=process: not process.alive, 20)
        assert process.exit_code == 2 and "pip install 'dtq[local]'" in process.log()
