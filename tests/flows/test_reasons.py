"""A failed run has a reason for every cause. No run completes because a part of it was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import FanOut, NewJob, Next
from headrace.inspect import Repairs
from tests.flows.conftest import Flows, shop
from tests.support.awaiting import until
from tests.support.colours import Connect

RUN = "headrace:{shop}:shop:flow:"
DAMAGE: dict[str, Callable[[Any, str], object]] = {
    "removed": lambda client, field: client.hdel(RUN + "o", field),
    "overwritten": lambda client, field: client.hset(RUN + "o", field, b"\xc1"),
    "odd": lambda client, field: client.hset(RUN + "o", field, b"\x91\xa1x"),
}
LOST = {
    "payload": (["data:o"], "removed"),  # one that was overwritten can't be told from its own
    **{f"headers {how}": (["job:o"], how) for how in DAMAGE},
    **{f"both {how}": (["data:o", "job:o"], how) for how in DAMAGE},
}


def part(stage: str, name: str) -> str:
    return f"headrace:{{shop}}:shop/{stage}:{name}"


def waits(flows: Flows) -> None:
    """Begin a run whose job in `pick` waits for one child in `pack`."""
    flows.flow.start(b"order", id="o", headers={"lang": "en"})
    assert flows.done("pick", FanOut([NewJob(b"c", id="c")], stage="pack"))


def lose(client: redis.Redis, what: str) -> list[str]:
    """Delete fields in which a run keeps its job for the next stage, and return their names."""
    fields, how = LOST[what]
    for field in fields:
        DAMAGE["removed" if field.startswith("data") else how](client, field)
    return fields


@pytest.mark.parametrize("lost", LOST)
def test_a_join_takes_from_the_waiting_job_what_the_run_lost(
    flows: Flows, client: redis.Redis, lost: str
) -> None:
    waits(flows)
    lose(client, lost)
    for stage in ("pack", "weigh"):
        assert flows.done(stage)
    (lease,) = flows.lease("bill")
    assert (lease.job.id, lease.job.payload, lease.job.headers["lang"]) == ("o", b"order", "en")
    assert lease.job.attempt == 1
    assert flows.flow.complete(lease, Next(None, b"billed"))
    assert flows.flow.result("o") == b"billed"
    assert flows.now() == {}


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["join", "plain"])
@pytest.mark.parametrize("lost", LOST)
def test_a_job_of_which_a_part_is_lost_is_a_dead_letter_that_says_so(
    flows: Flows, client: redis.Redis, lost: str, way: str
) -> None:
    """The letter is in the stage that the job could not enter, and can be redriven. The counts add
    up."""
    if way == "join":
        waits(flows)
        client.hset(part("pick", "blocked"), "o", b"\xc1")
        fields = lose(client, lost)
        for stage in ("pack", "weigh"):
            assert flows.done(stage)
    else:
        flows.flow.start(b"order", id="o", headers={"lang": "en"})
        fields = lose(client, lost)
        assert flows.lease("pick")[0].complete()
    state = flows.flow.state("o")
    assert (state.state, state.stage) == ("failed", "bill")
    for field in fields:
        assert f"({field})" in state.reason
    assert flows.now() == {"bill": {"dead": 1}}
    (letter,) = flows.queues["bill"].admin.dead()
    assert (letter.job.id, letter.reason) == ("o", state.reason)
    assert letter.job.payload == (b"" if "data:o" in fields else b"order")
    assert letter.job.headers.get("lang") == (None if "job:o" in fields else "en")
    assert flows.queues["bill"].admin.redrive() == 1
    assert (flows.flow.state("o").state, flows.flow.state("o").reason) == ("running", None)
    for stage in ("bill", "send"):
        assert flows.done(stage)
    assert flows.flow.state("o").state == "completed"
    assert flows.now() == {}


def test_a_child_that_has_passed_a_stage_does_not_end_because_it_was_lost(
    flows: Flows, client: redis.Redis
) -> None:
    flows.stage("line", next="send", children="pick")
    flows.flow.start(b"order", id="o", stage="line")
    assert flows.done("line", FanOut([NewJob(b"c", id="c")]))
    assert flows.done("pick")
    client.hdel(RUN + "o", "job:o/1/c", "data:o/1/c")
    assert flows.lease("bill")[0].complete()
    assert flows.flow.state("o/1/c").state == "failed"
    state = flows.flow.state("o")
    assert (state.state, state.failed) == ("failed", ("c",))
    assert "(data:o/1/c)" in state.reason
    assert flows.now() == {"send": {"dead": 1}, "line": {"dead": 1}}


WAYS = ("dead_letter", "retry", "lease")


def die(flows: Flows, stage: str, way: str, reason: str = "why") -> None:
    """Let the one job of a stage die."""
    queue = flows.connect(f"shop/{stage}", max_attempts=1)
    lease = queue.lease()
    if way == "lease":
        queue.renew(lease, duration=0.001)
        until(lambda: flows.queues[stage].admin.expire() or not queue.counts().leased)
        assert queue.lease() is None
    elif way == "retry":
        assert lease.retry(reason=reason)
    else:
        assert lease.dead_letter(reason)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dead_limit", [10, 0])
def test_a_run_whose_job_died_says_why(
    connect: Connect, way: str, dead_limit: int, client: redis.Redis
) -> None:
    """This holds without dead letters, and after they were purged."""
    flows = shop(Flows(connect, dead_limit=dead_limit))
    flows.flow.start(b"order", id="o")
    queue = flows.queues["pick"] = connect("shop/pick", dead_limit=dead_limit)
    die(flows, "pick", way)
    queue.admin.purge_dead()
    expected = (
        "no attempts left: its workers died, or let its leases expire" if way == "lease" else "why"
    )
    for _ in range(2):
        state = flows.flow.state("o")
        assert (state.state, state.reason) == ("failed", expected)
    assert not client.exists(part("pick", "steps"))


def test_a_death_without_a_reason_says_that_there_was_none(flows: Flows) -> None:
    flows.flow.start(b"order", id="o")
    die(flows, "pick", "dead_letter", "")
    assert flows.flow.state("o").reason == "no reason was given"


def test_a_redriven_run_has_no_reason_and_later_another(flows: Flows, client: redis.Redis) -> None:
    flows.flow.start(b"order", id="o")
    die(flows, "pick", "dead_letter", "first")
    assert flows.flow.state("o").reason == "first"
    pick = flows.queues["pick"]
    assert pick.admin.redrive("o") == 1
    assert flows.flow.state("o").reason is None
    die(flows, "pick", "dead_letter", "second")
    assert pick.admin.redrive("o") == 1  # before anybody has seen it
    assert flows.flow.state("o").reason is None
    assert not client.exists(part("pick", "steps"))
    die(flows, "pick", "dead_letter", "third")
    assert flows.flow.state("o").reason == "third"
    assert pick.admin.redrive("o") == 1
    assert flows.done("pick", Next(None))
    assert (flows.flow.state("o").state, flows.flow.state("o").reason) == ("completed", None)


def test_a_parent_tells_why_a_child_failed(flows: Flows) -> None:
    flows.flow.start(b"order", id="o")
    assert flows.done("pick", FanOut([NewJob(b"1", id=name) for name in "abc"], stage="pack"))
    leases = {lease.job.id: lease for lease in flows.lease("pack", 3)}
    assert leases["o/1/b"].dead_letter("out of stock")
    assert flows.flow.state("o/1/b").reason == "out of stock"
    for name in "ac":
        assert flows.flow.complete(leases[f"o/1/{name}"], Next(None))
    expected = "1 of 3 children failed, the first o/1/b: out of stock"
    assert flows.flow.state("o").reason == expected
    (letter,) = flows.queues["pick"].admin.dead()
    assert letter.reason == expected


def test_what_was_cancelled_says_by_what(flows: Flows) -> None:
    flows.flow.start(b"order", id="o")
    fan = FanOut([NewJob(b"1", id=name) for name in "abc"], stage="pack", failed="cancel")
    assert flows.done("pick", fan)
    assert flows.queues["pack"].cancel("o/1/a")
    states = {name: flows.flow.state(f"o/1/{name}") for name in "abc"}
    assert {state.state for state in states.values()} == {"cancelled"}
    assert (
        states["a"].reason
        == "its job was removed from its queue: cancelled, purged or deleted there"
    )
    assert states["b"].reason == states["c"].reason == "another child of its parent failed"
    assert (
        flows.flow.state("o").reason
        == f"3 of 3 children failed, the first o/1/a: {states['a'].reason}"
    )
    flows.flow.start(b"order", id="p")
    assert flows.done("pick", FanOut([NewJob(b"1", id="a")], stage="pack"))
    assert flows.flow.cancel("p")
    assert (flows.flow.state("p").state, flows.flow.state("p").reason) == ("cancelled", None)
    assert flows.flow.state("p/1/a").reason == "its parent was cancelled"


def test_a_repair_leaves_a_reason_that_nobody_has_seen(flows: Flows) -> None:
    flows.flow.start(b"order", id="o")
    die(flows, "pick", "dead_letter")
    assert flows.queues["pick"].admin.repair() == Repairs()
    assert flows.flow.state("o").reason == "why"


@pytest.mark.parametrize("lost", ["purged", "redriven late"])
def test_a_job_that_goes_on_leaves_its_attempts_behind(
    connect: Connect, client: redis.Redis, lost: str
) -> None:
    """They belonged to another stage."""
    flows = shop(Flows(connect))
    pick = flows.queues["pick"] = connect("shop/pick", history=10, tracebacks=True)
    flows.flow.start(b"order", id="o", headers={"lang": "en"})
    assert pick.lease().retry(reason=ValueError("one"))
    if lost == "redriven late":
        assert pick.lease().dead_letter(ValueError("two"))
        client.delete(RUN + "o")
        assert pick.admin.redrive("o") == 1
    else:
        client.hdel(RUN + "o", "job:o", "data:o")
    assert flows.done("pick")
    state = flows.queues["bill"].find("o")
    assert (state.job.payload, dict(state.job.headers)["lang"]) == (b"order", "en")
    assert (state.reason, state.traceback, state.attempts) == (None, None, ())


def test_a_job_that_was_redriven_late_and_completed_outside_goes_on(
    flows: Flows, client: redis.Redis
) -> None:
    flows.flow.start(b"order", id="o")
    die(flows, "pick", "dead_letter")
    client.delete(RUN + "o")
    assert flows.queues["pick"].admin.redrive("o") == 1
    assert flows.flow.state("o").state == "running"
    assert flows.lease("pick")[0].complete()
    assert flows.flow.state("o").stage == "bill"
    (lease,) = flows.lease("bill")
    assert lease.job.payload == b"order"
