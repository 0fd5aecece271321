"""A change of the number of shards while the queue is used. Jobs, ids, delays, dead letters and
schedules are followed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, ConfigurationError, Debounce, NewJob, Replace, Throttle
from headrace._core.shards import transfer as handing
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from headrace.errors import ShardsMismatch
from tests.conformance.test_shards import drained
from tests.support.awaiting import until
from tests.support.servers import Server

OLD, NEW = 4, 8
LONG_AGO_MS = 700_000  # longer than calls are known by their records


@pytest.fixture
def queue(connect: Any) -> Any:
    """Make a queue with four shards."""
    return connect("q", shards=OLD)


def table_of(client: Any, group: str = "q") -> Table:
    rows = {
        field.decode(): row.decode() for field, row in client.hgetall(Keys.of(group).shards).items()
    }
    table = Table.parse(group, rows)
    assert table is not None
    return table


def age(client: Any, group: str = "q") -> None:
    """Make the record old that says that a shard was found empty."""
    for key in client.scan_iter(f"headrace:{{{group}~*:stats"):
        if client.hexists(key, "drained"):
            client.hincrby(key, "drained", -LONG_AGO_MS)


def gone(queue: Any, client: Any, group: str = "q") -> Any:
    """Remove empty shards from the table."""
    queue.admin.reshard()
    age(client, group)
    return queue.admin.reshard()


@pytest.mark.parametrize("shards", [NEW, 2, 5])
def test_jobs_stay_and_new_ones_go_to_new_shards(
    connect: Any, client: redis.Redis, queue: Any, shards: int
) -> None:
    before = queue.enqueue_many([NewJob(b"%d" % n, id=f"i{n}", key=f"k{n}") for n in range(60)])
    anonymous = queue.enqueue(b"60")
    found = queue.admin.reshard(shards)
    assert (found.shards, found.draining, found.left, found.done) == (shards, OLD, 61, False)
    assert [shard.state for shard in queue.admin.shards()] == ["draining"] * OLD + ["open"] * shards
    assert not any(
        receipt.added
        for receipt in queue.enqueue_many(
            [NewJob(b"x", id=r.id, key=f"k{r.id[1:]}") for r in before]
        )
    )
    assert queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(61, 100)])
    assert int(queue.enqueue(b"100").id.partition("@")[2]) >= OLD
    assert queue.find(anonymous.id).job.payload == b"60"
    assert queue.find("i7").job.payload == b"7"
    assert queue.counts().waiting == 101
    jobs = drained(connect("q", shards=OLD))
    assert sorted(int(job.payload) for job in jobs) == [*range(101)]
    table = table_of(client)
    assert all(
        job.shard == table.shard_of(job.key) for job in jobs if job.key and int(job.payload) > 60
    )
    found = gone(queue, client)
    assert (found.shards, found.draining, found.done) == (shards, 0, True)
    assert [shard.number for shard in queue.admin.shards()] == [*range(OLD, OLD + shards)]
    counts = queue.counts()
    assert (counts.enqueued, counts.completed, counts.lost) == (101, 101, 0)


def test_a_client_that_knows_the_old_table(connect: Any, queue: Any) -> None:
    """Each verb is the client's first call after the change."""
    names = ("enqueue", "many", "counts", "find", "lease", "cancel", "list", "pause", "conditional")
    clients = {name: connect("q", shards=OLD) for name in names}
    for client in clients.values():
        client.enqueue(b"x", key="before")
    drained(queue)
    queue.admin.reshard(NEW)
    queue.enqueue(b"y", id="there", key="k")
    assert clients["enqueue"].enqueue(b"z", key="k").added
    assert not clients["enqueue"].enqueue(b"z", id="there", key="k").added
    receipts = clients["many"].enqueue_many(
        [NewJob(b"z", id="there", key="k"), NewJob(b"m", id="many"), b"any"]
    )
    assert [receipt.added for receipt in receipts] == [False, True, True]
    assert clients["counts"].counts().waiting == 4
    assert clients["find"].find("there").job.payload == b"y"
    assert len(list(clients["list"].admin.waiting())) == 4
    assert clients["cancel"].cancel("many")
    assert (
        clients["conditional"].enqueue(b"new", id="there", key="k", if_exists=Replace()).outcome
        == "replaced"
    )
    assert clients["pause"].admin.pause()
    assert clients["lease"].lease() is None
    assert clients["pause"].admin.resume()
    assert clients["lease"].lease() is not None
    assert len(drained(clients["lease"])) == 2


