"""Ordered queues. Jobs of one key are leased one at a time and in order, however they end."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import AsyncWorker, ConfigurationError, Counts, NewJob, Queue, Rate, Worker
from headrace.errors import RunSuspended
from headrace.inspect import Repairs
from tests.support.awaiting import until
from tests.support.servers import Server


@pytest.fixture
def queue(connect: Any) -> Any:
    return connect(ordered=True)


def of(*keys: str, times: int = 1) -> list[NewJob[bytes]]:
    """Return jobs with names of their key and number."""
    return [
        NewJob(f"{key}{n}".encode(), key=key, id=f"{key}{n}") for n in range(times) for key in keys
    ]


def names(leases: Any) -> list[str]:
    return [lease.job.payload.decode() for lease in leases]


def nothing_left(client: redis.Redis, queue: Any) -> bool:
    return not any(client.exists(queue.ops.keys.key(part)) for part in ("turns", "behind"))


@pytest.mark.differs("order")
def test_one_of_a_key_at_a_time_in_order(queue: Any, client: redis.Redis) -> None:
    queue.enqueue_many([*of("a", "b", times=3), b"c", b"d"])
    first = queue.lease_many(100)
    assert names(first) == ["a0", "b0", "c", "d"]
    assert queue.lease_many(100) == []
    assert queue.counts() == Counts(waiting=4, leased=4, enqueued=8)
    assert first[0].complete()
    (second,) = queue.lease_many(100)
    assert (second.job.id, second.job.attempt) == ("a1", 1)
    assert all(queue.complete_many([*first[1:], second]))
    assert names(third := queue.lease_many(100)) == ["b1", "a2"] or names(third) == ["a2", "b1"]
    assert all(queue.complete_many(third))
    (last,) = queue.lease_many(100)
    assert last.job.id == "b2"
    assert last.complete()
    assert queue.counts() == Counts(enqueued=8, completed=8)
    assert nothing_left(client, queue)


@pytest.mark.differs("position")
def test_jobs_that_wait_for_their_turn_are_waiting_jobs(queue: Any) -> None:
    """Jobs that wait for their turn have the state waiting in every view."""
    queue.enqueue_many(of("a", times=4))
    (lease,) = queue.lease_many(10)
    assert [one.job.id for one in queue.admin.waiting()] == ["a1", "a2", "a3"]
    assert queue.admin.peek().id == "a1"
    assert list(queue.admin.delayed()) == []
    found = queue.find("a2")
    assert (found.state, found.job.key) == ("waiting", "a")
    assert queue.admin.position("a3") == 2
    assert [one.job.id for one in queue.admin.running()] == ["a0"]
    assert queue.admin.repair() == Repairs()
    assert queue.admin.purge() == 3
    assert lease.complete()
    assert queue.counts() == Counts(enqueued=4, completed=1, deleted=3)


@pytest.mark.differs("order")
@pytest.mark.parametrize("how", ["release", "retry", "later", "expire", "fail"])
def test_what_comes_back_keeps_its_place(queue: Any, how: str) -> None:
    """Later jobs of the key wait. Jobs of other keys are leased."""
    queue.enqueue_many(of("a", "b", times=2))
    lease, other = queue.lease_many(10)
    assert {
        "release": lease.release,
        "retry": lease.retry,
        "later": lambda: lease.retry(0.05, "why"),
        "expire": lambda: queue.admin.expire("a0"),
        "fail": lambda: queue.admin.fail_worker(queue._leaser.name),
    }[how]()
    if how == "fail":
        assert [lease.job.id for lease in queue.lease_many(10)] == ["a0", "b0"]
        return
    assert other.complete()
    found: list[Any] = []
    until(lambda: _more(queue, found, 2))
    assert sorted(lease.job.id for lease in found) == ["a0", "b1"]
    again = next(lease for lease in found if lease.job.id == "a0")
    assert again.job.attempt == (1 if how == "release" else 2)
    assert again.token > lease.token
    assert queue.lease_many(10) == []
    assert again.complete()
    assert names(queue.lease_many(10)) == ["a1"]


def _more(queue: Any, found: list[Any], wanted: int, at_most: int = 10) -> bool:
    found += queue.lease_many(at_most)
    return len(found) >= wanted


def test_a_delayed_retry_is_delayed(queue: Any) -> None:
    queue.enqueue_many(of("a", times=2))
    (lease,) = queue.lease_many(10)
    assert lease.retry(600, "busy")
    assert queue.counts() == Counts(waiting=1, delayed=1, enqueued=2)
    assert [one.job.id for one in queue.admin.delayed()] == ["a0"]
    assert queue.lease_many(10) == []


def test_attempts_end_and_the_next_follows(connect: Any) -> None:
    queue = connect(ordered=True, max_attempts=2)
    queue.enqueue_many(of("a", times=2))
    for attempt in (1, 2):
        lease = queue.lease()
        assert (lease.job.id, lease.job.attempt) == ("a0", attempt)
        assert lease.retry(reason=f"no {attempt}")
    assert [(one.job.id, one.reason, one.job.attempt) for one in queue.admin.dead()] == [
        ("a0", "no 2", 2)
    ]
    assert queue.lease().job.id == "a1"


def test_one_whose_workers_died_too_often_is_buried_and_the_next_follows(connect: Any) -> None:
    queue = connect(ordered=True, max_attempts=1)
    queue.enqueue_many(of("a", times=2))
    assert queue.lease().job.id == "a0"
    assert queue.admin.expire() == 1
    assert queue.lease().job.id == "a1"
    assert [one.job.id for one in queue.admin.dead()] == ["a0"]


@pytest.mark.differs("ops")
def test_a_retry_that_spends_nothing(queue: Any) -> None:
    queue.enqueue(b"x", key="a")
    for spend, attempt in ((0, 1), (1, 1), (1, 2), (-1, 3), (1, 1)):
        lease = queue.lease()
        assert lease.job.attempt == attempt
        assert queue._run(queue.ops.retry([(lease.claim, None, spend, "")])) == [True]
    assert queue.lease().job.attempt == 2


def retried(queue: Any, times: int, delay: float = 0) -> None:
    """Let the first job of key a fail so often, and wait for *delay* after each."""
    queue.enqueue_many(of("a", times=2))
    for attempt in range(1, times + 1):
        lease = queue.lease()
        assert (lease.job.id, lease.job.attempt) == ("a0", attempt)
        assert lease.retry(delay, ValueError(f"no {attempt}"))


def reasons(state: Any) -> list[str]:
    return [one.reason for one in state.attempts]


NO = ["ValueError: no 1", "ValueError: no 2"]


@pytest.mark.parametrize("delay", [0, 600])
def test_a_job_that_stays_in_its_place_keeps_its_attempts(connect: Any, delay: float) -> None:
    """Its entry stays and can't be changed. Every view shows the job like one of another queue."""
    queue = connect(ordered=True, history=10, tracebacks=True)
    retried(queue, 1)
    lease = queue.lease()
    assert reasons(next(queue.admin.running())) == NO[:1]
    with pytest.raises(ValueError, match="no 2") as failed:
        int("no 2")
    assert lease.retry(delay, failed.value)
    why = "ValueError: invalid literal for int() with base 10: 'no 2'"
    listed = queue.admin.delayed() if delay else queue.admin.waiting()
    for state in (queue.find("a0"), next(iter(listed))):
        assert (state.job.id, state.reason, reasons(state)) == ("a0", why, [*NO[:1], why])
        assert [one.error for one in state.attempts] == ["builtins.ValueError"] * 2
        assert 'int("no 2")' in state.traceback
    assert reasons(queue.find("a1")) == []


