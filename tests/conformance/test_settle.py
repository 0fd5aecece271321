"""The ends of a lease, which are complete, release, retry and dead_letter. The tests check the
holder's right and the job.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace import ConfigurationError, Counts, JobFailed, NewJob
from headrace.codecs import JSONCodec
from headrace.errors import CodecError
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote

SETTLE = {
    "complete": lambda lease: lease.complete(fenced=True),
    "release": lambda lease: lease.release(),
    "retry": lambda lease: lease.retry(),
    "retry later": lambda lease: lease.retry(LONG),
    "dead_letter": lambda lease: lease.dead_letter("no"),
}


@pytest.mark.parametrize("how", SETTLE)
def test_settled_once(queue, how):
    """A lease ends once. Later settlements return False and change nothing."""
    lease = leased(queue)
    assert SETTLE[how](lease) is True
    before = queue.counts()
    assert [settle(lease) for settle in SETTLE.values()] == [False] * 5
    assert lease.renew() is False
    assert queue.counts() == before


def test_settled_by_the_queue(queue):
    """The queue's verbs do the same as the lease's verbs, also from another client."""
    queue.enqueue_many([b"%d" % i for i in range(5)])
    leases = queue.lease_many(5)
    assert queue.renew(leases[0]) is True
    assert queue.release(leases[0]) is True
    assert queue.retry(leases[1], 0, "why") is True
    assert queue.retry(leases[2], delay=LONG) is True
    assert queue.dead_letter(leases[3], "no") is True
    assert queue.complete(leases[4], b"done") is True
    assert present(queue) == {"parked": 1, "waiting": 1, "delayed": 1, "dead": 1}


def test_a_lease_settled_by_another_client(connect):
    """A lease is a value that any client can settle."""
    lease = leased(connect())
    assert connect().complete(lease, fenced=True)


# -- complete --------------------------------------------------------------------------------------


def test_complete_once_whoever_calls(connect):
    """Of all callers that complete a job one gets True, and the counter moves once (M-5, W-7)."""
    queue, other = connect(), connect()
    lease = leased(queue)
    answers = [
        queue.complete(lease),
        other.complete(lease),
        lease.complete(),
        queue.complete_many([lease, lease])[0],
    ]
    assert answers == [True, False, False, False]
    assert queue.counts() == Counts(enqueued=1, completed=1)


@pytest.mark.differs("order")
def test_complete_many(queue):
    """Each lease has a verdict in order. A job that is named twice or is gone is completed at most
    once."""
    queue.enqueue_many([NewJob(b"x", id=str(i)) if i % 2 else b"x" for i in range(10)])
    leases = queue.lease_many(10)
    assert leases[3].complete()
    assert queue.cancel("5")
    assert queue.complete_many([*leases, leases[0]]) == [i not in {3, 5, 10} for i in range(11)]
    assert queue.counts() == Counts(enqueued=10, completed=9, cancelled=1)


def many_completed(queue, results, jobs=("a", "b", "c")):
    """Enqueue jobs, complete them with *results*, and return the results that are kept."""
    queue.enqueue_many([NewJob(b"x", id=name) for name in jobs])
    leases = sorted(queue.lease_many(len(jobs)), key=lambda lease: lease.job.id)
    assert queue.complete_many(leases, results) == [True] * len(jobs)
    return queue.results(jobs)


def test_complete_many_with_results(queue):
    """Results come as a list in the order of the leases, or by id for some. Each is kept as by
    `complete`."""
    assert many_completed(queue, [b"1", "2", None]) == {"a": b"1", "b": b"2"}
    assert many_completed(queue, {"d": b"4", "f": b""}, ("d", "e", "f")) == {"d": b"4", "f": b""}
    assert many_completed(queue, None, ("g",)) == many_completed(queue, {}, ("h",)) == {}
    assert queue.complete_many([], []) == queue.complete_many([], {}) == []
    assert queue.result("a", timeout=5) == b"1"


def test_complete_many_with_results_of_jobs_without_ids(queue):
    receipts = queue.enqueue_many([b"1", b"2", b"3"])
    leases = queue.lease_many(3)
    assert queue.complete_many(leases, [lease.job.payload * 2 for lease in leases]) == [True] * 3
    assert [receipt.result(timeout=5) for receipt in receipts] == [b"11", b"22", b"33"]


def test_complete_many_with_results_that_no_script_takes_at_once(connect):
    """The results go in parts of a megabyte. A caller that loses keeps nothing in any part."""
    queue = connect(codec=JSONCodec())
    names = [f"{number:03}" for number in range(450)]
    queue.enqueue_many([NewJob(0, id=name) for name in names])
    leases = queue.lease_many(450)
    assert leases[7].complete("first")
    assert queue.complete_many(leases, [lease.job.id * 2_000 for lease in leases]).count(False) == 1
    found = queue.results(names)
    assert found.pop(leases[7].job.id) == "first"
    assert all(found[name] == name * 2_000 for name in names if name in found)
    assert len(found) == 449


def test_results_that_do_not_fit_are_refused_before_anything_is_sent(connect):
    queue = connect(codec=JSONCodec())
    queue.enqueue_many([NewJob(1, id="a"), NewJob(2, id="b")])
    leases = queue.lease_many(2)
    for wrong, error, says in (
        ([1], ValueError, "results: 1 of them for 2 leases"),
        ({"a": 1, "c": 2}, ValueError, "results: no lease is of a job with the id 'c'"),
        (b"12", TypeError, "results must be a list, or a mapping by ids, not bytes"),
        (5, TypeError, "results must be a list"),
        ([1, object()], CodecError, "object"),
    ):
        with pytest.raises(error, match=says):
            queue.complete_many(leases, wrong)
    assert present(queue) == {"leased": 2}


def test_complete_many_fenced(queue):
    """With `fenced`, only leases that are still held complete their jobs."""
    queue.enqueue_many([b"x"] * 5)
    leases = queue.lease_many(5)
    leases[1].renew(0.001)
    expire(queue)
    assert queue.complete_many(leases, fenced=True) == [True, False, True, True, True]
    assert queue.complete_many(leases) == [False, True, False, False, False]


def test_complete_many_of_several_workers(connect):
    """Leases of several clients may be mixed. The verdicts are in the order of the leases."""
    one, two = connect(), connect()
    one.enqueue_many([b"x"] * 6)
    mixed = [
        lease for pair in zip(one.lease_many(3), two.lease_many(3), strict=True) for lease in pair
    ]
    mixed[4].release()
    assert one.complete_many(mixed, fenced=True) == [True] * 4 + [False, True]


def test_first_completer_wins(connect):
    """The first completer wins even with an expired lease. The present holder then gets False
    (M-7)."""
    queue = connect()
    old = leased(queue, duration=0.001)
    expire(queue)
    new = queue.lease()
    assert new.job.attempt == 2
    assert old.complete() is True
    assert (new.complete(), new.release(), new.renew()) == (False, False, False)
    assert queue.counts() == Counts(enqueued=1, completed=1)


@pytest.mark.parametrize("of_the_queue", [True, False])
def test_fenced(connect, of_the_queue):
    """Only the present holder completes a fenced job. The option of the call goes before the
    queue's (M-7)."""
    queue = connect(fenced=of_the_queue)
    word = {} if of_the_queue else {"fenced": True}
    old = leased(queue, duration=0.001)
    expire(queue)
    assert old.complete(**word) is False
    new = queue.lease(duration=0.001)
    assert old.complete(**word) is False
    expire(queue)
    assert queue.complete_many([old, new], **word) == [False, False]
    assert present(queue) == {"parked": 1}
    newest = queue.lease()
    assert old.complete(fenced=False) is True
    assert newest.complete(**word) is False


