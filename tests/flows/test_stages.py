"""From stage to stage with results, state, choice, look-up and cancellation. Each happens once for
any completer."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import redis

from headrace import AsyncFlow, ConfigurationError, FanOut, Flow, FlowJob, JobFailed, NewJob, Next
from headrace._model.flow import Results
from headrace._net.sync.executor import Executor
from headrace._protocol.keys import FLOW
from headrace.codecs import JSONCodec
from headrace.errors import CodecError
from tests.flows.conftest import Flows
from tests.support.facts import each
from tests.support.steps import expire


def test_a_run_begins_in_the_first_stage(flows: Flows, client: redis.Redis) -> None:
    receipt = flows.flow.start(
        b"order", id="o-1", attributes={"customer": "ada", "note": "x"}, headers={"h": "1"}
    )
    assert (receipt.id, receipt.added) == ("o-1", True)
    assert flows.now() == {"pick": {"waiting": 1}}
    state = flows.flow.state("o-1")
    assert (state.id, state.state, state.stage, state.results) == ("o-1", "running", "pick", {})
    assert state.attributes == {"customer": "ada", "note": "x"}
    assert state.started_at is not None
    assert state.ended_at is None
    (lease,) = flows.lease("pick")
    assert (lease.job.id, lease.job.payload, lease.job.attempt) == ("o-1", b"order", 1)
    key = lease.job.headers[FLOW]  # so that others find the state, too
    assert dict(lease.job.headers) == {"h": "1", FLOW: key}
    assert client.hget(key, "state") == b"running"
    assert client.ttl(key) == -1


def test_it_passes_through_with_its_results(flows: Flows, client: redis.Redis) -> None:
    name = flows.flow.start(b"order", headers={"h": "1"}).id
    assert flows.done("pick", b"picked")
    assert flows.now() == {"bill": {"waiting": 1}}
    (lease,) = flows.lease("bill")
    assert (lease.job.id, lease.job.payload, lease.job.headers["h"]) == (name, b"order", "1")
    assert flows.flow.complete(lease, None)
    state = flows.flow.state(name)
    assert (state.state, state.stage, state.results) == ("running", "send", {"pick": b"picked"})
    assert flows.flow.result(name) is None
    assert flows.done("send", b"sent")
    assert flows.now() == {}
    state = flows.flow.state(name)
    assert (state.state, state.stage) == ("completed", "send")
    assert state.results == {"pick": b"picked", "send": b"sent"}
    assert state.ended_at >= state.started_at
    assert flows.flow.result(name, timeout=1) == b"sent"
    assert 0 < client.ttl(flows.flow.ops.run(name)) <= 86400


def test_nothing_but_what_expires_is_left(flows: Flows, client: redis.Redis) -> None:
    flows.flow.start(b"order", id="o", attributes={"customer": "ada"})
    flows.done("pick", FanOut([b"1", b"2"], stage="pack"))
    for lease in flows.lease("pack", 2):
        assert flows.flow.complete(lease, Next(None, b"r"))
    flows.done("bill")
    flows.done("send")
    kept = {key for key in client.scan_iter(count=1000) if client.ttl(key) == -1}
    parts = {key.decode().rpartition(":")[2] for key in kept}
    assert parts <= {"jobs", "wake", "stats", "workers", "registered"}  # as of any empty queue


@pytest.mark.parametrize("target", ["send", "shop/send"])
def test_the_result_chooses_the_next_stage(flows: Flows, target: str) -> None:
    name = flows.flow.start(b"order").id
    assert flows.done("pick", Next(target, b"there"))
    assert flows.now() == {"send": {"waiting": 1}}
    assert flows.flow.state(name).results == {"pick": b"there"}


def test_a_stage_may_end_the_run(flows: Flows) -> None:
    name = flows.flow.start(b"order").id
    assert flows.done("pick", Next(None, b"enough"))
    assert flows.now() == {}
    assert flows.flow.result(name) == b"enough"


def test_a_loop_replaces_results(flows: Flows) -> None:
    name = flows.flow.start(b"order").id
    assert flows.done("pick", b"1")
    assert flows.done("bill", Next("pick"))
    assert flows.done("pick", b"2")
    assert flows.flow.state(name).results == {"pick": b"2"}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_run_may_begin_elsewhere_and_later(flows: Flows) -> None:
    name = flows.flow.start(b"order", stage="bill", delay=3600).id
    assert flows.now() == {"bill": {"delayed": 1}}
    assert flows.flow.state(name).stage == "bill"
    assert flows.flow.cancel(name)
    assert flows.now() == {}


def test_an_id_is_taken_while_its_run_goes_on(flows: Flows) -> None:
    assert flows.flow.start(b"1", id="o", attributes={"customer": "ada"}).added
    assert not flows.flow.start(b"2", id="o").added
    flows.done("pick")
    assert not flows.flow.start(b"2", id="o", stage="pick").added
    assert flows.now() == {"bill": {"waiting": 1}}
    flows.done("bill", Next("send"))
    flows.done("send", b"r")
    assert flows.flow.start(b"2", id="o").added
    state = flows.flow.state("o")
    assert (state.state, state.results, state.attributes) == ("running", {}, {})


def test_completing_twice_moves_once(flows: Flows) -> None:
    flows.flow.start(b"order")
    (lease,) = flows.lease("pick")
    assert flows.flow.complete(lease, b"1")
    assert not flows.flow.complete(lease, b"2")
    assert not flows.flow.complete(lease, FanOut([b"x"], stage="pack"))
    assert not lease.complete()
    assert flows.now() == {"bill": {"waiting": 1}}
    counts = flows.queues["pick"].counts()
    assert (counts.enqueued, counts.completed) == (1, 1)


def test_a_stale_holder_wins_unless_it_is_fenced(flows: Flows) -> None:
    flows.flow.start(b"order")
    (stale,) = flows.lease("pick")
    assert stale.release()
    (lease,) = flows.lease("pick")
    assert not flows.flow.complete(stale, b"1", fenced=True)
    assert flows.flow.complete(lease, b"2", fenced=True)
    assert not flows.flow.complete(stale, b"1")
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_plain_completion_moves_on_later(flows: Flows) -> None:
    """A client that knows no flows completes the job. The run goes to the default stage without a
    result."""
    name = flows.flow.start(b"order").id
    (lease,) = flows.lease("pick")
    assert lease.complete(b"lost")
    assert flows.now() == {}
    state = flows.flow.state(name)  # who asks sees to it
    assert (state.state, state.stage, state.results) == ("running", "bill", {})
    assert flows.now() == {"bill": {"waiting": 1}}
    (lease,) = flows.queues["bill"].lease_many(1, at_most_once=True)
    assert lease.job.payload == b"order"
    assert flows.flow.state(name).stage == "send"


def test_a_job_of_no_flow_is_completed(flows: Flows) -> None:
    """This also holds for a job that copied a flow's headers."""
    flows.flow.start(b"order", id="o")
    (lease,) = flows.lease("pick")
    flows.queues["pick"].enqueue(b"plain", id="plain", headers=dict(lease.job.headers))
    flows.queues["pick"].enqueue(b"other")
    plain, other = flows.lease("pick", 2)
    with pytest.raises(ConfigurationError, match="belongs to no run"):
        flows.flow.complete(other, Next("send"))
    assert flows.flow.complete(plain, b"r")
    assert flows.flow.complete(other, b"r")
    assert flows.queues["pick"].result(other.job.id) == b"r"
    assert flows.flow.complete(lease)
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_plain_job_of_the_same_id_is_not_lost(flows: Flows) -> None:
    flows.queues["bill"].enqueue(b"late", id="o", delay=3600)
    flows.queues["send"].enqueue(b"plain", id="o")
    flows.flow.start(b"order", id="o")
    flows.done("pick")
    assert flows.now() == {"bill": {"waiting": 2}, "send": {"waiting": 1}}
    late, ours = flows.lease("bill", 2)
    assert late.job.payload == b"late"
    assert flows.flow.complete(late)
    assert flows.flow.complete(ours)
    assert flows.now() == {"send": {"waiting": 2}}
    for lease in flows.lease("send", 2):
        assert flows.flow.complete(lease)
    assert flows.flow.state("o").state == "completed"
    assert flows.now() == {}


