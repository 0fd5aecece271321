"""The module `headrace.inspect`. Its views are true, of one instant, bounded and readable."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from headrace import FanOut, Flow, Limit, NewJob, Next, Queue, Rate, Worker
from headrace.codecs import JSONCodec
from headrace.console.texts import complaint
from headrace.inspect import Inspector, SlotView, reason_key
from headrace.testing import run
from tests.conformance.test_resharding import gone
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import LONG, viewing, write_trends

Look = Callable[..., Any]


@pytest.fixture
def look(connect: Connect) -> Look:
    """Make inspectors of both colours that read anew each time."""
    return partial(connect.make, Inspector, fresh=0)


@pytest.fixture
def plain(server: Server) -> Iterator[Queue]:
    with server.queue("q") as queue:
        yield queue


@pytest.mark.differs("order")
def test_ends_that_the_history_keeps(look: Look, server: Server) -> None:
    """The history tells how, when and by which worker a job ended, even without a result. A job
    without an end is unknown.
    """
    with server.queue("q", history=100) as queue:
        for name in ("done", "with result", "cancelled", "waits"):
            queue.enqueue(b"secret", id=name)
        lease = queue.lease()
        lease.complete()
        queue.lease().complete(result=b"[1]")
        queue.cancel("cancelled")
        inspector = look()
        done = inspector.job("q", "done")
        assert (done.state, done.ended, done.attempt, done.holder) == (
            "completed",
            True,
            1,
            lease.worker,
        )
        assert (done.payload.text, done.result) == ("secret", None)
        assert done.since > 1e9
        assert [(one.at, one.what) for one in done.timeline] == [
            (done.enqueued_at, "enqueued"),
            (done.since, f"completed in attempt 1, with {lease.worker}"),
        ]
        assert [one.worker for one in done.attempts] == [lease.worker]
        assert [one.id for one in inspector.jobs("q", "ended", end="cancelled").jobs] == [
            "cancelled"
        ]
        assert inspector.jobs("q", "ended", kind="none").jobs == ()
        assert inspector.jobs("q", "waiting", kind="none").jobs == ()
        assert inspector.job("q", "with result").result.kind == "json"
        assert inspector.job("q", "cancelled").state == "cancelled"
        assert inspector.find("done", ["q"]) == ["q"]
        assert inspector.job("q", "nowhere") is None
        assert not inspector.job("q", "waits").ended


SHARDS = 4


@pytest.fixture
def sharded(server: Server) -> Iterator[Queue]:
    with Queue("s", url=server.url, shards=SHARDS) as queue:
        yield queue


@pytest.mark.differs("parts")
def test_a_sharded_queue_is_one(look: Look, sharded: Queue, plain: Queue) -> None:
    """The counts of a sharded queue are sums, and its shards are listed too. A plain queue has no
    shards."""
    plain.enqueue(b"x")
    sharded.enqueue_many([NewJob(b"x", id=f"i{n}") for n in range(40)])
    for lease in sharded.lease_many(8):
        lease.complete()
    inspector = look()
    views = {one.name: one for one in inspector.overview().queues}
    assert list(views) == ["q", "s"]
    assert views["q"].shards == ()
    for view in (views["s"], inspector.queue("s").queue, look().queue("s").queue):
        assert view.counts == sharded.counts()
        assert view.law.startswith("40 enqueued = 8 completed + ")
        assert [one.number for one in view.shards] == list(range(SHARDS))
        assert [one.counts for one in view.shards] == [one.counts for one in sharded.admin.shards()]
        assert view.lag == max(one.lag for one in view.shards) > 0
        assert not view.paused
    sharded.admin.pause()
    view = inspector.queue("s").queue
    assert view.paused
    assert all(one.paused for one in view.shards)


def test_jobs_of_a_sharded_queue(look: Look, sharded: Queue) -> None:
    """Jobs are listed page by page, shard after shard, each once. Each job is found by its id or
    its entry in any shard.
    """
    names = {f"i{n}" for n in range(60)}
    sharded.enqueue_many([NewJob(b"x", id=name) for name in names])
    names.add(sharded.enqueue(b"y").id)
    inspector = look()
    seen: list[str] = []
    cursor, pages = "", 0
    while cursor or not pages:
        page = inspector.jobs("s", "waiting", cursor, 7)
        assert len(page.jobs) == 7 or not page.cursor
        seen += (one.id for one in page.jobs)
        cursor, pages = page.cursor, pages + 1
    assert len(seen) == len(names)
    assert set(seen) == names
    for name in names:
        found = inspector.job("s", name)
        assert (found.id, found.queue, found.state) == (name, "s", "waiting")
        assert inspector.find(name, ["q", "s"]) == ["s"]
    assert inspector.job("s", "nowhere") is None
    assert inspector.job("s", "1795307039451-0@2") is None
    for wrong in ("9:", "x", "-1:"):
        with pytest.raises(ValueError, match="give that of the page before"):
            inspector.jobs("s", "waiting", wrong, 7)


def test_dead_letters_and_schedules_of_a_sharded_queue(look: Look, sharded: Queue) -> None:
    """They are grouped, listed and counted over all shards. The record of an ended job is found."""
    sharded.enqueue_many([NewJob(b"x", id=f"i{n}") for n in range(20)])
    for lease in sharded.lease_many(20):
        lease.dead_letter(f"broken {lease.job.id[1:]}")
    for name in ("a", "b", "c"):
        sharded.admin.schedule(name, b"x", every=3600)
    result = sharded.enqueue(b"x", id="kept")
    sharded.lease().complete(result=b"1")
    inspector = look()
    page = inspector.dead("s")
    (group,) = page.groups
    assert (group.number, page.seen, page.all) == (20, 20, 20)
    assert set(inspector.dead_ids("s", group.key)) == {f"i{n}" for n in range(20)}
    assert {one.name for one in inspector.schedules(["s"])["s"]} == {"a", "b", "c"}
    assert {one.name for one in inspector.queue("s").schedules} == {"a", "b", "c"}
    assert inspector.job("s", result.id).result.text == "1"


def test_workers_of_a_sharded_queue(look: Look, server: Server) -> None:
    """Each worker counts once, though it is registered in each shard."""
    worker = Worker(server.url)
    worker.handler("s", shards=SHARDS)(lambda _job: None)
    inspector = look()
    with worker:
        until(lambda: len(inspector.queue("s").queue.workers) == SHARDS)
        view = inspector.queue("s").queue
        assert view.alive == 1
        assert {inspector.worker("s", one.name).worker.name for one in view.workers} == {
            one.name for one in view.workers
        }


@pytest.mark.differs("one server")
def test_a_user_that_may_only_read_sees_everything(server: Server, plain: Queue) -> None:
    """The user has the rights of docs/how-to/run-in-production.md. Every change is refused and has
    no effect."""
    in_every_state(plain)
    plain.admin.schedule("nightly", b"x", every=3600)
    client = server.client(username="viewer", password="secret")
    with server.client() as admin, viewing(admin), client:
        admin.script_flush()
        before = plain.counts()
        with Inspector(client=client, fresh=0) as inspector:
            (seen,) = inspector.overview().queues
            assert (seen.counts, seen.alive) == (before, 1)
            assert [one.name for one in inspector.queue("q").schedules] == ["nightly"]
            states = {
                "waiting": "waiting",
                "running": "leased",
                "delayed": "delayed",
                "dead": "dead",
            }
            for state, name in states.items():
                assert name in [one.id for one in inspector.jobs("q", state).jobs]
                found = inspector.job("q", name)
                assert found is not None
                assert found.state == name
            assert inspector.find("parked", ["q"]) == ["q"]
            assert inspector.dead("q").groups[0].number == 1
            assert inspector.worker("q", seen.workers[0].name) is not None
            assert inspector.runs("q").runs == ()
            assert inspector.trends("q").points == ()
        with Queue("q", client=client) as queue:
            for act in (
                queue.admin.pause,
                queue.admin.purge,
                queue.admin.delete,
                queue.admin.redrive,
                lambda: queue.enqueue(b"x"),
            ):
                with pytest.raises(redis.ResponseError) as refused:
                    act()
                assert complaint(refused.value).startswith(
                    "This user of the server may not do that"
                )
        assert plain.counts() == before
        assert not plain.admin.paused()


@pytest.mark.differs("keys")
def test_trends(look: Look, server: Server) -> None:
    """Trends have the counts from the first sweep on. Jobs of a gap belong to the record after
    it."""
    with server.queue("q", trends=True) as queue:
        assert look().trends("q").kept is False
        queue.enqueue_many([b"x"] * 3)
        queue.lease().complete()  # looks after the queue
        inspector = look()
        assert inspector.queue("q").declared["trends"] == "yes"
        # nothing to be told from yet
        assert (inspector.trends("q").kept, inspector.trends("q").points) == (True, ())
        # Counters go through 2^32 on the way.
        write_trends(queue, server, [*range(1, 30), *range(40, 60), 3000], start=105)
        found = inspector.trends("q", "minute", 50)
        assert [one.at for one in found.points] == sorted(one.at for one in found.points)
        usual = [one for one in found.points if one.seconds == 60 and one.waiting]
        assert {
            (one.enqueued, one.completed, one.removed, one.leased, one.later, one.dead, one.lag)
            for one in usual
        } == {(10, 9, 0, 2, 3, 4, 5.5)}
        (gap,) = [one for one in found.points if one.seconds > 120]
        assert (gap.seconds, gap.enqueued, gap.waiting) == (660, 110, 29)
        assert 1 <= len(inspector.trends("q", "hour").points) <= 2
        assert 2 <= len(inspector.trends("q", "minute", 5).points) <= 5
        with pytest.raises(ValueError, match="every 'day': give 'minute' or 'hour'"):
            inspector.trends("q", "day")
        with pytest.raises(ValueError, match="number=2161"):
            inspector.trends("q", "hour", 2161)
        queue.admin.delete()
        assert inspector.trends("q").kept is False


def test_trends_of_a_sharded_queue(look: Look, server: Server) -> None:
    """Trends are the sums of the shards' own records. A shard without a record counts with its
    previous numbers."""
    with Queue("s", url=server.url, shards=SHARDS, trends=True) as queue:
        assert look().trends("s").kept is False
        queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(40)])
        inspector = look()
        assert (inspector.trends("s").kept, inspector.trends("s").points) == (True, ())
        now = int(time.time())
        for number, ops in enumerate(queue._verbs.map.ordered()):
            write_trends(
                ops, server, [ago for ago in range(1, 30) if number or ago != 10], 105, now
            )
        found = inspector.trends("s", "minute", 40)
        assert len(found.points) >= 27
        points = {one.at: one for one in found.points}
        (gap,) = [one for one in points.values() if one.enqueued == 10 * (SHARDS - 1)]
        after = points[gap.at + 60]
        assert (after.seconds, after.enqueued, after.completed) == (
            120,
            10 * (SHARDS + 1),
            9 * (SHARDS + 1),
        )
        assert (gap.waiting, gap.leased, gap.dead) == (
            10 * (SHARDS - 1) + 11,
            2 * SHARDS,
            4 * SHARDS,
        )
        usual = [one for one in points.values() if one.at not in (gap.at, after.at)]
        assert {(one.enqueued, one.completed, one.lag, one.seconds) for one in usual} == {
            (10 * SHARDS, 9 * SHARDS, 5.5, 60)
        }


def test_what_gone_shards_counted_is_shown(look: Look, server: Server) -> None:
    """The views agree with `counts()`. The number of completed jobs does not fall when an old shard
    leaves the table.
    """
    with Queue("s", url=server.url, shards=SHARDS) as queue, server.client() as client:
        queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(40)])
        assert all(queue.complete_many(queue.lease_many(30)))
        inspector = look()
        before = inspector.overview().queues[0].counts
        assert (before.enqueued, before.completed) == (40, 30)
        assert all(queue.complete_many(queue.lease_many(10)))
        queue.admin.reshard(SHARDS + 2)
        assert gone(queue, client, "s").done
        assert [shard.state for shard in queue.admin.shards()] == ["open"] * (SHARDS + 2)
        for view in (inspector.overview().queues[0], inspector.queue("s").queue):
            assert view.counts == queue.counts()
            assert (view.counts.enqueued, view.counts.completed, view.counts.lost) == (40, 40, 0)


def test_new_shards_keep_trends_from_the_change_on(look: Look, server: Server) -> None:
    with Queue("s", url=server.url, shards=SHARDS, trends=True) as queue:
        queue.enqueue(b"x")
    with Queue("s", url=server.url, shards=SHARDS) as queue, server.client() as client:
        queue.admin.reshard(SHARDS + 2)
        new = [ops for ops in queue._verbs.map.ordered() if ops.shard.number >= SHARDS]
        assert len(new) == SHARDS + 2
        assert all(client.hexists(ops.keys.key("stats"), "trends") for ops in new)
        assert look().trends("s").kept is True


def in_every_state(queue: Queue) -> None:
    queue.enqueue(b"x", id="delayed", delay=LONG)
    leases: dict[str, Any] = {}
    for name in ("dead", "parked", "leased"):
        queue.enqueue(b"x", id=name)
        leases[name] = queue.lease()
    leases["dead"].dead_letter("no luck on attempt 3")
    leases["parked"].release()
    queue.enqueue(b"x", id="waiting")


@pytest.mark.differs("parts")
def test_overview(look: Look, plain: Queue, server: Server) -> None:
    """The overview has all queues of the namespace with their counts, the law and workers, and no
    others."""
    in_every_state(plain)
    with (
        Queue("other/a", url=server.url, priorities=3) as other,
        server.queue("q", namespace="n") as far,
    ):
        other.enqueue(b"x", priority=2)
        other.admin.pause()
        far.enqueue(b"x")
    view = look().overview()
    assert [queue.name for queue in view.queues] == ["other/a", "q"]
    assert view.whole
    assert abs(view.now - time.time()) < 30
    other_view, own = view.queues
    assert (other_view.paused, other_view.levels, other_view.counts.waiting) == (True, 3, 1)
    assert own.counts == plain.counts()
    assert (own.paused, own.balanced, own.levels) == (False, True, 1)
    assert own.law.startswith("5 enqueued = 0 completed")
    assert [(worker.queue, worker.leased) for worker in view.workers] == [("q", 1)]


@pytest.mark.differs("keys")
def test_the_law_is_seen_to_be_broken(look: Look, plain: Queue, server: Server) -> None:
    """Jobs that a foreign command removed are shown as lost, by their number."""
    plain.enqueue_many([b"x"] * 3)
    with server.client() as client:
        client.xtrim(plain.ops.keys.key("jobs"), maxlen=1, approximate=False)
    view = look().queue("q").queue
    assert not view.balanced
    assert view.law.endswith("2 missing")


@pytest.mark.differs("parts")
def test_flows_in_their_order(look: Look, server: Server) -> None:
    """The workers of a flow declare the order of its stages. Runs are found by state, stage and
    id."""
    flow, worker = Flow("shop", url=server.url), Worker(url=server.url)
    flow.stage("z", next="a")(lambda job: b"z")
    flow.stage("a")(lambda job: b"a")
    worker.flow(flow)
    for name in ("r1", "r2", "s1"):
        flow.start(b"x", id=name)
    run(worker, server.url)
    flow.start(b"x", id="r3")
    flow.close()
    (view,) = look().flows()
    assert view.known
    assert [(stage.name, stage.next, stage.queue.counts.completed) for stage in view.stages] == [
        ("z", ("a",), 3), ("a", (), 3),
    ]  # fmt: skip

    def ids(**only: str) -> set[str]:
        return {one.id for one in look().runs("shop", **only).runs}

    assert ids() == {"r1", "r2", "r3", "s1"}
    assert ids(prefix="r") == {"r1", "r2", "r3"}
    assert ids(prefix="r", state="completed", stage="a") == {"r1", "r2"}
    assert ids(stage="z") == {"r3"}
    with pytest.raises(ValueError, match="give one of running, blocked"):
        look().runs("shop", state="x")


def test_rates(look: Look, plain: Queue) -> None:
    """A reader knows rates from its own earlier looks."""
    one = look()
    assert one.overview().queues == ()
    plain.enqueue(b"x")
    one.forget()
    assert one.overview().queues[0].rates == {}
    time.sleep(0.6)  # two looks count as two from half a second on
    plain.enqueue_many([b"x"] * 50)
    (view,) = one.overview().queues
    assert 1 < view.rates["enqueued"] < 100
    assert view.rates["completed"] == 0
    assert len(view.trail) == 1


def test_one_reader_serves_many_viewers(look: Look, plain: Queue) -> None:
    """A read view is shown again until it is `fresh` seconds old or was changed through this
    reader."""
    one = look(fresh=LONG)
    plain.enqueue(b"x")
    assert one.queue("q").queue.counts.waiting == 1
    plain.enqueue(b"x")
    assert one.queue("q").queue.counts.waiting == 1
    one.forget()
    assert one.queue("q").queue.counts.waiting == 2


@pytest.mark.differs("rate")
def test_queue(look: Look, server: Server, colour: str) -> None:
    """The view has a queue's declaration and its schedules."""
    name = f"declared-{colour}"  # once by each process
    with server.queue(name, codec=JSONCodec(), max_attempts=7, rate=Rate(5, 1)) as queue:
        queue.enqueue({"a": 1})
        queue.admin.schedule("nightly", {"b": 2}, every=60)
    page = look().queue(name)
    assert (page.declared["codec"], page.declared["max_attempts"], page.declaration) == (
        "JSONCodec",
        "7",
        1,
    )
    assert "rate" in page.declared
    assert [(one.name, one.every) for one in page.schedules] == [("nightly", 60)]


