"""Receipts return the results of their jobs, one by one, together or as they end. Both colours
do."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import (
    AsyncQueue,
    AsyncReceipt,
    ConfigurationError,
    JobFailed,
    NewJob,
    Queue,
    Receipt,
    as_completed,
)
from headrace.codecs import JSONCodec
from headrace.errors import CodecError
from tests.conformance.test_results import heard, listeners, somebody_listens
from tests.support.awaiting import PATIENCE
from tests.support.colours import Connect, bare
from tests.support.servers import Server
from tests.support.steps import leased


@pytest.fixture
def other(server: Server) -> Iterator[Queue]:
    with server.queue("q", max_attempts=1) as queue:
        yield queue


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results be read only after a message."""
    for colour in ("aio", "sync"):
        monkeypatch.setattr(f"headrace._net.{colour}.waiters.POLL_EVERY_S", 2 * PATIENCE)


def once_awaited(server: Server, act: Any) -> threading.Thread:
    """Act once a listener for the ends of jobs is there."""

    def run() -> None:
        somebody_listens(server)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_it_waits_until_its_job_has_ended(
    queue: Any, other: Queue, server: Server, unhurried: None
) -> None:
    """It also waits without a timeout."""
    receipt = queue.enqueue(b"x")
    acting = once_awaited(server, lambda: other.lease().complete(b"r"))  # type: ignore[union-attr]
    assert receipt.result() == b"r"
    acting.join()
    assert (receipt.result(), receipt.result(timeout=0), queue.result(receipt.id)) == (b"r",) * 3


def test_it_does_not_wait_where_there_is_nothing_to_wait_for(
    queue: Any, client: redis.Redis
) -> None:
    """The job was enqueued and is gone, so it has ended."""
    receipt = queue.enqueue(b"x")
    assert queue.lease().complete()
    assert receipt.result() is None
    assert listeners(client) == 0


@pytest.mark.parametrize("id", [None, "i"])
def test_its_time(queue: Any, id: str | None) -> None:
    receipt = queue.enqueue(b"x", id=id)
    for timeout, text in (
        (0, "has not ended; it goes on"),
        (0.2, r"has not ended within 0\.2 s; it goes on"),
    ):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"job '{receipt.id}' {text}"):
            receipt.result(timeout=timeout)
        assert timeout <= time.monotonic() - began < timeout + PATIENCE
    for wrong in (-1, "1"):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            receipt.result(timeout=wrong)


@pytest.mark.differs("ends", "cancelled", "deleted")
@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (lambda queue: queue.lease().dead_letter("why"), "dead", "why"),
        (lambda queue: queue.lease().retry(reason="worn out"), "dead", "worn out"),
        (lambda queue: queue.cancel("i"), "cancelled", None),
        (lambda queue: queue.admin.purge(), "deleted", None),
        (lambda queue: queue.admin.delete(), "deleted", None),
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_it_is_told_at_once_why_there_will_be_none(
    queue: Any, other: Queue, server: Server, end: Any, state: str, reason: str | None
) -> None:
    receipt = queue.enqueue(b"x", id="i")
    acting = once_awaited(server, lambda: end(other))
    with pytest.raises(JobFailed) as failed:
        receipt.result()
    acting.join()
    assert (failed.value.id, failed.value.state, failed.value.reason) == ("i", state, reason)
    assert str(failed.value) == f"job 'i' is {state}" + (f": {reason}" if reason else "")


def test_what_an_earlier_job_of_its_id_left_is_not_its_own(queue: Any) -> None:
    assert leased(queue, id="i").complete(b"old")
    receipt = queue.enqueue(b"x", id="i")
    assert queue.result("i") == b"old"
    with pytest.raises(TimeoutError):
        receipt.result(timeout=0)
    assert queue.lease().complete(b"new")
    assert receipt.result() == b"new"


def test_it_decodes(connect: Connect) -> None:
    queue = connect(codec=JSONCodec())
    (receipt, wrong) = queue.enqueue_many([{"n": 1}, {"n": 2}])
    for lease, result in zip(queue.lease_many(2), ({"n": 3}, None), strict=True):
        assert lease.complete(result)
    assert (receipt.result(), wrong.result()) == ({"n": 3}, None)
    plain = connect()
    assert leased(plain, b"1", id="plain").complete(b"\xff")
    for ask in (lambda: queue.result("plain"), lambda: queue.results(["plain"])):
        with pytest.raises(CodecError, match="the result of job 'plain' does not decode"):
            ask()


