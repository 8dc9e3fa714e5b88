"""Text that came from outside, made fit to be kept and shown: one line, no control characters, no passwords.

Used for error messages (hash, dead letter, feed) and for every line of the log. Pure.
"""

from __future__ import annotations

import re

_PASSWORD_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]*):\S*@")
_SECRET_IN_QUERY = re.compile(r"([?&](?:password|passwd|secret|token|api[_-]?key)=)[^\s&#]+", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with the passwords of its URLs replaced: redis://user:pw@host becomes redis://user:***@host.

    Rather too much than too little: everything up to the last @ of a word counts as password, as passwords may hold
    any sign.
    """
    if "://" in text:
        text = _PASSWORD_IN_URL.sub(r"\1:***@", text)
    return _SECRET_IN_QUERY.sub(r"\1***", text) if "=" in text else text


def clean(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters: spaces in place of line breaks, control characters, invisible
    ones and lone surrogates; passwords in URLs replaced.

    It is cut before it is searched, so megabytes cost nothing, and once more at the end, so that the first cut cannot
    leave half a password behind.
    """
    safe = redact(text[: limit * 2])
    if not safe.isprintable():
        safe = "".join(c if c.isprintable() else " " for c in safe)
    return safe[:limit]
