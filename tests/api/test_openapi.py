"""The OpenAPI document: complete, with ids that a generated client can live with, and true: real answers are held against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from dtq_api import schemas
from dtq_api.errors import HTTP_STATUS
from dtq_core.submission import SubmissionInput

NOBODY = "f" * 32
METHODS = ("get", "post", "put", "delete", "patch")


def operations(api) -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = api.http.get("/openapi.json").json()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert method in METHODS
            yield method, path, operation


@pytest.mark.contract(*[f"C11.{n:02}" for n in (1, 10, 11, 16, 17, 18, 20, 21, 22, 23, 24, 27, 30, 31, 32, 33, 34, 35)])
def test_every_endpoint_of_the_contract_is_in_it(api):
    found = {f"{method.upper()} {path}" for method, path, _ in operations(api)}
    assert found == {
        "POST /api/v1/tasks", "POST /api/v1/tasks:batch", "GET /api/v1/tasks", "GET /api/v1/tasks/{task_id}",
        "POST /api/v1/tasks/{task_id}/cancel", "GET /api/v1/queues", "GET /api/v1/queues/{queue}",
        "POST /api/v1/queue/{queue}/pause", "POST /api/v1/queue/{queue}/resume", "POST /api/v1/queue/{queue}/purge",
        "GET /api/v1/workers", "GET /api/v1/workers/{worker_id}", "GET /api/v1/dlq", "GET /api/v1/dlq/{task_id}",
        "POST /api/v1/dlq/{task_id}/requeue", "POST /api/v1/dlq/{task_id}/discard", "POST /api/v1/dlq/purge",
        "GET /api/v1/events", "GET /health", "GET /ready", "GET /metrics",
    }  # fmt: skip


def test_every_operation_has_an_id_a_summary_and_its_errors(api):
    ids = [operation["operationId"] for _, _, operation in operations(api)]
    assert len(set(ids)) == len(ids) and all(i.isidentifier() and i.islower() for i in ids)
    for _, path, operation in operations(api):
        assert operation["summary"] and operation["description"] and operation["tags"]
        assert "422" not in operation["responses"], path
        for status, answer in operation["responses"].items():
            assert "X-Request-ID" in answer["headers"] and answer["description"]
            if int(status) < 400:
                continue
            content = answer["content"]["application/json"]
            model = content["schema"]["$ref"].rpartition("/")[2]
            assert model == ("Unready" if "NOT_READY" in content["examples"] else "Error")
            for code, example in content["examples"].items():
                assert example["value"]["code"] == code and HTTP_STATUS[code] == int(status)
                getattr(schemas, model).model_validate_json(json.dumps(example["value"]))
            assert ("Retry-After" in answer["headers"]) == (status in ("429", "503"))
        if path.startswith("/api/"):
            assert {"401", "403", "500", "503"} <= set(operation["responses"])


def test_destructive_operations_say_that_they_need_a_key(api):
    document = api.http.get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {
        "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    }
    security = {operation["operationId"]: operation.get("security") for _, _, operation in operations(api)}
    assert {name for name, wanted in security.items() if wanted is None} == {"health", "ready"}
    assert {name for name, wanted in security.items() if wanted == [{"ApiKey": []}]} == {
        "cancel_task", "pause_queue", "resume_queue", "purge_queue", "requeue_dead_letter", "discard_dead_letter",
        "purge_dead_letters",
    }  # fmt: skip


def test_a_submission_is_documented_as_the_core_takes_it(api):
    """The document's model adds words and patterns; it has the core's fields and defaults, and its own example is taken."""
    documented, taken = schemas.Submission.model_fields, SubmissionInput.model_fields
    assert {n: (f.is_required(), f.get_default(call_default_factory=True)) for n, f in documented.items()} == {
        n: (f.is_required(), f.get_default(call_default_factory=True)) for n, f in taken.items()
    }
    schema = api.http.get("/openapi.json").json()["components"]["schemas"]["Submission"]
    assert api.post("/tasks", {**schema["example"], "task_type": "echo"}).status_code == 202
    (limit,) = [s["maximum"] for s in schema["properties"]["max_attempts"]["anyOf"] if "maximum" in s]
    assert limit == api.settings.max_attempts


def holds(model: type[BaseModel], document: dict[str, Any]) -> None:
    """The document is valid, and has no field that the model does not name."""
    model.model_validate_json(json.dumps(document))
    assert set(document) <= set(model.model_fields), set(document) - set(model.model_fields)


def test_answers_are_what_the_document_says(api, world):
    world.worker()
    done = api.submit(idempotency_key="k")
    dead = [api.submit("raise", {"kind": "permanent"}) for _ in range(3)]
    world.wait_ended([done, *dead])
    taken = api.post("/tasks", {"task_type": "echo", "queue": "a"}).json()
    holds(schemas.Submitted, taken)
    holds(schemas.Duplicate, api.post("/tasks", {"task_type": "echo", "idempotency_key": "k"}).json())
    batch = api.post("/tasks:batch", {"tasks": [{"task_type": "echo", "queue": "a"}, {}]}).json()
    holds(schemas.BatchAnswer, batch)
    for item in batch["results"]:
        holds(schemas.BatchItem, item)
    page = api.get("/tasks").json()
    holds(schemas.TaskPage, page)
    for task in page["tasks"]:
        holds(schemas.TaskBody, task)
        holds(schemas.TaskWithResult, api.task(task["task_id"]))
        for attempt in task["history"]:
            holds(schemas.Attempt, attempt)
    holds(schemas.TaskState, api.post(f"/tasks/{taken['task_id']}/cancel").json())
    holds(schemas.QueueList, api.get("/queues").json())
    holds(schemas.QueueBody, api.get("/queues/a").json())
    holds(schemas.PauseBody, api.post("/queue/b/pause").json())
    holds(schemas.PauseBody, api.post("/queue/b/resume").json())
    holds(schemas.PurgeBody, api.post("/queue/a/purge").json())
    workers = api.get("/workers").json()
    holds(schemas.WorkerList, workers)
    holds(schemas.WorkerBody, api.get(f"/workers/{workers['workers'][0]['worker_id']}").json())
    holds(schemas.DeadLetterPage, api.get("/dlq").json())
    holds(schemas.DeadLetterBody, api.get(f"/dlq/{dead[0]}").json())
    holds(schemas.TaskState, api.post(f"/dlq/{dead[0]}/requeue").json())
    holds(schemas.Discarded, api.post(f"/dlq/{dead[1]}/discard").json())
    holds(schemas.PurgeBody, api.post("/dlq/purge").json())
    holds(schemas.Error, api.get(f"/tasks/{NOBODY}").json())
    holds(schemas.Health, api.http.get("/health").json())
    holds(schemas.Ready, api.http.get("/ready").json())
