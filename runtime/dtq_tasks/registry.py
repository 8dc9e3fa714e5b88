"""The registry: which name stands for which function, and the defaults of that type.

It fills while modules are imported; `load` imports those that the configuration names, once, at start-up. Nothing here
is ever driven by task data: a worker runs what is registered and nothing else (contract §13).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, get_origin, get_type_hints, is_typeddict

from dtq_tasks import producer
from dtq_tasks.errors import DuplicateTask, InvalidPayload, TaskError

Backoff = float | Sequence[float] | Callable[[int], float]
"""Seconds before the next attempt: one number, one per attempt (the last repeats), or a function of the attempt."""

P = ParamSpec("P")
R = TypeVar("R")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class _Model(Protocol):
    """What we use of a pydantic model, without importing pydantic."""

    @classmethod
    def model_validate(cls, obj: Any) -> Any: ...

    @classmethod
    def model_validate_json(cls, json_data: str) -> Any: ...

    def model_dump_json(self, *, by_alias: bool, round_trip: bool) -> str: ...


@dataclass(frozen=True)
class TypeDefaults:
    """What tasks of one type get where the submission does not say; None leaves it to the installation."""

    queue: str | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    priority: int | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    backoff: Backoff | None = None


class Handler(Generic[P, R]):
    """A registered function. Calling it calls the function; `submit` sends a task of its type."""

    def __init__(self, name: str, fn: Callable[P, R], defaults: TypeDefaults) -> None:
        self.name = name
        self.fn = fn
        self.defaults = defaults
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
        self.model = _payload_model(name, fn)
        self._fields: dict[str, Any] = {
            key: value
            for key in ("queue", "max_attempts", "timeout_ms", "priority")
            if (value := getattr(defaults, key)) is not None
        }
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def delay_s(self, attempt: int) -> float | None:
        """The delay this type wants after `attempt` failed; None means the installation's back-off."""
        backoff = self.defaults.backoff
        if backoff is None:
            return None
        if callable(backoff):
            delay = float(backoff(attempt))
            if not 0 <= delay < math.inf:
                raise ValueError(f"the backoff of {self.name} returned {delay}")
            return delay
        if isinstance(backoff, (int, float)):
            return float(backoff)
        return float(backoff[min(attempt, len(backoff)) - 1])

    def parse(self, payload: dict[str, Any]) -> Any:
        """The payload, decoded from JSON, as the handler's model, or as it is where the handler declares none.

        Raises InvalidPayload: a payload that does not validate is permanent.
        """
        return payload if self.model is None else self._validated(self.model.model_validate_json, json.dumps(payload))

    def _validated(self, validate: Callable[[Any], Any], value: Any) -> Any:
        try:
            return validate(value)
        except ValueError as exc:
            raise InvalidPayload(f"payload of {self.name}: {_first_line(exc)}") from None

    def options(
        self,
        *,
        queue: str | None = None,
        max_attempts: int | None = None,
        timeout_ms: int | None = None,
        priority: int | None = None,
        delay_seconds: float | None = None,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        traceparent: str | None = None,
    ) -> Handler[P, R]:
        """The same handler with other wishes for its next submissions.

        `traceparent` is a W3C trace context, put into the metadata; inside a handler it is ctx.traceparent.
        """
        if traceparent is not None:
            metadata = {**(metadata or self._fields.get("metadata") or {}), "traceparent": traceparent}
        wishes = {
            "queue": queue,
            "max_attempts": max_attempts,
            "timeout_ms": timeout_ms,
            "priority": priority,
            "delay_seconds": delay_seconds,
            "idempotency_key": idempotency_key,
            "metadata": metadata,
        }
        copy = Handler(self.name, self.fn, self.defaults)
        copy._fields = self._fields | {k: v for k, v in wishes.items() if v is not None}
        return copy

    def submit(self, payload: dict[str, Any] | _Model | None = None, /, **kwargs: Any) -> producer.SubmittedTask:
        """Send a task of this type: a payload model, a dict, or keyword arguments. Blocks for one round trip.

        Raises InvalidPayload where the payload does not fit the handler's model, and the errors of the client.
        """
        return producer.current().submit(self.name, self._payload(payload, kwargs), self._fields)

    async def submit_async(
        self, payload: dict[str, Any] | _Model | None = None, /, **kwargs: Any
    ) -> producer.SubmittedTask:
        """As `submit`, for asyncio."""
        return await producer.current().submit_async(self.name, self._payload(payload, kwargs), self._fields)

    def _payload(self, payload: dict[str, Any] | _Model | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        if payload is not None and kwargs:
            raise InvalidPayload("give a payload or keyword arguments, not both")
        given = kwargs if payload is None else payload
        if self.model is None:
            if not isinstance(given, dict):
                raise InvalidPayload(f"{self.name} takes a dict, not {type(given).__name__}")
            return given
        if isinstance(given, dict):
            given = self._validated(self.model.model_validate, given)
        elif not isinstance(given, cast(type, self.model)):
            raise InvalidPayload(f"{self.name} takes {cast(type, self.model).__name__}, not {type(given).__name__}")
        return self.encode(given)

    def encode(self, model: Any) -> dict[str, Any]:
        """A payload model as the JSON object that the worker will get, where it makes the same model of it again.

        Raises InvalidPayload for what JSON would change: a SecretStr, a field that is excluded or not fit for JSON.
        """
        model_class = cast(type[_Model], self.model)
        encoded = model.model_dump_json(by_alias=True, round_trip=True)
        if self._validated(model_class.model_validate_json, encoded) != model:
            raise InvalidPayload(
                f"payload of {self.name}: {model_class.__name__} does not come out of JSON as it went in (secrets, excluded fields)"
            )
        return cast(dict[str, Any], json.loads(encoded))


AnyHandler = Handler[..., Any]
Hook = Callable[[SimpleNamespace], Awaitable[None] | None]


class Registry:
    """Handlers by name, and the hooks of a worker's life. One per process, as modules register at import."""

    def __init__(self) -> None:
        self.handlers: dict[str, AnyHandler] = {}
        self.startup: list[Hook] = []
        self.shutdown: list[Hook] = []

    def add(self, handler: AnyHandler) -> None:
        known = self.handlers.get(handler.name)
        if known is not None:
            here = f"{handler.fn.__module__}.{handler.fn.__qualname__}"
            there = f"{known.fn.__module__}.{known.fn.__qualname__}"
            raise DuplicateTask(f"task {handler.name!r} is registered twice: {there} and {here}")
        self.handlers[handler.name] = handler


registry = Registry()


def task(
    name: str,
    *,
    queue: str | None = None,
    max_attempts: int | None = None,
    timeout: float | None = None,
    retry_on: Iterable[type[BaseException]] = (),
    backoff: Backoff | None = None,
    priority: int | None = None,
) -> Callable[[Callable[P, R]], Handler[P, R]]:
    """Register `fn(payload, ctx) -> JSON value` under `name`.

    The keyword arguments are defaults of this type; `timeout` is in seconds. Raises DuplicateTask for a taken name and
    ValueError for a value no task may have.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"task name {name!r}: letters, digits and _ . : / -, at most 128, not starting with a sign")
    timeout_ms = _milliseconds(name, timeout)
    if queue is not None and not (isinstance(queue, str) and _QUEUE.fullmatch(queue)):
        raise ValueError(f"task {name!r}: queue takes lower-case letters, digits, '_' and '-', 1 to 64, not {queue!r}")
    _check_range(name, "max_attempts", max_attempts, 1, 1000)
    _check_range(name, "timeout in ms", timeout_ms, 1, 3_600_000)
    _check_range(name, "priority", priority, 0, 9)
    retry_on = tuple(retry_on)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in retry_on):
        raise ValueError(f"task {name!r}: retry_on takes exception classes")
    _check_backoff(name, backoff)
    defaults = TypeDefaults(queue, max_attempts, timeout_ms, priority, retry_on, backoff)

    def register(fn: Callable[P, R]) -> Handler[P, R]:
        _check_signature(name, fn)
        handler = Handler(name, fn, defaults)
        registry.add(handler)
        return handler

    return register


def on_startup(hook: Hook) -> Hook:
    """Run `hook(state)` once before a worker takes work; what it sets on `state` handlers see as `ctx.state`."""
    registry.startup.append(hook)
    return hook


def on_shutdown(hook: Hook) -> Hook:
    """Run `hook(state)` once after a worker's last task, in reverse order of registration."""
    registry.shutdown.append(hook)
    return hook


def load(modules: Iterable[str]) -> Registry:
    """Import the named modules, so that their handlers register. At start-up only; raises ImportError as it comes."""
    for name in modules:
        importlib.import_module(name)
    return registry


def _check_range(task_name: str, what: str, value: int | None, low: int, high: int) -> None:
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise ValueError(f"task {task_name!r}: {what} must be a whole number, {low}…{high}, not {value!r}")


def _milliseconds(task_name: str, timeout: float | None) -> int | None:
    if timeout is None:
        return None
    if not _is_delay(timeout):
        raise ValueError(f"task {task_name!r}: timeout takes seconds, not {timeout!r}")
    return round(min(timeout * 1000, 1e12))


def _check_backoff(task_name: str, backoff: Backoff | None) -> None:
    if backoff is None or callable(backoff):
        return
    delays = backoff if isinstance(backoff, Sequence) and not isinstance(backoff, (str, bytes)) else [backoff]
    if not (delays and all(_is_delay(delay) for delay in delays)):
        raise ValueError(
            f"task {task_name!r}: backoff takes seconds, a sequence of them or a function, not {backoff!r}"
        )


def _is_delay(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _check_signature(task_name: str, fn: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # nobody can tell
    try:
        signature.bind({}, None)
    except TypeError:
        raise TaskError(f"task {task_name!r}: a handler takes (payload, ctx), this one {signature}") from None


def _payload_model(name: str, fn: Callable[..., Any]) -> type[_Model] | None:
    """The pydantic model that the first parameter is annotated with, None for a plain dict.

    Only that annotation is resolved: the others may name what is imported for type checkers alone. Raises TaskError for
    an annotation that says what the payload is and cannot be held to: it would be no check at all.
    """
    try:
        first = next(iter(inspect.signature(fn).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return None
    if first.annotation is inspect.Parameter.empty:
        return None
    try:
        only = SimpleNamespace(__annotations__={first.name: first.annotation})
        hint = get_type_hints(only, globalns=getattr(inspect.unwrap(fn), "__globals__", {}))[first.name]
    except NameError as exc:
        raise TaskError(
            f"task {name!r}: the annotation of its payload cannot be resolved ({exc}); import the model at run time, at module level"
        ) from None
    except (AttributeError, TypeError):
        return None
    if isinstance(hint, type) and hasattr(hint, "model_validate"):
        return hint
    kind = get_origin(hint) or hint
    if (
        hint in (Any, object)
        or is_typeddict(hint)
        or isinstance(hint, TypeVar)
        or (isinstance(kind, type) and issubclass(kind, Mapping))
    ):
        return None
    raise TaskError(f"task {name!r}: annotate its payload with a pydantic model or a dict, not {hint}")


def _first_line(exc: ValueError) -> str:
    """A validation error in one line that names fields, never values: values may be secrets."""
    errors = getattr(exc, "errors", None)
    if callable(errors):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors()[:3])
    return str(exc).partition("\n")[0][:200]
