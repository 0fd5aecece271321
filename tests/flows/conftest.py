"""Flows of both colours from one body, on every server, or on one if servers do not matter."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Counts, Flow
from tests.support.colours import Connect

STATES = ("waiting", "parked", "leased", "delayed", "blocked", "dead")


class Flows:
    """One flow, the queues of its stages, and the steps that tests take often."""

    def __init__(self, connect: Connect, **options: Any) -> None:
        self.connect = connect
        self.flow = connect.make(Flow, "shop", **{"lookup": ["customer", "tag"], **options})
        self.queues: dict[str, Any] = {}

    def stage(self, name: str, **options: Any) -> None:
        self.flow.stage(name, **options)
        self.queues[name] = self.connect(f"shop/{name}")

    def lease(self, stage: str, n: int = 1) -> list[Any]:
        """Lease exactly *n* jobs of a stage."""
        leases = self.queues[stage].lease_many(n + 1)
        assert len(leases) == n, (stage, [lease.job.id for lease in leases])
        return leases

    def done(self, stage: str, outcome: Any = None) -> bool:
        """Lease the one job of a stage, and complete it."""
        (lease,) = self.lease(stage)
        return bool(self.flow.complete(lease, outcome))

    def now(self) -> dict[str, dict[str, int]]:
        """Return the stages that have jobs, with the number in each state. No job may be
        missing."""
        found: dict[str, Counts] = self.flow.counts()
        assert {name: counts.lost for name, counts in found.items() if counts.lost} == {}
        held = {
            name: {s: getattr(counts, s) for s in STATES if getattr(counts, s)}
            for name, counts in found.items()
        }
        return {name: states for name, states in held.items() if states}


def shop(flows: Flows) -> Flows:
    """pick (may fan out to pack) → bill (may go back to pick) → send."""
    flows.stage("pick", next=["bill", "send"], children=["pack", "pick"])
    flows.stage("pack", next="weigh")
    flows.stage("weigh")
    flows.stage("bill", next=["send", "pick"])
    flows.stage("send")
    return flows


@pytest.fixture
def flows(connect: Connect) -> Flows:
    """The flow `shop`, on every server and in both colours."""
    return shop(Flows(connect))


@pytest.fixture
def newest_flows(newest_connect: Connect) -> Flows:
    """The flow `shop`, on one server."""
    return shop(Flows(newest_connect))