def test_it_is_a_value(queue: Any) -> None:
    """A receipt equals one of the other colour. Its queue is not compared, shown, pickled or
    hashed."""
    receipt = bare(queue.enqueue(b"x", id="i"))
    again = Receipt("i", True)
    assert receipt == again == AsyncReceipt("i", True) != Receipt("i", False)
    assert len({receipt, again, AsyncReceipt("i", True)}) == 1
    assert repr(receipt) == f"{type(receipt).__name__}(id='i', added=True)"
    assert receipt != "i"
    for copied in (pickle.loads(pickle.dumps(receipt)), copy.copy(receipt), copy.deepcopy(receipt)):
        assert type(copied) is type(receipt)
        assert copied == receipt
        with pytest.raises(ConfigurationError, match="knows no queue"):
            _asked(copied)


def _asked(receipt: Any) -> Any:
    found = receipt.result(timeout=0)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


# -- as they end -----------------------------------------------------------------------------------


def test_as_they_end(newest: Server) -> None:
    """Ended jobs come first, then the others as they end in any way. Their results are there."""
    with newest.client() as client, Queue("q", url=newest.url) as queue:
        first, *rest = queue.enqueue_many([b"a", b"b", b"c", b"d"])
        lease = queue.lease()
        assert lease is not None
        assert lease.complete(b"A")
        acting = once_awaited(newest, lambda: queue.cancel(rest[1].id))
        ended = as_completed([*rest, first, first])
        assert isinstance(ended, Iterator)
        assert [next(ended), next(ended), next(ended)] == [first, first, rest[1]]
        acting.join()
        calls = scripts(client)
        assert first.result() == b"A"
        with pytest.raises(JobFailed, match="is cancelled"):
            rest[1].result()
        assert scripts(client) == calls
        for one in queue.lease_many(2):
            assert one.complete(one.job.payload)
        left = list(ended)
        assert {receipt.id: receipt.result() for receipt in left} == {
            rest[0].id: b"b",
            rest[2].id: b"d",
        }
        assert list(as_completed(left)) == left