@pytest.mark.parametrize(
    "how", ["complete", "cancel", "cancel_payload", "dead_letter", "last attempt", "bury"]
)
def test_a_job_that_ends_has_the_attempts_that_it_had_in_its_place(
    connect: Any, client: redis.Redis, how: str
) -> None:
    queue = connect(ordered=True, history=10, max_attempts=2 if how == "bury" else 3)
    before = NO[:1] if how == "bury" else NO
    retried(queue, len(before))
    after: list[Any] = []
    if how in ("cancel", "cancel_payload"):
        assert queue.cancel("a0") if how == "cancel" else queue.admin.cancel_payload(b"a0")
    else:
        lease = queue.lease()
        if how == "complete":
            assert lease.complete()
            after = [None]
        elif how == "bury":
            assert queue.admin.expire() == 1
            assert queue.lease().complete()
        else:
            assert (
                lease.dead_letter(ValueError("no 3"))
                if how == "dead_letter"
                else lease.retry(0, ValueError("no 3"))
            )
            after = ["ValueError: no 3"]
    (state,) = [one for one in queue.admin.ended() if one.job.id == "a0"]
    assert reasons(state) == reasons(queue.find("a0")) == before + after
    if state.state == "dead":
        assert reasons(next(iter(queue.admin.dead()))) == before + after
        assert queue.admin.purge_dead() == 1
        assert reasons(queue.find("a0")) == before + after
    for lease in queue.lease_many(10):
        assert lease.complete()
    assert nothing_left(client, queue)