def test_expired_but_not_reclaimed(queue):
    """The holder keeps an expired lease until another client reclaims the job."""
    leases = [leased(queue, duration=0.001) for _ in range(2)]
    assert leases[0].complete(fenced=True)
    assert leases[1].release()
    assert queue.lease().job.attempt == 1


def test_released_and_completed(queue):
    """A client that did the work may complete the job after a release, unless another one has."""
    lease = leased(queue)
    assert lease.release()
    assert lease.complete(fenced=True) is False
    assert lease.complete() is True
    assert queue.lease() is None


def test_complete_the_old_entry(queue):
    """The old lease of a job at the back completes nothing, fenced or not."""
    lease = leased(queue)
    assert lease.retry()
    assert (lease.complete(), lease.complete(fenced=True), lease.complete(fenced=False)) == (
        False,
    ) * 3
    assert queue.lease().complete()


@pytest.mark.parametrize("result", [b"", b"\x00\xff", "é", b"x" * 100_000])
def test_result(queue, result):
    """The winner's result is kept, and only the winner's."""
    lease = leased(queue, id="a")
    with pytest.raises(TimeoutError, match="job 'a' has not ended"):
        queue.result("a")
    assert lease.complete(result) is True
    assert lease.complete(b"late") is False
    assert queue.result("a") == (result.encode() if isinstance(result, str) else result)
    assert queue.result(lease.job.id, timeout=0) is not None