def test_ids_are_unique_across_the_change(queue: Any, connect: Any) -> None:
    other = connect("q", shards=OLD)
    other.enqueue(b"waits", id="a")
    other.enqueue(b"late", id="b", delay=60)
    other.enqueue(b"dead", id="c")
    lease = next(one for one in other.lease_many(2) if one.job.id == "c")
    lease.dead_letter("no")
    queue.admin.reshard(NEW)
    for one in (queue, other):
        assert [one.enqueue(b"x", id=name).added for name in "ab"] == [False, False]
        assert [
            receipt.added for receipt in one.enqueue_many([NewJob(b"x", id=name) for name in "ab"])
        ] == [
            False,
            False,
        ]
    assert queue.enqueue(b"again", id="c").added
    assert other.enqueue(b"again", id="e", key="k").added
    assert queue.cancel("b")
    assert queue.enqueue(b"x", id="b").added
    assert not other.enqueue(b"x", id="b").added


def die(queue: Any) -> None:
    while leases := queue.lease_many(400):
        assert all(lease.dead_letter("no") for lease in leases)


@pytest.mark.parametrize("way", ["ids", "all", "bulk"])
def test_a_dead_letter_whose_id_another_shard_has_stays(
    queue: Any, client: redis.Redis, way: str
) -> None:
    """The letter stays in its shard. Letters without an id or of another key are redriven
    meanwhile."""

    def redrive() -> int:
        if way != "bulk":
            return int(queue.admin.redrive(*(ids if way == "ids" else ())))
        done, cursor = 0, None
        while cursor != "":
            step = queue.admin.bulk("redrive", "dead", cursor=cursor or "")
            done, cursor = done + step.done, step.cursor
        return done

    queue.enqueue_many(
        [NewJob(b"x", id="a"), NewJob(b"x", id="b", key="k"), NewJob(b"x", id="c", key="k")]
    )
    ids = ["a", "b", "c", queue.enqueue(b"x").id]
    die(queue)
    queue.admin.reshard(NEW)
    assert queue.enqueue(b"again", id="a").added
    assert queue.enqueue(b"again", id="b", key="k").added
    shard = table_of(client).shard_of
    key = next(key for key in map(str, range(1000)) if shard(key) != shard("k"))
    assert queue.enqueue(b"another", id="c", key=key).added
    assert redrive() == 2
    assert {one.job.id for one in queue.admin.dead()} == {"a", "b"}
    die(queue)
    assert redrive() == 5, "each id once"
    assert len({(one.job.id, one.job.key) for one in queue.admin.waiting()}) == 5
    assert queue.counts().dead == 2


def test_conditions_reach_the_job_where_it_is(queue: Any) -> None:
    queue.enqueue(b"x", id="r", delay=60)
    queue.enqueue(b"x", id="d", delay=60)
    queue.enqueue(b"x", id="t", if_exists=Throttle(60))
    assert queue.cancel("t")
    queue.admin.reshard(NEW)
    assert queue.enqueue(b"y", id="r", delay=60, if_exists=Replace()).outcome == "replaced"
    assert queue.enqueue(b"y", id="d", if_exists=Debounce(120)).outcome == "moved"
    assert queue.enqueue(b"y", id="t", if_exists=Throttle(60)).outcome == "dropped"
    assert queue.enqueue(b"y", id="n", if_exists=Throttle(60)).outcome == "added"
    assert {one.job.id: one.job.shard < OLD for one in queue.admin.delayed()} == {
        "r": True,
        "d": True,
    }
    assert queue.find("n").job.shard >= OLD


