"""Many runs at once with all kinds of ends. Each effect happens once, no job is missing at any
step, and every run ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from headrace import FanOut, Flow, NewJob, Next
from tests.flows.conftest import Flows, shop
from tests.support.awaiting import PATIENCE
from tests.support.colours import Connect
from tests.support.servers import Server

ROUNDS = 25


@pytest.fixture
def flows(server: Server) -> Iterator[Flows]:
    """Use one colour, which is enough here."""
    with Connect("sync", server) as connect:
        yield shop(Flows(connect))


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Run all of *acts* at the same time."""
    barrier = Barrier(len(acts))

    def act(one: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return one()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def test_the_last_two_children_end_together(flows: Flows) -> None:
    """Each child ends twice, and the join happens once."""
    for number in range(ROUNDS):
        name = f"o-{number}"
        flows.flow.start(b"order", id=name)
        flows.done("pick", FanOut([b"a", b"b"], stage="pack"))
        a, b = flows.lease("pack", 2)
        acts = [
            lambda lease=lease: flows.flow.complete(lease, Next(None, b"r"))
            for lease in (a, b, a, b)
        ]
        assert sorted(together(*acts)) == [False, False, True, True]
        assert flows.now() == {"bill": {"waiting": 1}}
        assert flows.flow.state(name).children == {"0": b"r", "1": b"r"}
        assert flows.done("bill", Next("send"))
        assert flows.done("send")
    counts = flows.flow.counts()
    assert {name: c.completed for name, c in counts.items()} == {
        "pick": ROUNDS, "pack": 2 * ROUNDS, "weigh": 0, "bill": ROUNDS, "send": ROUNDS,
    }  # fmt: skip


def test_the_last_two_children_die_together(flows: Flows) -> None:
    """Four clients look at the dead children at once, and the parent dies once."""
    for number in range(ROUNDS):
        flows.flow.start(b"order", id="o")
        flows.done("pick", FanOut([b"a", b"b"], stage="pack"))
        a, b = flows.lease("pack", 2)
        together(lambda a=a: a.dead_letter("why"), lambda b=b: b.dead_letter("why"))
        together(*[lambda: flows.flow.state("o") for _ in range(4)])
        assert flows.now() == {"pick": {"dead": 1}, "pack": {"dead": 2}}
        assert flows.flow.state("o").state == "failed"
        assert flows.queues["pick"].admin.purge_dead() == 1
        assert flows.queues["pack"].admin.purge_dead() == 2
        assert flows.queues["pick"].counts().dead_trimmed == number + 1


def test_a_parent_and_its_second_run_fan_out_together(flows: Flows) -> None:
    """A worker that lost its lease and its successor fan out together. Only one of them
    succeeds."""
    for number in range(ROUNDS):
        flows.flow.start(b"order", id=f"o-{number}")
        (stale,) = flows.lease("pick")
        stale.release()
        (lease,) = flows.lease("pick")
        fan = FanOut([b"a", b"b", b"c"], stage="pack")
        won = together(
            partial(flows.flow.complete, stale, fan), partial(flows.flow.complete, lease, fan)
        )
        assert sorted(won) == [False, True]
        assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 3}}
        assert flows.flow.cancel(f"o-{number}")
        assert flows.now() == {}


def test_a_cancel_and_a_completion_at_once(flows: Flows) -> None:
    for number in range(ROUNDS):
        name = f"o-{number}"
        flows.flow.start(b"order", id=name)
        flows.done("pick", FanOut([b"a"], stage="pack"))
        (lease,) = flows.lease("pack")
        together(lambda: flows.flow.cancel(name), lambda: flows.flow.complete(lease, Next(None)))  # noqa: B023
        assert flows.now() == {}
        assert flows.flow.state(name).state == "cancelled"


