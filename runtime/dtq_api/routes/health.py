"""/health: this process is alive. /ready: it can do its work. /metrics: what it did and what is in Redis (contract §9, §11)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Reading, Services, services_of
from dtq_api.encoding import json_response
from dtq_api.errors import NotReady, error_document, error_response, request_id_of
from dtq_api.refusals import refusals
from dtq_core.errors import DtqError
from dtq_core.keys import GROUP
from dtq_core.readiness import queues_without_group

router = APIRouter(tags=["operations"])

MAX_QUEUES_LOOKED_AT = 50


@router.get(
    "/health",
    operation_id="health",
    summary="Is the process alive?",
    response_model=schemas.Health,
    responses=refusals("INTERNAL", "NOT_READY"),
)
async def health(request: Request) -> Response:
    """Says nothing about Redis: restarting this process would not bring Redis back."""
    dead = [task.get_name() for task in request.app.state.loops if task.done()]
    if dead:
        problem = NotReady(f"a loop has ended: {', '.join(dead)}", dict.fromkeys(dead, "ended"))
        return error_response(problem, request_id_of(request))
    return json_response({"status": "ok"})


@router.get(
    "/ready",
    operation_id="ready",
    summary="Can it do its work?",
    response_model=schemas.Ready,
    responses=refusals("INTERNAL", "NOT_READY", "REDIS_UNAVAILABLE"),
)
async def ready(request: Request) -> Response:
    """Redis answers, and where live workers have work there is a consumer group. Queues without workers do not count."""
    services = services_of(request)
    try:
        await services.store.ping()
        missing = await _queues_without_group(services)
    except DtqError as exc:
        document = error_document(exc, request_id_of(request))
        return json_response({**document, "dependencies": {"redis": exc.message}}, 503, {"Retry-After": "1"})
    if missing:
        told = {"redis": "ok", "groups": f"missing on {', '.join(missing)}"}
        raise NotReady(f"the group {GROUP} is missing on queue {', '.join(missing)}", told)
    return json_response({"status": "ready", "dependencies": {"redis": "ok", "groups": "ok"}})


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {"description": "Text format 0.0.4.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **refusals("UNAUTHORIZED", "FORBIDDEN", "INTERNAL"),
    },
)
async def metrics(services: Reading) -> Response:
    """Text format 0.0.4. Without Redis the gauges are left out."""
    from dtq_core.metrics import CONTENT_TYPE

    await services.numbers.refresh()
    return Response(services.metrics.exposition(), media_type=CONTENT_TYPE)


async def _queues_without_group(services: Services) -> list[str]:
    """Of the queues that live workers serve."""
    workers = await services.inspector.workers()
    served = sorted({q for w in workers if w.status in ("ready", "busy") for q in w.queues})[:MAX_QUEUES_LOOKED_AT]
    return await queues_without_group(services.store, served)
