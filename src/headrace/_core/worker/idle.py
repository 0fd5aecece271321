"""Idle mode: a worker with many queues stops heartbeats and sweeps for queues that have been inactive.

An idle worker is registered for a long time. Before it leases again, it sends a heartbeat, which notifies its peers.
Idle peers then resume sweeping the queue, as they do when a new worker starts. As long as any worker is active in a
queue, all other workers monitor it.
"""

from __future__ import annotations

from attrs import define

EACH_S = 0.25  # seconds for each queue between two calls for one queue: 4 calls a second for all queues
LEAST_S = 30.0  # the shortest and the longest time between two calls for one queue
MOST_S = 1200.0
SLACK_S = 120.0  # seconds for which a worker stays registered beyond that time: its next call may be late
AGAIN_S = 30.0  # seconds until the next try, if other workers were active or the queue had work

ALL_IDLE = 2  # the answer to `rest` if all other workers are idle, too


@define(eq=False)
class IdleMode:
    """The idle mode of one consumer. The role `fetch` sets its fields, unless a comment names another."""

    on: bool = False  # registered for long, or about to be: no heartbeats, except one before the next lease call
    all_idle: bool = False  # all other workers are idle, too: the queue needs no sweeps. `listen` resets it
    beating: bool = False  # a heartbeat is under way; set by the role `beat`
    subscribed: bool = False  # subscribed to activity notices; set by `listen`
    activity: int = 0  # number of activity notices, received or possibly missed; set by `listen`
    asked: float = 0.0  # seconds for which to be idle, once the queue has no work; set by `reclaim`
    timeout: float = 0.0  # seconds of the worker's usual registration; set by `reclaim`
    try_at: float = 0.0  # when `reclaim` may ask again


def duration(queues: int) -> float:
    """Return the seconds between two calls for one queue of *queues*."""
    return min(max(LEAST_S, EACH_S * queues), MOST_S)