def test_concurrent_calls_reach_the_jobs_where_they_are(server: Server) -> None:
    """The calls travel together to a shard that takes no new job. They change its jobs and leave
    the others."""

    async def story() -> None:
        options = {**server.binary.options, "shards": OLD}
        async with AsyncQueue("q", url=server.url, **options) as queue:
            there = [f"old{n}" for n in range(20)]
            await queue.enqueue_many([NewJob(b"x", id=name, key="k", delay=60) for name in there])
            await queue.admin.reshard(NEW)
            mixed = [name for old in there for name in (old, f"new{old[3:]}")]
            receipts = await asyncio.gather(
                *(
                    queue.enqueue(b"y", id=name, key="k", delay=60, if_exists=Replace())
                    for name in mixed
                )
            )
            assert [receipt.outcome for receipt in receipts] == ["replaced", "added"] * 20
            found = [(one.job.id, one.job.shard < OLD) async for one in queue.admin.delayed()]
            assert sorted(found) == sorted((name, name in there) for name in mixed)

    asyncio.run(story())


def test_what_a_shard_still_has_keeps_it(queue: Any, client: redis.Redis) -> None:
    receipt = queue.enqueue(b"r", id="result")
    queue.enqueue(b"x", id="dead", key="k")
    for lease in queue.lease_many(2):
        if lease.job.id == "dead":
            lease.dead_letter("no")
        else:
            lease.complete(result=b"kept")
    queue.enqueue(b"x", id="late", delay=1000)
    queue.admin.reshard(NEW)
    assert 2 <= gone(queue, client).draining <= 3
    assert queue.result("result") == receipt.result(5) == b"kept"
    assert queue.admin.redrive("dead") == 1
    assert queue.admin.reschedule("late", None)
    assert len(drained(queue)) == 2
    for key in client.scan_iter("headrace:*:result:*"):
        client.delete(key)
    assert gone(queue, client).done
    assert queue.counts().lost == 0


def test_an_id_that_is_taken_keeps_its_shard(queue: Any, client: redis.Redis) -> None:
    """Otherwise `unique_for` and `throttle` would be forgotten with the shard."""
    queue.enqueue(b"x", id="u", unique_for=3600)
    queue.enqueue(b"x", id="t", if_exists=Throttle(3600))
    assert len(drained(queue)) == 2
    queue.admin.reshard(NEW)
    assert 1 <= gone(queue, client).draining <= 2
    assert queue.enqueue(b"y", id="u", unique_for=3600).outcome == "present"
    assert queue.enqueue(b"y", id="t", if_exists=Throttle(3600)).outcome == "dropped"
    for key in client.scan_iter("headrace:*:taken"):
        client.delete(key)
    assert gone(queue, client).done
    assert queue.enqueue(b"y", id="u", unique_for=3600).added
    assert queue.enqueue(b"y", id="t", if_exists=Throttle(3600)).added


def test_a_paused_queue_stays_paused(queue: Any, connect: Any) -> None:
    queue.admin.pause()
    queue.admin.reshard(NEW)
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(20)])
    assert queue.lease() is None
    assert connect("q", shards=NEW).admin.paused()
    assert queue.admin.resume()
    assert len(drained(queue)) == 20


def test_declared_options_are_taken_over(connect: Any) -> None:
    queue = connect("q", shards=OLD, history=5, dead_limit=7, priorities=3)
    queue.enqueue(b"x", priority=2)
    drained(queue)
    connect("q", shards=OLD, priorities=3).admin.reshard(NEW)
    assert queue.admin.levels() == 3
    receipt = connect("q", shards=OLD, priorities=3).enqueue(b"x", key="k")
    assert queue.cancel(receipt.id)
    assert queue.find(receipt.id).state == "cancelled"


def test_schedules_go_on(queue: Any, client: redis.Redis) -> None:
    names = [f"s{n}" for n in range(6)]
    for name in names:
        assert queue.admin.schedule(name, b"x", every=3600)
    due = {one.name: one.next_due for one in queue.admin.schedules()}
    queue.admin.reshard(NEW)
    assert {one.name: one.next_due for one in queue.admin.schedules()} == due
    assert gone(queue, client).done, "they were moved"
    assert {one.name: one.next_due for one in queue.admin.schedules()} == due
    assert not queue.admin.schedule("s1", b"y", every=60)
    assert queue.admin.unschedule("s2")
    assert not queue.admin.unschedule("s2")
    assert len(queue.admin.schedules()) == 5
    assert queue.admin.schedule("often", b"x", every=0.1)
    assert queue.lease(block=20).job.id.startswith("often@")


