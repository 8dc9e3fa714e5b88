"""Dead letters: look at them, put one back, drop one, drop all (contract §11)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Admin, Reading, wants_dry_run
from dtq_api.encoding import json_response
from dtq_api.routes.queues import DryRun
from dtq_core.inspector import letter_document

router = APIRouter(prefix="/api/v1/dlq", tags=["dead letters"])


@router.get(
    "",
    operation_id="list_dead_letters",
    summary="List dead letters",
    response_model=schemas.DeadLetterPage,
    responses=schemas.errors(400, 401, 403),
)
async def list_dead_letters(
    services: Reading,
    queue: Annotated[str | None, Query(description="Only of this queue.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(description="Of the page before.", max_length=200)] = None,
) -> Response:
    """Newest first."""
    page = await services.inspector.dead_letters(queue=queue, limit=limit, cursor=cursor)
    return json_response({"dead_letters": [letter_document(x) for x in page.items], "cursor": page.cursor})


@router.post(
    "/purge",
    operation_id="purge_dead_letters",
    summary="Discard all dead letters",
    response_model=schemas.PurgeBody,
    responses=schemas.errors(400, 401, 403),
)
async def purge(
    request: Request,
    caller: Admin,
    queue: Annotated[str | None, Query(description="Only those of this queue.")] = None,
    dry_run: DryRun = False,
) -> Response:
    """As discarding each: the tasks stay and say metadata.discarded. One entry in the audit."""
    dry = await wants_dry_run(request, dry_run)
    report = await caller.client.purge_dead_letters(queue=queue, dry_run=dry, request_id=caller.request_id)
    if not dry:
        caller.log("dlq.purge", queue=queue or "", count=report.changed)
    return json_response(asdict(report))


@router.get(
    "/{task_id}",
    operation_id="get_dead_letter",
    summary="Look at a dead letter",
    response_model=schemas.DeadLetterBody,
    responses=schemas.errors(401, 403, 404),
)
async def get_dead_letter(services: Reading, task_id: str) -> Response:
    """404 says why there is none: DEAD_LETTER_NOT_FOUND, DEAD_LETTER_GONE or TASK_NOT_FOUND."""
    return json_response(letter_document(await services.inspector.dead_letter(task_id)))


@router.post(
    "/{task_id}/requeue",
    operation_id="requeue_dead_letter",
    summary="Put a dead letter back on its queue",
    status_code=202,
    response_model=schemas.TaskState,
    responses=schemas.errors(401, 403, 404, 409),
)
async def requeue(caller: Admin, task_id: str) -> Response:
    """The task starts anew with attempt 0; what was is kept in metadata.previous_attempts."""
    await caller.client.requeue(task_id, request_id=caller.request_id)
    caller.log("dlq.requeue", task_id=task_id)
    return json_response({"task_id": task_id, "status": "queued"}, 202)


@router.post(
    "/{task_id}/discard",
    operation_id="discard_dead_letter",
    summary="Drop a dead letter",
    response_model=schemas.Discarded,
    responses=schemas.errors(401, 403, 404, 409),
)
async def discard(caller: Admin, task_id: str) -> Response:
    """The letter goes, with an entry in the audit; its task stays DEAD_LETTERED."""
    await caller.client.discard(task_id, request_id=caller.request_id)
    caller.log("dlq.discard", task_id=task_id)
    return json_response({"task_id": task_id, "status": "dead_lettered", "discarded": True})
