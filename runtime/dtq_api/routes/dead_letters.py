"""Dead letters: look at them, put one back, drop one, drop all (contract §11)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Admin, Cursor, DryRun, Limit, OfQueue, Reading, TaskId, wants_dry_run
from dtq_api.encoding import json_response
from dtq_api.refusals import ACTING, READING, WITH_BODY, refusals
from dtq_core.inspector import letter_document

router = APIRouter(prefix="/api/v1/dlq", tags=["dead letters"])

NO_LETTER = ("TASK_NOT_FOUND", "DEAD_LETTER_NOT_FOUND", "DEAD_LETTER_GONE", "NOT_FOUND")


@router.get(
    "",
    operation_id="list_dead_letters",
    summary="List dead letters",
    response_model=schemas.DeadLetterPage,
    responses=refusals(*READING, "INVALID_ARGUMENT"),
)
async def list_dead_letters(
    services: Reading,
    queue: OfQueue = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Newest first."""
    page = await services.inspector.dead_letters(queue=queue, limit=limit, cursor=cursor)
    return json_response({"dead_letters": [letter_document(x) for x in page.items], "cursor": page.cursor})


@router.post(
    "/purge",
    operation_id="purge_dead_letters",
    summary="Discard all dead letters",
    response_model=schemas.PurgeBody,
    responses=refusals(*ACTING, *WITH_BODY, "INVALID_ARGUMENT"),
)
async def purge(
    request: Request,
    caller: Admin,
    queue: OfQueue = None,
    dry_run: DryRun = False,
) -> Response:
    """As discarding each: the tasks stay and say metadata.discarded. One entry in the audit."""
    dry = await wants_dry_run(request, dry_run)
    report = await caller.client.purge_dead_letters(queue=queue, dry_run=dry, request_id=caller.request_id)
    if not dry:
        caller.log("dlq.purge", queue=queue or "", count=report.changed)
    return json_response(report.document())


@router.get(
    "/{task_id}",
    operation_id="get_dead_letter",
    summary="Look at a dead letter",
    response_model=schemas.DeadLetterBody,
    responses=refusals(*READING, *NO_LETTER),
)
async def get_dead_letter(services: Reading, task_id: TaskId) -> Response:
    """404 says why there is none: DEAD_LETTER_NOT_FOUND, DEAD_LETTER_GONE or TASK_NOT_FOUND."""
    return json_response(letter_document(await services.inspector.dead_letter(task_id)))


@router.post(
    "/{task_id}/requeue",
    operation_id="requeue_dead_letter",
    summary="Put a dead letter back on its queue",
    status_code=202,
    response_model=schemas.TaskState,
    responses=refusals(*ACTING, "INVALID_ARGUMENT", *NO_LETTER, "DEAD_LETTER_CHANGED"),
)
async def requeue(caller: Admin, task_id: TaskId) -> Response:
    """The task starts anew with attempt 0; what was is kept in metadata.previous_attempts."""
    await caller.client.requeue(task_id, request_id=caller.request_id)
    caller.log("dlq.requeue", task_id=task_id)
    return json_response({"task_id": task_id, "status": "queued"}, 202)


@router.post(
    "/{task_id}/discard",
    operation_id="discard_dead_letter",
    summary="Drop a dead letter",
    response_model=schemas.Discarded,
    responses=refusals(*ACTING, "INVALID_ARGUMENT", *NO_LETTER, "DEAD_LETTER_CHANGED"),
)
async def discard(caller: Admin, task_id: TaskId) -> Response:
    """The letter goes, with an entry in the audit; its task stays DEAD_LETTERED."""
    await caller.client.discard(task_id, request_id=caller.request_id)
    caller.log("dlq.discard", task_id=task_id)
    return json_response({"task_id": task_id, "status": "dead_lettered", "discarded": True})
