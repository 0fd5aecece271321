"""Idle mode. A worker with many queues stops heartbeats and sweeps for queues that have been
inactive.

An idle worker is registered for a long time. Before it leases again, it sends a heartbeat, which
notifies its peers. Idle peers then resume sweeping the queue, as they do when a new worker starts.
As long as any worker is active in a queue, all other workers monitor it.
"""

from __future__ import annotations

from headrace._core.effects import Now, Role, Wake, send
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.renewal import died
from headrace._protocol.features import presence as presence_ops
from headrace._protocol.op import Op

LEAST_S = 30.0  # the shortest and the longest time between two calls for one queue
MOST_S = 1200.0
# seconds for which a worker stays registered beyond that time: its next call may be late
SLACK_S = 120.0
AGAIN_S = LEAST_S  # seconds until the next try, if other workers were active or the queue had work

ALL_IDLE = 2  # the answer to `rest` if all other workers are idle, too


def duration(queues: int) -> float:
    return min(max(LEAST_S, 0.25 * queues), MOST_S)  # 4 calls a second for all queues


def ask_for_idle(worker: Lifecycle, consumer: Consumer, now: float) -> Role:
    """Ask `fetch` to register this consumer for a long time, which differs between consumers to
    spread calls."""
    idle = consumer.idle
    idle.try_at = now + AGAIN_S
    idle.timeout = worker.settings.timeout
    idle.asked = duration(len(worker.consumers)) * (0.5 + int(consumer.name[-2:], 16) / 512)
    yield Wake(owner=consumer)


def enter_idle(consumer: Consumer) -> Role:
    """Register an idle queue for a long time. No lease call of `fetch` is under way, as only
    `fetch` calls this."""
    idle = consumer.idle
    name = consumer.name
    seconds = idle.asked
    idle.asked = 0.0
    if not consumer.may_idle():
        idle.try_at = 0.0
        return
    began = idle.on
    # set this before the checks for a beat under way, which would undo it, and for a lease call
    idle.on = True
    if not began and (idle.beating or not consumer.may_idle()):
        idle.on = False
        idle.try_at = 0.0
        consumer.timers.sweep_at = 0.0  # the next sweep, a tick from now, asks again
        return
    activity = idle.activity
    verdict = yield from send(presence_ops.rest(consumer.ops, name, seconds + SLACK_S))
    now = yield from Now()
    if consumer.name != name:
        return
    idle.try_at = now + AGAIN_S
    if verdict < 0:
        yield from died(consumer)
    elif verdict == 0:
        idle.on = idle.all_idle = False
        consumer.timers.sweep_at = 0.0
    elif verdict == ALL_IDLE:
        idle.all_idle = True
        consumer.timers.sweep_at = now + seconds
        if idle.activity != activity:
            note_activity(consumer)


def leave_idle(consumer: Consumer) -> list[Op[bool]]:
    """Leave idle mode before a lease call. Return the heartbeat to send first, if the consumer was
    idle."""
    idle = consumer.idle
    idle.asked = 0.0
    if not idle.on:
        return []
    idle.on = idle.all_idle = False
    consumer.timers.sweep_at = 0.0
    return [consumer.ops.beat(consumer.name, idle.timeout)]


def note_activity(consumer: Consumer) -> bool:
    """Record that other workers may be active. Return true if the queue was unswept, and must be
    swept now."""
    idle = consumer.idle
    all_idle = idle.all_idle
    idle.all_idle = False
    idle.activity += 1
    if all_idle:
        consumer.timers.sweep_at = 0.0
    return all_idle
