"""One question to the service, asked again until it is answered or the time is up. No I/O here.

A plan is a generator: it yields what is to be done (Send, Sleep), and whoever runs it, blocking or on an event loop, sends
back what came of it. So both clients behave the same because they run the same plan. The invariant: a request is asked
again only when that cannot do it twice, and never past the deadline of its call.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from uuid import uuid4

from dtq_client.errors import BadAnswer, ClientError, Facts, NoAnswer, api_error

logger = logging.getLogger("dtq_client")

T = TypeVar("T")
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 5.0
RETRIED = frozenset({408, 429, 502, 503, 504})
"""408 is here because it says that the network was slow, not that the request was wrong."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this and collect the whole answer within `timeout_s`."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer. `sent`: the request, or a part of it, may have arrived. `final`: trying again is of no use."""

    why: str
    sent: bool
    final: bool = False


Outcome = Answer | Broken | None
Plan = Generator[Send | Sleep, Outcome, T]


@dataclass(slots=True)
class Call:
    """One call of a user, with all its tries.

    `in_doubt`: a try of the current request may have been carried out. `out_of_time`: its last error would have been
    worth another try.
    """

    timeout_s: float
    attempt_timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    clock: Callable[[], float] = time.monotonic
    rng: Callable[[], float] = random.random
    request_id: str = field(default_factory=lambda: uuid4().hex)
    ends_at: float = 0.0
    in_doubt: bool = False
    out_of_time: bool = False

    def __post_init__(self) -> None:
        self.ends_at = self.clock() + self.timeout_s

    def left_s(self) -> float:
        return self.ends_at - self.clock()

    def pause_s(self, tries: int, retry_after_s: float | None) -> float:
        """How long to wait after try number `tries`, with a random part so that callers do not come back together."""
        backoff = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(tries - 1, 10)) * (0.5 + 0.5 * self.rng())
        asked = (retry_after_s or 0.0) * (1 + 0.2 * self.rng())
        return max(backoff, asked)

    def facts(self, **more: Any) -> Facts:
        known = {"request_id": self.request_id, "idempotency_key": self.idempotency_key}
        return Facts(**{**known, "may_have_happened": self.in_doubt, **more})


def exchange(
    call: Call, method: str, path: str, body: bytes | None = None, *, attempt_timeout_s: float | None = None
) -> Plan[Answer]:
    """The first answer that is not worth another try. Raises the typed error of the last try when the time is up."""
    headers = {**call.headers, "X-Request-ID": call.request_id, "Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    most_s = attempt_timeout_s or call.attempt_timeout_s
    if method != "GET":  # looking does not settle what a call before it left open
        call.in_doubt = False
    tries = 0
    while (left_s := call.left_s()) > 0:
        tries += 1
        outcome = yield Send(method, path, body, headers, min(left_s, most_s))
        assert outcome is not None
        if isinstance(outcome, Answer):
            call.in_doubt |= method != "GET" and outcome.status >= 500
            if not _is_passing(method, outcome):
                return outcome
            error: ClientError = problem(call, outcome)
        else:
            call.in_doubt |= method != "GET" and outcome.sent
            error = NoAnswer(f"no answer from the service; try {tries}: {outcome.why}", call.facts())
            if outcome.final:
                raise error
        pause_s = call.pause_s(tries, error.retry_after_s)
        if pause_s >= call.left_s():
            call.out_of_time = True
            raise error
        logger.info("%s %s, request %s: %s; again in %.1f s", method, path, call.request_id, error.code, pause_s)
        yield Sleep(pause_s)
    call.out_of_time = True
    raise NoAnswer("the time was up before anything was sent", call.facts())


def document_of(call: Call, answer: Answer) -> dict[str, Any]:
    """The JSON object of a good answer. Raises BadAnswer."""
    document = parsed(answer)
    if document is None:
        raise bad_answer(call, answer, "the answer is not a JSON object")
    return document


def bad_answer(call: Call, answer: Answer, what: str) -> BadAnswer:
    """Something that DTQ's API does not say."""
    return BadAnswer(
        f"{what} (HTTP {answer.status}): is the base URL that of DTQ's API?", call.facts(status=answer.status)
    )


def problem(call: Call, answer: Answer) -> ClientError:
    """The error that an answer stands for."""
    if answer.status < 400:
        return bad_answer(call, answer, "an answer that this call does not have")
    document = parsed(answer) or {}
    return refusal(call, answer.status, document, retry_after_s(answer.headers.get("retry-after")))


def refusal(call: Call, status: int, document: Mapping[str, Any], after_s: float | None) -> ClientError:
    """The error for a body {code, message, request_id}; whatever of it is missing or wrong."""
    code, message, request_id, task_id = (document.get(k) for k in ("code", "message", "request_id", "task_id"))
    facts = call.facts(
        code=code if isinstance(code, str) and code else f"HTTP_{status}",
        status=status,
        request_id=request_id if isinstance(request_id, str) and request_id else call.request_id,
        task_id=task_id if isinstance(task_id, str) else None,
        retry_after_s=after_s,
    )
    return api_error(message if isinstance(message, str) and message else f"HTTP {status}, with no reason given", facts)


def retry_after_s(text: str | None) -> float | None:
    """Seconds of a Retry-After header, which has a number or a date (RFC 9110 §10.2.3); None for anything else."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _is_passing(method: str, answer: Answer) -> bool:
    """Whether the next try may have a better answer. A 500 that is not DTQ's is from a server that was ended at work."""
    if answer.status == 500 and method == "GET":
        return "code" not in (parsed(answer) or {})
    return answer.status in RETRIED


def parsed(answer: Answer) -> dict[str, Any] | None:
    """The JSON object in an answer, if it is one."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