def test_result_of_the_loser(queue):
    """A caller that loses keeps no result and enqueues nothing (M-13)."""
    lease = leased(queue, id="a")
    queue.cancel("a")
    assert lease.complete(b"late", then=[NewJob(b"next")]) is False
    with pytest.raises(JobFailed, match="cancelled"):
        queue.result("a")
    assert queue.counts() == Counts(enqueued=1, cancelled=1)


@pytest.mark.differs("keys")
def test_result_expires(connect, client):
    """A result lives for the TTL of the queue's settings. Without a result there is no key."""
    queue = connect(result_ttl=timedelta(minutes=5))
    assert leased(queue, id="a").complete(b"x")
    assert 0 < client.pttl(key("result:a")) <= 300_000
    assert leased(queue, id="b").complete()
    assert not client.exists(key("result:b"))
    assert leased(connect(result_ttl=0.0001), id="c").complete(b"x")
    assert queue.result("b", timeout=0.01) is None


def test_result_of_an_unnamed_job(queue):
    """A job that was given no id has its result under the id of its receipt, also after it went
    round."""
    receipt = queue.enqueue(b"x")
    queue.lease().retry()
    assert queue.lease().complete(b"done")
    assert queue.result(receipt.id) == b"done"


# -- then ------------------------------------------------------------------------------------------


def test_follow_ups(connect):
    """The winner's follow-ups are enqueued in its queue or others of the group, with all options of
    a job (M-13)."""
    orders, bills = connect("shop/orders"), connect("shop/bills")
    lease = leased(orders, id="7")
    then = [
        NewJob(b"again", id="7"),  # the id that is just becoming free
        NewJob(b"bill", id="7", headers={"a": "b"}, queue="shop/bills"),
        NewJob("late", delay=LONG, queue="shop/bills"),
        NewJob(b"plain", queue="shop/orders"),
        NewJob(b"refused", id="7", queue="shop/bills"),
        NewJob(b"whole group", queue="shop"),
    ]
    assert lease.complete(result=b"done", then=then) is True
    assert lease.complete(then=then) is False
    assert payloads(orders.admin.waiting()) == [b"again", b"plain"]
    assert payloads(bills.admin.waiting()) == [b"bill"]
    assert payloads(bills.admin.delayed()) == [b"late"]
    assert payloads(connect("shop").admin.waiting()) == [b"whole group"]
    assert bills.find("7").job.headers == {"a": "b"}
    assert orders.result("7") == b"done"
    assert orders.counts() == Counts(waiting=2, enqueued=3, completed=1)
    assert bills.counts() == Counts(waiting=1, delayed=1, enqueued=2)


def test_follow_up_in_another_group(connect):
    """One script reaches one group. A follow-up for another group is refused, and the job stays
    leased."""
    queue = connect("shop/orders")
    lease = leased(queue)
    for name in ("else/orders", "shopping", "orders"):
        with pytest.raises(
            ConfigurationError, match=f"then: queue '{name}' is of group '{name.partition('/')[0]}'"
        ):
            lease.complete(then=[NewJob(b"here"), NewJob(b"there", queue=name)])
    assert present(queue) == {"leased": 1}
    assert lease.complete(then=(NewJob(b"here"),))
    assert present(queue) == {"waiting": 1}


def test_follow_ups_of_the_namespace(connect):
    assert leased(connect("g/a", namespace="one")).complete(then=[NewJob(b"x", queue="g/b")])
    assert present(connect("g/b", namespace="one")) == {"waiting": 1}
    assert present(connect("g/b")) == {}