def test_runs_are_found_by_their_attributes_while_they_go_on(flows: Flows) -> None:
    for i in range(6):
        tags = ["even" if i % 2 == 0 else "odd", "all"]
        flows.flow.start(
            b"%d" % i, id=f"o-{i}", attributes={"customer": f"c{i % 3}", "tag": tags, "note": "n"}
        )
    ids = [state.id for state in flows.flow.find(customer="c1")]
    assert ids == ["o-1", "o-4"]
    assert [state.id for state in flows.flow.find(tag="even")] == ["o-0", "o-2", "o-4"]
    assert [state.id for state in flows.flow.find(tag="all", customer="c1")] == ["o-1", "o-4"]
    assert flows.flow.find(customer="c") == []
    for lease in flows.lease("pick", 6):
        flows.flow.complete(lease, Next(None) if lease.job.id in ("o-1", "o-2") else None)
    assert flows.flow.cancel("o-0")
    found = flows.flow.find(tag="all")
    assert [(state.id, state.stage, state.attributes["customer"]) for state in found] == [
        ("o-3", "bill", "c0"),
        ("o-4", "bill", "c1"),
        ("o-5", "bill", "c2"),
    ]
    with pytest.raises(ValueError, match="note"):
        flows.flow.find(note="n")
    with pytest.raises(ValueError, match="at least one"):
        flows.flow.find()


