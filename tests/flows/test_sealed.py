"""Flows with payloads that are bound to them. Payloads and results open in each stage."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import FanOut, Flow, NewJob, Next
from headrace.codecs import Compressed, Encrypted, JSONCodec
from tests.flows.conftest import Flows
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.servers import Server
from tests.support.steps import LONG, payloads

for extra in ("zstandard", "cryptography"):
    pytest.importorskip(extra)

CODEC = Encrypted(Compressed(JSONCodec(), threshold=0), {"k": bytes(range(32))})


@pytest.fixture(params=[1, 3], ids=["one", "shards"])
def flows(request: Any, newest_connect: Connect) -> Flows:
    made = Flows(newest_connect, codec=CODEC, shards=request.param)
    made.flow.stage("pick", next=["bill", "send"], children=["pack", "pick"])
    for name, following in (("pack", "weigh"), ("weigh", ()), ("bill", "send"), ("send", ())):
        made.flow.stage(name, next=following)
    for name in made.flow.ops.stages:
        made.queues[name] = newest_connect(f"shop/{name}", codec=CODEC, shards=request.param)
    return made


def test_a_flow_takes_it_from_stage_to_stage(flows: Flows) -> None:
    """The parent, its children and their results are read in every stage, and after a redrive."""
    name = flows.flow.start(["order"], id="o").id
    children = [
        ["a"],
        NewJob(["b"], id="b"),
        NewJob(["c"], id="c", queue="shop/pick"),
        NewJob(["d"], "d", delay=LONG),
    ]
    assert flows.done("pick", FanOut(children, stage="pack", result={"n": 3}, failed="continue"))
    assert flows.queues["pick"].find("o").job.payload == ["order"]
    assert payloads(flows.queues["pack"].admin.delayed()) == [["d"]]
    assert flows.queues["pack"].cancel(f"{name}/1/d")
    for lease in flows.lease("pack", 2):
        assert flows.flow.complete(lease, {"packed": lease.job.payload})
    one, other = flows.lease("weigh", 2)
    assert sorted([one.job.payload, other.job.payload]) == [["a"], ["b"]]
    assert flows.flow.complete(other, other.job.payload)
    assert one.dead_letter("why")
    assert flows.queues["weigh"].admin.redrive() == 1
    assert flows.done("weigh", one.job.payload)
    (lease,) = flows.lease("pick")
    assert lease.job.payload == ["c"]
    assert flows.flow.complete(lease, Next(None, "done"))
    state = flows.flow.state(name)
    assert state.results["pick"] == {"n": 3}
    assert dict(state.children) == {
        "0": ["a"],
        "b": ["b"],
        "c": "done",
    }
    until(lambda: flows.flow.state(name).stage == "bill")
    (lease,) = flows.lease("bill")
    assert lease.job.payload == ["order"]
    assert lease.complete()
    until(lambda: flows.flow.state(name).stage == "send")
    assert flows.done("send", {"sent": True})
    assert flows.flow.result(name, LONG) == {"sent": True}
    assert {
        stage: counts.dead for stage, counts in flows.flow.counts().items() if counts.dead
    } == {}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_workers_of_a_flow_read_it(kind: str, newest: Server, shards: int) -> None:
    seen: list[Any] = []
    worker = Running(kind, url=newest.url)
    with Flow("shop", url=newest.url, codec=CODEC, shards=shards) as flow:
        for name, following in (("pick", "bill"), ("pack", "weigh"), ("weigh", ()), ("bill", ())):

            def handler(job: Any, name: str = name) -> Any:
                seen.append((name, job.payload))
                return FanOut([[n] for n in range(5)]) if name == "pick" else [name, job.payload]

            children = ["pack"] if name == "pick" else []
            flow.stage(name, next=following, children=children)(worker._adapt(handler))
        worker.worker.flow(flow)
        receipt = flow.start(["order"])
        with worker:
            found = flow.result(receipt.id, timeout=60)
        assert found is not None
        assert found == ["bill", ["order"]]
        children = [(stage, [n]) for stage in ("pack", "weigh") for n in range(5)]
        assert sorted(seen) == sorted([*children, ("pick", ["order"]), ("bill", ["order"])])
        state = flow.state(receipt.id)
        assert state is not None
        results = [result for result in state.children.values() if result]
        assert sorted(results) == [["weigh", [n]] for n in range(5)]
        assert [counts.dead for counts in flow.counts().values()] == [0] * 4
