"""Rate limits of the whole queue and of the values of a header. They use the server's clock and are
exact."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter

import pytest
import redis

from headrace import Counts, NewJob, Queue, Rate
from headrace.inspect import Repairs
from tests.support.awaiting import until
from tests.support.facts import each

pytestmark = pytest.mark.differs("rate")

SLOW = Rate(3, per=600)
BY_GROUP = Rate(3, per=600, key="group")


def jobs(number, groups):
    return [NewJob(b"%d" % i, id=f"{i}", headers={"group": f"{i % groups}"}) for i in range(number)]


def pass_by(client, queue, seconds):
    """Age every bucket, and the jobs that wait for one, by so many seconds."""
    for part in ("rates", "limited"):
        key = queue.ops.keys.key(part)
        scores = client.zrange(key, 0, -1, withscores=True)
        if scores:
            client.zadd(key, {member: score - seconds * 1000 for member, score in scores})


def now(client):
    seconds, micros = client.time()
    return seconds + micros / 1e6


def payloads(leases):
    return [lease.job.payload for lease in leases]


# -- of the whole queue ----------------------------------------------------------------------------


def test_no_more_than_the_burst_at_once(connect, client):
    """Jobs above the limit stay in place and in order. A token later one more is leased."""
    queue = connect(rate=SLOW)
    queue.enqueue_many(b"%d" % i for i in range(6))
    assert payloads(queue.lease_many(10)) == [b"0", b"1", b"2"]
    assert queue.lease_many(10) == []
    assert queue.counts() == Counts(waiting=3, leased=3, enqueued=6)
    pass_by(client, queue, 199)
    assert queue.lease_many(10) == []
    pass_by(client, queue, 2)
    (lease,) = queue.lease_many(10)
    assert (lease.job.payload, lease.job.attempt) == (b"3", 1)
    pass_by(client, queue, 6000)
    assert payloads(queue.lease_many(10)) == [b"4", b"5"]


def test_a_burst_of_its_own(connect):
    queue = connect(rate=Rate(10, per=600, burst=2))
    queue.enqueue_many([b"x"] * 5)
    assert len(queue.lease_many(5)) == 2


def test_the_tightest_of_several_limits_decides(connect, client):
    queue = connect(rate=[Rate(4, per=600), Rate(3, per=6)])
    queue.enqueue_many([b"x"] * 9)
    assert len(queue.lease_many(9)) == 3
    pass_by(client, queue, 10)
    assert len(queue.lease_many(9)) == 1


def test_never_faster_than_the_rate(connect, client):
    """The last of 12 jobs can't be leased before its token is there, however many ask."""
    queue = connect(rate=Rate(100, burst=2))
    queue.enqueue_many([b"x"] * 12)
    start = now(client)
    leases = [queue.lease(block=10) for _ in range(12)]
    assert all(leases)
    assert now(client) - start >= 10 / 100 - 0.002  # the server counts in whole milliseconds


def test_what_the_limit_cut_short_tells_when_there_is_more(server):
    """The time of the next token comes with the last leased job, unless the jobs ended first."""
    with server.queue("q", rate=Rate(3, per=600)) as queue:
        queue.enqueue_many([b"x"] * 4)
        two, one, none = (queue._executor.run(queue.ops.lease("w", 2, ttl=60.0)) for _ in range(3))
        assert [len(grant.claims) for grant in (two, one, none)] == [2, 1, 0]
        assert [grant.paused for grant in (two, one, none)] == [False, True, True]
        assert two.next_due is None
        assert 100 < none.next_due <= one.next_due <= 200
    with server.queue("q", rate=Rate(1000, per=1000, burst=2000)) as queue:
        grant = queue._executor.run(queue.ops.lease("w", 2, ttl=60.0))
        assert (len(grant.claims), grant.paused, grant.next_due) == (1, False, None)


def test_a_reader_waits_for_the_token_and_does_not_spin(connect, client):
    queue = connect(rate=Rate(1, per=600))
    queue.enqueue_many([b"x"] * 5)
    assert queue.lease()
    assert queue.lease() is None  # every script is known
    client.config_resetstat()
    assert queue.lease(block=1.0) is None
    asked = client.info("commandstats")
    assert asked["cmdstat_evalsha"]["calls"] <= 5
    assert queue.counts() == Counts(waiting=4, leased=1, enqueued=5)


