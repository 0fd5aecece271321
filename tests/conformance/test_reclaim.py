"""The return of jobs without a worker process. Causes are expired leases, dead workers, lost
replies and foreign commands.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import AsyncQueue, Counts, Queue
from headrace._protocol.limits import CLAIMS_PER_SCRIPT
from tests.support.awaiting import PATIENCE, until
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote

TERM = 0.1  # seconds after which a peer here may declare others dead
SWEEPS_S = TERM / 10  # between sweeps: a pause of half a term begins it again


def tidy(queue):
    """Let the next lease call look after other workers at once."""
    for leaser in getattr(queue._leaser, "_leasers", {None: queue._leaser}).values():
        leaser.tidy_at = float("-inf")


def lease_soon(queue, n=1):
    """Lease repeatedly until there is a job."""
    got = []

    def found():
        tidy(queue)
        got.extend(queue.lease_many(n))
        return got

    until(found, "a job to come back")
    return got


def waiter(server):
    """Make a client that may block for long."""
    return server.client(socket_timeout=2 * PATIENCE)


def ring(queue, client):
    """Let a blocked read take a job, and leave its reply unread."""
    assert client.execute_command(*queue.ops.wait(PATIENCE))


def works(queue, name, jobs, **options):
    """Lease so many jobs as a worker of this name that is silent from then on. Return their
    entries."""
    assert queue._run(queue.ops.beat(name, 0.001, register=True))
    held = []
    while len(held) < jobs:
        grant = queue._run(queue.ops.lease(name, jobs - len(held), **options))
        assert grant.claims
        held += [claim.entry for claim in grant.claims]
    return held


def declare(queue, workers=1, moved=0):
    """Let a peer that is older than its timeout look. It must declare so many workers dead and move
    so many jobs."""
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    counted = [0, 0]

    def done():
        swept = queue._run(queue.ops.reclaim("peer", TERM))
        counted[0] += swept.declared
        counted[1] += swept.moved
        return counted[0] >= workers and counted[1] >= moved

    until(done, "a declaration of death", longest=SWEEPS_S)
    assert counted == [workers, moved]


def consumers(client):
    return {
        consumer["name"].decode() for consumer in client.xinfo_consumers(key("jobs"), "workers")
    }


def entries(leases):
    return [lease.claim.entry for lease in leases]


def payloads_of(leases):
    return [lease.job.payload for lease in leases]


# -- every lease call looks after the others -------------------------------------------------------


@pytest.mark.differs("parts")
def test_at_most_once_a_second(queue, client):
    """A lease call is one script, and once a second there is another, which looks after the
    others."""
    queue.lease()  # loads the scripts, too
    began = time.monotonic()
    client.config_resetstat()
    for _ in range(50):
        assert queue.lease() is None
    calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert 50 <= calls <= 50 + (time.monotonic() - began) + 1


@pytest.mark.differs("order")
def test_a_lease_call_reclaims_and_promotes(connect):
    """Nothing but lease calls is needed for expired leases and due delays."""
    one, two = connect(), connect()
    one.enqueue(b"late", delay=0.01)
    leased(one, b"hung", duration=0.001)
    one.enqueue(b"new")
    got = {}
    while len(got) < 3:
        got |= {lease.job.payload: lease.job.attempt for lease in lease_soon(two, 3)}
    assert got == {b"hung": 2, b"new": 1, b"late": 1}


def test_one_who_waits_is_given_what_is_due(connect):
    """A blocked lease call returns for a due delay, and for a lease that expires meanwhile."""
    one, two = connect(), connect()
    one.enqueue(b"late", delay=0.05)
    assert two.lease(block=PATIENCE).job.payload == b"late"
    leased(one, b"hung", duration=0.05)
    assert two.lease(block=PATIENCE).job.payload == b"hung"


# -- expired leases --------------------------------------------------------------------------------


def test_mixed_durations(connect):
    """Each lease ends after its own duration, its last renewal's, or its queue's. Jobs come back in
    that order."""
    brief, long = connect(lease=0.001), connect(lease=LONG)
    long.enqueue_many([b"%d" % i for i in range(8)])
    kept = [brief.lease(duration=LONG), long.lease(), brief.lease(), long.lease(duration=0.2)]
    kept[2].renew(LONG)
    kept[3].renew(LONG)
    ended = [brief.lease(), long.lease(duration=0.001), long.lease(), brief.lease(duration=LONG)]
    assert ended[2].renew(0.001)
    assert ended[3].renew(0.001)
    expire(long, 4)
    assert payloads(long.admin.waiting()) == [b"4", b"5", b"6", b"7"]
    assert [lease.renew() for lease in ended] == [False] * 4
    assert [lease.job.attempt for lease in long.lease_many(9)] == [2] * 4
    assert [lease.renew() for lease in kept] == [True] * 4
    assert present(long) == {"leased": 8}


@pytest.mark.differs("keys")
def test_a_deadline_ends_with_its_lease(connect, client):
    """The duration of a lease does not affect the next one, after it expired, was settled, or lost
    its group."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = [queue.lease(duration=LONG) for _ in range(5)]
    leases.append(queue.lease(duration=0.001))
    expire(queue)
    assert leases[0].release()
    assert leases[1].retry()
    assert leases[2].complete()
    assert leases[3].dead_letter("no")
    assert queue.cancel(leases[4].job.id)
    assert client.zcard(key("leases")) == 0
    got = queue.lease_many(9)
    assert payloads_of(got) == [b"0", b"5", b"1"]
    assert queue.renew(got[0], 0.001)
    client.xgroup_destroy(key("jobs"), "workers")
    until(
        lambda: (
            client.time()[0] * 1000 + client.time()[1] // 1000
            > client.zscore(key("leases"), got[0].claim.entry)
        )
    )
    again = queue.lease_many(9)
    assert payloads_of(again) == [b"0", b"5", b"1"]
    assert queue._run(queue.ops.reclaim("sweeper", 10.0)).moved == 0
    assert present(queue) == {"leased": 3, "dead": 1}


