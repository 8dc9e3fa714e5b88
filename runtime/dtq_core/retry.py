"""What a failed attempt means: classify, back off, decide. Pure: time and randomness are arguments (contract §4).

An Outcome is what happened, a Settlement what will be written; only `decide` makes one of the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtq_core.task import TaskStatus
from dtq_core.text import clean
from dtq_tasks.errors import PermanentError, RetryableError

if TYPE_CHECKING:
    from dtq_core.config import Settings

MAX_MESSAGE_CHARS = 500
MAX_CLASS_CHARS = 120
MAX_ASKED_DELAY_S = 30 * 86_400


@dataclass(slots=True)
class Succeeded:
    """The handler returned; `result` is its value as compact JSON (None for a null result)."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or what it returned cannot be kept."""

    error_class: str
    error_message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler was still running after timeout_ms."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler was stopped because somebody asked for it."""


Outcome = Succeeded | Failed | TimedOut | Cancelled


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays in seconds. `dead_letters` says whether an exhausted task goes to the dead letters or just fails."""

    base_delay_s: float = 1.0
    max_delay_s: float = 60.0
    jitter: float = 0.2
    dead_letters: bool = True

    @classmethod
    def of(cls, settings: Settings) -> RetryPolicy:
        return cls(settings.retry_base_delay, settings.retry_max_delay, settings.retry_jitter, settings.dlq_enabled)


@dataclass(slots=True)
class Settlement:
    """What settle.lua is asked to write for one attempt."""

    status: TaskStatus
    result: str | None = None
    error_class: str = ""
    error_message: str = ""
    retryable: bool | None = None
    retry_delay_ms: int | None = None


def describe(exc: BaseException) -> tuple[str, str]:
    """(class name, cleaned message) of an exception, whatever its __str__ does."""
    name = clean(type(exc).__name__, MAX_CLASS_CHARS)
    try:
        text = str(exc)
    except BaseException:
        text = "(the exception has no readable message)"
    return name, clean(text, MAX_MESSAGE_CHARS) or name


def is_retryable(exc: BaseException, retry_on: tuple[type[BaseException], ...] = ()) -> bool:
    """The closed list of §4 and decision 12: everything that is not on it is permanent.

    `retry_on` is what the handler named itself. Redis connection errors are recognised by the family of their class, so
    that this module needs no Redis client.
    """
    kind = type(exc)  # not isinstance: it asks the object, and a hostile one answers with code of its own
    if issubclass(kind, PermanentError):
        return False
    if issubclass(kind, (RetryableError, TimeoutError)) or (retry_on and issubclass(kind, retry_on)):
        return True
    return any(
        str(c.__module__).startswith(("redis.", "valkey.")) and c.__name__ in ("ConnectionError", "TimeoutError")
        for c in kind.__mro__
    )


def classify(exc: BaseException, retry_on: tuple[type[BaseException], ...] = ()) -> Failed:
    """An exception as a Failed outcome. The length of its message never changes the class (decision 12)."""
    name, message = describe(exc)
    return Failed(name, message, is_retryable(exc, retry_on))


def backoff_s(attempt: int, policy: RetryPolicy, rng: random.Random) -> float:
    """Seconds until the next attempt after `attempt` (from 1) failed: capped doubling, then jitter (§4).

    The exponent is bounded before the power is taken, so no attempt number overflows.
    """
    capped = min(policy.max_delay_s, policy.base_delay_s * 2.0 ** min(attempt - 1, 64))
    return max(0.0, capped * (1 + rng.uniform(-policy.jitter, policy.jitter)))


def decide(
    outcome: Outcome,
    attempt: int,
    max_attempts: int,
    policy: RetryPolicy,
    rng: random.Random,
    delay_s: float | None = None,
) -> Settlement:
    """What to write after `attempt` of `max_attempts` ended with `outcome`.

    `delay_s` is a delay the handler asked for, in place of the policy's; one that is no time to wait is ignored.
    """
    if type(outcome) is Succeeded:
        return Settlement(TaskStatus.SUCCEEDED, outcome.result)
    match outcome:
        case Cancelled():
            return Settlement(TaskStatus.CANCELLED)
        case TimedOut(timeout_ms):
            failed = Failed("TimeoutError", f"still running after {timeout_ms} ms", retryable=True)
        case Failed():
            failed = outcome
    if failed.retryable and attempt < max_attempts:
        delay = backoff_s(attempt, policy, rng)
        if isinstance(delay_s, (int, float)) and 0 <= delay_s <= MAX_ASKED_DELAY_S:
            delay = delay_s
        return Settlement(
            TaskStatus.RETRYING,
            error_class=failed.error_class,
            error_message=failed.error_message,
            retryable=True,
            retry_delay_ms=round(delay * 1000),
        )
    return Settlement(
        TaskStatus.DEAD_LETTERED if policy.dead_letters else TaskStatus.FAILED,
        error_class=failed.error_class,
        error_message=failed.error_message,
        retryable=failed.retryable,
    )
