"""The verbs of an operator. They pause and resume, drain, move, expire leases and fail workers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import ConfigurationError, Counts, NewJob, Queue
from headrace.inspect import Repairs
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import LONG, key, leased, payloads, present, promote, somebody_waits

MANY = 450  # more than two pages


# -- pause -----------------------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_nothing_is_handed_out_while_paused(queue, client):
    """No waiting, parked or due job is leased. Leased jobs go on, and jobs can be enqueued."""
    queue.enqueue_many([b"parked", b"leased", b"waiting"])
    parked, running = queue.lease_many(2)
    parked.release()
    queue.enqueue(b"late", delay=0.05)
    assert [
        queue.admin.paused(),
        queue.admin.pause(),
        queue.admin.paused(),
        queue.admin.pause(),
    ] == [
        False,
        True,
        True,
        False,
    ]
    promote(queue)
    queue.enqueue(b"new")
    assert queue.lease() is None
    assert queue.lease_many(10, block=0.1) == []
    assert running.renew()
    assert present(queue) == {"parked": 1, "leased": 1, "waiting": 3}
    assert running.complete()
    assert client.xpending(key("jobs"), "workers")["pending"] == 1  # no blocked read was given one
    assert [queue.admin.resume(), queue.admin.paused(), queue.admin.resume()] == [
        True,
        False,
        False,
    ]
    assert [lease.job.payload for lease in queue.lease_many(10)] == [
        b"parked",
        b"waiting",
        b"late",
        b"new",
    ]


@pytest.mark.differs("blocked")
def test_who_waits_notices_at_once(queue, meanwhile, client):
    """A blocked lease of a paused queue blocks on the server, and wakes when the queue goes on."""
    queue.enqueue(b"x")
    queue.admin.pause()
    before = client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
    meanwhile(lambda other: other.admin.resume())
    assert queue.lease(block=PATIENCE).job.payload == b"x"
    assert client.info("commandstats")["cmdstat_xread"]["calls"] - before < 100


def test_everybody_who_waits_is_woken(newest_connect, newest):
    """One call wakes all clients, even more than the number of written tokens."""
    queue = newest_connect()
    queue.admin.pause()
    queue.enqueue_many([b"x"] * 20)
    barrier = threading.Barrier(21)

    def wait(_: int) -> bytes:
        with Queue("q", url=newest.url) as other:
            barrier.wait(PATIENCE)
            return other.lease(block=PATIENCE).complete()

    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(wait, number) for number in range(20)]
        barrier.wait(PATIENCE)
        queue.admin.resume()
        assert all(one.result(PATIENCE) for one in waiting)
    assert queue.counts() == Counts(enqueued=20, completed=20)


def test_a_pause_lasts(queue, connect, client):
    """The server keeps the pause, so other clients see it. Only `resume` and `delete` end it. Other
    queues go on."""
    queue.admin.pause()
    queue.enqueue(b"x")
    queue.admin.purge()
    assert connect().admin.paused()
    assert connect("other").enqueue(b"x").added
    assert connect("other").lease() is not None
    assert queue.admin.delete() == 0
    assert not queue.admin.paused()
    assert client.hget(key("stats"), "paused") is None


@pytest.mark.differs("ops")
def test_what_comes_back_meanwhile_wakes_nobody(queue, client):
    """A sweep wakes clients for the jobs that it moves, but not while the queue is paused."""
    leased(queue, b"x", duration=0.01)
    queue.admin.pause()
    moved = 0

    def swept() -> bool:
        nonlocal moved
        moved += queue._run(queue.ops.reclaim("sweeper", 10.0)).moved
        return moved == 1

    until(swept)
    assert client.xlen(key("wake")) == 0
    assert queue.admin.resume()
    assert queue.lease().job.attempt == 2


# -- drain -----------------------------------------------------------------------------------------


def test_drain(queue, server):
    """The call waits until no job waits, runs or is delayed. Dead letters stay."""
    assert queue.admin.drain(0)
    leased(queue).dead_letter("no")
    assert queue.admin.drain(0)
    queue.enqueue_many([b"a", NewJob(b"b", delay=0.2)])
    assert not queue.admin.drain(0)
    assert not queue.admin.drain(0.05)

    def work() -> None:
        with server.queue("q") as other:
            for _ in range(2):
                other.lease(block=PATIENCE).complete()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        assert queue.admin.drain(PATIENCE)
        done.result(PATIENCE)
    assert present(queue) == {"dead": 1}


# -- move ------------------------------------------------------------------------------------------


@pytest.mark.differs("order")
def test_move_everything_that_waits(connect):
    """Jobs move in order with ids, headers, attempts and times. Leased and dead jobs stay. The
    counts of both queues add up.
    """
    source, target = connect("g/a"), connect("g/b")
    target.enqueue(b"first")
    leased(source, b"dead").dead_letter("no")
    parked = leased(source, b"parked", headers={"a": "b"})
    leased(source, b"tried", id="t", headers={"c": "d"}).retry()
    source.enqueue(b"plain")
    source.enqueue(b"late", id="l", delay=LONG)
    running = source.lease_many(1)
    parked.release()
    before = {
        state.job.payload: state.job for state in [*source.admin.waiting(), *source.admin.delayed()]
    }
    assert source.admin.move("g/b") == 3
    assert present(source) == {"leased": 1, "dead": 1}
    assert present(target) == {"waiting": 3, "delayed": 1}
    assert source.counts().deleted == 3
    assert target.counts().enqueued == 4
    assert payloads(target.admin.waiting()) == [b"first", b"parked", b"plain"]
    for state in [*target.admin.waiting(), *target.admin.delayed()][1:]:
        job, was = state.job, before[state.job.payload]
        headers = {**was.headers, "headrace-from": "g/a"}
        assert (job.id, job.headers, job.attempt) == (was.id, headers, was.attempt)
        assert job.enqueued_at == was.enqueued_at
        assert target.find(job.id).job.payload == job.payload
        assert source.find(job.id) is None
    assert running[0].complete(fenced=True)
    assert source.enqueue(b"again", id="l").added  # free here, taken there
    assert not target.enqueue(b"again", id="l").added
    assert target.lease_many(3)[1].job.attempt == 1


def test_attempts_move_along(connect):
    """Deliveries are counted on, also after an expired lease. Tokens grow."""
    source, target = connect("g/a", max_attempts=2), connect("g/b", max_attempts=2)
    source.enqueue(b"x", id="x")
    first = source.lease()
    assert source.admin.expire() == 1
    assert source.admin.move("g/b", "x") == 1
    second = target.lease()
    assert (second.job.id, second.job.attempt) == ("x", 2)
    assert second.token > first.token
    assert target.admin.expire("x") == 1
    assert target.lease() is None
    assert present(target) == {"dead": 1}


@pytest.mark.differs("order")
def test_move_some(connect):
    """Jobs with the given ids move, wherever they wait. Other jobs stay, and unknown ids are
    ignored."""
    source, target = connect("g/a"), connect("g/b")
    plain = source.enqueue(b"plain").id
    parked = source.lease()
    source.enqueue_many(
        [NewJob(b"a", id="a"), NewJob(b"b", id="b"), NewJob(b"c", id="c", delay=LONG)]
    )
    parked.release()
    held = source.lease_many(2)[1]
    assert held.job.id == "a"
    source.enqueue(b"d", id="d")
    assert source.admin.move("g/b", "d", "nobody", "c", "a", "9-9", "d") == 2
    assert source.admin.move("g/b", plain) == 0  # leased
    assert {state.job.id for state in [*target.admin.waiting(), *target.admin.delayed()]} == {
        "c",
        "d",
    }
    assert {state.job.id for state in [*source.admin.waiting(), *source.admin.running()]} == {
        plain,
        "a",
        "b",
    }
    assert held.release()
    assert source.admin.move("g/b", "a") == 1
    assert target.counts().lost == source.counts().lost == 0


def test_an_id_that_is_taken_there_stays(connect):
    source, target = connect("g/a"), connect("g/b")
    target.enqueue_many([NewJob(b"there", id="x"), NewJob(b"there", id="y")])
    source.enqueue_many([NewJob(b"here", id="x"), b"plain", NewJob(b"here", id="y", delay=LONG)])
    assert source.admin.move("g/b") == 1
    assert source.admin.move("g/b", "x", "y") == 0
    assert present(source) == {"waiting": 1, "delayed": 1}
    assert payloads(target.admin.waiting()) == [b"there", b"there", b"plain"]


@pytest.mark.slow
def test_move_many(newest_connect):
    """Parked, waiting and delayed jobs move page by page and in order. Some jobs between them
    stay."""
    source, target = newest_connect("g/a"), newest_connect("g/b")
    target.enqueue_many([NewJob(b"x", id=f"taken-{number}") for number in range(MANY)])
    source.enqueue_many([b"parked %d" % number for number in range(MANY)])
    for lease in source.lease_many(MANY):
        lease.release()
    for number in range(MANY):
        source.enqueue_many([NewJob(b"x", id=f"taken-{number}"), b"new %d" % number])
    source.enqueue_many(
        [NewJob(b"late", id=f"l{number}", delay=LONG + number) for number in range(MANY)]
    )
    assert source.admin.move("g/b") == 3 * MANY
    assert present(source) == {"waiting": MANY}
    moved = payloads(target.admin.waiting())[MANY:]
    assert moved == [
        *(b"parked %d" % n for n in range(MANY)),
        *(b"new %d" % n for n in range(MANY)),
    ]
    assert [state.job.id for state in target.admin.delayed()] == [
        f"l{number}" for number in range(MANY)
    ]
    ids = [f"l{number}" for number in range(MANY)]
    assert target.admin.move("g/c", *ids) == MANY
    assert newest_connect("g/c").counts().delayed == MANY


@pytest.mark.differs("keys")
@pytest.mark.parametrize("fenced", [False, True])
def test_an_id_that_is_the_name_of_its_own_entry_ends_with_its_job(connect, client, server, fenced):
    """A job without an id is enqueued and moved within a millisecond. Its new entry ID equals its
    id."""
    source, target = connect("g/a"), connect("g/b")

    def met() -> bool:
        with server.queue("g/a") as queue:  # in one round trip
            queue._executor.run_all(
                [queue.ops.enqueue([b"x"]), queue.ops.move("g/b", "new:0 -", [])]
            )
        if any(fields[b"id"] == entry for entry, fields in client.xrange(key("jobs", "g/b"))):
            return True
        source.admin.purge()
        return target.admin.purge() < 0

    until(met, "both in one millisecond")
    name = next(target.admin.waiting()).job.id
    assert not target.enqueue(b"y", id=name).added
    assert target.find(name).state == "waiting"
    assert target.lease().complete(fenced=fenced)
    assert client.hgetall(key("ids", "g/b")) == {}
    assert target.enqueue(b"y", id=name).added
    assert target.admin.repair() == Repairs()


def test_a_moved_job_wakes_who_waits_there(connect, server):
    source = connect("g/a")
    source.enqueue(b"x")

    def wait() -> bytes:
        with server.queue("g/b") as target:
            return target.lease(block=PATIENCE).job.payload

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        somebody_waits(server)
        assert source.admin.move("g/b") == 1
        assert waiting.result(PATIENCE) == b"x"


def test_move_to_another_group(newest_connect):
    """On one primary a job can move to any queue. The record of the call is in the slot of the
    source."""
    source, target = newest_connect("g/a"), newest_connect("h/b")
    source.enqueue_many([NewJob(b"x", id="x"), NewJob(b"late", id="l", delay=LONG), b"y"])
    assert source.admin.move("h/b", "x") == 1
    assert source.admin.move("h/b") == 2
    assert present(target) == {"waiting": 2, "delayed": 1}
    assert payloads(target.admin.waiting()) == [b"x", b"y"]
    assert source.counts().deleted == target.counts().enqueued == 3
    assert source.counts().lost == target.counts().lost == 0


def test_move_to_another_group_on_a_cluster(newest, colour):
    """The server refuses the whole call. Within a group it works on a cluster too."""
    with Server(newest.binary, extra=["--cluster-enabled", "yes"]) as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(
                lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"),
                "its slots",
            )
        connect = Connect(colour, server)
        source = connect("g/a")
        source.enqueue(b"x")
        with pytest.raises(
            ConfigurationError, match="one script reaches one group only, and none was moved"
        ):
            source.admin.move("h/b")
        assert present(source) == {"waiting": 1}
        assert source.admin.move("g/b") == 1
        connect.close()


@pytest.mark.parametrize("to", ["g/a", "a b", ""])
def test_where_nothing_can_move(newest_connect, to):
    """The queue itself and an invalid name are refused before a call is sent."""
    queue = newest_connect("g/a", url="redis://127.0.0.1:1/0")
    with pytest.raises(ConfigurationError, match=r"itself|queue name"):
        queue.admin.move(to)


@pytest.mark.parametrize("ids", [("a", ""), ("a", 3), ("a", "\n")])
def test_bad_ids(newest_connect, ids):
    queue = newest_connect("g/a", url="redis://127.0.0.1:1/0")
    for verb in (lambda: queue.admin.move("g/b", *ids), lambda: queue.admin.expire(*ids)):
        with pytest.raises((ValueError, TypeError), match="id"):
            verb()


# -- expire ----------------------------------------------------------------------------------------


@pytest.mark.differs("order")
def test_all_leases_expire(queue, connect):
    """Expired jobs go to the front, oldest first, with the attempt spent. Settlements of their
    holders return False."""
    ids = [receipt.id for receipt in queue.enqueue_many([b"x"] * 3)]
    first = queue.lease_many(2, duration=LONG)
    second = connect().lease()
    queue.enqueue(b"new")
    assert queue.admin.expire() == 3
    assert queue.admin.expire() == 0
    assert present(queue) == {"parked": 3, "waiting": 1}
    assert not any(
        [first[0].release(), first[1].renew(), second.retry(), first[0].complete(fenced=True)]
    )
    again = queue.lease_many(4)
    assert [lease.job.id for lease in again[:3]] == ids
    assert [lease.job.attempt for lease in again] == [2, 2, 2, 1]
    assert all(lease.complete() for lease in again)
    assert not first[0].complete()


@pytest.mark.differs("order")
def test_some_leases_expire(queue):
    """The named leased jobs expire, with and without their own ids."""
    plain = queue.enqueue(b"a").id
    queue.enqueue_many([NewJob(b"b", id="b"), NewJob(b"c", id="c")])
    leases = queue.lease_many(3)
    queue.enqueue_many([NewJob(b"d", id="d"), NewJob(b"e", id="e", delay=LONG)])
    assert queue.admin.expire(plain, "b", "d", "e", "nobody", "9-9") == 2
    assert present(queue) == {"parked": 2, "leased": 1, "waiting": 1, "delayed": 1}
    assert leases[2].renew()


def test_more_leases_than_a_page(newest_connect):
    queue = newest_connect()
    queue.enqueue_many([b"x"] * 1100)
    queue.lease_many(1100)
    assert queue.admin.expire() == 1100
    assert present(queue) == {"parked": 1100}


# -- fail_worker -----------------------------------------------------------------------------------


@pytest.mark.differs("parts")
def test_a_worker_is_failed(connect):
    """Its jobs go to the front, oldest first, with the attempts spent. Other workers keep theirs.
    It may register again.
    """
    failed, other = connect(), connect()
    failed.enqueue_many([b"a", b"b", b"c"])
    held, kept = failed.lease_many(2), other.lease()
    assert other.admin.fail_worker(held[0].worker) == 2
    assert other.admin.fail_worker(held[0].worker) == 0
    assert [worker.name for worker in other.admin.workers()] == [kept.worker]
    assert present(other) == {"parked": 2, "leased": 1}
    assert not held[0].complete(fenced=True)
    assert not held[1].renew()
    assert [(lease.job.payload, lease.job.attempt) for lease in failed.lease_many(3)] == [
        (b"a", 2),
        (b"b", 2),
    ]


@pytest.mark.differs("keys")
def test_a_foreign_consumer_is_failed(queue, client):
    """The consumer never registered. Its jobs come back all the same."""
    leased(queue).complete()
    queue.enqueue_many([b"a", b"b"])
    client.xreadgroup("workers", "foreign", {key("jobs"): ">"}, count=1)
    assert queue.admin.fail_worker("nobody") == 0
    assert queue.admin.fail_worker("foreign") == 1
    assert present(queue) == {"parked": 1, "waiting": 1}
    assert "foreign" not in {
        row["name"].decode() for row in client.xinfo_consumers(key("jobs"), "workers")
    }


def test_a_worker_with_more_than_a_page(newest_connect):
    queue = newest_connect()
    queue.enqueue_many([b"x"] * 1100)
    name = queue.lease_many(1100)[0].worker
    assert newest_connect().admin.fail_worker(name) == 1100
    assert present(queue) == {"parked": 1100}
    assert queue.admin.workers() == []


@pytest.mark.parametrize("name", ["parked", "idle", "", "a b", 3])
def test_who_is_no_worker(newest_connect, name):
    queue = newest_connect(url="redis://127.0.0.1:1/0")
    with pytest.raises((ValueError, TypeError), match="name"):
        queue.admin.fail_worker(name)


def test_a_queue_that_nobody_has_used(queue):
    admin = queue.admin
    assert [admin.expire(), admin.expire("x"), admin.fail_worker("w"), admin.move("q/to")] == [
        0,
        0,
        0,
        0,
    ]
    assert not admin.paused()
