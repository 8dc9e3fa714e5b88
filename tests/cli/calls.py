"""The real command as a process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.eventually import eventually
from support.processes import DTQ


@dataclass(frozen=True)
class Done:
    """What came of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without any setting of ours or of the terminal."""
    ours = ("DTQ_", "NO_COLOR", "COLUMNS", "LINES", "PYTEST_")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | more


@dataclass
class Cli:
    """`dtq` in `folder`, with `env`."""

    folder: Path
    env: Mapping[str, str]

    def __call__(self, *args: str, stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [DTQ, *args], input=data, capture_output=True, cwd=self.folder, env={**self.env, **(env or {})}, timeout=60
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert "Traceback" not in out + err, (args, out, err)
        return Done(done.returncode, out, err)

    def ok(self, *args: str, **kwargs: Any) -> str:
        """stdout of a call that must work."""
        done = self(*args, **kwargs)
        assert done.code == 0, (args, done)
        return done.out

    def json(self, *args: str, **kwargs: Any) -> Any:
        """The one document of a call that must work."""
        return self(*args, "--json", **kwargs).json

    def refused(self, code: str, *args: str, status: int = 1, **kwargs: Any) -> str:
        """stderr of a call that must end with the error `code`, in one line, with nothing on stdout."""
        done = self(*args, **kwargs)
        assert (done.code, done.out) == (status, ""), (args, done)
        assert done.err.startswith(f"error {code}: ") and done.err.count("\n") == 1, (args, done)
        return done.err

    def submit(self, task_type: str = "echo_task", payload: str = "{}", *more: str) -> str:
        return self.ok("submit", "-q", "--type", task_type, "--payload", payload, *more).strip()

    def wait(self, task_id: str, status: str) -> dict[str, Any]:
        """The document of the task once it has `status`."""

        def there() -> dict[str, Any] | None:
            document: dict[str, Any] = self.json("get", task_id)
            return document if document["status"] == status else None

        return eventually(there, 20, f"task {task_id} to be {status}") or {}