def test_many_follow_ups(queue):
    """Hundreds of follow-ups of one job arrive, in order."""
    then = [NewJob(b"%d" % i) for i in range(500)]
    assert leased(queue).complete(then=then)
    assert payloads(queue.admin.waiting()) == [job.payload for job in then]


# -- release ---------------------------------------------------------------------------------------


def test_release(queue):
    """Released jobs are leased next in their first order, with no attempt spent (W-8, W-19)."""
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = queue.lease_many(4)
    for i in (2, 0, 3):
        assert leases[i].release() is True
    assert payloads(queue.admin.waiting()) == [b"0", b"2", b"3", b"4", b"5"]
    assert [state.state for state in queue.admin.waiting()] == ["parked"] * 3 + ["waiting"] * 2
    assert queue.admin.peek().payload == b"0"
    again = queue.lease_many(9)
    assert [lease.job.payload for lease in again] == [b"0", b"2", b"3", b"4", b"5"]
    assert [lease.job.attempt for lease in again] == [1] * 5


def test_release_again_and_again(queue):
    """However often a job is released, its attempt stays and its token grows."""
    queue.enqueue(b"x")
    assert queue.lease().retry()
    seen = []
    for _ in range(4):
        lease = queue.lease()
        seen.append((lease.job.attempt, lease.token))
        assert lease.release()
    assert seen == [(2, 2), (2, 3), (2, 4), (2, 5)]


# -- retry -----------------------------------------------------------------------------------------


def test_retry_goes_to_the_back(queue):
    """A retried job goes to the back. A job with an expired lease goes to the front (H-3)."""
    queue.enqueue_many([b"a", b"b", b"c"])
    a = queue.lease()
    assert a.retry() is True
    assert payloads(queue.admin.waiting()) == [b"b", b"c", b"a"]
    b = queue.lease(duration=0.001)
    assert b.job.payload == b"b"
    expire(queue)
    assert payloads(queue.admin.waiting()) == [b"b", b"c", b"a"]
    assert [(lease.job.payload, lease.job.attempt) for lease in queue.lease_many(3)] == [
        (b"b", 2),
        (b"c", 1),
        (b"a", 2),
    ]


@pytest.mark.parametrize("kind", ["seconds", "timedelta", "datetime"])
def test_retry_after_a_delay(queue, client, kind):
    """A retried job is delayed by the server's clock. It then goes to the back with its attempt
    spent (G-9)."""
    now = client.time()[0]
    moment = datetime.fromtimestamp(now + LONG, UTC)
    delay = {"seconds": LONG, "timedelta": timedelta(seconds=LONG), "datetime": moment}[kind]
    lease = leased(queue, id="a", headers={"a": "b"})
    assert lease.retry(delay, "not now") is True
    state = queue.find("a")
    assert (state.state, state.job.headers, state.job.attempt) == ("delayed", {"a": "b"}, 1)
    assert now + LONG <= state.due < now + LONG + 30
    assert queue.lease() is None
    assert queue.cancel("a")


@pytest.mark.parametrize("delay", [0, 0.0, None, timedelta(0), datetime(2001, 1, 1, tzinfo=UTC)])
def test_retry_at_once(queue, delay):
    """No delay, or a moment that has passed, is now."""
    assert leased(queue).retry(delay) is True
    assert queue.lease().job.attempt == 2


def test_retry_is_woken(queue):
    """A job that was retried with a delay comes back to a waiting client."""
    assert leased(queue, b"a").retry(timedelta(milliseconds=500)) is True
    assert queue.lease() is None
    lease = queue.lease(block=20)
    assert (lease.job.payload, lease.job.attempt, lease.token) == (b"a", 2, 2)


def test_max_attempts(connect):
    """A job has so many deliveries in all. Its last failure makes it a dead letter with a reason
    (H-2, G-7)."""
    queue = connect(max_attempts=3)
    queue.enqueue(b"x", id="a", headers={"h": "1"})
    for attempt in (1, 2, 3):
        lease = queue.lease()
        assert lease.job.attempt == attempt
        assert lease.release()
        lease = queue.lease()
        assert lease.job.attempt == attempt
        assert lease.retry(reason=f"failed {attempt} times") is True
    letter = next(queue.admin.dead())
    assert (letter.reason, letter.worker, letter.state) == ("failed 3 times", lease.worker, "dead")
    assert (letter.job.id, letter.job.payload, letter.job.attempt) == ("a", b"x", 3)
    assert letter.job.headers == {"h": "1"}
    assert lease.retry() is False
    assert queue.counts() == Counts(dead=1, enqueued=1)


