"""Log lines and a pipe that nobody empties: lines are lost and counted, time is not."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from typing import TextIO

import pytest

from dtq_core.outlet import PATIENCE_S, WAIT_S, Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


def read_all(reader: int) -> str:
    os.set_blocking(reader, False)
    found = b""
    while True:
        try:
            part = os.read(reader, 65_536)
        except BlockingIOError:
            return found.decode()
        found += part


def test_lines_go_out_in_order_and_at_once(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    outlet = Outlet(stream)
    lines = [f"{n} {'ü' * n}\n" for n in range(60)]
    for line in lines:
        outlet.write(line)
    outlet.write("".join(lines))
    assert read_all(reader) == "".join(lines) * 2 and outlet.lost == 0


def test_a_full_pipe_loses_lines_and_says_so_when_it_flows_again(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    outlet = Outlet(stream)
    began = time.monotonic()
    for n in range(5000):
        outlet.write(f"line {n} {'x' * 80}\n")
    assert time.monotonic() - began < 10 * (WAIT_S + 1), "it was waited for once or twice, not for each line"
    assert outlet.lost > 0
    first = read_all(reader)
    outlet.write("and on\n")
    rest = read_all(reader)
    whole = [line for line in (first + rest).splitlines() if line.startswith("line ")]
    lost = 5000 - len(whole)
    assert f"{lost} lines of the log were lost: nobody read them\n" in rest or outlet.lost == 0
    assert rest.endswith("and on\n") and outlet.lost == 0
    assert [int(line.split()[1]) for line in whole] == sorted(int(line.split()[1]) for line in whole)


def test_while_it_stands_still_nobody_waits_for_it(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait in vain, then none for a while."""
    _, stream = pipe
    outlet = Outlet(stream)
    now = [100.0]
    monkeypatch.setattr("dtq_core.outlet.time.monotonic", lambda: now[0])
    waits: list[float] = []
    poll = outlet._poll
    assert poll is not None

    class Counted:
        def poll(self, timeout: float) -> list[tuple[int, int]]:
            waits.append(timeout)
            return poll.poll(0)

    outlet._poll = Counted()  # type: ignore[assignment]
    while not outlet.lost:
        outlet.write("x" * 1000 + "\n")
    assert [t for t in waits if t] == [WAIT_S * 1000]
    for _ in range(100):
        outlet.write("y\n")
    assert [t for t in waits if t] == [WAIT_S * 1000]
    now[0] += PATIENCE_S + 0.1
    outlet.write("z\n")
    assert [t for t in waits if t] == [WAIT_S * 1000] * 2


def test_a_stream_that_is_no_file() -> None:
    stream = io.StringIO()
    Outlet(stream).write("one\n")
    assert stream.getvalue() == "one\n"


def test_a_reader_that_is_gone_is_an_error_for_the_handler_to_pass_over(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    other, _ = os.pipe()
    os.dup2(other, reader)
    with pytest.raises(BrokenPipeError):
        Outlet(stream).write("one\n")