def test_more_runs_than_a_page_are_found(newest_flows: Flows) -> None:
    flow = newest_flows.flow
    starts = [flow.ops.start(NewJob(b"", f"o-{i}"), {"customer": "ada"}) for i in range(1003)]
    executor = Executor(newest_flows.connect.server.url)
    assert all(receipt.added for receipt in executor.run_all(starts))
    executor.close()
    assert len(flow.find(customer="ada")) == 1003


@pytest.mark.parametrize("where", ["waiting", "leased", "parked", "delayed", "retried", "next"])
def test_a_run_is_cancelled_wherever_it_is(flows: Flows, where: str, client: redis.Redis) -> None:
    """The run never comes back."""
    name = flows.flow.start(b"order", delay=3600 if where == "delayed" else None).id
    lease = None
    if where not in ("waiting", "delayed"):
        (lease,) = flows.lease("pick")
    if where == "parked":
        lease.release()
    elif where == "retried":
        lease.retry(delay=3600)
    elif where == "next":
        flows.flow.complete(lease)
    assert flows.flow.cancel(name)
    assert not flows.flow.cancel(name)
    assert flows.now() == {}
    assert flows.flow.state(name).state == "cancelled"
    with pytest.raises(JobFailed, match="is cancelled"):
        flows.flow.result(name, timeout=5)
    if lease is not None:
        assert not flows.flow.complete(lease)
        assert not lease.retry()
        assert not lease.dead_letter("why")
    assert flows.now() == {}
    assert client.ttl(flows.flow.ops.run(name)) > 0


def test_a_job_cancelled_or_purged_in_its_queue_cancels_its_run(flows: Flows) -> None:
    pick = flows.queues["pick"]
    ways = {
        "cancel": lambda: pick.cancel("cancel"),
        "payload": lambda: pick.admin.cancel_payload(b"payload"),
        "purge": pick.admin.purge,
        "delete": pick.admin.delete,
    }
    for name, act in ways.items():
        for delay in (None, 3600):
            flows.flow.start(name.encode(), id=name, delay=delay)
            assert act()
            assert flows.flow.state(name).state == "cancelled", name
            assert flows.now() == {}


