"""The tallies of workers. They are kept on the server without anybody who looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import DeadLetter, Job, NewJob, Queue, Retry
from headrace.inspect import Activity, Ends, Inspector, MachineWork
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]


def whole(activity: Activity) -> dict[str | None, Ends]:
    """Sum the kinds over all points."""
    kinds = {kind for point in activity.points for kind in point.kinds}
    return {
        kind: Ends.of(point.kinds[kind] for point in activity.points if kind in point.kinds)
        for kind in kinds
    }


def test_ends_by_kind(work: Work, queue: Queue, newest: Server) -> None:
    """A worker that stops has told all its counts, in both steps and for several queues."""
    worker = work()

    @worker.handler("q", concurrency=2, retry=Retry(attempts=3, wait=0.0))
    def handle(job: Job) -> bytes | None:
        if job.headers["kind"] == "bad" and job.attempt == 1:
            raise ValueError("once")
        if job.headers["kind"] == "bad":
            raise DeadLetter("twice")
        return b"kept" if job.headers["kind"] == "result" else None

    kinds = ["bad", "result", *["plain"] * 5]
    queue.enqueue_many([NewJob(b"x", headers={"kind": kind}) for kind in kinds])
    with worker:
        until(lambda: queue.counts().dead + queue.counts().completed == 7)
    with Inspector(url=newest.url) as inspector:
        for step in ("minute", "ten minutes"):
            activity = inspector.activity(["q", "nothing"], step)
            found = whole(activity)
            # kinds of done jobs are estimates: a report may come between a handler's end and its
            # settlement
            assert sum(one.done for one in found.values()) == 6
            assert {kind: (one.retried, one.died) for kind, one in found.items()} == {
                "bad": (1, 1),
                "result": (0, 0),
                "plain": (0, 0),
            }
            assert [sum(found[kind].runs) for kind in ("bad", "result", "plain")] == [2, 1, 5]
            assert 0 < (Ends.p95(found["plain"].runs) or 0) < 60
            assert Ends.p95(found["plain"].waits) is not None
            machines = [one for point in activity.points for one in point.machines.values()]
            assert sum(one.done for one in machines) == 6
            assert all(0 < (one.share or 0) <= 1 for one in machines if one.busy)


def test_the_kinds_of_many_jobs_are_estimated_and_their_number_is_exact(
    work: Work, queue: Queue, newest: Server
) -> None:
    worker = work()

    @worker.handler("q", concurrency=4)
    def handle(job: Job) -> None: ...

    queue.enqueue_many([NewJob(b"x", headers={"kind": "ab"[n % 2]}) for n in range(1000)])
    with worker:
        until(lambda: queue.counts().completed == 1000)
    with Inspector(url=newest.url) as inspector:
        found = whole(inspector.activity(["q"]))
    assert found.keys() == {"a", "b"}
    assert found["a"].done + found["b"].done == 1000
    assert found["a"].done == pytest.approx(500, abs=250)


def test_the_hour_of_a_tenant(work: Work, newest: Server) -> None:
    """The ends of each tenant's jobs are counted exactly, whatever its name is as long as."""
    worker = work()
    long = "l" * 300

    @worker.handler("q", fair="tenant", retry=Retry(attempts=1))
    def handle(job: Job) -> None:
        if job.payload == b"bad":
            raise ValueError("always")

    with Queue("q", url=newest.url, fair="tenant") as queue:
        for tenant in (long, "ben"):
            queue.enqueue_many([NewJob(b"x", headers={"tenant": tenant})] * 300)
            queue.enqueue(b"bad", headers={"tenant": tenant})
        queue.enqueue_many([b"x"] * 300)
        with worker:
            until(lambda: queue.counts().completed == 900 and queue.counts().dead == 2)
    with Inspector(url=newest.url) as inspector:
        (tenants,) = inspector.tenants()
        page = inspector.queue("q")
    for shares in (tenants.shares, page.shares):
        found = {one.value: [sum(row) for row in zip(*one.hour, strict=True)] for one in shares}
        assert found == {(long,): [300, 1], ("ben",): [300, 1], (None,): [300, 0]}
        assert {len(one.hour) for one in shares} == {60}


def test_none_are_kept_if_the_queue_is_to_have_no_trends(
    work: Work, queue: Queue, newest: Server
) -> None:
    worker = work()

    @worker.handler("q", trends=False)
    def handle(job: Job) -> None: ...

    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().completed == 1)
    with Inspector(url=newest.url) as inspector:
        assert inspector.activity(["q"]).points == ()
        with pytest.raises(ValueError, match="'minute' or 'ten minutes'"):
            inspector.activity(["q"], "hour")  # type: ignore[arg-type]


def test_p95() -> None:
    none = [0] * 16
    assert Ends.p95(none) is None
    assert Ends.p95([100, *none[1:]]) == pytest.approx(0.002, rel=0.1)
    assert Ends.p95([50, *none[2:], 50]) == pytest.approx(0.002 * 2.5**15, rel=0.15)
    assert MachineWork().share is None
