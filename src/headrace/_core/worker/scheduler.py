"""The role that puts in the jobs of schedules. `keep` learns that there are any; without, this one only waits."""

from __future__ import annotations

from headrace._core.effects import Log, Phase, Role, Send, Sleep, current_time, send
from headrace._core.worker.consumer import Consumer


def tick(consumer: Consumer) -> Role:
    """Put in the jobs of what recurs as it comes due. Whoever of several comes first wins; the others see it done."""
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