def test_there_and_back(queue: Any, client: redis.Redis) -> None:
    for turn, shards in enumerate((NEW, OLD, NEW)):
        queue.enqueue_many([NewJob(b"x", id=f"{turn} {n}", key=f"k{n}") for n in range(20)])
        assert queue.admin.reshard(shards).shards == shards
    assert queue.counts().waiting == 60
    assert not any(queue.enqueue(b"x", id=f"{turn} 3", key="k3").added for turn in range(3))
    assert len(drained(queue)) == 60
    assert gone(queue, client).done
    assert queue.counts().completed == 60
    table = table_of(client)
    assert [part.number for part in table.shards] == [*range(2 * OLD + NEW, 2 * OLD + 2 * NEW)]


def test_all_queues_of_the_group_change(connect: Any, client: redis.Redis) -> None:
    a, b = connect("g/a", shards=OLD), connect("g/b", shards=OLD)
    a.enqueue(b"x", id="i")
    b.enqueue(b"x", id="i")
    lease = a.lease()
    assert lease.complete(then=[NewJob(b"y", queue="g/c", key="i")])
    a.admin.reshard(NEW)
    assert not b.enqueue(b"x", id="i").added
    assert b.enqueue(b"x", id="j").added
    assert b.find("j").job.shard >= OLD
    assert gone(a, client, "g").draining == 1
    c = connect("g/c", shards=OLD)
    assert len(drained(c)) == 1
    assert len(drained(b)) == 2
    assert gone(a, client, "g").done
    assert (a.counts().completed, b.counts().completed, c.counts().completed) == (1, 2, 1)


def test_a_follow_up_stays_in_the_old_shard(queue: Any) -> None:
    queue.enqueue(b"x", key="k")
    lease = queue.lease()
    queue.admin.reshard(NEW)
    assert lease.complete(then=[NewJob(b"y", key="k"), NewJob(b"z")])
    assert {one.job.shard for one in queue.admin.waiting()} == {lease.job.shard}


def test_numbers_that_were_are_known(connect: Any, queue: Any) -> None:
    queue.enqueue(b"x")
    queue.admin.reshard(NEW)
    for number in (OLD, NEW):
        assert connect("q", shards=number).counts().waiting == 1
    with pytest.raises(ShardsMismatch, match=f"give shards={NEW}"):
        connect("q", shards=5).counts()
    with pytest.raises(ConfigurationError, match="has no shards"):
        connect("plain", shards=1).admin.reshard(4)
    for bad in (1, 0, 257):
        with pytest.raises(ValueError, match=r"reshard|shards"):
            queue.admin.reshard(bad)
    assert queue.admin.reshard().shards == NEW


def test_a_late_call_to_a_shard_that_is_gone(connect: Any, client: redis.Redis, queue: Any) -> None:
    late = connect("q", shards=OLD)
    late.enqueue(b"x", key="k")
    drained(late)
    queue.admin.reshard(NEW)
    assert gone(queue, client).done
    assert late.enqueue(b"y", key="k").added
    assert late.enqueue_many([b"z"])
    assert len(drained(queue)) == 2


def test_a_change_that_stopped_is_gone_on_with(
    connect: Any, client: redis.Redis, queue: Any
) -> None:
    """The next caller continues the change. Until then jobs go on as before."""
    queue.enqueue(b"x", id="i")
    table = table_of(client)
    opening = table.divided(NEW)
    client.hset(Keys.of("q").shards, mapping=opening.rows())
    other = connect("q", shards=OLD)
    assert not other.enqueue(b"x", id="i").added
    assert other.enqueue(b"x", id="j").added
    assert other.find("j").job.shard < OLD
    assert other.admin.reshard().shards == NEW
    assert queue.enqueue(b"x", id="k").added
    assert queue.find("k").job.shard >= OLD
    assert len(drained(queue)) == 3


def test_a_lost_table_is_written_anew_by_whoever_knows_it(
    connect: Any, client: redis.Redis, queue: Any
) -> None:
    queue.enqueue(b"x")
    queue.admin.reshard(NEW)
    rows = client.hgetall(Keys.of("q").shards)
    client.delete(Keys.of("q").shards)
    assert queue.counts().waiting == 1
    assert client.hgetall(Keys.of("q").shards) == rows
    until(lambda: queue.enqueue(b"y").added)


