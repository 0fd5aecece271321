"""The roles of a worker, as generators of effects. They have no thread, no task, no clock and no
socket.

An engine drives every role that `all_roles` names, performs its effects, runs handlers, and calls
`Consumer.begin` and `Consumer.finished`. Each role ends at a phase of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from headrace._core.effects import Role
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.control import listen
from headrace._core.worker.fetch import blocks, fetch, lines_up, wait
from headrace._core.worker.heartbeat import beat
from headrace._core.worker.lifecycle import Lifecycle, many
from headrace._core.worker.reclaimer import reclaim
from headrace._core.worker.renewal import renew
from headrace._core.worker.scheduler import tick, ticks
from headrace._core.worker.shared_read import (
    Place,
    SharedRead,
    by_place,
    everywhere,
    groups,
    wait_for_all,
    wait_for_resumed,
    wait_new,
)
from headrace._core.worker.variants import watch

# Each channel has its own connections, so a heartbeat waits for no other call, and blocked reads
# can be closed. Roles that keep our jobs use the channel of the heartbeat, which waits for no
# handler either.
Channel = Literal["work", "pulse", "blocking"]
# The name of the role, its generator, its owner (a consumer, several, or none), and its channel.
RoleOwner: TypeAlias = Consumer | SharedRead | None
NamedRole: TypeAlias = tuple[str, Role, RoleOwner, Channel]
Feature: TypeAlias = Callable[[Lifecycle, Sequence[Consumer], Place], Iterator[NamedRole]]

# Roles that a consumer wakes only if they have something to do: handlers end thousands of times a
# second.
WAKE_IF: Mapping[str, Callable[[Consumer], bool]] = {
    "wait": blocks,
    "tick": ticks,
    "line_up": lines_up,
}


def all_roles(
    worker: Lifecycle,
    fetchers: int = 1,
    place: Place = everywhere,
    members: Sequence[Consumer] | None = None,
    features: Sequence[Feature] = (),
) -> Iterator[NamedRole]:
    """Yield every role of a worker.

    *fetchers*: the number of `fetch` roles of each consumer. *place*: no role serves consumers of
    two places. *members*: these consumers instead of all. *features*: each one adds its own roles,
    and may add to the admissions of the consumers.
    """
    consumers = worker.consumers if members is None else members
    for group in by_place(consumers, place):
        yield "beat", beat(worker, group), None, "pulse"
        yield "renew", renew(worker, group), None, "pulse"
        yield "reclaim", reclaim(worker, group), None, "work"
        yield "listen", listen(worker, group), None, "work"
    for consumer in consumers:
        yield "tick", tick(consumer), consumer, "work"
        if consumer.handler.persistent:
            yield "watch", watch(consumer, worker.settings), consumer, "pulse"
    for feature in features:
        yield from feature(worker, consumers, place)
    for one in groups(consumers, place):
        if isinstance(one, SharedRead):
            yield "wait", wait_new(one), one, "blocking"
            for chunk in one.chunks():
                yield "wait", wait_for_all(one, chunk), None, "blocking"
                yield "wait", wait_for_resumed(one, chunk), None, "blocking"
        else:
            yield "wait", wait(one), one, "blocking"
    for consumer in consumers:
        for _ in range(1 if many(worker) or consumer.shared is not None else fetchers):
            yield "fetch", fetch(consumer), consumer, "work"
