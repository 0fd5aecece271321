"""A caller for the result of a cancelled or failed run, or of one of its jobs, is told how it
ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import FanOut, JobFailed, NewJob, Next
from tests.flows.conftest import Flows, shop
from tests.steps.test_undone import run
from tests.support.awaiting import PATIENCE
from tests.support.colours import Connect

CANCELS = "headrace:{shop}:shop/%s:cancels"


def refused(ask: Callable[[], Any]) -> tuple[str, str]:
    """Return the id and the state that the error names."""
    with pytest.raises(JobFailed) as caught:
        ask()
    return caught.value.id, caught.value.state


def told(flows: Flows, stage: str, name: str) -> None:
    """Check that the flow and the stage's queue tell of the cancellation, with and without a
    wait."""
    for asked in (flows.flow, flows.queues[stage]):
        for timeout in (0, PATIENCE):
            assert refused(lambda asked=asked, timeout=timeout: asked.result(name, timeout)) == (
                name,
                "cancelled",
            )
    assert flows.queues[stage].results([name], timeout=PATIENCE) == {}


def fanned(flows: Flows, *names: str, **options: Any) -> None:
    """Begin the run `o`, which waits in `pick` for children in `pack`."""
    assert flows.flow.start(b"order", id="o").added
    assert flows.done(
        "pick", FanOut([NewJob(b"x", id=name) for name in names], stage="pack", **options)
    )


@pytest.mark.parametrize("where", ["waiting", "leased", "delayed", "next"])
def test_of_a_cancelled_run(flows: Flows, where: str) -> None:
    assert flows.flow.start(b"order", id="o", delay=3600 if where == "delayed" else None).added
    if where == "leased":
        flows.lease("pick")
    elif where == "next":
        assert flows.done("pick", b"picked")
    assert flows.flow.cancel("o")
    told(flows, "bill" if where == "next" else "pick", "o")


def test_of_a_run_that_waited_and_of_its_children(flows: Flows) -> None:
    fanned(flows, "a", "b")
    (lease,) = flows.queues["pack"].lease_many(1)
    assert flows.flow.cancel("o")
    assert not lease.complete(b"r")
    told(flows, "pick", "o")
    for name in ("o/1/a", "o/1/b"):
        told(flows, "pack", name)


@pytest.mark.parametrize("way", ["cancel", "cancel_payload"])
def test_of_a_job_that_was_cancelled_in_its_queue(flows: Flows, way: str) -> None:
    """This holds even before the flow has seen the cancellation."""
    assert flows.flow.start(b"order", id="o").added
    pick = flows.queues["pick"]
    assert pick.cancel("o") if way == "cancel" else pick.admin.cancel_payload(b"order")
    assert refused(lambda: pick.result("o")) == ("o", "cancelled")
    told(flows, "pick", "o")


def test_of_a_child_that_another_one_had_cancelled(flows: Flows) -> None:
    """The parent's reason names the cancellation."""
    fanned(flows, "a", "b", failed="cancel")
    leases = {lease.job.id: lease for lease in flows.lease("pack", 2)}
    assert leases["o/1/a"].dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    told(flows, "pack", "o/1/b")
    for asked in (flows.flow, flows.queues["pack"]):
        with pytest.raises(JobFailed) as caught:
            asked.result("o/1/a", PATIENCE)
        assert (caught.value.id, caught.value.state, caught.value.reason) == (
            "o/1/a",
            "dead",
            "why",
        )
    for asked in (flows.flow, flows.queues["pick"]):
        with pytest.raises(JobFailed, match="first o/1/a: why"):
            asked.result("o", PATIENCE)


@pytest.mark.parametrize("how", ["the flow", "a sibling"])
def test_the_children_that_a_cancelled_jobs_run_has_started(flows: Flows, how: str) -> None:
    """They are cancelled, with their own children."""
    fanned(flows, "a", "b", failed="cancel")
    jobs = {lease.job.id: lease for lease in flows.lease("pack", 2)}
    sub = flows.connect("shop/sub")
    run(sub, jobs["o/1/b"].job.start(("shop/sub", b"")))
    (child,) = sub.lease_many(1)
    run(sub, child.job.start(("shop/sub", b"")))
    if how == "the flow":
        assert flows.flow.cancel("o")
    else:
        assert jobs["o/1/a"].dead_letter("why")
        assert flows.flow.state("o").state == "failed"
    assert (sub.counts().present, sub.counts().cancelled) == (0, 2)


@pytest.mark.parametrize("history", [0, 10])
def test_of_a_child_that_completes_while_it_is_cancelled(flows: Flows, history: int) -> None:
    if history:
        pack = flows.queues["pack"] = flows.connect("shop/pack", history=history)
        assert pack.lease() is None
    fanned(flows, "x")
    (x,) = flows.lease("pack")
    ops: Any = flows.flow.ops
    assert flows.connect("shop/pick")._run(ops.advance([ops.cancelling("o")])) == [True]
    assert flows.flow.complete(x, Next(None, b"r"))
    told(flows, "pack", "o/1/x")


