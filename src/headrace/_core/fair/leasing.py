"""Leasing without a worker from a queue with terms."""

from __future__ import annotations

from attrs import define

from headrace._core.effects import Step, send
from headrace._core.fair.declaring import declare
from headrace._core.queue.leasing import DirectLeaser, new_name
from headrace._protocol import fair_ops
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Grant

LOOKS_AT_MOST = 20  # calls that look at new jobs behind one lease call: each takes about 2 ms of the server


@define
class FairLeaser(DirectLeaser):
    """Leases by the terms of its queue: it declares them first, and looks at all new jobs."""

    undeclared: bool = True

    def prepare(self) -> Step[None]:
        """Declare the terms, unless the server knows them. Raises `TermsMismatch`."""
        if self.undeclared:
            yield from declare(self.ops, self.name)
            self.undeclared = False

    def note(self, grant: Grant) -> Step[None]:
        """Look at the new jobs that the call has not reached."""
        self.undeclared = grant.structure == ""
        for _ in range(LOOKS_AT_MOST if grant.unread else 0):
            if not (yield from send(fair_ops.line_up(self.ops, self.name))):
                break


def leaser(ops: Ops) -> DirectLeaser:
    """Make the object that leases jobs of a queue, or a shard, without a worker."""
    return DirectLeaser(ops, new_name()) if ops.settings.terms is None else FairLeaser(ops, new_name())
