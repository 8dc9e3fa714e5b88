"""Submit, look at and cancel tasks (contract §11). The order of the checks is 413 → 400 → replay → 429 (decision 9)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Admin, Cursor, Limit, OfQueue, Reading, Services, TaskId, check, json_body, services_of
from dtq_api.encoding import json_response
from dtq_api.errors import HTTP_STATUS
from dtq_api.openapi import body_of
from dtq_api.refusals import ACTING, READING, WITH_BODY, refusals
from dtq_core.errors import CancelRequested, DtqError, InvalidTask, QueueFull, TaskNotFound
from dtq_core.inspector import task_document
from dtq_core.task import Task, TaskStatus
from dtq_core.tracing import incoming, with_traceparent

router = APIRouter(prefix="/api/v1", tags=["tasks"])

SUBMITTING = (*ACTING, *WITH_BODY, "INVALID_TASK")
MAX_BATCH = 1000
MAX_WAIT_S = 60.0
LOOK_AGAIN_S = 5.0
"""A waiting call looks at the task at least this often: an event may be lost, the record never is."""

_KEY_HEADER = {
    "name": "Idempotency-Key", "in": "header", "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "Wins over idempotency_key in the body. The same key on the same queue is the same task.",
}  # fmt: skip
_TRACE_HEADER = {
    "name": "traceparent", "in": "header", "required": False, "schema": {"type": "string"},
    "description": "W3C trace context; kept in metadata.traceparent. What is none is ignored.",
}  # fmt: skip


@router.post(
    "/tasks",
    operation_id="submit_task",
    summary="Submit one task",
    status_code=202,
    response_model=schemas.Submitted,
    responses={
        200: {"model": schemas.Duplicate, "description": "A replay: the earlier task, which has ended."},
        202: {"description": "Taken.", "headers": {"Location": {"description": "Path of the task.", "schema": {"type": "string"}}}},
        **refusals(*SUBMITTING, "IDEMPOTENCY_IN_PROGRESS", "UNKNOWN_TASK_TYPE", "QUEUE_LIMIT", "QUEUE_FULL"),
    },
    openapi_extra={"requestBody": body_of("Submission"), "parameters": [_KEY_HEADER, _TRACE_HEADER]},
)  # fmt: skip
async def submit(request: Request) -> Response:
    """Takes a task: 202 and it will run. Repeat a call that had no answer with the same Idempotency-Key."""
    services = services_of(request)
    if not services.access.is_open("submit"):
        check(request, "submit")
    raw: Any = None
    try:
        raw = await json_body(request)
        if not isinstance(raw, dict):
            raise InvalidTask("body: a submission is a JSON object")
        key = _idempotency_key(request)
        if key is not None:
            raw["idempotency_key"] = key
        raw = with_traceparent(raw, incoming(request.headers.get("traceparent")))
        taken = await services.client.submit(raw)
        if taken.duplicate:
            try:
                return json_response(await _replay(services, taken.task_id))
            except TaskNotFound:  # it came to the end of its retention in this very moment: its key is free
                taken = await services.client.submit(raw)
    except DtqError as exc:
        _count_refusal(services, raw, exc)
        raise
    _count_taken(services, raw)
    document = {"task_id": taken.task_id, "status": taken.status}
    return json_response(document, 202, {"Location": f"/api/v1/tasks/{taken.task_id}"})


@router.post(
    "/tasks:batch",
    operation_id="submit_tasks",
    summary="Submit up to 1000 tasks",
    response_model=schemas.BatchAnswer,
    responses=refusals(*SUBMITTING),
    openapi_extra={"requestBody": body_of("Batch"), "parameters": [_TRACE_HEADER]},
)
async def submit_batch(request: Request) -> Response:
    """Each task stands for itself: look at every answer. A 503 leaves open which were taken; repeat with idempotency keys."""
    services = services_of(request)
    if not services.access.is_open("submit"):
        check(request, "submit")
    body = await json_body(request)
    raws = body.get("tasks") if isinstance(body, dict) else None
    if not isinstance(raws, list) or not raws or (isinstance(body, dict) and len(body) > 1):
        raise InvalidTask('body: {"tasks": [at least one submission]}')
    if len(raws) > MAX_BATCH:
        raise InvalidTask(f"tasks: at most {MAX_BATCH} in one call")
    traceparent = incoming(request.headers.get("traceparent"))
    answers = await services.client.submit_many([with_traceparent(raw, traceparent) for raw in raws])
    results: list[dict[str, Any]] = []
    accepted = 0
    for raw, answer in zip(raws, answers, strict=True):
        if isinstance(answer, DtqError):
            _count_refusal(services, raw, answer)
            results.append(_refusal(answer))
        elif answer.duplicate:
            results.append({"status_code": 200, "task_id": answer.task_id, "status": answer.status, "duplicate": True})
            accepted += 1
        else:
            _count_taken(services, raw)
            results.append({"status_code": 202, "task_id": answer.task_id, "status": answer.status})
            accepted += 1
    return json_response({"accepted": accepted, "refused": len(results) - accepted, "results": results})


@router.get(
    "/tasks",
    operation_id="list_tasks",
    summary="List recent tasks",
    response_model=schemas.TaskPage,
    responses=refusals(*READING, "INVALID_ARGUMENT"),
)
async def list_tasks(
    services: Reading,
    queue: OfQueue = None,
    status: Annotated[TaskStatus | None, Query(description="Only in this status.")] = None,
    task_type: Annotated[str | None, Query(description="Only of this type.", max_length=128)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Newest first, out of the last 10,000 tasks."""
    page = await services.inspector.tasks(
        queue=queue, status=status.value if status else None, task_type=task_type, limit=limit, cursor=cursor
    )
    return json_response({"tasks": [task_document(task) for task in page.items], "cursor": page.cursor})


