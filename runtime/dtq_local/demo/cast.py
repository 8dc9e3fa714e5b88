"""Who plays in the demo: task types with their payloads and troubles, and the shifts of the workers. Plain data.

All names, addresses and numbers are made up; hosts end in .example.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dtq_core.retry import Failed, Outcome, TimedOut


@dataclass(frozen=True)
class Kind:
    """A task type: where it runs, how long it takes (seconds), how often one attempt fails, and with what."""

    name: str
    queue: str
    weight: int
    seconds: tuple[float, float]
    payload: Callable[[random.Random], dict[str, Any]]
    trouble: float
    troubles: tuple[Outcome, ...]
    priority: int = 5
    max_attempts: int = 5
    dead_letters: bool = True


@dataclass(frozen=True)
class Shift:
    """A worker from `start_h` to `end_h`, in hours before now. `end` says how it goes: stays, leaves, dies."""

    name: str
    queues: tuple[str, ...]
    concurrency: int
    start_h: float
    end_h: float = 0.0
    end: str = "stays"


def _address(rng: random.Random) -> str:
    return f"{rng.choice(['ada', 'bo', 'cem', 'dana', 'eli', 'fay', 'gus', 'hana'])}{rng.randint(1, 99)}@mail.example"


def _order(rng: random.Random) -> int:
    return rng.randint(100_000, 999_999)


KINDS = (
    Kind(
        "mail.send", "mail", 34, (0.05, 0.9),
        lambda rng: {"to": _address(rng), "template": rng.choice(["welcome", "order-confirmed", "shipped", "reset"])},
        0.08,
        (
            Failed("RetryableError", "SMTP 421 4.7.0 try again later, closing connection (mx1.mail.example)", True),
            Failed("ConnectionError", "[Errno 104] connection reset by peer (mx2.mail.example:587)", True),
            Failed("PermanentError", "SMTP 550 5.1.1 no such mailbox", False),
        ),
        priority=6,
    ),
    Kind(
        "payment.capture", "billing", 16, (0.2, 2.5),
        lambda rng: {"order": _order(rng), "cents": rng.randint(500, 90_000), "currency": "EUR"},
        0.07,
        (
            Failed("RetryableError", "HTTP 503 from https://pay.example/v1/captures: upstream unavailable", True),
            Failed("CardDeclined", "card_declined: insufficient_funds (the bank's answer was final)", False),
        ),
        priority=8, max_attempts=8,
    ),
    Kind(
        "webhook.deliver", "billing", 14, (0.03, 1.2),
        lambda rng: {"url": f"https://partner{rng.randint(1, 9)}.example/hooks", "event": "order.paid", "order": _order(rng)},
        0.2,
        (
            Failed("RetryableError", "HTTP 502 from https://partner3.example/hooks after 1,204 ms", True),
            TimedOut(10_000),
            Failed("RetryableError", "HTTP 429: retry after 30 s", True),
        ),
        max_attempts=3,
    ),
    Kind(
        "image.resize", "media", 16, (0.8, 12.0),
        lambda rng: {"key": f"uploads/{rng.randint(1, 99_999):05d}.jpg", "widths": [320, 640, 1280]},
        0.05,
        (
            Failed("UnidentifiedImageError", "cannot identify image file 'uploads/broken.jpg'", False),
            Failed("RetryableError", "object store: SlowDown, reduce your request rate", True),
        ),
        priority=3,
    ),
    Kind(
        "report.render", "reports", 8, (4.0, 45.0),
        lambda rng: {"report": rng.choice(["sales", "stock", "refunds"]), "day": f"day-{rng.randint(1, 30)}"},
        0.06,
        (TimedOut(60_000), Failed("ValidationError", "1 validation error for Report: day is in the future", False)),
        priority=2, max_attempts=3,
    ),
    Kind(
        "stock.import", "imports", 6, (10.0, 90.0),
        lambda rng: {"supplier": f"S{rng.randint(10, 99)}", "file": f"stock-{rng.randint(1, 400)}.csv", "rows": rng.randint(50, 9000)},
        0.1,
        (
            Failed("PermanentError", "line 4183: 'N/A' is not a number (column quantity)", False),
            Failed("RetryableError", "sftp supplier.example: no answer within 20 s", True),
        ),
        priority=4, max_attempts=3,
    ),
    Kind(
        "metrics.rollup", "imports", 6, (0.4, 3.0),
        lambda rng: {"window": "5m", "series": rng.randint(10, 900)},
        0.08,
        (Failed("PermanentError", "window was closed already", False),),
        priority=1, max_attempts=2, dead_letters=False,
    ),
)  # fmt: skip

KIND = {kind.name: kind for kind in KINDS}

SHIFTS = (
    Shift("mail-1", ("mail", "billing"), 4, 24.0),
    Shift("mail-2", ("mail", "billing"), 4, 24.0, 11.0, "leaves"),
    Shift("mail-3", ("mail", "billing"), 4, 10.99),
    Shift("media-1", ("media", "reports"), 3, 24.0),
    Shift("media-2", ("media",), 2, 9.0, 0.01, "dies"),
    Shift("imports-1", ("imports",), 2, 24.0, 6.0, "dies"),
    Shift("imports-2", ("imports",), 2, 5.98),
)
"""A deployment at 11 hours before now, a worker more for the images, and two that were killed."""

HOURS = (2, 1, 1, 1, 1, 2, 3, 5, 8, 10, 10, 9, 8, 9, 10, 9, 8, 7, 7, 8, 8, 6, 4, 3)
"""How much is submitted in each hour of the day, from the one 24 hours ago."""
