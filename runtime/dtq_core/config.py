"""Settings: every DTQ_ variable of contract §10 and ours, checked once at start.

A bad value stops the process with a message that names its variable. Read by the composition roots (worker, scheduler,
CLI, API) and passed on as the object it is; nobody imports a global.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from dtq_core.errors import InvalidConfig

_REDIS_URL = re.compile(r"(redis|rediss|unix|redis\+sentinel|rediss\+sentinel|redis\+cluster|rediss\+cluster)://\S+")
_DATABASE = re.compile(r"(/[0-9]{0,6})?")
_WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}|\{[A-Za-z0-9_.-]{1,62}\}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_WEEK_S = 604_800


class Settings(BaseSettings):
    """All settings, in the order of docs/configuration.md. `_s` is seconds, `_ms` milliseconds."""

    model_config = SettingsConfigDict(
        env_prefix="DTQ_", extra="ignore", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    redis_url: SecretStr = Field(
        SecretStr("redis://localhost:6379/0"), description="Where Redis is, credentials included. Never logged."
    )
    key_prefix: str = Field(
        "dtq", description="First part of every key. In braces, as {dtq}, all keys share one cluster slot."
    )
    task_modules: Annotated[tuple[str, ...], NoDecode] = Field(
        ("dtq_examples.tasks",),
        description="Comma list of the modules whose @task handlers this process loads, at start only.",
    )

    api_host: str = Field("0.0.0.0", description="Address on which the API listens.")  # noqa: S104
    api_port: int = Field(8000, ge=0, le=65535, description="Port on which the API listens.")
    ws_path: str = Field("/ws/events", pattern=r"^/\S*$", description="Path of the event feed.")
    api_key: SecretStr = Field(
        SecretStr(""), description="Key for destructive calls. Empty: local development, everything open."
    )

    worker_concurrency: int = Field(4, ge=1, le=1000, description="Tasks one worker runs at the same time.")
    worker_id: str = Field("", description="Name of this worker. Empty: worker- and eight random hex digits.")
    visibility_timeout_s: float = Field(
        30, gt=0, le=86400, description="A worker silent for this long loses its tasks to its peers."
    )
    heartbeat_interval_s: float = Field(
        5, gt=0, le=3600, description="How often a worker renews its leases and its row."
    )
    drain_timeout_s: float = Field(30, ge=0, le=86400, description="How long work in hand may go on after SIGTERM.")

    max_queue_depth: int = Field(
        10_000, ge=1, description="Waiting and running tasks a queue takes before it answers QUEUE_FULL."
    )
    max_scheduled: int = Field(100_000, ge=1, description="Delayed and retrying tasks a queue takes.")
    max_queues: int = Field(1000, ge=1, le=100_000, description="How many queues may exist.")
    max_payload_bytes: int = Field(262_144, ge=2, description="Largest payload, as compact UTF-8 JSON.")
    task_timeout_ms: int = Field(30_000, ge=1, le=3_600_000, description="timeout_ms of a task that names none.")
    max_attempts: int = Field(10, ge=1, le=1000, description="Largest max_attempts a task may ask for.")

    retry_base_delay: float = Field(1.0, ge=0, le=86400, description="Seconds before the second attempt.")
    retry_max_delay: float = Field(60.0, ge=0, le=2_592_000, description="Cap of the doubling delay, in seconds.")
    retry_jitter: float = Field(0.2, ge=0, le=1, description="Share by which a delay may deviate.")

    task_retention_s: int = Field(_WEEK_S, ge=1, description="How long the record of an ended task is kept.")
    result_retention_s: int = Field(3600, ge=1, description="How long a result is kept.")
    result_max_bytes: int = Field(8192, ge=64, description="Larger results are replaced by a marker.")
    idem_ttl_s: int = Field(86_400, ge=1, description="How long an idempotency key is remembered after its task ended.")
    dlq_enabled: bool = Field(
        True, description="Whether exhausted tasks become dead letters; otherwise they are just failed."
    )
    dlq_maxlen: int = Field(10_000, ge=1, description="How many dead letters are kept, about.")
    submit_wait_replicas: int = Field(
        0, ge=0, le=100, description="Replicas that must have a submission before it is answered."
    )

    metrics_host: str = Field("0.0.0.0", description="Address of the metrics of workers and schedulers.")  # noqa: S104
    metrics_port: int = Field(
        0, ge=0, le=65535, description="Port where a worker or scheduler serves its own GET /metrics. 0: not at all."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "INFO", description="Least level that is logged."
    )
    log_json: bool = Field(False, description="One JSON object per line instead of text.")

    @field_validator("task_modules", mode="before")
    @classmethod
    def _split_modules(cls, value: Any) -> Any:
        names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        for name in names:
            if not isinstance(name, str) or not _MODULE.fullmatch(name):
                raise ValueError("a comma list of module names, as shop.tasks,shop.reports")
        return tuple(names)

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        if not _REDIS_URL.fullmatch(url):
            raise ValueError("redis://host:port/db, rediss://… or unix://…")
        if url.startswith(("redis://", "rediss://")):
            _check_address(url)
        return value

    @field_validator("worker_id")
    @classmethod
    def _check_worker_id(cls, value: str) -> str:
        if value and not _WORKER_ID.fullmatch(value):
            raise ValueError("letters, digits, '_', '.', '-', at most 128")
        return value

    @field_validator("key_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("letters, digits, '_', '.', '-', at most 64, the whole optionally in braces")
        return value

    @field_validator(
        "visibility_timeout_s",
        "heartbeat_interval_s",
        "drain_timeout_s",
        "retry_base_delay",
        "retry_max_delay",
        "retry_jitter",
    )
    @classmethod
    def _finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return value

    @model_validator(mode="after")
    def _cross_checks(self) -> Settings:
        if self.heartbeat_interval_s >= self.visibility_timeout_s:
            raise ValueError(
                "DTQ_HEARTBEAT_INTERVAL_S must be smaller than DTQ_VISIBILITY_TIMEOUT_S,"
                " or peers take running tasks away"
            )
        if self.retry_max_delay < self.retry_base_delay:
            raise ValueError("DTQ_RETRY_MAX_DELAY must not be smaller than DTQ_RETRY_BASE_DELAY")
        return self

    def warnings(self) -> list[str]:
        """Combinations that work but surprise; logged once at start."""
        notes = []
        if self.task_timeout_ms > self.visibility_timeout_s * 1000:
            notes.append(
                "DTQ_TASK_TIMEOUT_MS is longer than DTQ_VISIBILITY_TIMEOUT_S: a task that holds the interpreter lock"
                " for that long may be taken over by a peer"
            )
        if self.visibility_timeout_s < 2 * self.heartbeat_interval_s:
            notes.append(
                "DTQ_VISIBILITY_TIMEOUT_S leaves room for less than two heartbeats: one lost beat loses the lease"
            )
        if self.drain_timeout_s * 1000 < self.task_timeout_ms:
            notes.append(
                "DTQ_DRAIN_TIMEOUT_S is shorter than DTQ_TASK_TIMEOUT_MS: a task that is running at SIGTERM may be cut"
                " off and run again elsewhere"
            )
        return notes


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment, with `overrides` (flags) on top; None means not given.

    Raises InvalidConfig whose message names every bad variable as the operator wrote it, without its value.
    """
    given = {k: v for k, v in overrides.items() if v is not None}
    try:
        # The environment is checked even where a flag covers it: a bad value is a mistake, used or not.
        settings = Settings()
        return Settings(**given) if given else settings
    except ValidationError as exc:
        raise InvalidConfig("; ".join(_explain(error) for error in exc.errors(include_input=False))) from None


def _check_address(url: str) -> None:
    """Raise ValueError for an address that the client library would complain about by quoting parts of the password."""
    try:
        parts = urlsplit(url)
        sound = parts.port != 0 and "@" not in parts.path + parts.fragment
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(
            "the port is no number from 1 to 65535, or the password has a sign that must be written as %xx"
        )
    if not _DATABASE.fullmatch(parts.path):
        raise ValueError("what follows the / is the number of a database")


def _explain(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    return f"DTQ_{str(error['loc'][0]).upper()}: {message}"