@pytest.mark.parametrize("how", ["dead_letter", "retry", "lease"])
def test_a_dead_stage_is_redriven_and_the_run_goes_on(
    flows: Flows, how: str, client: redis.Redis
) -> None:
    name = flows.flow.start(b"order", attributes={"customer": "ada"}).id
    flows.done("pick", b"picked")
    key = flows.flow.ops.run(name)
    bill = flows.connect("shop/bill", max_attempts=1)
    lease = bill.lease()
    if how == "lease":
        flows.queues["bill"].renew(lease, duration=0.001)
        expire(flows.queues["bill"])
        assert bill.lease() is None
    elif how == "retry":
        assert lease.retry(reason="why")
    else:
        assert lease.dead_letter("why")
    assert flows.now() == {"bill": {"dead": 1}}
    state = flows.flow.state(name)
    assert (state.state, state.stage, state.results) == ("failed", "bill", {"pick": b"picked"})
    with pytest.raises(JobFailed, match=r"is dead: (why|no attempts left)"):
        flows.flow.result(name, timeout=5)
    assert flows.flow.find(customer="ada") == []
    assert client.ttl(key) > 0
    assert not flows.flow.cancel(name)
    assert flows.queues["bill"].admin.redrive(name) == 1
    assert [found.id for found in flows.flow.find(customer="ada")] == [name]
    assert flows.flow.state(name).state == "running"
    assert client.ttl(key) == -1
    flows.done("bill")
    flows.done("send", b"sent")
    assert flows.flow.result(name) == b"sent"
    assert flows.now() == {}


def test_dead_redriven_and_completed_before_anybody_looked(flows: Flows) -> None:
    name = flows.flow.start(b"order").id
    (lease,) = flows.lease("pick")
    lease.dead_letter("why")
    flows.queues["pick"].admin.redrive()
    assert flows.done("pick", b"picked")
    assert flows.flow.state(name).stage == "bill"
    (lease,) = flows.lease("bill")
    lease.dead_letter("why")
    assert flows.flow.state(name).state == "failed"
    flows.queues["bill"].admin.redrive()
    (lease,) = flows.lease("bill")
    assert lease.dead_letter("again")
    assert flows.flow.state(name).state == "failed"
    flows.queues["bill"].admin.redrive()
    assert flows.done("bill")
    assert flows.flow.state(name).stage == "send"
    assert flows.now() == {"send": {"waiting": 1}}


def test_redriven_after_the_state_was_forgotten(flows: Flows, client: redis.Redis) -> None:
    """The run goes on without its former state."""
    name = flows.flow.start(b"order").id
    flows.done("pick", b"picked")
    (lease,) = flows.lease("bill")
    lease.dead_letter("why")
    assert flows.flow.state(name).state == "failed"
    client.delete(flows.flow.ops.run(name))
    flows.queues["bill"].admin.redrive()
    assert flows.done("bill", b"billed")
    (lease,) = flows.lease("send")
    assert lease.job.payload == b"order"
    assert flows.flow.complete(lease, b"sent")
    assert flows.flow.state(name).results == {"bill": b"billed", "send": b"sent"}
    assert client.ttl(flows.flow.ops.run(name)) > 0


def test_an_unknown_stage_waits_for_who_knows_it(flows: Flows) -> None:
    """A client with an older declaration does not lose a run in a newer stage."""
    flows.flow.start(b"order", id="o")
    flows.done("pick", FanOut([b"x"], stage="pack", join="send"))
    old = Flows(flows.connect)
    for name in ("pick", "pack", "weigh"):
        old.stage(name)
    (lease,) = flows.lease("pack")
    assert not old.flow.complete(lease, Next(None))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"leased": 1}}
    assert flows.flow.complete(lease, Next(None))
    assert flows.now() == {"send": {"waiting": 1}}


