"""Replies of plain read commands as values, whatever shape the client library gave them."""

from __future__ import annotations

from typing import Any

from dtq_core.errors import StoreError


def sound(reply: Any) -> Any:
    """The reply, unless it is an error. Raises StoreError: a key of the wrong type, a missing right."""
    if isinstance(reply, Exception):
        raise StoreError(f"Redis refused a read: {str(reply)[:200]}")
    return reply


def pairs(reply: Any) -> dict[str, str]:
    """A hash or the fields of an entry as a dict; empty for an error, so that one bad record cannot hide a page."""
    if isinstance(reply, dict):
        return reply
    if isinstance(reply, Exception) or not reply:
        return {}
    return dict(zip(reply[::2], reply[1::2], strict=False))
