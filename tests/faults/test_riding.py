"""A lease call after a blocked read on one connection. It is cut at every byte, and ended by a
worker that stops."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from headrace import Counts, Queue
from headrace._core.effects import BlockThen
from headrace._core.queue.leasing import untaken
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.sync.executor import Executor
from tests.support.awaiting import PATIENCE, until
from tests.support.proxy import Proxy
from tests.support.servers import Server

WORKER = "w"
PAYLOAD = b"payload"


class Rider:
    """A worker's connections of one colour, and a queue that looks at the server."""

    def __init__(self, colour: str, server: Server, proxy: Proxy) -> None:
        self.proxy, self.runner = proxy, asyncio.Runner()
        self.direct = Queue("q", url=server.url, namespace="n")
        self.client = redis.Redis(unix_socket_path=server.path)
        self.executor: Any = (AsyncExecutor if colour == "async" else Executor)(proxy.url)
        self.executor.pause = 0.05

    def do(self, call: Callable[[], Any]) -> Any:
        """Return the answer of a call of either colour."""

        async def story() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        return self.runner.run(story())

    def begin(self) -> None:
        """Empty the server and register the worker."""
        self.client.flushdb()
        self.do(lambda: self.executor.run(self.direct.ops.beat(WORKER, 60.0, register=True)))

    def ride(self, block: float = 5.0) -> Any:
        """Block, and lease after that."""
        ops = self.direct.ops
        op, again = (ops.lease(WORKER, most, woken=2) for most in (5, 1))
        effect = BlockThen(ops.wait(block), op, again, partial(untaken, ops))
        return self.do(lambda: self.executor.wait_then(effect))

    def fetch(self) -> Any:
        """Make the call that follows a read that ended without a leased job."""
        return self.do(lambda: self.executor.run(self.direct.ops.lease(WORKER, 5, woken=True)))

    def close(self) -> None:
        self.do(self.executor.close)
        self.direct.close()
        self.client.close()
        self.runner.close()


@pytest.fixture(params=["sync", "async"])
def rider(request: pytest.FixtureRequest, own: Server, proxy: Proxy) -> Iterator[Rider]:
    """Return each colour behind the proxy."""
    rider = Rider(request.param, own, proxy)
    yield rider
    rider.close()


@pytest.mark.slow
def test_cut_at_every_byte(rider: Rider, pytestconfig: pytest.Config) -> None:
    """The job that ends a blocked read is leased once, by this call or by the next."""

    def once(side: str, after: int) -> None:
        rider.begin()
        rider.direct.enqueue(b"x")
        rider.proxy.reset() if after < 0 else rider.proxy.cut(side, after)
        rung, grant = rider.ride()
        assert rung
        claims = list(grant.claims) or rider.fetch().claims
        assert after < 0 or rider.proxy.fired
        assert [(claim.job.payload, claim.count, claim.job.attempt) for claim in claims] == [
            (b"x", 1, 1)
        ]
        assert rider.direct.counts() == Counts(leased=1, enqueued=1)

    once("", -1)
    once("", -1)  # scripts are known from here on
    step = 1 if pytestconfig.option.full else 7
    requests, replies = len(rider.proxy.requests), len(rider.proxy.replies)
    for side, size in ("requests", requests), ("replies", replies):
        for after in range(0, size, step):
            once(side, after)


def test_nothing_came(rider: Rider) -> None:
    """A read that runs out of time leases no job, even if one was postponed meanwhile or is in
    front."""
    rider.begin()
    rider.direct.enqueue(b"x")
    lease = rider.direct.lease()
    assert lease is not None
    rider.do(lambda: rider.executor.wait(rider.direct.ops.wait(0.01)))
    rung, grant = rider.ride(0.01)
    assert not rung
    assert (list(grant.claims), grant.next_due) == ([], None)
    assert rider.direct.counts() == Counts(leased=1, enqueued=1)


@pytest.mark.parametrize("side", ["requests", "replies"])
def test_a_stop_gives_back_what_it_is_not_told(rider: Rider, side: str) -> None:
    """The reply was on its way when the worker stopped. The job is at the front with no attempt
    spent."""
    rider.begin()
    rider.ride(0.01)  # the script is known
    if side == "replies":
        rider.direct.enqueue(PAYLOAD)
        rider.proxy.mute()
    stopping = threading.Thread(target=stop, args=(rider, side))
    stopping.start()
    assert rider.ride() == (False, None)
    stopping.join()
    counts = rider.direct.counts()
    assert (counts.waiting + counts.parked, counts.leased) == (1, 0)
    lease = rider.direct.lease()
    assert lease is not None
    assert (lease.job.payload, lease.job.attempt) == (PAYLOAD, 1)


def stop(rider: Rider, side: str) -> None:
    """Stop it while it waits for the server."""
    blocked = rider.executor._blocked
    until(lambda: bool(blocked))
    if side == "replies":
        # The replies of the read and of the lease have to be dropped before the proxy answers
        # again.
        until(lambda: rider.proxy.replies.count(PAYLOAD) == 2)
        rider.proxy.reset()  # it answers again: another connection
    if isinstance(rider.executor, AsyncExecutor):
        stopped = threading.Event()  # else the job that comes may end its waiting first
        rider.runner.get_loop().call_soon_threadsafe(rider.executor.stop_waiting)
        rider.runner.get_loop().call_soon_threadsafe(stopped.set)
        assert stopped.wait(PATIENCE)
    else:
        rider.executor.stop_waiting()
    if side == "requests":
        rider.direct.enqueue(PAYLOAD)
