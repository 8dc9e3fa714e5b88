"""What the endpoints share: the services behind them, who is asking, and how a body or a parameter is read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import APIKeyHeader

from dtq_api.access import Access, Right
from dtq_api.errors import request_id_of
from dtq_api.feed import Feed
from dtq_api.pacing import Turns
from dtq_api.prompt_store import PromptStore
from dtq_api.schemas import EXAMPLE_ID
from dtq_core.client import Client
from dtq_core.config import Settings
from dtq_core.errors import InvalidArgument, InvalidTask
from dtq_core.inspector import Inspector
from dtq_core.submission import decode_json
from dtq_core.task import QUEUE_NAME, TASK_ID
from dtq_core.text import clean
from dtq_tasks.registry import Registry

if TYPE_CHECKING:
    from dtq_api.numbers import Numbers
    from dtq_core.metrics import Labels, Metrics

logger = logging.getLogger("dtq.api")

MAX_ADDRESS_CHARS = 64


@dataclass(frozen=True, slots=True)
class Services:
    """Everything behind the endpoints of one process. Made once, by `create_app`."""

    settings: Settings
    store: PromptStore
    registry: Registry | None
    client: Client
    inspector: Inspector
    access: Access
    feed: Feed
    turns: Turns
    metrics: Metrics
    labels: Labels
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Caller:
    """An admin's request: writes under its own name. `request_id` goes into the audit."""

    client: Client
    actor: str
    request_id: str

    def log(self, action: str, *, task_id: str = "", queue: str = "", count: int | None = None) -> None:
        """The line of the log that goes with an entry of the audit."""
        what = action if count is None else f"{action} ({count} tasks)"
        extra = {"task_id": task_id, "queue": queue, "event_type": action}
        logger.info("%s by %s, request %s", what, self.actor, self.request_id, extra=extra)


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def api_key(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """The first X-API-Key, as it came."""
    return next((value for name, value in headers if name == b"x-api-key"), None)


def check(request: Request, right: Right) -> str:
    """Raises Unauthorized or Forbidden; see Access.check."""
    return services_of(request).access.check(right, api_key(request.scope["headers"]))


_KEY = APIKeyHeader(name="X-API-Key", scheme_name="ApiKey", auto_error=False)
"""For the OpenAPI document only: the key is compared as it came, in bytes."""


async def _admin(request: Request, _: Annotated[str | None, Security(_KEY)]) -> Caller:
    services = services_of(request)
    key = check(request, "admin")
    _refuse_unknown_parameters(request)
    address = clean(request.client.host, MAX_ADDRESS_CHARS) if request.client else "unknown"
    actor = f"api:{key}@{address}" if key else f"api:{address}"
    client = Client(services.store, services.settings, actor=actor, registry=services.registry)
    return Caller(client, actor, request_id_of(request))


def _refuse_unknown_parameters(request: Request) -> None:
    """A purge with ?dryrun=true must not be a purge. Raises InvalidArgument."""
    if not request.scope["query_string"]:
        return
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if set(request.query_params) - known:
        raise InvalidArgument(
            f"the query has a parameter that is none of: {', '.join(sorted(known)) or '(there is none)'}"
        )


async def _reader(request: Request) -> Services:
    check(request, "read")
    return services_of(request)


Admin = Annotated[Caller, Depends(_admin)]
"""For destructive calls: needs a key where keys are set (contract §13)."""
Reading = Annotated[Services, Depends(_reader)]
"""For reads: open unless DTQ_API_READ_KEY is set."""


TaskId = Annotated[
    str,
    Path(
        description="32 hexadecimal digits.",
        json_schema_extra={"pattern": rf"^{TASK_ID.pattern}$", "example": EXAMPLE_ID},
    ),
]
QueueName = Annotated[
    str,
    Path(
        description="Name of a queue.", json_schema_extra={"pattern": rf"^{QUEUE_NAME.pattern}$", "example": "default"}
    ),
]
OfQueue = Annotated[
    str | None, Query(description="Only of this queue.", json_schema_extra={"pattern": rf"^{QUEUE_NAME.pattern}$"})
]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[
    str | None, Query(description="The `cursor` of the page before, as it was.", min_length=1, max_length=200)
]
DryRun = Annotated[bool, Query(description="Count, and change nothing. May also be said in a JSON body.")]
"""Parameters. What breaks a pattern is refused by the core, so the document tells it and the framework does not check it."""


async def json_body(request: Request) -> Any:
    """The body as strict JSON. Raises InvalidTask, BodyTooLarge, SlowRequest."""
    raw = await request.body()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidTask("body: not UTF-8") from None
    return decode_json(text)


async def wants_dry_run(request: Request, asked: bool) -> bool:
    """Whether the query (`asked`) or a JSON body says dry_run. Raises InvalidArgument for a body that says neither."""
    if not await request.body():
        return asked
    try:
        body = await json_body(request)
    except InvalidTask as exc:
        raise InvalidArgument(exc.message) from None
    said = body.get("dry_run", False) if isinstance(body, dict) else None
    if not isinstance(said, bool):
        raise InvalidArgument("the body must be empty or a JSON object; dry_run is true or false")
    return asked or said
