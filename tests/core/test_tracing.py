"""What counts as a traceparent, and where it goes (W3C Trace Context, version 00)."""

from __future__ import annotations

from typing import Any

import pytest

from dtq_core.config import load_settings
from dtq_core.submission import Submission
from dtq_core.tracing import joined, split, valid, with_traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


@pytest.mark.parametrize("good", [TRACE, TRACE[:-2] + "00", "cc" + TRACE[2:]])
def test_a_traceparent(good: str) -> None:
    assert valid(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        None, 7, "", TRACE.upper(), TRACE + "\n", TRACE + "-extra", "ff" + TRACE[2:], TRACE.replace("-", "_"), TRACE[1:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)  # fmt: skip
def test_what_is_none_is_ignored(bad: Any) -> None:
    assert valid(bad) == ""
    raw = {"task_type": "echo", "metadata": {"traceparent": bad}}
    assert Submission.make(raw, "a" * 32, load_settings()).trace == ""
    assert with_traceparent({"task_type": "echo"}, bad) == {"task_type": "echo"}


def test_it_goes_into_the_metadata_unless_one_is_there() -> None:
    raw = {"task_type": "echo", "metadata": {"a": 1}}
    traced = with_traceparent(raw, TRACE)
    assert traced["metadata"] == {"a": 1, "traceparent": TRACE} and raw["metadata"] == {"a": 1}
    assert with_traceparent(traced, OTHER) == traced
    assert Submission.make(traced, "a" * 32, load_settings()).trace == TRACE
    for odd in (None, [], "text", {"metadata": "text"}, {"metadata": []}):
        assert with_traceparent(odd, TRACE) == odd


def test_the_field_of_a_record() -> None:
    assert split("") == ("", "") and split(TRACE) == (TRACE, "")
    assert joined(TRACE, OTHER) == f"{TRACE} {OTHER}"
    assert split(joined(joined(TRACE, OTHER), TRACE)) == (TRACE, TRACE)
    assert split(joined("", OTHER)) == ("", OTHER) and joined(TRACE, "") == ""
