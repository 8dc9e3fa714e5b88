"""Workers and how they are (contract §11): liveness is the age of the last heartbeat on the clock of Redis."""

from __future__ import annotations

from fastapi import APIRouter, Response

from dtq_api import schemas
from dtq_api.dependencies import Reading
from dtq_api.encoding import json_response
from dtq_api.refusals import READING, refusals
from dtq_core.inspector import worker_document

router = APIRouter(prefix="/api/v1/workers", tags=["workers"])


@router.get(
    "",
    operation_id="list_workers",
    summary="List workers",
    response_model=schemas.WorkerList,
    responses=refusals(*READING),
)
async def list_workers(services: Reading) -> Response:
    """Those that run, and for a while those that did."""
    return json_response({"workers": [worker_document(w) for w in await services.inspector.workers()]})


@router.get(
    "/{worker_id}",
    operation_id="get_worker",
    summary="Look at a worker",
    response_model=schemas.WorkerBody,
    responses=refusals(*READING, "WORKER_NOT_FOUND", "NOT_FOUND"),
)
async def get_worker(services: Reading, worker_id: str) -> Response:
    """Its row as of its last heartbeat."""
    return json_response(worker_document(await services.inspector.worker(worker_id)))