@pytest.mark.differs("order")
def test_pages_of_jobs(look: Look, plain: Queue) -> None:
    """A page goes on where the one before ended. Each state has its own pages."""
    in_every_state(plain)
    plain.enqueue_many([b"%d" % i for i in range(5)])
    one = look()
    first = one.jobs("q", "waiting", limit=4)
    second = one.jobs("q", "waiting", first.cursor, limit=4)
    assert [job.payload.text for job in (*first.jobs, *second.jobs)] == [
        "x",
        "x",
        "0",
        "1",
        "2",
        "3",
        "4",
    ]
    assert [job.state for job in first.jobs[:2]] == ["parked", "waiting"]
    for state, shown in (("running", "leased"), ("delayed", "delayed"), ("dead", "dead")):
        (job,) = one.jobs("q", state).jobs
        assert (job.id, job.state) == (shown, shown)
    for wrong in (
        {"state": "gone"},
        {"state": "waiting", "limit": 201},
        {"state": "waiting", "limit": 0},
    ):
        with pytest.raises(ValueError, match=r"state|limit"):
            one.jobs("q", **wrong)


def test_a_leased_job_has_a_holder_a_token_and_an_end(look: Look, plain: Queue) -> None:
    """The token of its holder and its own duration are shown."""
    one = look()
    plain.enqueue(b"x", id="a", headers={"h": "v"})
    lease = plain.lease()
    lease.retry(reason="first")
    for duration in (None, 500):
        lease = plain.lease(duration=duration)
        job = one.job("q", "a")
        assert (job.state, job.holder, job.token, job.attempt) == (
            "leased",
            lease.worker,
            lease.token,
            2,
        )
        assert job.until - job.since == pytest.approx(duration or 60, abs=5)
        assert (job.headers, job.reason) == ({"h": "v"}, "first")
        assert [moment.what.partition(" ")[0] for moment in job.timeline] == [
            "enqueued",
            "delivered",
            "attempt",
            "its",
        ]
        lease.release()
    job = one.job("q", "a")
    assert (job.state, job.position, job.token, job.until) == ("parked", 0, None, None)
    assert one.job("q", "b") is None