def test_a_codec_s_payloads_and_results(newest_flows: Flows) -> None:
    flows = Flows(newest_flows.connect, codec=JSONCodec())
    flows.stage("one", next="two", children="two")
    flows.stage("two")
    flows.flow.start({"a": 1}, id="o")
    lease = newest_flows.connect("shop/one", codec=JSONCodec()).lease()
    assert lease.job.payload == {"a": 1}
    assert flows.flow.complete(lease, FanOut([{"b": 2}, NewJob([3], id="c")], result={"n": 2}))
    queue = newest_flows.connect("shop/two", codec=JSONCodec())
    assert [lease.job.payload for lease in queue.lease_many(9)] == [{"b": 2}, [3]]
    assert flows.flow.state("o").results == {"one": {"n": 2}}


def test_a_handler_reads_the_results_of_children(newest_flows: Flows) -> None:
    """Results have the codec's types. A result that does not decode raises an error when it is
    read."""
    flows = Flows(newest_flows.connect, codec=JSONCodec())
    flows.stage("one", next="three", children="two")
    flows.stage("two")
    flows.stage("three")
    flows.flow.start({"a": 1}, id="o")
    first, second, third = (
        newest_flows.connect(f"shop/{name}", codec=JSONCodec()) for name in ("one", "two", "three")
    )
    assert flows.flow.complete(
        first.lease(), FanOut([NewJob({"b": n}, id=f"c{n}") for n in range(3)], result=[0])
    )
    leases = second.lease_many(3)
    for lease in leases[:2]:
        assert flows.flow.complete(lease, {"was": lease.job.payload})
    assert flows.flow.complete(leases[2])
    job = FlowJob.of(third.lease().job, flows.flow.state("o"))
    assert dict(job.children) == {"c0": {"was": {"b": 0}}, "c1": {"was": {"b": 1}}, "c2": None}
    assert dict(job.results) == {"one": [0]}
    assert pickle.loads(pickle.dumps(job)).children == job.children
    plain = Flows(newest_flows.connect)
    for name in ("one", "two", "three"):
        plain.stage(name)
    assert plain.flow.state("o").results == {"one": b"[0]"}
    bad = Results({"c": b"{"}, JSONCodec().decode)
    with pytest.raises(CodecError, match="the result of 'c' does not decode"):
        _ = bad["c"]