def test_many_workers_share_one_limit(newest):
    """Eight threads with their own clients together get as many jobs as the bucket holds."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue_many([b"x"] * 200)
    got = []

    def take():
        with Queue("q", url=newest.url, rate=Rate(50, per=6000)) as mine:
            for _ in range(20):
                got.extend(mine.lease_many(7))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 50


# -- of a header's values --------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "groups", "delayed"), [(10, 2, 4), (60, 4, 48)])
def test_each_value_has_a_limit_of_its_own(connect, number, groups, delayed):
    """Jobs above the limit of their group wait as delayed and do not stop the others (G-10)."""
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(number, groups))
    leases = queue.lease_many(1000)
    assert payloads(leases) == [b"%d" % i for i in range(3 * groups)]
    assert queue.lease_many(1000) == []
    assert queue.counts() == Counts(leased=3 * groups, delayed=delayed, enqueued=number)


def test_jobs_without_the_header_have_no_limit(connect):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many([*jobs(8, 1), *[b"plain"] * 8])
    assert payloads(queue.lease_many(100)) == [b"0", b"1", b"2", *[b"plain"] * 8]


def test_they_come_in_their_order_one_step_apart_with_no_attempt_spent(connect, client):
    queue = connect(rate=BY_GROUP, max_attempts=2)
    queue.enqueue_many(jobs(8, 1))
    assert len(queue.lease_many(100)) == 3
    states = list(queue.admin.delayed())
    assert [state.job.id for state in states] == ["3", "4", "5", "6", "7"]
    dues = [state.due for state in states]
    assert all(190 < later - due < 210 for due, later in itertools.pairwise(dues))
    assert 100 < dues[0] - now(client) <= 200.001  # a moment is a whole millisecond
    assert (queue.find("5").state, queue.find("5").due) == ("delayed", dues[2])
    queue.enqueue_many([NewJob(b"later", headers={"group": "0"})])
    for expected in [b"3", b"4", b"5", b"6", b"7", b"later"]:
        assert queue.lease_many(100) == []
        pass_by(client, queue, 201)
        (lease,) = queue.lease_many(100)
        assert (lease.job.payload, lease.job.attempt, lease.token) == (expected, 1, 1)
    assert not client.exists(queue.ops.keys.key("limited"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("burst", [1, 3])
def test_takers_that_come_late_change_no_order(server, client, seed, burst):
    """Two clients lease one or several jobs at any time. The jobs of a value come in the order of
    the queue."""
    chance = random.Random(seed)
    rate, names = Rate(1, per=600, burst=burst, key="group"), "ab"
    with server.queue("q", rate=rate) as one, server.queue("q", rate=rate) as two:
        one.enqueue_many(
            NewJob(b"%d" % i, headers={"group": chance.choice(names)}) for i in range(60)
        )
        got = {name: [] for name in names}
        while sum(map(len, got.values())) < 60:
            for lease in chance.choice([one, two]).lease_many(chance.choice([1, 1, 2, 30])):
                got[lease.job.headers["group"]].append(int(lease.job.payload))
                assert lease.complete()
            pass_by(client, one, chance.choice([1, 200, 590, 610, 700, 1500]))
    assert all(numbers == sorted(numbers) for numbers in got.values())


def test_a_new_job_waits_behind_all_that_are_due(connect, client):
    """More jobs with tokens are due than a call looks at."""
    queue = connect(rate=Rate(1, per=600, burst=120, key="group"))
    queue.enqueue_many(jobs(300, 1))
    assert len(queue.lease_many(1000)) == 120
    pass_by(client, queue, 1_000_000)
    queue.enqueue(b"new", headers={"group": "0"})
    assert payloads(queue.lease_many(1000)) == [b"%d" % i for i in range(120, 240)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_so_many_may_be_due_at_once_that_a_call_does_not_see_them_all(newest, seed):
    """The order is kept again and again, as after hours without workers."""
    chance, got = random.Random(seed), []
    with (
        Queue("q", url=newest.url, rate=Rate(1, per=600, key="group")) as queue,
        redis.from_url(newest.url) as client,
    ):
        queue.enqueue_many(jobs(300, 1))
        while len(got) < 200:
            for lease in queue.lease_many(chance.choice([1, 30, 1000])):
                got.append(int(lease.job.payload))
                assert lease.complete()
            pass_by(client, queue, chance.choice([1, 590, 700, 30_000_000]))
    assert got == sorted(got)


def test_what_waits_too_long_does_not_come_all_at_once(connect, client):
    """After an hour without workers a group has its burst, not an hour's jobs."""
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(20, 1))
    queue.lease_many(3)
    queue.lease_many(100)
    pass_by(client, queue, 36_000)
    assert payloads(queue.lease_many(100)) == [b"3", b"4", b"5"]
    assert queue.lease_many(100) == []
    pass_by(client, queue, 201)
    assert payloads(queue.lease_many(100)) == [b"6"]