def test_a_result_of_an_earlier_job_is_no_answer(flows: Flows) -> None:
    pick = flows.queues["pick"]
    pick.enqueue(b"x", id="o")
    assert pick.lease().complete(b"old")
    assert flows.flow.start(b"order", id="o").added
    assert flows.flow.cancel("o")
    told(flows, "pick", "o")


ENTERS: dict[str, Callable[[Flows], tuple[str, str]]] = {}


def enters(stage: str, name: str = "o") -> Callable[[Callable[[Flows], None]], None]:
    """Bring the job *name* to a stage in one of the ways."""

    def keep(act: Callable[[Flows], None]) -> None:
        ENTERS[act.__name__] = lambda flows: act(flows) or (stage, name)  # type: ignore[func-returns-value]

    return keep


@enters("pick")
def start(flows: Flows) -> None:
    assert flows.flow.start(b"order", id="o").added


@enters("pick")
def start_later(flows: Flows) -> None:
    assert flows.flow.start(b"order", id="o", delay=3600).added


@enters("bill")
def move_on(flows: Flows) -> None:
    assert flows.flow.start(b"order", id="o").added
    assert flows.done("pick")


@enters("pack", "o/1/c")
def child(flows: Flows) -> None:
    fanned(flows, "c")


@enters("pack", "o/1/c")
def child_later(flows: Flows) -> None:
    assert flows.flow.start(b"order", id="o").added
    assert flows.done("pick", FanOut([NewJob(b"x", id="c", delay=3600)], stage="pack"))


@pytest.mark.parametrize("way", ENTERS)
def test_a_new_job_of_its_id_was_not_cancelled(flows: Flows, way: str, client: redis.Redis) -> None:
    for stage, name in (("pick", "o"), ("bill", "o"), ("pack", "o/1/c")):
        flows.queues[stage].enqueue(b"x", id=name)
        assert flows.queues[stage].cancel(name)
    stage, name = ENTERS[way](flows)
    with pytest.raises(TimeoutError):
        flows.queues[stage].result(name)
    assert client.zscore(CANCELS % stage, name) is None


def test_a_run_of_the_same_id_was_not_cancelled(flows: Flows) -> None:
    fanned(flows, "c")
    assert flows.flow.cancel("o")
    fanned(flows, "c")
    for stage, name in (("pick", "o"), ("pack", "o/1/c")):
        with pytest.raises(TimeoutError):
            flows.queues[stage].result(name)
    assert flows.flow.result("o") is None
    for stage in ("pack", "weigh", "bill"):
        assert flows.done(stage)
    assert flows.done("send", b"sent")
    assert flows.flow.result("o", PATIENCE) == b"sent"


def test_a_child_that_is_created_again_was_not_cancelled(flows: Flows) -> None:
    fanned(flows, "c")
    assert flows.flow.cancel("o/1/c")
    told(flows, "pack", "o/1/c")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive("o") == 1
    assert flows.done("pick", FanOut([NewJob(b"x", id="c")], stage="pack"))
    with pytest.raises(TimeoutError):
        flows.queues["pack"].result("o/1/c")
    assert flows.flow.result("o/1/c") is None


@pytest.mark.parametrize("way", ["flow", "plain"])
def test_a_stage_that_is_passed_again_has_no_earlier_result(flows: Flows, way: str) -> None:
    assert flows.flow.start(b"order", id="o").added
    assert flows.done("pick", b"first")
    assert flows.done("bill", Next("pick", b"again"))
    assert flows.flow.state("o").results == {"pick": b"first", "bill": b"again"}
    if way == "flow":
        assert flows.done("pick")
    else:
        assert flows.lease("pick")[0].complete()
    assert flows.flow.state("o").results == {"bill": b"again"}
    assert flows.done("bill", Next(None))
    assert flows.flow.result("o", PATIENCE) is None


def test_in_a_sharded_flow(connect: Connect) -> None:
    flows = shop(Flows(connect, shards=3))
    flows.queues = {name: connect(f"shop/{name}", shards=3) for name in flows.queues}
    fanned(flows, "a", "b")
    assert flows.flow.cancel("o")
    told(flows, "pick", "o")
    told(flows, "pack", "o/1/a")


def test_a_flow_that_cancels_nothing_pays_nothing(flows: Flows, client: redis.Redis) -> None:
    fanned(flows, "c")
    assert flows.flow.cancel("nosuch") is False
    assert client.keys(CANCELS % "*") == []
    assert flows.flow.cancel("o")
    assert client.pttl(CANCELS % "pick") > 0
