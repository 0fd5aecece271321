"""Leasing without a worker, by the terms of the queue if it has some."""

from __future__ import annotations

from attrs import define, field

from headrace._core.effects import Call, send
from headrace._core.fair.declaring import declare
from headrace._core.queue.leasing import DirectLeaser, new_name
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Grant

# calls that look at more jobs, or lines, behind a first one: each takes about 2 ms of the server
LOOKS_AT_MOST = 20


@define
class FairLeaser(DirectLeaser):
    """Leases by the terms of its queue. It declares its own terms first, if it has some, and looks
    at all new jobs."""

    undeclared: bool = field(init=False)  # the server is to be told, or asked, before a lease
    said: bool = False  # the server has been told under this name

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.undeclared = self.fair = self.ops.settings.terms is not None

    def prepare(self) -> Call[None]:
        if self.undeclared:
            answer = yield from declare(self.ops, self.name, again=self.said)
            self.undeclared = False
            self.said = True
            # the queue may have other terms than ours: they count
            self.fair = answer.structure != ""

    def renamed(self) -> None:
        self.undeclared = self.ops.settings.terms is not None
        self.said = False

    def note(self, grant: Grant) -> Call[None]:
        """Follow the terms that the queue has by now, and look at the new jobs that the call has
        not reached."""
        if grant.elsewhere:
            self.fair = grant.structure != ""
            self.undeclared = not self.fair and self.ops.settings.terms is not None
        for _ in range(LOOKS_AT_MOST if grant.unread else 0):
            if not (yield from send(fair_ops.line_up(self.ops, self.name))):
                break


def leaser(ops: Ops) -> DirectLeaser:
    return FairLeaser(ops, new_name())
