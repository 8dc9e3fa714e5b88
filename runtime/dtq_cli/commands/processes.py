"""worker run, scheduler run, up, --version: the commands that become a process, and the one that is over at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from dtq_cli.arguments import wants_json
from dtq_cli.session import server, settings_for, unreachable
from dtq_core.config import Settings, load_settings
from dtq_core.errors import InvalidArgument, RedisUnavailable
from dtq_core.task import QUEUE_NAME


def version(args: argparse.Namespace) -> int:
    from importlib.metadata import version as of

    print(f"dtq {of('dtq')}")
    return 0


def worker(args: argparse.Namespace) -> int:
    queues = _queues(args.queues)
    settings = settings_for(args, worker_concurrency=args.concurrency, log_json=_log_json(args))
    _look_here()
    from dtq_worker.worker import run

    return run(settings, queues)


def scheduler(args: argparse.Namespace) -> int:
    settings = settings_for(args, log_json=_log_json(args))
    from dtq_scheduler.process import run

    return run(settings)


def up(args: argparse.Namespace) -> int:
    from dtq_local.state import StateDir
    from dtq_local.supervisor import Supervisor, UpOptions

    _look_here()
    own_engine = getattr(args, "redis", None) is None
    settings = load_settings(
        redis_url=_OWN_ENGINE if own_engine else _given_url(args.redis),
        task_modules=args.tasks,
        worker_concurrency=args.concurrency,
    )
    if not own_engine:
        asyncio.run(_ping(args, settings))
    options = UpOptions(
        settings=settings,
        state=StateDir(args.state),
        workers=args.workers,
        queues=_queues(args.queues),
        own_engine=own_engine,
        engine_port=args.port,
        as_json=wants_json(args),
    )
    return Supervisor(options).run()


_OWN_ENGINE = "redis://127.0.0.1:0/0"
"""Stands for the engine that is not there yet, so that an unused DTQ_REDIS_URL cannot be wrong."""


def _given_url(flag: str) -> str | None:
    """`--redis URL`, or DTQ_REDIS_URL for a bare `--redis`. Raises InvalidArgument where it is not set."""
    if not flag and not os.environ.get("DTQ_REDIS_URL"):
        raise InvalidArgument("--redis without a URL takes DTQ_REDIS_URL, which is not set")
    return flag or None


async def _ping(args: argparse.Namespace, settings: Settings) -> None:
    from dtq_core.store import Store

    store = Store.connect(settings)
    try:
        await store.ping()
    except RedisUnavailable as exc:
        raise unreachable(exc, settings, server(args)[1]) from exc
    finally:
        await store.close()


def _queues(given: list[str] | None) -> tuple[str, ...]:
    """The queues in the order given, each once. Raises InvalidArgument for a name no queue can have."""
    names = tuple(dict.fromkeys(given or ["default"]))
    for name in names:
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidArgument(f"queue {name[:70]!r}: lower-case letters, digits, '_' and '-', 1 to 64")
    return names


def _log_json(args: argparse.Namespace) -> bool | None:
    return True if wants_json(args) else None


def _look_here() -> None:
    """Task modules may lie in the current directory, as for `python -m`."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
