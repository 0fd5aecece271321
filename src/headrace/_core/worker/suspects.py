"""Suspects run one at a time in a worker's process. A suspect is a job whose holder died twice.

A suspect starts when its process holds no other job, so that a death is its own. Until then the
process leases nothing new, for the length of a lease at most. While the suspect runs, it leases
nothing new either, for the length of a lease at first, and longer with each death. So a long job
holds up others for a bounded time. No two suspects run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attrs import define

from headrace._core.effects import Call, HeldJob, Now, Wake

if TYPE_CHECKING:
    from headrace._core.worker.consumer import Consumer


@define(eq=False)
class Suspects:
    members: Sequence[Consumer] = ()
    holder: Consumer | None = None  # it holds a suspect, or leases it when no other job is left
    job: HeldJob | None = None  # `None`: other jobs are still to end
    until: float = 0.0  # when the others lease again at the latest; 0: they do

    def bar(self, consumer: Consumer, fresh: Sequence[HeldJob] = ()) -> bool:
        """Tell whether *consumer* must lease nothing now. It may hold *fresh*, which it has just
        leased."""
        if self.holder is None or not self.until:
            return False
        return self.job is not None or consumer is not self.holder or self.others_run(fresh)

    def may_come(self, consumer: Consumer) -> Literal[0, 1, 2]:
        """Tell whether a call of *consumer* may bring a suspect. 1 means after other jobs, 2 before
        them."""
        if self.job is not None or (self.holder not in (None, consumer) and self.until):
            return 0
        return 1 if self.holder is None else 2

    def others_run(self, fresh: Sequence[HeldJob] = ()) -> bool:
        these = set(map(id, fresh))
        return any(id(claim) not in these for member in self.members for claim in member.kept())

    def clear(self) -> Call[None]:
        self.holder = self.job = None
        self.until = 0.0
        yield Wake(everyone=True)


def admitted(consumer: Consumer, fresh: Sequence[HeldJob]) -> Call[Sequence[HeldJob]]:
    """Return the leased jobs that may start now. Give the others back. A suspect comes alone."""
    suspects = consumer.suspects
    suspect = next((held for held in fresh if held.deaths), None)
    if suspect is not None:
        now = yield from Now()
        lease = consumer.ops.settings.lease
        if _starts(consumer, suspect, now + lease * (suspect.deaths - 1)):
            return fresh
        if suspects.holder is None:
            suspects.until = now + lease
            suspects.holder = consumer
    elif not suspects.bar(consumer, fresh):
        if suspects.holder is consumer and suspects.job is None:  # another process has the suspect
            yield from suspects.clear()
        return fresh
    consumer.give_back([fresh])
    consumer.leasing.available = True
    return ()


def _starts(consumer: Consumer, suspect: HeldJob, until: float) -> bool:
    """Tell whether *suspect* may start now. It may if nothing else runs, or has ended in time.
    Others lease again at *until*.
    """
    suspects = consumer.suspects
    if not suspects.may_come(consumer):
        return False
    overdue = suspects.holder is not None and not suspects.until
    before = suspects.holder, suspects.until
    suspects.until = until
    suspects.holder = consumer
    suspects.job = suspect  # first: then other threads see it, or we see their jobs
    if not overdue and (
        any(member.leasing.asking for member in suspects.members if member is not consumer)
        or suspects.others_run([suspect])
    ):
        suspects.job = None
        suspects.holder, suspects.until = before
        return False
    return True


def let_go_on(consumer: Consumer) -> Call[None]:
    """Let consumers lease again, if the suspect has ended, the other jobs have ended, or the time
    is over."""
    suspects = consumer.suspects
    holder = suspects.holder
    job = suspects.job
    if holder is not None and job is not None and job not in holder.kept():
        yield from suspects.clear()
    elif suspects.until and (yield from Now()) >= suspects.until:
        suspects.until = 0.0
        yield Wake(everyone=True)
    elif job is None and consumer is not holder and not suspects.others_run():
        yield Wake(owner=holder)