def test_jobs_in_every_state(look: Look, plain: Queue) -> None:
    """The job that a listing shows is found by its id, and its timeline says where it is."""
    in_every_state(plain)
    one = look()
    for name in ("waiting", "parked", "leased", "delayed", "dead"):
        job = one.job("q", name)
        assert (job.id, job.state) == (name, name)
        assert job.timeline[0].at == job.enqueued_at
    lease = plain.lease()
    lease.complete(result=b"done")
    gone = one.job("q", lease.job.id)
    assert (gone.state, gone.result.text) == ("completed", "done")


def test_a_job_is_found_in_whichever_queue(look: Look, plain: Queue, server: Server) -> None:
    with server.queue("r", priorities=2) as other:
        other.enqueue(b"x", id="a", priority=1)
        other.admin.schedule("s", b"x", every=60)
    plain.enqueue(b"x", id="b")
    one = look()
    assert [one.find(name, ["q", "r"]) for name in "abc"] == [["r"], ["q"], []]
    assert {name: len(found) for name, found in one.schedules(["q", "r"]).items()} == {
        "q": 0,
        "r": 1,
    }


@pytest.mark.differs("order")
def test_dead_letters_by_reason(look: Look, plain: Queue) -> None:
    """Timeouts after 30.1 s and after 31 s have the same cause."""
    reasons = ["timeout after 30.1 s", "timeout after 31.5 s\nmore", "no such user"]
    for number, reason in enumerate(reasons):
        plain.enqueue(b"x", id=f"i{number}")
        plain.lease().dead_letter(reason)
    one = look()
    page = one.dead("q")
    assert [(group.number, group.ids) for group in page.groups] == [(1, ("i2",)), (2, ("i1", "i0"))]
    assert (page.seen, page.all) == (3, 3)
    assert one.dead_ids("q", reason_key("timeout after 99.9 s")) == ["i0", "i1"]
    assert one.dead_ids("q", "none") == []


