"""The role that a worker has for each queue with terms. It declares its own, and looks at jobs that
no lease call reached.

A lease call looks at a bounded number of new jobs, and none is sent while all handlers are busy. So
a flood of jobs of one value would hide the jobs behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace._core.effects import Log, Now, Phase, Role, Sleep, Wake, send
from headrace._core.fair.declaring import declare
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.roles import NamedRole
from headrace._core.worker.shared_read import Place
from headrace._core.worker.state import FairLeasing
from headrace._core.worker.terms import heed
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.limits import POLL_S


def line_up(consumer: Consumer) -> Role:
    """Declare the terms of the worker, and ask again while the queue has others. Look at new jobs
    while some are unread, and while all handlers are busy.
    """
    fair, ops = consumer.leasing.fair, consumer.ops
    if fair is None:
        return
    while consumer.phase is Phase.RUNNING and not consumer.leasing.shard_gone:
        now = yield from Now()
        if not consumer.registered:
            yield Sleep(POLL_S)
        elif fair.undeclared:
            fair.asked_at = now
            yield from _declare(consumer, fair)
            consumer.leasing.available = True
            yield Wake(owner=consumer)
        elif fair.differs and now - fair.asked_at >= POLL_S:
            fair.asked_at = now
            yield from _declare(consumer, fair)
        elif consumer.leasing.lines and (
            fair.unread or (consumer.jobs.held and now - fair.looked_at >= POLL_S)
        ):
            fair.looked_at = now
            fair.unread = yield from send(fair_ops.line_up(ops, consumer.name))
        else:
            yield Sleep(POLL_S)


def _declare(consumer: Consumer, fair: FairLeasing) -> Role:
    name = consumer.name
    answer = yield from declare(consumer.ops, name, again=fair.said or not fair.own)
    # it was declared dead meanwhile, and declares its terms under its new name
    if name != consumer.name:
        return
    fair.said = True
    fair.undeclared = False
    yield from heed(consumer, answer.structure)
    if not fair.differs:
        ours = consumer.ops.settings.declared()
        for text in answer.said.differences(consumer.ops.keys.queue, ours, serving=True):
            yield Log("declaration_differs", text)


def fair_roles(
    worker: Lifecycle,  # noqa: ARG001
    consumers: Sequence[Consumer],
    place: Place,  # noqa: ARG001
) -> Iterator[NamedRole]:
    return (
        ("line_up", line_up(one), one, "work") for one in consumers if one.leasing.fair is not None
    )
