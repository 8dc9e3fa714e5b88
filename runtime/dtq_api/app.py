"""The application: `create_app` puts the parts together, and the lifespan starts and ends what runs beside the requests.

    uvicorn dtq_api.app:create_app --factory

`dtq api run` does the same through dtq_api.server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator

from fastapi import FastAPI

from dtq_api import errors, farewell, openapi
from dtq_api.access import Access, KeySettings
from dtq_api.dependencies import Services
from dtq_api.feed import Feed
from dtq_api.gate import BodyLimits, Gate
from dtq_api.pacing import Turns
from dtq_api.prompt_store import PromptStore
from dtq_api.routes import dead_letters, events, health, queues, tasks, workers
from dtq_api.sharing import share_between_processes
from dtq_api.websocket import events as websocket_events
from dtq_core import log, tracing
from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.errors import DtqError, InvalidConfig
from dtq_core.inspector import Inspector
from dtq_tasks import registry as handlers
from dtq_tasks.registry import Registry

logger = logging.getLogger("dtq.api")

_DESCRIPTION = "Submit tasks to DTQ, look at them, cancel them; look after queues, workers and dead letters."


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service for `settings`; without any, for those of the environment, with logging set up as well.

    Does no I/O with Redis. Raises InvalidConfig; as a factory (without settings) it ends the process with a line instead.
    """
    if settings is not None:
        return _make(settings)
    try:
        settings = load_settings()
        log.configure(settings, "api")
        quiet_server_logs()
        return _make(settings)
    except DtqError as exc:
        print(f"dtq api: {exc.message}", file=sys.stderr)
        raise SystemExit(2) from None


def quiet_server_logs() -> None:
    """Make the server's lines records like ours, and switch off its access log: it would write what callers send."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        server = logging.getLogger(name)
        server.handlers.clear()
        server.propagate = True
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False


def _make(settings: Settings) -> FastAPI:
    tracing.configure("api")
    services = _services(settings)
    app = FastAPI(
        title="DTQ",
        version="1",
        description=_DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that the caller claims to have asked
    )
    app.state.services = services
    app.state.loops = []
    errors.install(app)
    openapi.install(app, settings.max_attempts)
    for module in (tasks, queues, dead_letters, workers, events, health):
        app.include_router(module.router)
    for path in dict.fromkeys((settings.ws_path, "/ws")):
        app.add_api_websocket_route(path, websocket_events)
    app.add_middleware(Gate, limits=BodyLimits.of(settings.max_payload_bytes), turns=services.turns)
    return app


def _services(settings: Settings) -> Services:
    share_between_processes()
    from dtq_api.numbers import Numbers
    from dtq_core.metrics import Labels, Metrics, QueueGauges

    access = Access(settings, KeySettings())
    registry = _registry(settings)
    store = PromptStore.connect(settings)
    assert isinstance(store, PromptStore)
    metrics = Metrics()
    labels = Labels(registry.handlers if registry else ())
    store.counted = metrics.redis
    inspector = Inspector(store, settings)
    numbers = Numbers(inspector, metrics, labels)
    metrics.add_gauges(QueueGauges(numbers.latest))
    return Services(
        settings=settings,
        store=store,
        registry=registry,
        client=Client(store, settings, actor="api", registry=registry),
        inspector=inspector,
        access=access,
        feed=Feed(store),
        turns=Turns(),
        metrics=metrics,
        labels=labels,
        numbers=numbers,
    )


def _registry(settings: Settings) -> Registry | None:
    """The handlers, for the defaults and names of their types. Without the modules the announcements of workers decide."""
    try:
        return handlers.load(settings.task_modules)
    except ModuleNotFoundError as exc:
        if exc.name is None or not any(f"{name}.".startswith(f"{exc.name}.") for name in settings.task_modules):
            raise InvalidConfig(f"DTQ_TASK_MODULES: a module needs {exc.name}, which is not installed here") from None
        logger.warning("task module %s is not installed here: workers' announcements decide what is known", exc.name)
        return None


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    loop = asyncio.get_running_loop()
    log.capture_loop_errors(loop)
    if services.access.is_open("admin"):
        logger.warning("DTQ_API_KEY is not set: everybody who reaches this port may cancel, purge and pause")
    farewell.with_the_parent()
    app.state.loops = [loop.create_task(services.feed.run(), name="event feed")]
    try:
        with farewell.on_signals(loop, services.feed.farewell):
            yield
    finally:
        services.feed.close()
        for task in app.state.loops:
            task.cancel()
        await asyncio.gather(*app.state.loops, return_exceptions=True)
        await services.store.close()
