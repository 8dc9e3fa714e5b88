"""Numbers of queues; pause, resume and purge them (contract §11, decisions 21 and 22: singular as written, plural as alias)."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Admin, DryRun, QueueName, Reading, services_of, wants_dry_run
from dtq_api.encoding import json_response
from dtq_api.refusals import ACTING, READING, WITH_BODY, refusals

router = APIRouter(prefix="/api/v1", tags=["queues"])

UNKNOWN_TYPE = "(other)"
"""dtq_core.metrics.OTHER, which is imported late; see dtq_api.sharing."""


@router.get(
    "/queues",
    operation_id="list_queues",
    summary="List queues",
    response_model=schemas.QueueList,
    responses=refusals(*READING),
)
async def list_queues(services: Reading) -> Response:
    """Every queue that was ever submitted to or is served, until it was empty for a week."""
    return json_response({"queues": [asdict(row) for row in await services.inspector.queues()]})


@router.get(
    "/queues/{queue}",
    operation_id="get_queue",
    summary="Numbers of one queue",
    response_model=schemas.QueueBody,
    responses=refusals(*READING, "INVALID_ARGUMENT", "NOT_FOUND"),
)
async def get_queue(services: Reading, queue: QueueName) -> Response:
    """Zeros for a queue that nobody knows: it comes into being with its first task."""
    return json_response(asdict(await services.inspector.queue(queue)))


@router.post("/queues/{queue}/pause", operation_id="pause_queue_plural", include_in_schema=False)
@router.post(
    "/queue/{queue}/pause",
    operation_id="pause_queue",
    summary="Pause a queue",
    response_model=schemas.PauseBody,
    responses=refusals(*ACTING, "INVALID_ARGUMENT", "NOT_FOUND"),
)
async def pause(caller: Admin, queue: QueueName) -> Response:
    """Nothing more is started until resume. What runs finishes; delays go on."""
    changed = await caller.client.pause(queue, request_id=caller.request_id)
    caller.log("queue.pause", queue=queue)
    return json_response({"queue": queue, "paused": True, "changed": changed})


@router.post("/queues/{queue}/resume", operation_id="resume_queue_plural", include_in_schema=False)
@router.post(
    "/queue/{queue}/resume",
    operation_id="resume_queue",
    summary="Resume a queue",
    response_model=schemas.PauseBody,
    responses=refusals(*ACTING, "INVALID_ARGUMENT", "NOT_FOUND"),
)
async def resume(caller: Admin, queue: QueueName) -> Response:
    """Lets a paused queue start tasks again."""
    changed = await caller.client.resume(queue, request_id=caller.request_id)
    caller.log("queue.resume", queue=queue)
    return json_response({"queue": queue, "paused": False, "changed": changed})


@router.post("/queues/{queue}/purge", operation_id="purge_queue_plural", include_in_schema=False)
@router.post(
    "/queue/{queue}/purge",
    operation_id="purge_queue",
    summary="Cancel everything that has not started",
    response_model=schemas.PurgeBody,
    responses=refusals(*ACTING, *WITH_BODY, "INVALID_ARGUMENT", "NOT_FOUND"),
)
async def purge(request: Request, caller: Admin, queue: QueueName, dry_run: DryRun = False) -> Response:
    """Waiting, delayed and retrying tasks are cancelled; what runs finishes normally."""
    dry = await wants_dry_run(request, dry_run)
    report = await caller.client.purge_queue(queue, dry_run=dry, request_id=caller.request_id)
    if not dry:
        caller.log("queue.purge", queue=queue, count=report.changed)
        # The types of what was purged are not known here; the number of ends is.
        services_of(request).metrics.completed(queue, UNKNOWN_TYPE, "cancelled", tasks=report.changed)
    return json_response(report.document())
