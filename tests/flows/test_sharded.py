"""Flows whose queues have shards. The general tests of flows run with a run in one shard, and
others concern shards alone.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Counts, FanOut, Flow, NewJob, Next, Queue, Rate
from headrace._model.shards import Table
from headrace.errors import ShardsMismatch
from tests.flows import test_fans, test_operated, test_redriven, test_stages
from tests.flows.conftest import Flows, shop
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.servers import Server

SHARDS = 3
TABLE = Table.of("shop", SHARDS)
# they look at keys by their names, or use what sharded queues have not, or queues opened without
# shards
ASIDE = {
    "test_a_cancellation_finds_the_job_in_the_stage_that_it_has_come_to",
    "test_a_child_of_a_last_stage_under_a_newer_declaration",
    "test_a_child_that_fails_counts_down",
    "test_a_dead_stage_is_redriven_and_the_run_goes_on",
    "test_a_delayed_job_of_a_flow_wakes_who_waits",
    "test_a_flow_is_told_of_a_job_that_repair_finds_gone",
    "test_a_job_never_leaves_its_flow",
    "test_a_job_of_a_flow_that_a_rate_limit_holds_back",
    "test_a_parent_is_blocked_until_its_last_child_ends",
    "test_a_run_ends_with_its_last_job",
    "test_a_run_is_cancelled_wherever_it_is",
    "test_an_id_is_taken_while_a_job_of_its_run_goes_on",
    "test_an_unknown_stage_waits_for_who_knows_it",
    "test_it_passes_through_with_its_results",
    "test_nothing_but_what_expires_is_left",
    "test_redriven_after_the_state_was_forgotten",
    "test_repair_finds_nothing_to_mend_in_what_is_blocked",
    "test_runs_from_before_there_were_nonces_go_on",
    "test_what_happens_to_the_jobs_of_a_flow_is_told",
    "test_what_is_known_of_a_run_is_kept_while_a_job_of_it_goes_on",
    "test_what_is_to_be_cancelled_goes_no_further_when_it_is_completed_outside",
}

for module in (test_fans, test_operated, test_redriven, test_stages):
    for name, body in inspect.getmembers(module, inspect.isfunction):
        if (
            name.startswith("test_")
            and name not in ASIDE
            and "flows" in inspect.signature(body).parameters
        ):
            globals()[name] = body


class Sharded(Flows):
    """A flow whose queues have shards."""

    def stage(self, name: str, **options: Any) -> None:
        self.flow.stage(name, **options)
        self.queues[name] = self.connect(f"shop/{name}", shards=SHARDS)


@pytest.fixture
def server(newest: Server) -> Server:
    """Use one server. Only the scripts differ by server, and those are tested with other flows."""
    return newest


@pytest.fixture
def flows(connect: Connect) -> Flows:
    return shop(Sharded(connect, shards=SHARDS))


def test_a_run_is_in_the_shard_of_its_id(flows: Flows) -> None:
    """A run is there with its children, and verbs find it."""
    ids = [f"o{n}" for n in range(30)]
    assert all(
        flows.flow.start(b"order", id=one, attributes={"customer": one}).added for one in ids
    )
    assert not any(flows.flow.start(b"order", id=one).added for one in ids)
    jobs = flows.lease("pick", 30)
    assert {lease.job.shard for lease in jobs} == {0, 1, 2}
    for lease in jobs:
        assert lease.job.shard == TABLE.shard_of(lease.job.id)
        assert flows.flow.complete(lease, FanOut([b"1", NewJob(b"2", id="two")], stage="pack"))
    assert flows.now() == {"pick": {"blocked": 30}, "pack": {"waiting": 60}}
    listed = list(flows.queues["pick"].admin.blocked())
    assert sorted(state.job.id for state in listed) == sorted(ids)
    assert {(state.state, state.job.payload) for state in listed} == {("blocked", b"order")}
    for lease in flows.lease("pack", 60):
        assert lease.job.shard == TABLE.shard_of(lease.job.id.partition("/")[0])
        if not lease.job.id.startswith("o7/"):
            assert flows.flow.complete(lease, Next(None, result=lease.job.payload))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"leased": 2}, "bill": {"waiting": 29}}
    assert [state.id for state in flows.flow.find(customer="o7")] == ["o7"]
    assert flows.flow.state("o7/1/two").state == "running"
    assert flows.flow.state("o8").children == {"0": b"1", "two": b"2"}
    assert flows.flow.state("nope") is None
    assert flows.flow.cancel("o7")
    assert not flows.flow.cancel("o7")
    assert flows.flow.state("o7").state == "cancelled"
    assert flows.now() == {"bill": {"waiting": 29}}
    for stage in ("bill", "send"):
        for lease in flows.lease(stage, 29):
            assert flows.flow.complete(lease, stage.encode())
    assert flows.flow.result("o8", timeout=20) == b"send"
    assert flows.flow.counts()["send"] == Counts(enqueued=29, completed=29)
    assert "waiting" not in flows.flow.mermaid(counts=True)


def test_dead_stages_are_redriven(flows: Flows) -> None:
    for n in range(6):
        flows.flow.start(b"order", id=f"o{n}")
    for lease in flows.lease("pick", 6):
        assert lease.dead_letter("why")
    assert {flows.flow.state(f"o{n}").state for n in range(6)} == {"failed"}
    assert flows.queues["pick"].admin.redrive() == 6
    assert {flows.flow.state(f"o{n}").state for n in range(6)} == {"running"}
    assert not flows.flow.start(b"order", id="o1").added
    for lease in flows.lease("pick", 6):
        assert flows.flow.complete(lease, Next("send"))
    assert flows.now() == {"send": {"waiting": 6}}


def test_what_is_refused(flows: Flows) -> None:
    with pytest.raises(ValueError, match="in a sharded queue these are the ids"):
        flows.flow.start(b"order", id="5-0")
    flows.flow.start(b"order")
    other = Flow("shop", url=flows.connect.server.url, shards=SHARDS + 1)
    other.stage("pick")
    with pytest.raises(ShardsMismatch):
        other.start(b"order")
    other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_serves_all_shards(server: Server, kind: str) -> None:
    done: Counter[str] = Counter()
    flow = Flow("shop", url=server.url, shards=SHARDS)
    worker = Running(kind, url=server.url, heartbeat=0.5, timeout=4.0)
    steps = {
        "pick": lambda job: FanOut([b"1", b"2"], stage="pack", join="bill"),
        "pack": lambda job: job.payload * 2,
        "bill": lambda job: b",".join(sorted(job.children.values())),
    }

    def handler(stage: str) -> Any:
        def handle(job: Any) -> Any:
            done[f"{stage} {job.id}"] += 1
            return steps[stage](job)

        return handle

    flow.stage("pick", next="bill", children="pack", concurrency=4)(worker._adapt(handler("pick")))
    flow.stage("pack", concurrency=4)(worker._adapt(handler("pack")))
    flow.stage("bill", concurrency=4)(worker._adapt(handler("bill")))
    ids = [f"o{n}" for n in range(40)]
    worker.worker.flow(flow)
    with worker:
        for one in ids:
            flow.start(b"order", id=one)
        assert [flow.result(one, timeout=60) for one in ids] == [b"11,22"] * 40
    assert set(done.values()) == {1}
    assert len(done) == 40 * 4
    assert {name: counts.completed for name, counts in flow.counts().items()} == {
        "pick": 40,
        "pack": 80,
        "bill": 40,
    }
    flow.close()


def test_a_worker_takes_the_steps_for_what_happens_outside(server: Server) -> None:
    flow = Flow("shop", url=server.url, shards=SHARDS)
    flow.stage("pick", next="bill")(lambda job: None)
    flow.stage("bill")(lambda job: b"billed")
    worker = Running("threads", url=server.url, heartbeat=0.2, timeout=4.0)
    worker.worker.flow(flow)
    with Queue("shop/pick", url=server.url, shards=SHARDS) as pick:
        for n in range(9):
            flow.start(b"order", id=f"o{n}", delay=3600)
        for n in range(9):
            assert pick.admin.reschedule(f"o{n}", 0)
        for lease in pick.lease_many(9):
            assert lease.complete()  # outside of the flow: it moves on later
        with worker:
            until(lambda: flow.counts()["bill"].completed == 9, "the next stage")
    flow.close()


@pytest.mark.parametrize("more", [5, 2])
def test_the_number_of_shards_changes_under_runs(flows: Flows, more: int) -> None:
    """A run stays in its shard and is found there. An id in use is not started again."""
    old = [f"o{n}" for n in range(12)]
    for one in old:
        flows.flow.start(b"order", id=one, attributes={"customer": "ada"})
    for lease in flows.lease("pick", 12):
        assert flows.flow.complete(lease)
    assert flows.queues["pick"].admin.reshard(more).shards == more
    assert not any(flows.flow.start(b"again", id=one).added for one in old)
    new = [f"n{n}" for n in range(12)]
    assert all(
        flows.flow.start(b"order", id=one, attributes={"customer": "ada"}).added for one in new
    )
    assert [state.id for state in flows.flow.find(customer="ada")] == sorted([*old, *new])
    assert flows.now() == {"pick": {"waiting": 12}, "bill": {"waiting": 12}}
    places = {lease.job.shard for lease in flows.lease("bill", 12)}
    assert places <= {0, 1, 2}
    assert flows.flow.cancel("o3")
    for lease in flows.lease("pick", 12):
        assert lease.job.shard >= SHARDS
        assert flows.flow.complete(lease, Next("send"))
    assert flows.flow.state("o3").state == "cancelled"
    assert flows.flow.start(b"order", id="o3").added  # it has ended
    assert flows.flow.state("o3").state == "running"
    assert flows.now() == {"pick": {"waiting": 1}, "bill": {"leased": 11}, "send": {"waiting": 12}}


def test_a_shard_stays_while_it_keeps_the_state_of_a_run(flows: Flows, client: redis.Redis) -> None:
    """The shard goes when the state has expired."""
    flows.flow.start(b"order", id="o")
    pick, old = flows.queues["pick"], TABLE.shards[TABLE.shard_of("o")]
    pick.admin.reshard(2)
    flows.done("pick", Next(None, result=b"done"))

    def numbers() -> set[int]:
        for _ in range(2):
            pick.admin.reshard(2)
            for key in client.scan_iter("*:stats"):
                if client.hexists(key, "drained"):
                    client.hincrby(key, "drained", -700_000)
        return {shard.number for shard in pick.admin.shards()}

    assert numbers() == {old.number, 3, 4}
    assert flows.flow.result("o") == b"done"
    (kept,) = client.scan_iter("*:flow:o")
    client.delete(kept)
    assert numbers() == {3, 4}
    assert flows.flow.state("o") is None
    assert flows.flow.start(b"order", id="o").added


def test_a_rate_per_shard_of_a_stage(server: Server) -> None:
    """Each shard admits its part of the jobs of a stage."""
    with pytest.raises(ConfigurationError, match="per_shard=True"):
        Flow("shop", url=server.url, shards=SHARDS).stage("pick", rate=Rate(6, per=600))(
            lambda job: job.payload
        )
    flow, done = Flow("shop", url=server.url, shards=SHARDS), Counter[int]()
    flow.stage("pick", rate=Rate(2 * SHARDS, per=600, per_shard=True))(
        lambda job: done.update([job.shard])
    )
    worker = Running("threads", url=server.url)
    worker.worker.flow(flow)
    for n in range(40):
        flow.start(b"order", id=f"o{n}")
    with worker:
        until(lambda: flow.counts()["pick"].completed == 2 * SHARDS)
    assert done == dict.fromkeys(range(SHARDS), 2)
    assert flow.counts()["pick"].present == 40 - 2 * SHARDS
    flow.close()


@pytest.mark.parametrize("kind", KINDS)
def test_workers_follow_the_number_of_shards(server: Server, kind: str) -> None:
    flow = Flow("shop", url=server.url, shards=SHARDS)
    worker = Running(kind, url=server.url, heartbeat=0.5, timeout=4.0)
    flow.stage("pick", next="bill")(worker._adapt(lambda job: job.payload))
    flow.stage("bill")(worker._adapt(lambda job: b"billed"))
    worker.worker.flow(flow)
    with worker, Queue("shop/pick", url=server.url, shards=SHARDS) as pick:
        assert flow.result(flow.start(b"order", id="first").id, timeout=60) == b"billed"
        for n in range(30):
            flow.start(b"order", id=f"o{n}", delay=0.01 * n)
            if n == 10:
                assert pick.admin.reshard(5).shards == 5
        assert {flow.result(f"o{n}", timeout=60) for n in range(30)} == {b"billed"}
        assert pick.admin.drain(20)
    assert {name: (counts.completed, counts.lost) for name, counts in flow.counts().items()} == {
        "pick": (31, 0), "bill": (31, 0),
    }  # fmt: skip
    flow.close()
