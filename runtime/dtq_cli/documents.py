"""What --json prints, key by key: the promise to programs. docs/cli.md shows it and the tests hold commands to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """The keys of one document and, where `items` names one of them, the keys of each element of that list."""

    keys: dict[str, str]
    items: str = ""
    item_keys: dict[str, str] | None = None
    note: str = ""


_TASK = {
    "task_id": "32 hexadecimal digits",
    "queue": "its queue",
    "task_type": "its type",
    "status": "pending, queued, running, retrying, succeeded, failed, dead_lettered, cancelled or expired",
    "payload": "the JSON object it was submitted with; null where it cannot be read",
    "priority": "0 to 9",
    "attempt": "executions started",
    "max_attempts": "how many there may be",
    "timeout_ms": "how long one attempt may take",
    "idempotency_key": "as it was submitted, or null",
    "metadata": "a JSON object",
    "created_at": "instants are ISO 8601 in UTC with milliseconds",
    "available_at": "not before this instant",
    "cancel_requested": "whether a running task was asked to stop",
    "started_at": "of the current or last attempt, as all that follows; null before the first",
    "finished_at": "null while it runs",
    "duration_ms": "null while it runs",
    "worker_id": "who runs or ran it",
    "error_class": "the class of the error, or null",
    "error_message": "at most 500 characters, or null",
    "retryable": "whether that error is tried again, or null",
    "retry_delay_ms": "until the next attempt, or null",
    "history": "the attempts of this life, at most ten, each with the keys from started_at to retry_delay_ms",
}
_LETTER = {
    "task_id": "32 hexadecimal digits",
    "queue": "its queue",
    "task_type": "its type",
    "payload": "as in `dtq get`",
    "failed_at": "when it became a dead letter",
    "attempts_made": "executions that were started",
    "max_attempts": "how many there might have been",
    "last_error": "the message of the last error",
    "last_error_class": "its class",
    "retryable": "whether that error is tried again while attempts are left",
    "worker_id": "who ran it last, or null",
    "priority": "0 to 9",
    "timeout_ms": "how long one attempt might take",
    "idempotency_key": "as it was submitted, or null",
    "entry_id": "of its entry on the stream of dead letters",
}
_PURGE = Document(
    {
        "matched": "how many there were to change",
        "changed": "how many were changed; 0 in a dry run",
        "sample": "at most ten task ids",
        "dry_run": "whether it was one",
    }
)
_STATS = {
    "queue": "its name",
    "depth": "waiting + pending; what admission looks at",
    "waiting": "on its streams, not started",
    "pending": "running",
    "paused": "whether it is paused",
    "retry_scheduled": "delayed, or waiting for a retry",
    "dlq_depth": "its dead letters",
    "workers_active": "live workers that serve it",
}
_WORKER = {
    "worker_id": "its name",
    "hostname": "where it runs",
    "started_at": "since when",
    "last_heartbeat": "when it was heard of last",
    "active_tasks": "what it runs now",
    "concurrency": "how many it can run at a time",
    "tasks_processed": "since its start",
    "tasks_failed": "of these, those that failed for good",
    "tasks_retried": "attempts that failed and are tried again",
    "status": "starting, ready, busy, draining, stopped or stale",
    "queues": "which it serves",
    "age_s": "seconds since last_heartbeat",
}
_EVENT = {
    "event_id": "unique",
    "ts": "when",
    "type": "TASK_QUEUED and so on",
    "task_id": "or null, as all that follows",
    "queue": "",
    "task_type": "",
    "attempt": "",
    "worker_id": "",
    "metadata": "",
}
_UP = {
    "pid": "of `dtq up`",
    "url": "of the server, without its password",
    "state_dir": "where data and log are kept",
    "started_at": "since when",
    "engine": "pid, port and version of its own engine; null while there is none",
    "own_engine": "false on a server that was given",
    "api": "URL of the HTTP API, or null",
    "api_key": "whether destructive calls need a key",
    "processes": "pid by name of what runs now",
    "names": "of all processes that belong to it",
    "queues": "which its workers serve",
    "task_modules": "which its workers load",
    "concurrency": "tasks at a time in each worker",
    "reload": "whether workers start again when these change",
    "ready": "whether everything has worked once",
    "stop_s": "seconds that an orderly stop may take",
}
_PAUSE = Document({"queue": "its name", "paused": "what it is now", "changed": "false where it was so already"})

DOCUMENTS = {
    "submit": Document(
        {
            "task_id": "of the new task, or of the earlier one with this key",
            "status": "what it is now",
            "duplicate": "whether the key was used before",
        }
    ),
    "get": Document({**_TASK, "result": "of a succeeded task while it is kept, else null"}),
    "list": Document(
        {"tasks": "newest first", "more": "whether --limit cut the list"},
        "tasks",
        _TASK,
        note="Each of `tasks` has the keys of `dtq get`, without `result`.",
    ),
    "cancel": Document({"task_id": "as given", "status": "cancelled"}),
    "dlq list": Document(
        {"dead_letters": "newest first", "more": "whether --limit cut the list"}, "dead_letters", _LETTER
    ),
    "retry-dlq": Document({"task_id": "as given", "status": "queued"}),
    "discard-dlq": Document({"task_id": "as given", "status": "dead_lettered", "discarded": "true"}),
    "purge-dlq": _PURGE,
    "purge": _PURGE,
    "queue pause": _PAUSE,
    "queue resume": _PAUSE,
    "queue stats": Document(_STATS, note='Without QUEUE: `{"queues": […]}`, each with these keys.'),
    "workers": Document({"workers": "all that are known"}, "workers", _WORKER),
    "events": Document(_EVENT, note="One object a line, not one document."),
    "doctor": Document(
        {
            "ok": "true with status 0, false with 1",
            "server": "name and version, empty where INFO is refused",
            "findings": "errors first",
            "not_checked": "objects with check and because",
        },
        "findings",
        {
            "code": "stable; docs/doctor.md has them all",
            "severity": "error, warning or advice",
            "what": "what is so",
            "why": "why it matters",
            "fix": "the command that mends it",
        },
    ),
    "demo": Document(
        {
            "seed": "as given",
            "tasks": "how many there are in the queues of the demo",
            "statuses": "how many with each status",
            "queues": "their names",
            "dead_letters": "how many there are in all",
            "workers": "how many have a row",
            "alone": "false where another scheduler moved tasks in its own time, so that the day is not quite the seed's",
            "remove": "the command that removes everything under the prefix",
        }
    ),
    "bench": Document(
        {
            "tasks": "as given",
            "concurrency": "of the worker",
            "rounds": "how often both sides were measured; rates and ratios are medians",
            "submit_per_s": "tasks a second that one producer submits, 100 a call",
            "bare_submit_per_s": "XADDs a second, 100 a round trip",
            "submit_ratio": "of the two",
            "submit_spread": "lowest and highest of the rounds",
            "drain_per_s": "tasks a second that one worker does",
            "bare_drain_per_s": "entries a second that a bare loop reads, acknowledges and deletes",
            "drain_ratio": "of the two",
            "drain_spread": "lowest and highest of the rounds",
            "latency_ms": "submit, start and end of a single task, each with p50, p90 and p99, from before its submission",
            "commands_per_task": "commands that the server ran, those inside scripts included; null where INFO is refused",
            "commands": "the most frequent of them, per task",
            "round_trip_ms": "of a PING",
            "engine_cpu_percent": "of one core, while draining; null where INFO is refused",
            "worker_cpu_percent": "of one core, while draining; null where the system does not tell",
            "limit": "engine, worker, round_trips, shared or unknown",
            "limited_by": "the same as a sentence",
            "notes": "what could not be measured, or disturbed it",
        }
    ),
    "audit verify": Document(
        {
            "ok": "whether nothing is wrong",
            "findings": "what is wrong: kind (stable), message, queue, task_id",
            "notes": "limits of the proof, not faults",
            "tasks": "how many records were looked at",
            "entries": "how many stream entries",
            "scheduled": "how many delayed and retrying",
            "letters": "how many dead letters",
            "queues": "how many queues",
            "receipts": "how many receipts",
            "ledgers": "the counters of each queue, by its name",
        },
        note="The document is printed too when the status is 1.",
    ),
    "up": Document(_UP, note="One line, once everything has worked; the log goes to stderr."),
    "status": Document(
        {"running": "true", **_UP},
        note="Where nothing runs, with status 1: `running` false, and `starting`, whether one is just starting.",
    ),
    "down": Document({"stopped": "pid of what was stopped, or null"}),
    "logs": Document(
        {"name": "of the process, or null", "line": "what it wrote"}, note="One object a line, not one document."
    ),
    "new": Document(
        {"name": "as given", "path": "its folder", "files": "what was made, from the folder around it"},
    ),
    "completion": Document({"shell": "as given", "script": "its text"}),
}
