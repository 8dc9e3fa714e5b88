"""Tasks that handlers make: what one of them raises ends the handler's task and never the process.

asyncio lets SystemExit and KeyboardInterrupt of any task through, out of the event loop; those of a handler itself are
caught where it is invoked, but those of a task that it made would end the worker without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

in_handler: ContextVar[bool] = ContextVar("dtq_in_handler", default=False)
"""Set in the context of every run, which the tasks that a handler makes inherit."""


class ChildTaskExit(Exception):
    """A task that a handler made raised what means a whole process."""


def task_factory(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **kwargs: Any
) -> asyncio.Task[Any]:
    """For loop.set_task_factory."""
    guarded = _guarded(coro) if in_handler.get() and asyncio.iscoroutine(coro) else coro
    return asyncio.Task(guarded, loop=loop, **kwargs)


async def _guarded(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as exc:
        raise ChildTaskExit(f"a task of the handler raised {type(exc).__name__}: {exc}") from exc
