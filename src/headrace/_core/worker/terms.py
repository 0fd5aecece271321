"""The terms of a queue, as its consumer obeys them. The queue's terms count, whatever the worker
declares."""

from __future__ import annotations

from headrace._core.effects import LineUp, Log, Role, Wake
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.state import FairLeasing
from headrace._model.terms import in_words
from headrace._protocol.replies import Grant

JOBS_WITHOUT_KEY = 100  # jobs leased without a header of the terms, after which it is reported


def heed(consumer: Consumer, structure: str) -> Role:
    """Lease by the terms that the queue has, and log once that the worker declares others."""
    fair = consumer.leasing.fair
    if fair is None:
        fair = consumer.leasing.fair = FairLeasing("", undeclared=False)
        yield LineUp()
    queue = consumer.ops.keys.queue
    changed = structure != fair.queues.text
    if changed:
        fair.obey(structure)
        consumer.leasing.last_piggyback.clear()  # it calls another script
        consumer.leasing.available = True
        if fair.known:
            yield Log("terms_changed", f"queue {queue!r} has the terms {in_words(structure)} now")
    fair.known = True
    if not fair.differs:
        fair.logged = False
    elif not fair.logged:
        fair.logged = True
        if not _told_elsewhere(consumer):
            text = (
                f"queue {queue!r} has the terms {in_words(structure)}, and this worker declares {in_words(fair.own)}: "
                "it obeys the queue's. They change when all workers of the queue declare the same others, or by "
                "`headrace redeclare`"
            )
            yield Log("terms_differ", text)
    if changed:
        yield Wake(owner=consumer)


def note_terms(consumer: Consumer, grant: Grant) -> Role:
    fair = consumer.leasing.fair
    if grant.elsewhere and not grant.structure and fair is not None and fair.own:
        # the terms are gone, with their queue or by an operator: the server knows
        fair.undeclared = True
        yield Wake(owner=consumer)
        return
    if grant.structure is not None:
        yield from heed(consumer, grant.structure)
    fair = consumer.leasing.fair
    if fair is None or not fair.queues.text:
        return
    if grant.unread:
        fair.unread = True
        yield Wake(owner=consumer)
    if not fair.absent:
        return
    fair.jobs += len(grant.claims)
    for claim in grant.claims:
        fair.absent.difference_update(claim.job.headers)
    if fair.jobs >= JOBS_WITHOUT_KEY:
        for name in sorted(fair.absent):
            text = (
                f"queue {consumer.ops.keys.queue!r} tells jobs apart by the header {name!r}, which none of the last "
                f"{fair.jobs} had: give it as headers= of an enqueue, or as the argument of a task"
            )
            yield Log("key_unknown", text)
        fair.absent.clear()


def _told_elsewhere(consumer: Consumer) -> bool:
    members = () if consumer.shared is None else consumer.shared.members
    return any(
        one.leasing.fair is not None and one.leasing.fair.logged
        for one in members
        if one is not consumer
    )
