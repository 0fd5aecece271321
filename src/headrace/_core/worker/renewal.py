"""The renewal role: keeps the leases of jobs that take long. A lease is renewed once a third of it has passed.

It shares nothing with what runs handlers but the state of the consumers: an engine may run it where they can't block
it. So that a worker whose handlers stand still for ever does not keep their jobs for ever, there is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Phase, Role, Sleep, current_time
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.leases import check, died
from headrace._core.worker.lifecycle import Lifecycle

LOOK_EVERY_S = 1.0  # seconds between two looks at our leases at most: it costs the server nothing


def renew(worker: Lifecycle, some: Sequence[Consumer] | None = None) -> Role:
    """Renew leases in time; give up a consumer's jobs if the engine of its handlers has stood still for too long."""
    consumers = worker.consumers if some is None else some
    tick = min(LOOK_EVERY_S, *(consumer.ops.settings.lease / 6 for consumer in consumers))
    while worker.phase < Phase.HALTING:
        now = yield from current_time()
        for consumer in consumers:
            if consumer.jobs.held and worker.stalled(now) >= consumer.stalls_at_most:
                yield from died(consumer)
            yield from check(consumer, consumer.renewals(now))  # in bounded scripts, each in a round trip of its own
        yield Sleep(tick)