def test_a_long_pending_list(connect):
    """An expired lease is found behind many live ones. Each sweep goes on where the last one
    stopped."""
    one, two = connect(lease=LONG), connect(lease=LONG)
    one.enqueue_many([b"x"] * 1100)
    one.lease_many(1100)
    leased(one, b"hung", duration=0.001)
    sweeps = 0
    while not (lease := two.lease()):
        tidy(two)
        sweeps += 1
        assert sweeps <= 7  # three pages, twice, if it had not expired when the first sweep came by
    assert lease.job.payload == b"hung"


@pytest.mark.differs("keys")
def test_consumers_that_nobody_registered(connect, client):
    """Jobs that a foreign consumer read by hand come back after the lease of the client that
    looks."""
    queue = connect(lease=0.001)
    queue.enqueue(b"a")
    queue.counts()
    client.xgroup_create(key("jobs"), "workers", "0")
    assert client.xreadgroup("workers", "alien", {key("jobs"): ">"})
    assert connect(lease=LONG)._run(queue.ops.reclaim("peer", TERM)).moved in (0, 1)
    (lease,) = lease_soon(queue)
    assert (lease.job.payload, lease.job.attempt) == (b"a", 2)


# -- the dead --------------------------------------------------------------------------------------


@pytest.mark.differs("ops")
def test_the_dead_and_only_the_dead(connect, client):
    """A dead worker's jobs go to the front in their order, with an attempt spent. Other workers
    keep theirs."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(8)])
    assert queue._run(queue.ops.beat("alive", LONG, register=True))
    first = works(queue, "ghost", 2)
    mine = queue.lease()
    second = works(queue, "ghost", 2, duration=LONG)  # even a lease of its own ends with its worker
    (kept,) = queue._run(queue.ops.lease("alive", 1)).claims
    declare(queue, workers=1, moved=4)
    assert payloads(queue.admin.waiting()) == [b"0", b"1", b"3", b"4", b"6", b"7"]
    assert [(state.worker, state.entry) for state in queue.admin.running()] == [
        (mine.claim.worker, mine.claim.entry),
        ("alive", kept.entry),
    ]
    assert "ghost" not in consumers(client)
    assert {worker.name for worker in queue.admin.workers()} == {"alive", "peer", mine.worker}
    assert client.zcard(key("leases")) == 0
    got = queue.lease_many(9)
    assert entries(got[:4]) == first + second
    assert [lease.job.attempt for lease in got] == [2, 2, 2, 2, 1, 1]
    assert queue._run(queue.ops.beat("ghost", 1.0)) is False
    assert queue._run(queue.ops.lease("ghost", 1)) is None
    assert mine.complete(fenced=True)


@pytest.mark.differs("ops")
def test_the_dead_hold_many(connect, client):
    """One call can't move all of its jobs. The worker is told at once, and is removed when it holds
    none."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(1100)])
    held = works(queue, "ghost", 2 * CLAIMS_PER_SCRIPT)
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    swept = []
    until(
        lambda: swept.append(queue._run(queue.ops.reclaim("peer", TERM))) or swept[-1].declared,
        longest=SWEEPS_S,
    )
    assert (swept[-1].moved, swept[-1].more, present(queue)["leased"]) == (
        CLAIMS_PER_SCRIPT,
        True,
        CLAIMS_PER_SCRIPT,
    )
    assert queue._run(queue.ops.lease("ghost", 1)) is None
    assert "ghost" in consumers(client)
    until(lambda: swept.append(queue._run(queue.ops.reclaim("peer", TERM))) or swept[-1].moved)
    assert (swept[-1].moved, swept[-1].declared, swept[-1].more) == (CLAIMS_PER_SCRIPT, 0, False)
    assert "ghost" not in consumers(client)
    assert entries(queue.lease_many(2 * CLAIMS_PER_SCRIPT)) == held


