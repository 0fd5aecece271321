"""A cancelled job has failed. Every caller for its result learns it within `result_ttl`, with or
without a history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace import AsyncQueue, JobFailed, NewJob, Queue, Replace, Tasks, as_completed
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import key, leased

WAYS: dict[str, Callable[[Any], Any]] = {
    "by id": lambda queue: queue.cancel("i"),
    "by payload": lambda queue: queue.admin.cancel_payload(b"x"),
}


def refused(ask: Callable[[], Any]) -> tuple[str, str]:
    """Return the id and the state that the error names."""
    with pytest.raises(JobFailed) as caught:
        ask()
    return caught.value.id, caught.value.state


@pytest.mark.parametrize(
    "options", [{}, {"history": 10}, {"shards": 3}], ids=["plain", "history", "shards"]
)
@pytest.mark.parametrize("way", WAYS)
def test_all_who_ask_are_told(connect: Connect, way: str, options: dict[str, Any]) -> None:
    queue = connect(**options)
    receipt = queue.enqueue(b"x", id="i")
    other = queue.enqueue(b"x") if way == "by payload" else receipt
    assert WAYS[way](queue)
    for asking in (queue, connect(**options)):
        for name in {"i", other.id}:
            assert refused(partial(asking.result, name)) == (name, "cancelled")
            assert refused(partial(asking.result, name, timeout=PATIENCE)) == (name, "cancelled")
    assert refused(lambda: receipt.result(timeout=PATIENCE)) == ("i", "cancelled")
    began = time.monotonic()
    assert queue.results(["i", other.id], timeout=2 * PATIENCE) == {}
    assert time.monotonic() - began < PATIENCE  # it waited for none of them


@pytest.mark.parametrize(
    "options", [{}, {"history": 10}, {"shards": 3}], ids=["plain", "history", "shards"]
)
def test_a_result_of_an_earlier_job_is_no_answer(connect: Connect, options: dict[str, Any]) -> None:
    """The earlier job of the id was completed, and the last one was cancelled. The cancellation is
    the answer."""
    queue = connect(**options)
    assert leased(queue, id="i").complete(b"old")
    receipt = queue.enqueue(b"x", id="i")
    assert queue.cancel("i")
    for ask in (lambda: queue.result("i"), lambda: queue.result("i", PATIENCE), receipt.result):
        assert refused(ask) == ("i", "cancelled")
    assert queue.results(["i"], timeout=0) == {}
    again = queue.enqueue(b"x", id="i")
    assert queue.lease().complete(b"new")
    assert (queue.result("i"), again.result()) == (b"new", b"new")


def test_as_completed(newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        receipts = [queue.enqueue(b"x", id="i"), queue.enqueue(b"x")]
        assert queue.admin.cancel_payload(b"x") == 2
        ended = [*as_completed(receipts, timeout=PATIENCE)]
        assert {refused(one.result) for one in ended} == {(one.id, "cancelled") for one in receipts}


def test_as_completed_under_asyncio(newest: Server) -> None:
    async def story() -> None:
        async with AsyncQueue("q", url=newest.url) as queue:
            receipt = await queue.enqueue(b"x")
            assert await queue.cancel(receipt.id)
            async for one in as_completed([receipt], timeout=PATIENCE):
                with pytest.raises(JobFailed, match="is cancelled"):
                    await one.result()

    asyncio.run(story())


@pytest.mark.parametrize("leased", [False, True])
def test_a_job_that_was_cancelled_one_by_one(connect: Connect, leased: bool) -> None:
    """The job is cancelled by its entry, in every state."""
    queue = connect()
    receipt = queue.enqueue(b"x")
    lease = queue.lease() if leased else None
    assert queue.cancel(receipt.id)
    assert lease is None or not lease.complete(b"r")
    assert refused(lambda: queue.result(receipt.id)) == (receipt.id, "cancelled")


ADDS: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda queue: queue.enqueue(b"y", id="i"),
    "delayed": lambda queue: queue.enqueue(b"y", id="i", delay=0.001),
    "enqueue_many": lambda queue: queue.enqueue_many([b"z", NewJob(b"y", id="i")]),
    "conditions": lambda queue: queue.enqueue(b"y", id="i", if_exists=Replace()),
    "room": lambda queue: queue.enqueue(b"y", id="i", full="raise"),
    "then": lambda queue: leased(queue, b"z").complete(then=[NewJob(b"y", id="i")]),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", ADDS)
@pytest.mark.parametrize("options", [{}, {"max_waiting": 10}], ids=["plain", "bounded"])
def test_a_new_job_of_its_id_was_not_cancelled(
    connect: Connect, how: str, options: dict[str, Any]
) -> None:
    queue = connect(**options)
    queue.enqueue(b"x", id="i")
    assert queue.cancel("i")
    ADDS[how](queue)
    with pytest.raises(TimeoutError):
        queue.result("i")
    done = set[str]()
    while "i" not in done:
        lease = queue.lease(PATIENCE)
        assert lease.complete()
        done.add(lease.job.id)
    assert queue.result("i") is None


def test_a_dead_letter_that_is_redriven_was_not_cancelled(queue: Any) -> None:
    assert leased(queue, id="i").dead_letter("why")
    queue.enqueue(b"x", id="i")
    assert queue.cancel("i")
    assert queue.admin.redrive("i") == 1
    assert queue.lease().complete()
    assert queue.result("i") is None


def test_a_job_that_is_moved_there_was_not_cancelled(connect: Connect) -> None:
    here, there = connect("g/here"), connect("g/there")
    there.enqueue(b"x", id="i")
    assert there.cancel("i")
    here.enqueue(b"x", id="i")
    assert here.admin.move("g/there", "i") == 1
    assert there.lease().complete()
    assert there.result("i") is None


def test_a_follow_up_for_another_shard_was_not_cancelled(connect: Connect) -> None:
    queue = connect(shards=3)
    queue.enqueue(b"x", id="i")
    assert queue.cancel("i")
    names = [f"other{number}" for number in range(6)]  # of all shards
    for name in names:
        queue.enqueue(b"x", id=name)
    for number, lease in enumerate(queue.lease_many(6)):
        assert lease.complete(then=[NewJob(b"y", id="i")] if not number else [])
    until(lambda: (lease := queue.lease(0.1)) and lease.complete())
    assert queue.result("i", timeout=0) is None


@pytest.mark.differs("keys")
def test_it_is_told_for_the_time_of_results(connect: Connect, client: Any) -> None:
    """The record of a cancellation ends after `result_ttl`, and no key is left."""
    queue = connect(result_ttl=0.05)
    queue.enqueue(b"x", id="a")
    assert queue.cancel("a")
    until(lambda: not client.exists(key("cancels")))
    assert queue.result("a") is None
    lasting = connect(result_ttl=3600)
    lasting.enqueue(b"x", id="b")
    queue.enqueue(b"x", id="c")
    assert lasting.cancel("b")
    assert queue.cancel("c")
    until(lambda: not _told(queue, "c"))
    lasting.enqueue(b"x", id="d")
    assert lasting.cancel("d")
    assert {name.decode() for name in client.zrange(key("cancels"), 0, -1)} == {"b", "d"}
    assert 0 < client.pttl(key("cancels")) <= 3600_000


def _told(queue: Any, id: str) -> bool:
    try:
        queue.result(id)
    except JobFailed:
        return True
    return False


def test_a_queue_that_cancels_nothing_pays_nothing(queue: Any, client: Any) -> None:
    assert leased(queue, id="a").complete()
    assert queue.cancel("nosuch") is False
    assert not client.exists(key("cancels"))


def test_the_result_of_a_task(newest: Server) -> None:
    with Tasks("t", newest.url) as tasks:

        @tasks.task
        def add(a: int) -> int:
            return a

        receipt = add.enqueue(1)
        assert tasks.queue.cancel(receipt.id)
        for ask in (
            receipt.result,
            add.receipt(receipt.id).result,
            lambda: tasks.result(receipt.id),
        ):
            assert refused(ask) == (receipt.id, "cancelled")
