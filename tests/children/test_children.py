"""Children of runs. A run starts them, waits for them, and learns how each of them ended."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from headrace import AsyncTasks, Job, JobFailed, NewJob, Queue, Retry, Tasks
from headrace.errors import ChildFailed, ConfigurationError, RunSuspended
from tests.children.bodies import Body, died, double, failed, outcome, serve
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server


def one_child(job: Job) -> Body:
    return (yield from outcome(job, ("orders/pack", job.payload)))


def test_results_come_in_the_order_of_the_calls(
    fleet: Running, orders: Queue[Any], newest: Server
) -> None:
    kind: Any = Tasks if fleet.kind == "threads" else AsyncTasks
    tasks = kind("orders/quote", url=newest.url)

    @tasks.task(name="quote")
    def task(region: str, factor: int = 1) -> int:
        return len(region) * factor

    fleet.worker.tasks(tasks)

    def body(job: Job) -> Body:
        one = yield partial(job.run, task, "abc", factor=2)
        some = yield partial(job.run_all, [(task, "x" * n) for n in range(5)])
        slow = yield partial(job.run_all, [(task, "x" * n) for n in range(5)], at_most=2)
        named = yield partial(job.run, task, "ab", child="named")
        return f"{one} {some} {slow} {named}".encode()

    serve(fleet, "orders", body)
    with fleet:
        receipt = orders.enqueue(b"", id="o-1")
        assert receipt.result(PATIENCE) == b"6 [0, 1, 2, 3, 4] [0, 1, 2, 3, 4] 2"
    found = orders.find("o-1")
    assert found is not None
    names = [step.name for step in found.steps]
    assert names == ["quote", *(f"quote-{n}" for n in range(2, 12)), "named"]
    assert {step.state for step in found.steps} == {"done"}
    assert (found.steps[0].queue, found.steps[0].child) == ("orders/quote", "o-1/quote")
    assert found.steps[0].result == 6


def test_a_child_knows_its_parent(fleet: Running, orders: Queue[Any]) -> None:
    seen: list[Any] = []

    def child(job: Job) -> None:
        seen.append((job.id, job.parent))

    serve(fleet, "orders/pack", child)
    serve(fleet, "orders", one_child)
    with fleet:
        assert orders.enqueue(b"x", id="o-1").result(PATIENCE) == b"ok None"
    assert seen == [("o-1/pack", ("orders", "o-1"))]


@pytest.mark.parametrize(
    ("child", "expected"),
    [(died, b"dead: no such shelf"), (failed, b"dead: ValueError: unlucky"), (double, b"ok xx")],
)
def test_the_end_of_a_handler_reaches_the_parent(
    fleet: Running, orders: Queue[Any], child: Any, expected: bytes
) -> None:
    serve(fleet, "orders/pack", child)
    serve(fleet, "orders", one_child)
    with fleet:
        assert orders.enqueue(b"x").result(PATIENCE) == expected


@pytest.mark.parametrize("how", ["cancelled", "deleted", "purged"])
def test_the_removal_of_a_child_reaches_the_parent(
    fleet: Running, orders: Queue[Any], packs: Queue[Any], how: str
) -> None:
    """No worker serves the child's queue, so the child waits until it is removed."""
    serve(fleet, "orders", one_child)
    with fleet:
        receipt = orders.enqueue(b"x", id="o")
        until(lambda: orders.counts().blocked, "a parent that waits")
        if how == "cancelled":
            assert packs.cancel("o/pack")
        elif how == "deleted":
            assert packs.admin.delete() == 1
        else:
            assert packs.admin.purge() == 1
        said = b"cancelled: None" if how == "cancelled" else b"deleted: None"
        assert receipt.result(PATIENCE) == said


def test_a_failure_that_passes_buries_the_parent_at_once(
    fleet: Running, orders: Queue[Any]
) -> None:
    calls: list[int] = []

    def body(job: Job) -> Body:
        calls.append(job.attempt)
        yield partial(job.run, ("orders/pack", b"x"))

    serve(fleet, "orders/pack", died)
    serve(fleet, "orders", body, retry=Retry(attempts=5, wait=0))
    with fleet, pytest.raises(JobFailed, match="no such shelf"):
        orders.enqueue(b"", id="o").result(PATIENCE)
    assert calls == [1, 1]
    found = orders.find("o")
    assert found is not None
    assert [(step.state, step.result) for step in found.steps] == [("dead", "no such shelf")]


