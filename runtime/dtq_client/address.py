"""Where the service is and who asks: base URL, key and User-Agent, from arguments or the environment.

The invariant: the key is in a header and nowhere else; no message and no repr has it, or a password of a URL.
"""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import httpx

from dtq_client.errors import InvalidCall

LONGEST_ATTEMPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Address:
    """`url` has no slash at its end; `headers` go with every request."""

    url: str
    headers: list[tuple[bytes, bytes]] = field(repr=False)


def address(base_url: str | None, api_key: str | None) -> Address:
    """From the arguments, else DTQ_API_URL and DTQ_API_KEY. Raises InvalidCall."""
    headers = [(b"User-Agent", _user_agent().encode())]
    key = _key(os.environ.get("DTQ_API_KEY", "") if api_key is None else api_key)
    if key:
        headers.append((b"X-API-Key", key))
    return Address(_url(base_url or os.environ.get("DTQ_API_URL", "")), headers)


def seconds(name: str, value: float, most: float = math.inf) -> float:
    """`value` if it is a time one can wait. Raises InvalidCall."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        limit = "" if most == math.inf else f", at most {most:g}"
        raise InvalidCall(f"{name}: a number of seconds above 0{limit}")
    return float(value)


def _url(url: str) -> str:
    if not url:
        raise InvalidCall("no base URL: give one, as http://dtq-api:8000, or set DTQ_API_URL")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url == url.strip()
        httpx.URL(url)
    except (ValueError, TypeError, AttributeError, httpx.InvalidURL):
        sound = False
    if not sound or parts.username is not None or parts.query or parts.fragment:
        # The URL is not repeated: it may have a password in it.
        raise InvalidCall("base URL: http://host:port or https://host/path, without a user, a query or a fragment")
    return url.rstrip("/")


def _key(text: str) -> bytes:
    """The first key of a list, as the service's own DTQ_API_KEY may be one (docs/security.md)."""
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else None
    key = None if parts is None else next(filter(None, parts), "")
    if key is None or not key.isprintable():
        raise InvalidCall("API key: one line of text")
    return key.encode(errors="surrogateescape")


def _user_agent() -> str:
    try:
        ours = version("dtq")
    except PackageNotFoundError:  # the package was copied without its distribution
        ours = "0"
    return f"dtq-client/{ours} python/{platform.python_version()} httpx/{httpx.__version__}"
