"""The listeners of a server's channels, counted."""

from __future__ import annotations

from typing import Any

import redis


def subscribed(client: redis.Redis) -> dict[str, int]:
    """Return how many listeners each channel has, of those that have any; by slot, on a cluster, too."""
    some: Any = client
    found = some.pubsub_numsub(*some.pubsub_channels())
    if client.info("server")["redis_version"] > "7":
        found += some.pubsub_shardnumsub(*some.pubsub_shardchannels())
    return {bytes(channel).decode(): number for channel, number in found if number}