@pytest.mark.differs("order")
def test_dead_letters_of_several_queues(
    look: Look, plain: Queue, server: Server, client: Any
) -> None:
    """Dead letters are grouped by reason and kind over all queues, newest first. The last hour and
    day are counted."""
    now = float(client.time()[0])
    for hours in (30, 2):
        fields = {
            "reason": "old 1",
            "worker": "w",
            "released": "0",
            "data": "x",
            "id": f"old{hours}",
            "attempt": "1",
        }
        client.xadd(plain.ops.keys.key("dead"), fields, id=f"{(now - 3600 * hours) * 1000:.0f}-0")
    with server.queue("r") as other:
        for number in range(3):
            for queue, kind in ((plain, "a"), (other, "a"), (other, "b")):
                queue.enqueue(b"x", id=f"{kind}{number}", headers={"kind": kind})
                queue.lease().dead_letter(f"timeout {number}")
    one = look()
    page = one.deaths(["q", "r"])
    found = {
        group.kind: (group.reason, group.number, group.hour, group.day) for group in page.groups
    }
    assert found == {
        "a": ("timeout 2", 6, 6, 6),
        "b": ("timeout 2", 3, 3, 3),
        None: ("old 1", 2, 0, 1),
    }
    assert page.groups[-1].ids == ("old2", "old30")
    a = next(group for group in page.groups if group.kind == "a")
    assert a.queues == (("q", 3), ("r", 3))
    assert set(a.examples[:2]) == {("r", "a2"), ("q", "a2")}
    assert (page.seen, page.all, page.jobs) == (11, 11, ())
    key = reason_key("timeout 7", "a")
    opened = one.deaths(["q", "r"], key)
    assert [group.key for group in opened.groups] == [key]
    assert {(job.queue, job.id) for job in opened.jobs[-2:]} == {("r", "a0"), ("q", "a0")}
    assert one.deaths([]).groups == one.deaths(["q"], "none").groups == ()


