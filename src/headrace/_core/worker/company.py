"""Suspects run alone in a worker's process. A suspect is a job whose holder died twice: see `lua/lib/suspects.lua`.

The server knows a worker's jobs in one queue or shard. A worker that serves several of them tells each that its jobs
have company. Before a suspect starts alone, the worker withdraws this for the suspect's queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from headrace._core.effects import HeldJob, Now, Phase, Sleep, Step, Wake, send
from headrace._protocol.replies import Grant

if TYPE_CHECKING:
    from headrace._core.worker.consumer import Consumer


@define(eq=False)
class Suspect:
    """A suspect that a worker holds."""

    consumer: Consumer
    until: float  # when the other consumers lease again, if the suspect has not ended before
    proven: bool = False  # the server was told that the suspect has no company
    asked_at: float | None = None  # when other consumers wanted to start jobs beside it


@define(eq=False)
class Company:
    """The consumers of one worker, and the suspect that one of them holds."""

    members: Sequence[Consumer] = ()
    suspect: Suspect | None = None
    waiting: set[int] = field(factory=set[int])  # consumers that lease no more until they hold nothing, by identity

    @property
    def several(self) -> bool:
        """Whether the worker serves several queues, or shards."""
        return len(self.members) > 1 or any(member.shared is not None for member in self.members)

    def note(self, consumer: Consumer, grant: Grant) -> None:
        """Record whether *consumer* must lease nothing more until it holds no job."""
        if grant.alone and (consumer.jobs.held or consumer.jobs.under_way or consumer.unsettled()):
            self.waiting.add(id(consumer))
        else:
            self.waiting.discard(id(consumer))

    def shuts_out(self, consumer: Consumer) -> bool:
        """Tell whether *consumer* must lease nothing now."""
        suspect = self.suspect
        return suspect is not None and (suspect.consumer is consumer or suspect.until > 0.0)

    def beside(self, consumer: Consumer) -> bool:
        """Tell whether other consumers hold jobs."""
        return any(member.jobs.held for member in self.members if member is not consumer)


def joined(consumer: Consumer, fresh: Sequence[HeldJob], alone_for: float | None) -> Step[Sequence[HeldJob]]:
    """Admit leased jobs and return them. If another job must run alone, give them back and return none.

    *alone_for*: if the job is a suspect, seconds for which the other consumers lease nothing. The suspect waits that
    long at most for their jobs to end. 0: the others go on, and the suspect is alone only if they hold no job.
    """
    company = consumer.company
    if not fresh or (company.suspect is None and (alone_for is None or not company.several)):
        return fresh
    other = company.suspect
    free = other is None or other.consumer is consumer or (yield from _parted(company, other))
    if free and (alone_for is None or not company.several or (yield from _apart(consumer, alone_for))):
        return fresh
    consumer.give_back([fresh])
    return ()


def _apart(consumer: Consumer, alone_for: float) -> Step[bool]:
    """Wait until the other consumers hold no job, and tell the server. Return false if another suspect came first."""
    company = consumer.company
    now = yield from Now()
    mine = company.suspect = Suspect(consumer, now + alone_for if alone_for else 0.0)
    while company.suspect is mine and company.beside(consumer) and now < mine.until:
        if consumer.phase is not Phase.RUNNING:
            break
        yield Sleep(0.05)
        now = yield from Now()
    if company.suspect is mine and not company.beside(consumer):
        yield from send(consumer.ops.company(consumer.name, beside=False))
        mine.proven = True  # other consumers that want to start jobs wait for `depart`, which waits for this flag
        mine.until = (yield from Now()) + alone_for if alone_for else 0.0
    elif company.suspect is mine:
        company.suspect = None
        yield Wake(everyone=True)
    return company.suspect in (mine, None)


def _parted(company: Company, suspect: Suspect) -> Step[bool]:
    """Have the server told that *suspect* gets company. Return false if the suspect must stay alone for now."""
    now = yield from Now()
    if now < suspect.until:
        return False
    suspect.until = 0.0
    if suspect.asked_at is None:
        suspect.asked_at = now
    while company.suspect is suspect and now < suspect.asked_at + 1.0:  # unless the suspect's node is out of reach
        yield Wake(owner=suspect.consumer)
        yield Sleep(0.05)
        now = yield from Now()
    return True


def depart(consumer: Consumer) -> Step[None]:
    """Let the other consumers go on, if the time is over, or if the suspect of *consumer* has ended."""
    company = consumer.company
    suspect = company.suspect
    if suspect is None:
        return
    if suspect.until and (yield from Now()) >= suspect.until:
        suspect.until = 0.0
        yield Wake(everyone=True)
    ended = not (consumer.jobs.held or consumer.jobs.under_way or consumer.unsettled())
    if suspect.consumer is not consumer or not suspect.proven or not (ended or suspect.asked_at is not None):
        return
    yield from send(consumer.ops.company(consumer.name, beside=True))
    if company.suspect is suspect:
        company.suspect = None
    yield Wake(everyone=True)
