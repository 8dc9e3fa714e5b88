"""The bodies as the OpenAPI document shows them. Answers are written directly; a test holds them against these models."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dtq_core.submission import MAX_DELAY_S, MAX_KEY_BYTES, MAX_TTL_S, SubmissionInput
from dtq_core.task import QUEUE_NAME, TASK_TYPE_NAME, TaskStatus

EXAMPLE_ID = "9b2d1c4e5f60718293a4b5c6d7e8f901"


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")


class Error(_Body):
    """Every answer with a status of 400 and above."""

    code: str = Field(description="Stable; made for programs.", examples=["TASK_NOT_FOUND"])
    message: str = Field(description="For people.", examples=[f"there is no task {EXAMPLE_ID}"])
    request_id: str = Field(description="As in X-Request-ID.")
    task_id: str | None = Field(None, description="On 409: the task it is about.")


class Unready(Error):
    """The answer of a probe that says no."""

    dependencies: dict[str, str] = Field(description="What works and what does not, by name.")


class Submitted(_Body):
    """A task was taken."""

    task_id: str = Field(examples=[EXAMPLE_ID])
    status: Literal["queued", "pending"] = Field(description="pending: it waits for its delay.")


class Attempt(_Body):
    """One execution."""

    attempt: int
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None
    worker_id: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    retryable: bool | None = None
    retry_delay_ms: int | None = None


class TaskBody(_Body):
    """One task. The fields of the current or last execution are at the top level."""

    task_id: str = Field(examples=[EXAMPLE_ID])
    queue: str
    task_type: str
    status: TaskStatus
    payload: dict[str, Any] | None
    priority: int
    attempt: int = Field(description="Executions started; 0 before the first.")
    max_attempts: int
    timeout_ms: int
    idempotency_key: str | None
    metadata: dict[str, Any]
    created_at: datetime
    available_at: datetime
    cancel_requested: bool
    started_at: datetime | None
    finished_at: datetime | None
    duration_ms: int | None
    worker_id: str | None
    error_class: str | None
    error_message: str | None
    retryable: bool | None
    retry_delay_ms: int | None
    history: list[Attempt] = Field(description="Executions of this life, oldest first, at most ten.")


class TaskWithResult(TaskBody):
    """One task and what its handler returned."""

    result: Any = Field(None, description="Of a succeeded task, while it is kept; else null.")


class Duplicate(TaskBody):
    """The idempotency key led to an earlier task that has ended."""

    duplicate: Literal[True]


class TaskPage(_Body):
    """Newest first."""

    tasks: list[TaskBody]
    cursor: str | None = Field(description="Give it back to see more; null at the end.")


class Submission(SubmissionInput):
    """One task to be taken. What is left out, or null, has the default of its type, of its queue, of the installation."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"task_type": "echo_task", "payload": {"message": "hello"}, "queue": "default", "priority": 5}
        }
    )

    task_type: str = Field(
        description="A type that a worker of the queue, or this service, knows.", min_length=1, max_length=128,
        pattern=rf"^{TASK_TYPE_NAME.pattern}$", examples=["echo_task"],
    )  # fmt: skip
    payload: dict[str, Any] = Field(
        default_factory=dict, description="For the handler; at most DTQ_MAX_PAYLOAD_BYTES as compact UTF-8 JSON."
    )
    queue: str = Field("default", pattern=rf"^{QUEUE_NAME.pattern}$")
    idempotency_key: str | None = Field(
        None, min_length=1, max_length=MAX_KEY_BYTES, pattern=r"^[^\x00-\x1f\x7f]+$",
        description=f"The same key on the same queue is the same task. At most {MAX_KEY_BYTES} bytes.",
    )  # fmt: skip
    max_attempts: int | None = Field(
        None, ge=1, description="Executions before the task is a dead letter; at most DTQ_MAX_ATTEMPTS."
    )
    priority: int | None = Field(None, ge=0, le=9, description="Strict: 9 goes before 8, always.")
    timeout_ms: int | None = Field(None, ge=1, le=3_600_000, description="For one execution.")
    delay_seconds: float = Field(0, ge=0, le=MAX_DELAY_S, description="The task is pending until then.")
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="At most 4096 bytes. ttl_seconds: the task is not started after that time.",
        json_schema_extra={
            "properties": {"ttl_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TTL_S}}
        },
    )


class Batch(BaseModel):
    """Up to 1000 submissions, each as in POST /tasks."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[Submission] = Field(min_length=1, max_length=1000)


class BatchItem(_Body):
    """What became of one submission: status_code is what POST /tasks would have answered."""

    status_code: int
    task_id: str | None = None
    status: TaskStatus | None = None
    duplicate: bool | None = None
    code: str | None = None
    message: str | None = None
    retry_after_s: int | None = None


class BatchAnswer(_Body):
    """One answer per submission, in order."""

    accepted: int
    refused: int
    results: list[BatchItem]


class TaskState(_Body):
    """A task and the status it has now."""

    task_id: str = Field(examples=[EXAMPLE_ID])
    status: TaskStatus


class Discarded(TaskState):
    """The letter is gone; the task stays and says metadata.discarded."""

    discarded: Literal[True]


class QueueBody(_Body):
    """Numbers of one queue, exact at the moment of the read."""

    queue: str
    depth: int = Field(description="waiting + pending: what the limit looks at.")
    waiting: int = Field(description="On the streams, not started.")
    pending: int = Field(description="Workers have them in hand.")
    paused: bool
    retry_scheduled: int = Field(description="Delayed and retrying tasks.")
    dlq_depth: int
    workers_active: int


class QueueList(_Body):
    """Every known queue, by name."""

    queues: list[QueueBody]


class PauseBody(_Body):
    """Whether the queue is paused now, and whether this call changed that."""

    queue: str
    paused: bool
    changed: bool


class PurgeBody(_Body):
    """What a purge matched and changed; with dry_run nothing was changed."""

    matched: int
    changed: int
    sample: list[str] = Field(description="At most ten of the task ids.")
    dry_run: bool


class WorkerBody(_Body):
    """One worker as its last heartbeat described it."""

    worker_id: str
    hostname: str
    status: str = Field(description="starting, ready, busy, draining, stopped; stale after three missed heartbeats.")
    started_at: datetime
    last_heartbeat: datetime
    age_s: float = Field(description="Seconds since the last heartbeat, on the clock of Redis.")
    active_tasks: int
    concurrency: int
    tasks_processed: int
    tasks_failed: int
    tasks_retried: int
    queues: list[str]


class WorkerList(_Body):
    """Every worker with a row, by start."""

    workers: list[WorkerBody]


class DeadLetterBody(_Body):
    """One dead letter."""

    task_id: str = Field(examples=[EXAMPLE_ID])
    queue: str
    task_type: str
    payload: dict[str, Any] | None
    failed_at: datetime
    attempts_made: int
    max_attempts: int
    last_error: str
    last_error_class: str
    retryable: bool
    worker_id: str | None
    priority: int
    timeout_ms: int
    idempotency_key: str | None
    entry_id: str


class DeadLetterPage(_Body):
    """Newest first."""

    dead_letters: list[DeadLetterBody]
    cursor: str | None = Field(description="Give it back to see more; null at the end.")


class Health(_Body):
    """The process is alive and its loops turn."""

    status: Literal["ok"]


class Ready(_Body):
    """The service can do its work."""

    status: Literal["ready"]
    dependencies: dict[str, str]
