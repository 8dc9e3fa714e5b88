"""worker run, scheduler run, up, --version: the commands that become a process, and the one that is over at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from dtq_cli.arguments import wants_json
from dtq_cli.session import server, settings_for, unreachable
from dtq_core import log
from dtq_core.config import Settings, load_settings
from dtq_core.errors import InvalidArgument, InvalidConfig, RedisUnavailable
from dtq_core.task import QUEUE_NAME

T = TypeVar("T")


def version(args: argparse.Namespace) -> int:
    from importlib.metadata import version as of

    print(f"dtq {of('dtq')}")
    return 0


def worker(args: argparse.Namespace) -> int:
    from dtq_worker.worker import run

    queues = _queues(args.queues)
    settings = settings_for(args, worker_concurrency=args.concurrency, log_json=_log_json(args))
    log.configure(settings, "worker")
    _look_here()
    _load_handlers(settings)
    return _reached(args, settings, lambda: run(settings, queues))


def scheduler(args: argparse.Namespace) -> int:
    from dtq_scheduler.process import run

    settings = settings_for(args, log_json=_log_json(args))
    log.configure(settings, "scheduler")
    return _reached(args, settings, lambda: run(settings))


def api(args: argparse.Namespace) -> int:
    settings = settings_for(args, api_host=args.host, api_port=args.port, log_json=_log_json(args))
    log.configure(settings, "api")
    _look_here()
    if args.workers > 1:
        from dtq_api.sharing import share_between_processes

        share_between_processes()
    from dtq_api.server import run

    return run(settings, args.workers)


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
        _reached(args, settings, lambda: asyncio.run(_ping(settings)))
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


_OWN_ENGINE = "redis://127.0.0.1:6379/0"
"""Stands for the engine that is not there yet, so that an unused DTQ_REDIS_URL cannot be wrong; never connected to."""


def _given_url(flag: str) -> str | None:
    """`--redis URL`, or DTQ_REDIS_URL for a bare `--redis`. Raises InvalidArgument where it is not set."""
    if not flag and not os.environ.get("DTQ_REDIS_URL"):
        raise InvalidArgument("--redis without a URL takes DTQ_REDIS_URL, which is not set")
    return flag or None


async def _ping(settings: Settings) -> None:
    from dtq_core.store import Store

    store = Store.connect(settings)
    try:
        await store.ping()
    finally:
        await store.close()


def _reached(args: argparse.Namespace, settings: Settings, step: Callable[[], T]) -> T:
    """`step`; a server that does not answer is named, with the advice that fits where its address came from."""
    try:
        return step()
    except RedisUnavailable as exc:
        raise unreachable(exc, settings, server(args)[1]) from exc


def _load_handlers(settings: Settings) -> None:
    """Import the task modules here, where a fault in them can be told from one of ours.

    Raises InvalidConfig, which names the module, what went wrong and the line.
    """
    from dtq_tasks import registry

    for name in settings.task_modules:
        try:
            registry.load([name])
        except (Exception, SystemExit) as exc:
            ours = (__file__, registry.__file__)
            frames = traceback.extract_tb(exc.__traceback__)
            theirs = [f for f in frames if f.filename not in ours and "importlib" not in f.filename]
            where = f" ({theirs[-1].filename} line {theirs[-1].lineno})" if theirs else ""
            raise InvalidConfig(
                f"DTQ_TASK_MODULES: {name} cannot be imported: {type(exc).__name__}: {exc}{where}"
            ) from exc


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
