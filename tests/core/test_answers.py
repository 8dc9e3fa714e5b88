"""Answers of fetch, reclaim and adopt are read row by row: one that cannot be read harms no other (contract C1, decision 4)."""

from __future__ import annotations

from typing import Any

import pytest

from dtq_core.config import load_settings
from dtq_core.keys import Keys
from dtq_core.store.transitions import FIRST_CURSORS, FetchReply, Transitions

pytestmark = pytest.mark.contract("D4", "BQ-12")
CALLS = Transitions(Keys("dtq"), load_settings())
GOOD = [5, "1-1", "a" * 32, "echo", "{}", "1", "5", "30000", "", "1", "1900000000000", "default", 0, 1900000000000]


def row(**changed: Any) -> list[Any]:
    names = ("band", "entry", "id", "type", "payload", "attempt", "max", "timeout", "key", "fence", "created", "queue")
    return [changed.get(name, value) for name, value in zip((*names, "adopted", "started"), GOOD, strict=True)]


def answers(rows: list[list[Any]]) -> list[FetchReply]:
    fetch = CALLS.fetch("w", "a", "nonce", 10, ["default"], ["echo"]).parse([0, [], 0, [], [], rows])
    reclaim = CALLS.reclaim("w", "default", 10, FIRST_CURSORS, ["echo"]).parse([["0-0"] * 10, [], 0, [], [], rows])
    return [fetch, reclaim, CALLS.adopt("w", 10, ["default"]).parse(rows)]


@pytest.mark.parametrize(
    "bad",
    [
        row(attempt="3e4"),
        row(timeout="30000.5"),
        row(max=None),
        row(created="yesterday"),
        row(started="x"),
        row()[:7],
        [],
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_its_neighbours_run(bad: list[Any]) -> None:
    for reply in answers([row(id="b" * 32), bad, row(id="c" * 32)]):
        assert [d.task_id for d in reply.deliveries] == ["b" * 32, "c" * 32]
        assert len(reply.problems) == 1 and "cannot be read" in reply.problems[0]


def test_rows_that_can_be_read_bring_no_problems() -> None:
    for reply in answers([row()]):
        assert [(d.task_id, d.attempt, d.adopted) for d in reply.deliveries] == [("a" * 32, 1, False)]
        assert reply.problems == ()