def test_the_first_failure_cancels_the_others(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    """Nobody serves the others, and one is still to be started."""
    serve(fleet, "orders/bad", died)

    def body(job: Job) -> Body:
        calls = [("orders/pack", b"a"), ("orders/bad", b"b"), ("orders/pack", b"c")]
        try:
            yield partial(job.run_all, [*calls, ("orders/pack", b"d")], at_most=3)
        except ChildFailed as failure:
            return str(failure.reason).encode()

    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"", id="o").result(PATIENCE) == b"no such shelf"
    counts = packs.counts()
    assert (counts.enqueued, counts.cancelled, counts.waiting) == (2, 2, 0)


def test_others_are_waited_for_if_told(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    serve(fleet, "orders/bad", died)

    def body(job: Job) -> Body:
        calls = [("orders/pack", b"a"), ("orders/bad", b"b")]
        try:
            yield partial(job.run_all, calls, failed="wait")
        except ChildFailed as failure:
            return str(failure.reason).encode()

    serve(fleet, "orders", body)
    with fleet:
        receipt = orders.enqueue(b"", id="o")
        until(lambda: open_children(orders, "o") == ["pack"], "one failure")
        until(lambda: orders.counts().blocked, "a wait for the other")
        assert packs.complete(packs.lease())
        assert receipt.result(PATIENCE) == b"no such shelf"


def open_children(queue: Queue[Any], id: str) -> list[str]:
    found = queue.find(id)
    steps = () if found is None else found.steps
    return [step.name for step in steps if step.state == "running"]


def test_cancel_goes_down(fleet: Running, orders: Queue[Any], packs: Queue[Any]) -> None:
    def middle(job: Job) -> Body:
        yield partial(job.run_all, [("orders/pack", b"a"), ("orders/pack", b"b")])

    def body(job: Job) -> Body:
        yield partial(job.run, ("orders/middle", b""))

    serve(fleet, "orders/middle", middle)
    serve(fleet, "orders", body)
    with fleet:
        orders.enqueue(b"", id="o")
        until(lambda: packs.counts().waiting == 2, "grandchildren")
        assert orders.cancel("o")
        assert packs.counts().cancelled == 2
        orders.enqueue(b"", id="p")
        until(lambda: packs.counts().waiting == 2, "grandchildren")
        assert orders.cancel("p", cascade=False)
        assert packs.counts().waiting == 2


def waits_for(orders: Queue[Any], number: int) -> None:
    orders.enqueue(b"same")
    lease = orders.lease()
    assert lease is not None
    with pytest.raises(RunSuspended):
        lease.job.run_all([("orders/pack", b"")] * number)


def test_children_without_results_complete_beside_other_jobs(
    orders: Queue[Any], packs: Queue[Any]
) -> None:
    """Their queue keeps nothing but links, and their parent learns of each once."""
    waits_for(orders, 3)
    packs.enqueue(b"", id="other")
    leases = packs.lease_many(10)
    assert packs.complete_many(leases) == [True] * 4
    assert packs.complete_many(leases) == [False] * 4
    lease = orders.lease(block=PATIENCE)
    assert lease is not None
    assert lease.job.run_all([("orders/pack", b"")] * 3) == [None] * 3
    assert packs.counts().completed == 4


def test_the_cancel_of_a_payload_goes_down(orders: Queue[Any], packs: Queue[Any]) -> None:
    """A call reads the children of some runs, and the next call reads the children of others."""
    for _ in range(6):
        waits_for(orders, 600)
    assert orders.admin.cancel_payload(b"same") == 6
    assert packs.counts().cancelled == 3600
    waits_for(orders, 2)
    assert orders.admin.cancel_payload(b"same", cascade=False) == 1
    assert packs.counts().waiting == 2


def test_the_cancel_of_a_payload_goes_down_from_delayed_jobs(
    orders: Queue[Any], packs: Queue[Any]
) -> None:
    for _ in range(4):
        orders.enqueue(b"same")
        lease = orders.lease()
        assert lease is not None
        for number in range(300):
            lease.job.start(("orders/pack", b""), child=f"{number:0200}")
        assert lease.retry(delay=1000)
    assert orders.admin.cancel_payload(b"same") == 4
    assert (packs.counts().cancelled, orders.counts().delayed) == (1200, 0)


def test_the_first_of_several_is_the_same_in_each_delivery(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    chosen: list[Any] = []

    def body(job: Job) -> Body:
        child = yield partial(job.start, ("orders/pack", b"x"))
        early = yield partial(job.first, late=job.timer(seconds=0), done=child)
        one = yield partial(
            job.first, approved=job.signal_of("approved"), late=job.timer(days=7), done=child
        )
        two = yield partial(
            job.first, other=job.signal_of("approved"), late=job.timer(seconds=0.01)
        )
        chosen.append((early, one, two))
        yield partial(job.wait_for, "go")
        last = yield partial(job.first, late=job.timer(seconds=0), done=child)
        return f"{early.name} {one.name} {one.value} {two.name} {last.name}".encode()

    serve(fleet, "orders", body)
    with fleet:
        receipt = orders.enqueue(b"", id="o")
        until(lambda: orders.counts().blocked, "a wait for the first")
        orders.signal("o", "approved", {"by": "Ann"})
        until(lambda: chosen, "a choice")
        assert packs.complete(packs.lease())
        orders.signal("o", "go")
        assert receipt.result(PATIENCE) == b"late approved {'by': 'Ann'} other done"
    assert len({str(one) for one in chosen}) == 1


def test_a_poll_sees_a_child_that_ended_in_this_delivery(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    def body(job: Job) -> Body:
        child = yield partial(job.start, ("orders/pack", b"x"))
        assert packs.complete(packs.lease())
        first = yield partial(job.first, late=job.timer(seconds=0), done=child)
        return first.name.encode()

    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"").result(PATIENCE) == b"done"


def test_a_child_may_be_the_first(fleet: Running, orders: Queue[Any]) -> None:
    def body(job: Job) -> Body:
        child = yield partial(job.start, ("orders/pack", b"x"))
        got = yield partial(job.first, approved=job.signal_of("approved"), done=child)
        return got.name.encode() + b" " + got.value

    serve(fleet, "orders/pack", double)
    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"").result(PATIENCE) == b"done xx"


def test_a_parent_that_waits_holds_no_slot(fleet: Running, orders: Queue[Any]) -> None:
    """One slot serves a job, its child in the same queue, and the child of that."""

    def body(job: Job) -> Body:
        depth = int(job.payload)
        if depth == 3:
            return b"deep"
        return (yield partial(job.run, ("orders", b"%d" % (depth + 1))))

    serve(fleet, "orders", body, concurrency=1)
    with fleet:
        assert orders.enqueue(b"0", id="o").result(PATIENCE) == b"deep"


def test_eleven_below_each_other_are_refused(fleet: Running, orders: Queue[Any]) -> None:
    def body(job: Job) -> Body:
        return (yield partial(job.run, NewJob(job.payload)))

    serve(fleet, "orders", body)
    with fleet, pytest.raises(JobFailed, match="11th below each other"):
        orders.enqueue(b"", id="o").result(PATIENCE)


def test_a_result_that_is_too_large_is_said(fleet: Running, orders: Queue[Any]) -> None:
    def large(job: Job) -> bytes:
        return b"x" * 70_000

    def body(job: Job) -> Body:
        yield partial(job.run, ("orders/pack", b""))

    serve(fleet, "orders/pack", large)
    serve(fleet, "orders", body)
    with fleet, pytest.raises(JobFailed, match="result has 70,000 bytes"):
        orders.enqueue(b"").result(PATIENCE)


BAD = [
    (lambda job: job.run(("a/b/c", b"")), ConfigurationError, "queue name"),
    (lambda job: job.run(NewJob(b"", id="x")), ValueError, "made of its parent's"),
    (lambda job: job.run("pack"), TypeError, "a child is a task"),
    (lambda job: job.run(("orders/pack", b""), 1), TypeError, "only a task takes arguments"),
    (lambda job: job.run_all("pack"), TypeError, "list of children"),
    (
        lambda job: job.run_all([("orders/pack", b"")], failed="no"),
        ValueError,
        "'cancel' or 'wait'",
    ),
    (lambda job: job.run_all([("orders/pack", b"")], at_most=0), ValueError, "at_most"),
    (lambda job: job.first(), TypeError, "sources by name"),
    (lambda job: job.first(a="b"), TypeError, "signal_of"),
    (lambda job: job.timer(), ValueError, "days=7"),
    (lambda job: job.timer(seconds=0, until=datetime.now(UTC)), ValueError, "days=7"),
]


def test_bad_calls_are_refused(fleet: Running, orders: Queue[Any], packs: Queue[Any]) -> None:
    def body(job: Job) -> Body:
        for call, kind, words in BAD:
            with pytest.raises(kind, match=words):
                yield partial(call, job)
        return b"refused"

    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"").result(PATIENCE) == b"refused"
    assert packs.counts().enqueued == 0


def test_a_child_of_the_same_key_is_refused(fleet: Running, newest: Server) -> None:
    def body(job: Job) -> Body:
        with pytest.raises(ConfigurationError, match="behind its parent"):
            yield partial(job.run, NewJob(b"", key="k"))
        return b"refused"

    serve(fleet, "orders", body)
    with newest.queue("orders") as queue, fleet:
        assert queue.enqueue(b"", key="k").result(PATIENCE) == b"refused"
