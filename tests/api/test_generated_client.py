"""A client generated from the OpenAPI document, used as its user would: installed somewhere else, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = str(Path(sys.executable).parent / "openapi-python-client")
OPTIONS = "generate --meta none --fail-on-warning --path openapi.json --output-path generated --config config.yml"
USE = """
import asyncio, sys
from generated import AuthenticatedClient, Client
from generated.api.dead_letters import get_dead_letter, list_dead_letters, requeue_dead_letter
from generated.api.queues import list_queues, pause_queue
from generated.api.tasks import cancel_task, get_task, list_tasks, submit_task, submit_tasks
from generated.models import (
    Batch, Duplicate, Error, Submission, SubmissionPayload, Submitted, TaskPage, TaskState, TaskStatus, TaskWithResult,
)

base, dead = sys.argv[1:]
anybody = Client(base_url=base)
admin = AuthenticatedClient(base_url=base, token="s3cret-key", prefix="", auth_header_name="X-API-Key")

payload = SubmissionPayload.from_dict({"n": 1})
taken = submit_task.sync(client=anybody, body=Submission("echo", payload=payload, queue="idle", priority=7), idempotency_key="k")
assert isinstance(taken, Submitted) and taken.status == "queued", taken
task = get_task.sync(taken.task_id, client=anybody)
assert isinstance(task, TaskWithResult) and task.status is TaskStatus.QUEUED and task.priority == 7, task
assert task.payload.to_dict() == {"n": 1} and task.created_at.tzinfo and task.idempotency_key == "k"

again = submit_task.sync_detailed(client=anybody, body=Submission("echo", queue="idle"), idempotency_key="k")
assert again.status_code == 409 and again.parsed.code == "IDEMPOTENCY_IN_PROGRESS" and again.parsed.task_id == taken.task_id
batch = submit_tasks.sync(client=anybody, body=Batch([Submission("echo", queue="idle"), Submission("nobody_knows_it")]))
assert (batch.accepted, batch.refused, batch.results[1].code) == (1, 1, "UNKNOWN_TASK_TYPE"), batch
page = list_tasks.sync(client=anybody, queue="idle", status=TaskStatus.QUEUED, limit=1)
assert isinstance(page, TaskPage) and len(page.tasks) == 1 and page.cursor, page
page = list_tasks.sync(client=anybody, queue="idle", cursor=page.cursor)
assert [t.task_id for t in page.tasks] == [taken.task_id] and page.cursor is None, page

refused = cancel_task.sync_detailed(taken.task_id, client=anybody)
assert refused.status_code == 401 and isinstance(refused.parsed, Error) and refused.parsed.code == "UNAUTHORIZED"
assert refused.parsed.request_id == refused.headers["X-Request-ID"]
cancelled = cancel_task.sync(taken.task_id, client=admin)
assert isinstance(cancelled, TaskState) and cancelled.status is TaskStatus.CANCELLED, cancelled
assert cancel_task.sync_detailed(taken.task_id, client=admin).status_code == 410
replay = submit_task.sync(client=anybody, body=Submission("echo", queue="mine"), idempotency_key="k2")
missing = get_task.sync("f" * 32, client=anybody)
assert isinstance(missing, Error) and missing.code == "TASK_NOT_FOUND"
bad = submit_task.sync(client=anybody, body=Submission("echo", priority=99))
assert isinstance(bad, Error) and bad.code == "INVALID_TASK" and "priority" in bad.message, bad

assert dead in [letter.task_id for letter in list_dead_letters.sync(client=anybody).dead_letters]
assert get_dead_letter.sync(dead, client=anybody).last_error_class == "PermanentError"
assert pause_queue.sync("default", client=admin).paused
assert requeue_dead_letter.sync(dead, client=admin).status is TaskStatus.QUEUED
assert get_task.sync(dead, client=anybody).attempt == 0
assert [row.queue for row in list_queues.sync(client=anybody).queues if row.paused] == ["default"]
assert asyncio.run(get_task.asyncio(dead, client=anybody)).status is TaskStatus.QUEUED
"""


@pytest.mark.contract("C11.01", "C11.03", "C11.10", "C11.11", "C11.14", "C11.16", "C11.24")
def test_a_generated_client_works(make_api, world, tmp_path):
    api = make_api(api_key="s3cret-key")
    world.worker()
    dead = api.submit("raise", {"kind": "permanent"})
    world.wait_status(dead, "dead_lettered")
    (tmp_path / "openapi.json").write_text(json.dumps(api.http.get("/openapi.json").json()))
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    (tmp_path / "use.py").write_text(USE)
    made = subprocess.run([GENERATOR, *OPTIONS.split()], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stdout + made.stderr
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DTQ_", "PYTHON"))}
    used = subprocess.run(
        [sys.executable, "use.py", api.base, dead], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert used.returncode == 0, used.stdout + used.stderr
