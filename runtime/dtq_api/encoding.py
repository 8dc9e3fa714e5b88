"""JSON out: whatever a record holds, the answer is valid JSON in ASCII.

Strict both ways: what came in was checked by the core, but records may have been written by other hands, so numbers that
JSON does not have become null and lone surrogates are escaped, and one bad record never makes a page of good ones a 500.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

_MEDIA_TYPE = "application/json"


def encode(document: Any) -> bytes:
    """`document` as JSON. Numbers that are not finite, and what is nested too deep to be written, become null."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError):
        return json.dumps(_finite(document, 200), separators=(",", ":"), allow_nan=False).encode()


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`document` as an answer."""
    return Response(encode(document), status, dict(headers) if headers else None, _MEDIA_TYPE)


def _finite(value: Any, levels: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v, levels - 1) for k, v in value.items()} if levels else None
    if isinstance(value, (list, tuple)):
        return [_finite(v, levels - 1) for v in value] if levels else None
    return value
