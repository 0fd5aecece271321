"""Children in other slots: queues of other groups, and shards. Workers of the parent's queue fetch
their ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from headrace import DeadLetter, Job, JobFailed, NewJob, Queue, Retry
from headrace._core.steps import away
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import Keys
from headrace.errors import ChildFailed, CodecError, ConfigurationError
from headrace.testing import travel
from tests.children.bodies import Body, died, double, failed, outcome, serve
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server
from tests.support.steps import key


@pytest.fixture
def mail(newest: Server) -> Iterator[Queue[Any]]:
    """Return a queue of another group."""
    with newest.queue("mail") as queue:
        yield queue


def mails(job: Job) -> Body:
    return (yield from outcome(job, ("mail", job.payload)))


def states(queue: Queue[Any]) -> list[str]:
    found = queue.find("o")
    return [step.state for step in found.steps] if found else []


def left(client: redis.Redis) -> list[bytes]:
    """List the keys of children in other slots that do not expire."""
    names = [*client.scan_iter("*:links"), *client.scan_iter("*:reports:*")]
    return [*names, *client.scan_iter("*:steps")]


@pytest.fixture
def client(newest: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=newest.path) as client:
        yield client


@pytest.mark.parametrize(
    ("child", "expected"),
    [(died, b"dead: no such shelf"), (failed, b"dead: ValueError: unlucky"), (double, b"ok xx")],
)
def test_the_end_of_a_handler_reaches_the_parent(
    fleet: Running, orders: Queue[Any], client: redis.Redis, child: Any, expected: bytes
) -> None:
    serve(fleet, "mail", child)
    serve(fleet, "orders", mails)
    with fleet:
        assert orders.enqueue(b"x", id="o").result(PATIENCE) == expected
        found = orders.find("o")
        assert found is not None
        (step,) = found.steps
        assert (step.name, step.queue) == ("mail", "mail")
        assert str(step.child).startswith("o/mail~")
        until(lambda: not left(client), "nothing that is left")


@pytest.mark.parametrize("how", ["cancelled", "deleted", "purged"])
def test_the_removal_of_a_child_reaches_the_parent(
    fleet: Running, orders: Queue[Any], mail: Queue[Any], how: str
) -> None:
    """No worker serves the child's queue."""
    serve(fleet, "orders", mails)
    with fleet:
        receipt = orders.enqueue(b"x", id="o")
        until(lambda: orders.counts().blocked, "a parent that waits")
        (child,) = mail.admin.waiting()
        assert child.job.parent == ("orders", "o")
        if how == "cancelled":
            assert mail.cancel(child.job.id)
        elif how == "deleted":
            assert mail.admin.delete() == 1
        else:
            assert mail.admin.purge() == 1
        said = b"cancelled: None" if how == "cancelled" else b"deleted: None"
        assert receipt.result(PATIENCE) == said


def test_many_children_and_the_first_of_several(
    fleet: Running, orders: Queue[Any], mail: Queue[Any]
) -> None:
    def body(job: Job) -> Body:
        calls = [("mail", b"%d" % n) for n in range(7)] + [("orders/pack", b"p")]
        some = yield partial(job.run_all, calls, at_most=3)
        child = yield partial(job.start, ("mail", b"f"))
        first = yield partial(job.first, done=child, late=job.timer(days=1))
        return b" ".join([*some, first.name.encode(), first.value])

    serve(fleet, "mail", double)
    serve(fleet, "orders/pack", double)
    serve(fleet, "orders", body)
    with fleet:
        result = orders.enqueue(b"x").result(PATIENCE)
    assert result == b"00 11 22 33 44 55 66 pp done ff"
    assert mail.counts().enqueued == mail.counts().completed == 8


def test_the_first_failure_cancels_the_others(
    fleet: Running, orders: Queue[Any], mail: Queue[Any]
) -> None:
    serve(fleet, "letters", died)

    def body(job: Job) -> Body:
        try:
            yield partial(job.run_all, [("mail", b"a"), ("letters", b"b"), ("mail", b"c")])
        except ChildFailed as failure:
            return str(failure.reason).encode()

    serve(fleet, "orders", body)
    with fleet:
        assert orders.enqueue(b"", id="o").result(PATIENCE) == b"no such shelf"
    counts = mail.counts()
    assert (counts.enqueued, counts.cancelled, counts.waiting) == (2, 2, 0)