def test_a_newer_job_does_not_overtake_those_that_wait(connect, client):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(5, 1))
    queue.lease_many(100)
    pass_by(client, queue, 201)
    queue.enqueue(b"new", headers={"group": "0"})
    assert payloads(queue.lease_many(100)) == [b"3"]


def test_released_and_retried_jobs_spend_a_token_again(connect, client):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(3, 1))
    one, two, three = queue.lease_many(3)
    assert (one.release(), two.retry()) == (True, True)
    assert queue.lease_many(3) == []
    assert queue.counts() == Counts(delayed=2, leased=1, enqueued=3)
    pass_by(client, queue, 6000)
    again = queue.lease_many(3)
    assert [(lease.job.payload, lease.job.attempt) for lease in again] == [(b"0", 1), (b"1", 2)]
    assert queue.complete_many([*again, three]) == [True] * 3


def test_what_waits_can_be_cancelled_purged_and_deleted(connect, client):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(7, 1))
    queue.lease_many(100)
    assert (queue.cancel("3"), queue.find("3")) == (True, None)
    assert queue.admin.cancel_payload(b"4") == 1
    assert [state.job.id for state in queue.admin.delayed()] == ["5", "6"]
    assert queue.admin.purge() == 2
    assert queue.counts() == Counts(leased=3, enqueued=7, cancelled=2, deleted=2)
    queue.enqueue_many([NewJob(b"x", headers={"group": "0"})] * 3)
    queue.lease_many(100)
    assert queue.admin.delete() == 6
    assert queue.counts() == Counts(enqueued=10, cancelled=2, deleted=8)
    for part in ("rates", "limited"):
        assert not client.exists(queue.ops.keys.key(part))


def test_a_new_job_waits_behind_nobody_who_was_cancelled(connect, client):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(8, 1))
    queue.lease_many(100)
    for waiting in queue.admin.delayed():
        assert queue.cancel(waiting.job.id)
    pass_by(client, queue, 201)
    queue.enqueue(b"new", headers={"group": "0"})
    assert payloads(queue.lease_many(100)) == [b"new"]


def test_what_waits_has_no_lease_to_end(connect):
    """`expire()` ends leases. A job that waits for its turn goes on waiting."""
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(5, 1))
    queue.lease_many(100)
    assert queue.admin.expire() == 3
    assert queue.admin.expire("3", "4") == 0
    assert queue.counts() == Counts(parked=3, delayed=2, enqueued=5)


