"""Idle mode: a worker with many queues stops heartbeats and sweeps for queues that have been inactive.

A worker at rest is registered for long. Before it leases again it beats, which tells its peers; those that rest as well
look after the queue from then on, as they do where a worker begins. So nothing is leased unseen: where one works, the
others look on.
"""

from __future__ import annotations

from attrs import define

EACH_S = 0.25  # seconds for each queue between two calls for one of them: so many queues take few calls a second
LEAST_S = 30.0  # the least, and the most, that this comes to
MOST_S = 1200.0
SLACK_S = 120.0  # seconds for which a worker stays registered beyond that: its next call may be late
AGAIN_S = (
    30.0  # seconds until a queue in which others do not rest, or in which something was to be done, is tried again
)

CALM = 2  # the answer to `rest` where all others rest, too


@define(eq=False)
class Rest:
    """The idle mode of one consumer. The role `fetch` sets its fields, unless a comment names another."""

    on: bool = False  # it is registered for long, or is about to be: it does not beat, and beats before it leases
    calm: bool = False  # so are all others: nothing is to be looked after. `listen` takes it back
    beating: bool = False  # a beat is under way; set by the role that beats
    told: bool = False  # it hears what others tell; set by `listen`
    heard: int = 0  # times that others have told something, or may have, unheard; set by `listen`
    asked: float = 0.0  # seconds for which to rest, as soon as nothing else is to be done; set by `keep`
    timeout: float = 0.0  # seconds of the worker's usual registration; set by `keep`
    try_at: float = 0.0  # when `keep` may ask again


def duration(queues: int) -> float:
    """Return the seconds between two calls for one of so many queues."""
    return min(max(LEAST_S, EACH_S * queues), MOST_S)