@pytest.mark.parametrize("how", ["move", "redrive", "reschedule", "repair", "release"])
def test_a_job_keeps_its_attempts_however_it_goes_on(
    connect: Any, client: redis.Redis, how: str
) -> None:
    queue = connect("g/a", ordered=True, history=10)
    before = NO
    if how == "reschedule":
        before = NO[:1]
        retried(queue, 1, delay=600)
    else:
        retried(queue, 2)
    other = queue
    if how == "move":
        other = connect("g/b", ordered=True, history=10)
        assert queue.admin.move("g/b") == 2
        assert nothing_left(client, queue)
    elif how == "redrive":
        assert queue.lease().dead_letter(ValueError("no 3"))
        assert queue.admin.redrive() == 1
        before = [*NO, "ValueError: no 3"]
    elif how == "reschedule":
        assert queue.admin.reschedule("a0", None)
    elif how == "repair":
        assert queue.admin.repair().leftovers == 0
    else:
        assert queue.lease().release()
    assert reasons(other.find("a0")) == before
    ids: list[str] = []
    while lease := other.lease():
        ids.append(lease.job.id)
        if lease.job.id == "a0":
            assert lease.dead_letter(ValueError("last"))
        else:
            assert lease.complete()
    assert sorted(ids) == ["a0", "a1"]
    assert reasons(other.find("a0")) == [*before, "ValueError: last"]
    assert nothing_left(client, other)


@pytest.mark.parametrize("release_key", [False, True])
def test_a_run_that_sleeps_keeps_the_attempts_that_it_had(
    server: Server, release_key: bool
) -> None:
    """The attempts stay even if the run gives up its turn meanwhile."""
    with server.queue("q", ordered=True, history=10) as queue:
        retried(queue, 2)
        lease = queue.lease()
        with pytest.raises(RunSuspended):
            lease.job.sleep("night", 0.001, release_key=release_key)
        assert reasons(queue.find("a0"))[:2] == NO
        done: list[bool] = []

        def both_are_done() -> bool:
            done.extend(lease.complete() for lease in queue.lease_many(2))
            return len(done) == 2

        until(both_are_done)
        assert all(done)
        assert reasons(queue.find("a0"))[:2] == NO


def test_attempts_in_place_leave_with_jobs_that_are_purged(
    connect: Any, client: redis.Redis
) -> None:
    queue = connect(ordered=True, history=10)
    retried(queue, 2)
    assert queue.admin.purge() == 2
    assert nothing_left(client, queue)


def test_attempts_in_place_are_bounded(connect: Any) -> None:
    queue = connect(ordered=True, history=10, max_attempts=None)
    queue.enqueue(b"x", id="often", key="a")
    for attempt in range(1, 61):
        assert queue.lease().retry(0, ValueError(f"{attempt} " + "y" * 600))
    numbers = [one.number for one in queue.find("often").attempts]
    assert (numbers[0], numbers[-1]) == (1, 60)
    assert 20 < len(numbers) < 40


@pytest.mark.differs("keys")
def test_repair_forgets_attempts_of_what_is_gone(connect: Any, client: redis.Redis) -> None:
    queue = connect(ordered=True, history=10)
    retried(queue, 1)
    client.hset(queue.ops.keys.key("turns"), "a1-1", b"no list")
    assert queue.admin.repair(dry_run=True).leftovers == 1
    assert queue.admin.repair().leftovers == 1
    assert not client.hexists(queue.ops.keys.key("turns"), "a1-1")
    assert reasons(queue.find("a0")) == NO[:1]


@pytest.mark.differs("keys", "XDEL")
@pytest.mark.parametrize("how", ["cancel", "cancel_payload", "dead_letter", "move", "XDEL"])
def test_the_turn_is_passed_on_however_a_job_leaves(
    connect: Any, client: redis.Redis, how: str
) -> None:
    queue = connect("g/a", ordered=True)
    queue.enqueue_many(of("a", times=2))
    lease = queue.lease()
    if how == "move":
        assert lease.release()
    if how == "XDEL":
        client.xdel(queue.ops.keys.key("jobs"), lease.claim.entry)
        assert not lease.complete()
    else:
        assert {
            "cancel": lambda: queue.cancel("a0"),
            "cancel_payload": lambda: queue.admin.cancel_payload(b"a0"),
            "dead_letter": lambda: lease.dead_letter("no"),
            "move": lambda: queue.admin.move("g/b", "a0"),
        }[how]()
    last = queue.lease()
    assert last.job.id == "a1"
    assert last.complete()
    assert nothing_left(client, queue)