@pytest.mark.differs("parts")
def test_workers_and_what_each_runs(look: Look, plain: Queue, server: Server) -> None:
    plain.enqueue_many([NewJob(b"x", id=f"i{i}") for i in range(4)])
    with server.queue("q") as other:
        other.lease()
        leases = plain.lease_many(3)
        seen = look().worker("q", leases[0].worker)
    assert (seen.worker.leased, [job.id for job in seen.jobs]) == (3, ["i1", "i2", "i3"])
    assert look().worker("q", "nobody") is None


def test_flows(look: Look, server: Server) -> None:
    """Runs of flows that are known only from the server."""
    flow = Flow("shop", url=server.url)
    worker = Worker(url=server.url)

    @flow.stage("order", next="bill")
    def order(job: Any) -> Any:
        return Next("bill", b"ordered")

    @flow.stage("bill")
    def bill(job: Any) -> bytes:
        return b"billed"

    worker.flow(flow)
    flow.start(b"x", id="r1", attributes={"customer": "c"})
    run(worker, server.url)
    page = look().runs("shop")
    flow.close()
    assert (page.stages, page.cursor, [one.id for one in page.runs]) == (
        ("bill", "order"),
        "",
        ["r1"],
    )
    found = look().run("shop", "r1")
    assert (found.state, found.results, found.attributes) == (
        "completed", {"order": b"ordered", "bill": b"billed"}, {"customer": "c"},
    )  # fmt: skip
    assert look().run("shop", "r2") is None


