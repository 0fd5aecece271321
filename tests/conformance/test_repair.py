"""Repair. Each kind of damage by foreign commands is found, mended and reported, and nothing else
is changed."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import Counts, NewJob, RetryLater
from headrace.inspect import Repairs
from tests.scripts.conftest import dumps
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.planted import plant_scripts
from tests.support.servers import Server
from tests.support.steps import LONG, key, leased, present

pytestmark = pytest.mark.differs("keys")

JOBS, IDS, DELAYED, BODIES = key("jobs"), key("ids"), key("delayed"), key("bodies")
NOTHING = Repairs()


def old(client):
    """Tell whether the server's streams lack the count of added entries, as on 6.2."""
    return client.info("server")["redis_version"].startswith("6.")


def pending(client):
    """Return the pending entries as {entry: (consumer, deliveries)}."""
    rows = client.xpending_range(JOBS, "workers", "-", "+", 10_000)
    return {
        row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"])
        for row in rows
    }


def drained(queue):
    """Lease and complete all jobs. Return their payloads in order."""
    leases = queue.lease_many(1000)
    assert queue.complete_many(leases) == [True] * len(leases)
    return [lease.job.payload for lease in leases]


def mended(queue, client, **expected):
    """Check that a repair finds exactly this, then nothing, and the law holds. A dry run finds it
    too and changes nothing.
    """
    before = dumps(client)
    assert queue.admin.repair(dry_run=True) == Repairs(**expected)
    assert dumps(client) == before
    assert queue.admin.repair() == Repairs(**expected)
    assert queue.admin.repair() == NOTHING
    assert queue.counts().lost == 0


# -- entries that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["XDEL", "XTRIM"])
def test_pending_entries_without_a_job(queue, client, how):
    """The entry was removed while it was leased, parked or a wake token. Its claim is dropped with
    all its records."""
    queue.lease()
    names = ["leased", "parked", "idle", "waiting"]
    queue.enqueue_many([NewJob(name.encode(), id=name) for name in names])
    assert queue.lease(duration=LONG).job.id == "leased"
    assert queue.lease().release()
    assert queue.find("parked").state == "parked"
    assert client.execute_command(*queue.ops.wait(PATIENCE))
    assert {owner for owner, _ in pending(client).values()} >= {"parked", "idle"}
    if how == "XDEL":
        client.xdel(JOBS, *(entry for entry, _ in client.xrange(JOBS)))
    else:
        client.xtrim(JOBS, maxlen=0)
    assert queue.counts().lost == 4
    mended(queue, client, dangling=3, ids_released=4, deleted=4)
    assert pending(client) == {}
    assert not client.exists(key("leases"), key("released"), IDS)
    assert queue.counts() == Counts(enqueued=4, deleted=4)
    assert all(
        receipt.added for receipt in queue.enqueue_many([NewJob(b"x", id=name) for name in names])
    )
    assert len(drained(queue)) == 4


# -- jobs that nobody would have been handed -------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["XACK", "XGROUP DELCONSUMER", "XGROUP SETID", "made again at its end"]
)
def test_stranded_jobs_go_to_the_front(queue, client, how):
    """The group counts them as delivered, but no pending list has them. They are parked in order
    before new jobs."""
    queue.enqueue_many([b"%d" % i for i in range(5)])
    leases = [] if how == "XGROUP SETID" else queue.lease_many(3, duration=LONG)
    entries = [entry for entry, _ in client.xrange(JOBS)]
    if how == "XACK":
        client.xack(JOBS, "workers", *entries[:3])
    elif how == "XGROUP DELCONSUMER":
        client.xgroup_delconsumer(JOBS, "workers", leases[0].worker)
    else:
        queue.lease(duration=0.001) if leases else queue._run(queue.ops.reclaim("v", 10.0))
        if how == "XGROUP SETID":
            client.xgroup_setid(JOBS, "workers", entries[2])
        else:
            client.xgroup_destroy(JOBS, "workers")
            client.xgroup_create(JOBS, "workers", entries[2])
    new = queue.enqueue(b"new")
    # leftovers: the deadline of the fourth, which waits again
    stale = 1 if how == "made again at its end" else 0
    mended(queue, client, stranded=3, leftovers=stale)
    assert pending(client) == {entry.decode(): ("parked", 1000) for entry in entries[:3]}
    assert [state.job.id for state in queue.admin.waiting()][:3] == [
        entry.decode() for entry in entries[:3]
    ]
    assert not client.exists(key("leases"))
    again = queue.lease_many(10)
    assert [lease.job.payload for lease in again] == [b"0", b"1", b"2", b"3", b"4", b"new"]
    assert again[-1].job.id == new.id
    assert [lease.job.attempt for lease in again] == [1] * 6
    for lease, before in zip(again, leases, strict=False):
        assert lease.token > before.token
        assert not any((before.release(), before.retry(), before.dead_letter("no"), before.renew()))
    assert queue.complete_many(again) == [True] * 6


