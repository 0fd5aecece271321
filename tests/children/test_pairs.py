"""Children, undo and `first` beside each other feature of queues."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from headrace import DeadLetter, Flow, Job, JobFailed, Limit, NewJob, Queue, Rate, Retry
from headrace.errors import ChildFailed, InDoubt
from headrace.testing import travel
from tests.children.bodies import Body, died, double, outcome, serve
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

PACKS = "orders/pack"


def packs_one(job: Job) -> Body:
    return (yield from outcome(job, (PACKS, job.payload)))


def three(job: Job) -> Body:
    """Run three children in the queue that the payload names, each for the tenant and with the key
    of the parent."""
    queue = job.payload.decode()
    calls = [NewJob(b"%d" % n, queue=queue, headers={"tenant": "a"}, key=job.key) for n in range(3)]
    return b" ".join((yield partial(job.run_all, calls)))


BESIDE: dict[str, dict[str, Any]] = {
    "fair": {"fair": "tenant"},
    "one at a time": {"limits": [Limit(1)]},
    "one of a tenant": {"fair": "tenant", "limits": [Limit(1, key="tenant")]},
    "ordered": {"ordered": True},
    "a rate": {"rate": Rate(20, per=1.0)},
    "history": {"history": 100},
    "priorities": {"priorities": 3},
}


@pytest.mark.parametrize("where", ["parents", "children", "both", "in two slots"])
@pytest.mark.parametrize("beside", [*BESIDE])
def test_a_queue_with(fleet: Running, newest: Server, beside: str, where: str) -> None:
    """The parents hold no slot, turn or key while they wait."""
    options = BESIDE[beside]
    parents = options if where != "children" else {}
    children = options if where != "parents" else {}
    below = "mail" if where == "in two slots" else PACKS
    serve(fleet, "orders", three, **parents)
    serve(fleet, below, double, **children)
    with newest.queue("orders", **parents) as orders, newest.queue(below, **children) as packs:
        with fleet:
            payload = below.encode()
            some = [
                orders.enqueue(NewJob(payload, headers={"tenant": "a"}, key=f"k{n % 2}"))
                for n in range(6)
            ]
            assert {one.result(PATIENCE) for one in some} == {b"00 11 22"}
        for queue in (orders, packs):
            assert queue.counts().present == 0
            assert not queue.admin.repair()


def test_children_in_batches(fleet: Running, orders: Queue[Any]) -> None:
    """A batch handler has no results. A failed batch fails each of its children."""

    def batch(jobs: list[Job]) -> None:
        if any(job.payload == b"bad" for job in jobs):
            raise DeadLetter("the batch")

    fleet.batch_handler(PACKS, max_size=1, retry=Retry(attempts=1))(batch)
    serve(fleet, "orders", packs_one)
    with fleet:
        assert orders.enqueue(b"x").result(PATIENCE) == b"ok None"
        assert orders.enqueue(b"bad").result(PATIENCE) == b"dead: the batch"


@pytest.mark.parametrize("how", ["due", "cancelled", "purged", "now"])
def test_a_delayed_child(
    fleet: Running, orders: Queue[Any], packs: Queue[Any], newest: Server, how: str
) -> None:
    def body(job: Job) -> Body:
        try:
            return (yield partial(job.run, NewJob(b"x", queue=PACKS, delay=3600)))
        except ChildFailed as failure:
            return failure.state.encode()

    serve(fleet, PACKS, double)
    serve(fleet, "orders", body)
    with fleet:
        receipt = orders.enqueue(b"", id="o")
        until(lambda: packs.counts().delayed and orders.counts().blocked, "a parent that waits")
        if how == "due":
            travel(newest.url, 4000)
        elif how == "cancelled":
            assert packs.cancel("o/pack")
        elif how == "purged":
            assert packs.admin.purge() == 1
        else:
            assert packs.admin.reschedule("o/pack", 0)
        assert receipt.result(PATIENCE) == {"cancelled": b"cancelled", "purged": b"deleted"}.get(
            how, b"xx"
        )


def test_a_stage_of_a_flow_runs_children(fleet: Running, newest: Server) -> None:
    """The job of the stage moves on with the children's results, and one child stays open."""
    flow = Flow("orders", url=newest.url)

    def check(job: Job) -> Body:
        some = yield partial(job.run_all, [("orders/other", b"1"), ("orders/other", b"2")])
        yield partial(job.start, ("orders/nobody", b"3"))
        return b" ".join(some)

    seen: list[Any] = []

    def ship(job: Job) -> None:
        seen.append((job.payload, job.results))

    kind = fleet._adapt
    flow.stage("check", next="ship")(kind(check))
    flow.stage("ship")(kind(ship))
    fleet.worker.flow(flow)
    serve(fleet, "orders/other", double)
    with flow, fleet:
        flow.start(b"x", id="r")
        until(lambda: flow.state("r").state == "completed", "its end")
    assert [str(results["check"]) for _, results in seen] == [str(b"11 22")]


