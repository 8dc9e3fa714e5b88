"""Anything at all, after the OpenAPI document and against it: schemathesis with all of its checks, with keys and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from api.service import Service
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

KEY = "key-of-the-fuzzer"
ROOM = {"max_queue_depth": 10**6, "max_scheduled": 10**6, "max_queues": 10**5}
"""Limits that the document does not tell are out of reach, and every type is taken: no worker has announced one."""
EXAMPLES = 25
"""Per operation, mode and state of the keys: some two thousand requests in all."""

CANNOT_BE_WRONG = {"list_queues", "list_workers", "get_worker", "health", "ready", "metrics"}
"""Operations without a parameter, or with one that may be any text."""


@pytest.mark.contract("C13.16")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_the_service_does_what_its_document_says(
    make_api: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, mode: GenerationMode, closed: bool
) -> None:
    if closed:
        monkeypatch.setenv("DTQ_API_READ_KEY", "key-of-a-reader")
        monkeypatch.setenv("DTQ_API_SUBMIT_KEY", "key-of-a-producer")
    api = make_api(task_modules="no_such_module", api_key=KEY if closed else "", **ROOM)
    schema = schemathesis.openapi.from_dict(adapted(api.http.get("/openapi.json").json(), mode, closed))
    schema.config.update(base_url=api.base)
    complaints, idle = [], set()
    for found in schema.get_all_operations():
        operation = found.ok()
        try:
            fuzz(operation.as_strategy(generation_mode=mode))
        except Unsatisfiable:
            idle.add(operation.definition.raw["operationId"])
        except (Exception, BaseExceptionGroup) as exc:
            complaints.append(f"{operation.label}: {exc}")
    assert not complaints, "\n\n".join(complaints)
    assert idle <= (CANNOT_BE_WRONG if mode is GenerationMode.NEGATIVE else set())


def fuzz(strategy: Any) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy)
    def one(case: schemathesis.Case) -> None:
        case.body = whole(case.body)
        case.call_and_validate(headers={"X-API-Key": KEY})

    one()


def adapted(document: dict[str, Any], mode: GenerationMode, closed: bool) -> dict[str, Any]:
    """What a schema cannot say."""
    del document["paths"]["/api/v1/events"]  # its answer never ends
    # A task that is wrong does not make its batch wrong: it has an answer of its own.
    document["components"]["schemas"]["Batch"]["properties"]["tasks"]["items"] = {}
    for item in document["paths"].values():
        for operation in item.values():
            if not closed or mode is GenerationMode.NEGATIVE:  # the key is right, or the rest would never be looked at
                operation.pop("security", None)
            if mode is GenerationMode.POSITIVE:  # a cursor is opaque: nobody can make one up
                operation["parameters"] = [p for p in operation.get("parameters", []) if p["name"] != "cursor"]
    return document


def whole(value: Any) -> Any:
    """5.0 as 5: JSON Schema has both for a whole number, the service takes the latter only, see docs/http-api.md."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list) else value