@pytest.mark.differs("ops")
def test_nobody_is_declared_dead_by_a_newcomer(connect):
    """A worker younger than a timeout moves no job, though all others look dead."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    works(queue, "ghost", 1)
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    swept = [
        queue._run(queue.ops.reclaim(name, LONG)) for name in ("peer", "peer", "nobody", "ghost")
    ]
    assert [(sweep.moved, sweep.declared) for sweep in swept] == [(0, 0)] * 4
    assert queue.lease().job.payload == b"b"
    assert queue.lease() is None
    assert present(queue) == {"leased": 2}


@pytest.mark.differs("ops")
def test_poison(connect):
    """A job is dead after max_attempts expired leases, and the next job is not. Releases and a dead
    worker do not count.
    """
    queue = connect(lease=LONG, max_attempts=3)
    assert queue.enqueue(b"poison", id="p", headers={"a": "b"}).added
    queue.enqueue(b"good")
    assert queue.lease().release()
    works(queue, "ghost", 1)
    declare(queue, workers=1, moved=1)
    for attempt in (2, 3, 4):
        assert queue.lease().release()
        assert queue.lease(duration=0.001).job.attempt == attempt
        expire(queue)
    assert queue.lease().job.payload == b"good"
    (letter,) = queue.admin.dead()
    assert (letter.job.id, letter.job.payload, letter.job.attempt) == ("p", b"poison", 4)
    assert (letter.job.headers, letter.reason.startswith("no attempts left")) == ({"a": "b"}, True)
    assert present(queue) == {"leased": 1, "dead": 1}
    assert queue.enqueue(b"another", id="p").added


def test_poison_lets_nothing_new_ahead(connect):
    """However many jobs have no attempts left, parked jobs behind them are leased before new
    ones."""
    queue = connect(lease=LONG, max_attempts=1)
    queue.enqueue_many([b"%d" % i for i in range(30)])
    leases = [*queue.lease_many(20, duration=0.001), *queue.lease_many(5)]
    expire(queue, 20)
    assert all(lease.release() for lease in leases[20:])
    assert [queue.lease().job.payload for _ in range(7)] == [b"%d" % i for i in range(20, 27)]
    assert present(queue) == {"leased": 7, "waiting": 3, "dead": 20}


@pytest.mark.differs("ops")
def test_the_dead_of_long_ago(connect, client):
    """No worker is old enough to declare others dead. Workers that left long ago still leave no
    keys."""
    queue = connect(lease=LONG)
    queue.enqueue(b"a")
    for number in range(30):
        grant = queue._run(queue.ops.lease(f"brief-{number}", 1, ttl=0.001))
        assert len(grant.claims) == (number == 0)
    assert len(queue.admin.workers()) == 30

    def one_left():
        queue._run(queue.ops.reclaim("passer-by", TERM))
        return len(queue.admin.workers()) == 1

    until(one_left)
    assert [worker.name for worker in queue.admin.workers()] == ["brief-0"]  # which holds a job
    assert consumers(client) - {"parked"} == {"brief-0"}
    assert present(queue) == {"leased": 1}


# -- the front, and who is woken -------------------------------------------------------------------


@pytest.mark.differs("ops")
def test_parked_before_new(connect):
    """Parked jobs of every cause come before all new ones, oldest first."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = [queue.lease(duration=LONG), queue.lease(duration=LONG), queue.lease(duration=0.001)]
    works(queue, "ghost", 2)
    queue.enqueue(b"new")
    assert leases[1].release()
    declare(queue, workers=1, moved=3)
    assert leases[0].release()
    assert present(queue) == {"parked": 5, "waiting": 2}
    assert queue.admin.peek().payload == b"0"
    order = [b"%d" % i for i in range(6)] + [b"new"]
    assert payloads(queue.admin.waiting()) == order
    assert [queue.lease().job.payload for _ in order] == order


