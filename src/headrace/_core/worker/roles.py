"""The roles of a worker, as generators of effects: no thread, no task, no clock, no socket.

An engine drives every role that `all_roles` names, performs its effects, runs handlers, and calls `Consumer.begin` and
`Consumer.finish`. Each role ends at a phase of the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace._core.effects import Role
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.control import hear
from headrace._core.worker.fetch import fetch, listen
from headrace._core.worker.heartbeat import beat
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.persistent import watch
from headrace._core.worker.scheduler import tick
from headrace._core.worker.upkeep import keep

Channel = Literal["work", "pulse", "ears"]  # connections of their own: a heartbeat waits for no other call; a blocked
# read can be closed


def all_roles(worker: Lifecycle, fetchers: int = 1) -> Iterator[tuple[str, Role, Consumer | None, Channel]]:
    """Yield every role: its name, its generator, its consumer if it is of one, and its channel.

    *fetchers*: the number of `fetch` roles of each consumer.
    """
    yield "beat", beat(worker), None, "pulse"
    yield "keep", keep(worker), None, "work"
    yield "hear", hear(worker), None, "work"
    for consumer in worker.consumers:
        yield "tick", tick(consumer), consumer, "work"
        if consumer.handler.persistent:
            yield "watch", watch(consumer, worker.settings), consumer, "work"
    for consumer in worker.consumers:
        yield "listen", listen(consumer), consumer, "ears"
    for consumer in worker.consumers:
        for _ in range(fetchers):
            yield "fetch", fetch(consumer), consumer, "work"
