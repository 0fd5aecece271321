"""What an operator, a rate limit and a repair do to the jobs of a flow."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import ConfigurationError, FanOut, Flow, NewJob, Rate, Repairs, Worker
from tests.flows.conftest import Flows


def part(stage: str, name: str) -> str:
    return f"headrace:{{shop}}:shop/{stage}:{name}"


def blocked(flows: Flows) -> str:
    """A run that waits for one child; its id."""
    name = str(flows.flow.start(b"order", id="o").id)
    assert flows.done("pick", FanOut([b"a"], stage="pack"))
    return name


def test_a_job_never_leaves_its_flow(flows: Flows) -> None:
    name = blocked(flows)
    pick = flows.queues["pick"]
    pick.enqueue(b"x", id="other")
    flows.flow.start(b"order", id="now")
    flows.flow.start(b"order", id="later", delay=3600)
    assert pick.move("shop/aside", name, "now", "later") == 0
    assert pick.expire(name) == 0
    assert pick.move("shop/aside") == 1
    assert flows.connect("shop/aside").find("other").state == "waiting"
    assert flows.now()["pick"] == {"waiting": 1, "delayed": 1, "blocked": 1}
    assert flows.done("pick")
    assert flows.flow.state("now").stage == "bill"


def test_repair_finds_nothing_to_mend_in_what_is_blocked(flows: Flows, client: redis.Redis) -> None:
    name = blocked(flows)
    pick = flows.queues["pick"]
    assert pick.repair() == Repairs()
    client.hdel(part("pick", "ids"), name)
    assert pick.repair() == Repairs(ids_taken=1)
    assert pick.find(name).state == "blocked"
    for stage in ("pack", "weigh", "bill", "send"):
        assert flows.done(stage)
    assert flows.flow.state(name).state == "completed"


@pytest.mark.parametrize("lost", ["waiting", "blocked"])
def test_a_flow_is_told_of_a_job_that_repair_finds_gone(flows: Flows, client: redis.Redis, lost: str) -> None:
    if lost == "blocked":
        name = blocked(flows)
        client.hdel(part("pick", "blocked"), name)
    else:
        name = str(flows.flow.start(b"order", id="o").id)
        client.xdel(part("pick", "jobs"), client.hget(part("pick", "ids"), name))
    pick = flows.queues["pick"]
    assert pick.repair() == Repairs(ids_released=1, deleted=1)
    assert pick.repair() == Repairs()
    assert flows.flow.state(name).state == "cancelled"
    assert flows.now() == {}


def test_a_delayed_job_of_a_flow_wakes_who_waits(flows: Flows, client: redis.Redis) -> None:
    for stage in ("pick", "pack"):
        assert flows.queues[stage].lease() is None  # the group is there
        assert client.xlen(part(stage, "wake")) == 0
    flows.flow.start(b"order", id="later", delay=3600)
    assert client.xlen(part("pick", "wake")) == 1
    flows.flow.start(b"order", id="o")
    assert flows.done("pick", FanOut([NewJob(b"a", delay=3600)], stage="pack"))
    assert client.xlen(part("pack", "wake")) == 1


def test_a_job_of_a_flow_that_a_rate_limit_holds_back(flows: Flows) -> None:
    queue = flows.connect("shop/pick", rate=Rate(1, per=3600, key="customer"))
    for name in ("one", "two", "three"):
        flows.flow.start(b"order", id=name, headers={"customer": "c"})
    (lease,) = queue.lease_many(3)
    assert lease.job.id == "one"
    assert flows.now()["pick"] == {"leased": 1, "delayed": 2}
    assert queue.position("two") is None
    assert flows.flow.cancel("two")
    assert flows.flow.state("two").state == "cancelled"
    assert queue.purge() == 1
    assert flows.flow.state("three").state == "cancelled"
    assert flows.flow.complete(lease)
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_stage_may_have_a_rate_and_no_other_handler() -> None:
    def handle(job: Any) -> None:
        raise AssertionError(job)

    flow = Flow("shop", url="redis://localhost:1")
    rate = Rate(5, per=1.0)
    flow.stage("pick", rate=rate)(handle)
    worker = Worker("redis://localhost:1")
    worker.flow(flow)
    assert worker.handlers["shop/pick"].queue_settings.rates == (rate,)
    with pytest.raises(ConfigurationError, match="a flow's handler takes all of its jobs"):
        worker.handler("shop/pick", kind="a")(handle)
    other = Worker("redis://localhost:1")
    other.handler("shop/pick", kind="a")(handle)
    with pytest.raises(ConfigurationError, match="a flow's handler takes all of its jobs"):
        other.flow(flow)
