"""The renewal role: keeps the leases of long jobs. A lease is renewed after a third of its duration.

The role shares only the consumers' state with the handlers, so an engine may run it where handlers can't block it. A
bound ensures that a worker whose handlers hang for ever does not keep their jobs for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Phase, Role, Sleep, current_time
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.leases import check, died
from headrace._core.worker.lifecycle import Lifecycle

LOOK_EVERY_S = 1.0  # seconds between two looks at our leases at most: it costs the server nothing


def renew(worker: Lifecycle, some: Sequence[Consumer] | None = None) -> Role:
    """Renew leases in time. Give up a consumer's jobs if the engine of its handlers has hung for too long."""
    consumers = worker.consumers if some is None else some
    tick = min(LOOK_EVERY_S, *(consumer.ops.settings.lease / 6 for consumer in consumers))
    while worker.phase < Phase.HALTING:
        now = yield from current_time()
        for consumer in consumers:
            if consumer.jobs.held and worker.stalled(now) >= consumer.stalls_at_most:
                yield from died(consumer)
            yield from check(consumer, consumer.renewals(now))  # in bounded scripts, each in a round trip of its own
        yield Sleep(tick)
