"""The vocabulary of failures. Codes and their statuses are API: this list changes on purpose or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from dtq_core import errors
from dtq_core.errors import STATUS_OF_CODE, DtqError, IdempotencyInProgress, QueueFull

CODES = {
    "INTERNAL": (500, 1),
    "INVALID_TASK": (400, 2),
    "PAYLOAD_TOO_LARGE": (413, 2),
    "UNKNOWN_TASK_TYPE": (400, 1),
    "INVALID_ARGUMENT": (400, 2),
    "IDEMPOTENCY_IN_PROGRESS": (409, 1),
    "QUEUE_FULL": (429, 1),
    "QUEUE_LIMIT": (400, 1),
    "TASK_NOT_FOUND": (404, 1),
    "WORKER_NOT_FOUND": (404, 1),
    "CANCEL_REQUESTED": (409, 1),
    "TASK_TERMINAL": (410, 1),
    "DEAD_LETTER_NOT_FOUND": (404, 1),
    "DEAD_LETTER_GONE": (404, 1),
    "DEAD_LETTER_CHANGED": (409, 1),
    "INVALID_TRANSITION": (409, 1),
    "REDIS_UNAVAILABLE": (503, 1),
    "REDIS_FULL": (503, 1),
    "STORE_ERROR": (500, 1),
    "INVALID_CONFIG": (500, 2),
    "STARTUP_HOOK_FAILED": (500, 1),
    "ENGINE_MISSING": (500, 1),
    "ALREADY_RUNNING": (409, 1),
}


def tree(root: type[DtqError]) -> Iterator[type[DtqError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_codes_and_statuses_are_as_promised():
    assert STATUS_OF_CODE == CODES


def test_every_class_has_a_code_of_its_own_and_the_table_knows_each():
    classes = [c for c in tree(DtqError) if c.__module__ == errors.__name__]
    codes = [c.code for c in classes]
    assert len(set(codes)) == len(codes)
    assert set(codes) == set(STATUS_OF_CODE)


def test_every_class_says_when_it_is_raised():
    assert all(c.__doc__ for c in tree(DtqError))


def test_what_an_error_carries():
    assert str(DtqError("text")) == DtqError("text").message == "text"
    assert IdempotencyInProgress("text", task_id="ab").task_id == "ab"
    assert QueueFull("text", retry_after_s=7).retry_after_s == 7