def test_one_that_waits_behind_may_be_cancelled(queue: Any, client: redis.Redis) -> None:
    queue.enqueue_many(of("a", times=4))
    lease = queue.lease()
    assert queue.lease() is None  # the others were read
    assert queue.cancel("a1")
    assert queue.cancel("a3")
    assert lease.complete()
    last = queue.lease()
    assert last.job.id == "a2"
    assert last.complete()
    assert nothing_left(client, queue)


def test_a_former_holder_does_not_end_the_turn(queue: Any) -> None:
    """Completing is fenced. Otherwise the next job would run beside the present holder's."""
    queue.enqueue_many(of("a", times=2))
    lease = queue.lease()
    assert queue.admin.expire() == 1
    again = queue.lease()
    assert not lease.complete()
    assert queue.lease() is None
    assert again.complete()
    assert queue.lease().job.id == "a1"


def test_who_completes_first_wins_if_that_is_wanted(queue: Any) -> None:
    queue.enqueue_many(of("a", times=2))
    lease = queue.lease()
    assert queue.admin.expire() == 1
    assert queue.lease()
    assert lease.complete(fenced=False)


def test_a_redriven_job_goes_to_the_end_of_its_key(queue: Any) -> None:
    queue.enqueue_many(of("a", times=3))
    assert queue.lease().dead_letter("no")
    lease = queue.lease()
    assert queue.admin.redrive() == 1
    order = [lease.job.id]
    while lease:
        assert lease.complete()
        lease = queue.lease()
        order += [lease.job.id] if lease else []
    assert order == ["a1", "a2", "a0"]


@pytest.mark.differs("keys")
def test_a_blocked_reader_is_woken_as_a_turn_is_passed_on(
    connect: Any, client: redis.Redis
) -> None:
    """A token wakes the reader, because the stream gets no new entry."""
    queue = connect(ordered=True)
    queue.enqueue_many(of("a", times=2))
    lease = queue.lease()
    assert queue.lease() is None
    assert client.xlen(queue.ops.keys.key("wake")) == 0
    assert lease.complete()
    assert client.xlen(queue.ops.keys.key("wake")) == 1


def test_a_thousand_keys_are_completed_in_one_call(queue: Any, client: redis.Redis) -> None:
    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n % 1000}") for n in range(3000)])
    for _ in range(3):
        leases = _thousand(queue)
        assert len({lease.job.key for lease in leases}) == 1000
        assert all(queue.complete_many(leases))
    assert queue.counts() == Counts(enqueued=3000, completed=3000)
    assert nothing_left(client, queue)


def _thousand(queue: Any) -> list[Any]:
    leases: list[Any] = []
    until(lambda: _more(queue, leases, 1000, at_most=1000))
    return leases


@pytest.mark.differs("ops")
def test_a_call_looks_at_a_bounded_number_of_jobs(connect: Any, client: redis.Redis) -> None:
    """Jobs behind many jobs of one key are found call by call."""
    queue = connect(ordered=True)
    queue.enqueue_many([*of("a", times=2000), *of("b")])
    op = queue.ops.lease("w", 1, ttl=60.0)
    assert [claim.job.id for claim in queue._run(op).claims] == ["a0"]
    calls = 0
    while not (grant := queue._run(queue.ops.lease("w", 1, ttl=60.0))).claims:
        assert grant.more
        assert queue.counts().waiting == 2000
        calls += 1
    assert [claim.job.id for claim in grant.claims] == ["b0"]
    assert 7 <= calls <= 9
    summary = client.xpending(queue.ops.keys.key("jobs"), "workers")
    assert {one["name"]: one["pending"] for one in summary["consumers"]} == {
        b"behind": 1999,
        b"w": 2,
    }


@pytest.mark.differs("ops")
def test_a_turn_that_a_foreign_command_took_is_passed_on_by_the_upkeep(
    queue: Any, client: redis.Redis
) -> None:
    queue.enqueue_many([*of("a", times=2), *of("b", times=2)])
    a, b = queue.lease_many(2)
    assert queue.lease() is None
    for lease in (a, b):
        client.xack(queue.ops.keys.key("jobs"), "workers", lease.claim.entry)
        client.xdel(queue.ops.keys.key("jobs"), lease.claim.entry)
    queue._run(queue.ops.reclaim("w", 10.0))
    leases = queue.lease_many(10)
    assert sorted(names(leases)) == ["a1", "b1"]
    assert all(queue.complete_many(leases))
    assert nothing_left(client, queue)