def scripts(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def test_as_they_end_under_asyncio(newest: Server) -> None:
    async def story() -> None:
        async with AsyncQueue("q", url=newest.url) as queue:
            first, *rest = await queue.enqueue_many([b"a", b"b", b"c"])
            lease = await queue.lease()
            assert lease is not None
            assert await lease.complete(b"A")
            ended = as_completed([*rest, first])
            assert isinstance(ended, AsyncIterator)
            assert await anext(ended) is first
            assert await first.result() == b"A"
            waiting = asyncio.create_task(anext(ended))  # type: ignore[arg-type]
            while not await asyncio.to_thread(heard, client):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for one in await queue.lease_many(2):
                assert await one.complete(one.job.payload)
            left = [await waiting, *[receipt async for receipt in ended]]
            assert [await receipt for receipt in left] == [
                receipt.id and await receipt.result() for receipt in left
            ]
            assert await asyncio.gather(*rest) == [b"b", b"c"]

    with newest.client() as client:
        asyncio.run(story())


def test_many_take_few_commands_and_one_subscription(newest: Server, unhurried: None) -> None:
    """There is no subscription for each of them."""
    with newest.client() as client, Queue("q", url=newest.url) as queue:
        receipts = queue.enqueue_many([b"x"] * 990)
        counted: list[int] = []

        def act() -> None:
            with Queue("q", url=newest.url) as worker:
                leases = worker.lease_many(990)
                counted.append(scripts(client))
                assert all(worker.complete_many(leases))
                counted.append(scripts(client))

        acting = once_awaited(newest, act)
        before, connections = scripts(client), len(client.client_list())
        ended = as_completed(receipts)
        found = [next(ended)]
        assert listeners(client) == 1
        assert len(client.client_list()) - connections <= 4
        found += list(ended)
        acting.join()
        assert sorted(receipt.id for receipt in found) == sorted(receipt.id for receipt in receipts)
        assert {receipt.result() for receipt in found} == {None}
        assert scripts(client) - before < 150


def test_of_several_queues(newest: Server) -> None:
    with Queue("q", url=newest.url) as a, Queue("b", url=newest.url) as b:
        receipts = [a.enqueue(b"1"), b.enqueue(b"2"), a.enqueue(b"3")]
        ended = as_completed(receipts, timeout=PATIENCE)
        for queue, number in ((b, 1), (a, 0), (a, 2)):
            timer = threading.Timer(0.1, lambda queue=queue: queue.lease().complete(b"r"))
            timer.start()
            assert next(ended) is receipts[number]
            timer.join()
        assert list(ended) == []


def test_of_sharded_queues(newest: Server) -> None:
    """Receipts of any shard and of other queues are mixed, with any names."""
    with Queue("s", url=newest.url, shards=6) as sharded, Queue("q", url=newest.url) as whole:
        jobs: list[Any] = [
            b"0",
            NewJob(b"1", id="i"),
            NewJob(b"2", id="j", key="k"),
            b"3",
            NewJob(b"4", key="l"),
        ]
        receipts = [*sharded.enqueue_many(jobs), whole.enqueue(b"5")]
        leases = {
            int(lease.job.payload): lease
            for lease in [*sharded.lease_many(5), *whole.lease_many(1)]
        }
        assert leases[2].complete(b"two")
        ended = as_completed(receipts, timeout=PATIENCE)
        assert next(ended) is receipts[2]
        ends: dict[int, Callable[[], Any]] = {
            0: lambda: leases[0].complete(b"none"),
            5: lambda: leases[5].complete(b"five"),
            1: lambda: leases[1].dead_letter("no"),
            4: lambda: sharded.cancel(receipts[4].id),
            3: leases[3].complete,
        }
        for number, end in ends.items():
            timer = threading.Timer(0.05, end)
            timer.start()
            assert next(ended) is receipts[number]
            timer.join()
        assert list(ended) == []
        assert [receipts[n].result() for n in (0, 2, 3, 5)] == [b"none", b"two", None, b"five"]
        with pytest.raises(JobFailed, match="is cancelled"):
            receipts[4].result()
        with pytest.raises(JobFailed, match="no"):
            receipts[1].result()


def test_of_a_sharded_queue_under_asyncio(newest: Server) -> None:
    async def story() -> None:
        async with AsyncQueue("s", url=newest.url, shards=6) as queue:
            receipts = [await queue.enqueue(b"%d" % n, key=f"k{n}") for n in range(9)]
            ended = as_completed(receipts, timeout=PATIENCE)
            waiting = asyncio.create_task(anext(ended))  # type: ignore[arg-type]
            for lease in await queue.lease_many(9):
                assert await lease.complete(lease.job.payload)
            found = [await waiting, *[receipt async for receipt in ended]]
            assert sorted([await receipt.result() for receipt in found]) == [
                b"%d" % n for n in range(9)
            ]
            late = as_completed([await queue.enqueue(b"x")], timeout=0.05)
            with pytest.raises(TimeoutError, match="1 jobs have not ended"):
                await anext(late)

    asyncio.run(story())


def test_their_time(newest: Server) -> None:
    async def story() -> None:
        async with AsyncQueue("q", url=newest.url) as queue:
            ended = as_completed([await queue.enqueue(b"x")], timeout=0.1)
            with pytest.raises(TimeoutError, match=r"1 jobs have not ended within 0\.1 s: '"):
                await anext(ended)

    with Queue("q", url=newest.url) as queue:
        receipts = queue.enqueue_many([b"x"] * 7)
        ended = as_completed(receipts, timeout=0.2)
        timer = threading.Timer(0.0, lambda: queue.lease().complete(b"r"))  # type: ignore[union-attr]
        timer.start()
        assert next(ended) is receipts[0]
        timer.join()
        began = time.monotonic()
        with pytest.raises(
            TimeoutError, match=r"6 jobs have not ended within 0\.2 s: .*, …; they go on"
        ):
            next(ended)
        assert time.monotonic() - began < PATIENCE
        with pytest.raises(TimeoutError):
            list(as_completed(receipts, timeout=0))
        queue.admin.purge()
    asyncio.run(story())


def test_none_at_all() -> None:
    async def story() -> list[Any]:
        return [receipt async for receipt in as_completed(iter(()))]

    assert list(as_completed([])) == asyncio.run(story()) == []


def test_what_is_no_receipt_is_refused(newest: Server) -> None:
    refused: Any = as_completed
    with Queue("q", url=newest.url) as queue:
        receipt = queue.enqueue(b"x")
        with pytest.raises(TypeError, match="receipts must be receipts of enqueue"):
            refused([receipt.id])
        with pytest.raises(ConfigurationError, match="knows no queue"):
            refused([Receipt("i", True)])
        with pytest.raises(ValueError, match="timeout"):
            refused([receipt], timeout=-1)

        async def story() -> None:
            async with AsyncQueue("q", url=newest.url) as other:
                with pytest.raises(TypeError, match="not of both"):
                    refused([receipt, await other.enqueue(b"x")])

        asyncio.run(story())
