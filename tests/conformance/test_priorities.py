"""Priority levels. They are strict, each keeps its order, and ageing lets no job wait for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import AsyncWorker, Counts, Job, NewJob, Queue, Rate, Worker, queues
from headrace.errors import PrioritiesMismatch
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import LONG, expire, key, payloads, present, promote

HEADER = "headrace-priority"


@pytest.fixture
def levels(connect: Connect) -> Any:
    """A queue of three levels."""
    return connect(priorities=3)


def lease_all(queue: Any, limit: int = 100) -> list[bytes]:
    return [lease.job.payload for lease in queue.lease_many(limit)]


def mixed(queue: Any, number: int = 3) -> list[bytes]:
    """Enqueue so many jobs of each level, the last level first. Return their payloads in the order
    of their leases."""
    for turn in range(number):
        queue.enqueue_many(NewJob(b"%d.%d" % (level, turn), priority=level) for level in (2, 1, 0))
    return [b"%d.%d" % (level, turn) for level in range(3) for turn in range(number)]


# -- the order -------------------------------------------------------------------------------------


@pytest.mark.differs("order")
@pytest.mark.parametrize("limit", [1, 2, 4, 100])
def test_the_first_level_comes_first(levels: Any, limit: int) -> None:
    order = mixed(levels)
    assert payloads(levels.admin.waiting()) == order
    assert levels.counts() == Counts(waiting=9, enqueued=9)
    found = []
    while more := lease_all(levels, limit):
        found += more
    assert found == order


@pytest.mark.differs("order")
def test_a_job_that_comes_later_is_first_if_its_level_is(levels: Any) -> None:
    mixed(levels, 1)
    assert lease_all(levels, 2) == [b"0.0", b"1.0"]
    levels.enqueue(b"now")
    levels.enqueue(b"soon", priority=1)
    assert lease_all(levels) == [b"now", b"soon", b"2.0"]


@pytest.mark.differs("order")
def test_a_job_knows_its_level(levels: Any) -> None:
    ids = [
        levels.enqueue(b"x", priority=level, id=name).id
        for level, name in ((0, None), (1, None), (2, "i"))
    ]
    states = [levels.find(name) for name in ids]
    assert [(state.state, state.job.id, state.job.priority) for state in states] == [
        ("waiting", ids[0], 0), ("waiting", ids[1], 1), ("waiting", "i", 2),
    ]  # fmt: skip
    leases = levels.lease_many(3)
    assert [(lease.job.id, lease.job.priority, lease.job.attempt) for lease in leases] == [
        (name, level, 1) for level, name in enumerate(ids)
    ]
    assert [lease.job.enqueued_at for lease in leases] == [
        state.job.enqueued_at for state in states
    ]
    assert levels.complete_many(leases) == [True] * 3
    assert levels.complete_many(leases) == [False] * 3
    assert levels.counts() == Counts(enqueued=3, completed=3)


@pytest.mark.differs("order")
def test_released_and_reclaimed_ones_are_first_in_their_level(levels: Any) -> None:
    """They do not come before a higher level, because levels are strict."""
    order = mixed(levels)
    leases = levels.lease_many(9, duration=LONG)
    assert levels.counts() == Counts(leased=9, enqueued=9)
    for lease in leases[3:7]:
        assert lease.release()
    leases[1].release()
    levels.enqueue_many(NewJob(b"new %d" % level, priority=level) for level in (2, 1, 0))
    assert present(levels) == {"waiting": 3, "parked": 5, "leased": 4}
    expected = [order[1], b"new 0", *order[3:6], b"new 1", order[6], b"new 2"]
    assert payloads(levels.admin.waiting()) == expected
    ids = [state.job.id for state in levels.admin.waiting()]
    assert [levels.admin.position(name) for name in ids] == list(range(8))
    again = levels.lease_many(100)
    assert [(lease.job.payload, lease.job.attempt) for lease in again] == [
        (payload, 1) for payload in expected
    ]


@pytest.mark.differs("order")
def test_expired_ones_are_first_in_their_level(levels: Any) -> None:
    order = mixed(levels, 1)
    levels.lease_many(3, duration=0.05)
    expire(levels, 3)
    levels.enqueue_many(NewJob(b"new %d" % level, priority=level) for level in (2, 1, 0))
    assert lease_all(levels) == [order[0], b"new 0", order[1], b"new 1", order[2], b"new 2"]


@pytest.mark.differs("order")
def test_a_retry_goes_to_the_back_of_its_level(levels: Any) -> None:
    for level in (0, 1, 2):
        levels.enqueue(b"again %d" % level, priority=level, id=f"i{level}")
    for lease in levels.lease_many(3):
        assert lease.retry()
    levels.enqueue_many(NewJob(b"new %d" % level, priority=level) for level in (2, 1, 0))
    leases = levels.lease_many(9)
    assert [(lease.job.payload, lease.job.attempt) for lease in leases] == [
        (b"%s %d" % (what, level), 2 if what == b"again" else 1)
        for level in (0, 1, 2)
        for what in (b"again", b"new")
    ]
    assert [lease.job.id for lease in leases[::2]] == ["i0", "i1", "i2"]


@pytest.mark.differs("ops")
def test_a_retry_without_an_attempt_keeps_that(levels: Any) -> None:
    """The number of spent attempts goes with the job through the stream of its level."""
    levels.enqueue(b"x", priority=2)
    for _ in range(3):
        (lease,) = levels.lease_many(1)
        assert lease.job.attempt == 1
        lease.release()
        (lease,) = levels.lease_many(1)
        assert levels._run(levels.ops.retry([(lease.claim, None, 0, "later")])) == [True]
    (lease,) = levels.lease_many(1)
    assert (lease.job.attempt, lease.token) == (1, 7)


@pytest.mark.differs("order")
def test_a_delayed_job_comes_to_its_level(levels: Any) -> None:
    levels.enqueue(b"late 2", delay=0.02, priority=2)
    levels.enqueue(b"late 1", delay=0.01, priority=1)
    levels.enqueue(b"later", delay=LONG, priority=1, id="later")
    levels.enqueue_many([NewJob(b"2", priority=2), NewJob(b"1", priority=1), b"0"])
    assert [state.job.priority for state in levels.admin.delayed()][-1] == 1
    promote(levels, 2)
    assert levels.admin.reschedule("later", None)
    assert payloads(levels.admin.waiting()) == [b"0", b"1", b"late 1", b"later", b"2", b"late 2"]
    assert lease_all(levels) == [b"0", b"1", b"late 1", b"later", b"2", b"late 2"]


@pytest.mark.differs("order")
def test_a_redriven_job_goes_to_its_level(levels: Any) -> None:
    for level in (2, 1, 0):
        levels.enqueue(b"dead %d" % level, priority=level)
    for lease in levels.lease_many(3):
        lease.dead_letter("why")
    mixed(levels, 1)
    assert levels.admin.redrive() == 3
    assert lease_all(levels) == [b"0.0", b"dead 0", b"1.0", b"dead 1", b"2.0", b"dead 2"]


def test_one_that_dies_of_its_attempts(connect: Connect) -> None:
    queue = connect(priorities=2, max_attempts=1)
    queue.enqueue(b"x", priority=1, id="i")
    queue.lease(duration=0.05)
    expire(queue)
    assert queue.lease() is None
    (dead,) = queue.admin.dead()
    assert (dead.job.id, dead.job.priority, dead.job.attempt) == ("i", 1, 1)
    assert queue.counts() == Counts(dead=1, enqueued=1)


@pytest.mark.differs("order")
def test_followers_have_levels(connect: Connect) -> None:
    first, second = connect("g/first", priorities=3), connect("g/second", priorities=2)
    first.enqueue(b"x")
    second.enqueue(b"there")
    then = [
        NewJob(b"a", priority=2), NewJob(b"b", priority=1), NewJob(b"c", queue="g/second", priority=1),
        NewJob(b"d", queue="g/second"), NewJob(b"e", delay=0.01, priority=1, id="e"),
    ]  # fmt: skip
    assert first.lease().complete(then=then)
    promote(first)
    assert lease_all(first) == [b"b", b"e", b"a"]
    assert lease_all(second) == [b"there", b"d", b"c"]
    first.enqueue(b"x")
    lease = first.lease()
    with pytest.raises(ValueError, match="priority=3"):
        lease.complete(then=[NewJob(b"x", priority=3)])


def test_headers_that_are_handed_on_bring_no_level(levels: Any) -> None:
    levels.enqueue(b"x", priority=2, headers={"trace": "1"})
    lease = levels.lease()
    assert lease.job.headers == {"trace": "1", HEADER: "2"}
    levels.enqueue(b"y", headers=lease.job.headers)
    assert levels.lease().job.headers == {"trace": "1"}
    levels.enqueue(b"z", headers=lease.job.headers, priority=1)
    assert levels.lease().job.headers == {"trace": "1", HEADER: "1"}


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.differs("ids")
def test_an_id_is_one_job_in_all_levels(levels: Any) -> None:
    for level in (2, 1, 0):
        assert levels.enqueue(b"x", id="i", priority=level).added == (level == 2)
    unnamed = levels.enqueue(b"y", priority=1).id
    assert not levels.enqueue(b"z", id=unnamed).added
    leases = levels.lease_many(9)
    assert sorted(lease.job.id for lease in leases) == sorted(["i", unnamed])
    assert not levels.enqueue(b"z", id=unnamed).added
    levels.complete_many(leases)
    assert levels.enqueue(b"z", id=unnamed).added
    assert levels.enqueue(b"z", id="i", priority=1).added


def test_unnamed_jobs_of_two_levels_never_share_an_id(levels: Any) -> None:
    receipts = levels.enqueue_many(NewJob(b"%d" % i, priority=i % 3) for i in range(999))
    assert len({receipt.id for receipt in receipts}) == 999
    assert {lease.job.id for lease in levels.lease_many(999)} == {
        receipt.id for receipt in receipts
    }


# -- what an operator does -------------------------------------------------------------------------


def test_cancel_in_every_level(levels: Any) -> None:
    ids = [
        levels.enqueue(b"x", priority=level, id=name).id
        for level in (0, 1, 2)
        for name in (None, f"i{level}")
    ]
    assert [levels.cancel(name) for name in ids] == [True] * 6
    assert [levels.cancel(name) for name in ids] == [False] * 6
    assert levels.lease() is None
    ids = [levels.enqueue(b"x", priority=level).id for level in (0, 1, 2)]
    leases = levels.lease_many(3)
    assert [levels.cancel(name) for name in ids] == [True] * 3
    assert levels.complete_many(leases) == [False] * 3
    assert levels.counts() == Counts(enqueued=9, cancelled=9)


def test_cancel_payload_in_every_level(levels: Any) -> None:
    levels.enqueue_many(NewJob(b"%d" % (i % 2), priority=i % 3) for i in range(1800))
    assert levels.admin.cancel_payload(b"1") == 900
    assert levels.counts() == Counts(waiting=900, enqueued=1800, cancelled=900)
    assert set(lease_all(levels, 1000)) == {b"0"}


def test_purge_and_delete(levels: Any) -> None:
    mixed(levels)
    (lease,) = levels.lease_many(1)
    for other in levels.lease_many(5):
        other.release()
    assert levels.admin.purge() == 8
    assert levels.counts() == Counts(leased=1, enqueued=9, deleted=8)
    mixed(levels)
    entries = [
        receipt.id
        for receipt in levels.enqueue_many(NewJob(b"x", priority=level) for level in range(3))
    ]
    assert levels.admin.delete() == 13
    assert levels.counts() == Counts(enqueued=21, deleted=21)
    assert not lease.complete()
    after = [
        receipt.id
        for receipt in levels.enqueue_many(NewJob(b"x", priority=level) for level in range(3))
    ]
    assert not set(after) & set(entries)
    assert lease_all(levels) == [b"x"] * 3


@pytest.mark.differs("order")
def test_many_are_listed_page_by_page(levels: Any) -> None:
    levels.enqueue_many(NewJob(b"%d %d" % (i % 3, i // 3), priority=i % 3) for i in range(1500))
    assert payloads(levels.admin.waiting()) == [
        b"%d %d" % (level, i) for level in range(3) for i in range(500)
    ]
    last = levels.enqueue(b"x", priority=2).id
    assert levels.admin.position(last) == 1000  # as far as it counts
    levels.lease_many(900)
    assert levels.admin.position(last) == 600


@pytest.mark.differs("order")
def test_a_move_keeps_the_level_if_there_is_one(connect: Connect) -> None:
    there, plain, queue = (
        connect("g/there", priorities=2),
        connect("g/plain"),
        connect("g/q", priorities=3),
    )
    # without an id it could be that of one of the same millisecond
    there.enqueue(b"low", id="low", priority=1)
    mixed(queue)
    some = [queue.enqueue(b"%d" % level, priority=level).id for level in (0, 1, 2)]
    for lease in queue.lease_many(1):
        lease.release()
    assert queue.admin.move("g/plain", *some) == 3
    assert lease_all(plain) == [b"0", b"1", b"2"]
    assert queue.admin.move("g/there") == 9
    assert lease_all(there) == [
        b"0.0",
        b"0.1",
        b"0.2",
        b"low",
        *(b"%d.%d" % (i, j) for i in (1, 2) for j in range(3)),
    ]
    assert [queue.counts(), plain.counts().lost, there.counts().lost] == [
        Counts(enqueued=12, deleted=12),
        0,
        0,
    ]


@pytest.mark.differs("rate")
def test_paused_and_limited_queues(connect: Connect) -> None:
    queue = connect(priorities=2, rate=Rate(2, per=600, key="group"))
    queue.admin.pause()
    queue.enqueue_many(
        NewJob(b"%d %d" % (i % 2, i), priority=i % 2, headers={"group": f"{i % 3}"})
        for i in range(12)
    )
    assert queue.lease_many(9) == []
    queue.admin.resume()
    # Two of each group: all of the first level.
    assert lease_all(queue, 20) == [b"0 %d" % i for i in range(0, 12, 2)]
    assert present(queue) == {"leased": 6, "delayed": 6}


def test_a_schedule_has_a_level(levels: Any) -> None:
    levels.admin.schedule("s", b"tick", every=0.1, priority=2)
    until(lambda: levels.lease_many(0 + 1), "a job of the schedule")
    assert levels.admin.unschedule("s")


def test_queues_lists_one_that_has_only_jobs_of_a_later_level(
    levels: Any, client: redis.Redis
) -> None:
    levels.enqueue(b"x", priority=2)
    assert queues(client) == ["q"]


# -- those who know of fewer levels ----------------------------------------------------------------


ACTS: dict[str, Callable[[Any], object]] = {
    "lease": lambda queue: queue.lease(),
    "counts": lambda queue: queue.counts(),
    "find": lambda queue: queue.find("i"),
    "cancel": lambda queue: queue.cancel("i"),
    "cancel_payload": lambda queue: queue.admin.cancel_payload(b"x"),
    "purge": lambda queue: queue.admin.purge(),
    "delete": lambda queue: queue.admin.delete(),
    "waiting": lambda queue: list(queue.admin.waiting()),
    "repair": lambda queue: queue.admin.repair(),
    "position": lambda queue: queue.admin.position("i"),
    "enqueue": lambda queue: queue.enqueue(b"x", id="j"),
}


@pytest.mark.differs("position", "position")
@pytest.mark.differs("levels", "delete", "enqueue", "lease", "purge")
@pytest.mark.parametrize("act", ACTS)
def test_who_knows_of_fewer_levels_is_told(levels: Any, connect: Connect, act: str) -> None:
    few = connect(priorities=2)
    assert few.enqueue(b"y", priority=1).added
    levels.enqueue(b"x", priority=2, id="i")
    before = levels.counts()
    with pytest.raises(PrioritiesMismatch, match="3 priority levels: give priorities=3"):
        ACTS[act](few)
    assert levels.counts() == before


@pytest.mark.differs("order")
def test_a_plain_producer_needs_to_know_nothing(levels: Any, connect: Connect) -> None:
    levels.enqueue(b"x", priority=2)
    connect().enqueue_many([b"a", b"b"])
    assert lease_all(levels) == [b"a", b"b", b"x"]


@pytest.mark.differs("order")
def test_more_levels_than_there_are(levels: Any, connect: Connect) -> None:
    levels.enqueue(b"x", priority=2)
    more = connect(priorities=10)
    more.enqueue(b"y", priority=9)
    assert lease_all(more) == [b"x", b"y"]


@pytest.mark.parametrize("priority", [-1, 3, 10])
def test_a_level_that_is_none(levels: Any, priority: int) -> None:
    with pytest.raises(ValueError, match=f"priority={priority}: give at least 0 and at most 2"):
        levels.enqueue(b"x", priority=priority)


# -- foreign producers -----------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_a_bare_xadd_to_the_stream_of_a_level(levels: Any, client: redis.Redis) -> None:
    levels.enqueue_many([NewJob(b"2", priority=2), NewJob(b"1", priority=1)])
    client.xadd(key("jobs:1"), {"data": b"foreign", "trace": "1"})
    client.xadd(key("jobs:2"), {"data": b"named", "id": "i"})
    assert payloads(levels.admin.waiting()) == [b"1", b"foreign", b"2", b"named"]
    assert [state.job.priority for state in levels.admin.waiting()] == [1, 1, 2, 2]
    assert levels.counts().waiting == 4
    leases = levels.lease_many(4)
    assert [lease.job.payload for lease in leases] == [b"1", b"foreign", b"2", b"named"]
    assert leases[1].job.headers == {"trace": "1", HEADER: "1"}
    assert leases[3].job.id == "i"
    assert levels.complete_many(leases) == [True] * 4


@pytest.mark.differs("keys")
def test_a_header_that_is_no_level(levels: Any, client: redis.Redis) -> None:
    for value in ("", "x", "7", "-1", "1e3"):
        client.xadd(key("jobs"), {"data": value, HEADER: value})
    leases = levels.lease_many(9)
    assert len(leases) == 5
    for lease in leases:
        assert lease.retry()
    assert len(levels.lease_many(9)) == 5


@pytest.mark.differs("keys")
def test_foreign_additions_are_counted(levels: Any, client: redis.Redis, server: Server) -> None:
    mixed(levels)
    client.xadd(key("jobs:2"), {"data": b"foreign"})
    counted = server.binary.name != "redis-6.2"  # it does not count what was ever added
    assert levels.counts().enqueued == (10 if counted else 9)
    levels.admin.repair()
    assert (levels.counts().enqueued, levels.counts().lost) == (10, 0)


@pytest.mark.differs("keys")
def test_repair_registers_ids_in_the_streams_of_levels(levels: Any, client: redis.Redis) -> None:
    client.xadd(key("jobs:2"), {"data": b"x", "id": "i"})
    client.hset(key("ids"), mapping={"gone": "5-1.2", "never": "5-1.9"})
    client.hset(key("released"), "5-1.2", 3)
    levels.enqueue(b"y", priority=2, id="j")
    found = levels.admin.repair()
    assert (found.ids_taken, found.ids_released, found.leftovers) == (1, 2, 1)
    assert levels.cancel("i")
    assert levels.cancel("j")
    assert not levels.admin.repair()


def test_repair_finds_nothing_after_our_own_operations(levels: Any) -> None:
    mixed(levels)
    leases = levels.lease_many(8)
    leases[0].release()
    leases[3].release()
    leases[4].retry()
    leases[5].retry(delay=LONG)
    leases[6].dead_letter("why")
    assert not levels.admin.repair()


@pytest.mark.differs("keys")
def test_stranded_ones_are_parked_in_their_level(levels: Any, client: redis.Redis) -> None:
    mixed(levels, 1)
    leases = levels.lease_many(3)
    client.xack(key("jobs"), "workers", *(lease.claim.entry for lease in leases))
    assert levels.admin.repair().stranded == 3
    levels.enqueue(b"new")
    assert lease_all(levels) == [b"0.0", b"new", b"1.0", b"2.0"]


# -- waiting ---------------------------------------------------------------------------------------


def test_a_job_of_any_level_wakes_who_is_blocked(
    levels: Any, meanwhile: Callable[[Callable[[Queue], object]], None], server: Server
) -> None:
    with server.queue("q", priorities=3) as other:
        for level in (2, 1):
            meanwhile(lambda _, level=level: other.enqueue(b"x", priority=level))
            lease = levels.lease(block=LONG)
            assert lease.job.priority == level
            lease.complete()


@pytest.mark.parametrize("worker_of", [Worker, AsyncWorker])
def test_workers_take_levels(newest: Server, worker_of: Any) -> None:
    seen: list[bytes] = []
    worker = worker_of(url=newest.url)

    @worker.handler("q", concurrency=1, priorities=3)
    def handle(job: Job) -> None:
        assert job.priority == int(job.payload[:1])
        seen.append(job.payload)
        if len(seen) == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with Queue("q", url=newest.url, priorities=3) as queue:
        order = mixed(queue)
        worker.run()
        assert seen == order
        assert queue.counts() == Counts(enqueued=9, completed=9)


# -- ageing ----------------------------------------------------------------------------------------


def later(client: redis.Redis, level: int) -> None:
    """Replace the jobs of a level by equal ones with IDs of an hour ago, as if they had waited for
    an hour."""
    stream = key(f"jobs:{level}")
    rows = client.xrange(stream)
    client.xtrim(stream, maxlen=0)
    client.rename(stream, key("aside"))
    for entry, fields in rows:
        ms, number = entry.decode().split("-")
        name = f"{int(ms) - 3_600_000}-{number}"
        client.xadd(stream, fields, id=name)
        if b"id" in fields:
            client.hset(key("ids"), fields[b"id"], f"{name}.{level}")
    client.delete(key("aside"))


def age(queue: Any) -> None:
    queue._run(queue.ops.reclaim("sweeper", 10.0))


@pytest.mark.differs("ops")
def test_who_waited_long_enough_goes_a_level_up(connect: Connect, client: redis.Redis) -> None:
    queue = connect(priorities=3, ageing=60)
    queue.enqueue_many([NewJob(b"old 2", priority=2), NewJob(b"old 1", priority=1, id="i")])
    age(queue)
    assert [state.job.payload for state in queue.admin.waiting()] == [b"old 1", b"old 2"]
    later(client, 1)
    later(client, 2)
    queue.enqueue_many([NewJob(b"new 2", priority=2), NewJob(b"new 1", priority=1), b"new 0"])
    age(queue)
    assert payloads(queue.admin.waiting()) == [b"new 0", b"old 1", b"new 1", b"old 2", b"new 2"]
    assert queue.find("i").job.priority == 1  # what it was enqueued with
    age(queue)  # it waits anew at each level
    assert payloads(queue.admin.waiting()) == [b"new 0", b"old 1", b"new 1", b"old 2", b"new 2"]
    assert not queue.admin.repair()
    assert lease_all(queue) == [b"new 0", b"old 1", b"new 1", b"old 2", b"new 2"]


@pytest.mark.differs("ops")
def test_the_lowest_is_not_starved(connect: Connect) -> None:
    """The lowest level is leased however many jobs arrive at the first level."""
    queue = connect(priorities=3, ageing=0.02)
    queue.enqueue(b"low", priority=2)
    seen: list[bytes] = []

    def served() -> bool:
        queue.enqueue_many([b"high"] * 2)
        age(queue)
        seen.extend(lease_all(queue, 2))
        return b"low" in seen

    until(served, "the job of the last level")


@pytest.mark.differs("ops")
def test_one_that_is_parked_is_not_starved_either(connect: Connect) -> None:
    queue = connect(priorities=2, ageing=0.02)
    queue.enqueue(b"low", priority=1)
    queue.lease().release()
    queue.enqueue_many([b"high"] * 10)

    def first() -> bool:
        age(queue)
        return payloads(queue.admin.waiting())[0] == b"low"

    until(first, "that it is in front")
    assert lease_all(queue, 1) == [b"low"]


@pytest.mark.differs("keys")
def test_without_ageing_it_waits(levels: Any, client: redis.Redis) -> None:
    levels.enqueue(b"low", priority=2)
    later(client, 2)
    age(levels)
    levels.enqueue(b"high")
    assert lease_all(levels, 1) == [b"high"]


def test_a_producer_adds_no_levels_by_knowing_them(connect: Connect) -> None:
    """A new level comes from a job of that level, or from the declaration of a worker."""
    more = connect(priorities=4)
    more.enqueue(b"a")
    more.enqueue(b"b", priority=1)
    assert more.admin.levels() == 2
    assert len(connect(priorities=2).lease_many(9)) == 2


def test_a_deleted_queue_has_one_level(levels: Any, connect: Connect) -> None:
    levels.enqueue(b"x", priority=2)
    few = connect()
    with pytest.raises(PrioritiesMismatch):
        few.counts()
    levels.admin.delete()
    assert few.admin.levels() == 1
    assert few.enqueue(b"y", id="y").added
    assert lease_all(few) == [b"y"]
    assert few.counts().lost == 0


def test_levels_that_a_worker_declares_are_the_queue_s(newest: Server) -> None:
    """A producer's higher number is ignored without a warning."""
    worker = Worker(url=newest.url, heartbeat=0.2, timeout=1)
    worker.handler("q", priorities=3)(lambda job: None)
    with Queue("q", url=newest.url, priorities=5) as more, Queue("q", url=newest.url) as plain:
        assert more.enqueue(b"x").added
        assert plain.admin.levels() == 1
        with worker:
            until(lambda: plain.admin.levels() == 3)
