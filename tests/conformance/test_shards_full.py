"""The bound of waiting jobs in a sharded queue. Each shard has its share, which its script
enforces."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace import AsyncQueue, NewJob, QueueFull, Replace
from headrace._model.shards import Table
from headrace.errors import StreamStopped
from tests.support.awaiting import PATIENCE
from tests.support.program import Program, refused
from tests.support.servers import Server
from tests.support.steps import LONG, finds_no_room

SHARDS = 6
TABLE = Table.of("q", SHARDS)


def waiting(queue: Any) -> list[int]:
    return [shard.counts.waiting for shard in queue.admin.shards()]


def keys_of(number: int) -> list[str]:
    return [key for n in range(200) if TABLE.shard_of(key := f"k{n}") == number]


def test_a_shard_that_is_full(connect: Any) -> None:
    """A job of a full shard's key is refused, and the error names the shard. A job without a key
    goes to another one.
    """
    queue = connect(shards=SHARDS, max_waiting=11)  # two a shard
    key, *_ = keys_of(3)
    queue.enqueue(b"x", key=key)
    assert queue.enqueue(b"x", key=key, delay=LONG).added
    with pytest.raises(
        QueueFull, match="2 jobs wait there, and of max_waiting the share of shard 3 is 2"
    ) as full:
        queue.enqueue(b"x", key=key)
    error = pickle.loads(pickle.dumps(full.value))
    assert (error.waiting, error.max_waiting, error.shard, str(error)) == (2, 2, 3, str(full.value))
    assert all(queue.enqueue(b"x").added for _ in range(10))
    assert [shard.counts.waiting + shard.counts.delayed for shard in queue.admin.shards()] == [
        2
    ] * SHARDS
    with pytest.raises(QueueFull):
        queue.enqueue(b"x")
    lease = queue.lease()
    assert queue.enqueue(b"x").added  # wherever that was
    assert lease.retry()  # never refused
    counts = queue.counts()
    assert (counts.waiting, counts.delayed, counts.lost) == (12, 1, 0)


def test_a_job_that_is_known_needs_no_room(connect: Any) -> None:
    queue = connect(shards=SHARDS, max_waiting=1)
    assert queue.enqueue(b"x", id="a").added
    assert queue.enqueue(b"x", id="a").outcome == "present"
    assert queue.enqueue(b"y", id="a", if_exists=Replace()).outcome == "replaced"
    assert [receipt.outcome for receipt in queue.enqueue_many([NewJob(b"z", id="a")])] == [
        "present"
    ]
    assert queue.counts().waiting == 1


def test_parts_go_where_there_is_room(connect: Any) -> None:
    """Each part is enqueued as a whole or not at all. The error has the receipts of all jobs, with
    `None` for missing ones.
    """
    queue = connect(shards=SHARDS, max_waiting=SHARDS * 30)  # parts of three
    (key, *_), jobs = keys_of(2), [b"%d" % n for n in range(SHARDS * 30)]
    assert all(receipt.added for receipt in queue.enqueue_many([NewJob(b"x", key=key)] * 28))
    receipts = queue.enqueue_many(jobs[: 5 * 30])
    assert waiting(queue) == [30, 30, 28, 30, 30, 30]
    assert len({receipt.id for receipt in receipts}) == len(receipts)
    assert all(queue.find(receipt.id) for receipt in receipts[::10])
    with pytest.raises(QueueFull) as full:
        queue.enqueue_many(
            [NewJob(b"k", key=key), b"x", NewJob(b"k", key=key), NewJob(b"k", key=key)]
        )
    assert [receipt and receipt.added for receipt in full.value.receipts] == [None] * 4
    assert queue.enqueue_many([NewJob(b"k", key=key), b"x"])
    assert waiting(queue) == [30] * SHARDS
    with pytest.raises(StreamStopped) as stopped:
        queue.enqueue_stream(jobs)
    assert (stopped.value.position, type(stopped.value.__cause__)) == (0, QueueFull)
    leases = queue.lease_many(30)
    assert len(queue.enqueue_many(jobs[: len(leases) // 3 * 3])) == len(leases) // 3 * 3


def test_no_room_in_time(connect: Any) -> None:
    """`block` bounds the wait of a call or of a queue's calls, for the shard of a key or for any
    shard."""
    queue = connect(shards=SHARDS, max_waiting=1, full="block", timeout=0.2)
    queue.enqueue_many([b"x"] * SHARDS)
    for call in (
        lambda: queue.enqueue(b"x"),
        lambda: queue.enqueue(b"x", key="k"),
        lambda: queue.enqueue_many([b"x"]),
        lambda: queue.enqueue_many([NewJob(b"x", key="k")]),
        lambda: queue.enqueue(b"x", timeout=0.3),
    ):
        finds_no_room(call, 0.2)
    finds_no_room(lambda: queue.enqueue(b"x", full="raise", timeout=PATIENCE), 0.0)


@pytest.mark.parametrize("named", ["key", "neither"])
@pytest.mark.parametrize("many", [False, True])
def test_woken_when_there_is_room(
    connect: Any, server: Server, meanwhile: Any, named: str, many: bool
) -> None:
    """A lease in the shard of the key wakes the caller at once. Without a key, a lease in any shard
    does."""
    queue = connect(shards=SHARDS, max_waiting=1, full="block")
    queue.enqueue_many([b"a"] * SHARDS)
    (key, *_), moment = keys_of(4), list[float]()

    def make_room(_: Any) -> None:
        time.sleep(0.2)  # it waits by then
        moment.append(time.monotonic())
        with server.queue("q", shards=SHARDS) as other:
            other.lease_many(SHARDS if named == "key" else 1)

    meanwhile(make_room)
    job = NewJob(b"b", key=key if named == "key" else None)
    assert queue.enqueue_many([job])[0].added if many else queue.enqueue(job).added
    assert 0 <= time.monotonic() - moment[0] < 5


@pytest.mark.slow
def test_no_number_of_producers_gets_more_in(server: Server, large: bool) -> None:
    """Threads add single jobs and parts, with keys and without, while others lease. No shard
    exceeds its share."""
    share, total = 20, 2400 if large else 800
    stop = threading.Event()
    with server.queue(
        "q", shards=SHARDS, max_waiting=SHARDS * share, full="block", timeout=PATIENCE
    ) as queue:
        queue.counts()

        def produce(number: int) -> None:
            for n in range(total // 40):
                queue.enqueue(b"x", key=f"k{n}" if number % 2 else None)
                queue.enqueue_many(
                    [NewJob(b"x", key=f"k{n}") if number % 2 else b"x" for _ in range(9)]
                )

        def watch() -> int:
            most = 0
            while not stop.is_set():
                most = max(most, *waiting(queue))
            return most

        found: Counter[str] = Counter()
        with ThreadPoolExecutor(6) as pool:
            most = pool.submit(watch)
            producers = [pool.submit(produce, number) for number in range(4)]
            while sum(found.values()) < total:
                leases = queue.lease_many(30, block=1.0)
                assert all(queue.complete_many(leases))
                found.update(lease.job.id for lease in leases)
            stop.set()
            for producer in producers:
                producer.result(PATIENCE)
            assert most.result(PATIENCE) <= share
    assert set(found.values()) == {1}


@pytest.mark.slow
def test_many_coroutines_wait_for_several_shards(server: Server, large: bool) -> None:
    """Coroutines that wait for a full shard do not keep those of other shards waiting."""
    number = 200 if large else 60

    async def story() -> None:
        options: dict[str, Any] = {"url": server.url, **server.binary.options, "shards": SHARDS}
        async with (
            AsyncQueue("q", **options, max_waiting=SHARDS * 2, full="block") as queue,
            AsyncQueue("q", **options) as other,
        ):
            (stuck, *_), (flows, *_) = keys_of(1), keys_of(5)
            await queue.enqueue_many(
                [NewJob(b"x", id=name, key=stuck, delay=LONG) for name in "ab"]
            )
            await queue.enqueue_many([NewJob(b"x", key=flows)] * 2)
            waits = [
                asyncio.create_task(queue.enqueue(b"x", key=stuck, timeout=PATIENCE))
                for _ in range(60)
            ]
            await asyncio.sleep(0.1)
            adds = [
                asyncio.create_task(queue.enqueue(b"x", key=flows, timeout=PATIENCE))
                for _ in range(number)
            ]
            done = 0
            while done < number + 2:
                done += sum(await other.complete_many(await other.lease_many(10, block=1.0)))
            await asyncio.gather(*adds)
            assert not any(task.done() for task in waits)
            assert [await queue.cancel(name, key=stuck) for name in "ab"] == [True] * 2
            while not all(task.done() for task in waits):
                await other.complete_many(await other.lease_many(10, block=0.1))
            assert all(task.result().added for task in waits)

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE))


def test_the_share_follows_the_number_of_shards(connect: Any) -> None:
    """With fewer shards each may have more jobs. Jobs in old shards stay and do not count in the
    new ones."""
    queue, old = (connect(shards=SHARDS, max_waiting=12) for _ in range(2))
    old.enqueue_many([NewJob(b"x", id=f"i{n}") for n in range(4)])
    queue.enqueue_many([b"x"] * 8)
    queue.admin.reshard(3)
    again = old.enqueue_many([NewJob(b"y", id=f"i{n}") for n in range(4)])
    assert [receipt.outcome for receipt in again] == ["present"] * 4
    assert len(old.enqueue_many([b"x"] * 12)) == 12
    with pytest.raises(QueueFull) as full:
        old.enqueue(b"x")
    assert full.value.max_waiting == 4
    assert [shard.counts.waiting for shard in queue.admin.shards() if shard.state == "open"] == [
        4
    ] * 3
    assert queue.enqueue(b"y", id="i0").outcome == "present"


def test_the_command_line_keeps_to_it(server: Server, connect: Any, within: Program) -> None:
    """The command tells how many jobs were enqueued, and the message of each shard."""
    queue = connect(shards=SHARDS)
    queue.enqueue(b"there is such a queue")
    assert queue.lease(block=PATIENCE).complete()
    done = within("enqueue", "q", *["x"] * 10, "--max-waiting", "6", at=server.url)
    refused(
        done,
        "1 jobs wait there, and of max_waiting the share of shard",
        "6 jobs were enqueued for certain",
        code=1,
    )
    assert queue.counts().waiting == 6
