"""Records of trends of earlier hours, as if sweeps had taken them then."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import redis

from headrace import Queue
from tests.support.servers import Server


def kept(queue: Queue, server: Server, minutes: Iterable[int], start: int = 0) -> None:
    """Keep a record for each of these *minutes* ago: ten jobs enqueued and nine completed in each since *start*."""
    key = queue.ops.keys.part("trends")
    with redis.Redis(unix_socket_path=server.path) as client:
        now: Any = client.time()
        client.hset(queue.ops.keys.part("stats"), "trends", now[0] * 1000)  # no other comes between
        client.set(key, bytes(36 * 5040))
        for ago in minutes:
            at = now[0] - 60 * ago
            sums = [(start - 10 * ago) % 2**32, (start - 9 * ago) % 2**32, 0]
            record = struct.pack(">9I", at, *sums, ago, 2, 3, 4, 5500)
            client.setrange(key, 36 * (at // 60 % 2880), record)
            client.setrange(key, 36 * (2880 + at // 3600 % 2160), record)
