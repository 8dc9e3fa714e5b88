"""What the handlers really did, in a file that DTQ knows nothing of; and the gates they wait at.

The handlers' half is in support.handlers; both agree on the files only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from support.eventually import eventually


@dataclass
class Run:
    """One execution of one handler. Times are CLOCK_MONOTONIC seconds, the same for all processes of the machine."""

    task_id: str
    task_type: str
    attempt: int
    fence: int
    worker_id: str
    pid: int
    queue: str
    started: float
    ended: float | None = None
    outcome: str | None = None
    """"ok", or the class of what was raised; None: it never ended (its process was killed)."""


class Journal:
    """The test's half. `folder` goes to the processes as DTQ_TEST_FOLDER."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gates").mkdir(parents=True)
        self._file = folder / "journal"
        self._file.touch()

    def open(self, *gates: str) -> None:
        """Let through whoever waits at these gates, now and later."""
        for gate in gates:
            (self.folder / "gates" / gate).touch()

    def runs(self, task_id: str | None = None) -> list[Run]:
        """Executions in the order in which they began."""
        runs: dict[str, Run] = {}
        for line in self._file.read_text().splitlines():
            event = json.loads(line)
            name, moment = event.pop("run"), event.pop("t")
            if "outcome" in event:
                runs[name].ended, runs[name].outcome = moment, event["outcome"]
            else:
                runs[name] = Run(started=moment, **event)
        return [run for run in runs.values() if task_id in (None, run.task_id)]

    def wait_run(self, task_id: str, attempt: int = 1, timeout: float = 15.0) -> Run:
        """The execution of this attempt, once it has begun."""

        def begun() -> Run | None:
            return next((run for run in self.runs(task_id) if run.attempt == attempt), None)

        return eventually(begun, timeout, f"attempt {attempt} of {task_id} begins")  # type: ignore[return-value]

    def wait_end(self, run: Run, timeout: float = 15.0) -> Run:
        """The same execution, once its handler has ended."""

        def ended() -> Run | None:
            return next((r for r in self.runs(run.task_id) if r.fence == run.fence and r.ended is not None), None)

        return eventually(ended, timeout, f"attempt {run.attempt} of {run.task_id} ends")  # type: ignore[return-value]

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Pairs of executions of one task that were alive together. One that never ended is counted as a moment."""
        found = []
        runs = self.runs()
        for i, a in enumerate(runs):
            for b in runs[i + 1 :]:
                if a.task_id == b.task_id and b.started < (a.ended or a.started):
                    found.append((a, b))
        return found

    def most_at_once(self) -> int:
        """The largest number of executions that were alive together."""
        steps = [(run.started, 1) for run in self.runs()] + [(run.ended, -1) for run in self.runs() if run.ended]
        alive = most = 0
        for _, step in sorted(steps):
            alive += step
            most = max(most, alive)
        return most
