"""What a worker does, as generators of effects: no thread, no task, no clock, no socket.

One `Feed` per handler: `fetch` leases and settles, in one round trip; `listen` blocks on the server while
there is nothing; both end by `phase`. `keep` renews, reclaims and promotes for all feeds; `beat` says
that the worker lives. An engine performs the effects, runs handlers, and calls `finish`.

Rules: nothing is leased that can't start soon. A lease is settled once. What has not started goes back to the
front when the worker stops. Leases are renewed only for jobs that have had theirs for a third of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from attrs import define

from headrace._effects import Abort, Hear, Now, Pause, Phase, Poke, Role, Send
from headrace._event import Heard
from headrace._feed import Feed
from headrace._job import Entered, Reclaimed
from headrace._judge import overran
from headrace._op import Op
from headrace._settings import WorkerSettings

HEAR = 5.0  # seconds a listening lasts at most
DEAF = 30.0  # seconds between tries where the server does not let us listen
LOOK = 0.75  # of a heartbeat: how often to look for the dead; the rest of it is for what happens then


@define(eq=False)
class Roles:
    """The roles of a whole worker."""

    settings: WorkerSettings
    feeds: Sequence[Feed]
    phase: Phase = Phase.RUNNING

    def turn(self, phase: Phase) -> None:
        """Go on to *phase*, never back."""
        self.phase = max(self.phase, phase)
        for feed in self.feeds:
            feed.phase = self.phase

    def beat(self) -> Role:
        """Say that we live, every heartbeat; learn it when our peers think otherwise."""
        while self.phase < Phase.STOPPED:
            feeds = list(self.feeds)
            fresh = [not feed.registered for feed in feeds]
            names = [feed.name for feed in feeds]
            now = cast(float, (yield Now()))
            alive = cast("list[bool | Entered]", (yield Send([feed.sign(self.settings, now) for feed in feeds])))
            wait = self.settings.heartbeat
            if cast(float, (yield Now())) - now >= wait:
                wait = 0.0  # what took so long is old news
            for feed, new, name, yes in zip(feeds, fresh, names, alive, strict=True):
                if feed.name != name:
                    wait = 0.0  # it died and was renamed while we asked
                elif isinstance(yes, Entered) and not feed.entry.admits(yes, now):
                    wait = min(wait, self.settings.heartbeat / 4)
                    continue
                elif yes:
                    feed.beaten, feed.registered = now, True
                else:
                    yield from feed.died()
                    wait = 0.0
                if new:
                    yield Poke()
            yield Pause(wait)

    def keep(self) -> Role:
        """Renew our leases; put back the jobs of the dead and of expired leases; promote what is due."""
        spans = [LOOK * self.settings.heartbeat]
        for feed in self.feeds:
            spans += (feed.ops.settings.lease / 6, (feed.handler.deadline or 60.0) / 4)
        tick = min(spans)
        while self.phase < Phase.HALTING:
            now = cast(float, (yield Now()))
            hurry = further = False
            for feed in self.feeds:
                for held in feed.overdue(now):
                    feed.end(held, TimeoutError(overran(feed.of(held).deadline)))
                    yield Abort([held])
                    yield Poke()
                renew = [held for held in feed.renewals(now) if held.worker == feed.name]
                ops: list[Op[Any]] = [feed.ops.renew(renew)] if renew else []
                if feed.registered:
                    ops.append(feed.ops.reclaim(feed.name, self.settings.timeout, feed.cursor))
                yield from feed.tend()
                yield from feed.measure()
                if not ops:
                    continue
                replies = cast("list[Any]", (yield Send(ops)))
                if renew:
                    yield from feed.renewed(renew, replies[0])
                if feed.registered and isinstance(replies[-1], Reclaimed):
                    if feed.heard(cast(float, (yield Now())), replies[-1]):
                        yield Poke(whose=feed)
                    hurry = hurry or replies[-1].more
                    further = further or feed.cursor != "-"
            yield Pause(0.01 if hurry else min(tick, 0.25) if further else tick)

    def hear(self) -> Role:
        """Learn at once which leases somebody took from us. What nobody hears, the next renewal finds out."""
        feeds = {feed.ops.keys.part("control"): feed for feed in self.feeds}
        pause = 0.05
        while self.phase < Phase.HALTING:
            heard = cast(Heard, (yield Hear(tuple(feeds), HEAR)))
            if heard.state == "anew":
                pause = 0.05
                for feed in self.feeds:
                    yield from feed.check()
            for channel, message in heard.messages:
                if channel in feeds:
                    yield from feeds[channel].told(message)
            if heard.state in ("cut", "refused"):
                yield Pause(DEAF if heard.state == "refused" else pause)
                pause = min(2 * pause, 2.0)
