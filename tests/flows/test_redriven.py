"""Dead letters of flows that are redriven by hand. A name that comes again is another job than
before."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import FanOut, NewJob, Next
from tests.flows.conftest import Flows

RUN = "headrace:{shop}:shop:flow:"


def children(*names: str, failed: str = "fail", stage: str = "pack") -> FanOut:
    return FanOut([NewJob(name.encode(), id=name) for name in names], stage=stage, failed=failed)


def fanned(flows: Flows, *names: str, failed: str = "fail", fresh: bool = True) -> None:
    """Let the job in the first stage wait for children."""
    if fresh:
        assert flows.flow.start(b"order", id="o").added
    assert flows.done("pick", children(*names, failed=failed))


def bury(flows: Flows, *names: str, stage: str = "pack") -> None:
    """Let these jobs of a stage die, and complete all its others."""
    for lease in flows.queues[stage].lease_many(100):
        if lease.job.id.rpartition("/")[2] in names:
            assert lease.dead_letter("why")
        else:
            assert flows.flow.complete(lease, Next(None, b"r"))


def twice(flows: Flows, failed: str) -> None:
    """Redrive a dead parent that now waits for `z` and `y`, and no longer for `x`, which is
    dead."""
    fanned(flows, "x", failed=failed)
    bury(flows, "x")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive("o") == 1
    fanned(flows, "z", "y", failed=failed, fresh=False)


@pytest.mark.parametrize("failed", ["fail", "cancel"])
def test_a_child_of_an_earlier_fan_out_counts_for_none(flows: Flows, failed: str) -> None:
    """The parent does not wait for it, and does not count it as successful."""
    twice(flows, failed)
    assert flows.queues["pack"].admin.redrive("o/1/x") == 1
    assert flows.flow.state("o").pending == 2
    (x,) = [lease for lease in flows.lease("pack", 3) if lease.job.id == "o/1/x"]
    assert flows.flow.complete(x, Next(None))
    assert (flows.flow.state("o").state, flows.flow.state("o").pending) == ("blocked", 2)
    flows.queues["pack"].admin.expire()
    bury(flows, "y")
    assert flows.flow.state("o").state == "failed"
    assert flows.now() == {"pick": {"dead": 1}, "pack": {"dead": 1}}


def test_the_end_of_a_child_of_an_earlier_fan_out_fires_no_join(flows: Flows) -> None:
    twice(flows, "fail")
    assert flows.queues["pack"].admin.redrive() == 1
    flows.flow.state("o")  # somebody has seen it
    leases = {lease.job.id: lease for lease in flows.lease("pack", 3)}
    for name in ("o/1/x", "o/1/z"):
        assert flows.flow.complete(leases[name], Next(None))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"leased": 1}}
    assert flows.flow.complete(leases["o/1/y"], Next(None))
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_child_of_both_fan_outs_counts_for_the_second(flows: Flows) -> None:
    fanned(flows, "x", "y")
    bury(flows, "x", "y")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive() == 1
    (lease,) = flows.lease("pick")
    assert flows.queues["pack"].admin.redrive("o/1/x") == 1  # not seen by anybody
    assert flows.flow.complete(lease, children("x", "z"))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 2, "dead": 1}}
    bury(flows)
    assert flows.flow.state("o").children == {"x": b"r", "z": b"r"}
    assert flows.now() == {"bill": {"waiting": 1}, "pack": {"dead": 1}}


def test_no_join_fires_while_a_child_that_nobody_has_seen_redriven_runs(flows: Flows) -> None:
    fanned(flows, "x", "y")
    x, y = flows.lease("pack", 2)
    x.dead_letter("why")
    assert flows.flow.state("o").failed == ("x",)
    assert flows.queues["pack"].admin.redrive() == 1
    assert flows.flow.complete(y, Next(None))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 1}}
    bury(flows)
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_child_that_dies_again_before_anybody_saw_it_redriven_has_failed_once(
    flows: Flows,
) -> None:
    fanned(flows, "x", "y")
    x, y = flows.lease("pack", 2)
    x.dead_letter("why")
    assert flows.flow.state("o").pending == 1
    assert flows.queues["pack"].admin.redrive() == 1
    flows.lease("pack")[0].dead_letter("again")
    state = flows.flow.state("o")
    assert (state.state, state.failed, state.pending) == ("blocked", ("x",), 1)
    assert flows.flow.complete(y, Next(None))
    assert flows.flow.state("o").state == "failed"
    assert flows.now() == {"pick": {"dead": 1}, "pack": {"dead": 1}}


def straggler(flows: Flows) -> None:
    """Make a failed run, of which a child was redriven and waits for its own child."""
    assert flows.flow.start(b"order", id="o").added
    assert flows.done("pick", children("x", stage="pick"))
    flows.lease("pick")[0].dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive("o/1/x") == 1
    flows.flow.state("o")
    assert flows.done("pick", children("a"))
    assert flows.now() == {"pick": {"blocked": 1, "dead": 1}, "pack": {"waiting": 1}}


def test_an_id_is_taken_while_a_job_of_its_run_goes_on(flows: Flows, client: redis.Redis) -> None:
    straggler(flows)
    assert client.ttl(RUN + "o") == -1
    assert not flows.flow.start(b"order", id="o").added
    bury(flows)
    for stage in ("bill", "send"):
        assert flows.done(stage)
    assert flows.now() == {"pick": {"dead": 1}}
    assert client.ttl(RUN + "o") > 0
    assert flows.flow.start(b"order", id="o").added


def test_what_is_known_of_a_run_is_kept_while_a_job_of_it_goes_on(
    flows: Flows, client: redis.Redis
) -> None:
    """Otherwise the job would wait for its children for ever."""
    straggler(flows)
    assert flows.flow.cancel("o/1/x/1/a")
    assert flows.flow.state("o/1/x").state == "failed"
    assert flows.now() == {"pick": {"dead": 2}}
    assert client.ttl(RUN + "o") > 0


def test_a_run_ends_with_its_last_job(flows: Flows, client: redis.Redis) -> None:
    """A run that goes on without its child ends while that is redriven."""
    fanned(flows, "x", failed="continue")
    bury(flows, "x")
    flows.flow.state("o")
    assert flows.queues["pack"].admin.redrive() == 1
    for stage in ("bill", "send"):
        assert flows.done(stage)
    assert flows.flow.state("o").state == "completed"
    assert client.ttl(RUN + "o") == -1
    bury(flows)
    assert client.ttl(RUN + "o") > 0


@pytest.mark.parametrize("seen", [False, True])
def test_a_redriven_job_whose_queue_is_deleted_is_gone_for_its_run_too(
    flows: Flows, seen: bool
) -> None:
    flows.flow.start(b"order", id="o")
    flows.lease("pick")[0].dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive() == 1
    if seen:
        assert flows.flow.state("o").state == "running"
    assert flows.queues["pick"].admin.delete() == 1
    assert flows.flow.state("o").state == "cancelled"
    assert flows.flow.find(customer="ada") == []
    assert flows.now() == {}
    assert flows.flow.start(b"order", id="o").added


def test_a_letter_of_an_earlier_run_is_no_job_of_the_later_one(flows: Flows) -> None:
    for payload in (b"old", b"new"):
        assert flows.flow.start(payload, id="o").added
        flows.lease("pick")[0].dead_letter("why")
        assert flows.flow.state("o").state == "failed"
    assert flows.queues["pick"].admin.redrive("o") == 1  # the oldest
    assert flows.flow.state("o").state == "failed"
    (lease,) = flows.lease("pick")
    assert lease.job.payload == b"old"
    assert flows.flow.complete(lease)
    assert flows.now() == {"pick": {"dead": 1}}
    assert flows.queues["pick"].admin.redrive("o") == 1
    assert flows.flow.state("o").state == "running"
    assert flows.done("pick")
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_letter_waits_until_the_end_of_the_job_that_had_its_id_was_seen(flows: Flows) -> None:
    """Otherwise that end would be lost, and its run would wait for ever."""
    flows.flow.start(b"old", id="o")
    flows.lease("pick")[0].dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    flows.flow.start(b"new", id="o")
    flows.lease("pick")[0].dead_letter("why")
    assert flows.queues["pick"].admin.redrive() == 1
    (lease,) = flows.lease("pick")
    assert lease.job.payload == b"new"
    lease.dead_letter("why")
    assert flows.flow.state("o").state == "failed"


def test_what_is_to_be_cancelled_goes_no_further_when_it_is_completed_outside(flows: Flows) -> None:
    fanned(flows, "x")
    (x,) = flows.lease("pack")
    ops: Any = flows.flow.ops
    assert flows.connect("shop/pick")._run(ops.advance([ops.cancelling("o")])) == [True]
    assert x.complete()
    assert flows.flow.state("o/1/x").state == "cancelled"
    assert flows.now() == {}


def test_runs_from_before_there_were_nonces_go_on(flows: Flows, client: redis.Redis) -> None:
    """The runs were in flight during an upgrade of the library."""
    fanned(flows, "x", "y", failed="continue")
    for name, value in client.hgetall(RUN + "o").items():
        if name.startswith(b"at:"):
            client.hset(RUN + "o", name, b" ".join(value.split()[:2]))
    client.hdel(RUN + "o", "nonce", "live", "fanout:o")
    x, y = flows.lease("pack", 2)
    for stage, names in (("pick", ["o"]), ("pack", ["o/1/x", "o/1/y"])):
        client.zadd(f"headrace:{{shop}}:shop/{stage}:flows", dict.fromkeys(names, 0))
    client.zadd("headrace:{shop}:shop/pack:flows", {x.job.id: 2})
    client.xdel("headrace:{shop}:shop/pack:jobs", x.claim.entry)
    client.hdel("headrace:{shop}:shop/pack:ids", x.job.id)
    assert flows.flow.complete(y)
    assert flows.flow.state("o").failed == ("x",)
    for stage in ("weigh", "bill", "send"):
        (lease,) = flows.lease(stage)
        assert flows.flow.complete(lease)
    assert flows.flow.state("o").state == "completed"
    assert client.ttl(RUN + "o") > 0
