"""Enqueueing under conditions. A queue may be full, and a job's id may be known."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import (
    AsyncQueue,
    Counts,
    Debounce,
    NewJob,
    QueueFull,
    Rate,
    Receipt,
    Replace,
    Throttle,
)
from headrace._net.aio.pool import CALLS_AT_ONCE
from headrace._protocol.limits import BYTES_PER_SCRIPT
from headrace.errors import StreamStopped
from tests.support.awaiting import PATIENCE, until
from tests.support.facts import each
from tests.support.servers import Server, binaries
from tests.support.steps import LONG, expire, finds_no_room, key, leased, payloads, promote
from tests.workers.test_handlers import calls

NOT_BEGUN = {  # ways to be there without having been begun
    "waiting": lambda q, _: q.enqueue(b"old", id="a"),
    "of a level": lambda q, _: q.enqueue(b"old", id="a", priority=1),
    "delayed": lambda q, _: q.enqueue(b"old", id="a", delay=LONG),
    "parked": lambda q, _: leased(q, b"old", id="a").release(),
    "parked, of a level": lambda q, _: leased(q, b"old", id="a", priority=1).release(),
    "paused": lambda q, _: [q.enqueue(b"old", id="a"), q.admin.pause()],
}
BEGUN = {  # ways to have been begun
    "leased": lambda q: leased(q, b"old", id="a"),
    "leased, of a level": lambda q: leased(q, b"old", id="a", priority=1),
    "reclaimed": lambda q: [leased(q, b"old", id="a", duration=0.001), expire(q)],
    "to be tried again": lambda q: leased(q, b"old", id="a").retry(),
    "to be tried again, later": lambda q: leased(q, b"old", id="a").retry(LONG),
}


# -- room ------------------------------------------------------------------------------------------


@pytest.mark.differs("max_waiting")
def test_a_queue_that_is_full(connect) -> None:
    """Waiting, delayed and parked jobs count. A leased job does not count, and a retry is never
    refused."""
    queue = connect("q", max_waiting=4, priorities=2)
    for options in ({}, {"delay": LONG}, {"priority": 1}):
        assert queue.enqueue(b"x", **options).outcome == "added"
    lease = queue.lease()
    assert queue.enqueue(b"x").added
    assert queue.enqueue(b"x").added
    with pytest.raises(QueueFull, match="4 jobs wait, and max_waiting is 4") as full:
        queue.enqueue(b"x")
    assert (full.value.waiting, full.value.max_waiting, full.value.outcome) == (4, 4, "refused")
    assert lease.retry()
    with pytest.raises(QueueFull) as full:
        queue.enqueue(b"x", id="new")
    assert full.value.waiting == 5
    counts = queue.counts()
    assert (counts.enqueued, counts.waiting, counts.delayed, counts.lost) == (5, 4, 1, 0)


def test_a_job_that_is_known_needs_no_room(connect) -> None:
    queue = connect("q", max_waiting=1)
    assert queue.enqueue(b"x", id="a").added
    assert queue.enqueue(b"x", id="a").outcome == "present"
    assert queue.enqueue(b"y", id="a", if_exists=Replace()).outcome == "replaced"
    assert [receipt.outcome for receipt in queue.enqueue_many([NewJob(b"z", id="a")])] == [
        "present"
    ]
    connect("q").enqueue(b"x")  # by a producer that knows of no bound: more wait than may
    assert queue.enqueue(b"x", id="a").outcome == "present"
    assert queue.enqueue(b"y", id="a", if_exists=Replace()).outcome == "replaced"
    assert [receipt.outcome for receipt in queue.enqueue_many([NewJob(b"z", id="a")])] == [
        "present"
    ]


@pytest.mark.differs("max_waiting")
def test_a_part_has_room_or_none_of_it_goes_in(connect) -> None:
    """A part has a tenth of the bound. The error has the receipts of the parts before it."""
    queue = connect("q", max_waiting=30)
    with pytest.raises(QueueFull) as full:
        queue.enqueue_many([b"%d" % i for i in range(32)])
    assert len(full.value.receipts) == queue.counts().waiting == 30
    queue.lease_many(2)
    with pytest.raises(QueueFull) as full:
        queue.enqueue_many([b"x"] * 3)
    assert (full.value.receipts, queue.counts().waiting) == ([], 28)
    assert [receipt.added for receipt in queue.enqueue_many([b"x"] * 2)] == [True] * 2


@pytest.mark.ci
def test_no_room_in_time(connect) -> None:
    """`block` waits as long as the call or the queue allows."""
    queue = connect("q", max_waiting=1, full="block", timeout=0.2)
    job = NewJob(b"x", key="k")
    queue.enqueue(job)
    for call in (
        lambda: queue.enqueue(job),
        lambda: queue.enqueue_many([job]),
        lambda: queue.enqueue(job, timeout=0.3),
    ):
        finds_no_room(call, 0.2)
    finds_no_room(lambda: queue.enqueue(job, full="raise", timeout=PATIENCE), 0.0)
    with pytest.raises(StreamStopped) as stopped:
        queue.enqueue_stream([job], timeout=0.2)
    assert (stopped.value.position, type(stopped.value.__cause__)) == (0, QueueFull)


@pytest.mark.differs("parts")
def test_woken_when_there_is_room(connect, meanwhile, client: redis.Redis) -> None:
    """A lease wakes the blocked caller at once, so the caller does not poll."""
    queue = connect("q", max_waiting=1, full="block")
    queue.enqueue(b"a", key="k")
    client.config_resetstat()
    moment: list[float] = []
    meanwhile(lambda other: [time.sleep(0.3), moment.append(time.monotonic()), other.lease()])
    assert queue.enqueue(b"b", key="k").added
    assert time.monotonic() - moment[0] < 5
    assert client.info("commandstats")["cmdstat_xread"]["calls"] <= 2
    assert payloads(queue.admin.waiting()) == [b"b"]


def test_room_that_nobody_tells_of(connect, meanwhile) -> None:
    """A job that was removed without a lease sends no message. The caller sees the room within a
    second."""
    queue = connect("q", max_waiting=1, full="block")
    queue.enqueue(b"a", id="a", key="k")
    meanwhile(lambda other: other.cancel("a"))
    assert queue.enqueue(b"b", key="k").added


@pytest.mark.differs("max_waiting")
def test_a_stream_is_held_back(server: Server) -> None:
    """Memory is bounded at both ends. Every job arrives once and in order, and the bound is never
    exceeded."""
    most, total = 60, 1000
    found: list[bytes] = []
    with server.queue("q", max_waiting=most) as queue, server.queue("q") as other:

        def consume() -> None:
            while len(found) < total:
                leases = other.lease_many(20, block=1.0)
                assert queue.counts().waiting <= most
                other.complete_many(leases)
                found.extend(lease.job.payload for lease in leases)

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(consume)
            assert (
                queue.enqueue_stream(
                    (b"%d" % i for i in range(total)), full="block", timeout=PATIENCE
                )
                == total
            )
            future.result(PATIENCE)
    assert found == [b"%d" % i for i in range(total)]


@pytest.mark.differs("max_waiting")
def test_many_producers_wait_together(server: Server) -> None:
    """Each coroutine enqueues once there is room. They wait on one shared connection and ask by
    turns."""
    number = 1000 if server.binary == binaries()[0] else 250

    async def consume(queue: Any) -> None:
        done = 0
        while done < number:
            leases = await queue.lease_many(50, block=1.0)
            assert (await queue.counts()).waiting <= 24
            # calls, and what blocks
            assert len(await asyncio.to_thread(clients)) < 2 * CALLS_AT_ONCE
            done += sum(await queue.complete_many(leases))

    async def story() -> None:
        async with (
            AsyncQueue("q", url=server.url, **server.binary.options, max_waiting=24) as queue,
            asyncio.TaskGroup() as group,
        ):
            calls = [
                group.create_task(queue.enqueue(b"x", full="block", timeout=PATIENCE))
                for _ in range(number)
            ]
            group.create_task(consume(queue))
        assert all(call.result().added for call in calls)

    def clients() -> Any:
        with server.client() as client:
            return client.client_list()

    before = calls(server)["evalsha"]
    asyncio.run(story())
    # not each of them whenever there is room for some
    assert calls(server)["evalsha"] - before < 10 * number


def test_follow_ups_and_schedules_are_never_refused(connect) -> None:
    """A follow-up was accepted together with its job."""
    queue = connect("q", max_waiting=1)
    lease = leased(queue)
    queue.enqueue(b"x")
    assert lease.complete(then=[NewJob(b"y"), NewJob(b"z")])
    queue.admin.schedule("s", b"t", every=0.1)
    until(lambda: [queue.lease(), queue.counts().enqueued >= 5][1])
    assert queue.counts().lost == 0


# -- one id ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", NOT_BEGUN)
def test_replaced_before_it_begins(connect, client: redis.Redis, way: str) -> None:
    """The payload, headers, level and delay are replaced. The id and the time of the first enqueue
    stay."""
    queue = connect("q", priorities=2)
    NOT_BEGUN[way](queue, client)
    before = queue.find("a").job.enqueued_at
    receipt = queue.enqueue(b"new", id="a", headers={"h": "1"}, if_exists=Replace())
    assert (receipt.id, receipt.added, receipt.outcome) == ("a", False, "replaced")
    state = queue.find("a")
    assert (state.state, state.job.payload, state.job.headers, state.job.attempt) == (
        "waiting",
        b"new",
        {"h": "1"},
        1,
    )
    assert state.job.enqueued_at == before
    assert queue.counts() == Counts(waiting=1, enqueued=1)
    assert (
        queue.enqueue(b"later", id="a", priority=1, delay=LONG, if_exists=Replace()).outcome
        == "replaced"
    )
    assert (queue.find("a").state, queue.find("a").job.priority) == ("delayed", 1)
    assert queue.enqueue(b"now", id="a", if_exists=Replace()).outcome == "replaced"
    queue.admin.resume()
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload, lease.job.attempt) == ("a", b"now", 1)
    assert lease.complete()
    assert queue.counts() == Counts(enqueued=1, completed=1)
    assert queue.enqueue(b"again", id="a").added


@pytest.mark.parametrize("way", NOT_BEGUN)
def test_moved_before_it_begins(connect, client: redis.Redis, way: str) -> None:
    """The job moves later, at most to `max_wait` after its first enqueue, and never earlier. Its
    payload stays."""
    queue = connect("q", priorities=2)
    NOT_BEGUN[way](queue, client)
    outcome = "present" if way == "delayed" else "moved"  # that is due later as it is
    assert queue.enqueue(b"new", id="a", if_exists=Debounce(60)).outcome == outcome
    assert queue.enqueue(b"new", id="a", if_exists=Debounce(2 * LONG)).outcome == "moved"
    assert queue.enqueue(b"new", id="a", if_exists=Debounce(60)).outcome == "present"
    assert (
        queue.enqueue(b"new", id="a", if_exists=Debounce(3 * LONG, max_wait=LONG / 2)).outcome
        == "present"
    )
    state = queue.find("a")
    assert (state.state, state.job.payload, state.job.attempt) == ("delayed", b"old", 1)
    assert LONG < state.due - state.job.enqueued_at < 2 * LONG + PATIENCE
    assert queue.counts() == Counts(delayed=1, enqueued=1)


@pytest.mark.sampled
@pytest.mark.parametrize("way", BEGUN)
@pytest.mark.parametrize("if_exists", [Replace(), Debounce(2 * LONG), Debounce(LONG, replace=True)])
def test_one_that_has_begun_is_left_alone(connect, way: str, if_exists: Any) -> None:
    queue = connect("q", priorities=2)
    BEGUN[way](queue)
    before, counts = queue.find("a"), queue.counts()
    assert queue.enqueue(b"new", id="a", if_exists=if_exists) == Receipt("a", False)
    after = queue.find("a")
    assert (after.job.payload, after.state, after.due) == (b"old", before.state, before.due)
    assert queue.counts() == counts


@pytest.mark.differs("rate")
def test_one_that_a_rate_holds_back(connect) -> None:
    """The job has not begun. After a move or a replacement the limit decides anew."""
    queue = connect("q", rate=Rate(1, per=LONG, key="k"))
    queue.enqueue(b"first", headers={"k": "1"})
    queue.enqueue(b"old", id="a", headers={"k": "1"})
    assert queue.lease().job.payload == b"first"
    assert queue.lease() is None
    assert queue.find("a").state == "delayed"
    assert (
        queue.enqueue(b"new", id="a", headers={"k": "2"}, if_exists=Replace()).outcome == "replaced"
    )
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt) == (b"new", 1)
    assert lease.complete()
    assert queue.counts().lost == 0


def test_the_token_goes_on_growing(connect) -> None:
    queue = connect("q")
    first = leased(queue, id="a")
    first.release()
    queue.enqueue(b"new", id="a", if_exists=Replace())
    second = queue.lease()
    assert second.token > first.token
    assert second.job.attempt == 1
    second.release()
    queue.enqueue(b"new", id="a", if_exists=Debounce(0.001))
    promote(queue)
    assert queue.lease().token > second.token


def test_debounced(connect) -> None:
    """The jobs of one period run once. With `replace`, the last payload is used."""
    queue = connect("q")
    outcomes = [
        queue.enqueue(b"%d" % i, id="a", if_exists=Debounce(1.0, replace=True)).outcome
        for i in range(3)
    ]
    assert outcomes == ["added", "replaced", "replaced"]
    assert queue.lease() is None
    lease = queue.lease(block=PATIENCE)
    assert lease.job.payload == b"2"
    # while it runs
    assert queue.enqueue(b"3", id="a", if_exists=Debounce(0.3)).outcome == "present"
    assert lease.complete()
    assert queue.enqueue(b"4", id="a", if_exists=Debounce(0.3)).outcome == "added"


def test_debounced_for_no_longer_than_said(connect) -> None:
    queue = connect("q")
    start = time.monotonic()
    outcomes = {queue.enqueue(b"x", id="a", if_exists=Debounce(LONG, max_wait=0.4)).outcome}
    # the first is delayed as was said
    assert queue.find("a").due - queue.find("a").job.enqueued_at > 1000
    assert queue.cancel("a")
    while (lease := queue.lease()) is None:
        outcomes.add(queue.enqueue(b"x", id="a", if_exists=Debounce(0.5, max_wait=0.6)).outcome)
        assert time.monotonic() - start < PATIENCE
        time.sleep(0.02)
    assert "moved" in outcomes
    assert time.time() - lease.job.enqueued_at >= 0.55


@pytest.mark.differs("enqueue_many")
def test_throttled(connect, client: redis.Redis) -> None:
    """One job is accepted in a period, even if it has ended meanwhile."""
    queue = connect("q")
    assert queue.enqueue(b"1", id="a", if_exists=Throttle(LONG)).outcome == "added"
    assert queue.enqueue(b"2", id="a", if_exists=Throttle(LONG)).outcome == "dropped"
    assert queue.lease().complete()
    assert queue.enqueue(b"3", id="a", if_exists=Throttle(LONG)) == Receipt("a", False, "dropped")
    assert [
        r.outcome for r in queue.enqueue_many([NewJob(b"x", id="b", if_exists=Throttle(LONG))] * 3)
    ] == [
        "added",
        "dropped",
        "dropped",
    ]
    assert 0 < client.pttl(key("taken")) <= 1000 * LONG
    assert queue.enqueue(b"4", id="c", if_exists=Throttle(0.05)).added
    until(
        lambda: queue.enqueue(b"5", id="c", if_exists=Throttle(0.05)).outcome == "present",
        "the end of the period",
    )
    assert queue.counts() == Counts(waiting=2, enqueued=3, completed=1)


@pytest.mark.differs("keys")
@pytest.mark.parametrize("whose", ["queue", "call", "job"])
def test_an_id_stays_taken_after_its_job(connect, client: redis.Redis, whose: str) -> None:
    """An id stays taken for `unique_for`, for the calls that ask for it. A producer can then repeat
    its call."""
    queue = connect("q", **({"unique_for": LONG} if whose == "queue" else {}))
    other = connect("q")

    def add() -> str:
        if whose == "job":
            return queue.enqueue_many([NewJob(b"x", id="a", unique_for=LONG), b"y"])[0].outcome
        return queue.enqueue(
            b"x", id="a", **({"unique_for": LONG} if whose == "call" else {})
        ).outcome

    assert add() == "added"
    assert add() == "present"
    assert queue.lease().complete()
    assert add() == "present"
    assert 0 < client.pttl(key("taken")) <= 1000 * LONG
    assert other.enqueue(b"x", id="a").outcome == "added"  # it does not ask
    other.admin.purge()
    assert queue.admin.delete() == 0
    assert add() == "added"


@pytest.mark.differs("enqueue_many")
def test_taken_for_a_while(connect) -> None:
    queue = connect("q", unique_for=0.3)
    queue.enqueue_many([NewJob(b"x", id=name) for name in "abc"])
    assert queue.complete_many(queue.lease_many(3)) == [True] * 3
    assert [
        receipt.added for receipt in queue.enqueue_many([NewJob(b"x", id=name) for name in "abc"])
    ] == [False] * 3
    until(lambda: queue.enqueue(b"x", id="a").added, "the end of the while")


@pytest.mark.parametrize("end", ["cancelled", "deleted", "dead"])
def test_only_completion_keeps_an_id(connect, end: str) -> None:
    queue = connect("q", unique_for=LONG)
    lease = leased(queue, id="a")
    if end == "cancelled":
        assert queue.cancel("a")
    elif end == "deleted":
        assert lease.release()
        assert queue.admin.purge() == 1
    else:
        assert lease.dead_letter("why")
    assert queue.enqueue(b"x", id="a").added


def test_a_dead_letter_that_is_redriven(connect) -> None:
    """A redriven dead letter has its id, which stays taken."""
    queue = connect("q", unique_for=LONG)
    leased(queue, id="a").dead_letter("why")
    queue.admin.redrive()
    assert queue.lease().complete()
    assert queue.enqueue(b"x", id="a").outcome == "present"


@pytest.mark.differs("enqueue_many")
@pytest.mark.parametrize("many", [False, True])
def test_a_worker_s_completion(connect, many: bool) -> None:
    """A worker completes several jobs at once, with results. Some of them have no condition."""
    queue = connect("q")
    queue.enqueue_many([NewJob(b"x", id="a", unique_for=LONG), NewJob(b"x", id="b"), b"x"])
    leases = queue.lease_many(3)
    if many:
        assert queue.complete_many(leases) == [True] * 3
    else:
        assert [lease.complete(b"r", then=[NewJob(b"y")]) for lease in leases] == [True] * 3
        assert queue.result("a") == b"r"
    assert queue.enqueue(b"x", id="a", unique_for=LONG).outcome == "present"
    assert queue.enqueue(b"x", id="b", unique_for=LONG).outcome == "added"


@pytest.mark.differs("enqueue_many")
def test_many_large_jobs_are_replaced(connect) -> None:
    """The jobs have more bytes than one script may read. The next script goes on at the same
    place."""
    queue = connect("q")
    size = BYTES_PER_SCRIPT // 2
    names = [f"j{i}" for i in range(8)]
    queue.enqueue_many([NewJob(b"x" * size, id=name) for name in names])
    outcomes = [
        receipt.outcome
        for receipt in queue.enqueue_many([NewJob(b"y", id=n, if_exists=Replace()) for n in names])
    ]
    assert outcomes == ["replaced"] * 8
    assert payloads(queue.admin.waiting()) == [b"y"] * 8


def test_producers_race(server: Server) -> None:
    """Threads replace, move and lease one job. There is always exactly one."""
    stop = threading.Event()
    with server.queue("q") as queue:

        def produce(options: dict[str, Any]) -> None:
            while not stop.is_set():
                queue.enqueue(b"x", id="a", **options)

        kinds: list[dict[str, Any]] = [
            {"if_exists": Replace()}, {"if_exists": Debounce(0.01)}, {"if_exists": Throttle(0.01)},
            {"unique_for": 0.01},
        ]  # fmt: skip
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(produce, options) for options in kinds]
            for number in range(30):
                lease = queue.lease(block=PATIENCE)
                assert lease is not None
                counts = queue.counts()
                assert (counts.present, counts.lost) == (1, 0)
                assert lease.release() if number % 3 else lease.complete()
            stop.set()
            for future in futures:
                future.result(PATIENCE)


BAD: dict[str, Any] = {
    "give the job an id": {"if_exists": Replace()},
    "unique_for": {"unique_for": 0, "id": "a"},
    "if_exists='replace': give Debounce": {"if_exists": "replace", "id": "a"},
    "Debounce is the delay": {"if_exists": Debounce(5), "delay": 5, "id": "a"},
    "full=": {"full": "drop"},
}


@each("what", BAD)
def test_bad_conditions_are_refused(nowhere, what: str) -> None:
    """The call is refused before a script is sent."""
    with pytest.raises((ValueError, TypeError), match=what):
        nowhere("q").enqueue(b"x", **BAD[what])
    if "full" not in BAD[what]:
        with pytest.raises((ValueError, TypeError), match=what):
            nowhere("q").enqueue_many([b"x", NewJob(b"x", **BAD[what])])


def test_what_takes_no_conditions(nowhere, connect) -> None:
    with pytest.raises(ValueError, match="for enqueue and enqueue_many only"):
        leased(connect("q")).complete(then=[NewJob(b"x", id="a", if_exists=Replace())])
    with pytest.raises(TypeError, match="unexpected keyword argument 'uniqe_for'"):
        nowhere("q").enqueue(b"x", id="a", uniqe_for=5)
    with pytest.raises(TypeError, match="to the NewJob"):
        nowhere("q").enqueue(NewJob(b"x", id="a"), if_exists=Replace())
    for options in ({"max_waiting": 0}, {"max_waiting": 1.5}, {"full": "no"}, {"unique_for": 0}):
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            nowhere("q", **options)


def test_who_takes_none_of_it_pays_nothing(newest_connect, newest: Server) -> None:
    """Two jobs without conditions send no command for conditions in their whole life. One of them
    has an id."""
    queue = newest_connect("q")

    def story() -> None:
        for options in ({}, {"id": "a"}):
            queue.enqueue(b"x", **options)
            queue._leaser.tidy_at = float("inf")
            assert queue.lease().complete()

    with newest.client() as client:
        story()
        client.config_resetstat()
        story()
        calls = {
            name.removeprefix("cmdstat_"): row["calls"]
            for name, row in client.info("commandstats").items()
        }
    assert calls.pop("evalsha") == 6
    assert not {"zremrangebyscore", "xread", "xrange", "zrem", "publish", "pexpire"} & calls.keys()
    # one rides on each lease, behind an XACK, unless there was one in this millisecond
    beats = calls.pop("zadd")
    assert beats <= 2
    assert calls.pop("xack") == 2 + beats
    assert sum(number for name, number in calls.items() if not name.startswith("config")) == 56
