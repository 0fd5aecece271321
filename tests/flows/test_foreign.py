"""Foreign jobs in a flow's queues. Their headers and ids end no worker and are not taken for a
run's."""

from __future__ import annotations

from itertools import chain
from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import HealthCheck, example, given, settings

from headrace import FanOut, Flow, NewJob, Queue, Worker
from headrace._model.settings import QueueSettings
from headrace._protocol.features.flows.ops import FlowOps
from headrace._protocol.features.flows.rows import flow_state
from headrace.errors import ReplyError
from tests.flows.conftest import Flows
from tests.support.awaiting import until
from tests.support.servers import Server

KEY = "headrace:{shop}:shop:flow:"
JOBS = "headrace:{shop}:shop/pick:jobs"
IDS = [
    b"",
    b"o",
    b"\x00",
    b"\xff\xfe",
    b"x" * 501,
    b"/",
    b"//",
    b"o/1/x",
    b"o/999/",
    b"\n",
    "é".encode(),
]


def test_a_worker_takes_foreign_entries_for_jobs_of_no_flow(newest: Server) -> None:
    """Their headers and ids may have any value."""
    with Flow("shop", url=newest.url) as flow, newest.client() as client:
        seen: list[bytes] = []
        flow.stage("pick")(lambda job: seen.append(job.payload))
        worker = Worker(newest.url)
        worker.flow(flow)
        number = 0
        for name in IDS:
            for header in (
                b"",
                b"x",
                b"\xff",
                KEY.encode(),
                KEY.encode() + name.partition(b"/")[0],
            ):
                number += 1
                client.xadd(JOBS, {"data": b"%d" % number, "id": name, "headrace-flow": header})
        client.zadd(
            "headrace:{shop}:shop/pick:flows",
            {name: 2.0**50 * (1 + i % 5) for i, name in enumerate(IDS)},
        )
        with worker:
            flow.start(b"ours", id="run")
            until(lambda: len(seen) == number + 1)
            until(lambda: flow.state("run").state == "completed")  # type: ignore[union-attr]
            until(lambda: client.zcard("headrace:{shop}:shop/pick:flows") == 0)
        assert sorted(seen) == sorted([b"ours", *(b"%d" % i for i in range(1, number + 1))])
        counts = flow.counts()["pick"]
        assert (counts.lost, counts.completed, counts.dead) == (0, number + 1, 0)


def test_headers_of_a_job_are_handed_on_without_what_is_ours(flows: Flows) -> None:
    flows.flow.start(b"order", id="o", headers={"lang": "en"})
    (lease,) = flows.lease("pick")
    aside = flows.connect("shop/aside")
    headers = lease.job.headers
    assert aside.enqueue(b"1", id="o", headers=headers).added
    assert aside.enqueue(b"2", headers=headers, delay=3600).added
    aside.admin.schedule("s", b"3", every=3600, headers=headers)
    assert flows.connect("shop/plain").enqueue(b"x", id="p").added
    (plain,) = flows.connect("shop/plain").lease_many(1)
    assert plain.complete(then=[NewJob(b"4", id="f", queue="shop/aside", headers=headers)])
    for state in (*aside.admin.waiting(), *aside.admin.delayed()):
        assert dict(state.job.headers) == {"lang": "en"}
    assert aside.admin.move("shop/other") == 3
    other = flows.connect("shop/other")
    leases = other.lease_many(10)
    assert {lease.job.payload for lease in leases} == {b"1", b"4"}
    for one in leases:
        assert one.dead_letter("why")
    assert other.admin.redrive() == 2
    with flows.connect.server.client() as client:
        assert client.keys("headrace:{shop}:shop/other:flows") == []


def test_a_redriven_letter_with_a_flows_header_is_told_by_its_run(
    flows: Flows, client: redis.Redis
) -> None:
    """The job does not belong to that run, and leaves no field in `flows`."""
    plain = flows.connect("shop/plain")
    assert plain.lease() is None
    for header in (b"x", KEY.encode() + b"other", b"\xff"):
        client.xadd(
            "headrace:{shop}:shop/plain:jobs",
            {"data": "1", "id": b"i" + header, "headrace-flow": header},
        )
    for lease in plain.lease_many(10):
        assert lease.dead_letter("why")
    assert plain.admin.redrive() == 3
    assert client.keys("headrace:{shop}:shop/plain:flows") == []