def test_a_group_that_was_set_beyond_the_end(queue, client):
    """New jobs would never be delivered. The group is set to the end, and the jobs go to the
    front."""
    queue.lease()
    client.xgroup_setid(JOBS, "workers", "9999999999999-0")
    queue.enqueue_many([b"a", b"b"])
    assert queue.lease() is None
    mended(queue, client, groups=1, stranded=2)
    queue.enqueue(b"c")
    assert drained(queue) == [b"a", b"b", b"c"]


def test_a_group_that_was_set_back(queue, client):
    """Leased jobs are not delivered again to others with count 1."""
    queue.enqueue_many([b"a", b"b", b"c"])
    a, b = queue.lease_many(2)
    client.xgroup_setid(JOBS, "workers", "0")
    mended(queue, client, groups=1)
    assert [lease.job.payload for lease in queue.lease_many(9)] == [b"c"]
    assert a.release()
    assert b.complete(fenced=True)


def test_a_group_that_was_destroyed(queue, client):
    """The group is made again from the start. Leased jobs are delivered again once, and may be
    completed meanwhile."""
    queue.enqueue_many([b"a", b"b", b"c"])
    a, _ = queue.lease_many(2, duration=LONG)
    client.xgroup_destroy(JOBS, "workers")
    mended(queue, client, groups=1)
    assert not client.exists(key("leases"))
    assert a.complete()
    assert drained(queue) == [b"b", b"c"]


def test_a_stream_that_was_deleted(queue, client):
    """All its jobs are gone and counted as lost. Later jobs of foreign producers are counted
    too."""
    queue.enqueue_many([b"x"] * 5)
    drained(queue)
    queue.enqueue_many([b"a", NewJob(b"b", id="b")])
    queue.lease()
    client.delete(JOBS)
    mended(queue, client, groups=1, ids_released=1, deleted=2)
    client.xadd(JOBS, {"data": b"foreign"})
    assert queue.counts() == Counts(
        waiting=1, enqueued=7 if old(client) else 8, completed=5, deleted=2
    )
    mended(queue, client, enqueued=1 if old(client) else 0)
    assert drained(queue) == [b"foreign"]


def test_a_wake_stream_that_was_deleted(queue, client, meanwhile):
    """The stream is made again. Parked jobs wake waiting clients."""
    lease = leased(queue)
    client.delete(key("wake"))
    mended(queue, client, groups=1)
    claim = lease.claim
    meanwhile(lambda other: other._run(other.ops.release([claim])))
    assert queue.lease(block=PATIENCE).job.id == lease.job.id


def test_a_stranded_job_wakes_who_waits(queue, client, meanwhile):
    """A stranded job wakes waiting clients like any parked job."""
    client.xack(JOBS, "workers", leased(queue, b"a").claim.entry)
    meanwhile(lambda other: other.admin.repair())
    assert queue.lease(block=PATIENCE).job.payload == b"a"


