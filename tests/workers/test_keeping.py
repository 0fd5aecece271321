"""`queue.keeping(leases)`. The leases last while their holder lives, and no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, Queue
from headrace._protocol.keys import Keys
from tests.support.awaiting import until
from tests.support.program import Script
from tests.support.servers import Server
from tests.support.steps import looked_after

HEARTBEAT, TIMEOUT = 0.2, 2.0
OPTIONS = {"heartbeat": HEARTBEAT, "timeout": TIMEOUT}

HOLDER = """
import asyncio, sys, time
from headrace import AsyncQueue, Queue

url, shards = sys.argv[2], int(sys.argv[3])

def holds():
    queue = Queue("q", url=url, shards=shards)
    held = []
    with queue.keeping(held, heartbeat=0.2, timeout=2.0):
        held += queue.lease_many(3, block=20)
        while len(held) < 3:
            held += queue.lease_many(3 - len(held), block=20)
        print("holds", flush=True)
        time.sleep(300)

async def awaits():
    queue = AsyncQueue("q", url=url, shards=shards)
    held = []
    async with queue.keeping(held, heartbeat=0.2, timeout=2.0):
        while len(held) < 3:
            held += await queue.lease_many(3 - len(held), block=20)
        print("holds", flush=True)
        await asyncio.sleep(300)

holds() if sys.argv[1] == "sync" else asyncio.run(awaits())
"""


@pytest.fixture(params=["sync", "async"])
def held(request: pytest.FixtureRequest, server: Server) -> Callable[..., Any]:
    """Return a function that runs another beside a kept lease, in either colour. It returns both
    answers."""
    colour = request.param

    def with_queue(function: Callable[[Any], Any], **options: Any) -> Any:
        with Queue("q", url=server.url, **options) as queue:
            (lease,) = queue.lease_many(1, block=20)
            leases = {lease}
            with queue.keeping(leases, **OPTIONS):
                said = function(lease)
            return said, lease.complete()

    async def with_async_queue(function: Callable[[Any], Any], **options: Any) -> Any:
        async with AsyncQueue("q", url=server.url, **options) as queue:
            (lease,) = await queue.lease_many(1, block=20)
            leases = {lease}
            async with queue.keeping(leases, **OPTIONS):
                said = await asyncio.to_thread(function, lease)
            return said, await lease.complete()

    if colour == "sync":
        return with_queue
    return lambda function, **options: asyncio.run(with_async_queue(function, **options))


def now(server: Server) -> float:
    with redis.Redis.from_url(server.url) as client:
        seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6


@pytest.mark.sampled
def test_a_kept_lease_outlasts_its_time(server: Server, held: Callable[..., Any]) -> None:
    """Peers that look for expired leases find none."""
    with Queue("q", url=server.url, lease=1.0) as peer:
        peer.enqueue(b"x")

        def wait(lease: Any) -> int:
            taken: list[Any] = []

            def over() -> bool:
                taken.extend(peer.lease_many(1))
                return bool(taken) or now(server) > lease.claim.leased_at + 2.5

            until(over)
            return len(taken)

        assert held(wait, lease=1.0) == (0, True)
        assert peer.counts().completed == 1


def test_one_that_was_lost_is_told(server: Server, held: Callable[..., Any]) -> None:
    with Queue("q", url=server.url) as peer:
        peer.enqueue(b"x", id="a")

        def lose(lease: Any) -> bool:
            assert not lease.job.lost
            assert peer.cancel("a")
            until(lambda: lease.job.lost)
            return bool(lease.job.lost)

        assert held(lose, lease=0.6) == (True, False)


def test_what_is_no_longer_kept_lasts_as_long_as_any(server: Server) -> None:
    """Its holder renews it no more, and is alive all the same."""
    with Queue("q", url=server.url) as queue, redis.Redis.from_url(server.url) as client:
        queue.enqueue_many([b"x", b"y"])
        kept, other = queue.lease_many(2)

        def left() -> float:
            return float(client.zscore(Keys.of("q").key("workers"), kept.worker)) / 1000 - now(
                server
            )

        with queue.keeping([kept], **OPTIONS):
            until(lambda: left() <= TIMEOUT)
        assert left() > 50
        assert other.renew()


@pytest.mark.slow
@pytest.mark.sampled("colour")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_holder_s_death_is_found_by_its_heartbeat(
    server: Server, colour: str, shards: int
) -> None:
    """The lease lasts a minute and the registration longer, so the missing heartbeat shows the
    death."""
    with Queue("q", url=server.url, shards=shards) as queue:
        queue.enqueue_many([b"%d" % number for number in range(3)])
        with Script(HOLDER, [colour, server.url, str(shards)]) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holds\n"
            with redis.Redis.from_url(server.url) as client:
                until(lambda: seconds_left(client, server) <= TIMEOUT)
                holder.kill()
                until(lambda: seconds_left(client, server) < 0)  # or the first sweep finds nothing
                for stats in client.scan_iter("*:stats"):
                    looked_after(client, stats)
        began, taken = time.monotonic(), list[Any]()
        while len(taken) < 3 and time.monotonic() - began < 50:
            taken += queue.lease_many(3, block=1)
        assert {(lease.job.payload, lease.job.attempt) for lease in taken} == {
            (b"0", 2),
            (b"1", 2),
            (b"2", 2),
        }


def seconds_left(client: Any, server: Server) -> float:
    """Return the seconds for which the last holder is still registered. They exceed a timeout if a
    lease prolonged it.
    """
    deadlines = [
        float(at)
        for key in client.scan_iter("*:workers")
        for _, at in client.zrange(key, 0, -1, withscores=True)
    ]
    return max(deadlines, default=float("inf")) / 1000 - now(server)


@pytest.mark.parametrize("leases", ["abc", 3, iter([])])
def test_what_is_no_collection_is_refused(newest: Server, leases: Any) -> None:
    with (
        Queue("q", url=newest.url) as queue,
        pytest.raises(TypeError, match="leases must be a collection"),
    ):
        queue.keeping(leases)


def test_a_timeout_of_less_than_two_heartbeats_is_refused(newest: Server) -> None:
    with (
        Queue("q", url=newest.url) as queue,
        pytest.raises(ValueError, match="twice the heartbeat"),
    ):
        queue.keeping([], heartbeat=2.0, timeout=3.0)
