"""A stage whose queue has a history records how its jobs ended, and the places of the children for
which they waited.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import FanOut, NewJob, Next
from headrace.inspect import Children, Place
from tests.flows.conftest import Flows, shop
from tests.support.colours import Connect

RUN = "headrace:{shop}:shop:flow:"


@pytest.fixture
def flows(connect: Connect) -> Flows:
    """The flow `shop`, whose queues have a history."""
    flows = shop(Flows(connect))
    flows.queues = {
        name: connect(f"shop/{name}", history=100, tracebacks=True) for name in flows.queues
    }
    for queue in flows.queues.values():
        queue.lease()  # it is declared
    return flows


def fanned(flows: Flows, *names: str, **options: Any) -> None:
    assert flows.flow.start(b"order", id="o", headers={"lang": "en"}).added
    assert flows.done(
        "pick", FanOut([NewJob(b"x", id=name) for name in names], stage="pack", **options)
    )


def test_each_stage_keeps_its_job(flows: Flows, client: redis.Redis) -> None:
    """The history has it even when the run and its state are gone."""
    assert flows.flow.start(b"order", id="o", headers={"lang": "en"}).added
    assert flows.queues["pick"].lease().retry(reason=ValueError("once"))
    (lease,) = flows.lease("pick")
    assert flows.flow.complete(lease)
    assert flows.done("bill")
    assert flows.done("send", b"sent")
    client.delete(RUN + "o")
    for stage in ("pick", "bill", "send"):
        queue = flows.queues[stage]
        state = queue.find("o")
        assert (state.state, state.job.payload, state.job.headers["lang"]) == (
            "completed",
            b"order",
            "en",
        ), stage
        assert (state.job.attempt, state.children) == (2 if stage == "pick" else 1, None)
        assert "headrace-children" not in state.job.headers
        assert state.enqueued_at <= state.ended
        assert [one.job.id for one in queue.admin.ended()] == ["o"]
    assert flows.queues["pick"].find("o").worker == lease.worker
    assert [one.reason for one in flows.queues["pick"].find("o").attempts] == ["ValueError: once"]
    assert flows.queues["bill"].find("o").attempts == ()


def test_the_places_of_children(flows: Flows, client: redis.Redis) -> None:
    fanned(flows, "a", "b", "c", "d", failed="continue")
    leases = {lease.job.id: lease for lease in flows.lease("pack", 4)}
    assert leases["o/1/b"].dead_letter("why")
    assert flows.queues["pack"].cancel("o/1/c")
    assert flows.flow.complete(leases["o/1/d"], Next(None, b"r"))
    assert flows.flow.complete(leases["o/1/a"])
    assert flows.done("weigh")
    assert flows.flow.state("o").stage == "bill"
    for stage in ("bill", "send"):
        assert flows.done(stage)
    client.delete(RUN + "o")
    state = flows.queues["pick"].find("o")
    assert (state.state, state.job.payload, state.job.attempt) == ("completed", b"order", 1)
    places = (
        Place("o/1/a", "weigh", "completed"), Place("o/1/b", "pack", "failed"), Place("o/1/c", "pack", "cancelled"),
        Place("o/1/d", "pack", "completed"),
    )  # fmt: skip
    assert state.children == Children(2, 1, 1, places)
    assert state.children.told == "2 completed, 1 failed, 1 cancelled"
    assert flows.queues["bill"].find("o").children is None
    assert flows.queues["weigh"].find("o/1/a").state == "completed"
    (listed,) = flows.queues["pick"].admin.ended()
    assert listed.children == state.children


def test_a_parent_keeps_the_attempts_from_before_it_waited(flows: Flows) -> None:
    assert flows.flow.start(b"order", id="o").added
    assert flows.queues["pick"].lease().retry(reason=ValueError("once"))
    assert flows.done("pick", FanOut([NewJob(b"x", id="a")], stage="pack"))
    assert flows.done("pack", Next(None))
    state = flows.queues["pick"].find("o")
    assert ([one.reason for one in state.attempts], state.job.attempt) == (["ValueError: once"], 2)
    assert flows.queues["bill"].find("o").attempts == ()


def test_a_parent_that_dies_of_its_children(flows: Flows) -> None:
    """The history has the children even when the letter is gone."""
    fanned(flows, "a", "b")
    for lease in flows.lease("pack", 2):
        assert lease.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    pick = flows.queues["pick"]
    assert pick.admin.purge_dead() == 1
    state = pick.find("o")
    assert (state.state, state.reason) == ("dead", "2 of 2 children failed, the first o/1/a: why")
    assert (state.children.failed, len(state.children.places)) == (2, 2)


@pytest.mark.parametrize("where", ["waiting", "leased", "delayed", "blocked"])
def test_a_run_that_is_cancelled(flows: Flows, where: str) -> None:
    assert flows.flow.start(b"order", id="o", delay=3600 if where == "delayed" else None).added
    if where == "leased":
        flows.lease("pick")
    elif where == "blocked":
        assert flows.done("pick", FanOut([NewJob(b"x", id="a")], stage="pack"))
    assert flows.flow.cancel("o")
    state = flows.queues["pick"].find("o")
    assert (state.state, state.job.payload) == ("cancelled", b"order")
    if where == "blocked":
        assert state.children == Children(0, 0, 0, (Place("o/1/a", "pack", "running"),))
        assert flows.queues["pack"].find("o/1/a").state == "cancelled"


def test_a_fan_out_without_children_ends_at_once(flows: Flows) -> None:
    fanned(flows)
    state = flows.queues["pick"].find("o")
    assert (state.state, state.children) == ("completed", None)


def test_the_places_of_many_children_are_bounded(flows: Flows) -> None:
    name = "n" * 100
    fanned(flows, *(f"{name}{number}" for number in range(300)))
    assert flows.flow.cancel("o")
    state = flows.queues["pick"].find("o")
    assert 50 < len(state.children.places) < 300
    assert state.children.places[0] == Place(f"o/1/{name}0", "pack", "running")


def test_a_queue_without_a_history_keeps_nothing(connect: Connect, client: redis.Redis) -> None:
    flows = shop(Flows(connect))
    fanned(flows, "a")
    for stage in ("pack", "weigh", "bill", "send"):
        assert flows.done(stage)
    assert client.keys("*:ends") == client.keys("*:ended") == []