def test_max_attempts_with_a_delay(connect):
    """The last failure is not delayed."""
    queue = connect(max_attempts=1)
    assert leased(queue).retry(LONG, "too late")
    assert present(queue) == {"dead": 1}


@pytest.mark.differs("order")
def test_leases_that_run_out_are_attempts(connect):
    """A job that kills its holders is dead after its last attempt (B-5)."""
    queue = connect(max_attempts=3)
    receipt = queue.enqueue(b"poison")
    queue.enqueue(b"fine")
    for attempt in (1, 2, 3):
        lease = queue.lease(duration=0.001)
        assert (lease.job.payload, lease.job.attempt) == (b"poison", attempt)
        expire(queue)
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt) == (b"fine", 1)
    letter = next(queue.admin.dead())
    assert (letter.job.id, letter.job.payload, letter.job.attempt) == (receipt.id, b"poison", 3)
    assert "no attempts left" in letter.reason
    assert present(queue) == {"leased": 1, "dead": 1}


@pytest.mark.parametrize("options", [{}, {"max_attempts": None}], ids=["20 attempts", "no end"])
def test_max_attempts_unless_said_otherwise(connect, options):
    """By default a job is a dead letter after 20 attempts. `None` means no limit."""
    queue = connect(**options)
    queue.enqueue(b"x")
    for attempt in range(1, 21):
        lease = queue.lease()
        assert lease.job.attempt == attempt
        assert lease.retry(reason="again")
    assert present(queue) == ({"waiting": 1} if options else {"dead": 1})


# -- dead_letter -----------------------------------------------------------------------------------


def test_dead_letter(queue, client):
    """A dead letter keeps all of its job, and why, when and by which worker it died."""
    before = client.time()[0]
    lease = leased(
        queue,
        b"\x00\xff",
        id="a",
        headers={"reason": "header", "worker": "header", "released": "header"},
    )
    lease.retry()
    lease = queue.lease()
    assert lease.dead_letter("no: é\n\x00 🙂") is True
    assert lease.dead_letter("again") is False
    (letter,) = queue.admin.dead()
    assert (letter.reason, letter.worker, letter.state) == ("no: é\n\x00 🙂", lease.worker, "dead")
    assert (letter.job.id, letter.job.payload, letter.job.attempt) == ("a", b"\x00\xff", 2)
    assert letter.job.headers == {"reason": "header", "worker": "header", "released": "header"}
    assert letter.job.enqueued_at == lease.job.enqueued_at
    assert before <= letter.since <= before + 30
    assert (queue.find("a").state, queue.find("a").reason) == ("dead", letter.reason)
    assert queue.lease() is None


def test_long_reasons(queue):
    """A reason is cut at 10,000 characters. A lone surrogate does not lose the job."""
    assert leased(queue).dead_letter("x" * 20_000)
    assert leased(queue).dead_letter("\ud800!")
    assert leased(queue).dead_letter("")
    assert [letter.reason for letter in queue.admin.dead()] == ["x" * 10_000, "\\ud800!", ""]


@pytest.mark.parametrize("limit", [0, 1, 2, 4, 9])
def test_dead_limit(connect, limit):
    """Exactly so many dead letters are kept, the newest ones. The others are counted as trimmed
    (H-4)."""
    queue = connect(dead_limit=limit, max_attempts=1)
    queue.enqueue_many([b"%d" % i for i in range(5)])
    for number, lease in enumerate(queue.lease_many(5)):
        assert lease.retry(reason="no") if number % 2 else lease.dead_letter("no")
        assert queue.counts().lost == 0
    kept = min(limit, 5)
    assert payloads(queue.admin.dead()) == [b"%d" % i for i in range(5 - kept, 5)]
    assert queue.counts() == Counts(enqueued=5, dead=kept, dead_trimmed=5 - kept)