@router.get(
    "/tasks/{task_id}",
    operation_id="get_task",
    summary="Look at a task",
    response_model=schemas.TaskWithResult,
    responses=refusals(*READING, "INVALID_ARGUMENT", "TASK_NOT_FOUND", "NOT_FOUND"),
)
async def get_task(
    services: Reading,
    task_id: TaskId,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the task to end before answering.")
    ] = 0,
) -> Response:
    """The whole task. With `wait` the answer comes when the task has ended, at the latest after that time."""
    task = await services.inspector.task(task_id)
    if wait and not task.status.is_terminal:
        task = await _wait_for(services, task_id, wait)
    result = await services.inspector.result(task_id) if task.status is TaskStatus.SUCCEEDED else None
    return json_response({**task_document(task), "result": result})


@router.post(
    "/tasks/{task_id}/cancel",
    operation_id="cancel_task",
    summary="Cancel a task",
    status_code=202,
    response_model=schemas.TaskState,
    responses=refusals(*ACTING, "INVALID_ARGUMENT", "TASK_NOT_FOUND", "NOT_FOUND", "CANCEL_REQUESTED", "TASK_TERMINAL"),
)
async def cancel(request: Request, caller: Admin, task_id: TaskId) -> Response:
    """202: it will not run. 409 CANCEL_REQUESTED: it runs, and its worker was asked to stop it. 410: it has ended."""
    try:
        await caller.client.cancel(task_id, request_id=caller.request_id)
    except CancelRequested:
        caller.log("task.cancel (requested)", task_id=task_id)
        raise
    caller.log("task.cancel", task_id=task_id)
    await _count_cancelled(services_of(request), task_id)
    return json_response({"task_id": task_id, "status": "cancelled"}, 202)


def _idempotency_key(request: Request) -> str | None:
    """The header, which wins over the body (contract §5)."""
    for name, value in request.scope["headers"]:
        if name == b"idempotency-key":
            try:
                return str(value.decode())
            except UnicodeDecodeError:
                return str(value.decode("latin-1"))
    return None


async def _replay(services: Services, task_id: str) -> dict[str, Any]:
    """The earlier task. Raises TaskNotFound."""
    return {**task_document(await services.inspector.task(task_id)), "duplicate": True}


async def _wait_for(services: Services, task_id: str, wait_s: float) -> Task:
    """The task once it has ended, or as it is when the time is up. Events only say when to look."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    async with services.feed.waiting_for(task_id) as stirred:
        while True:
            task = await services.inspector.task(task_id)
            left = deadline - loop.time()
            if task.status.is_terminal or left <= 0 or services.feed.closing:
                return task
            try:
                async with asyncio.timeout(min(left, LOOK_AGAIN_S)):
                    await stirred.wait()
                stirred.clear()
            except TimeoutError:
                continue


def _refusal(exc: DtqError) -> dict[str, Any]:
    answer: dict[str, Any] = {"status_code": HTTP_STATUS.get(exc.code, 500), "code": exc.code, "message": exc.message}
    if exc.task_id is not None and answer["status_code"] == 409:
        answer["task_id"] = exc.task_id
    if isinstance(exc, QueueFull):
        answer["retry_after_s"] = exc.retry_after_s
    return answer


def _count_taken(services: Services, raw: dict[str, Any]) -> None:
    queue, task_type = _destination(services, raw)
    services.labels.learn(queues=(queue,))
    if services.registry is not None and services.registry.handlers:
        # Whoever knows types takes none that neither it nor a worker knows.
        services.labels.learn(task_types=(task_type,))
    services.metrics.submitted(queue, services.labels.task_type(task_type))


def _count_refusal(services: Services, raw: Any, exc: DtqError) -> None:
    queue, _ = _destination(services, raw)
    services.metrics.rejected(services.labels.queue(queue), exc.code.lower())


def _destination(services: Services, raw: Any) -> tuple[str, str]:
    """Queue and type a submission names, with the default of its type."""
    if not isinstance(raw, dict):
        return "", ""
    queue, task_type = raw.get("queue"), raw.get("task_type")
    task_type = task_type if isinstance(task_type, str) else ""
    if queue is None:
        handler = services.registry.handlers.get(task_type) if services.registry else None
        queue = (handler.defaults.queue if handler else None) or "default"
    return queue if isinstance(queue, str) else "", task_type


async def _count_cancelled(services: Services, task_id: str) -> None:
    """The end of a task that never ran is this process' work. Its labels are worth one read, not an error."""
    try:
        task = await services.inspector.task(task_id)
    except DtqError:
        return
    services.labels.learn(queues=(task.queue,))
    created, ended = task.created_at, task.last.finished_at if task.last else None
    took_s = (ended - created).total_seconds() if ended else None
    services.metrics.completed(task.queue, services.labels.task_type(task.task_type), "cancelled", took_s)
