"""`enqueue_stream` enqueues any number of jobs with bounded memory, and tells its progress."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, NewJob, Queue
from headrace._core.queue.calls import BYTES_AT_ONCE, JOBS_AT_ONCE
from headrace.errors import StreamStopped
from tests.support.servers import Server


@pytest.mark.slow
def test_in_order_and_in_constant_memory(connect: Any, large: bool) -> None:
    """At most one part has been taken from the iterable and is not enqueued."""
    parts = 2 if large else 1
    queue, total, ahead, seen = connect("q"), parts * JOBS_AT_ONCE + 7, [], []

    def jobs() -> Iterator[Any]:
        for number in range(total):
            if number % 2500 == 0:
                ahead.append(number - (seen[-1] if seen else 0))
            yield (
                NewJob(b"%d" % number, headers={"h": "x"}) if number % 1000 == 0 else b"%d" % number
            )

    assert queue.enqueue_stream(jobs(), seen.append) == total
    assert seen == [*(JOBS_AT_ONCE, 2 * JOBS_AT_ONCE)[:parts], total]
    assert max(ahead) <= JOBS_AT_ONCE
    assert queue.counts().waiting == total
    assert [state.job.payload for state in queue.admin.waiting()] == [
        b"%d" % number for number in range(total)
    ]


def test_large_payloads_go_sooner(newest: Server) -> None:
    seen: list[int] = []
    with Queue("q", url=newest.url) as queue:
        assert (
            queue.enqueue_stream((b"x" * (BYTES_AT_ONCE // 3 + 1) for _ in range(7)), seen.append)
            == 7
        )
    assert seen == [3, 6, 7]


def test_nothing_is_nothing(connect: Any) -> None:
    seen: list[int] = []
    assert connect("q").enqueue_stream([], seen.append) == 0
    assert seen == []


def test_it_goes_on_where_it_stopped(connect: Any) -> None:
    """The iterable's own error says how far it came."""
    queue, total = connect("q"), JOBS_AT_ONCE + 5

    def jobs(fails_at: int) -> Iterator[bytes]:
        for number in range(total):
            if number == fails_at:
                raise OSError("the file ended")
            yield b"%d" % number

    with pytest.raises(StreamStopped, match=r"the first 10000 jobs .*the file ended") as stopped:
        queue.enqueue_stream(jobs(JOBS_AT_ONCE + 2))
    assert isinstance(stopped.value.__cause__, OSError)
    position = stopped.value.position
    assert position == JOBS_AT_ONCE == queue.counts().waiting
    rest = list(jobs(-1))[position:]
    assert queue.enqueue_stream(rest) == 5
    assert queue.counts().waiting == total


def test_a_bad_job_stops_it_before_its_part(connect: Any) -> None:
    queue = connect("q")
    with pytest.raises(StreamStopped) as stopped:
        queue.enqueue_stream([b"a", 5])
    assert isinstance(stopped.value.__cause__, TypeError)
    assert (stopped.value.position, queue.counts().waiting) == (0, 0)


def test_a_server_that_is_full_stops_it(server: Server, client: redis.Redis) -> None:
    """The server fills up in the middle of a part. The enqueued jobs of the part count."""
    with server.queue("q") as queue:
        queue.enqueue(b"x")
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + 3_000_000)
        queue._executor.budget = 0.2
        try:
            with pytest.raises(StreamStopped) as stopped:
                queue.enqueue_stream(b"x" * 1000 for _ in range(JOBS_AT_ONCE))
        finally:
            client.config_set("maxmemory", 0)
        assert "maxmemory" in str(stopped.value.__cause__)
        assert 0 < stopped.value.position < JOBS_AT_ONCE
        assert queue.counts().waiting == 1 + stopped.value.position


def test_an_asynchronous_iterable(newest: Server) -> None:
    async def jobs() -> AsyncIterator[bytes]:
        for number in range(5):
            await asyncio.sleep(0)
            yield b"%d" % number
        raise LookupError

    async def story() -> None:
        async with AsyncQueue("q", url=newest.url) as queue:
            assert await queue.enqueue_stream(b"x" for _ in range(3)) == 3
            with pytest.raises(StreamStopped) as stopped:
                await queue.enqueue_stream(jobs())
            assert stopped.value.position == 0
            assert (await queue.counts()).waiting == 3

    asyncio.run(story())


def test_its_error_survives_a_process(newest: Server) -> None:
    error = pickle.loads(pickle.dumps(StreamStopped(7, OSError("x"))))
    assert (type(error), error.position) == (StreamStopped, 7)
