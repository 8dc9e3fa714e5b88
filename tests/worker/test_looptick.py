"""When a worker with a blocked event loop gives up, and when it must not (decision 5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dtq_worker.looptick import LoopTick

GRACE_S, DRAIN_S, EVERY_S = 30.0, 20.0, 5.0
pytestmark = pytest.mark.contract("BQ-10", "D5")


class Loop:
    """A stopped clock, a loop that turns or not, and one run whose deadline is at 10 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left: list[float] = []
        run = SimpleNamespace(deadline=10.0, is_async=True, delivery=SimpleNamespace(task_type="block"))
        self.runs = [run]
        inflight: Any = SimpleNamespace(runs=lambda: self.runs)
        self.tick = LoopTick(
            inflight, GRACE_S, DRAIN_S, EVERY_S, leave=lambda: self.left.append(self.now), clock=lambda: self.now
        )

    def go(self, seconds: float, *, turns: bool = False) -> None:
        """The lease thread looks every five seconds."""
        end = self.now + seconds
        while self.now < end and not self.left:
            self.now += EVERY_S
            if turns:
                self.tick.turned()
            self.tick.look()


def test_a_blocked_loop_is_left_once_its_run_cannot_end_in_time_any_more() -> None:
    loop = Loop()
    loop.go(200)
    assert loop.left == [45.0], "deadline 10 and grace 30 are over"


def test_a_loop_that_turns_is_never_left_however_late_its_runs_are() -> None:
    loop = Loop()
    loop.go(200, turns=True)
    assert loop.left == []


def test_a_process_that_was_suspended_is_not_taken_for_a_blocked_one() -> None:
    loop = Loop()
    loop.go(10, turns=True)
    loop.now += 3600
    loop.tick.look()
    loop.go(15)
    assert loop.left == [], "it saw twenty-five seconds of silence, not an hour"
    loop.go(100)
    assert loop.left, "but it does see the silence that goes on"


def test_a_loop_that_is_blocked_by_what_a_handler_left_behind_is_left() -> None:
    loop = Loop()
    loop.runs.clear()
    loop.go(200, turns=True)
    assert loop.left == []
    loop.go(200)
    assert loop.left == [200 + GRACE_S + EVERY_S]


def test_a_stop_signal_that_the_loop_cannot_hear_is_obeyed_when_the_drain_time_is_up() -> None:
    loop = Loop()
    loop.runs[0].deadline = 10_000.0
    loop.go(100)
    assert loop.left == []
    asked = loop.now
    loop.tick.stop_signalled = lambda: asked
    loop.go(100)
    assert loop.left == [asked + DRAIN_S + EVERY_S]


def test_a_drain_under_way_is_not_cut_short() -> None:
    loop = Loop()
    loop.runs[0].deadline = 10_000.0
    loop.tick.stop_signalled = lambda: 0.0
    loop.go(200, turns=True)
    assert loop.left == []
