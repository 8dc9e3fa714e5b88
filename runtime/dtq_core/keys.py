"""# Every key DTQ writes

All names begin with DTQ_KEY_PREFIX, `dtq` unless set; written `{dtq}` all keys share one cluster slot. Scripts build
names from the prefix, so engines that forbid undeclared keys are not supported. Times are epoch milliseconds of the
server's clock. Every key has a TTL, or the bound in the last column.

| key | type | holds | TTL or bound |
| --- | --- | --- | --- |
| `dtq:stream:<queue>:p<0-9>` | stream, group `workers` | one entry per waiting or running task of that band: `task_id queue task_type payload attempt max_attempts priority timeout_ms idempotency_key` | entries are deleted with their ack; depth limit of the queue |
| `dtq:stream:dead-letter` | stream | one entry per dead letter: the fields above and `failed_at_ms attempts_made last_error last_error_class retryable worker_id original_queue` | MAXLEN ~ DTQ_DLQ_MAXLEN |
| `dtq:stream:audit` | stream | admin actions: `actor action task_id ts request_id` and `detail` | MAXLEN ~ 10000 |
| `dtq:retry:schedule` | sorted set | task ids by due time: delayed and retrying tasks | DTQ_MAX_SCHEDULED per queue |
| `dtq:retry:claimed` | sorted set | task ids by claim time: due, on their way to a stream | one batch of 100 per step; stale claims return after 60 s |
| `dtq:retry:batch` | string | task ids of the last claim, separated by spaces: what a leader releases first after a lost reply or a takeover | 60 s |
| `dtq:task:<task_id>` | hash | the task: its fields, execution record, `fence`, `entry_id`, `cancel_requested`, `expires_at`, `history` (JSON lines, one per earlier attempt of this life, at most 9), `deferred_at`, `deferrals`, `letter` (id of its dead letter), `letter_gone`, `trace` (traceparents of the submission and of the last attempt) | DTQ_TASK_RETENTION_S after the due time or the end; renewed while the task lives |
| `dtq:result:<task_id>` | string | the result as JSON, or `{"truncated": true, "bytes": n}` | DTQ_RESULT_RETENTION_S |
| `dtq:idempotency:<queue>:<key>` | string | `{"task_id", "state", "updated_at"}`, state processing, completed or failed | DTQ_IDEM_TTL_S; renewed while the task lives |
| `dtq:worker:<worker_id>` | hash | a worker's row: `worker_id hostname started_at last_heartbeat active_tasks concurrency tasks_processed tasks_failed tasks_retried status` and `queues interval_ms pid` | 10 heartbeat intervals |
| `dtq:workers` | set | ids of workers that have or had a row | pruned by the leader |
| `dtq:fetch:<worker_id>:<lane>` | string | the nonce of the last fetch that took something, so that a fetch sent twice takes once | 10 minutes |
| `dtq:queue:<queue>:paused` | string | `1` while paused | none: a pause must not end by itself; removed by resume |
| `dtq:queue:<queue>:policy` | hash | limits of this queue that replace the installation's | one per queue; DTQ_MAX_QUEUES |
| `dtq:queue:<queue>:task_types` | sorted set | task types that workers of the queue announced, by time | 7 days after the last announcement |
| `dtq:queue:<queue>:dead` | sorted set | ids of this queue's dead letters by the time part of their entry | follows the dead-letter stream |
| `dtq:queues` | set | known queues | DTQ_MAX_QUEUES; queues empty for DTQ_TASK_RETENTION_S are swept |
| `dtq:ledger:<queue>` | hash | exact counters: events since ever, tasks per live status now | one per queue; swept with it |
| `dtq:wake:<queue>` | list | at most one token: something to fetch | 10 minutes; length 1 |
| `dtq:cancelled` | set | ids cancelled while queued whose entry was out of reach | removed when absorbed, on requeue and by the leader |
| `dtq:tasks:recent` | sorted set | task ids by creation time | trimmed to 10000 |
| `dtq:lock:scheduler` | string | the leader's random token | 10 s |
| `dtq:audit:server` | hash | identity of the server as `audit verify` saw it last; `letters_from`, the oldest dead letter left when letters were last trimmed | one key |
| `dtq:demo:counter:<name>` | string | what the demo task counter_task counts | 1 day |
| `dtq:events` | channel | the event feed | not stored |
| `dtq:nudge:<worker_id>` | channel | "look at your tasks now": a cancel was requested | not stored |
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "workers"
RECENT_MAX = 10_000
AUDIT_MAXLEN = 10_000


@dataclass(frozen=True, slots=True)
class Keys:
    """Names under one prefix. The scripts build the same names (lua/_prelude.lua)."""

    prefix: str = "dtq"

    def stream(self, queue: str, band: int) -> str:
        return f"{self.prefix}:stream:{queue}:p{band}"

    @property
    def dead_letters(self) -> str:
        return f"{self.prefix}:stream:dead-letter"

    @property
    def audit(self) -> str:
        return f"{self.prefix}:stream:audit"

    @property
    def schedule(self) -> str:
        return f"{self.prefix}:retry:schedule"

    @property
    def batch(self) -> str:
        return f"{self.prefix}:retry:batch"

    @property
    def claimed(self) -> str:
        return f"{self.prefix}:retry:claimed"

    def task(self, task_id: str) -> str:
        return f"{self.prefix}:task:{task_id}"

    def result(self, task_id: str) -> str:
        return f"{self.prefix}:result:{task_id}"

    def idempotency(self, queue: str, key: str) -> str:
        return f"{self.prefix}:idempotency:{queue}:{key}"

    def worker(self, worker_id: str) -> str:
        return f"{self.prefix}:worker:{worker_id}"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"

    def fetch(self, worker_id: str, lane: str) -> str:
        return f"{self.prefix}:fetch:{worker_id}:{lane}"

    def paused(self, queue: str) -> str:
        return f"{self.prefix}:queue:{queue}:paused"

    def policy(self, queue: str) -> str:
        return f"{self.prefix}:queue:{queue}:policy"

    def task_types(self, queue: str) -> str:
        return f"{self.prefix}:queue:{queue}:task_types"

    def dead(self, queue: str) -> str:
        return f"{self.prefix}:queue:{queue}:dead"

    @property
    def queues(self) -> str:
        return f"{self.prefix}:queues"

    def ledger(self, queue: str) -> str:
        return f"{self.prefix}:ledger:{queue}"

    def wake(self, queue: str) -> str:
        return f"{self.prefix}:wake:{queue}"

    @property
    def cancelled(self) -> str:
        return f"{self.prefix}:cancelled"

    @property
    def recent(self) -> str:
        return f"{self.prefix}:tasks:recent"

    @property
    def lock(self) -> str:
        return f"{self.prefix}:lock:scheduler"

    @property
    def audit_server(self) -> str:
        return f"{self.prefix}:audit:server"

    @property
    def events(self) -> str:
        return f"{self.prefix}:events"

    def nudge(self, worker_id: str) -> str:
        return f"{self.prefix}:nudge:{worker_id}"