def test_a_redriven_child_has_no_parent_any_more(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    """A parent that is redriven from the child's step runs a new child."""
    deaths: list[int] = []

    def child(job: Job) -> bytes:
        deaths.append(1)
        if len(deaths) == 1:
            raise DeadLetter("once")
        return job.payload * 2

    def body(job: Job) -> Body:
        return (yield partial(job.run, (PACKS, b"x")))

    serve(fleet, PACKS, child)
    serve(fleet, "orders", body)
    with fleet:
        with pytest.raises(JobFailed, match="once"):
            orders.enqueue(b"", id="o").result(PATIENCE)
        assert packs.admin.redrive() == 1
        until(lambda: packs.counts().completed == 1, "the end of the redriven child")
        found = orders.find("o")
        assert found is not None
        assert [step.state for step in found.steps] == ["dead"]
        assert orders.admin.redrive("o", from_step="pack") == 1
        assert orders.result("o", PATIENCE) == b"xx"
    assert len(deaths) == 3


def test_a_history_keeps_the_children(fleet: Running, orders: Queue[Any]) -> None:
    serve(fleet, PACKS, died)
    serve(fleet, "orders", packs_one)
    with fleet:
        assert orders.enqueue(b"x", id="o").result(PATIENCE) == b"dead: no such shelf"
    found = orders.find("o")
    assert found is not None
    assert [(one.name, one.state, one.queue, one.child) for one in found.steps] == [
        ("pack", "dead", PACKS, "o/pack")
    ]


def test_a_result_that_is_kept_for_no_time_reaches_the_parent(
    fleet: Running, orders: Queue[Any], newest: Server
) -> None:
    """The parent's record has it."""
    serve(fleet, PACKS, double, result_ttl=0.001)
    serve(fleet, "orders", packs_one)
    with fleet:
        assert orders.enqueue(b"x").result(PATIENCE) == b"ok xx"


def test_no_dead_letter_is_kept_of_a_child(fleet: Running, orders: Queue[Any]) -> None:
    serve(fleet, PACKS, died, dead_limit=0)
    serve(fleet, "orders", packs_one)
    with fleet:
        assert orders.enqueue(b"x").result(PATIENCE) == b"dead: no such shelf"


def test_a_step_that_is_taken_once_beside_children(fleet: Running, orders: Queue[Any]) -> None:
    """A child that waits does not put the step in doubt."""
    calls: list[int] = []

    def charge() -> int:
        calls.append(1)
        return len(calls)

    def body(job: Job) -> Body:
        try:
            first = yield partial(job.step, "charge", charge, once=True)
            got = yield partial(job.run, (PACKS, b"x"))
            again = yield partial(job.step, "again", charge, once=True)
        except InDoubt as doubt:
            return str(doubt).encode()
        return b"%d %s %d" % (first, got, again)

    serve(fleet, PACKS, double)
    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"").result(PATIENCE) == b"1 xx 2"


def test_a_parent_dies_with_undo_while_children_run(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    """The child outlives it. Its end finds the dead letter, and the redriven run begins again."""
    undone: list[bytes] = []

    def body(job: Job) -> Body:
        yield partial(job.step, "charge", bytes, undo=undone.append)
        yield partial(job.start, (PACKS, b"x"))
        if len(undone) == 0:
            raise DeadLetter("refused")
        return b"again"

    serve(fleet, "orders", body)
    with fleet:
        with pytest.raises(JobFailed, match="refused"):
            orders.enqueue(b"", id="o").result(PATIENCE)
        assert undone == [b""]
        assert packs.complete(packs.lease(), b"late")
        assert orders.admin.redrive() == 1
        assert orders.result("o", PATIENCE) == b"again"


def test_a_first_of_children_and_signals_and_undo(
    fleet: Running, orders: Queue[Any], packs: Queue[Any], newest: Server
) -> None:
    """A time-out wins, the run undoes its step, and cancels nothing."""
    undone: list[bytes] = []

    def body(job: Job) -> Body:
        yield partial(job.step, "charge", bytes, undo=undone.append)
        child = yield partial(job.start, (PACKS, b"x"))
        first = yield partial(
            job.first, done=child, yes=job.signal_of("yes"), late=job.timer(hours=1)
        )
        if first.name == "late":
            yield job.undo
        return first.name.encode()

    serve(fleet, "orders", body)
    with fleet:
        receipt = orders.enqueue(b"", id="o")
        until(lambda: orders.counts().delayed or orders.counts().blocked, "a wait")
        travel(newest.url, 4000)
        assert receipt.result(PATIENCE) == b"late"
    assert undone == [b""]
    assert packs.counts().waiting == 1


def test_a_moved_parent_goes_on_there(
    fleet: Running, orders: Queue[Any], packs: Queue[Any], newest: Server
) -> None:
    """It was released with an open child, and moved."""
    orders.enqueue(b"x", id="o")
    lease = orders.lease()
    lease.job.start((PACKS, b"x"), child="pack")
    assert lease.release()
    assert orders.admin.move("orders/new") == 1
    serve(fleet, "orders/new", packs_one)
    with newest.queue("orders/new") as new, fleet:
        until(lambda: new.counts().blocked, "a parent that waits")
        assert packs.complete(packs.lease(), b"moved")
        assert new.result("o", PATIENCE) == b"ok moved"


def test_a_job_that_is_leased_at_most_once_ends_as_a_child(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    serve(fleet, "orders", packs_one)
    with fleet:
        receipt = orders.enqueue(b"x")
        until(lambda: orders.counts().blocked, "a parent that waits")
        assert packs.lease(at_most_once=True)
        assert receipt.result(PATIENCE) == b"ok None"


def test_an_expired_and_a_failed_child_go_on(
    fleet: Running, orders: Queue[Any], packs: Queue[Any]
) -> None:
    """The end of a lease is no end of the job."""
    serve(fleet, "orders", packs_one)
    with fleet:
        receipt = orders.enqueue(b"x")
        until(lambda: orders.counts().blocked, "a parent that waits")
        assert packs.lease(duration=600)
        assert packs.admin.expire() == 1
        assert packs.complete(packs.lease(), b"second")
        assert receipt.result(PATIENCE) == b"ok second"
