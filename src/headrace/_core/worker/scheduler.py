"""The scheduler role. It enqueues the jobs of recurring schedules when they are due. It learns the
next due time from the role `reclaim`, and sleeps until then. It also declares the schedules of the
code to the server.
"""

from __future__ import annotations

from headrace._core.effects import Log, Now, Phase, Role, Sleep, send
from headrace._core.queue.schedules import run_due_schedules, schedule
from headrace._core.worker.consumer import IDLE_S, Consumer
from headrace._protocol.features import schedules as schedule_ops
from headrace.errors import TooManySchedules, describe_error

DECLARE_EVERY_S = 30.0  # seconds after which a worker repeats which schedules its code declares


def tick(consumer: Consumer) -> Role:
    """Enqueue the jobs of due schedules. If several workers try, the first one wins, and the others
    find nothing to do.
    """
    logged: set[str] = set()
    while consumer.phase is Phase.RUNNING:
        yield from _declare(consumer)
        now = yield from Now()
        if consumer.timers.tick_at is None or consumer.timers.tick_at > now:
            most = IDLE_S if consumer.recurring is None else 1.0
            yield Sleep(
                most
                if consumer.timers.tick_at is None
                else min(most, consumer.timers.tick_at - now)
            )
            continue
        plan = yield from run_due_schedules(consumer.ops)
        now = yield from Now()
        consumer.timers.tick_at = None if plan.wait is None else now + plan.wait
        for text in sorted(set(plan.wrong) - logged):
            logged.add(text)
            yield Log("schedule_failed", text)


def ticks(consumer: Consumer) -> bool:
    return not (
        consumer.timers.tick_at is None
        and consumer.recurring is None
        and consumer.phase is Phase.RUNNING
    )


def _declare(consumer: Consumer) -> Role:
    """Declare the code's schedules when the worker starts, and every 30 seconds. Make the missing
    ones.

    In a sharded queue, a schedule is declared in each shard of its name. It is made in the shard
    that takes new jobs, after its remains in older shards were moved there.
    """
    declared = consumer.recurring
    name = consumer.name
    now = yield from Now()
    if declared is None or not consumer.registered:
        return
    if declared.declared_as == name and now < declared.declare_again_at:
        return
    ops = consumer.ops
    shared = consumer.shared
    takes = True if shared is None else shared.takes_schedules(ops)
    if takes is None:  # older shards have the schedules, if any
        return
    changed, ended = yield from send(schedule_ops.declare_schedules(ops, declared, name))
    for gone in ended:
        yield Log(
            "schedule_ended",
            f"{gone!r} of queue {ops.keys.queue!r} is declared by no worker any more",
        )
    if takes and (changed or declared.declared_as != name):
        for wanted in declared.schedules:
            if shared is not None:
                yield from shared.gather_schedule(ops, wanted.name)
            try:
                yield from schedule(
                    ops,
                    schedule_ops.schedule(
                        ops, wanted.name, wanted.timing, wanted.missed, wanted.job
                    ),
                )
            except TooManySchedules as error:
                yield Log(
                    "schedule_failed",
                    f"{wanted.name!r} of queue {ops.keys.queue!r}: {describe_error(error)}",
                )
        consumer.timers.tick_at = now
    declared.declared_as = name
    declared.declare_again_at = now + DECLARE_EVERY_S
