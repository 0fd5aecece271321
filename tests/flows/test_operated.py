"""The effects of an operator, a rate limit and a repair on the jobs of a flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, FanOut, Flow, NewJob, Rate, Worker
from headrace._protocol.features import events as event_ops
from headrace.inspect import Repairs
from tests.flows.conftest import Flows
from tests.support.awaiting import PATIENCE


def part(stage: str, name: str) -> str:
    return f"headrace:{{shop}}:shop/{stage}:{name}"


def blocked(flows: Flows) -> str:
    """Begin a run that waits for one child, and return its id."""
    name = str(flows.flow.start(b"order", id="o").id)
    assert flows.done("pick", FanOut([b"a"], stage="pack"))
    return name


def test_a_job_never_leaves_its_flow(flows: Flows) -> None:
    name = blocked(flows)
    pick = flows.queues["pick"]
    pick.enqueue(b"x", id="other")
    flows.flow.start(b"order", id="now")
    flows.flow.start(b"order", id="later", delay=3600)
    assert pick.admin.move("shop/aside", name, "now", "later") == 0
    assert pick.admin.expire(name) == 0
    assert pick.admin.move("shop/aside") == 1
    assert flows.connect("shop/aside").find("other").state == "waiting"
    assert flows.now()["pick"] == {"waiting": 1, "delayed": 1, "blocked": 1}
    assert flows.done("pick")
    assert flows.flow.state("now").stage == "bill"


def test_repair_finds_nothing_to_mend_in_what_is_blocked(flows: Flows, client: redis.Redis) -> None:
    name = blocked(flows)
    pick = flows.queues["pick"]
    assert pick.admin.repair() == Repairs()
    client.hdel(part("pick", "ids"), name)
    assert pick.admin.repair() == Repairs(ids_taken=1)
    assert pick.find(name).state == "blocked"
    for stage in ("pack", "weigh", "bill", "send"):
        assert flows.done(stage)
    assert flows.flow.state(name).state == "completed"


@pytest.mark.parametrize("lost", ["waiting", "blocked"])
def test_a_flow_is_told_of_a_job_that_repair_finds_gone(
    flows: Flows, client: redis.Redis, lost: str
) -> None:
    if lost == "blocked":
        name = blocked(flows)
        client.hdel(part("pick", "blocked"), name)
    else:
        name = str(flows.flow.start(b"order", id="o").id)
        client.xdel(part("pick", "jobs"), client.hget(part("pick", "ids"), name))
    pick = flows.queues["pick"]
    assert pick.admin.repair() == Repairs(ids_released=1, deleted=1)
    assert pick.admin.repair() == Repairs()
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
    assert queue.admin.position("two") is None
    assert flows.flow.cancel("two")
    assert flows.flow.state("two").state == "cancelled"
    assert queue.admin.purge() == 1
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


def told(
    client: redis.Redis, flows: Flows, act: Callable[[], object]
) -> list[tuple[str, str, list[str]]]:
    """Return the messages about the stages during *act* as (stage, kind, ids). For ended leases
    they are `control` and entries.
    """
    for queue in flows.queues.values():
        queue._run(event_ops.listen(queue.ops))
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.psubscribe("headrace:{shop}:shop/*")
        client.ping()
        act()
        client.publish("headrace:{shop}:shop/end:end", "")
        found: list[tuple[str, str, list[str]]] = []
        while True:
            message = heard.get_message(timeout=PATIENCE)
            if message is None:  # it was about a subscription
                continue
            _, _, stage, *kind = message["channel"].decode().split(":")
            if kind == ["end"]:
                return found
            text = message["data"].decode()
            ids = text.split() if kind == ["control"] else json.loads(text)["ids"]
            found.append((stage.removeprefix("shop/"), kind[-1], ids))


def test_what_happens_to_the_jobs_of_a_flow_is_told(flows: Flows, client: redis.Redis) -> None:
    flow = flows.flow
    for queue in flows.queues.values():  # the channels exist for those who listen to them by name
        client.pubsub_numsub(queue.ops.keys.channel("added"))
    with ExitStack() as stack:
        for queue in flows.queues.values():
            names = [
                queue.ops.keys.channel(kind) for kind in ("added", "completed", "cancelled", "dead")
            ]
            stack.enter_context(client.pubsub()).subscribe(*names)
        assert told(client, flows, lambda: flow.start(b"x", id="o")) == [("pick", "added", ["o"])]
        (pick,) = flows.lease("pick")
        fan = FanOut([NewJob(b"a", id="a"), NewJob(b"b", id="b")], stage="pack")
        assert told(client, flows, lambda: flow.complete(pick, fan)) == [
            ("pack", "added", ["o/1/a", "o/1/b"])
        ]
        first, second = flows.lease("pack", 2)
        assert told(client, flows, lambda: flow.complete(first)) == [
            ("pack", "completed", ["o/1/a"]), ("weigh", "added", ["o/1/a"]),
        ]  # fmt: skip
        assert told(client, flows, lambda: flow.complete(first)) == []
        flow.complete(second)
        (weigh,), (last,) = flows.queues["weigh"].lease_many(1), flows.queues["weigh"].lease_many(1)
        flow.complete(weigh)
        assert told(client, flows, lambda: flow.complete(last)) == [
            ("pick", "completed", ["o"]), ("weigh", "completed", ["o/1/b"]), ("bill", "added", ["o"]),
        ]  # fmt: skip
        (bill,) = flows.lease("bill")
        assert told(client, flows, lambda: flow.cancel("o")) == [
            ("bill", "control", [bill.claim.entry]), ("bill", "cancelled", ["o"]),
        ]  # fmt: skip