def test_cancel_goes_down(fleet: Running, orders: Queue[Any], mail: Queue[Any]) -> None:
    def middle(job: Job) -> Body:
        yield partial(job.run_all, [("mail", b"a"), ("mail", b"b")])

    def body(job: Job) -> Body:
        yield partial(job.run, ("middle", b""))

    serve(fleet, "middle", middle)
    serve(fleet, "orders", body)
    with fleet:
        orders.enqueue(b"", id="o")
        until(lambda: mail.counts().waiting == 2, "the children of the child")
        until(lambda: orders.counts().blocked, "a parent that waits")
        assert orders.cancel("o")
        assert mail.counts().cancelled == 2


def test_a_message_brings_an_end_at_once(
    fleet: Running, orders: Queue[Any], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for ends otherwise in this test. Messages of strangers do no harm."""
    monkeypatch.setattr(away, "LOOK_MIN_S", 600.0)
    monkeypatch.setattr(away, "LOOK_MAX_S", 600.0)
    serve(fleet, "mail", double)
    serve(fleet, "orders", mails)
    with fleet:
        for message in (b"ended", b"ended \xff", b"ended nowhere"):
            client.publish(key("control", "orders"), message)
        receipts = [orders.enqueue(b"x") for _ in range(30)]
        assert {one.result(PATIENCE) for one in receipts} == {b"ok xx"}


def test_a_dead_parent_learns_of_its_child(
    fleet: Running, orders: Queue[Any], mail: Queue[Any]
) -> None:
    """It is redriven after the child's end."""
    deaths: list[int] = []

    def body(job: Job) -> Body:
        child = yield partial(job.start, ("mail", b"x"))
        if not deaths:
            deaths.append(1)
            raise DeadLetter("too early")
        first = yield partial(job.first, done=child)
        return first.value

    serve(fleet, "orders", body)
    with fleet:
        with pytest.raises(JobFailed, match="too early"):
            orders.enqueue(b"", id="o").result(PATIENCE)
        assert mail.complete(mail.lease(), b"late")
        until(lambda: states(orders) == ["done"], "that it learns of it")
        assert orders.admin.redrive() == 1
        assert orders.result("o", PATIENCE) == b"late"
    assert mail.counts().enqueued == 1


@pytest.mark.parametrize("lost", [True, False])
def test_a_child_that_a_failover_has_lost_starts_again(
    fleet: Running, orders: Queue[Any], mail: Queue[Any], client: redis.Redis, lost: bool
) -> None:
    """Its parent looks for it after an hour. A child that is there does not start twice."""
    serve(fleet, "orders", mails)
    with fleet:
        receipt = orders.enqueue(b"x", id="o")
        until(lambda: orders.counts().blocked, "a parent that waits")
        (child,) = mail.admin.waiting()
        if lost:
            client.delete(*client.scan_iter("*{mail}*"))
        delivered = deliveries(orders)
        travel(fleet.worker._address.target, 3700)
        until(lambda: deliveries(orders) > delivered, "a look for it")
        until(lambda: orders.counts().blocked, "a parent that waits again")
        assert [again.job.id for again in mail.admin.waiting()] == [child.job.id]
        assert mail.complete(mail.lease(), b"found")
        assert receipt.result(PATIENCE) == b"ok found"
    assert mail.counts().completed == 1


def deliveries(queue: Queue[Any]) -> int:
    found = queue.find("o")
    assert found is not None
    return found.deliveries


def test_a_parent_that_died_before_the_start_starts_its_child(
    fleet: Running, orders: Queue[Any], mail: Queue[Any]
) -> None:
    """Its worker has died between the two calls."""
    orders.enqueue(b"x", id="o")
    claim = orders.lease(duration=0.5).claim
    made = orders._run(step_ops.child_away(orders.ops, claim, "mail", Keys.of("mail"), "o/mail~1"))
    assert not isinstance(made, int)
    assert mail.counts().enqueued == 0
    serve(fleet, "mail", double)
    serve(fleet, "orders", mails, retry=Retry(attempts=2))
    with fleet:
        assert orders.result("o", PATIENCE) == b"ok xx"
    assert mail.counts().enqueued == 1


def test_a_late_start_of_a_child_that_has_ended_does_nothing(
    orders: Queue[Any], mail: Queue[Any]
) -> None:
    """Also after its parent has learned of the end."""
    orders.enqueue(b"x", id="o")
    claim = orders.lease().claim
    child = NewJob(b"x", queue="mail")
    made: Any = orders._run(
        step_ops.child_away(orders.ops, claim, "mail", Keys.of("mail"), "o/mail~1")
    )
    adopt = step_ops.adopt(orders.ops, claim, made, child)
    assert orders._run(adopt)
    assert orders._run(adopt)
    assert mail.counts().waiting == 1
    assert mail.complete(mail.lease(), b"done")
    assert orders._run(adopt)
    home = Keys.of("mail").prefix
    found: Any = orders._run(step_ops.reports(orders.ops, home, []))
    assert (found.open, found.words[0]) == (False, b"o/mail~1")
    for _ in range(2):
        assert orders._run(step_ops.learn(orders.ops, home, found))
    assert orders._run(step_ops.reports(orders.ops, home, [b"o/mail~1"])).words == []
    assert orders._run(adopt)
    counts = mail.counts()
    assert (counts.enqueued, counts.waiting) == (1, 0)
    state = orders.find("o")
    assert state is not None
    assert [(step.state, step.result) for step in state.steps] == [("done", b"done")]


def test_a_cancelled_parent_starts_no_child(orders: Queue[Any], mail: Queue[Any]) -> None:
    """It was cancelled between the two calls, and its handler does not know that yet."""
    orders.enqueue(b"x", id="o")
    claim = orders.lease().claim
    made: Any = orders._run(
        step_ops.child_away(orders.ops, claim, "mail", Keys.of("mail"), "o/mail~1")
    )
    assert orders.cancel("o")
    assert orders._run(step_ops.adopt(orders.ops, claim, made, NewJob(b"x", queue="mail")))
    assert mail.counts().enqueued == 0


def test_a_result_beyond_the_bound_is_said(fleet: Running, orders: Queue[Any]) -> None:
    def large(job: Job) -> bytes:
        return b"x" * 70_000

    def body(job: Job) -> Body:
        try:
            yield partial(job.run, ("mail", b""))
        except CodecError as error:
            return str(error).encode()

    serve(fleet, "mail", large)
    serve(fleet, "orders", body)
    with fleet:
        said = orders.enqueue(b"").result(PATIENCE)
    assert said.startswith(b"child 'mail': its result has 70,000 bytes")


def test_ten_children_below_each_other(fleet: Running, orders: Queue[Any]) -> None:
    """They take turns between two groups."""

    def body(job: Job) -> Body:
        depth = int(job.payload) + 1
        try:
            got = yield partial(job.run, (f"g{depth % 2}", b"%d" % depth))
        except ConfigurationError as error:
            return b"%d %s" % (depth, str(error)[:40].encode())
        return got

    for queue in ("orders", "g0", "g1"):
        serve(fleet, queue, body)
    with fleet:
        said = orders.enqueue(b"0").result(PATIENCE)
    assert said == b"11 child 'g1' would be the 11th below each "


def test_a_lease_by_hand_starts_none_there(orders: Queue[Any], mail: Queue[Any]) -> None:
    orders.enqueue(b"x", id="o")
    lease = orders.lease()
    with pytest.raises(ConfigurationError, match="leased by hand"):
        lease.job.run(("mail", b"x"))
    found = orders.find("o")
    assert found is not None
    assert found.steps == ()
    assert mail.counts().enqueued == 0


SHARDS = 3


@pytest.mark.parametrize(
    ("parents", "queue"), [("orders", "mail"), ("shelves", "mail"), ("shelves", "packs")]
)
def test_parents_and_children_in_shards(
    fleet: Running, newest: Server, client: redis.Redis, parents: str, queue: str
) -> None:
    """`shelves` and `packs` are sharded. A child goes to the shard of its key."""
    sharded = {"orders": {}, "mail": {}, "shelves": {"shards": SHARDS}, "packs": {"shards": SHARDS}}
    seen: set[str] = set()

    def child(job: Job) -> bytes:
        seen.add(f"{job.queue}{getattr(job.queue, 'shard', '')}")
        return job.payload * 2

    def body(job: Job) -> Body:
        calls = [NewJob(b"%d" % n, queue=queue, key=f"k{n}") for n in range(8)]
        return b" ".join((yield partial(job.run_all, calls)))

    serve(fleet, queue, child, **sharded[queue])
    serve(fleet, parents, body, **sharded[parents])
    with (
        newest.queue(parents, **sharded[parents]) as jobs,
        newest.queue(queue, **sharded[queue]) as there,
    ):
        with fleet:
            some = [jobs.enqueue(b"", id=f"p{n}") for n in range(4)]
            results = {one.result(PATIENCE) for one in some}
            assert results == {b"00 11 22 33 44 55 66 77"}
            until(lambda: not left(client), "nothing that is left")
        assert there.counts().enqueued == there.counts().completed == 32
    assert len(seen) == (SHARDS if queue == "packs" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("parents", ["orders", "shelves"])
def test_children_start_and_end_while_their_shards_change(
    fleet: Running, newest: Server, parents: str
) -> None:
    """A shard that takes no new jobs refuses a child, which then starts in another one. The queue
    of parents may change, too."""
    sharded = {"shards": SHARDS} if parents == "shelves" else {}

    def body(job: Job) -> Body:
        calls = [NewJob(b"%d" % n, queue="packs", key=f"{job.id}{n}") for n in range(4)]
        first = yield partial(job.run_all, calls, at_most=2)
        second = yield partial(job.run_all, calls, at_most=2)
        return b" ".join([*first, *second])

    serve(fleet, "packs", double, shards=SHARDS)
    serve(fleet, parents, body, **sharded)
    with (
        newest.queue(parents, **sharded) as jobs,
        newest.queue("packs", shards=SHARDS) as packs,
        fleet,
    ):
        receipts = []
        changed = [packs, jobs] if sharded else [packs]
        for shards in (5, 2, 4):
            receipts += [jobs.enqueue(b"", id=f"p{shards}.{n}") for n in range(20)]
            for queue in changed:
                assert queue.admin.reshard(shards).shards == shards
        expected = b"00 11 22 33 00 11 22 33"
        assert {one.result(PATIENCE) for one in receipts} == {expected}
        counts = packs.counts()
        assert (counts.enqueued, counts.completed, counts.present) == (480, 480, 0)


def test_a_child_of_another_shard_of_its_group(fleet: Running, newest: Server) -> None:
    """Its key decides. Without a key it stays with its parent."""

    def body(job: Job) -> Body:
        calls = [NewJob(b"%d" % n, queue="shelves/one", key=f"k{n}") for n in range(8)]
        keyed = yield partial(job.run_all, calls)
        near = yield partial(job.run, ("shelves/one", b"n"))
        return b" ".join([*keyed, near])

    serve(fleet, "shelves/one", double, shards=SHARDS)
    serve(fleet, "shelves", body, shards=SHARDS)
    with newest.queue("shelves", shards=SHARDS) as jobs, fleet:
        result = jobs.enqueue(b"").result(PATIENCE)
    assert result == b"00 11 22 33 44 55 66 77 nn"


def test_a_job_with_children_elsewhere_is_not_moved(
    orders: Queue[Any], mail: Queue[Any], newest: Server
) -> None:
    orders.enqueue(b"x", id="o")
    lease = orders.lease()
    orders._run(step_ops.child_away(orders.ops, lease.claim, "mail", Keys.of("mail"), "o/mail~1"))
    assert lease.release()
    with newest.queue("orders/old"):
        assert orders.admin.move("orders/old") == 0
    assert orders.counts().present == 1


def test_a_repair_leaves_what_dead_parents_need(
    orders: Queue[Any], mail: Queue[Any], client: redis.Redis
) -> None:
    orders.enqueue(b"x", id="o")
    lease = orders.lease()
    orders._run(step_ops.child_away(orders.ops, lease.claim, "mail", Keys.of("mail"), "o/mail~1"))
    assert lease.dead_letter("why")
    before = client.hgetall(key("steps", "orders"))
    assert any(b"\ta" in name for name in before)
    assert orders.admin.repair().leftovers == 0
    assert client.hgetall(key("steps", "orders")) == before
    assert orders.admin.purge_dead() == 1
    for _ in range(3):
        orders._run(orders.ops.reclaim("w", 10.0))
    until(
        lambda: (
            orders._run(orders.ops.reclaim("w", 10.0)) and not client.exists(key("steps", "orders"))
        ),
        "no records",
    )