def test_flows_with_shards(look: Look, server: Server) -> None:
    """Runs are found in whatever shard, including runs that are older than the last reshard."""
    names = [f"r{n}" for n in range(24)]
    with (
        Flow("shop", url=server.url, shards=6) as flow,
        server.queue("shop/order", shards=6) as orders,
    ):
        flow.stage("order", children="item")
        flow.stage("item")
        for name in names[:12]:
            flow.start(b"x", id=name, attributes={"run": name})
        orders.admin.reshard(3)
        for name in names[12:]:
            flow.start(b"x", id=name)
        lease = orders.lease()
        flow.complete(lease, FanOut([b"1"]))
        with Flow("shopping", url=server.url) as other, server.queue("shopping/order"):
            other.stage("order")
            other.start(b"x", id="elsewhere")
    one = look()
    page = one.runs("shop")
    assert (page.stages, page.cursor) == (("item", "order"), "")
    assert sorted(run.id for run in page.runs) == sorted(names)
    assert one.run("shop", "r3").attributes == {"run": "r3"}
    assert one.run("shop", "r20").state == "running"
    assert one.run("shop", f"{lease.job.id}/1/0").stage == "item"
    assert one.run("shop", "r99") is None


HOSTILE = {
    b"<script>alert(1)</script>": ("text", "<script>alert(1)</script>"),
    b"a\x00b\x1b[31m": ("text", "a\\x00b\\x1b[31m"),
    "a\u202eb".encode(): ("text", "a\\u202eb"),
    b"\xff\xfe\x00": ("hex", "fffe 00"),
    b'{"a":[1]}': ("json", '{\n  "a": [\n    1\n  ]\n}'),
    b"[" * 5000: ("text", "[" * 5000),
    b"": ("text", ""),
}


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_payloads_are_shown_as_what_they_are(look: Look, plain: Queue, payload: bytes) -> None:
    name = plain.enqueue(payload).id
    shown = look().job("q", name).payload
    assert (shown.kind, shown.text, shown.size, shown.cut) == (
        *HOSTILE[payload],
        len(payload),
        False,
    )


