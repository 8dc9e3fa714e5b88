"""dtq_local.console and child: one log out of many processes, that never holds them up."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from support.eventually import eventually

from dtq_local.child import Child, Exited, how_it_ended
from dtq_local.console import Console


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, int]]:
    """(writing end as a text stream, reading end)."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    yield stream, reader
    stream.close()
    os.close(reader)


def written(stream: TextIO, reader: int) -> str:
    stream.flush()
    return os.read(reader, 1_000_000).decode()


def test_prefixes_align(pipe: tuple[TextIO, int]) -> None:
    console = Console(pipe[0], ["dtq", "worker-1"], colour=False)
    console.line("dtq", "hello")
    console.line("worker-1", "wörld")
    console.raw("as it is")
    console.close()
    assert written(*pipe) == "dtq      | hello\nworker-1 | wörld\nas it is\n"


def test_colour_is_the_prefix_only(pipe: tuple[TextIO, int]) -> None:
    console = Console(pipe[0], ["a", "b"], colour=True)
    console.line("a", "text")
    console.close()
    assert written(*pipe) == "\x1b[36ma |\x1b[0m text\n"


def test_a_long_line_is_cut(pipe: tuple[TextIO, int]) -> None:
    console = Console(pipe[0], ["a"], colour=False)
    console.line("a", "x" * 100_000)
    console.close()
    assert written(*pipe).endswith("x … (cut)\n")


def test_a_terminal_that_stands_still_holds_nobody_up(pipe: tuple[TextIO, int]) -> None:
    console = Console(pipe[0], ["a"], colour=False)
    for _ in range(20_000):  # far more than the pipe and the queue hold
        console.line("a", "x" * 200)
    text = b""
    while b"were dropped" not in text:
        text += os.read(pipe[1], 65_536)
    console.close()


def test_a_terminal_that_is_gone_is_given_up(pipe: tuple[TextIO, int]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        console = Console(stream, ["a"], colour=False)
        for _ in range(100):
            console.line("a", "text")
        console.close()


class Watched:
    """A child of one Python line, its console and its events."""

    def __init__(self, pipe: tuple[TextIO, int], code: str) -> None:
        self.pipe = pipe
        self.console = Console(pipe[0], ["child"], colour=False)
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.child = Child("child", [sys.executable, "-c", code], self.console, self.events)
        self.child.start(os.environ)

    def end(self) -> Exited:
        event = self.events.get(timeout=20)
        assert isinstance(event, Exited)
        return event

    def output(self) -> str:
        self.console.close()
        return written(*self.pipe)


def test_a_child_is_heard_to_its_last_word(pipe: tuple[TextIO, int]) -> None:
    code = """
import sys
print('out', flush=True)
print('err', file=sys.stderr)
print('end', end='')
sys.exit(3)
"""
    watched = Watched(pipe, code)
    assert watched.end().code == 3
    assert watched.output() == "child | out\nchild | err\nchild | end\n"


def test_a_child_has_a_session_of_its_own_and_no_stdin(pipe: tuple[TextIO, int]) -> None:
    watched = Watched(pipe, "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))")
    assert watched.end().code == 0
    assert watched.output() == "child | True ''\n"


def test_bytes_that_are_no_text(pipe: tuple[TextIO, int]) -> None:
    watched = Watched(pipe, r"import sys; sys.stdout.buffer.write(b'a\xffb\r\n')")
    watched.end()
    assert watched.output() == "child | a�b\n"


def test_a_grandchild_that_keeps_the_pipe_does_not_hide_the_end(pipe: tuple[TextIO, int], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)
open({str(pid_file)!r}, 'w').write(str(grandchild.pid))
"""
    watched = Watched(pipe, code)
    assert watched.end().code == 0


def test_kill_takes_the_grandchildren_along(pipe: tuple[TextIO, int]) -> None:
    code = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)
time.sleep(600)
"""
    watched = Watched(pipe, code)
    grandchild = int(os.read(pipe[1], 1000).decode().rpartition("|")[2])
    watched.child.kill()
    assert watched.end().code == -9

    def gone() -> bool:
        try:
            return Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(gone)


def test_back_off_doubles_and_ends(pipe: tuple[TextIO, int]) -> None:
    watched = Watched(pipe, "")
    watched.end()
    assert [watched.child.next_delay_s() for _ in range(7)] == [0.5, 1, 2, 4, 8, 15, 15]


def test_ends_in_words() -> None:
    assert how_it_ended(1) == "exited with 1"
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-99) == "was killed by signal 99"
