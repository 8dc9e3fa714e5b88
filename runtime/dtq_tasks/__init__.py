"""What a task author imports: `@task`, the context, the error classes, `idempotent_operation`. Standard library only.

    from dtq_tasks import task

    @task("send_email", max_attempts=3)
    async def send_email(payload, ctx):
        ...

    send_email.submit(to="ann@example.org")

Workers load the modules that DTQ_TASK_MODULES names, and run what is registered there and nothing else.
"""

from dtq_tasks.context import TaskContext
from dtq_tasks.errors import DuplicateTask, InvalidPayload, PermanentError, RetryableError, TaskError
from dtq_tasks.idempotency import idempotent_operation
from dtq_tasks.producer import SubmittedTask
from dtq_tasks.registry import Handler, on_shutdown, on_startup, task

__all__ = [
    "DuplicateTask",
    "Handler",
    "InvalidPayload",
    "PermanentError",
    "RetryableError",
    "SubmittedTask",
    "TaskContext",
    "TaskError",
    "idempotent_operation",
    "on_shutdown",
    "on_startup",
    "task",
]
