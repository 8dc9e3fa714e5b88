"""The OpenAPI document without what the framework adds and this service never answers: its 422 and the schemas of it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_FOREIGN = ("HTTPValidationError", "ValidationError")


def install(app: FastAPI) -> None:
    """Make /openapi.json show the corrected document."""
    made = app.openapi

    def document() -> dict[str, Any]:
        found = made()
        for item in found["paths"].values():
            for operation in item.values():
                operation["responses"].pop("422", None)
        for name in _FOREIGN:
            found["components"]["schemas"].pop(name, None)
        return found

    app.openapi = document  # type: ignore[method-assign]
