"""The producer's client: submit tasks over HTTP, wait for them, cancel them. Needs httpx and nothing else of DTQ.

from dtq_client import Client

with Client("http://dtq-api:8000") as dtq:
    task = dtq.wait(dtq.submit("echo_task", {"hello": "world"}).task_id)
"""

from dtq_client.client import AsyncClient, Client
from dtq_client.errors import (
    ApiError,
    BadAnswer,
    ClientError,
    Forbidden,
    InvalidCall,
    InvalidTask,
    NoAnswer,
    PayloadTooLarge,
    QueueFull,
    QueueLimit,
    TaskNotFound,
    TaskTerminal,
    Unauthorized,
    Unavailable,
    UnknownTaskType,
    WaitTimeout,
)
from dtq_client.model import Attempt, Batch, Cancellation, Submitted, Task, TaskFields, TaskOptions

__all__ = [
    "ApiError",
    "AsyncClient",
    "Attempt",
    "BadAnswer",
    "Batch",
    "Cancellation",
    "Client",
    "ClientError",
    "Forbidden",
    "InvalidCall",
    "InvalidTask",
    "NoAnswer",
    "PayloadTooLarge",
    "QueueFull",
    "QueueLimit",
    "Submitted",
    "Task",
    "TaskFields",
    "TaskNotFound",
    "TaskOptions",
    "TaskTerminal",
    "Unauthorized",
    "Unavailable",
    "UnknownTaskType",
    "WaitTimeout",
]
