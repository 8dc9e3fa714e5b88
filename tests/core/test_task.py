"""The table of transitions: contract §1, complete."""

from __future__ import annotations

import itertools

import pytest

from dtq_core.errors import InvalidTransition
from dtq_core.task import (
    BANDS,
    LIVE,
    NAMED_TRANSITIONS,
    QUEUE_NAME,
    TERMINAL,
    TRANSITIONS,
    TaskStatus,
    check_transition,
    sources_of,
)

# Written out once more on purpose: the test must not read the table it checks.
LEGAL = {
    ("pending", "queued"),
    ("pending", "cancelled"),
    ("pending", "expired"),
    ("queued", "running"),
    ("queued", "cancelled"),
    ("queued", "expired"),
    ("running", "succeeded"),
    ("running", "retrying"),
    ("running", "failed"),
    ("running", "dead_lettered"),
    ("running", "cancelled"),
    ("retrying", "queued"),
    ("retrying", "cancelled"),
}
STATUSES = [
    "pending",
    "queued",
    "running",
    "succeeded",
    "retrying",
    "failed",
    "dead_lettered",
    "cancelled",
    "expired",
]


@pytest.mark.contract("C1.01", "C1.02", "C1.03", "C1.04", "C1.05", "C1.06", "C1.07", "C1.08", "C1.09")
def test_the_nine_statuses_and_their_values():
    assert [s.value for s in TaskStatus] == STATUSES
    assert all(s.name.lower() == s.value == str(s) == f"{s}" for s in TaskStatus)


@pytest.mark.contract(*[f"C1.{n}" for n in range(10, 26)])
@pytest.mark.parametrize(("source", "target"), list(itertools.product(STATUSES, STATUSES)))
def test_every_pair_of_the_matrix(source, target):
    if (source, target) in LEGAL:
        check_transition(TaskStatus(source), TaskStatus(target))
    else:
        with pytest.raises(InvalidTransition, match=f"{source} to {target}"):
            check_transition(TaskStatus(source), TaskStatus(target))


@pytest.mark.contract("C1.23", "C1.24")
def test_live_statuses_can_be_cancelled_and_terminal_ones_lead_nowhere():
    assert {str(s) for s in LIVE} == {"pending", "queued", "running", "retrying"}
    assert {str(s) for s in TERMINAL} == {"succeeded", "failed", "dead_lettered", "cancelled", "expired"}
    assert set(LIVE) == set(sources_of(TaskStatus.CANCELLED))
    assert all(not TRANSITIONS[s] and s.is_terminal for s in TERMINAL)
    assert not any(s.is_terminal for s in LIVE)


@pytest.mark.contract("C1.25")
def test_the_sources_that_scripts_get_are_the_table_read_backwards():
    for target in TaskStatus:
        assert {(str(s), str(target)) for s in sources_of(target)} == {e for e in LEGAL if e[1] == target}


@pytest.mark.contract("C1.25", "D14")
def test_named_extras_are_four_and_none_of_them_is_in_the_table():
    assert {name: (str(a), str(b)) for name, (a, b) in NAMED_TRANSITIONS.items()} == {
        "revive": ("dead_lettered", "queued"),
        "redelivery": ("running", "running"),
        "hand_back": ("running", "queued"),
        "defer": ("queued", "pending"),
    }
    for source, target in NAMED_TRANSITIONS.values():
        with pytest.raises(InvalidTransition):
            check_transition(source, target)


@pytest.mark.contract("C1.36", "C2.03")
def test_bands_are_listed_in_the_order_of_draining():
    assert list(BANDS) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.contract("C1.40")
@pytest.mark.parametrize("name", ["a", "0", "default", "a-b_c", "x" * 64])
def test_queue_names_that_fit(name):
    assert QUEUE_NAME.fullmatch(name)


@pytest.mark.contract("C1.40")
@pytest.mark.parametrize("name", ["", "A", "-a", "_a", "a.b", "a b", "a\n", "ä", "a:b", "x" * 65])
def test_queue_names_that_do_not(name):
    assert not QUEUE_NAME.fullmatch(name)