def test_a_key_of_another_type_in_the_place_of_a_run_ends_no_worker(newest: Server) -> None:
    """The run's job becomes a dead letter with that reason, and goes on once the key is gone. Other
    runs go on."""
    with Flow("shop", url=newest.url) as flow, newest.client() as client:
        flow.stage("pick", next="bill", children="pick")(
            lambda job: FanOut([b"c"]) if job.id == "parent" else b"r"
        )
        flow.stage("bill")(lambda job: None)
        pick = Queue("shop/pick", url=newest.url)
        for name in ("o", "p"):
            flow.start(b"x", id=name)
            client.set(KEY + name, "somebody else's")
        assert pick.cancel("p")  # an event, of a run that nobody can read
        for call in (flow.state, flow.result):
            with pytest.raises(ReplyError, match="flow:o"):
                call("o")
        for verb in (lambda: flow.start(b"x", id="o"), lambda: flow.cancel("o")):
            with pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*flow:o"):
                verb()
        worker = Worker(newest.url)
        worker.flow(flow)
        with worker:
            until(lambda: pick.counts().dead == 1)
            flow.start(b"x", id="parent")
            until(lambda: state(flow, "parent") == "completed")
            until(lambda: client.zcard("headrace:{shop}:shop/pick:flows") == 0)
            (letter,) = pick.admin.dead()
            assert (letter.job.id, letter.job.attempt) == ("o", 1)
            assert letter.reason is not None
            assert f"remove {KEY}o, then redrive" in letter.reason
            client.delete(KEY + "o")
            assert pick.admin.redrive("o") == 1
            until(lambda: state(flow, "o") == "completed")
        assert [counts.lost for counts in flow.counts().values()] == [0, 0]
        pick.close()


@pytest.mark.parametrize("what", ["children", "job", "index"])
def test_a_run_that_somebody_wrote_into_ends(flows: Flows, client: redis.Redis, what: str) -> None:
    """An unreadable part counts as missing, or comes from the record of the wait.

    Nothing is half done, and nobody waits for ever.
    """
    flows.flow.start(b"x", id="o", attributes={"tag": "t"})
    assert flows.done("pick", FanOut([b"1"], join="bill", stage="pack"))
    field = {"children": "children:o", "job": "job:o", "index": "index"}[what]
    for packed in (b"\xc1", b"", b"\x91\x01", b"\xa1x"):
        client.hset(KEY + "o", field, packed)
        assert state(flows.flow, "o") == "blocked"
    assert flows.done("pack")
    assert flows.done("weigh")
    assert flows.done("bill", None)
    assert flows.done("send")
    assert state(flows.flow, "o") == "completed"


def state(flow: Any, name: str) -> str | None:
    """Return the state of a run if it is known."""
    found = flow.state(name)
    return None if found is None else found.state


texts = st.binary(max_size=20)
rows = st.tuples(
    st.sampled_from([b"active", b"done", b"dead", b"blocked", b"x", b""]), texts, texts, texts, texts, texts, texts,
    st.lists(texts, max_size=4).map(lambda some: some + some),
    st.lists(st.tuples(texts, texts, st.integers(0, 1), texts), max_size=3).map(lambda some: list(chain(*some))),
)  # fmt: skip


@given(rows)
@example((b"done", b"a", b"", b"nan", b"-1", b"[" * 10_000, b"1e9", [], []))
def test_any_state_of_a_run_can_be_read(row: Any) -> None:
    state = flow_state("o", row)
    assert state is not None
    assert isinstance(state.attributes, dict)


@given(st.binary(max_size=600))
@example(b"")
@example(b"\xff")
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_member_of_flows_can_be_passed_on(member: bytes) -> None:
    ops = FlowOps("shop", "headrace", settings=QueueSettings(result_ttl=60))
    ops.declare("pick", (), (), {})
    (move,) = ops.events().decode([1, member])
    assert move.args[0] in ("event", "forget")
    assert ops.advance([move]).packed("EVAL", "l", "1")


@pytest.mark.parametrize("how", ["waiting", "delayed"])
def test_a_copied_header_keeps_no_job_from_moving(
    flows: Flows, client: redis.Redis, how: str
) -> None:
    plain = flows.connect("shop/plain")
    assert plain.lease() is None
    if how == "waiting":
        client.xadd("headrace:{shop}:shop/plain:jobs", {"data": "1", "headrace-flow": KEY + "o"})
    else:
        plain.enqueue(b"1", id="o", delay=3600)
    assert plain.admin.move("shop/other") == 1
