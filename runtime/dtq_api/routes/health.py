"""/health: this process is alive. /ready: it can do its work. /metrics: what it did and what is in Redis (contract §9, §11)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dtq_api import schemas
from dtq_api.dependencies import Reading, Services, services_of
from dtq_api.encoding import json_response
from dtq_api.errors import NotReady, error_document, error_response, request_id_of
from dtq_core.errors import DtqError
from dtq_core.keys import GROUP
from dtq_core.task import BANDS

router = APIRouter(tags=["operations"])

MAX_QUEUES_LOOKED_AT = 50


@router.get(
    "/health",
    operation_id="health",
    summary="Is the process alive?",
    response_model=schemas.Health,
    responses={503: {"model": schemas.Error, "description": "A background loop has died: restart it."}},
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
    responses={
        503: {"model": schemas.Error, "description": "Something it depends on does not work; the body says what."}
    },
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


@router.get("/metrics", operation_id="metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(services: Reading) -> Response:
    """Text format 0.0.4. Without Redis the gauges are left out."""
    from dtq_core.metrics import CONTENT_TYPE

    await services.numbers.refresh()
    return Response(services.metrics.exposition(), media_type=CONTENT_TYPE)


async def _queues_without_group(services: Services) -> list[str]:
    """Queues of live workers with entries on a stream that lacks the group. An empty stream gets it with its first entry."""
    workers = await services.inspector.workers()
    served = sorted({q for w in workers if w.status in ("ready", "busy") for q in w.queues})[:MAX_QUEUES_LOOKED_AT]
    keys = services.store.keys
    streams = [(queue, keys.stream(queue, band)) for queue in served for band in BANDS]
    commands = [command for _, name in streams for command in (("XLEN", name), ("XINFO", "GROUPS", name))]
    found = await services.store.send(*commands)
    missing = {
        queue
        for (queue, _), length, groups in zip(streams, found[::2], found[1::2], strict=True)
        if length and isinstance(groups, list) and not any(_name(group) == GROUP for group in groups)
    }
    return sorted(missing)


def _name(group: object) -> str:
    """The name of a group, whether the client library made a mapping of its reply or not."""
    if isinstance(group, dict):
        return str(group.get("name"))
    flat = list(group) if isinstance(group, (list, tuple)) else []
    return str(dict(zip(flat[::2], flat[1::2], strict=False)).get("name"))