def released(queue, lease):
    assert lease.release()


def expired(queue, lease):
    assert lease.renew(0.001)
    expire(queue)


def died(queue, lease):
    assert lease.complete()
    queue.enqueue(b"x")
    works(queue, "ghost", 1)
    declare(queue, workers=1, moved=1)


def left(queue, lease):
    assert lease.complete()
    queue.enqueue(b"x")
    works(queue, "leaver", 1)
    assert queue._run(queue.ops.leave("leaver")) == (1, "0")


def due(queue, lease):
    assert lease.complete()
    queue.enqueue(b"x", delay=0.001)
    promote(queue)


def due_again(queue, lease):
    assert lease.retry(0.001)
    promote(queue)


@pytest.mark.differs("ops")
@pytest.mark.parametrize("act", [released, expired, died, left, due, due_again])
def test_a_blocked_reader_is_woken(connect, server, client, act):
    """The blocked client is woken when a job comes back, and finds it."""
    queue, other = connect(lease=LONG), connect(lease=LONG)
    lease = leased(queue)
    with waiter(server) as blocked, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(blocked.execute_command, *other.ops.wait(PATIENCE))
        until(lambda: client.info("clients")["blocked_clients"])
        act(queue, lease)
        assert reply.result(2 * PATIENCE), "it slept until its time was over"
    assert other.lease().job.payload == b"x"


def test_a_reader_that_never_comes(newest):
    """The reader died. The next client leases the job, which wakes another after a second."""
    with (
        Queue("q", url=newest.url) as queue,
        waiter(newest) as blocked,
        ThreadPoolExecutor(1) as pool,
    ):
        queue.lease()
        queue.enqueue(b"a")
        ring(queue, blocked)
        reply = pool.submit(blocked.execute_command, *queue.ops.wait(PATIENCE))
        until(lambda: queue._run(queue.ops.reclaim("peer", 10.0)) and reply.done())
        assert reply.result()
        assert queue.lease().job.payload == b"a"


@pytest.mark.differs("ops")
def test_wake_tokens_do_not_pile_up(queue, client):
    """Vanished readers leave nothing on the stream or in its pending list."""
    queue.enqueue(b"a")
    for _ in range(40):
        assert queue.lease().release()
        assert client.execute_command(*queue.ops.wait(PATIENCE))
    assert client.xlen(key("wake")) <= 16
    tidy(queue)
    assert queue.lease()
    assert client.xpending(key("wake"), "workers")["pending"] == 0
    assert client.xlen(key("wake")) <= 16


# -- lost replies, cancelled reads -----------------------------------------------------------------


@pytest.mark.differs("ops")
def test_a_lost_reply(connect, client):
    """Jobs of a read whose reply was lost still wait for the next lease, with their first
    attempt."""
    one, two = connect(), connect()
    assert one.lease() is None
    one.enqueue_many([b"a", b"b", b"c"])
    ring(one, client)
    ring(two, client)
    assert present(one) == {"waiting": 3}
    assert payloads(one.admin.waiting()) == [b"a", b"b", b"c"]
    states = list(one.admin.waiting())
    assert [one.find(state.job.id).state for state in states] == ["waiting"] * 3
    assert list(one.admin.running()) == []
    got = two.lease_many(9)
    assert [(lease.job.payload, lease.job.attempt, lease.token) for lease in got] == [
        (b"a", 1, 1),
        (b"b", 1, 1),
        (b"c", 1, 1),
    ]
    assert two.complete_many(got, fenced=True) == [True] * 3
    assert present(one) == {}


