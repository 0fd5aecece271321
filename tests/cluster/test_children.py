"""Runs with children, undo and builds on three masters. Children are in the slot of their parents,
or on another master."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest

from headrace import DeadLetter, Job, Queue, Retry
from headrace.errors import ChildFailed
from tests.support.awaiting import PATIENCE, until
from tests.support.cluster import Cluster
from tests.support.engines import KINDS, Running

Body = Generator[Any, Any, Any]


def serve(worker: Running, queue: str, body: Any, **options: Any) -> None:
    worker.handler(queue, **{"retry": Retry(attempts=1), "concurrency": 4, **options})(body)


def double(job: Job) -> bytes:
    return job.payload * 2


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_children_near_and_on_each_other_master(kind: str, cluster: Cluster) -> None:
    """Each master has parents, whose children are on all three."""
    names = cluster.groups()
    worker = Running(kind, url=cluster.url)

    def body(job: Job) -> Body:
        calls = [(f"{job.queue}/near", b"n"), *((f"{name}c", job.payload) for name in names)]
        some = yield partial(job.run_all, calls, at_most=2)
        child = yield partial(job.start, (f"{names[0]}c", b"s"))
        first = yield partial(job.first, done=child, late=job.timer(days=1))
        return b" ".join([*some, first.value])

    for name in names:
        serve(worker, name, body)
        serve(worker, f"{name}/near", double)
        serve(worker, f"{name}c", double)
    queues = [Queue(name, url=cluster.url) for name in names]
    with worker:
        for queue in queues:
            receipts = [queue.enqueue(b"x") for _ in range(3)]
            assert {one.result(PATIENCE) for one in receipts} == {b"nn xx xx xx ss"}
    for queue in queues:
        assert queue.counts().present == 0
        queue.close()


def test_ends_that_no_worker_served_and_a_cancel(cluster: Cluster) -> None:
    """The children wait on another master. One is cancelled, and the cancel of the other's parent
    goes down."""
    parents, others, _ = cluster.groups()
    worker = Running("threads", url=cluster.url)

    def body(job: Job) -> Body:
        try:
            yield partial(job.run, (others, job.payload))
        except ChildFailed as failure:
            return failure.state.encode()

    serve(worker, parents, body)
    with Queue(parents, url=cluster.url) as jobs, Queue(others, url=cluster.url) as there, worker:
        receipt = jobs.enqueue(b"x", id="one")
        jobs.enqueue(b"x", id="two")
        until(lambda: jobs.counts().blocked == 2, "parents that wait")
        children = {one.job.parent: one.job.id for one in there.admin.waiting()}
        assert there.cancel(children[parents, "one"])
        assert receipt.result(PATIENCE) == b"cancelled"
        assert jobs.cancel("two")
        assert there.counts().cancelled == 2


def test_a_master_that_is_away_stops_no_other(cluster: Cluster) -> None:
    """The parent goes on once the master of its child has come back."""
    parents, others, _ = cluster.groups()
    worker = Running("threads", url=cluster.url)

    def body(job: Job) -> Body:
        return (yield partial(job.run, (others, job.payload)))

    serve(worker, parents, body)
    serve(worker, f"{parents}/plain", double)
    with Queue(parents, url=cluster.url) as jobs, Queue(others, url=cluster.url) as there, worker:
        receipt = jobs.enqueue(b"x")
        until(lambda: jobs.counts().blocked, "a parent that waits")
        node = cluster.owner(others)
        with Queue(f"{parents}/plain", url=cluster.url) as plain:
            node.suspend()
            try:
                assert plain.enqueue(b"y").result(PATIENCE) == b"yy"
            finally:
                node.wake()
        assert there.complete(there.lease(), b"done")
        assert receipt.result(PATIENCE) == b"done"


def test_undo_and_builds(cluster: Cluster) -> None:
    """A run is undone, and another waits for the worker whose build began it."""
    undone: list[bytes] = []
    for name in cluster.groups():

        def body(job: Job) -> Body:
            yield partial(job.step, "charge", bytes, undo=undone.append)
            yield partial(job.wait_for, "go")
            raise DeadLetter("refused")

        queue = Queue(name, url=cluster.url)
        first = Running("threads", url=cluster.url, build="b1")
        serve(first, name, body, runs="same")
        with first:
            queue.enqueue(b"x", id="i")
            until(lambda queue=queue: queue.counts().blocked, "a run that waits")
        other = Running("threads", url=cluster.url, build="b2")
        serve(other, name, body, runs="same")
        again = Running("threads", url=cluster.url, build="b1")
        serve(again, name, body, runs="same")
        with other:
            assert queue.signal("i", "go") == "woke"
            until(
                lambda queue=queue: next(queue.admin.runs(waits_for="b1"), None),
                "that it is held back",
            )
            with again:
                until(lambda queue=queue: queue.counts().dead, "its death")
        queue.close()
    assert undone == [b""] * 3
