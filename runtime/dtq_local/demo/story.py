"""What happens every time, whatever the seed: the scenes that show each status, each list and each action at least once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dtq_core.retry import Failed
from dtq_local.demo.cast import KIND, Kind
from dtq_local.demo.crew import Plan

if TYPE_CHECKING:
    from dtq_local.demo.day import Day

Scene = Callable[[], Awaitable[None]]
_SLOW_HOOK = Failed("RetryableError", "HTTP 503 from https://partner7.example/hooks: maintenance until noon", True)


def tell(day: Day) -> int:
    """Put the scenes on the day's calendar; how many tasks they submit."""
    return sum(scene(day) for scene in (_dead_letters, _changes_of_mind, _a_night_off, _a_lost_worker, _right_now))


def _dead_letters(day: Day) -> int:
    """Four of one partner: one is requeued and succeeds, one is discarded. And two that fail without a letter."""
    hook = KIND["webhook.deliver"]
    hopeless = Plan((_SLOW_HOOK,) * hook.max_attempts, seconds=2.0)
    ids: list[str] = []

    async def submit() -> None:
        ids.append(await day.submit(hook, hopeless))

    for n in range(4):
        day.at(day.before_end(8) + n * 60_000, submit)
    day.at(day.before_end(2.5), lambda: day.requeue(ids[0]))
    day.at(day.before_end(2.4), lambda: day.discard(ids[1]))
    rollup = KIND["metrics.rollup"]
    for n in range(2):
        day.at(day.before_end(7) + n * 300_000, _submits(day, rollup, Plan(rollup.troubles[:1], seconds=1.0)))
    return 6


def _changes_of_mind(day: Day) -> int:
    """Two delayed mails are cancelled, and a report while it runs."""
    ids: list[str] = []

    async def later() -> None:
        ids.append(await day.submit(KIND["mail.send"], delay_seconds=5400.0))

    async def report() -> None:
        ids.append(await day.submit(KIND["report.render"], Plan(seconds=40.0), priority=9))

    for n in range(2):
        day.at(day.before_end(5) + n * 1000, later)
        day.at(day.before_end(4.5) + n * 9000, lambda n=n: day.cancel(ids[n]))  # type: ignore[misc]
    day.at(day.before_end(4), report)
    day.at(day.before_end(4) + 20_000, lambda: day.cancel(ids[2]))
    return 3


def _a_night_off(day: Day) -> int:
    """Reports are paused for an hour; what was of use for ten minutes only has expired when they go on."""
    day.at(day.before_end(18), lambda: day.pause("reports"))
    for n in range(3):
        submit = _submits(day, KIND["report.render"], None, metadata={"ttl_seconds": 600})
        day.at(day.before_end(17.8) + n * 60_000, submit)
    day.at(day.before_end(17), lambda: day.resume("reports"))
    return 3


def _a_lost_worker(day: Day) -> int:
    """imports-1 is killed six hours before now, in the midst of an import that its successor does again."""
    day.at(day.before_end(6) - 30_000, _submits(day, KIND["stock.import"], Plan(seconds=45.0), priority=9))
    return 1


def _right_now(day: Day) -> int:
    """What is under way when the day ends: running, waiting on a paused queue, retrying, delayed."""
    for n in range(3):
        day.at(day.before_end(0.05) + n * 7000, _submits(day, KIND["image.resize"], Plan(seconds=900.0), priority=9))
    day.at(day.before_end(0.03), _submits(day, KIND["mail.send"], Plan(seconds=600.0), priority=9))
    day.at(day.before_end(0.25), lambda: day.pause("reports"))
    for n in range(5):
        day.at(day.before_end(0.2) + n * 20_000, _submits(day, KIND["report.render"], None))
    hook = KIND["webhook.deliver"]
    for n in range(3):
        plan = Plan((_SLOW_HOOK,), seconds=1.5, delay_s=3000.0 + 600 * n)
        day.at(day.before_end(0.15) + n * 15_000, _submits(day, hook, plan, priority=9))
    for n in range(4):
        day.at(day.before_end(1) + n * 240_000, _submits(day, KIND["mail.send"], None, delay_seconds=7200.0 * (n + 2)))
    return 16


def _submits(day: Day, kind: Kind, plan: Plan | None, **fields: object) -> Scene:
    async def scene() -> None:
        await day.submit(kind, plan, **fields)

    return scene
