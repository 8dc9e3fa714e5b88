"""worker run, scheduler run, api run, --version: the commands that become a process, and the one that is over at once."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from dtq_cli.arguments import wants_json
from dtq_cli.hints import hint_for
from dtq_cli.session import server, settings_for, unreachable
from dtq_core import log
from dtq_core.config import Settings
from dtq_core.errors import STATUS_OF_CODE, InvalidArgument, RedisUnavailable
from dtq_core.task import QUEUE_NAME

T = TypeVar("T")
logger = logging.getLogger("dtq")


def version(args: argparse.Namespace) -> int:
    from importlib.metadata import version as of

    print(f"dtq {of('dtq')}")
    return 0


def worker(args: argparse.Namespace) -> int:
    from dtq_local import modules
    from dtq_tasks import registry
    from dtq_worker.worker import run

    served = queues(args.queues)
    settings = settings_for(args, worker_concurrency=args.concurrency, log_json=_log_json(args))
    log.configure(settings, "worker")
    look_here()
    if args.reload:
        return _reloading(args, settings, served)
    modules.load(settings.task_modules)
    if not registry.load(settings.task_modules).handlers:
        names = ", ".join(settings.task_modules)
        logger.warning("DTQ_TASK_MODULES: %s: there is no @task in it, so this worker can run nothing", names)
    return _to_its_end(args, settings, lambda: run(settings, served))


def _reloading(args: argparse.Namespace, settings: Settings, served: Sequence[str]) -> int:
    """The same worker, as a process that is replaced when its code changes."""
    from dtq_local import modules
    from dtq_local.reloading import ReloadingWorker
    from dtq_local.sources import require_watchfiles

    require_watchfiles()
    modules.check(settings.task_modules)
    reached(args, settings, lambda: asyncio.run(ping(settings)))
    words = [word for name in served for word in ("--queue", name)]
    argv = [sys.executable, "-m", "dtq_cli", "worker", "run", "--concurrency", str(settings.worker_concurrency), *words]
    env = {**os.environ, "DTQ_REDIS_URL": settings.redis_url.get_secret_value()}  # not as an argument: those are public
    if settings.log_json:
        argv.append("--json")
    return ReloadingWorker(argv, env, settings.task_modules, settings.drain_timeout_s).run()


def scheduler(args: argparse.Namespace) -> int:
    from dtq_scheduler.process import run

    settings = settings_for(args, log_json=_log_json(args))
    log.configure(settings, "scheduler")
    return _to_its_end(args, settings, lambda: run(settings))


def api(args: argparse.Namespace) -> int:
    settings = settings_for(args, api_host=args.host, api_port=args.port, log_json=_log_json(args))
    log.configure(settings, "api")
    look_here()
    if args.workers > 1:
        from dtq_api.sharing import share_between_processes

        share_between_processes()
    from dtq_api.server import run

    return run(settings, args.workers)


async def ping(settings: Settings) -> None:
    """Raises RedisUnavailable unless the server of `settings` answers."""
    from dtq_core.store import Store

    store = Store.connect(settings)
    try:
        await store.ping()
    finally:
        await store.close()


def reached(args: argparse.Namespace, settings: Settings, step: Callable[[], T]) -> T:
    """`step`; a server that does not answer is named, with the advice that fits where its address came from."""
    try:
        return step()
    except RedisUnavailable as exc:
        raise unreachable(exc, settings, server(args)[1]) from exc


def _to_its_end(args: argparse.Namespace, settings: Settings, process: Callable[[], int]) -> int:
    """`process`, whose last words are a record like all others where a machine reads the log."""
    try:
        return reached(args, settings, process)
    except RedisUnavailable as exc:
        if not settings.log_json:
            raise
        logger.error("%s: %s (%s)", exc.code, exc.message, hint_for(exc))
        return STATUS_OF_CODE[exc.code][1]


def queues(given: list[str] | None) -> tuple[str, ...]:
    """The queues in the order given, each once. Raises InvalidArgument for a name no queue can have."""
    names = tuple(dict.fromkeys(given or ["default"]))
    for name in names:
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidArgument(f"queue {name[:70]!r}: lower-case letters, digits, '_' and '-', 1 to 64")
    return names


def _log_json(args: argparse.Namespace) -> bool | None:
    return True if wants_json(args) else None


def look_here() -> None:
    """Task modules may lie in the current directory, as for `python -m`."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