# -- fences ----------------------------------------------------------------------------------------

DECIDE = {
    "release": lambda lease: lease.release(),
    "retry": lambda lease: lease.retry(),
    "retry later": lambda lease: lease.retry(LONG, "late"),
    "dead_letter": lambda lease: lease.dead_letter("late"),
    "renew": lambda lease: lease.renew(LONG),
    "complete fenced": lambda lease: lease.complete(fenced=True),
}


@pytest.mark.parametrize("who", ["nobody", "another", "the same", "a third"])
def test_stale_holders_decide_nothing(connect, who):
    """A client that lost a lease can't move the job, even if it holds the job again itself
    (W-20)."""
    queue = connect()
    lease = leased(queue, duration=0.001)
    expire(queue)
    if who == "another":
        connect().lease()
    elif who == "the same":
        assert queue.lease().worker == lease.worker
    elif who == "a third":
        connect().lease().release()
        connect().lease()
    before, running = queue.counts(), [state.worker for state in queue.admin.running()]
    assert {how: decide(lease) for how, decide in DECIDE.items()} == dict.fromkeys(DECIDE, False)
    assert queue.counts() == before
    assert [state.worker for state in queue.admin.running()] == running
    assert payloads(queue.admin.dead()) == []


@pytest.mark.differs("ops")
def test_tokens_grow(queue):
    """The token of a job grows with every delivery."""
    queue.enqueue(b"x", id="a")
    between = {
        "release": lambda lease: lease.release(),
        "retry": lambda lease: lease.retry(),
        "delay": lambda lease: lease.retry(0.001) and promote(queue) is None,
        "expire": lambda lease: lease.renew(0.001) and expire(queue) is None,
        "renew and release": lambda lease: lease.renew() and lease.renew() and lease.release(),
        "redrive": lambda lease: lease.dead_letter("no") and queue.admin.redrive() == 1,
        "redrive and release": lambda lease: (
            lease.release() and queue.lease().dead_letter("no") and queue.admin.redrive() == 1
        ),
        "no attempt spent": lambda lease: (
            queue._run(queue.ops.retry([(lease.claim, 0, False, "")])) == [True]
        ),
    }
    last, order = 0, [*between, *reversed(between), *list(between)[::2], *list(between)[1::2]]
    for step in order:
        lease = queue.lease()
        assert lease.token > last, step
        last = lease.token
        assert between[step](lease), step
    assert queue.counts().lost == 0


@pytest.mark.differs("ops")
def test_attempts(queue):
    """The attempt starts at 1 and counts deliveries without releases. It starts anew after a
    redrive."""
    queue.enqueue(b"x")
    steps = [
        ("release", 1, lambda lease: lease.release()),
        ("retry", 1, lambda lease: lease.retry()),
        ("expire", 2, lambda lease: lease.renew(0.001) and expire(queue) is None),
        ("release", 3, lambda lease: lease.release()),
        ("delay", 3, lambda lease: lease.retry(0.001) and promote(queue) is None),
        (
            "no attempt spent",
            4,
            lambda lease: queue._run(queue.ops.retry([(lease.claim, 0, False, "")])) == [True],
        ),
        ("dead", 4, lambda lease: lease.dead_letter("no")),
        ("redriven", 1, lambda lease: lease.release()),
        ("retry", 1, lambda lease: lease.retry()),
        ("last", 2, lambda lease: lease.dead_letter("no")),
    ]
    for step, attempt, act in steps:
        lease = queue.lease()
        assert lease.job.attempt == attempt, step
        assert act(lease), step
        if step == "dead":
            assert next(queue.admin.dead()).job.attempt == 4
            assert queue.admin.redrive() == 1
    assert next(queue.admin.dead()).job.attempt == 2


@pytest.mark.differs("ops")
def test_release_of_one_lease_given_twice(connect):
    """One call releases the same lease twice. The job is released once, and its later attempts
    count."""
    queue = connect(max_attempts=1)
    lease = leased(queue)
    assert queue._run(queue.ops.release([lease.claim, lease.claim])) == [True, False]
    assert present(queue) == {"parked": 1}
    again = queue.lease()
    assert again.job.attempt == 1
    assert again.retry(reason="failed")
    assert present(queue) == {"dead": 1}