def test_attempts_of_a_stranded_job(connect, client):
    """Attempts of earlier rounds stay spent, and the attempt of this round is forgotten. The token
    grows each time."""
    queue = connect(max_attempts=2)
    leased(queue, b"a", id="a").retry()
    tokens, attempts = [], []
    for _ in range(4):
        lease = queue.lease()
        tokens.append(lease.token)
        attempts.append(lease.job.attempt)
        client.xack(JOBS, "workers", lease.claim.entry)
        mended(queue, client, stranded=1)
    assert attempts == [2] * 4
    assert tokens == sorted(set(tokens))
    lease = queue.lease()
    assert lease.retry(reason="spent")
    assert queue.find("a").state == "dead"
    assert queue.admin.redrive() == 1
    redriven = queue.lease()
    assert (redriven.job.attempt, redriven.token > lease.token) == (1, True)
    client.xack(JOBS, "workers", redriven.claim.entry)
    mended(queue, client, stranded=1)
    again = queue.lease()
    assert (again.job.attempt, again.token > redriven.token) == (1, True)
    assert again.complete()
    assert present(queue) == {}


# -- ids -------------------------------------------------------------------------------------------


def test_ids_of_jobs_that_are_gone_are_released(queue, client):
    """Markers that point to another job's entry, to nothing, or to a missing delayed job are
    removed too."""
    one = queue.enqueue(b"a")
    named = queue.enqueue(b"b", id="b")
    wrong = {
        "gone": "5-0",
        "other": one.id,
        "another": client.hget(IDS, "b"),
        "none": "x",
        "late": "delayed",
        "x": "",
    }
    client.hset(IDS, mapping=wrong)
    mended(queue, client, ids_released=len(wrong))
    assert list(client.hkeys(IDS)) == [b"b"]
    assert not queue.enqueue(b"again", id=named.id).added


def test_jobs_take_their_ids(queue, client):
    """A job whose marker is missing or wrong gets its id back in every state, unless another job
    has that id."""
    late = NewJob(b"d", id="late", delay=LONG)
    queue.enqueue_many([NewJob(b"a", id="a"), NewJob(b"b", id="b"), NewJob(b"c", id="c"), late])
    queue.lease()
    before = client.hgetall(IDS)
    client.hdel(IDS, "a", "b", "late")
    client.hset(IDS, "c", "5-0")
    foreign = client.xadd(JOBS, {"data": b"e", "id": b"foreign"})
    client.xadd(JOBS, {"data": b"f", "id": b"c"})  # a second one: it comes too late
    mended(queue, client, ids_taken=5, enqueued=2 if old(client) else 0)
    assert client.hgetall(IDS) == before | {b"foreign": foreign}
    assert not any(
        queue.enqueue(b"x", id=name).added for name in ("a", "b", "c", "late", "foreign")
    )
    assert queue.cancel("foreign")
    assert queue.cancel("late")


# -- what is delayed -------------------------------------------------------------------------------


def test_a_delayed_job_without_its_body(queue, client):
    """The job is lost. Its due time, its id and the record of its releases are removed."""
    queue.enqueue(b"a", id="a", delay=LONG)
    queue.enqueue(b"b", id="b", delay=LONG)
    client.hset(key("released"), "a", 1)
    client.hdel(BODIES, "a")
    assert queue.counts().lost == 0
    mended(queue, client, hollow=1, ids_released=1, deleted=1)
    assert queue.counts() == Counts(delayed=1, enqueued=2, deleted=1)
    assert not client.exists(key("released"))
    assert queue.enqueue(b"a", id="a").added


def test_a_delayed_job_without_its_due_time(queue, client):
    """The due time is unknown, so the job is due now."""
    queue.enqueue(b"a", id="a", delay=LONG)
    client.zrem(DELAYED, "a")
    client.hdel(IDS, "a")
    assert queue.counts().lost == 1
    mended(queue, client, undated=1, ids_taken=1)
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload) == ("a", b"a")
    assert lease.complete()
    assert not client.exists(IDS, BODIES, DELAYED)


@pytest.mark.differs(None)
def test_a_body_that_is_none(queue, client):
    """Unreadable data stops no other job."""
    assert queue.counts().delayed == 0  # the first use with shards refuses jobs without shards
    client.hset(BODIES, "a", b"\xc1nonsense")
    client.zadd(DELAYED, {"a": 4e12})
    queue.admin.repair()
    assert queue.admin.repair() == NOTHING


