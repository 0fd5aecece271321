"""Names may have spaces, brackets, quotes and any letters. Each verb and view takes them
unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Flow, Limit, NewJob, Rate
from headrace.errors import RunSuspended
from headrace.inspect import Inspector
from tests.support.facts import each
from tests.support.servers import Server

NAMES = {
    "a space": "nightly report",
    "numbers and a space": "17 of march",
    "a space first": " report",
    "a space last": "report ",
    "a bracket": "[report",
    "a parenthesis": "(report",
    "signs of a range": "+",
    "another sign of a range": "-",
    "a pattern": "re*p?[o]rt\\",
    "quotes": '"it\'s"',
    "an address": "a/b?c=d&e#f%41+g;h",
    "letters": "räpört-☃-日本語-🚀",
    "lengths": "3:abc",
    "a place": "report f0f0",
    "an entry": "1-1",
    "a percent sign": "%s%d%%",
    "markup": "<b>&amp;",
}

named = each("name", NAMES.values(), empty=True)
# where all names are refused on three masters, by an error and not by a group of errors
one_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())


@named
def test_schedules(connect: Any, newest: Server, name: str) -> None:
    queue = connect()
    assert queue.admin.schedule(name, b"x", every=60)
    assert queue.admin.schedule("other", b"y", every=60)
    assert not queue.admin.schedule(name, b"x", every=90)
    assert {one.name: one.every for one in queue.admin.schedules()} == {name: 90.0, "other": 60.0}
    first = queue.admin.run_schedule(name)
    assert queue.admin.pause_schedule(name)
    assert {one.name: (one.paused, one.last_id) for one in queue.admin.schedules()}[name] == (
        True,
        first,
    )
    assert queue.admin.resume_schedule(name)
    assert queue.admin.unschedule(name)
    assert [one.name for one in queue.admin.schedules()] == ["other"]
    assert queue.lease().job.payload == b"x"


@named
def test_a_schedule_by_its_name(connect: Any, server: Server, name: str) -> None:
    connect().admin.schedule(name, b"x", every=60, headers={"a": "b"})
    with Inspector(url=server.url) as inspector:
        found = inspector.schedule("q", name)
        assert found is not None
        assert (found.schedule.name, found.schedule.every, dict(found.headers)) == (
            name,
            60.0,
            {"a": "b"},
        )
        assert inspector.schedule("q", name + "x") is None


@pytest.mark.differs("order")
@named
def test_jobs_by_their_ids(connect: Any, name: str) -> None:
    queue = connect(history=10)
    for number, delay in enumerate((0, 0, 60, 0)):
        assert queue.enqueue(b"x", id=f"{name}{number}" if number else name, delay=delay).added
    assert not queue.enqueue(b"y", id=name).added
    lease = queue.lease()
    assert (lease.job.id, queue.find(name).state) == (name, "leased")
    assert lease.dead_letter("why")
    assert [one.job.id for one in queue.admin.dead()] == [name]
    assert queue.admin.redrive(name) == 1
    assert [one.job.id for one in queue.admin.delayed()] == [f"{name}2"]
    assert queue.admin.reschedule(f"{name}2", 90)
    assert queue.cancel(f"{name}1")
    assert queue.cancel(f"{name}2")
    assert {one.job.id for one in queue.admin.waiting()} == {name, f"{name}3"}
    for lease in queue.lease_many(2):
        assert lease.complete(result=b"done")
    assert queue.result(name) == b"done"
    assert {one.job.id for one in queue.admin.ended(state="completed")} == {name, f"{name}3"}
    assert queue.find(name).state == "completed"
    assert not queue.admin.repair()


@pytest.mark.differs("parts")
@named
def test_tenants_and_their_slots(connect: Any, server: Server, name: str) -> None:
    queue = connect(
        fair="org/user", limits=[Limit(2, key="user"), Limit(9)], weights={(name, name): 2.0}
    )
    queue.enqueue_many([NewJob(b"x", headers={"org": name, "user": name})] * 5)
    queue.enqueue_many([NewJob(b"y", headers={"org": "other", "user": f"{name} more"})] * 2)
    assert sorted(lease.job.payload for lease in queue.lease_many(9)) == [b"x", b"x", b"y", b"y"]
    found = {
        share.value: (share.running, share.waiting, share.weight) for share in queue.admin.shares()
    }
    assert found == {(name, name): (2, 3, 2.0), ("other", f"{name} more"): (2, 0, 1.0)}
    with Inspector(url=server.url) as inspector:
        (limit,) = [one for one in inspector.queue("q").slots if one.key == "user"]
        assert {one.value: (one.taken, one.waits) for one in limit.values} == {
            name: (2, True),
            f"{name} more": (2, False),
        }
    assert not queue.admin.repair()


@pytest.mark.differs("rate")
@pytest.mark.sampled
@one_name
def test_headers_by_which_a_queue_tells_jobs_apart(connect: Any, name: str) -> None:
    if "/" in name:
        pytest.skip("a path has two headers, which a slash divides")
    queue = connect(fair=name, limits=Limit(1, key=name), rate=Rate(5, per=600, key=name))
    queue.enqueue_many(
        [NewJob(b"x", headers={name: "a"})] * 2 + [NewJob(b"y", headers={name: "b"})]
    )
    assert {lease.job.payload for lease in queue.lease_many(9)} == {b"x", b"y"}
    assert {share.value: share.waiting for share in queue.admin.shares()} == {("a",): 1, ("b",): 0}


@pytest.mark.differs("order")
@named
def test_keys_of_an_order(connect: Any, name: str) -> None:
    queue = connect(ordered=True)
    queue.enqueue_many(
        [NewJob(b"1", key=name), NewJob(b"2", key=name), NewJob(b"3", key=f"{name} more")]
    )
    first, other = queue.lease_many(9)
    assert (first.job.payload, other.job.payload) == (b"1", b"3")
    assert first.complete()
    assert [lease.job.payload for lease in queue.lease_many(9)] == [b"2"]
    assert not queue.admin.repair()


@pytest.mark.differs("rate")
@pytest.mark.sampled
@one_name
def test_values_of_a_rate(connect: Any, name: str) -> None:
    queue = connect(rate=Rate(1, per=600, key="user"))
    queue.enqueue_many(
        [NewJob(b"x", headers={"user": name})] * 2
        + [NewJob(b"y", headers={"user": f"{name} more"})]
    )
    assert sorted(lease.job.payload for lease in queue.lease_many(9)) == [b"x", b"y"]


@named
def test_steps_and_signals(newest: Server, name: str) -> None:
    queue = newest.queue("q")
    queue.enqueue(b"x", id=name)
    assert queue.signal(name, f"{name} go", 7) == "kept"
    job = queue.lease().job
    assert job.step(name, lambda: 1) == 1
    assert job.step(f"{name} 2", lambda: 2) == 2
    assert job.wait_for(f"{name} go", 60) == 7
    steps = [one.name for one in queue.find(name).steps]
    assert sorted(steps) == sorted([name, f"{name} 2", f"{name} go"])
    with pytest.raises(RunSuspended):
        job.wait_for(f"{name} again", 60)
    assert queue.signal(name, f"{name} again") == "woke"
    again = queue.lease().job
    assert again.step(name, lambda: 9) == 1
    assert not queue.admin.repair()
    queue.close()


@named
def test_runs_of_flows(newest_connect: Any, name: str) -> None:
    flow = newest_connect.make(Flow, "shop", lookup=("order",))
    flow.stage("fetch")
    own = name.replace("/", "-")  # the id of a run has no slash
    run = flow.start(b"x", id=own, attributes={"order": name})
    flow.start(b"x", attributes={"order": f"{name} more"})
    assert run.id == own
    assert [one.id for one in flow.find(order=name)] == [own]
