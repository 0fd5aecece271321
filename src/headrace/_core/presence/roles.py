"""The role that reports the facts of a worker to each of its queues. It also obeys requests of
operators to be quiet, to go on, to stop, or to run another number of handlers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace._core.effects import (
    Describe,
    Log,
    Now,
    Phase,
    Resize,
    Role,
    Sleep,
    Stop,
    Wake,
    send_all,
    send_each,
)
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.roles import NamedRole
from headrace._core.worker.shared_read import Place, by_place
from headrace._core.worker.slots import sharing
from headrace._protocol.features import presence as presence_ops, trends as trend_ops
from headrace._protocol.limits import OPS_PER_TRIP, POLL_S

# seconds between two reports; a message of an operator brings the next one forward
REPORT_EVERY_S = 10.0


def report(worker: Lifecycle, consumers: Sequence[Consumer]) -> Role:
    """Report to the queues in which the worker is active, or an operator asks for something. Send
    the tallies, until the worker has stopped.
    """
    now = yield from Now()
    for one in consumers:
        one.jobs.tally.since = now
    while worker.phase is Phase.RUNNING:
        there = [one for one in consumers if one.registered and not one.leasing.shard_gone]
        due = [
            one for one in there if one.registration.asked or one.leasing.quiet or not one.idle.on
        ]
        facts = yield from Describe()
        for start in range(0, len(due), OPS_PER_TRIP):
            some = due[start : start + OPS_PER_TRIP]
            for one in some:
                one.registration.asked = False
            ops = [
                presence_ops.report(
                    one.ops, one.name, {**facts, **one.facts()}, quiet=one.leasing.quiet
                )
                for one in some
            ]
            for one, (request, wanted) in zip(some, (yield from send_all(ops)), strict=True):
                one.leasing.wanted = wanted
                yield from _obey(one, request)
                yield from resize(one)
        yield from _tell(consumers, str(facts["host"]))
        waits = any(not one.registered and not one.leasing.shard_gone for one in consumers)
        yield Sleep(POLL_S if waits else REPORT_EVERY_S)
    while worker.phase < Phase.STOPPED:
        yield Sleep(REPORT_EVERY_S)
    facts = yield from Describe()
    yield from _tell(consumers, str(facts["host"]))


def _tell(consumers: Sequence[Consumer], host: str) -> Role:
    now = yield from Now()
    said = [(one, one.counted(now, host)) for one in consumers if not one.leasing.shard_gone]
    ops = [trend_ops.tally(one.ops, text) for one, text in said if text]
    yield from send_each(ops)


def _obey(consumer: Consumer, request: str) -> Role:
    queue = consumer.ops.keys.queue
    worker = consumer.name
    if request == "stop":
        yield Log(
            "worker_asked_to_stop", f"an operator of queue {queue!r} asks worker {worker} to stop"
        )
        yield Stop()
        return
    quiet = request == "quiet"
    if quiet == consumer.leasing.quiet:
        return
    consumer.leasing.quiet = quiet
    if quiet:
        yield Log(
            "worker_quiet",
            f"worker {worker} leases no more jobs of queue {queue!r}: an operator asks for it",
        )
    else:
        yield Log("worker_resumed", f"worker {worker} leases jobs of queue {queue!r} again")
        consumer.leasing.available = True
    yield Wake(owner=consumer)


def resize(consumer: Consumer) -> Role:
    """Run as many handlers as an operator wants, or as the code says. All shards that know a number
    have the same, and a new shard may not know it yet.
    """
    before = consumer.concurrency
    own = consumer.handler.concurrency
    shards = [one.leasing for one in sharing(consumer) if not one.leasing.shard_gone]
    number = max((one.wanted for one in shards), default=0) or own
    if consumer.handler.children is not None:
        number = min(number, own)  # a job without a child would only wait for one
    if number == before:
        return
    yield Resize(consumer, number)
    if consumer.concurrency != before:
        whose = "its code says so" if number == own else "an operator asks for it"
        yield Log(
            "worker_resized",
            f"worker {consumer.name} runs {consumer.concurrency} handlers of queue "
            f"{consumer.ops.keys.queue!r} at once: {whose}",
        )


def presence_roles(
    worker: Lifecycle, consumers: Sequence[Consumer], place: Place
) -> Iterator[NamedRole]:
    for group in by_place(consumers, place):
        yield "report", report(worker, group), None, "work"
