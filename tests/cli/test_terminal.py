"""The command in a real pseudo-terminal, in a pipe that breaks, in a locale that knows no UTF-8."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from cli.calls import Cli, clean_environment
from cli.terminal import terminal
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ

PURGE = ("purge", "--queue", "default")
QUESTION = "Cancel 1 task of queue default that have not started? [y/N] "


@pytest.mark.parametrize("answer, code", [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("yep\n", 1), ("\x04", 1)])
def test_a_purge_asks(cli: Cli, answer: str, code: int) -> None:
    task_id = cli.submit("demo")
    with terminal(cli, *PURGE) as screen:
        screen.until("[y/N] ")
        screen.type(answer)
        assert screen.end() == code
        assert "Cancel 1 task of queue default" in screen.shown
        assert ("nothing was changed" in screen.shown) is (code == 1)
    assert cli.json("get", task_id)["status"] == ("cancelled" if code == 0 else "queued")


def test_what_comes_after_the_question_is_left_and_told(cli: Cli) -> None:
    first = cli.submit("demo")
    with terminal(cli, *PURGE) as screen:
        screen.until("[y/N] ")
        later = cli.submit("demo")
        screen.type("y\n")
        assert screen.end() == 0
        assert "1 came after the question and was left" in screen.shown
    assert [cli.json("get", t)["status"] for t in (first, later)] == ["cancelled", "queued"]


def test_ctrl_c_at_the_question(cli: Cli) -> None:
    task_id = cli.submit("demo")
    with terminal(cli, *PURGE) as screen:
        screen.until("[y/N] ")
        screen.type("\x03")
        assert screen.end() == 130
        assert "Traceback" not in screen.shown and "Error" not in screen.shown
    assert cli.json("get", task_id)["status"] == "queued"


def test_nothing_to_purge_is_not_asked_about(cli: Cli) -> None:
    with terminal(cli, "purge-dlq") as screen:
        assert screen.end() == 0
        assert "0 dead letters dropped" in screen.shown and "[y/N]" not in screen.shown


def test_a_question_does_not_spoil_the_document(cli: Cli) -> None:
    """stdout is one JSON document even when somebody is asked on the terminal."""
    cli.submit("demo")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [DTQ, *PURGE, "--json"],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=dict(cli.env),
        start_new_session=True,
    )
    os.close(slave)
    os.write(master, b"y\n")
    out, _ = process.communicate(timeout=20)
    os.close(master)
    assert process.returncode == 0
    assert out.startswith(b"{") and b'"changed": 1' in out


def test_colours_and_width_of_the_terminal(cli: Cli) -> None:
    cli.ok("cancel", cli.submit("t" * 60))
    with terminal(cli, "list", columns=200) as screen:
        assert screen.end() == 0
        assert "\x1b[90mcancelled\x1b[0m" in screen.shown and "t" * 60 in screen.shown
    with terminal(cli, "list", NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert "\x1b" not in screen.shown and all(len(line) <= 80 for line in screen.shown.splitlines())
    assert "\x1b" not in cli.ok("list")


def test_ctrl_c_while_following(cli: Cli, engine: Server) -> None:
    with terminal(cli, "events", "--follow") as screen:
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
        task_id = cli.submit("demo")
        screen.until(task_id)
        screen.type("\x03")
        assert screen.end() == 130
        assert "TASK_QUEUED" in screen.shown and "Traceback" not in screen.shown


def test_following_goes_on_after_an_outage(own_engine: Server, tmp_path: Path) -> None:
    cli = Cli(tmp_path, clean_environment(DTQ_REDIS_URL=own_engine.url()))
    with terminal(cli, "events", "--follow") as screen:
        eventually(lambda: own_engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
        own_engine.stop()
        screen.until("trying again")
        own_engine.start()
        screen.until("connected again; events in between were not seen")
        screen.until(cli.submit("demo"))
        screen.type("\x03")
        assert screen.end() == 130
        assert screen.shown.count("trying again") == 1
    own_engine.stop()
    cli.refused("REDIS_UNAVAILABLE", "events", "--follow")
    own_engine.start()


def test_a_broken_pipe_is_quiet(cli: Cli) -> None:
    for _ in range(3):
        cli.submit("demo", '{"x": "%s"}' % ("y" * 30_000))
    for command in (["list", "--json"], ["list"], ["events", "--seconds", "0"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([DTQ, *command], stdout=writer, stderr=subprocess.PIPE, env=dict(cli.env), timeout=30)
        os.close(writer)
        assert done.stderr == b"", command
        assert done.returncode in (0, 141), command


def test_a_stderr_that_is_gone(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([DTQ, "get", "x"], stdout=subprocess.PIPE, stderr=writer, env=dict(cli.env), timeout=30)
    os.close(writer)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "POSIX"}]
)
def test_without_utf_8(cli: Cli, locale: dict[str, str]) -> None:
    task_id = cli.submit("t" * 100, '{"x": "€ ü 漢"}')
    assert cli.json("get", task_id, env=locale)["payload"] == {"x": "€ ü 漢"}
    assert task_id in cli.ok("list", env=locale)
    cli.ok("get", task_id, env=locale)


@pytest.mark.parametrize("columns", [80, 200])
def test_what_happens_fits_the_terminal(cli: Cli, engine: Server, columns: int) -> None:
    task_type, queue = "t" * 40, "q" * 40
    with terminal(cli, "events", "--follow", columns=columns) as screen:
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
        task_id = cli.submit(task_type, "{}", "--queue", queue)
        screen.until("\n")
        line = screen.shown.splitlines()[0]
        assert task_id in line and len(line) <= columns
        assert (queue in line) is (columns == 200) and line.endswith("…") is (columns == 80)
        screen.type("\x03")
        assert screen.end() == 130


@pytest.mark.parametrize("columns", [80, 200])
def test_every_table_fits_the_terminal(cli: Cli, columns: int) -> None:
    task_id = cli.submit("t" * 70, '{"text": "%s"}' % ("x " * 60), "--queue", "q" * 64)
    for command in (["list"], ["queue", "stats"], ["workers"], ["dlq", "list"], ["audit", "verify"], ["--help"]):
        with terminal(cli, *command, columns=columns, NO_COLOR="1") as screen:
            assert screen.end() == 0, screen.shown
            assert [line for line in screen.shown.splitlines() if len(line) > columns] == [], command
            assert command != ["list"] or (task_id in screen.shown and ("t" * 70 in screen.shown) is (columns == 200))


def test_progress_is_shown_to_who_looks_and_gone_at_the_end(cli: Cli) -> None:
    for _ in range(2):
        cli.submit("demo")
    with terminal(cli, *PURGE, "--yes") as screen:
        assert screen.end() == 0
        assert "so far" in screen.shown
        assert screen.shown.rstrip().rsplit("\x1b[K", 1)[1].strip() == "2 tasks of queue default cancelled"
    with terminal(cli, "audit", "verify", TERM="dumb") as screen:
        assert screen.end() == 0
        assert "so far" not in screen.shown and "\x1b" not in screen.shown


def test_a_question_that_nobody_would_see_is_not_asked(cli: Cli) -> None:
    task_id = cli.submit("demo")
    master, slave = pty.openpty()
    done = subprocess.run([DTQ, *PURGE], stdin=slave, capture_output=True, env=dict(cli.env), timeout=30)
    os.close(slave)
    os.close(master)
    assert done.returncode == 2 and b"--yes" in done.stderr
    assert cli.json("get", task_id)["status"] == "queued"


def test_bytes_that_are_no_text_are_no_yes(cli: Cli) -> None:
    task_id = cli.submit("demo")
    with terminal(cli, *PURGE) as screen:
        screen.until("[y/N] ")
        os.write(screen._master, b"\xff\xfe\n")
        assert screen.end() == 1 and "Traceback" not in screen.shown
    assert cli.json("get", task_id)["status"] == "queued"
