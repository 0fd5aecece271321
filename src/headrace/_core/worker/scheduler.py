"""The scheduler role: enqueues the jobs of recurring schedules when they are due. It learns the next due time from the
upkeep role, and sleeps until then.
"""

from __future__ import annotations

from headrace._core.effects import Log, Phase, Role, Send, Sleep, current_time, send
from headrace._core.worker.consumer import Consumer


def tick(consumer: Consumer) -> Role:
    """Enqueue the jobs of schedules that are due. Of several workers the first one wins; the others find it done."""
    told: set[str] = set()
    while consumer.phase is Phase.RUNNING:
        now = yield from current_time()
        if consumer.tick is None or consumer.tick > now:
            yield Sleep(1.0 if consumer.tick is None else min(1.0, consumer.tick - now))
            continue
        turn = consumer.ops.turn((yield from send(consumer.ops.ticking())))
        now = yield from current_time()
        consumer.tick = None if turn.wait is None else now + turn.wait
        if turn.ops:
            yield Send(turn.ops)
        for text in sorted(set(turn.wrong) - told):
            told.add(text)
            yield Log(text)
