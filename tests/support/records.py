"""Records of trends of earlier hours, as if sweeps had taken them then."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from headrace import Queue
from headrace._protocol.queue_ops import Ops
from tests.support.servers import Server


def kept(queue: Queue | Ops, server: Server, minutes: Iterable[int], start: int = 0, now: int = 0) -> None:
    """Keep a record for each of these *minutes* ago: ten jobs enqueued and nine completed in each since *start*.

    *now*: seconds of the server's clock, where the records of several are to be of the same moments.
    """
    keys = (queue if isinstance(queue, Ops) else queue.ops).keys
    key = keys.key("trends")
    with server.client() as client:
        time: Any = client.time()
        now = now or time[0]
        client.hset(keys.key("stats"), "trends", now * 1000)  # no other comes between
        client.set(key, bytes(36 * 5040))
        for ago in minutes:
            at = now - 60 * ago
            sums = [(start - 10 * ago) % 2**32, (start - 9 * ago) % 2**32, 0]
            record = struct.pack(">9I", at, *sums, ago, 2, 3, 4, 5500)
            client.setrange(key, 36 * (at // 60 % 2880), record)
            client.setrange(key, 36 * (2880 + at // 3600 % 2160), record)