BAD: dict[str, tuple[Any, str]] = {
    "next": (Next("weigh"), "does not lead to 'weigh'"),
    "no stage": (Next("nowhere"), "no stage 'nowhere'"),
    "no children": (FanOut([b"x"], stage="send"), "declare it in its children="),
    "no beginning": (FanOut([b"x"]), "has no stage to begin in"),
    "no policy": (FanOut([], stage="pack", failed="so what"), "failed='so what'"),
    "join": (FanOut([b"x"], stage="pack", join="weigh"), "does not lead to 'weigh'"),
    "bytes": (FanOut(b"xyz", stage="pack"), "iterable of payloads"),
    "twice": (FanOut([NewJob(b"x", id="a"), NewJob(b"y", id="a")], stage="pack"), "called 'a'"),
    "slash": (FanOut([NewJob(b"x", id="a/b")], stage="pack"), "may not hold '/'"),
    "long": (FanOut([NewJob(b"x", id="a" * 495)], stage="pack"), "at most 500"),
    "many": (FanOut([b""] * 1001, stage="pack"), "at most 1,000"),
    "large": (FanOut([b"x" * 2**19] * 3, stage="pack"), "at most 1,000 and 1,048,576 bytes"),
    "payload": (FanOut([object()], stage="pack"), "payload must be"),
    "result": (Next("send", object()), "result"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_outcome_is_refused(newest_flows: Flows, case: str) -> None:
    outcome, message = BAD[case]
    newest_flows.flow.start(b"order", id="o" * 9)
    (lease,) = newest_flows.lease("pick")
    with pytest.raises((ValueError, TypeError), match=message):
        newest_flows.flow.complete(lease, outcome)
    assert newest_flows.now() == {"pick": {"leased": 1}}


def test_bad_arguments_are_refused(newest_flows: Flows) -> None:
    flow = newest_flows.flow
    for bad in (
        {"id": "a/b"},
        {"id": ""},
        {"id": "x" * 201},
        {"stage": "nowhere"},
        {"attributes": {"a": "b\n"}},
    ):
        with pytest.raises(ValueError, match=r"id|stage|attribute"):
            flow.start(b"x", **bad)
    for worse in (
        {"attributes": {"a": 1}},
        {"attributes": [1]},
        {"id": 5},
        {"attributes": {"a": [None]}},
    ):
        with pytest.raises(TypeError):
            flow.start(b"x", **worse)
    with pytest.raises(TypeError, match="lease"):
        flow.complete("x")
    newest_flows.connect("shop/other").enqueue(b"x")
    with pytest.raises(ConfigurationError, match="no stage"):
        flow.complete(newest_flows.connect("shop/other").lease())
    assert newest_flows.now() == {}


@each("kind", [Flow, AsyncFlow])
def test_a_wrong_declaration_is_refused(kind: Any) -> None:
    url = "redis://127.0.0.1:1"
    with pytest.raises(ConfigurationError, match="without a '/'"):
        kind("a/b", url=url)
    with pytest.raises(TypeError, match="lookup"):
        kind("a", url=url, lookup="customer")
    flow = kind("a", url=url)
    with pytest.raises(ConfigurationError, match="no stages"):
        flow.ops.declared()
    flow.stage("one", next="two")
    with pytest.raises(ConfigurationError, match="lacks"):
        flow.ops.declared()
    with pytest.raises(ConfigurationError, match="declared already"):
        flow.stage("a/one")
    for wrong in ("b/two", "a b", ""):
        with pytest.raises(ConfigurationError):
            flow.stage(wrong)
    with pytest.raises(TypeError, match="codec"):
        flow.stage("three", codec=None)
    with pytest.raises(TypeError, match="next"):
        flow.stage("four", next=5)
    register = flow.stage("two")
    register(print)
    with pytest.raises(ConfigurationError, match="handler already"):
        register(print)
    assert list(flow.ops.declared()) == ["one", "two"]


def test_it_is_drawn(newest_flows: Flows) -> None:
    flows = newest_flows
    flows.flow.start(b"order", id="o")
    flows.flow.start(b"order", id="p")
    lease, _ = flows.lease("pick", 2)
    flows.flow.complete(lease, FanOut([b"x", b"y"], stage="pack"))
    assert flows.flow.mermaid() == (
        "flowchart LR\n"
        '  s0["pick"]\n  s1["pack"]\n  s2["weigh"]\n  s3["bill"]\n  s4["send"]\n'
        "  s0 --> s3\n  s0 -.-> s4\n  s0 ==>|fan-out| s1\n  s0 ==>|fan-out| s0\n"
        "  s1 --> s2\n  s3 --> s4\n  s3 -.-> s0\n"
    )
    drawn = flows.flow.mermaid(counts=True)
    assert (
        '  s0["pick<br/>leased 1<br/>blocked 1"]\n  s1["pack<br/>waiting 2"]\n  s2["weigh"]\n'
        in drawn
    )


@pytest.mark.parametrize("how", ["start", "next"])
def test_a_delayed_job_that_gives_way_keeps_its_releases(
    flows: Flows, client: redis.Redis, how: str
) -> None:
    """A foreign job has the id of the next one. No record of it stays, and its attempts are its
    own."""
    stage = "pick" if how == "start" else "bill"
    queue = flows.queues[stage]
    queue.enqueue(b"plain", id="o")
    for settle in ("release", "release", "retry"):
        (lease,) = flows.lease(stage)
        assert getattr(lease, settle)(*([3600] if settle == "retry" else []))
    flows.flow.start(b"order", id="o")
    if how == "next":
        assert flows.done("pick")
    plain, ours = flows.lease(stage, 2)
    assert (plain.job.payload, plain.job.attempt, ours.job.payload, ours.job.attempt) == (
        b"plain",
        2,
        b"order",
        1,
    )
    assert plain.complete()
    assert flows.flow.complete(ours, Next(None))
    assert not client.exists(queue.ops.keys.key("released"))
