"""Instants: aware UTC datetimes for people, whole epoch milliseconds inside.

The one clock that decides is the server's (decision 16).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_ms(epoch_ms: int) -> datetime:
    """Epoch milliseconds as an aware UTC datetime, exact to the millisecond."""
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def to_ms(instant: datetime) -> int:
    """An aware datetime as whole epoch milliseconds.

    Raises ValueError for a naive datetime: a time without an offset is a guess.
    """
    if instant.tzinfo is None:
        raise ValueError("naive datetime: an instant needs an offset")
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def iso(epoch_ms: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC with milliseconds and offset, as the scripts write it into events."""
    return from_ms(epoch_ms).isoformat(timespec="milliseconds")
