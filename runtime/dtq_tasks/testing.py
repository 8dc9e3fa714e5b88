"""The test kit of a task author: run one handler inline, or a whole queue in one process with a stopped clock.

    from dtq_tasks.testing import make_context, run

    def test_one_handler():
        assert run(send_email, {"to": "ann@example.org"}, make_context(attempt=2)) == {"sent": True}

    def test_a_retry(dtq):                                   # pytest finds the fixture by itself
        task_id = dtq.submit("charge", {"order": 7})
        dtq.run_until_idle()
        assert dtq.task(task_id).status == "retrying"
        dtq.advance(60)
        dtq.run_until_idle()
        assert dtq.result(task_id) == {"charged": 7}

This module needs the standard library only; pytest is imported when pytest itself loads the plugin, and the engine
behind the fixture when a test asks for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dtq_tasks.context import TaskContext
from dtq_tasks.errors import PermanentError, TaskError
from dtq_tasks.registry import AnyHandler, registry

if TYPE_CHECKING:
    import pytest


def make_context(**overrides: Any) -> TaskContext:
    """A context as a worker would hand it out: first attempt, 30 seconds until the deadline; any field may be given.

    `make_context(attempt=3, state=SimpleNamespace(http=fake))`. Raises TypeError for a field that does not exist.
    """
    context = TaskContext(
        task_id=uuid.uuid4().hex,
        idempotency_key=None,
        attempt=1,
        worker_id="worker-testing0",
        queue="default",
        deadline=datetime.now(UTC) + timedelta(seconds=30),
        max_attempts=5,
        fence=1,
    )
    return replace(context, **overrides)


def run(handler: AnyHandler | str, payload: Any = None, ctx: TaskContext | None = None) -> Any:
    """Run a handler, or the one registered under a name, as a worker would; return the result as readers see it.

    The payload goes through JSON and the handler's model, the result through JSON; an async handler gets a loop of its
    own. What the handler raises comes out as it is. Raises PermanentError for a payload or a result that is not JSON,
    InvalidPayload (a PermanentError) for a payload that does not fit the model.

    There is no timeout, and start-up functions are not run: put what they would provide into `make_context(state=…)`.
    """
    found = _handler(handler)
    if found.is_async:
        return asyncio.run(run_async(found, payload, ctx))
    return _as_json(found(*_arguments(found, payload, ctx)), "result")


async def run_async(handler: AnyHandler | str, payload: Any = None, ctx: TaskContext | None = None) -> Any:
    """As `run`, for tests that have a loop. A sync handler runs in a thread, as it does in a worker."""
    found = _handler(handler)
    arguments = _arguments(found, payload, ctx)
    value = found(*arguments) if found.is_async else await asyncio.to_thread(found, *arguments)
    return _as_json(await value if inspect.isawaitable(value) else value, "result")


def _handler(handler: AnyHandler | str) -> AnyHandler:
    if not isinstance(handler, str):
        return handler
    if handler not in registry.handlers:
        raise TaskError(f"no task is registered under the name {handler!r}; import its module first")
    return registry.handlers[handler]


def _arguments(handler: AnyHandler, payload: Any, ctx: TaskContext | None) -> tuple[Any, TaskContext]:
    raw = handler.encode(payload) if handler.model and hasattr(payload, "model_dump_json") else payload
    context = make_context() if ctx is None else ctx
    if not context.task_type:
        context = replace(context, task_type=handler.name)
    return handler.parse(_as_json({} if raw is None else raw, "payload")), context


def _as_json(value: Any, what: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise PermanentError(f"the {what} is not JSON: {exc}") from None


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest: this module is its plugin `dtq` (entry point pytest11)."""
    config.pluginmanager.register(_fixtures(), "dtq-fixtures")


def _fixtures() -> ModuleType:
    """The fixtures as a plugin object, made here because only here pytest is known to be importable."""
    import pytest

    @pytest.fixture(scope="session")
    def dtq_session() -> Iterator[Any]:
        """The embedded engine behind `dtq`: started at the first use, one per test process."""
        found = list(entry_points(group="dtq.testing"))
        if not found:
            pytest.fail("the dtq fixture needs an engine on this machine: pip install 'dtq[local]'")
        with found[0].load()() as testbed:
            yield testbed

    @pytest.fixture
    def dtq_settings() -> dict[str, Any]:
        """Settings of `dtq` that differ from the defaults, as {"retry_base_delay": 5}; override it where you need some."""
        return {}

    @pytest.fixture
    def dtq(dtq_session: Any, dtq_settings: dict[str, Any]) -> Iterator[Any]:
        """A queue, a scheduler and a worker in this process, empty, with a stopped clock: dtq_local.testbed.Bed.

        Handlers that the test registers are forgotten when it ends.
        """
        with dtq_session.fresh(**dtq_settings) as bed:
            yield bed

    plugin = ModuleType("dtq_fixtures")
    vars(plugin).update(dtq_session=dtq_session, dtq_settings=dtq_settings, dtq=dtq)
    return plugin