class Storm:
    """Random acts on runs that fan out twice."""

    def __init__(self, flows: Flows, seed: int) -> None:
        self.flows, self.random = flows, random.Random(seed)
        self.held: list[tuple[str, Any]] = []
        self.settled: list[tuple[str, Any]] = []
        self.started = 0

    def start(self) -> None:
        if self.started < 12:
            assert self.flows.flow.start(b"x", id=f"o-{self.started}").added
            self.started += 1

    def lease(self) -> None:
        stage = self.random.choice(list(self.flows.queues))
        self.held += [
            (stage, lease)
            for lease in self.flows.queues[stage].lease_many(self.random.randint(1, 4))
        ]

    def outcome(self, stage: str, lease: Any) -> Any:
        depth = lease.job.id.count("/") // 2
        if stage == "pick" and depth < 2:
            stages = self.random.choices(["pick", "pack"], k=self.random.randint(0, 3))
            policy = self.random.choice(["fail", "continue", "cancel"])
            return FanOut(
                [NewJob(b"c", queue=stage) for stage in stages], failed=policy, result=b"f"
            )
        return Next(None, b"r") if self.random.random() < 0.2 else b"r"

    def take(self, of: list[tuple[str, Any]]) -> tuple[str, Any] | None:
        return of.pop(self.random.randrange(len(of))) if of else None

    def complete(self) -> None:
        if found := self.take(self.held):
            self.flows.flow.complete(found[1], self.outcome(*found))
            self.settled.append(found)

    def again(self) -> None:
        if self.settled:
            stage, lease = self.random.choice(self.settled)
            assert not self.flows.flow.complete(lease, self.outcome(stage, lease))

    def plainly(self) -> None:
        if found := self.take(self.held):
            found[1].complete()

    def fail(self) -> None:
        if found := self.take(self.held):
            how = self.random.choice(["dead_letter", "retry", "release"])
            getattr(found[1], how)(*(["why"] if how == "dead_letter" else []))

    def cancel(self) -> None:
        if self.random.random() < 0.2:
            name = f"o-{self.random.randint(0, 12)}"
            self.flows.flow.cancel(self.random.choice([name, f"{name}/1/0", f"{name}/1/1/1/0"]))
        elif found := self.take(self.held):
            self.flows.queues[found[0]].cancel(found[1].job.id)

    def redrive(self) -> None:
        self.flows.queues[self.random.choice(list(self.flows.queues))].admin.redrive()

    def look(self) -> None:
        self.flows.flow.state(f"o-{self.random.randint(0, 12)}")

    def step(self) -> None:
        acts = {
            self.start: 2, self.lease: 6, self.complete: 8, self.again: 1, self.plainly: 1, self.fail: 3,
            self.cancel: 1, self.redrive: 1, self.look: 2,
        }  # fmt: skip
        self.random.choices(list(acts), list(acts.values()))[0]()

    def calm(self) -> None:
        """Let all remaining jobs succeed."""
        for _, lease in self.held:
            lease.release()
        self.held = []
        for _ in range(200):
            self.look()
            for queue in self.flows.queues.values():
                queue.admin.redrive()
            leases = [
                (name, lease)
                for name, q in self.flows.queues.items()
                for lease in q.lease_many(100)
            ]
            for stage, lease in leases:
                self.flows.flow.complete(lease, self.outcome(stage, lease))
            self.flows.flow.state("o-0")
            if not self.flows.now():
                return
        raise AssertionError(self.flows.now())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_storm(flows: Flows, seed: int, server: Server) -> None:
    storm = Storm(flows, seed)
    for _ in range(250):
        storm.step()
        flows.now()  # nothing is missing
    while storm.started < 12:
        storm.start()
    storm.calm()
    states = [flows.flow.state(f"o-{number}").state for number in range(12)]
    assert set(states) <= {"completed", "cancelled"}
    assert "completed" in states
    with server.client() as client:
        lasting = [key for key in client.scan_iter(count=1000) if client.ttl(key) == -1]
        parts = {key.decode().rpartition(":")[2] for key in lasting}
        assert parts <= {"jobs", "wake", "stats", "workers", "registered", "dead"}


def test_two_flow_objects_share_nothing_but_the_server(flows: Flows, server: Server) -> None:
    """A second declaration, elsewhere, sees and moves the same runs."""
    with Flow("shop", url=server.url, lookup=["customer"]) as other:
        for name in ("pick", "pack", "weigh", "bill", "send"):
            stage = flows.flow.ops.stages[name]
            other.stage(name, next=stage.next, children=stage.children)
        other.start(b"order", id="o", attributes={"customer": "ada"})
        (lease,) = flows.lease("pick")
        assert other.complete(lease, b"picked")
        assert [state.results for state in flows.flow.find(customer="ada")] == [{"pick": b"picked"}]
