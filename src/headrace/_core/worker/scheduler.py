"""The scheduler role: enqueues the jobs of recurring schedules when they are due. It learns the next due time from the
upkeep role, and sleeps until then.
"""

from __future__ import annotations

from headrace._core.calls import run_due_schedules
from headrace._core.effects import Log, Phase, Role, Sleep, current_time
from headrace._core.worker.consumer import Consumer


def tick(consumer: Consumer) -> Role:
    """Enqueue the jobs of schedules that are due. Of several workers the first one wins; the others find it done."""
    logged: set[str] = set()
    while consumer.phase is Phase.RUNNING:
        now = yield from current_time()
        if consumer.tick_at is None or consumer.tick_at > now:
            yield Sleep(1.0 if consumer.tick_at is None else min(1.0, consumer.tick_at - now))
            continue
        plan = yield from run_due_schedules(consumer.ops)
        now = yield from current_time()
        consumer.tick_at = None if plan.wait is None else now + plan.wait
        for text in sorted(set(plan.wrong) - logged):
            logged.add(text)
            yield Log("schedule_failed", text)