def test_a_huge_payload_is_cut(look: Look, plain: Queue) -> None:
    name = plain.enqueue("ä".encode() * 1_000_000).id
    shown = look().job("q", name).payload
    assert (shown.kind, shown.size, shown.cut) == ("text", 2_000_000, True)
    assert len(shown.text) == 16_384


def test_payloads_by_the_codec_of_their_queue(look: Look, server: Server) -> None:
    with server.queue("q", codec=JSONCodec()) as queue:
        name = queue.enqueue({"a": 1}).id
    assert look(codecs={"q": JSONCodec()}).job("q", name).payload.text == '{\n  "a": 1\n}'


def test_what_is_redacted_is_shown_nowhere(look: Look, plain: Queue) -> None:
    """The hook gets the whole text of payload, headers, reason and result. If it fails, the text is
    not shown."""
    secret = "s3cret"
    job = NewJob(b'{"key": "s3cret"}', id="a", headers={"h": secret})
    plain.enqueue_many([job])
    plain.lease().dead_letter(f"bad key {secret}")
    plain.enqueue(b"x", id="b")
    plain.lease().complete(result=secret)

    def redact(what: str, text: str, job: Any) -> str:
        if what == "header h":
            raise RuntimeError
        return text.replace(secret, "*")

    one = look(redact=redact)
    shown = [one.job("q", "a"), one.job("q", "b"), one.jobs("q", "dead"), one.dead("q")]
    assert secret not in repr(shown)
    assert shown[0].headers == {"h": "(not shown: redact= failed)"}
    assert "*" in shown[0].payload.text
    with pytest.raises(TypeError, match="redact must be a function"):
        look(redact="s3cret")


def test_bad_arguments_are_refused(look: Look) -> None:
    one = look(url="redis://localhost:1")
    for call in (
        lambda: one.queue("a b"), lambda: one.job("q", ""), lambda: one.jobs("q", "x"), lambda: one.runs("f", "-"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"name|id|state|cursor"):
            call()


def test_a_server_that_is_away_is_asked_once_by_all_viewers(look: Look) -> None:
    one = look(url="redis://localhost:1", fresh=LONG, timeout=0.3)
    took: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):  # by how far it came
            one.queue("q")
        took.append(time.monotonic() - began)
    assert max(took[1:]) < took[0]