VERBS = {
    "find": (lambda q: (q.find("4").state, q.find("4").job.attempt), ("delayed", 1), {}),
    "delayed": (lambda q: [state.job.id for state in q.admin.delayed()], ["3", "4"], {}),
    "waiting": (lambda q: list(q.admin.waiting()), [], {}),
    "running": (lambda q: [state.job.id for state in q.admin.running()], ["0", "1", "2"], {}),
    "peek": (lambda q: q.admin.peek(), None, {}),
    "position": (lambda q: q.admin.position("4"), None, {}),
    "result": (lambda q: q.results(["4"], timeout=0.01), {}, {}),
    "drain": (lambda q: q.admin.drain(timeout=0.01), False, {}),
    "repair": (lambda q: q.admin.repair(), Repairs(), {}),
    "expire": (lambda q: q.admin.expire("4"), 0, {}),
    "redrive": (lambda q: q.admin.redrive("4"), 0, {}),
    "enqueue again": (lambda q: q.enqueue(b"x", id="4").added, False, {}),
    "reschedule": (lambda q: q.admin.reschedule("4", 60), True, {}),
    "reschedule to now": (lambda q: q.admin.reschedule("4", 0), True, {"delayed": 1, "waiting": 1}),
    "cancel": (lambda q: q.cancel("4"), True, {"delayed": 1, "cancelled": 1}),
    "cancel_payload": (lambda q: q.admin.cancel_payload(b"4"), 1, {"delayed": 1, "cancelled": 1}),
    "move": (lambda q: q.admin.move("q/other", "4"), 1, {"delayed": 1, "deleted": 1}),
    "move all": (lambda q: q.admin.move("q/other"), 2, {"delayed": 0, "deleted": 2}),
    "purge": (lambda q: q.admin.purge(), 2, {"delayed": 0, "deleted": 2}),
    "delete": (lambda q: q.admin.delete(), 5, {"leased": 0, "delayed": 0, "deleted": 5}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_limit_holds_back_is_delayed_for_every_verb(connect, verb):
    queue = connect("q/one", rate=BY_GROUP)
    queue.enqueue_many(jobs(5, 1))
    queue.lease_many(100)
    act, answer, change = VERBS[verb]
    if verb.startswith("move"):
        act, target = (lambda q: q.admin.move("q/two", *["4"] * (verb == "move"))), connect("q/two")
    assert act(queue) == answer
    assert queue.counts() == Counts(**{"leased": 3, "delayed": 2, "enqueued": 5} | change)
    if verb.startswith("move"):
        moved = ["3", "4"] if verb == "move all" else ["4"]
        assert [lease.job.id for lease in target.lease_many(10)] == moved


def test_what_is_rescheduled_comes_when_it_was_told_to_and_under_the_limit(connect, client):
    queue = connect(rate=BY_GROUP, max_attempts=3)
    queue.enqueue_many([*jobs(5, 1), NewJob(b"x", headers={"group": "0"})])
    first = queue.lease_many(100)
    assert first[0].retry()  # it has been delivered, and goes behind the others
    queue.lease_many(100)
    nameless = next(state.job.id for state in queue.admin.delayed() if state.job.payload == b"x")
    assert queue.admin.reschedule("0", 30)
    assert queue.admin.reschedule(nameless, 20)
    assert queue.admin.reschedule("3", 0)
    due = {state.job.id: state.due - now(client) for state in queue.admin.delayed()}
    assert 20 < due["0"] <= 30
    assert 10 < due[nameless] <= 20
    assert queue.lease_many(100) == []  # the bucket has no token
    client.zadd(queue.ops.keys.key("delayed"), {"0": 1, nameless: 2})
    queue.lease_many(100)
    pass_by(client, queue, 6000)
    assert [lease.job.id for lease in queue.lease_many(100)] == ["4", "3", "0"]
    pass_by(client, queue, 6000)
    (last,) = queue.lease_many(100)
    assert (last.job.id, last.job.attempt) == (nameless, 1)
    assert queue.counts() == Counts(leased=6, enqueued=6)


def test_more_than_a_page_waits(connect):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many([*jobs(1500, 1), NewJob(b"last", headers={"group": "other"})])
    leases = []
    while more := queue.lease_many(100):
        leases += more
    assert payloads(leases) == [b"0", b"1", b"2", b"last"]
    assert [state.job.id for state in queue.admin.delayed()] == [f"{i}" for i in range(3, 1500)]


def test_without_the_limit_what_waits_is_handed_out_when_it_is_due(connect, client):
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(5, 1))
    queue.lease_many(100)
    plain = connect()
    assert plain.lease_many(100) == []
    pass_by(client, queue, 6000)
    assert payloads(plain.lease_many(100)) == [b"3", b"4"]


def test_a_lost_due_time_loses_no_job(connect, client):
    """The key is deleted by hand. A sweep finds the jobs that have waited for a second."""
    queue = connect(rate=BY_GROUP)
    queue.enqueue_many(jobs(5, 1))
    queue.lease_many(100)
    client.delete(queue.ops.keys.key("limited"), queue.ops.keys.key("rates"))
    fresh, found = connect(), []  # sweeps go with lease calls
    until(lambda: found.extend(fresh.lease_many(100)) or found)
    assert payloads(found) == [b"3", b"4"]


def test_full_buckets_are_forgotten(connect, client):
    queue = connect(rate=Rate(10, per=0.001, key="group"))
    leases = []
    queue.enqueue_many(jobs(300, 300))
    for _ in range(30):
        leases += queue.lease_many(10, block=1)
    assert len(leases) == 300
    # those of so many calls as fit into a millisecond
    assert client.zcard(queue.ops.keys.key("rates")) <= 100
    queue.lease(block=0.01)
    assert client.zcard(queue.ops.keys.key("rates")) == 0


def test_no_window_has_more_than_burst_and_rate_admit(newest):
    """Three clients lease jobs of three groups as fast as they can. No window of any group exceeds
    the limit."""
    rate, groups, number = Rate(200, burst=4, key="group"), "abc", 25
    with Queue("q", url=newest.url) as queue:
        names = list(groups * number)
        random.Random(7).shuffle(names)
        queue.enqueue_many(NewJob(b"x", headers={"group": name}) for name in names)
    starts, lock = [], threading.Lock()

    def take():
        with Queue("q", url=newest.url, rate=rate) as mine:
            while lease := mine.lease(block=2):
                with lock:
                    starts.append((lease.job.headers["group"], lease.claim.leased_at))
                assert lease.complete()

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(name for name, _ in starts) == dict.fromkeys(groups, number)
    for group in groups:
        times = sorted(at for name, at in starts if name == group)
        for first, last in itertools.combinations(range(number), 2):
            held = (times[last] - times[first] + 0.001) * 200 + 4
            assert last - first + 1 <= held + 0.01


@each(
    ("options", "error", "says"),
    [
        ({"limit": 0}, ValueError, "limit=0"),
        ({"limit": 1.5}, TypeError, "limit"),
        ({"limit": 1, "per": 0}, ValueError, "per=0"),
        ({"limit": 1, "burst": 0}, ValueError, "burst=0"),
        ({"limit": 1, "key": "id"}, ValueError, "header name 'id'"),
        ({"limit": 1, "key": 5}, TypeError, "headers must map"),
    ],
)
def test_bad_limits(options, error, says):
    with pytest.raises(error, match=says):
        Rate(**options)


@pytest.mark.differs(None)
@pytest.mark.parametrize("rate", [5, "3/s", [5]])
def test_what_is_no_limit(connect, rate):
    with pytest.raises(TypeError, match="rate must be a Rate"):
        connect(rate=rate)


# -- a clock that goes back ------------------------------------------------------------------------


def test_the_clock_goes_back(connect, client):
    """A bucket is at most empty, so there is a token one step later."""
    queue = connect(rate=Rate(20, burst=4))
    queue.enqueue_many([b"x"] * 8)
    assert len(queue.lease_many(8)) == 4
    pass_by(client, queue, -600)
    start = now(client)
    assert all(queue.lease(block=10) for _ in range(4))
    assert 4 / 20 - 0.05 <= now(client) - start < 5


AT_ONCE = """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1], ARGV[2])
"""


def test_a_job_put_off_for_an_instant_stays_before_those_behind_it(connect, client):
    """A token may come 1 ms early, and times are rounded up. A call right before that does not
    lease the later job first.
    """
    queue = connect(rate=Rate(20, burst=2, key="group"), lease=600)
    queue.enqueue_many(jobs(4, 1))
    assert len(queue.lease_many(4)) == 2
    third, fourth = client.zrange(queue.ops.keys.key("limited"), 0, -1)
    client.delete(queue.ops.keys.key("rates"))  # tokens for both
    limited = queue.ops.keys.key("limited")
    op = queue.ops.lease("w", 1, ttl=60)
    with client.pipeline(transaction=True) as pipe:  # at one instant
        pipe.eval(AT_ONCE, 1, limited, 1, third)
        pipe.eval(AT_ONCE, 1, limited, -100, fourth)
        pipe.execute_command(*op.wire())
        grant = op.decode(pipe.execute()[-1])
    assert [claim.job.id for claim in grant.claims] == ["2"]


def test_the_clock_goes_back_for_a_key(connect, client):
    """A job that waits for its key's bucket becomes due earlier by the same time. Later jobs wait
    behind it."""
    queue = connect(rate=Rate(20, burst=2, key="group"), lease=600)
    queue.enqueue_many(jobs(8, 1))
    assert len(queue.lease_many(8)) == 2
    pass_by(client, queue, -600)
    seconds, micros = client.time()
    at = round((seconds + micros / 1e6) * 1000)
    pulse = f"1000 {at + 600_000} 0 0 10000 {client.info('server')['run_id']}"
    client.hset(queue.ops.keys.key("stats"), "pulse", pulse)
    assert queue._run(queue.ops.reclaim("young", 10.0)).declared == 0
    queue.enqueue(b"8", id="8", headers={"group": "0"})
    start = now(client)
    leased = [queue.lease(block=10) for _ in range(7)]
    assert [lease.job.id for lease in leased] == [f"{number}" for number in range(2, 9)]
    assert now(client) - start < 8
