"""From arguments to a connected client: which server, with which settings, as which actor.

The server is `--redis`, else DTQ_REDIS_URL, else that of a `dtq up` in this directory, else the default.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dtq_cli import output
from dtq_core.client import Client
from dtq_core.config import Settings, load_settings
from dtq_core.errors import RedisUnavailable
from dtq_core.inspector import Inspector
from dtq_core.spelling import misspelt
from dtq_core.store import Store
from dtq_core.text import redact
from dtq_local.state import discover

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """What a command works with; `request_id` marks its audit entries."""

    settings: Settings
    store: Store
    client: Client
    inspector: Inspector
    request_id: str


def run(args: argparse.Namespace, command: Callable[[Session], Awaitable[T]]) -> T:
    """`command` with a session, on a loop of its own. What it raises comes out; RedisUnavailable says where."""

    async def inside() -> T:
        async with _open(args) as session:
            return await command(session)

    return asyncio.run(inside())


def settings_for(args: argparse.Namespace, **overrides: Any) -> Settings:
    """The settings of this call. Raises InvalidConfig."""
    return load_settings(redis_url=server(args)[0], **overrides)


def server(args: argparse.Namespace) -> tuple[str | None, str]:
    """The URL to use, None for the one of the settings, and what to do when nobody answers there."""
    if url := getattr(args, "redis", None):
        return url, "check --redis, and that the server runs"
    if os.environ.get("DTQ_REDIS_URL"):
        return None, "check DTQ_REDIS_URL, and that the server runs"
    if record := discover():
        return record.url, f"`dtq up` runs here with pid {record.pid}; see its log"
    return None, "start everything here with `dtq up`, or set DTQ_REDIS_URL"


def actor() -> str:
    """Who the audit names: cli:<user>@<host> (decision 26)."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's bare uid has no name
        user = str(os.getuid())
    return f"cli:{user}@{socket.gethostname()}"


@contextlib.asynccontextmanager
async def _open(args: argparse.Namespace) -> AsyncIterator[Session]:
    url, advice = server(args)
    settings = load_settings(redis_url=url)
    for note in misspelt(os.environ, type(settings).model_fields):
        output.note(f"warning: {note}")
    store = Store.connect(settings)
    try:
        client = Client(store, settings, actor=actor())
        yield Session(settings, store, client, Inspector(store, settings), uuid.uuid4().hex)
    except RedisUnavailable as exc:
        raise unreachable(exc, settings, advice) from exc
    finally:
        await store.close()


def unreachable(exc: RedisUnavailable, settings: Settings, advice: str) -> RedisUnavailable:
    """The same error with the address and the advice that fits where the address came from."""
    told = RedisUnavailable(f"{exc.message}, at {redact(settings.redis_url.get_secret_value())}")
    told.hint = advice  # type: ignore[attr-defined]
    return told
