"""Fan-out and fan-in. Children and the join happen once, and the children's ends count for the
parent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis

from headrace import FanOut, NewJob, Next
from tests.conformance.test_buried import said
from tests.flows.conftest import Flows

POLICIES = ("fail", "continue", "cancel")


def begin(flows: Flows, children: Iterable[Any] = (b"a", b"b", b"c"), **options: Any) -> str:
    """Begin a run that waits for children in `pack`, and return its id."""
    name = str(flows.flow.start(b"order", id="o").id)
    assert flows.done("pick", FanOut(list(children), stage="pack", **options))
    return name


def complete(flows: Flows, leases: Iterable[Any]) -> None:
    """End each child, its payload in capitals as the result."""
    for lease in leases:
        assert flows.flow.complete(lease, Next(None, lease.job.payload.upper()))


def test_a_parent_is_blocked_until_its_last_child_ends(flows: Flows, client: redis.Redis) -> None:
    name = begin(flows, result=b"three")
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 3}}
    found = flows.queues["pick"].find(name)
    assert (found.state, found.job.id, found.job.payload) == ("blocked", name, b"order")
    (listed,) = flows.queues["pick"].admin.blocked()
    assert (listed.state, listed.job.id, listed.job.payload) == ("blocked", name, b"order")
    assert not flows.queues["pick"].enqueue(b"x", id=name).added
    state = flows.flow.state(name)
    assert (state.state, state.stage, state.pending, state.children) == ("blocked", "pick", 3, {})
    leases = flows.lease("pack", 3)
    assert [lease.job.id for lease in leases] == [f"{name}/1/{i}" for i in range(3)]
    child = flows.flow.state(leases[0].job.id)
    assert (child.state, child.stage, child.results) == ("running", "pack", {"pick": b"three"})
    complete(flows, leases[:2])
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"leased": 1}}
    assert flows.flow.state(name).children == {"0": b"A", "1": b"B"}
    complete(flows, leases[2:])
    assert flows.now() == {"bill": {"waiting": 1}}
    assert list(flows.queues["pick"].admin.blocked()) == []
    state = flows.flow.state(name)
    assert (state.state, state.stage, state.pending, state.failed) == ("running", "bill", 0, ())
    assert state.children == {"0": b"A", "1": b"B", "2": b"C"}
    assert state.results == {"pick": b"three"}
    (lease,) = flows.lease("bill")
    assert (lease.job.id, lease.job.payload) == (name, b"order")
    assert flows.flow.complete(lease, Next(None))
    assert flows.flow.state(name).state == "completed"
    assert client.hkeys(flows.flow.ops.run(name))
    assert not [key for key in client.hkeys(flows.flow.ops.run(name)) if key.startswith(b"job:")]


def test_a_parent_whose_children_failed(flows: Flows, caplog: pytest.LogCaptureFixture) -> None:
    """A call of the flow or a look at it takes in the death of the child."""
    flows.flow.start(b"order", id="o", headers={"kind": "order"})
    assert flows.done("pick", FanOut([b"a"], stage="pack"))
    (child,) = flows.lease("pack")
    assert child.dead_letter("no")
    assert flows.flow.state("o").state == "failed"
    assert flows.flow.state("o").state == "failed"
    assert said(caplog) == [
        ("o/1/0", "", "no"),
        ("o", "order", "1 of 1 children failed, the first o/1/0: no"),
    ]


def test_children_have_names_stages_delays_and_headers(flows: Flows) -> None:
    begin(
        flows,
        [
            NewJob(b"x", id="north", headers={"h": "1"}),
            NewJob(b"y", queue="shop/pick", delay=3600),
            b"z",
        ],
    )
    assert flows.now() == {"pick": {"blocked": 1, "delayed": 1}, "pack": {"waiting": 2}}
    north, last = flows.lease("pack", 2)
    assert (north.job.id, north.job.headers["h"]) == ("o/1/north", "1")
    assert (last.job.id, last.job.payload) == ("o/1/2", b"z")
    assert flows.flow.cancel("o/1/1")
    complete(flows, [north, last])
    assert flows.flow.state("o").failed == ("1",)


def test_no_children_at_all(flows: Flows) -> None:
    begin(flows, [], join="send")
    assert flows.now() == {"send": {"waiting": 1}}
    counts = flows.queues["pick"].counts()
    assert (counts.enqueued, counts.completed) == (1, 1)


def test_children_pass_through_stages_of_their_own(flows: Flows) -> None:
    begin(flows, [b"a", b"b"])
    for lease in flows.lease("pack", 2):
        assert flows.flow.complete(lease, b"packed")
    first, second = flows.lease("weigh", 2)
    assert flows.flow.complete(first, b"1 kg")
    assert flows.now() == {"pick": {"blocked": 1}, "weigh": {"leased": 1}}
    assert flows.flow.state("o/1/0").results == {"pack": b"packed", "weigh": b"1 kg"}
    assert flows.flow.complete(second)
    assert flows.flow.state("o").children == {"0": b"1 kg", "1": None}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_fan_out_at_the_end_of_a_flow(flows: Flows) -> None:
    """The run ends with its children."""
    flows.flow.start(b"x", id="o", stage="pick")
    flows.stage("last", children="pack")
    flows.flow.start(b"x", id="p", stage="last")
    assert flows.done("last", FanOut([b"a"], result=b"r"))
    complete(flows, flows.lease("pack"))
    assert flows.flow.result("p") == b"r"
    assert flows.flow.state("p").children == {"0": b"A"}
    assert flows.now() == {"pick": {"waiting": 1}}


@pytest.mark.parametrize(
    ("outcome", "weighed"), [(None, True), (Next("weigh"), True), ("outside", False)]
)
def test_a_child_of_a_last_stage_under_a_newer_declaration(
    flows: Flows, outcome: Any, weighed: bool
) -> None:
    """A step moves the child on with all its fields. A plain completion reads no fields and ends
    it."""
    older = Flows(flows.connect)
    older.stage("pick", next="bill", children="pack")
    older.stage("pack")
    older.stage("bill")
    name = begin(older, [NewJob(b"a", headers={"h": "1"})])
    older.flow.close()
    (lease,) = flows.lease("pack")
    assert lease.complete() if outcome == "outside" else flows.flow.complete(lease, outcome)
    assert flows.flow.state(name).state == ("blocked" if weighed else "running")
    if weighed:
        (lease,) = flows.lease("weigh")
        assert (lease.job.payload, lease.job.headers["h"]) == (b"a", "1")
        assert flows.flow.complete(lease)
    assert flows.flow.state(name).failed == ()
    assert flows.now() == {"bill": {"waiting": 1}}


def test_fan_outs_within_fan_outs(flows: Flows) -> None:
    begin(flows, [NewJob(b"l", id="l", queue="pick"), NewJob(b"r", id="r", queue="pick")])
    left, right = flows.lease("pick", 2)
    assert flows.flow.complete(left, FanOut([b"a", b"b"], stage="pack"))
    assert flows.flow.complete(right, FanOut([], stage="pack"))
    assert flows.now() == {"pick": {"blocked": 2}, "pack": {"waiting": 2}, "bill": {"waiting": 1}}
    complete(flows, flows.lease("pack", 2))
    assert flows.flow.state("o/1/l").children == {"0": b"A", "1": b"B"}
    for lease in flows.lease("bill", 2):
        assert flows.flow.complete(lease, Next("send", b"billed"))
    for lease in flows.lease("send", 2):
        assert flows.now().get("pick") == {"blocked": 1}
        assert flows.flow.complete(lease, lease.job.payload)
    assert flows.flow.state("o").children == {"l": b"l", "r": b"r"}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_the_last_of_the_last_ends_all_of_it_at_once(flows: Flows) -> None:
    """In a chain, each parent waits for one child."""
    flows.stage("deep", children="deep")
    flows.flow.start(b"0", id="o", stage="deep")
    for depth in range(20):
        assert flows.done("deep", FanOut([b"%d" % depth], result=b"r"))
    assert flows.now() == {"deep": {"blocked": 20, "waiting": 1}}
    assert flows.done("deep", b"bottom")
    assert flows.now() == {}
    assert flows.flow.result("o") == b"r"
    assert flows.flow.state("o/1/0").children == {"0": b"r"}


def test_two_fan_outs_of_one_run(flows: Flows) -> None:
    begin(flows, [b"a"])
    complete(flows, flows.lease("pack"))
    assert flows.done("bill", Next("pick"))
    assert flows.done("pick", FanOut([b"x", b"y"], stage="pack"))
    leases = flows.lease("pack", 2)
    assert [lease.job.id for lease in leases] == ["o/2/0", "o/2/1"]
    complete(flows, leases)
    assert flows.flow.state("o").children == {"0": b"X", "1": b"Y"}
    assert flows.now() == {"bill": {"waiting": 1}}


ENDS: dict[str, Callable[[Flows, Any], Any]] = {
    "dead_letter": lambda _, lease: lease.dead_letter("why"),
    "no attempts left": lambda flows, lease: flows.connect("shop/pack", max_attempts=1)._run(
        flows.connect("shop/pack").ops.retry([(lease.claim, None, True, "why")], max_attempts=1)
    ),
    "cancelled": lambda flows, lease: flows.queues["pack"].cancel(lease.job.id),
    "cancelled by the flow": lambda flows, lease: flows.flow.cancel(lease.job.id),
    "deleted": lambda flows, _: flows.queues["pack"].admin.delete(),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_that_fails_counts_down(flows: Flows, how: str, policy: str) -> None:
    begin(flows, failed=policy)
    a, b, c = flows.lease("pack", 3)
    if how == "deleted":
        complete(flows, [a, c])
        assert ENDS[how](flows, b)
    else:
        complete(flows, [a])
        assert ENDS[how](flows, b)
        assert flows.flow.state("o/1/1").state in ("failed", "cancelled")
        if policy == "cancel":
            assert not flows.flow.complete(c)
        else:
            assert flows.flow.state("o").state == "blocked"
            complete(flows, [c])
    state = flows.flow.state("o")
    dead = {"pack": {"dead": 1}} if how in ("dead_letter", "no attempts left") else {}
    if policy == "continue":
        assert (state.state, state.stage, state.children) == (
            "running",
            "bill",
            {"0": b"A", "2": b"C"},
        )
        assert state.failed == ("1",)
        assert flows.now() == {"bill": {"waiting": 1}, **dead}
        return
    assert (state.state, state.stage) == ("failed", "pick")
    assert flows.now() == {"pick": {"dead": 1}, **dead}
    letter = flows.queues["pick"].find("o")
    assert (letter.state, letter.job.payload) == ("dead", b"order")
    assert "of 3 children failed" in letter.reason


def test_all_children_fail(flows: Flows) -> None:
    begin(flows, failed="continue")
    for lease in flows.lease("pack", 3):
        lease.dead_letter("why")
    assert flows.flow.state("o").failed == ("0", "1", "2")
    assert flows.now() == {"bill": {"waiting": 1}, "pack": {"dead": 3}}


def test_a_failed_parent_is_redriven_and_creates_what_is_missing(flows: Flows) -> None:
    """Completed children do not run again, and children on their way are waited for."""
    begin(flows)
    a, b, c = flows.lease("pack", 3)
    complete(flows, [a])
    b.dead_letter("why")
    c.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    assert flows.queues["pack"].admin.redrive(b.job.id) == 1
    assert flows.queues["pick"].admin.redrive("o") == 1
    assert flows.flow.state("o").state == "running"
    assert flows.done("pick", FanOut([b"a", b"b", b"c"], stage="pack"))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 2, "dead": 1}}
    assert flows.flow.state("o").pending == 2
    complete(flows, flows.lease("pack", 2))
    assert flows.flow.state("o").children == {"0": b"A", "1": b"B", "2": b"C"}
    assert flows.now() == {"bill": {"waiting": 1}, "pack": {"dead": 1}}
    assert flows.queues["pack"].admin.purge_dead() == 1


@pytest.mark.parametrize("seen", [True, False])
def test_a_child_that_was_redriven_while_its_parent_ran_again_is_not_created_twice(
    flows: Flows, seen: bool
) -> None:
    begin(flows, [b"a", b"b"])
    a, b = flows.lease("pack", 2)
    complete(flows, [a])
    b.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    flows.queues["pick"].admin.redrive()
    (lease,) = flows.lease("pick")
    flows.queues["pack"].admin.redrive()
    if seen:
        flows.flow.state("o")
    assert flows.flow.complete(lease, FanOut([b"a", b"b"], stage="pack"))
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 1}}
    complete(flows, flows.lease("pack"))
    assert flows.flow.state("o").children == {"0": b"A", "1": b"B"}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_dead_child_is_redriven_while_its_parent_waits(flows: Flows) -> None:
    """The parent goes on as if the child had never died."""
    begin(flows, [b"a", b"b"])
    a, b = flows.lease("pack", 2)
    b.dead_letter("why")
    assert flows.flow.state("o").failed == ("1",)
    flows.queues["pack"].admin.redrive()
    state = flows.flow.state("o")
    assert (state.state, state.pending, state.failed) == ("blocked", 2, ())
    complete(flows, [a])
    complete(flows, flows.lease("pack"))
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_nested_failure_goes_up_and_is_redriven_down(flows: Flows) -> None:
    begin(flows, [NewJob(b"l", id="l", queue="pick")])
    assert flows.done("pick", FanOut([b"a", b"b"], stage="pack"))
    a, b = flows.lease("pack", 2)
    complete(flows, [a])
    b.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    assert flows.flow.state("o/1/l").state == "failed"
    assert flows.now() == {"pick": {"dead": 2}, "pack": {"dead": 1}}
    for name in ("pick", "pack"):
        flows.queues[name].admin.redrive()
    assert flows.flow.state("o").state == "running"
    child, top = flows.lease("pick", 2)
    assert (child.job.id, top.job.id) == ("o/1/l", "o")
    assert flows.flow.complete(top, FanOut([NewJob(b"l", id="l", queue="pick")], stage="pack"))
    assert flows.flow.complete(child, FanOut([b"a", b"b"], stage="pack"))
    assert flows.now() == {"pick": {"blocked": 2}, "pack": {"waiting": 1}}
    complete(flows, flows.lease("pack"))
    assert flows.now() == {"pick": {"blocked": 1}, "bill": {"waiting": 1}}
    assert flows.done("bill", Next("send"))
    assert flows.done("send", b"l")
    assert flows.flow.state("o").children == {"l": b"l"}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_run_is_cancelled_with_all_its_children(flows: Flows) -> None:
    begin(flows, [NewJob(b"l", id="l", queue="pick"), NewJob(b"r", delay=3600), b"x", b"y"])
    assert flows.done("pick", FanOut([b"a"] * 150, stage="pack"))
    held = flows.queues["pack"].lease_many(100)
    held[0].release()
    assert flows.flow.cancel("o")
    assert flows.now() == {}
    assert [flows.flow.state(name).state for name in ("o", "o/1/l", "o/1/l/1/149", "o/1/1")] == [
        "cancelled"
    ] * 4
    assert not any(flows.flow.complete(lease) for lease in held)
    assert flows.now() == {}
    assert not flows.flow.cancel("o/1/l")


def test_a_blocked_parent_is_cancelled_in_its_queue(flows: Flows) -> None:
    begin(flows)
    assert flows.queues["pick"].cancel("o")
    assert flows.now() == {"pack": {"waiting": 3}}
    a, b, c = flows.lease("pack", 3)
    complete(flows, [a, b, c])  # nobody saw to it yet: nothing comes back
    assert flows.flow.state("o").state == "cancelled"
    assert flows.now() == {}
    assert not flows.queues["pick"].cancel("o")


def test_a_blocked_parent_is_deleted_with_its_queue(flows: Flows) -> None:
    begin(flows)
    assert flows.queues["pick"].admin.delete() == 1
    assert flows.flow.state("o").state == "cancelled"
    assert flows.now() == {}
    assert flows.queues["pick"].find("o") is None


def test_a_blocked_parent_survives_a_purge(flows: Flows) -> None:
    begin(flows)
    assert flows.queues["pick"].admin.purge() == 0
    assert flows.queues["pack"].admin.purge() == 3
    assert flows.flow.state("o").state == "failed"
    assert flows.now() == {"pick": {"dead": 1}}


def test_siblings_of_a_sibling_that_waits_are_cancelled_with_theirs(flows: Flows) -> None:
    begin(flows, [NewJob(b"l", id="l", queue="pick"), b"x"], failed="cancel")
    assert flows.done("pick", FanOut([b"a", b"b"], stage="pack"))
    x, *_ = flows.lease("pack", 3)
    assert x.job.id == "o/1/1"
    x.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    assert flows.now() == {"pick": {"dead": 1}, "pack": {"dead": 1}}
    assert flows.flow.state("o/1/l/1/0").state == "cancelled"


def test_a_sibling_that_completes_before_it_is_cancelled_goes_no_further(flows: Flows) -> None:
    begin(flows, [b"x", b"y"], failed="cancel")
    x, y = flows.lease("pack", 2)
    x.dead_letter("why")
    flows.connect("shop/pack")._run(
        flows.flow.ops.advance([flows.flow.ops.event("pack", x.job.id)])
    )
    assert flows.flow.complete(y, b"done")
    assert flows.flow.state("o").state == "failed"
    assert flows.now() == {"pick": {"dead": 1}, "pack": {"dead": 1}}


def test_a_thousand_children(newest_flows: Flows) -> None:
    flows = newest_flows
    begin(flows, [b"%d" % i for i in range(1000)])
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 1000}}
    leases = flows.lease("pack", 1000)
    steps = [flows.flow.ops.step(lease.claim, Next(None, lease.job.payload)) for lease in leases]
    for at in range(0, 1000, 100):
        assert (
            flows.queues["pack"]._run(flows.flow.ops.advance(steps[at : at + 100])) == [True] * 100
        )
    assert flows.flow.state("o").children == {str(i): b"%d" % i for i in range(1000)}
    assert flows.now() == {"bill": {"waiting": 1}}


def test_a_letter_of_a_child_that_was_created_again_is_redriven_too(flows: Flows) -> None:
    """The job runs and leads nowhere."""
    begin(flows, [b"a"])
    assert flows.done("pack")
    (lease,) = flows.lease("weigh")
    lease.dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    flows.queues["pick"].admin.redrive()
    assert flows.done("pick", FanOut([b"a"], stage="pack"))
    flows.queues["weigh"].admin.redrive()
    assert flows.flow.state("o").pending == 1
    assert flows.done("weigh", b"old")
    assert flows.now() == {"pick": {"blocked": 1}, "pack": {"waiting": 1}}
    complete(flows, flows.lease("pack"))
    assert flows.flow.state("o").children == {"0": b"A"}
    assert flows.now() == {"bill": {"waiting": 1}}


@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_a_cancellation_that_comes_after_the_end_outside_is_none(flows: Flows, how: str) -> None:
    """The run has ended outside the flow. A later `cancel` returns `False`, so it never succeeds
    beside `complete`."""
    flows.flow.start(b"order", id="o", stage="send")
    (lease,) = flows.lease("send")
    ends = {
        "completed": lease.complete,
        "dead": lambda: lease.dead_letter("why"),
        "cancelled": lambda: cancel(flows),
    }
    assert ends[how]()
    assert advance(flows, flows.flow.ops.cancelling("o")) == [False]
    assert flows.flow.state("o").state == {"dead": "failed"}.get(how, how)


def cancel(flows: Flows) -> bool:
    return bool(flows.queues["send"].cancel("o"))


def advance(flows: Flows, *moves: Any) -> list[bool]:
    """Run the script alone, without a look for ends outside the flow."""
    found: list[bool] = flows.connect("shop/send")._run(flows.flow.ops.advance(moves))
    return found


def test_a_cancellation_finds_the_job_in_the_stage_that_it_has_come_to(flows: Flows) -> None:
    """A plain completion moved the job on, and no client has looked since."""
    flows.flow.start(b"order", id="o")
    assert flows.lease("pick")[0].complete()
    assert advance(flows, flows.flow.ops.cancelling("o")) == [True]
    assert flows.now() == {}
    assert (flows.flow.state("o").state, flows.flow.state("o").stage) == ("cancelled", "bill")


def test_a_child_that_is_redriven_too_late_has_failed(flows: Flows) -> None:
    """A parent that went on without the child counts it as failed, though it runs again."""
    begin(flows, [b"a", b"b"], failed="continue")
    a, b = flows.lease("pack", 2)
    a.dead_letter("why")
    complete(flows, [b])
    flows.flow.state("o")
    assert flows.queues["pack"].admin.redrive() == 1
    state = flows.flow.state("o")
    assert (state.stage, state.pending, state.children, state.failed) == (
        "bill",
        0,
        {"1": b"B"},
        ("0",),
    )
    complete(flows, flows.lease("pack"))
    state = flows.flow.state("o")
    assert (state.children, state.failed) == ({"0": b"A", "1": b"B"}, ())


def test_the_token_of_a_parent_that_is_redriven_goes_on_growing(flows: Flows) -> None:
    flows.flow.start(b"order", id="o")
    tokens = []
    for _ in range(3):
        (lease,) = flows.lease("pick")
        tokens.append(lease.token)
        assert lease.retry()
    (lease,) = flows.lease("pick")
    assert flows.flow.complete(lease, FanOut([b"a"], stage="pack"))
    flows.lease("pack")[0].dead_letter("why")
    assert flows.flow.state("o").state == "failed"
    (letter,) = flows.queues["pick"].admin.dead()
    assert letter.job.attempt == 1
    assert flows.queues["pick"].admin.redrive() == 1
    (again,) = flows.lease("pick")
    assert again.job.attempt == 1
    assert sorted({*tokens, lease.token, again.token}) == [*tokens, lease.token, again.token]


def test_many_runs_with_many_children_are_read_in_bounded_steps(newest_flows: Flows) -> None:
    flows = newest_flows
    for number in range(5):
        flows.flow.start(b"order", id=f"o-{number}", attributes={"customer": "ada"})
        assert flows.done("pick", FanOut([b""] * 700, stage="pack"))
    with flows.connect.server.client() as client:
        client.config_resetstat()
        found = flows.flow.find(customer="ada")
        calls = client.info("commandstats")["cmdstat_hget"]["calls"]
    assert [(state.id, state.pending) for state in found] == [
        (f"o-{number}", 700) for number in range(5)
    ]
    assert calls < 5 * 700 + 100  # each was read once


def test_what_is_known_of_a_parent_may_be_more_than_one_answer(newest_flows: Flows) -> None:
    name = begin(newest_flows, result=b"r" * 900_000)
    leases = newest_flows.lease("pack", 3)
    for lease in leases:
        state = newest_flows.flow.state(name)
        assert (state.state, state.stage, state.pending) == (
            "blocked",
            "pick",
            3 - len(state.children),
        )
        assert newest_flows.flow.complete(lease, Next(None, lease.job.payload * 700_000))
    state = newest_flows.flow.state(name)
    assert (state.stage, state.pending, state.failed) == ("bill", 0, ())
    assert state.results == {"pick": b"r" * 900_000}
    assert state.children == {str(i): lease.job.payload * 700_000 for i, lease in enumerate(leases)}