def test_many_waiting_jobs_cost_no_more(look: Look, plain: Queue, server: Server) -> None:
    """The reading of a view is bounded. A page of a queue with 20,000 jobs takes about as long as
    with 200."""
    one = look()
    views = (
        one.overview,
        lambda: one.queue("q"),
        lambda: one.jobs("q", "waiting"),
        lambda: one.dead("q"),
    )
    took: list[list[int]] = []
    for more in (200, 20_000):
        plain.enqueue_many([b"x"] * more)
        took.append([min(_took(server, view) for _ in range(5)) for view in views])
    for few, many in zip(*took, strict=True):
        assert many < 10 * few + 3000  # it would be a hundred times as much


def _took(server: Server, view: Callable[[], Any]) -> int:
    """Return the microseconds of the server's commands."""
    for node in server.nodes:
        node.ask("CONFIG", "RESETSTAT")
    view()
    told = "".join(node.ask("INFO", "commandstats").decode() for node in server.nodes)
    return sum(map(int, re.findall(r"usec=(\d+)", told)))


@pytest.mark.parametrize("shards", [1, 2])
def test_slots_of_limits(look: Look, server: Server, colour: str, shards: int) -> None:
    """The limits by each header are read, the fullest values first, and at most so many values."""
    limits = [
        Limit(2, key=header, per_shard=shards > 1) for header in ("customer", "<b>", "tenant")
    ]
    with Queue(
        f"l{shards}-{colour}", url=server.url, fair="tenant", limits=limits, shards=shards
    ) as queue:
        customers = ["ada"] * 6 + ["bob"] * 4 + ["eve"]
        jobs = [(f"j{n}", {"tenant": f"t{n}", "customer": one}) for n, one in enumerate(customers)]
        queue.enqueue_many([NewJob(b"x", name, headers=headers) for name, headers in jobs])
        leased = Counter(lease.job.headers["customer"] for lease in queue.lease_many(20))
        (found,) = look().tenants()
        assert [one.key for one in found.slots] == ["<b>", "customer", "tenant"]
        assert {(one.places, one.more) for one in found.slots} == {(2, False)}
        assert found.slots == look().queue(queue.name).slots
        values = found.slots[1].values
        assert [one.value for one in values] == sorted(leased, key=lambda one: (-leased[one], one))
        assert {one.value: (one.taken, one.waits) for one in values} == {
            one: (leased[one], leased[one] < number) for one, number in Counter(customers).items()
        }
        assert (found.slots[0].values, len(found.slots[2].values)) == ((), leased.total())


def test_slots_of_a_value_with_its_own_limit(look: Look, server: Server, colour: str) -> None:
    limit = Limit(3, key="customer", each={"free": 1})
    with Queue(f"e-{colour}", url=server.url, fair="tenant", limits=limit) as queue:
        names = ["free"] * 2 + ["ada"] * 2
        queue.enqueue_many(
            [NewJob(b"x", headers={"tenant": "t", "customer": name}) for name in names]
        )
        assert len(queue.lease_many(9)) == 3
        (found,) = look().queue(queue.name).slots
        assert found.places == 3
        assert found.values == (
            SlotView("ada", 2, waits=False),
            SlotView("free", 1, waits=True, places=1),
        )
        assert look().queue(queue.name).declared["each"] == "1 of customer free"


def test_slots_of_many_values(look: Look, server: Server, colour: str) -> None:
    """The value for whose slot jobs wait is found among many."""
    with Queue(
        f"m-{colour}", url=server.url, fair="tenant", limits=Limit(1, key="customer")
    ) as queue:
        names = [f"c{n}" for n in range(220)] + ["z"] * 2
        queue.enqueue_many(
            [NewJob(b"x", headers={"tenant": "t", "customer": name}) for name in names]
        )
        assert len(queue.lease_many(300)) == 221
        (limit,) = look().queue(queue.name).slots
        assert (limit.more, len(limit.values)) == (True, 10)
        assert limit.values[0] == SlotView("z", 1, waits=True)
