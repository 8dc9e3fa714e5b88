"""The command in a real pseudo-terminal, in a pipe that breaks, in a locale that knows no UTF-8."""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli.calls import Cli
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ


class Terminal:
    """A `dtq` whose stdin, stdout and stderr are a terminal."""

    def __init__(self, cli: Cli, *args: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [DTQ, *args], stdin=slave, stdout=slave, stderr=slave, cwd=cli.folder, start_new_session=True,
            env={**cli.env, "TERM": "xterm", **env},
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until `text` was shown."""
        while text not in self.shown:
            self.shown += self._read() or pytest.fail(f"{text!r} was not shown: {self.shown!r}")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """The exit status; all output is in `shown`."""
        while more := self._read():
            self.shown += more
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> str:
        try:
            return os.read(self._master, 65_536).decode()
        except OSError as exc:
            if exc.errno == errno.EIO:  # the other end is closed
                return ""
            raise


@contextmanager
def terminal(cli: Cli, *args: str, **env: str) -> Iterator[Terminal]:
    opened = Terminal(cli, *args, **env)
    try:
        yield opened
    finally:
        opened.close()


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


def test_ctrl_c_at_the_question(cli: Cli) -> None:
    task_id = cli.submit("demo")
    with terminal(cli, *PURGE) as screen:
        screen.until("[y/N] ")
        os.kill(screen.process.pid, signal.SIGINT)
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
    with terminal(cli, "list", COLUMNS="200") as screen:
        assert screen.end() == 0
        assert "\x1b[90mcancelled\x1b[0m" in screen.shown and "t" * 60 in screen.shown
    with terminal(cli, "list", COLUMNS="80", NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert "\x1b" not in screen.shown and all(len(line) <= 80 for line in screen.shown.splitlines())
    assert "\x1b" not in cli.ok("list")


def test_ctrl_c_while_following(cli: Cli, engine: Server) -> None:
    with terminal(cli, "events", "--follow") as screen:
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
        task_id = cli.submit("demo")
        screen.until(task_id)
        os.kill(screen.process.pid, signal.SIGINT)
        assert screen.end() == 130
        assert "TASK_QUEUED" in screen.shown and "Traceback" not in screen.shown


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