@pytest.mark.differs("keys")
def test_repair_forgets_turns_of_what_is_gone(queue: Any, client: redis.Redis) -> None:
    queue.enqueue_many(of("a", times=2))
    lease = queue.lease()
    client.xack(queue.ops.keys.key("jobs"), "workers", lease.claim.entry)
    client.xdel(queue.ops.keys.key("jobs"), lease.claim.entry)
    assert queue.admin.repair().leftovers >= 1
    last = queue.lease()
    assert last.job.id == "a1"
    assert last.complete()
    assert nothing_left(client, queue)


@pytest.mark.differs("keys")
def test_a_group_that_was_lost(queue: Any, client: redis.Redis) -> None:
    """All leases are gone, and the order stays."""
    queue.enqueue_many(of("a", "b", times=3))
    queue.lease_many(10)
    client.xgroup_destroy(queue.ops.keys.key("jobs"), "workers")
    order: list[str] = []
    while len(order) < 6:
        leases = queue.lease_many(10)
        order += names(leases)
        assert all(queue.complete_many(leases))
    assert [one for one in order if one[0] == "a"] == ["a0", "a1", "a2"]
    assert [one for one in order if one[0] == "b"] == ["b0", "b1", "b2"]


@pytest.mark.differs("keys")
def test_any_key_and_any_entry(queue: Any, client: redis.Redis) -> None:
    """A foreign producer may use any bytes as a key and entry IDs of any length. IDs are ordered as
    numbers."""
    jobs = queue.ops.keys.key("jobs")
    for ms in (1, 9, 10, 99, 1000):
        for key in (b"", b"a", b"a:1", b"\x00\xff", "é".encode(), b"1:a"):
            client.xadd(jobs, {b"data": b"%d" % ms, b"headrace-key": key})
    found: dict[Any, list[int]] = {}
    for _ in range(5):
        some = queue._run(queue.ops.lease("w", 100, ttl=60.0)).claims
        assert len(some) == 6
        for claim in some:
            found.setdefault(claim.job.headers.get("headrace-key", claim.job.key), []).append(
                int(claim.job.payload)
            )
        assert queue._run(queue.ops.complete(some)) == [True] * 6
    assert list(found.values()) == [[1, 9, 10, 99, 1000]] * 6
    assert nothing_left(client, queue)


@pytest.mark.differs("rate")
def test_with_a_rate_of_the_whole_queue(connect: Any) -> None:
    queue = connect(ordered=True, rate=Rate(3, per=600))
    queue.enqueue_many(of("a", "b", "c", "d", times=2))
    leases = queue.lease_many(10)
    assert names(leases) == ["a0", "b0", "c0"]
    assert all(queue.complete_many(leases))
    assert queue.lease_many(10) == []


def test_shards(connect: Any) -> None:
    queue = connect(ordered=True, shards=4)
    queue.enqueue_many(of(*"abcdefgh", times=3))
    seen: list[str] = []
    while leases := queue.lease_many(100):
        assert len({lease.job.key for lease in leases}) == len(leases) == 8
        seen += names(leases)
        assert all(queue.complete_many(leases))
    assert all(
        [one for one in seen if one[0] == key] == [f"{key}{n}" for n in range(3)]
        for key in "abcdefgh"
    )


@pytest.mark.differs("parts")
def test_what_is_refused(connect: Any) -> None:
    for options in ({"priorities": 2}, {"rate": Rate(1, key="k")}):
        with pytest.raises(ConfigurationError, match="ordered: not with"):
            connect(ordered=True, **options)
    with pytest.raises(TypeError, match="ordered must be a bool"):
        connect(ordered="yes")
    with pytest.raises(ConfigurationError, match="at_most_once"):
        connect(ordered=True).lease(at_most_once=True)
    ordered = Queue("q", url="redis://127.0.0.1:1", ordered=True)
    for worker in (Worker(), AsyncWorker()):
        with pytest.raises(ConfigurationError, match="ordered: not for a batch handler"):
            worker.batch_handler(ordered)(print)
        with pytest.raises(ConfigurationError, match="ordered: not for persistent"):
            worker.handler("q", ordered=True, persistent=True)(print)
        with pytest.raises(TypeError, match="unexpected keyword argument 'ordered'"):
            worker.batch_handler("q", ordered=True)
        worker.handler(Queue("r", url="redis://127.0.0.1:1"), ordered=True)(print)
        assert worker.handlers["r"].queue_settings.ordered
