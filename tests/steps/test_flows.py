"""Steps of a stage's job. Its records leave with the stage, and a job that dies keeps them."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import FanOut, Flow
from headrace._protocol.features.runs import ops as step_ops
from tests.support.colours import Connect
from tests.support.steps import key, suspend


class Stage:
    """A flow, and runs in its first stage."""

    def __init__(self, connect: Connect) -> None:
        self.flow: Any = connect.make(Flow, "shop")
        self.flow.stage("pick", next="bill", children="pack")
        self.flow.stage("pack")
        self.flow.stage("bill")
        self.queue: Any = connect("shop/pick")

    def begin(self, name: str, *steps: str) -> Any:
        """Start a run, lease its job and take steps."""
        self.flow.start(b"order", id=name)
        lease = self.queue.lease()
        self.step(lease, *steps)
        return lease

    def step(self, lease: Any, *steps: str) -> None:
        for step in steps:
            op = step_ops.record(
                self.queue.ops, lease.claim, 0, step, b"jnull", ended=True, took=0.0, ttl=0.0
            )
            assert self.queue._run(op) > 0

    def suspend(self, lease: Any, kind: str) -> None:
        suspend(self.queue, lease.claim, "later", kind, "+86400000")

    def steps(self, name: str) -> list[str]:
        return [one.name for one in self.queue.find(name).steps]


@pytest.fixture
def stage(connect: Connect) -> Stage:
    return Stage(connect)


def left(client: redis.Redis) -> bool:
    """Tell whether there are records in the first stage."""
    return bool(client.exists(key("steps", "shop/pick"), key("asleep", "shop/pick")))


@pytest.mark.parametrize("outcome", [None, FanOut([b"1"])], ids=["on", "fan-out"])
def test_records_go_with_the_stage(stage: Stage, client: redis.Redis, outcome: Any) -> None:
    lease = stage.begin("o", "a", "b")
    assert stage.steps("o") == ["a", "b"]
    assert stage.flow.complete(lease, outcome)
    assert not left(client)
    assert stage.flow.state("o").state in {"running", "blocked"}


@pytest.mark.parametrize("kind", ["sleep", "wait"])
def test_a_suspended_job_of_a_run_is_cancelled(
    stage: Stage, client: redis.Redis, kind: str
) -> None:
    stage.suspend(stage.begin("o", "a"), kind)
    assert stage.queue.counts().leased == 0
    assert stage.flow.cancel("o")
    assert not left(client)
    assert stage.flow.state("o").state == "cancelled"


def test_a_job_that_dies_keeps_its_records(stage: Stage, client: redis.Redis) -> None:
    stage.begin("o", "a", "b").dead_letter("why")
    assert stage.flow.state("o").state == "failed"
    assert stage.steps("o") == ["a", "b"]
    assert stage.queue.admin.redrive("o", from_step="b") == 1
    assert stage.steps("o") == ["a"]
    lease = stage.queue.lease()
    stage.step(lease, "b")
    assert stage.flow.complete(lease, None)
    assert not left(client)
    assert stage.flow.state("o").stage == "bill"