def test_a_lost_table_is_not_made_up_by_a_client_that_never_knew_it(
    connect: Any, client: redis.Redis, queue: Any
) -> None:
    """A new table would name other shards than those with the jobs. The client goes on when the
    table is back."""
    queue.enqueue(b"x")
    queue.admin.reshard(NEW)
    rows = client.hgetall(Keys.of("q").shards)
    client.delete(Keys.of("q").shards)
    fresh = connect("q", shards=NEW)
    for call in (
        fresh.counts,
        lambda: fresh.enqueue(b"y"),
        lambda: fresh.enqueue_many([b"y"]),
        fresh.lease,
    ):
        with pytest.raises(
            ShardsMismatch, match=r"is gone, and shards are there: .* from a backup"
        ):
            call()
    assert not client.exists(Keys.of("q").shards)
    assert queue.counts().waiting == 1
    assert client.hgetall(Keys.of("q").shards) == rows
    assert fresh.enqueue(b"y").added
    assert fresh.counts().waiting == 2


def test_a_lost_table_that_nothing_has_changed_is_made_anew(
    connect: Any, client: redis.Redis, queue: Any
) -> None:
    """Any client makes the same table."""
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(12)])
    rows = client.hgetall(Keys.of("q").shards)
    client.delete(Keys.of("q").shards)
    assert connect("q", shards=OLD).counts().waiting == 12
    assert client.hgetall(Keys.of("q").shards) == rows


def test_a_table_that_another_client_made_up_is_put_right(
    connect: Any, client: redis.Redis, queue: Any
) -> None:
    """A client that knows the lost table puts it right."""
    queue.enqueue(b"x")
    queue.admin.reshard(NEW)
    key, rows = Keys.of("q").shards, client.hgetall(Keys.of("q").shards)
    client.delete(key)
    client.hset(key, mapping=Table.of("q", OLD + NEW).rows())
    assert queue.counts().waiting == 1
    assert {name: row for name, row in client.hgetall(key).items() if name in rows} == rows


def test_a_producer_that_may_not_scan_begins_a_queue(connect: Any, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "default", "-scan")
    try:
        assert connect("new", shards=OLD).enqueue(b"x").added
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+scan")


def test_leases_of_an_ordered_queue_come_from_old_shards_first(connect: Any) -> None:
    queue = connect("q", shards=OLD, ordered=True)
    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n % 3}") for n in range(12)])
    lease = queue.lease()
    queue.admin.reshard(NEW)
    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n % 3}") for n in range(12, 24)])
    done: dict[str, list[int]] = {}
    while lease is not None:
        done.setdefault(lease.job.key, []).append(int(lease.job.payload))
        lease.complete()
        lease = queue.lease(block=0.2)
    assert done == {f"k{k}": [*range(k, 24, 3)] for k in range(3)}


@pytest.mark.slow
def test_a_follow_up_on_its_way_goes_to_the_new_shard(
    connect: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follow-up is sent once. Its old shard is asked first, because it may have received it."""
    monkeypatch.setattr(handing, "SILENT_S", 0.5)
    queue = connect("q", shards=OLD)
    old = table_of_group(queue)
    far = next(f"k{n}" for n in range(99) if old.shard_of(f"k{n}") != old.shard_of("k"))
    queue.enqueue(b"x", key="k")
    lease = queue.lease()
    outbox = Keys.of("q").at(old.shards[old.shard_of("k")])
    broken = Keys.of("q").at(old.shards[old.shard_of(far)]).key("handed")
    client.set(broken, "mine")
    assert lease.complete(then=[NewJob(b"y", key=far)])
    kept = client.dump(outbox.key("outbox")), client.dump(outbox.key("outdue"))
    assert queue.counts().handing == 1
    client.delete(broken)
    assert queue.lease(block=20).job.payload == b"y"  # it was sent to its old shard
    for key, value in zip(("outbox", "outdue"), kept, strict=True):  # and the answer was lost
        client.restore(outbox.key(key), 0, value, replace=True)
    queue.admin.reshard(NEW)
    assert connect("q", shards=NEW).lease(block=1.5) is None
    counts = queue.counts()
    assert (counts.leased, counts.waiting, counts.handing) == (1, 0, 0)


def table_of_group(queue: Any) -> Table:
    """Return the table before any change."""
    assert len(queue.admin.shards()) == OLD
    return Table.of("q", OLD)
