"""What a worker does, as generators of effects: no thread, no task, no clock, no socket.

One `Consumer` per handler: `fetch` leases and settles, in one round trip; `listen` blocks on the server while
there is nothing; both end by `phase`. `keep` renews, reclaims and promotes for all feeds; `beat` says
that the worker lives. An engine performs the effects, runs handlers, and calls `finish`.

Rules: nothing is leased that can't start soon. A lease is settled once. What has not started goes back to the
front when the worker stops. Leases are renewed only for jobs that have had theirs for a third of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from attrs import define, field

from headrace._core.effects import Abort, Phase, Role, Sleep, Wake, current_time, receive, send, send_all
from headrace._core.verdicts import overran
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.persistent import PersistentConsumer
from headrace._core.worker.scheduler import tick
from headrace._model.settings import WorkerSettings
from headrace._protocol.answers import Entered, Reclaimed
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Op

RECEIVE_S = 5.0  # seconds a listening lasts at most
RETRY_UNHEARD_S = 30.0  # seconds between tries where the server does not let us listen
SWEEP_PER_HEARTBEAT = 0.75  # of a heartbeat: how often to look for the dead; the rest of it is for what happens then
LATEST = 1.0  # seconds between two looks at most: an expired lease is found as soon

Channel = Literal["work", "pulse", "ears"]  # connections of their own: a heartbeat waits for no other call; a blocked
# read can be closed


@define(eq=False)
class Roles:
    """The roles of a whole worker."""

    settings: WorkerSettings
    consumers: Sequence[Consumer]
    phase: Phase = Phase.RUNNING

    def advance_to(self, phase: Phase) -> None:
        """Go on to *phase*, never back."""
        self.phase = max(self.phase, phase)
        for consumer in self.consumers:
            consumer.phase = self.phase

    def running(self, now: float) -> bool:
        """Whether handlers run that a stop waits for."""
        return self.phase < Phase.HALTING and any(consumer.running(now) for consumer in self.consumers)

    def kept(self) -> list[tuple[str, str]]:
        """Queue and id of every job that we could not give back."""
        claims = {claim.entry: claim for consumer in self.consumers if consumer.registered for claim in consumer.kept()}
        return [(claim.job.queue, claim.job.id) for claim in claims.values()]

    def leave(self) -> Role:
        """Unregister, which gives back all that we still hold."""
        for consumer in (consumer for consumer in self.consumers if consumer.registered):
            more = "1"
            while more == "1":
                _, more = yield from send(consumer.ops.leave(consumer.name))
            consumer.registered = False

    def all(self, fetchers: int = 1) -> Iterator[tuple[str, Role, Consumer | None, Channel]]:
        """Every role: its name, its generator, the consumer that it is of, and its channel. *fetchers*: so many fetch
        for each consumer."""
        yield "beat", self.beat(), None, "pulse"
        yield "keep", self.keep(), None, "work"
        yield "hear", self.hear(), None, "work"
        for consumer in self.consumers:
            yield "tick", tick(consumer), consumer, "work"
            if isinstance(consumer, PersistentConsumer):
                yield "watch", consumer.watch(self.settings), consumer, "work"
        for consumer in self.consumers:
            yield "listen", consumer.listen(), consumer, "ears"
        for consumer in self.consumers:
            for _ in range(fetchers):
                yield "fetch", consumer.fetch(), consumer, "work"

    def beat(self) -> Role:
        """Say that we live, every heartbeat; learn it when our peers think otherwise."""
        while self.phase < Phase.STOPPED:
            consumers = list(self.consumers)
            fresh = [not consumer.registered for consumer in consumers]
            names = [consumer.name for consumer in consumers]
            now = yield from current_time()
            alive = yield from send_all([consumer.sign(self.settings, now) for consumer in consumers])
            wait = self.settings.heartbeat
            if (yield from current_time()) - now >= wait:
                wait = 0.0  # what took so long is old news
            for consumer, new, name, yes in zip(consumers, fresh, names, alive, strict=True):
                if consumer.name != name:
                    wait = 0.0  # it died and was renamed while we asked
                elif isinstance(yes, Entered) and not consumer.entry.admits(yes, now):
                    wait = min(wait, self.settings.heartbeat / 4)
                    continue
                elif yes:
                    consumer.beaten, consumer.registered = now, True
                else:
                    yield from consumer.died()
                    wait = 0.0
                if new:
                    yield Wake()
            yield Sleep(wait)

    def keep(self) -> Role:
        """Renew our leases; put back the jobs of the dead and of expired leases; promote what is due."""
        spans = [SWEEP_PER_HEARTBEAT * self.settings.heartbeat, self.settings.timeout / 5, LATEST]
        for consumer in self.consumers:
            spans += (consumer.ops.settings.lease / 6, (consumer.handler.deadline or 60.0) / 4)
        tick = min(spans)
        while self.phase < Phase.HALTING:
            now = yield from current_time()
            again = tick
            for consumer in self.consumers:
                for held in consumer.overdue(now):
                    consumer.end(held, TimeoutError(overran(consumer.of(held).deadline)))
                    yield Abort([held])
                    yield Wake()
                due = [held for held in consumer.renewals(now) if held.worker == consumer.name]
                yield from consumer.check(due[JOBS_PER_SCRIPT:])  # in bounded scripts, each in a round trip of its own
                renew = due[:JOBS_PER_SCRIPT]
                ops: list[Op[Any]] = [consumer.ops.renew(renew)] if renew else []
                if consumer.registered:
                    ops.append(consumer.ops.reclaim(consumer.name, self.settings.timeout))
                yield from consumer.tend()
                yield from consumer.measure()
                if not ops:
                    continue
                replies = yield from send_all(ops)
                if renew:
                    yield from consumer.renewed(renew, replies[0])
                if consumer.registered and isinstance(replies[-1], Reclaimed):
                    if consumer.heard((yield from current_time()), replies[-1]):
                        yield Wake(whose=consumer)
                    again = min(again, 0.01 if replies[-1].more else tick, replies[-1].again or tick)
            yield Sleep(again)

    def hear(self) -> Role:
        """Learn at once which leases somebody took from us. What nobody hears, the next renewal finds out."""
        consumers = {consumer.ops.keys.part("control"): consumer for consumer in self.consumers}
        pause = 0.05
        while self.phase < Phase.HALTING:
            heard = yield from receive(tuple(consumers), RECEIVE_S)
            if heard.state == "anew":
                pause = 0.05
                for consumer in self.consumers:
                    yield from consumer.check()
            for channel, message in heard.messages:
                if channel in consumers:
                    yield from consumers[channel].told(message)
            if heard.state in ("cut", "refused"):
                yield Sleep(RETRY_UNHEARD_S if heard.state == "refused" else pause)
                pause = min(2 * pause, 2.0)


@define(eq=False)
class Farewell:
    """How long a worker that stops waits for its server: as long as handlers run or answers come, and a moment more."""

    roles: Roles
    patience: float  # seconds
    now: float
    answers: int
    silent_since: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.silent_since = self.now

    def over(self, now: float, answers: int) -> bool:
        """Whether to give up; to be asked several times a second, or else we stood still, and nobody is to blame."""
        if answers != self.answers or now - self.now > 1.0 or self.roles.running(now):
            self.silent_since = now
        self.now, self.answers = now, answers
        return now - self.silent_since >= self.patience
