"""The role that learns from Pub/Sub of leases that were taken away."""

from __future__ import annotations

from headrace._core.effects import Phase, Role, Sleep, receive
from headrace._core.worker.leases import check, told
from headrace._core.worker.lifecycle import Lifecycle

RECEIVE_S = 5.0  # seconds a listening lasts at most
RETRY_UNHEARD_S = 30.0  # seconds between tries where the server does not let us listen


def hear(worker: Lifecycle) -> Role:
    """Learn at once which leases were taken from this worker. A message that is missed is made good by the next
    renewal.
    """
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
