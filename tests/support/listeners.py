"""Listening to a queue, in its colour; the listeners of a server's channels, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from headrace import Event
from tests.support.awaiting import PATIENCE
from tests.support.colours import Blocking


@contextmanager
def listening(queue: Any, *kinds: str, timeout: float = PATIENCE) -> Iterator[Callable[[int], list[Event]]]:
    """Subscribed to the queue, in its colour: a function that answers with the next so many events."""
    if not isinstance(queue, Blocking):
        with queue.events(kinds or None, timeout) as events:
            yield lambda n: [next(events) for _ in range(n)]
        return
    events = queue._wrapped.events(kinds or None, timeout)
    run = queue._runner.run
    run(events.__aenter__())

    async def following() -> Event:
        return await anext(events)

    try:
        yield lambda n: [run(following()) for _ in range(n)]
    finally:
        run(events.close())


def subscribed(client: redis.Redis) -> dict[str, int]:
    """Return how many listeners each channel has, of those that have any; by slot, on a cluster, too."""
    server: Any = client
    found = server.pubsub_numsub(*server.pubsub_channels())
    if client.info("server")["redis_version"] > "7":
        found += server.pubsub_shardnumsub(*server.pubsub_shardchannels())
    return {bytes(channel).decode(): number for channel, number in found if number}