# -- leftovers, workers ----------------------------------------------------------------------------


def test_leftovers(queue, client):
    """Deadlines and releases of missing or unleased jobs are removed."""
    waiting = queue.enqueue(b"b").id
    queue.enqueue(b"c", id="c", delay=LONG)
    lease = queue.lease(duration=LONG)
    assert lease.release()
    lease = queue.lease(duration=LONG)
    waiting = queue.enqueue(b"x").id
    client.zadd(key("leases"), {"5-0": 4e12, "nonsense": 1, waiting: 4e12})
    client.hset(key("released"), mapping={"5-0": 1, "nonsense": 1, "c": 1, "gone": 3})
    mended(queue, client, leftovers=6)
    assert client.zrange(key("leases"), 0, -1) == [lease.claim.entry.encode()]
    assert set(client.hkeys(key("released"))) == {lease.claim.entry.encode(), b"c"}


def test_workers_that_are_known_by_half(queue, client):
    """A registration without a heartbeat is removed. A heartbeat without a registration gets
    one."""
    lease = leased(queue)
    client.hset(key("registered"), "gone", "1000 60000")
    client.hdel(key("registered"), lease.worker)
    mended(queue, client, workers=2)
    assert client.hkeys(key("registered")) == [lease.worker.encode()]
    assert [worker.name for worker in queue.admin.workers()] == [lease.worker]
    assert lease.renew()


# -- the law of conservation -----------------------------------------------------------------------


def test_the_law_holds_again(queue, client):
    """Entries that were removed by hand count as deleted, and uncounted ones as enqueued. Each is
    counted once."""
    queue.enqueue_many([b"x"] * 6)
    client.xdel(JOBS, *(entry for entry, _ in client.xrange(JOBS, count=2)))
    assert queue.counts().lost == 2
    mended(queue, client, deleted=2)
    for _ in range(3):
        client.xadd(JOBS, {"data": b"foreign"})
    mended(queue, client, enqueued=3 if old(client) else 0)
    assert queue.counts() == Counts(waiting=7, enqueued=9, deleted=2)
    assert queue.lease().complete()
    queue.enqueue(b"y")
    assert queue.counts().lost == 0


def test_lost_counters(queue, client):
    """The counters start again from the entries that are there and the stream's count of added
    ones."""
    queue.enqueue_many([b"x"] * 5)
    assert queue.lease().complete()
    client.delete(key("stats"))
    queue.admin.repair()
    assert queue.admin.repair() == NOTHING
    gone = 0 if old(client) else 1
    assert queue.counts() == Counts(waiting=4, enqueued=4 + gone, deleted=gone)


# -- when there is nothing -------------------------------------------------------------------------


def test_a_queue_that_is_not_there_stays_so(queue, client):
    """Looking creates no key."""
    assert queue.admin.repair() == NOTHING
    assert [name for name in client.keys("*") if b":lane:" not in name] == []


