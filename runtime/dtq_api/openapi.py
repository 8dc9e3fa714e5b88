"""The OpenAPI document: what the framework cannot know is added, what this service never answers is taken out.

Bodies are read by hand, so their schemas are put in here. Every answer has X-Request-ID. Reads and submissions take a key
where one is set, so for them it is optional. The framework's 422 and its schemas go.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from dtq_api import schemas

TAGS = {
    "tasks": "Submit, look at, wait for and cancel tasks.",
    "queues": "Numbers of queues; pause, resume and purge them.",
    "workers": "Who runs tasks, and how they are.",
    "dead letters": "Tasks that failed for good: look at them, put them back, drop them.",
    "events": "The live feed.",
    "operations": "Probes and metrics.",
}
_FOREIGN = ("HTTPValidationError", "ValidationError")
_REF = "#/components/schemas/{model}"
_KEY: dict[str, list[str]] = {"ApiKey": []}
_REQUEST_ID = {"description": "As sent, or a new one; it is in the log and in the audit.", "schema": {"type": "string"}}


def install(app: FastAPI, max_attempts: int) -> None:
    """Make /openapi.json show the corrected document. `max_attempts` is the most that a task may ask for here."""
    made = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            _add_bodies(found["components"]["schemas"], max_attempts)
            for item in found["paths"].values():
                for operation in item.values():
                    _correct(operation)
            found["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
        return made()

    app.openapi = document  # type: ignore[method-assign]


def methods_of(app: FastAPI, path: str) -> list[str]:
    """What can be done with `path`; empty for one that is not in the document."""
    found: set[str] = set()
    for template, item in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path):
            found |= {method.upper() for method in item}
    return sorted(found)


def body_of(model: str) -> dict[str, Any]:
    """The requestBody of an operation that reads its body by hand."""
    return {"required": True, "content": {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}}


def _add_bodies(components: dict[str, Any], max_attempts: int) -> None:
    _, found = models_json_schema(
        [(schemas.Submission, "validation"), (schemas.Batch, "validation")], ref_template=_REF
    )
    components.update(found["$defs"])
    components["Submission"]["properties"]["max_attempts"]["anyOf"][0]["maximum"] = max_attempts
    for name in _FOREIGN:
        components.pop(name, None)


def _correct(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if "401" in responses and "security" not in operation:
        operation["security"] = [{}, _KEY]
    for response in responses.values():
        response["headers"] = {**response.get("headers", {}), "X-Request-ID": _REQUEST_ID}