@pytest.mark.differs("ops")
def test_what_rang_may_be_removed(queue, client):
    """A job of a lost reply is cancelled, purged and deleted like any waiting job."""
    queue.lease()
    receipts = queue.enqueue_many([b"a", b"b", b"c", b"d"])
    for _ in receipts:
        ring(queue, client)
    assert queue.cancel(receipts[1].id)
    assert queue.admin.cancel_payload(b"c") == 1
    assert queue.admin.purge() == 2
    assert queue.counts() == Counts(enqueued=4, cancelled=2, deleted=2)
    queue.enqueue(b"e")
    ring(queue, client)
    assert queue.admin.delete() == 1
    assert queue.lease() is None
    assert queue.counts() == Counts(enqueued=5, cancelled=2, deleted=3)


@pytest.mark.differs("ops")
def test_a_lease_call_asked_again(queue, client):
    """The repeated call returns the same jobs, which were delivered once."""
    queue.enqueue_many([b"a", b"b"])
    op = queue.ops.lease("w", 2, ttl=LONG)
    first, again = (
        op.decode(client.execute_command(*op.wire("EVAL", "lane", "1"))) for _ in range(2)
    )
    assert [claim.entry for claim in first.claims] == [claim.entry for claim in again.claims]
    assert [(claim.count, claim.job.attempt) for claim in again.claims] == [(1, 1)] * 2
    assert present(queue) == {"leased": 2}