class Life:
    """A queue that is used at random."""

    def __init__(self, queue: Any, client: redis.Redis, seed: int) -> None:
        self.queue, self.client, self.random = queue, client, random.Random(seed)
        self.leases: list[Any] = []

    def ring(self) -> None:
        """Let a client wait, and go before it is told."""
        if self.client.exists(key("wake")):
            self.client.execute_command(*self.queue.ops.wait(0.001))

    def step(self) -> None:
        """Do one random thing. Things that remove many jobs are rare."""
        choose, queue = self.random.choice, self.queue
        name = choose([None, *"abcdef"])
        happenings = [
            self.ring,
            lambda: queue.enqueue(b"x", id=name, delay=choose([None, None, 0.001, LONG])),
            lambda: queue.enqueue_many([b"y", NewJob(b"z", id=name), b"y"]),
            lambda: self.leases.extend(
                queue.lease_many(choose([1, 3]), duration=choose([None, 0.001, LONG]))
            ),
            lambda: self.leases.extend(queue.lease_many(2)),
            lambda: queue.lease(at_most_once=True),
            lambda: queue.cancel(name or "a"),
            queue.admin.redrive,
            lambda: queue._run(queue.ops.reclaim("sweeper", 10.0)),
            lambda: queue._run(queue.ops.leave(queue._leaser.name)),
        ]
        if self.random.random() < 0.02:
            happenings = [
                queue.admin.purge,
                queue.admin.purge_dead,
                queue.admin.delete,
                lambda: queue.admin.cancel_payload(b"y"),
            ]
        elif self.leases and self.random.random() < 0.6:
            lease = choose(self.leases)
            happenings = [
                lambda: lease.complete(b"r", then=[NewJob(b"follow", id=name)]),
                lambda: lease.complete(fenced=True),
                lambda: queue.complete_many(self.leases[:3]),
                lease.release,
                lambda: lease.retry(choose([0.0, 0.001, LONG])),
                lambda: lease.dead_letter("why"),
                lambda: lease.renew(choose([None, LONG])),
            ]
        choose(happenings)()
        del self.leases[:-20]


@pytest.mark.differs("ops")
def test_our_own_operations_break_nothing(connect, client):
    """A random series of all operations leaves no damage after any step."""
    queue = connect(max_attempts=3, dead_limit=5)
    life = Life(queue, client, seed=1)
    for step in range(200):
        life.step()
        assert queue.admin.repair() == NOTHING, step
    counts = queue.counts()
    assert counts.lost == 0
    assert min(counts.completed, counts.cancelled, counts.deleted) > 0


def running(kind: str, server: Server, handled: list[bytes]) -> Running:
    """Start a worker that defers each third job once and records its jobs."""
    worker = Running(kind, url=server.url)
    deferred: set[bytes] = set()

    @worker.handler("q", concurrency=16, **server.binary.options)
    def handle(job: Any) -> Any:
        if int(job.payload) % 3 == 0 and job.payload not in deferred:
            deferred.add(job.payload)
            raise RetryLater(int(job.payload) % 2 * 0.01)
        yield 0.004
        handled.append(job.payload)

    return worker


def jobs(first: int, number: int) -> list[NewJob]:
    """Return jobs with numbers as payloads, some with ids and some delayed."""
    delays = [None, None, None, None, 0.3]
    return [
        NewJob(b"%d" % n, id=f"i{n}" if n % 2 else None, delay=delays[n % 5])
        for n in range(first, first + number)
    ]


COLOURS = {"sync": "threads", "async": "tasks"}


