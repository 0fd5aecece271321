"""Sharded queues. Each job is in the shard of its key. All verbs of the queue work, and some calls
are refused."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis

import headrace
from headrace import (
    ConfigurationError,
    JobFailed,
    NewJob,
    Queue,
    QueueFull,
    Rate,
    Replace,
    Throttle,
)
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from headrace.errors import ShardsMismatch
from tests.support.awaiting import PATIENCE, until
from tests.support.program import Program, started
from tests.support.servers import Server
from tests.support.steps import asked, listening

SHARDS = 6
TABLE = Table.of("q", SHARDS)


@pytest.fixture
def queue(connect: Any) -> Any:
    return connect(shards=SHARDS)


def drained(queue: Any) -> list[Any]:
    """Complete the jobs of a queue and return them."""
    jobs: list[Any] = []
    while leases := queue.lease_many(400):
        assert all(queue.complete_many(leases))
        jobs += [lease.job for lease in leases]
    return jobs


def test_it_is_a_queue(connect: Any) -> None:
    assert isinstance(Queue("q", url="redis://127.0.0.1:1", shards=SHARDS), Queue)
    assert connect("plain", shards=1).admin.shards() == []


def test_jobs_of_a_key_are_in_its_shard(queue: Any) -> None:
    for n in range(40):
        queue.enqueue(b"x", key=f"k{n}")
        queue.enqueue(b"x", id=f"i{n}")
        queue.enqueue(b"x", id=f"j{n}", key=f"k{n}")
    jobs = drained(queue)
    assert len(jobs) == 120
    for job in jobs:
        assert job.shard == TABLE.shard_of(job.key or job.id)
    assert len({job.shard for job in jobs}) == SHARDS
    assert {job.key for job in jobs if job.id.startswith("j")} == {f"k{n}" for n in range(40)}


def test_keys_of_a_plain_queue_are_kept_with_its_jobs(connect: Any) -> None:
    queue = connect(shards=1)
    queue.enqueue(b"x", key="k")
    queue.enqueue_many([NewJob(b"y", key="l"), b"z"])
    leases = queue.lease_many(3)
    assert [(lease.job.key, lease.job.shard) for lease in leases] == [("k", 0), ("l", 0), (None, 0)]
    assert queue.find(leases[0].job.id, key="k").state == "leased"
    assert queue.cancel(leases[0].job.id, key="k")


def test_an_anonymous_job_s_id_names_its_shard(queue: Any) -> None:
    receipt = queue.enqueue(b"x")
    entry, _, number = receipt.id.partition("@")
    found = queue.find(receipt.id)
    assert (found.job.id, found.job.shard, found.entry) == (receipt.id, int(number), entry)
    lease = queue.lease()
    assert lease.job.id == receipt.id
    assert lease.retry()
    lease = queue.lease()
    assert (lease.job.id, lease.job.attempt) == (receipt.id, 2)
    assert lease.dead_letter("no")
    assert [one.job.id for one in queue.admin.dead()] == [receipt.id]
    assert queue.admin.redrive(receipt.id) == 1
    assert queue.cancel(receipt.id)
    assert not queue.cancel(receipt.id)
    assert queue.find(f"{entry}@{SHARDS}") is None


def test_an_id_is_unique_within_its_key(queue: Any) -> None:
    assert queue.enqueue(b"x", id="i", key="a").added
    assert not queue.enqueue(b"x", id="i", key="a").added
    other = next(key for key in "bcdefgh" if TABLE.shard_of(key) != TABLE.shard_of("a"))
    assert queue.enqueue(b"y", id="i", key=other).added
    assert queue.find("i", key=other).job.payload == b"y"
    assert queue.find("i").job.id == "i"
    assert queue.cancel("i")
    assert queue.counts().waiting == 0


@pytest.mark.parametrize("name", ["1795-0", "1795-0@3", "1795-0.2"])
def test_an_id_like_an_entry_s_is_refused(queue: Any, name: str) -> None:
    for add in (
        lambda: queue.enqueue(b"x", id=name),
        lambda: queue.enqueue_many([b"a", NewJob(b"x", id=name)]),
    ):
        with pytest.raises(
            ValueError, match=r"leave it out .*, redrive\(\) it .*, or choose one of another form"
        ):
            add()
    assert not queue.counts().enqueued


def test_a_job_that_was_given_no_id_is_redriven_by_it(queue: Any) -> None:
    name = queue.enqueue(b"x").id
    queue.lease().dead_letter("no")
    assert queue.admin.redrive(name) == 1
    assert queue.lease().job.id == name


def test_a_batch_is_divided_and_its_receipts_come_in_order(queue: Any) -> None:
    jobs: list[Any] = [b"%d" % n for n in range(2500)]
    for n in range(0, 2500, 25):
        jobs[n] = NewJob(b"%d" % n, id=f"i{n}", key=f"k{n}" if n % 50 else None)
    receipts = queue.enqueue_many(jobs)
    assert len({receipt.id for receipt in receipts}) == 2500
    assert all(receipt.id == f"i{n * 25}" for n, receipt in enumerate(receipts[::25]))
    assert queue.find(receipts[1234].id).job.payload == b"1234"
    spread = [shard.counts.waiting for shard in queue.admin.shards()]
    assert sum(spread) == 2500
    assert max(spread) < 1100, "anonymous jobs go in whole parts, one shard after the other"
    assert sorted(int(job.payload) for job in drained(queue)) == [*range(2500)]


def test_a_bad_job_of_a_batch_leaves_nothing(queue: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        queue.enqueue_many([b"a", NewJob(b"x", key="")])
    with pytest.raises(TypeError, match="key must be a str"):
        queue.enqueue(b"x", key=7)
    assert queue.counts().enqueued == 0


def test_counts_are_sums_and_shards_have_ranges(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(60)])
    queue.enqueue(b"x", key="k0", delay=60)
    queue.lease_many(10)
    counts, shards = queue.counts(), queue.admin.shards()
    assert (counts.waiting, counts.leased, counts.delayed, counts.lost) == (50, 10, 1, 0)
    assert sum(shard.counts.enqueued for shard in shards) == counts.enqueued == 61
    assert [shard.number for shard in shards] == [*range(SHARDS)]
    assert shards[0].first == 0
    assert shards[-1].last == 2**32 - 1
    assert all(one.last + 1 == other.first for one, other in pairwise(shards))
    assert all(shard.node for shard in shards)


def test_listings_are_merged_by_time(queue: Any) -> None:
    for n in range(30):
        queue.enqueue(b"%d" % n)
    came = [one.job.enqueued_at for one in queue.admin.waiting()]
    assert came == sorted(came)
    assert len(came) == 30
    for n in range(30):
        queue.enqueue(b"d", id=f"d{n}", delay=1000 + (7 * n) % 30)
    due = [one.due for one in queue.admin.delayed()]
    assert due == sorted(due)
    assert len(due) == 30
    front = queue.lease()
    front.release()
    assert queue.admin.peek().id == front.job.id


def test_pages_of_all_shards_are_read(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(1700)])
    assert len({one.job.id for one in queue.admin.waiting()}) == 1700


def test_each_lease_is_settled_in_its_shard(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(50)])
    leases = queue.lease_many(50)
    assert len(leases) == 50
    assert all(queue.renew(lease) for lease in leases)
    assert leases[0].complete()
    assert not leases[0].complete()
    assert leases[1].release()
    assert leases[2].retry(delay=60)
    assert leases[3].dead_letter("no")
    assert queue.complete_many(leases[:6]) == [False, True, False, False, True, True]
    counts = queue.counts()
    assert (counts.completed, counts.delayed, counts.dead, counts.leased) == (4, 1, 1, 44)
    assert counts.lost == 0


def test_a_lease_waits_for_a_job_of_any_shard(queue: Any) -> None:
    assert queue.lease(block=0.05) is None
    queue.enqueue(b"x", id="late", delay=0.1)
    assert queue.lease(block=10).job.id == "late"


def test_a_lease_at_most_once(queue: Any) -> None:
    queue.enqueue_many([b"a", b"b"])
    queue.enqueue(b"c")
    assert len(queue.lease_many(5, at_most_once=True)) == 3
    assert queue.counts().completed == 3


def test_closing_leaves_no_registration(connect: Any, queue: Any) -> None:
    queue.lease()
    assert len(queue.admin.workers()) == SHARDS
    queue.close()
    assert connect(shards=SHARDS).admin.workers() == []


def test_who_waits_for_a_result_learns_that_there_is_none(queue: Any, server: Server) -> None:
    """A job that existed and is gone has ended, so the waiter returns early."""
    queue.enqueue(b"x", id="i")
    with ThreadPoolExecutor(1) as pool, server.queue("q", shards=SHARDS) as other:

        def complete() -> bool:
            until(lambda: asked(client) >= began + 8, "two looks")
            lease = other.lease()
            return lease is not None and lease.complete()

        for ask, nothing in (
            (queue.result, None),
            (lambda i, timeout: queue.results([i], timeout), {}),
        ):
            with server.client() as client:
                began = asked(client)
                ended, start = pool.submit(complete), time.monotonic()
                assert ask("i", PATIENCE) == nothing
                assert ended.result(PATIENCE)
            assert time.monotonic() - start < PATIENCE / 2
            queue.enqueue(b"x", id="i")


def test_results_are_found_in_any_shard(queue: Any) -> None:
    receipts = [
        queue.enqueue(b"x"),
        queue.enqueue(b"x", id="i"),
        queue.enqueue(b"x", id="j", key="k"),
    ]
    with pytest.raises(TimeoutError, match="has not ended"):
        receipts[0].result(timeout=0)
    for lease in queue.lease_many(3):
        lease.complete(result=lease.job.id.encode())
    for receipt in receipts:
        assert queue.result(receipt.id) == receipt.result(timeout=5) == receipt.id.encode()
    ids = [receipt.id for receipt in receipts]
    assert queue.results([*ids, "none"]) == {name: name.encode() for name in ids}
    assert queue.results(ids, timeout=5).keys() == set(ids)
    dead = queue.enqueue(b"x", id="d", key="k")
    queue.lease().dead_letter("why")
    for ask in (lambda: dead.result(5), lambda: queue.result("d", 5)):
        with pytest.raises(JobFailed, match="why"):
            ask()


def test_a_history_is_kept_by_each_shard(connect: Any) -> None:
    queue = connect(shards=SHARDS, history=10)
    receipt = queue.enqueue(b"x", key="k")
    assert queue.cancel(receipt.id)
    assert queue.find(receipt.id).state == "cancelled"
    assert queue.find(receipt.id).job.id == receipt.id
    with pytest.raises(JobFailed, match="cancelled"):
        receipt.result(5)


def test_verbs_of_the_whole_queue_reach_all_shards(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", id=f"i{n}", key=f"k{n}") for n in range(40)])
    assert queue.admin.pause()
    assert not queue.admin.pause()
    assert queue.admin.paused()
    assert queue.lease() is None
    assert queue.admin.resume()
    assert not queue.admin.paused()
    assert queue.admin.levels() == 1
    leases = queue.lease_many(20)
    assert queue.admin.expire(*[lease.job.id for lease in leases[:5]]) == 5
    assert queue.admin.expire() == 15
    for lease in queue.lease_many(20):
        lease.dead_letter("no")
    assert queue.admin.redrive("i0", "i1", "none") <= 2
    queue.admin.redrive()
    assert queue.counts().dead == 0
    for lease in queue.lease_many(10):
        lease.dead_letter("no")
    step = queue.admin.bulk("redrive", "dead")
    done = step.done
    while step.cursor:
        step = queue.admin.bulk("redrive", "dead", cursor=step.cursor)
        done += step.done
    assert done == 10
    assert queue.admin.purge_dead() == 0
    assert queue.admin.cancel_payload(b"x") == 40
    queue.enqueue_many([NewJob(b"y", key=f"k{n}") for n in range(30)])
    assert queue.admin.purge() == 30
    assert not queue.admin.repair()
    queue.enqueue_many([NewJob(b"y", id=f"d{n}", delay=60) for n in range(9)])
    assert queue.admin.reschedule("d3", None)
    assert not queue.admin.reschedule("none", None)
    assert not queue.admin.drain(timeout=0.05)
    assert queue.admin.delete() == 9
    assert queue.admin.drain(timeout=5)


def test_a_dry_run_of_a_repair_adds_up_over_shards(connect: Any, server: Server) -> None:
    queue = connect("q/a", shards=SHARDS)
    queue.enqueue_many([NewJob(b"x", id=f"i{n}", key=f"k{n}") for n in range(30)])
    with server.client() as client:
        gone = [
            key
            for key in client.scan_iter("*:jobs")
            if client.xtrim(key, maxlen=0, approximate=False)
        ]
    assert len(gone) > 1
    found = queue.admin.repair(dry_run=True)
    assert (found.deleted, found.ids_released, queue.counts().lost) == (30, 30, 30)
    assert queue.admin.repair() == found
    assert not queue.admin.repair(dry_run=True)


def test_moves_stay_in_their_shards(connect: Any) -> None:
    here, there = connect("q/a", shards=SHARDS), connect("q/b", shards=SHARDS)
    here.enqueue_many([NewJob(b"x", id=f"i{n}", key=f"k{n}") for n in range(30)])
    assert here.admin.move("q/b") == 30
    assert {one.job.shard == TABLE.shard_of(one.job.key) for one in there.admin.waiting()} == {True}
    assert there.admin.move("q/a", "i3", "i4") == 2
    with pytest.raises(ConfigurationError, match="group"):
        here.admin.move("other")


def test_schedules_are_in_the_shards_of_their_names(queue: Any) -> None:
    assert queue.admin.schedule("often", b"x", every=0.2)
    assert queue.admin.schedule("daily", b"x", cron="0 3 * * *")
    assert not queue.admin.schedule("daily", b"x", cron="0 4 * * *")
    assert [one.name for one in queue.admin.schedules()] == ["often", "daily"]
    lease = queue.lease(block=20)
    assert lease.job.id.startswith("often@")
    assert lease.job.shard == TABLE.shard_of("often")
    assert queue.admin.unschedule("often")
    assert not queue.admin.unschedule("often")


def test_a_position_is_that_in_the_key_s_shard(queue: Any) -> None:
    for n in range(4):
        queue.enqueue(b"x", id=f"i{n}", key="k")
    assert [queue.admin.position(f"i{n}", key="k") for n in range(4)] == [0, 1, 2, 3]
    receipt = queue.enqueue(b"x")
    assert queue.admin.position(receipt.id) is not None
    with pytest.raises(ConfigurationError, match="no order between shards; give key="):
        queue.admin.position("i1")


def test_jobs_of_a_key_keep_their_order(queue: Any) -> None:
    queue.enqueue_many(
        [NewJob(b"%d %d" % (k, n), key=f"k{k}") for n in range(40) for k in range(5)]
    )
    by_key: dict[str, list[int]] = {}
    for job in drained(queue):
        by_key.setdefault(job.key, []).append(int(job.payload.split()[1]))
    assert by_key == {f"k{k}": [*range(40)] for k in range(5)}


def test_follow_ups_in_their_shard(connect: Any) -> None:
    """A follow-up with the same key, or with neither key nor id, is enqueued by the same script.
    For others see test_hand_over.
    """
    queue, after = connect("q/a", shards=SHARDS), connect("q/b", shards=SHARDS)
    queue.enqueue(b"x", key="k")
    lease = queue.lease()
    far = next(f"k{n}" for n in range(99) if TABLE.shard_of(f"k{n}") != TABLE.shard_of("k"))
    with pytest.raises(ConfigurationError, match="group"):
        lease.complete(then=[NewJob(b"y", queue="other")])
    with pytest.raises(ValueError, match="in a sharded queue these are the ids"):
        lease.complete(then=[NewJob(b"y", id="5-0", key=far)])
    assert lease.complete(
        then=[
            NewJob(b"y", queue="q/b"),
            NewJob(b"z", id=far, key="k", queue="q/b"),
            NewJob(b"w", key="k"),
        ]
    )
    assert {one.job.shard for one in [*after.admin.waiting(), *queue.admin.waiting()]} == {
        TABLE.shard_of("k")
    }
    assert (after.counts().waiting, queue.counts().waiting) == (2, 1)
    assert after.find(far, key="k").job.payload == b"z"


def test_conditions_of_one_job(queue: Any) -> None:
    assert queue.enqueue(b"x", id="i", if_exists=Throttle(60)).outcome == "added"
    assert queue.enqueue(b"x", id="i", if_exists=Throttle(60)).outcome == "dropped"
    assert queue.enqueue(b"x", id="j", key="k", if_exists=Replace()).outcome == "added"
    assert queue.enqueue(b"y", id="j", key="k", if_exists=Replace()).outcome == "replaced"
    with pytest.raises(ConfigurationError, match="one job at a time"):
        queue.enqueue_many([NewJob(b"x", id="k", if_exists=Replace())])


@pytest.mark.differs("parts")
@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"rate": Rate(5)}, "per_shard=True"),
        ({"rate": [Rate(5, per_shard=True), Rate(5, key="tenant")]}, "key='headrace-key'"),
    ],
    ids=["rate", "rate of a header"],
)
def test_what_counts_a_whole_queue_is_refused(
    connect: Any, options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(ConfigurationError, match=instead):
        connect(shards=2, **options)
    connect(**options)


def test_a_rate_of_each_key_is_exact(queue: Any, connect: Any) -> None:
    """Its jobs are in one shard."""
    limited = connect(shards=SHARDS, rate=Rate(3, per=600, key="headrace-key"))
    queue.enqueue_many([NewJob(b"x", id=f"{n}", key=f"k{n % 20}") for n in range(200)])
    leases = limited.lease_many(200)
    assert Counter(lease.job.key for lease in leases) == {f"k{n}": 3 for n in range(20)}
    assert limited.lease() is None
    queue.enqueue_many([b"without"] * 7)
    assert len(limited.lease_many(200)) == 7
    with pytest.raises(ValueError, match="give key= the same"):
        queue.enqueue(b"x", headers={"headrace-key": "k1"})
    with pytest.raises(ValueError, match="give key= the same"):
        leases[0].complete(then=[NewJob(b"x", key="k2", headers={"headrace-key": "k1"})])


def test_a_rate_per_shard_admits_its_share_in_each(
    queue: Any, connect: Any, client: redis.Redis
) -> None:
    """The burst is divided and is at least one. A token comes back after S times as long."""
    limited = connect(shards=SHARDS, rate=Rate(2 * SHARDS, per=600, per_shard=True))
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(200)])
    assert Counter(lease.job.shard for lease in limited.lease_many(200)) == dict.fromkeys(
        range(SHARDS), 2
    )
    assert limited.lease() is None
    for seconds, more in ((280, 0), (30, SHARDS)):  # 300 for each, as if they had passed
        for part in TABLE.shards:
            key = Keys.of("q").at(part).key("rates")
            client.zadd(
                key,
                {
                    name: at - 1000 * seconds
                    for name, at in client.zrange(key, 0, -1, withscores=True)
                },
            )
        assert len(limited.lease_many(200)) == more
    fewer = connect("fewer", shards=SHARDS, rate=Rate(2, per=600, per_shard=True))
    fewer.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(200)])
    assert len(fewer.lease_many(200)) == SHARDS
    by_tenant = connect(
        "tenants", shards=SHARDS, rate=Rate(SHARDS, per=600, key="tenant", per_shard=True)
    )
    by_tenant.enqueue_many(
        [NewJob(b"x", key=f"k{n}", headers={"tenant": f"{n % 2}"}) for n in range(200)]
    )
    found = Counter(
        (lease.job.shard, lease.job.headers["tenant"]) for lease in by_tenant.lease_many(200)
    )
    assert found == {(shard, tenant): 1 for shard in range(SHARDS) for tenant in "01"}


def test_a_rate_per_shard_follows_the_number_of_shards(queue: Any, connect: Any) -> None:
    limited = connect(shards=SHARDS, rate=Rate(24, per=600, per_shard=True))
    assert queue.admin.reshard(2 * SHARDS).shards == 2 * SHARDS
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(300)])
    assert Counter(lease.job.shard for lease in limited.lease_many(300)) == dict.fromkeys(
        range(SHARDS, 3 * SHARDS), 2
    )


def test_a_rate_per_shard_of_a_plain_queue_is_the_whole_rate(connect: Any) -> None:
    queue = connect("plain", shards=1, rate=Rate(3, per=600, per_shard=True))
    queue.enqueue_many([b"x"] * 5)
    assert len(queue.lease_many(5)) == 3


@pytest.mark.parametrize("shards", [0, -1, 257, 1.5, "6", True])
def test_bad_numbers_of_shards_are_refused(connect: Any, shards: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shards"):
        connect(shards=shards)


def test_one_operation_reaches_one_shard(queue: Any) -> None:
    for make in (
        queue.ops.counts,
        lambda: queue.ops.result("i"),
        lambda: queue.ops.enqueue([b"x"]),
    ):
        with pytest.raises(ConfigurationError, match="has 6 shards"):
            make()


def test_events_of_all_shards(connect: Any, queue: Any, client: redis.Redis) -> None:
    """There is one stream of events with the order of each shard, over one connection to each
    server."""
    with listening(queue, "added", "completed") as told:
        assert len(client.client_list(_type="pubsub")) == max(1, connect.server.binary.masters)
        receipts = queue.enqueue_many(
            [NewJob(b"x", key=f"k{n % 20}", id=f"i{n}") for n in range(60)]
        )
        plain = queue.enqueue(b"x")
        found = told(61)
        assert {(event.kind, event.queue) for event in found} == {("added", "q")}
        for part in TABLE.shards:
            keys = {f"k{n}" for n in range(20) if part.covers(f"k{n}")}
            names = [one.id for n, one in enumerate(receipts) if f"k{n % 20}" in keys]
            assert [event.id for event in found if event.id in names] == names
        assert plain.id in {event.id for event in found}
        assert queue.cancel(plain.id)
        assert queue.lease().complete()
        assert told(1)[0].kind == "completed"
    until(lambda: not client.client_list(_type="pubsub"), "the end of the connection")


def test_events_of_new_shards(connect: Any, queue: Any) -> None:
    """A listener follows the table."""
    stop = threading.Event()

    def produce() -> None:
        with connect.server.queue("q", shards=SHARDS) as other:
            other.admin.reshard(4)
            while not stop.wait(0.01):
                other.enqueue(b"x")

    producing = threading.Thread(target=produce)
    with listening(queue, "added") as told:
        producing.start()
        try:
            heard = set[int]()
            until(
                lambda: heard.add(int(told(1)[0].id.partition("@")[2])) or heard >= {6, 7, 8, 9},
                "all new shards",
            )
        finally:
            stop.set()
            producing.join()


@pytest.mark.slow
def test_events_on_the_command_line(newest: Server) -> None:
    arguments = ("events", "q", "--limit", "6", "--timeout", f"{PATIENCE:g}", "--json")
    with newest.queue("q", shards=SHARDS) as queue, newest.client() as client:
        queue.enqueue(b"x")
        with started(
            *arguments, url=newest.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as program:
            stats = [Keys.of("q").at(part).key("stats") for part in TABLE.shards]
            until(lambda: all(client.hexists(key, "listening") for key in stats), "a listener")
            queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(6)])
            out, _ = program.communicate()
        names = {json.loads(line)["id"] for line in out.splitlines()}
        assert len(names) == 6
        assert all(queue.find(name) for name in names)


def test_an_event_stream_that_is_let_go_of_ends(newest: Server) -> None:
    """The stream ends without a close."""
    with newest.queue("q", shards=SHARDS) as queue, newest.client() as client:
        events = queue.events(timeout=PATIENCE).__enter__()
        assert client.client_list(_type="pubsub")
        del events
        until(lambda: not client.client_list(_type="pubsub"), "the end of the connection")


def test_the_group_has_one_table(connect: Any, queue: Any, client: redis.Redis) -> None:
    queue.enqueue(b"x")
    table: Any = client.hgetall(Keys.of("q").shards)
    assert {key.decode(): row.decode() for key, row in table.items()} == {
        **TABLE.rows(),
        "queue:q": "1",
    }
    connect("q/of-the-group", shards=SHARDS).enqueue(b"x")
    other = connect("q/of-the-group", shards=SHARDS + 1)
    for call in (
        other.counts,
        lambda: other.enqueue(b"x"),
        lambda: other.enqueue_many([b"x"]),
        other.lease,
    ):
        with pytest.raises(ShardsMismatch, match="have 6 shards: give shards=6") as raised:
            call()
        assert raised.value.shards == SHARDS
    assert queue.counts().enqueued == 1


@pytest.mark.differs("one server")
def test_discovery_names_it_once(queue: Any, client: redis.Redis) -> None:
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(40)])
    assert headrace.queues(client) == ["q"]
    queue.lease()
    assert {worker.queue for worker in headrace.workers(client)} == {"q"}


def test_a_stream_is_divided(queue: Any) -> None:
    assert queue.enqueue_stream(b"%d" % n for n in range(12_000)) == 12_000
    assert queue.counts().waiting == 12_000
    until(lambda: sum(shard.counts.waiting for shard in queue.admin.shards()) == 12_000)


@pytest.mark.differs("parts")
def test_a_full_queue_is_a_plain_queue_s(connect: Any) -> None:
    queue = connect(max_waiting=1)
    queue.enqueue(b"x", key="k")
    with pytest.raises(QueueFull):
        queue.enqueue(b"x", key="k")


def test_the_command_line_takes_it(queue: Any, server: Server, within: Program) -> None:
    queue.enqueue_many([NewJob(b"x", id=f"i{n}", key=f"k{n}") for n in range(40)])

    def run(*words: str) -> Any:
        return within(*words, at=server.url)

    rows = [json.loads(line) for line in run("shards", "q", "--json").stdout.splitlines()]
    assert [row["number"] for row in rows] == [*range(SHARDS)]
    assert sum(row["counts"]["waiting"] for row in rows) == 40
    lines = run("shards", "q").stdout.splitlines()
    assert len(lines) == SHARDS + 1
    assert json.loads(run("reshard", "q", "--json").stdout) == {
        "shards": SHARDS,
        "draining": 0,
        "left": 0,
        "done": True,
    }
    assert run("reshard", "q", "8").stdout == "8 shards; 40 jobs are in 6 older ones\n"
    assert run("reshard", "q", "1").returncode == 2
    assert run("queues").stdout == "q\n"
    assert run("enqueue", "q", "y", "--id", "from the shell").returncode == 0
    assert queue.find("from the shell").job.payload == b"y"
    assert len(run("list", "q", "--json").stdout.splitlines()) == 41
    assert run("cancel", "q", "i7").returncode == 0
    assert queue.find("i7") is None
    assert run("purge", "q", "--yes").returncode == 0
    assert queue.counts().waiting == 0
    assert run("trends", "q").returncode == 2
    for told in (run("stats", "q", "--json"), run("stats", "--json")):
        assert json.loads(told.stdout)["q"]["completed"] == queue.counts().completed
    assert json.loads(run("show", "q", "--json").stdout)["shards"] == SHARDS + 8
