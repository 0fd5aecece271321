"""The progress that a program sets right before it ends a lease by hand is kept, although it is
sent once a second."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, Flow, Queue
from headrace._api.queue import last_progress
from tests.support.awaiting import until
from tests.support.servers import Server

ENDS = ["complete", "complete_many", "retry", "release", "dead_letter"]


def end(queue: Any, lease: Any, how: str) -> Any:
    """End the lease and return the answer of that call."""
    return {
        "complete": lease.complete,
        "complete_many": lambda: queue.complete_many([lease]),
        "retry": lambda: lease.retry(60, "why"),
        "release": lease.release,
        "dead_letter": lambda: lease.dead_letter("why"),
    }[how]()


def shown(state: Any) -> tuple[float, str] | None:
    return (state.progress.fraction, state.progress.text) if state.progress else None


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_lease_notes_it(server: Server, how: str) -> None:
    with Queue("q", url=server.url, history=10) as queue:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        assert lease is not None
        lease.job.progress(0.3, "first")  # sent at once
        lease.job.progress(1.0, "last")
        assert end(queue, lease, how) in (True, [True])
        assert shown(queue.find("a")) == (1.0, "last")


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_an_asynchronous_lease_notes_it(server: Server, how: str) -> None:
    async def main() -> None:
        async with AsyncQueue("q", url=server.url, history=10) as queue:
            await queue.enqueue(b"x", id="a")
            lease = await queue.lease()
            assert lease is not None
            lease.job.progress(0.3, "first")
            async with asyncio.timeout(60):
                while shown(await queue.find("a")) is None:  # noqa: ASYNC110 - the server tells nobody
                    await asyncio.sleep(0.01)
            lease.job.progress(1.0, "last")
            assert await end(queue, lease, how) in (True, [True])
            assert shown(await queue.find("a")) == (1.0, "last")

    asyncio.run(main())


def test_the_end_of_a_lease_of_a_flow_notes_it(server: Server) -> None:
    with (
        Flow("shop", url=server.url) as flow,
        Queue("shop/pick", url=server.url, history=10) as queue,
    ):
        flow.stage("pick")(print)
        flow.start(b"x", id="a")
        lease = queue.lease()
        assert lease is not None
        lease.job.progress(0.3, "first")
        lease.job.progress(1.0, "last")
        with queue.events(["progress"], 30.0) as events:
            assert flow.complete(lease)
            assert next(events).reason == "1 last"


def test_a_lost_lease_notes_none(server: Server) -> None:
    """The next holder sees none of it."""
    with Queue("q", url=server.url, history=10) as queue:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        assert lease is not None
        lease.job.progress(0.3, "first")
        until(lambda: shown(queue.find("a")) == (0.3, "first"))
        assert queue.admin.expire() == 1
        lease.job.progress(1.0, "last")
        assert not lease.retry(60)
        assert shown(queue.find("a")) == (0.3, "first")


def scripts_run(client: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


@pytest.mark.differs("one server")
@pytest.mark.parametrize("progress", [False, True], ids=["no-progress", "sent-progress"])
def test_no_trip_is_made_without_progress_that_was_not_sent(server: Server, progress: bool) -> None:
    with Queue("q", url=server.url) as queue, redis.Redis(unix_socket_path=server.path) as client:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        assert lease is not None
        if progress:
            lease.job.progress(0.3, "first")
            until(lambda: shown(queue.find("a")) is not None)
        assert last_progress([lease.claim]) is None
        before = scripts_run(client)
        assert lease.retry(60)
        assert scripts_run(client) == before + 1