@pytest.mark.differs(None)
def test_a_worker_at_work_breaks_nothing(connect, server, colour):
    """The repair finds no damage at any moment, even if several repairs run at once."""
    queue = connect()
    handled: list[bytes] = []
    with (
        running(COLOURS[colour], server, handled),
        server.queue("q") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        over = threading.Event()

        def look() -> int:
            looks = 0
            while not over.is_set():
                assert other.admin.repair() == NOTHING
                looks += 1
            return looks

        looking = pool.submit(look)
        try:
            for first in range(0, 600, 50):
                queue.enqueue_many(jobs(first, 50))
                assert queue.admin.repair() == NOTHING
            until(lambda: looking.done() or queue.counts().present == 0, "a queue that is drained")
        finally:
            over.set()
        assert looking.result() > 10
    assert sorted(map(int, handled)) == list(range(600))
    assert queue.admin.repair() == NOTHING


class Corruptor:
    """A client that sends forbidden commands, and knows which jobs it has removed."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client, self.random = client, random.Random(seed)
        self.removed: set[bytes] = set()
        self.done: dict[str, int] = {}

    def __call__(self) -> None:
        acts = (
            [self.remove] * 6
            + [self.forget] * 6
            + [self.unname, self.undate, self.unbody, self.dismiss] * 2
        )
        act = self.random.choice([*acts, self.forward, self.back, self.destroy])
        if act():
            self.done[act.__name__] = self.done.get(act.__name__, 0) + 1

    def remove(self, among: int = 100) -> bool:
        """XDEL without XACK, of one of the first jobs."""
        entries = self.client.xrange(JOBS, count=among)
        if not entries:
            return False
        entry, fields = self.random.choice(entries)
        if self.client.xdel(JOBS, entry):
            self.removed.add(fields[b"data"])
        return True

    def forget(self) -> bool:
        """XACK without XDEL."""
        entries = list(pending(self.client))
        return bool(entries and self.client.xack(JOBS, "workers", self.random.choice(entries)))

    def unname(self) -> bool:
        """HDEL of an id."""
        return bool(
            (names := self.client.hkeys(IDS)) and self.client.hdel(IDS, self.random.choice(names))
        )

    def undate(self) -> bool:
        """ZREM of a due time."""
        return bool(
            (names := self.client.zrange(DELAYED, 0, -1)) and self.client.zrem(DELAYED, names[0])
        )

    def unbody(self) -> bool:
        """HDEL of a delayed job's fields."""
        names = self.client.zrange(DELAYED, 0, -1)
        name = self.random.choice(names) if names else b""
        if not name.startswith(b"i") or not self.client.hdel(BODIES, name):
            return False
        self.removed.add(name[1:])
        return True

    def dismiss(self) -> bool:
        """Run XGROUP DELCONSUMER on the consumers of workers, of parked jobs and of wake tokens,
        whatever they hold."""
        names = [consumer["name"] for consumer in self.client.xinfo_consumers(JOBS, "workers")]
        return bool(
            names and self.client.xgroup_delconsumer(JOBS, "workers", self.random.choice(names))
        )

    def forward(self) -> bool:
        """XGROUP SETID to the end."""
        return bool(self.client.xgroup_setid(JOBS, "workers", "$"))

    def back(self) -> bool:
        """XGROUP SETID to the start."""
        return bool(self.client.xgroup_setid(JOBS, "workers", "0"))

    def destroy(self) -> bool:
        """XGROUP DESTROY, and another in its place, at the end."""
        with self.client.pipeline() as pipe:
            pipe.xgroup_destroy(JOBS, "workers").xgroup_create(JOBS, "workers", "$").execute()
        return True


def test_corruption_while_workers_run(connect, client, server, colour):
    """Every job that still exists is completed, and the counts are exact, although several clients
    repair (M-2)."""
    queue = connect()
    handled: list[bytes] = []
    corruptor = Corruptor(client, 7)
    total = 0
    every = (
        "stranded",
        "dangling",
        "ids_released",
        "ids_taken",
        "undated",
        "hollow",
        "leftovers",
        "deleted",
    )
    with (
        running(COLOURS[colour], server, handled),
        server.queue("q") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: client.exists(key("wake")), "a worker that leases")
        found = NOTHING
        while len(corruptor.done) < 9 or not all(getattr(found, kind) for kind in every):
            assert total < 10_000, (corruptor.done, found)
            queue.enqueue_many(jobs(total, 50))
            total += 50
            for _ in range(15):
                corruptor()
            for _ in range(4):
                corruptor.remove(among=8)  # which are leased
            meanwhile = pool.submit(other.admin.repair)
            found += queue.admin.repair()
            found += meanwhile.result(PATIENCE)
        queue.admin.repair()
        until(lambda: queue.counts().present == 0, f"a queue that is drained: {queue.counts()}")
    mended = queue.admin.repair()
    assert mended == Repairs(ids_released=mended.ids_released, leftovers=mended.leftovers)
    assert queue.admin.repair() == NOTHING
    assert queue.counts() == Counts(
        enqueued=total, completed=total - len(corruptor.removed), deleted=len(corruptor.removed)
    )
    assert set(handled) >= {b"%d" % n for n in range(total)} - corruptor.removed
    assert not client.exists(IDS, BODIES, DELAYED, key("leases"), key("released"))


def test_several_repairs_at_once_mend_each_damage_once(connect, client, server):
    """The reports add up to the damage, and the law holds."""
    queue = connect()
    queue.enqueue_many([NewJob(b"%d" % n, id=f"i{n}") for n in range(2000)])
    entries = [entry for entry, _ in client.xrange(JOBS)]
    queue.lease_many(1500)
    client.xdel(JOBS, *entries[:600])
    client.xack(JOBS, "workers", *entries[600:1200])
    client.hdel(IDS, *(f"i{n}" for n in range(1600, 1800)))
    others = [server.queue("q") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = sum(pool.map(lambda other: other.admin.repair(), others), queue.admin.repair())
    for other in others:
        other.close()
    assert found == Repairs(
        dangling=600, stranded=600, ids_released=600, ids_taken=200, deleted=600
    )
    assert queue.admin.repair() == NOTHING
    assert queue.counts() == Counts(waiting=500, parked=600, leased=300, enqueued=2000, deleted=600)


# -- dry runs --------------------------------------------------------------------------------------


def damaged(queue, client, seed):
    """Break much in a used queue, between two dry runs that agree."""
    life, corruptor = Life(queue, client, seed), Corruptor(client, seed)
    for _ in range(60):
        life.step()
    for _ in range(8):
        corruptor()
    before = dumps(client)
    found = queue.admin.repair(dry_run=True)
    assert dumps(client) == before
    return found


@pytest.mark.long
def test_a_dry_run_finds_what_a_repair_mends(connect, client):
    queue, total = connect(max_attempts=3, dead_limit=5), NOTHING
    queue.lease()  # so that there is a group
    for seed in range(20):
        found = damaged(queue, client, seed)
        assert queue.admin.repair() == found, seed
        total += found
    kinds = (
        "groups",
        "dangling",
        "stranded",
        "undated",
        "ids_released",
        "ids_taken",
        "leftovers",
        "deleted",
    )
    assert [kind for kind in kinds if not getattr(total, kind)] == []


def test_a_dry_run_of_a_group_that_was_lost_with_leases(queue, client):
    queue.enqueue_many([b"a", b"b"])
    queue.lease_many(2, duration=LONG)
    client.xgroup_destroy(JOBS, "workers")
    mended(queue, client, groups=1)


@pytest.mark.parametrize("written", ["HDEL", "ZADD", "XACK"])
def test_a_dry_run_that_writes_is_found(connect, client, monkeypatch, written):
    """Bugs are planted among the commands that a dry run may send."""
    plant_scripts(
        monkeypatch, [("repair", "local names = 'EXISTS", f"local names = '{written} EXISTS")]
    )
    queue = connect()
    with pytest.raises(AssertionError):  # noqa: PT012
        queue.enqueue_many([NewJob(b"a", id="a"), NewJob(b"b", id="b", delay=LONG), NewJob(b"c")])
        queue.lease_many(2)
        entry, *_ = (entry for entry, _ in client.xrange(JOBS))
        client.xdel(JOBS, entry)
        client.zrem(DELAYED, "b")
        mended(queue, client, dangling=1, undated=1, ids_released=1, deleted=1)


# -- servers that refuse ---------------------------------------------------------------------------


def test_a_key_of_another_type(connect, client):
    """The error names the key, and nothing is changed."""
    queue = connect()
    client.xack(JOBS, "workers", leased(queue).claim.entry)
    kept = client.dump(key("workers"))
    client.set(key("workers"), b"mine")
    with pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*headrace:\{q\}:q:workers"):
        queue.admin.repair()
    assert pending(client) == {}
    client.restore(key("workers"), 0, kept, replace=True)
    mended(queue, client, stranded=1)


def test_a_full_server(connect, client):
    """A full server can be repaired too."""
    queue = connect()
    queue.enqueue_many([NewJob(b"%d" % n, id=f"i{n}") for n in range(4)])
    leases = queue.lease_many(3)
    client.xdel(JOBS, leases[0].claim.entry)
    client.xack(JOBS, "workers", leases[1].claim.entry)
    client.hdel(IDS, "i2")
    client.zadd(DELAYED, {"hollow": 1})
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", "x")
        mended(
            queue, client, dangling=1, stranded=1, hollow=1, ids_released=1, ids_taken=1, deleted=1
        )
    finally:
        client.config_set("maxmemory", 0)