@pytest.mark.differs("blocked")
def test_a_cancelled_lease_call(server, client):
    """A coroutine that is cancelled while it blocks, when a job has just come, takes no delivery
    with it."""

    async def story():
        async with AsyncQueue("q", url=server.url, **server.binary.options, lease=LONG) as queue:
            got = []
            for number in range(20):
                task = asyncio.create_task(queue.lease(block=PATIENCE))
                async with asyncio.timeout(PATIENCE):
                    while not task.done() and not client.info("clients")["blocked_clients"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                client.xadd(key("jobs"), {"data": str(number)})
                task.cancel()
                got += [
                    lease for lease in await asyncio.gather(task, return_exceptions=True) if lease
                ]
            assert sum(isinstance(lease, asyncio.CancelledError) for lease in got) > 0
            got += await queue.lease_many(30)
            leases = [lease for lease in got if not isinstance(lease, asyncio.CancelledError)]
            assert [lease.job.attempt for lease in leases] == [1] * 20

    asyncio.run(story())


# -- what others do by hand ------------------------------------------------------------------------

STATES = ("leased", "parked", "idle", "new")


class Scene:
    """Two jobs in each state, and a delayed one."""

    def __init__(self, connect, client):
        self.client = client
        self.holder = connect(lease=LONG)
        self.queue = connect(lease=LONG)
        self.holder.enqueue_many([f"{state}{number}" for state in STATES for number in (1, 2)])
        leases = self.holder.lease_many(4)
        self.leases, parked = leases[:2], leases[2:]
        for lease in parked:
            assert lease.release()
        self.entry = {lease.job.payload.decode(): lease.claim.entry for lease in leases}
        for _ in range(2):
            ring(self.holder, client)
        self.entry |= {
            state.job.payload.decode(): state.entry for state in self.holder.admin.waiting()
        }
        self.holder.enqueue(b"delayed", delay=LONG)
        assert present(self.holder) == {"leased": 2, "parked": 2, "waiting": 4, "delayed": 1}

    def first(self):
        """Return the first entry of each state."""
        return [self.entry[f"{state}1"] for state in STATES]

    def look(self):
        """Use every verb that reads."""
        counts = self.queue.counts()
        assert min(counts.waiting, counts.parked, counts.leased, counts.delayed) >= 0
        assert self.client.xlen(key("jobs")) == counts.waiting + counts.parked + counts.leased
        listed = [
            state.job.payload.decode()
            for state in [*self.queue.admin.waiting(), *self.queue.admin.running()]
        ]
        for name, entry in self.entry.items():
            state = self.queue.find(entry)
            assert (state is not None) == bool(self.client.xrange(key("jobs"), entry, entry))
            assert state is not None or name not in listed
        peeked = self.queue.admin.peek()
        assert peeked is None or peeked.payload.decode() in listed
        # one without a body is lost when it is due
        assert len(list(self.queue.admin.delayed())) <= counts.delayed
        self.queue.admin.workers()
        return listed

    def drain(self):
        """Lease all jobs, complete them, and return their payloads."""
        tidy(self.queue)
        leases = self.queue.lease_many(20)  # after a SETID, some come twice
        won = self.queue.complete_many(leases)
        return sorted(
            lease.job.payload.decode() for lease, done in zip(leases, won, strict=True) if done
        )


def names(*states, numbers=(1, 2)):
    return sorted(f"{state}{number}" for state in states for number in numbers)


def xdel(scene):
    assert scene.client.xdel(key("jobs"), *scene.first()) == 4


def xtrim(scene):
    assert scene.client.xtrim(key("jobs"), maxlen=0, approximate=False) == 8


def xack(scene):
    assert scene.client.xack(key("jobs"), "workers", *scene.first()) == 3


def delete_holder(scene):
    assert scene.client.xgroup_delconsumer(key("jobs"), "workers", scene.leases[0].worker) == 2


def delete_reserved(scene):
    assert [
        scene.client.xgroup_delconsumer(key("jobs"), "workers", name) for name in ("parked", "idle")
    ] == [2, 2]


def destroy(scene):
    assert scene.client.xgroup_destroy(key("jobs"), "workers")


def set_id(scene):
    scene.client.xgroup_setid(key("jobs"), "workers", "0")


def claim(scene):
    assert scene.client.xclaim(key("jobs"), "workers", "alien", 0, [scene.entry["leased1"]])


def drop(*parts):
    def drop(scene):
        scene.client.delete(*map(key, parts))

    drop.__name__ = " ".join(parts)
    return drop


EVERYTHING = names(*STATES)
AVAILABLE = names("parked", "idle", "new")
# What was done; what can still be leased; whether the holder's jobs can still be completed by it;
# how many are lost.
BY_HAND = [
    (xdel, names("parked", "idle", "new", numbers=[2]), [False, True], 4),
    (xtrim, [], [False, False], 8),
    (xack, names("parked", "idle", numbers=[2]) + names("new"), [True, True], 0),
    (delete_holder, AVAILABLE, [True, True], 0),
    (delete_reserved, names("new"), [True, True], 0),
    (destroy, EVERYTHING, [False, False], 0),
    (set_id, EVERYTHING, [False, False], 0),
    (claim, AVAILABLE, [True, True], 0),
    (drop("jobs"), [], [False, False], 8),
    (drop("wake"), AVAILABLE, [True, True], 0),
    (drop("ids", "released", "leases"), AVAILABLE, [True, True], 0),
    (drop("workers", "registered"), AVAILABLE, [True, True], 0),
    (drop("delayed"), AVAILABLE, [True, True], 1),
    (drop("bodies"), AVAILABLE, [True, True], 0),
]


@pytest.mark.sampled
@pytest.mark.differs("ops")
@pytest.mark.parametrize(
    ("act", "left", "won", "lost"), BY_HAND, ids=[row[0].__name__ for row in BY_HAND]
)
def test_by_hand(connect, client, act, left, won, lost):
    """Foreign commands stop no job. Jobs that still exist are leased, and missing ones are
    counted."""
    scene = Scene(connect, client)
    act(scene)
    scene.look()
    assert scene.drain() == sorted(left)
    assert [lease.complete() for lease in scene.leases] == won
    assert [lease.release() or lease.renew() or lease.retry() for lease in scene.leases] == [
        False,
        False,
    ]
    scene.look()
    assert scene.queue.counts().lost == lost
    assert scene.queue.lease() is None
    scene.queue.admin.delete()
    receipt = scene.queue.enqueue(b"again")
    assert scene.queue.lease(block=PATIENCE).job.id == receipt.id
    assert scene.queue.counts().leased == scene.queue.counts().present == 1


@pytest.mark.differs("keys")
def test_deleted_while_it_was_leased(connect, client):
    """Entries that were removed by XDEL are never leased. Until their leases end they show as
    leased or parked, and fewer jobs show as waiting. The sum is right at once, and no count is
    below 0.
    """
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = [queue.lease(duration=0.001), queue.lease(duration=LONG), queue.lease(duration=LONG)]
    assert leases[2].release()
    client.xdel(key("jobs"), *entries(leases))
    assert queue.counts() == Counts(parked=1, leased=2, enqueued=6)
    assert queue.counts().lost == 3
    client.xtrim(key("jobs"), maxlen=0, approximate=False)
    counts = queue.counts()
    assert (counts.waiting, counts.parked, counts.leased, counts.lost) == (0, 0, 0, 6)
    queue.enqueue(b"new")
    until(lambda: queue._run(queue.ops.reclaim("sweeper", 10.0)).moved)
    (lease,) = queue.lease_many(9)
    assert lease.job.payload == b"new"
    assert leases[1].complete() is False
    counts = queue.counts()
    assert (counts.present, counts.leased, counts.lost) == (1, 1, 6)
    assert client.xpending(key("jobs"), "workers")["pending"] == 1


@pytest.mark.differs("ops")
def test_a_registration_that_was_removed(connect, client):
    """The worker registers again, and can declare others dead again."""
    queue = connect(lease=LONG)
    queue.enqueue(b"a")
    works(queue, "ghost", 1)
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    client.delete(key("registered"))
    declare(queue, workers=1, moved=1)
    assert queue.lease().job.payload == b"a"


@pytest.mark.differs("keys")
@pytest.mark.parametrize("how", ["lease", "reclaim", "repair", "idle"])
def test_tokens_grow_though_the_group_is_lost(connect, client, how):
    """The counts are lost with a group, after a failover or XGROUP DESTROY. No token repeats, and
    no stale claim fits.
    """
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    stale = queue.lease_many(2)
    tokens = [lease.token for lease in stale]
    for _ in range(3):
        client.xgroup_destroy(key("jobs"), "workers")
        if how == "reclaim":
            tidy(queue)
        elif how == "repair":
            assert queue.admin.repair().groups == 1
        elif how == "idle":
            client.xgroup_create(key("jobs"), "workers", "0")
            client.xgroup_destroy(key("jobs"), "workers")
            queue.counts()
            queue._run(queue.ops.reclaim("healer", 10.0))
            ring(queue, client)
        leases = queue.lease_many(9)
        assert payloads_of(leases) == [b"a", b"b"]
        assert [lease.job.attempt for lease in leases] == [1, 1]
        assert min(lease.token for lease in leases) > max(tokens)
        assert [lease.release() for lease in stale] == [False, False]
        tokens += [lease.token for lease in leases]
        stale = leases
    queue.enqueue(b"new")
    assert queue.lease().token == 1
    assert client.hget(key("stats"), "healed") is None
    assert [lease.complete(fenced=True) for lease in stale] == [True, True]
    assert queue.counts().lost == 0


def test_the_first_group_is_none_that_was_lost(connect):
    """Jobs that wait before the queue was first looked at are delivered for the first time."""
    queue = connect()
    queue.enqueue_many([b"a", b"b"])
    assert [lease.token for lease in queue.lease_many(2)] == [1, 1]


@pytest.mark.differs("keys", "removed")
@pytest.mark.parametrize("gone", ["declared", "removed", "no registration"])
def test_a_queue_that_was_declared_dead_leases_on(queue, connect, client, gone):
    """A client that leases without a worker hears nothing of it. Its jobs run elsewhere, and it
    goes on."""
    queue.enqueue_many([b"a", b"b", b"c"])
    before = queue.lease()
    name = queue._leaser.name
    if gone == "declared":
        client.zadd(key("workers"), {name: 0})
    elif gone == "removed":
        assert connect().admin.fail_worker(name) == 1
        assert name not in consumers(client)
    else:
        client.zrem(key("workers"), name)
        client.hdel(key("registered"), name)
    after = queue.lease_many(2)
    assert len(after) == 2
    assert {worker.name for worker in queue.admin.workers() if worker.alive} >= {after[0].worker}
    assert all(lease.complete(fenced=True) for lease in after)
    assert before.complete(fenced=True) is (gone != "removed")
