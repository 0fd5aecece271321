"""The role that puts in the jobs of schedules. `keep` learns that there are any; without, this one only waits."""

from __future__ import annotations

from typing import Any, cast

from headrace._effects import Now, Pause, Phase, Role, Say, Send
from headrace._feed import Feed


def tick(feed: Feed) -> Role:
    """Put in the jobs of what recurs as it comes due. Whoever of several comes first wins; the others see it done."""
    told: set[str] = set()
    while feed.phase is Phase.RUNNING:
        now = cast(float, (yield Now()))
        if feed.tick is None or feed.tick > now:
            yield Pause(1.0 if feed.tick is None else min(1.0, feed.tick - now))
            continue
        turn = feed.ops.turn(cast("list[Any]", (yield Send([feed.ops.ticking()])))[0])
        now = cast(float, (yield Now()))
        feed.tick = None if turn.wait is None else now + turn.wait
        if turn.ops:
            yield Send(turn.ops)
        for text in sorted(set(turn.wrong) - told):
            told.add(text)
            yield Say(text)
