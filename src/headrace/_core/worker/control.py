"""The role that listens to what others do to our jobs."""

from __future__ import annotations

from headrace._core.effects import Phase, Role, Sleep, receive
from headrace._core.worker.leases import check, told
from headrace._core.worker.lifecycle import Lifecycle

RECEIVE_S = 5.0  # seconds a listening lasts at most
RETRY_UNHEARD_S = 30.0  # seconds between tries where the server does not let us listen


def hear(worker: Lifecycle) -> Role:
    """Learn at once which leases somebody took from us. What nobody hears, the next renewal finds out."""
    consumers = {consumer.ops.keys.part("control"): consumer for consumer in worker.consumers}
    pause = 0.05
    while worker.phase < Phase.HALTING:
        heard = yield from receive(tuple(consumers), RECEIVE_S)
        if heard.state == "anew":
            pause = 0.05
            for consumer in worker.consumers:
                yield from check(consumer)
        for channel, message in heard.messages:
            if channel in consumers:
                yield from told(consumers[channel], message)
        if heard.state in ("cut", "refused"):
            yield Sleep(RETRY_UNHEARD_S if heard.state == "refused" else pause)
            pause = min(2 * pause, 2.0)
