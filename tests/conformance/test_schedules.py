"""Recurring jobs. The server's clock decides, and each tick makes one job, however many clients
look."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

import headrace
from headrace import Counts, Schedule
from headrace._protocol.features import schedules as schedule_ops
from headrace.codecs import JSONCodec
from headrace.errors import TooManySchedules
from tests.support.awaiting import PATIENCE, until
from tests.support.facts import each
from tests.support.steps import LONG, key

HOUR = 3_600_000


def now(client):
    """Return the server's clock in ms."""
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def tick(job):
    """Return the time of a job's tick in ms."""
    return int(job.id.rpartition("@")[2])


def turn(queue):
    """Enqueue the jobs of due schedules, as a leasing client does."""
    for op in schedule_ops.plan_ticks(queue.ops, queue._run(schedule_ops.ticking(queue.ops))).ops:
        queue._run(op)


def overdue(queue, client, hours, **options):
    """Make a schedule whose next tick was due so many hours ago. Return the time of that tick."""
    queue.admin.schedule("s", b"x", every=3600, **options)
    due = now(client) - round(hours * HOUR)
    client.zadd(key("ticks"), {"s": due})
    return due


def test_schedules(queue, client):
    """They are listed, the next due first, until they are ended."""
    before = now(client)
    assert queue.admin.schedule("b", b"x", every=timedelta(hours=2))
    assert queue.admin.schedule("a", b"x", every=1.5, missed="skip")
    assert queue.admin.schedule("c", b"x", cron="0 0 1 1 *", timezone="Europe/Berlin", missed="all")
    a, b, c = queue.admin.schedules()
    assert a == Schedule("a", a.next_due, 1.5, None, None, "skip")
    assert b == Schedule("b", b.next_due, 7200.0, None, None, "once")
    assert c == Schedule("c", c.next_due, None, "0 0 1 1 *", "Europe/Berlin", "all")
    assert before + 1500 <= a.next_due * 1000 <= now(client) + 1500
    assert queue.counts() == Counts()
    assert [queue.admin.unschedule(name) for name in ("b", "b", "nobody")] == [True, False, False]
    assert [schedule.name for schedule in queue.admin.schedules()] == ["a", "c"]
    for name in ("a", "c"):
        assert queue.admin.unschedule(name)
    assert queue.admin.schedules() == []
    assert not client.exists(key("schedules"), key("ticks"))


def test_an_interval(queue, client):
    """Each tick makes one job with the tick in its id. None is early, and there is no drift."""
    assert queue.admin.schedule("s", b"x", every=0.15, missed="all", headers={"a": "b"})
    leases = []
    for _ in range(4):
        leases.append(queue.lease(block=PATIENCE))
        assert now(client) >= tick(leases[-1].job)
    jobs = [lease.job for lease in leases]
    assert {(job.payload, job.headers["a"], job.attempt, job.id[:2]) for job in jobs} == {
        (b"x", "b", 1, "s@")
    }
    assert {tick(after) - tick(before) for before, after in pairwise(jobs)} == {150}
    assert queue.complete_many(leases) == [True] * 4
    assert queue.admin.unschedule("s")
    queue.admin.purge()
    assert queue.counts().lost == 0
    assert not client.exists(key("ids"))


def test_a_cron_expression(connect, client):
    """The schedule has seconds, a time zone and a codec."""
    queue = connect(codec=JSONCodec())
    assert queue.admin.schedule(
        "s", {"a": 1}, cron="*/1 * * * * *", timezone=ZoneInfo("Asia/Kolkata"), missed="all"
    )
    first, second = queue.lease(block=PATIENCE).job, queue.lease(block=PATIENCE).job
    assert (first.payload, tick(first) % 1000, tick(second) - tick(first)) == ({"a": 1}, 0, 1000)


@pytest.mark.differs("keys")
def test_replaced(queue, client):
    """A schedule with the same timing goes on unchanged, however often a program declares it.
    Another timing starts anew.
    """
    due = overdue(queue, client, -0.5)
    assert not queue.admin.schedule("s", b"new", every=3600, missed="all", headers={"h": "1"})
    (schedule,) = queue.admin.schedules()
    assert (round(schedule.next_due * 1000), schedule.missed) == (due, "all")
    client.zadd(key("ticks"), {"s": due - HOUR})
    job = queue.lease(block=PATIENCE).job
    assert (job.payload, dict(job.headers), tick(job)) == (b"new", {"h": "1"}, due - HOUR)
    assert not queue.admin.schedule("s", b"other", cron="0 0 1 1 *")
    assert not queue.admin.schedule("s", b"other", every=7200)
    (schedule,) = queue.admin.schedules()
    assert schedule.next_due * 1000 >= now(client) + 2 * HOUR - 60_000
    turn(queue)
    assert queue.counts() == Counts(leased=1, enqueued=1)


@pytest.mark.differs("keys")
def test_the_last_run(queue, client):
    """It is the last tick whose job was enqueued, and stays known when the schedule is replaced."""
    due = overdue(queue, client, 0.5)
    assert (queue.admin.schedules()[0].last_run, queue.admin.schedules()[0].last_id) == (None, None)
    turn(queue)
    for every in (3600, 7200):
        queue.admin.schedule("s", b"x", every=every)
        (schedule,) = queue.admin.schedules()
        assert (round(schedule.last_run * 1000), schedule.last_id) == (due, f"s@{due}")
    assert queue.find(schedule.last_id).state == "waiting"
    client.zadd(key("ticks"), {"s": due})
    turn(queue)  # the job of this tick is there already
    assert queue.admin.schedules()[0].last_id == f"s@{due}"
    assert queue.counts().enqueued == 1


@pytest.mark.differs("keys")
@pytest.mark.parametrize(("missed", "ran"), [("skip", 0), ("once", 1), ("all", 3)])
def test_paused_and_resumed(queue, client, missed, ran):
    """A paused schedule makes no job, even if it is replaced. Its policy then decides about the
    ticks of the pause."""
    due = overdue(queue, client, 2.5, missed=missed)
    late = schedule_ops.plan_ticks(queue.ops, queue._run(schedule_ops.ticking(queue.ops))).ops
    assert [queue.admin.pause_schedule(name) for name in ("s", "s", "nobody")] == [
        True,
        False,
        False,
    ]
    assert [queue._run(op) for op in late] == [False]
    assert not queue.admin.schedule("s", b"x", every=3600, missed=missed)
    (schedule,) = queue.admin.schedules()
    assert (schedule.paused, round(schedule.next_due * 1000)) == (True, due)
    turn(queue)
    assert queue.counts() == Counts()
    assert [queue.admin.resume_schedule(name) for name in ("s", "s", "nobody")] == [
        True,
        False,
        False,
    ]
    turn(queue)
    assert queue.counts().waiting == ran
    assert queue.admin.pause_schedule("s")
    assert not queue.admin.schedule("s", b"x", every=7200)
    assert queue.admin.schedules()[0].paused
    assert queue.admin.unschedule("s")
    assert queue.admin.schedule("s", b"x", every=7200)
    assert not queue.admin.schedules()[0].paused


@pytest.mark.differs("keys")
def test_a_resumed_one_goes_on(queue, client):
    """The script wakes a client that waits for jobs."""
    queue.admin.schedule("s", b"x", every=0.2)
    assert queue.admin.pause_schedule("s")
    assert queue.lease(block=0.5) is None
    client.xtrim(key("wake"), maxlen=0)
    assert queue.admin.resume_schedule("s")
    assert client.xlen(key("wake")) == 1
    assert queue.lease(block=PATIENCE).job.payload == b"x"


@pytest.mark.differs("keys")
def test_run_now(queue, client):
    """Each call enqueues a job with its own id, of a paused schedule too. The next tick stays."""
    due = overdue(queue, client, -1, headers={"kind": "k"})
    assert queue.admin.run_schedule("nobody") is None
    first = queue.admin.run_schedule("s")
    queue.admin.pause_schedule("s")
    ids = [first, *(queue.admin.run_schedule("s") for _ in range(20))]
    assert len(set(ids)) == 21
    (schedule,) = queue.admin.schedules()
    assert (round(schedule.next_due * 1000), schedule.last_id, schedule.paused) == (
        due,
        ids[-1],
        True,
    )
    assert abs(schedule.last_run * 1000 - now(client)) < 60_000
    jobs = [lease.job for lease in queue.lease_many(50)]
    assert [job.id for job in jobs] == ids
    assert {(job.payload, job.headers["kind"]) for job in jobs} == {(b"x", "k")}
    assert queue.counts().enqueued == 21


@pytest.mark.differs("ops")
def test_replaced_while_somebody_decides(queue, client):
    """A client that looked before the schedule was replaced or removed enqueues no job of the old
    one."""
    overdue(queue, client, 0.5)
    late = schedule_ops.plan_ticks(queue.ops, queue._run(schedule_ops.ticking(queue.ops))).ops
    queue.admin.schedule("s", b"new", every=1800)
    assert [queue._run(op) for op in late] == [False]
    queue.admin.unschedule("s")
    assert [queue._run(op) for op in late] == [False]
    assert queue.counts() == Counts()


@pytest.mark.differs("ops")
@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("once", [3]), ("all", [0, 1, 2, 3])])
def test_missed(queue, client, missed, hours):
    """No client was there for three and a half hours. The schedule then goes on in its old
    rhythm."""
    due = overdue(queue, client, 3.5, missed=missed)
    turn(queue)
    turn(queue)
    assert [tick(state.job) for state in queue.admin.waiting()] == [
        due + hour * HOUR for hour in hours
    ]
    (schedule,) = queue.admin.schedules()
    assert round(schedule.next_due * 1000) == due + 4 * HOUR
    assert queue.counts() == Counts(waiting=len(hours), enqueued=len(hours))


@pytest.mark.differs("ops")
def test_missed_for_very_long(queue, client):
    """With `all`, the latest thousand ticks are enqueued, 250 a script."""
    due = overdue(queue, client, 5000.5, missed="all")
    for waiting in (250, 500, 750, 1000, 1000):
        turn(queue)
        assert queue.counts().waiting == waiting
    assert tick(queue.admin.peek()) == due + 4001 * HOUR


@pytest.mark.differs("ops")
def test_one_job_a_tick_however_many_look(server, client):
    """Many clients see the same due ticks at once."""
    peers = [server.queue("q") for _ in range(8)]
    due = overdue(peers[0], client, 20.5, missed="all")
    together = threading.Barrier(len(peers))

    def look(queue):
        ops = schedule_ops.plan_ticks(queue.ops, queue._run(schedule_ops.ticking(queue.ops))).ops
        together.wait(PATIENCE)
        return [queue._run(op) for op in ops]

    with ThreadPoolExecutor(len(peers)) as pool:
        verdicts = list(pool.map(look, peers))
    assert sorted(verdicts) == [[False]] * 7 + [[True]]
    assert [tick(state.job) for state in peers[0].admin.waiting()] == [
        due + hour * HOUR for hour in range(21)
    ]
    for queue in peers:
        queue.close()


@pytest.mark.differs("keys")
def test_an_id_that_is_taken(queue, client):
    """A foreign job with the id of a tick stands for the tick, and the schedule goes on."""
    due = overdue(queue, client, 1.5, missed="all")
    assert queue.enqueue(b"mine", id=f"s@{due}").added
    turn(queue)
    assert [(tick(state.job) - due, state.job.payload) for state in queue.admin.waiting()] == [
        (0, b"mine"),
        (HOUR, b"x"),
    ]


@pytest.mark.differs("ops")
def test_schedules_and_the_whole_queue(queue, client, server):
    """Purging keeps schedules and deleting removes them. A queue with a schedule exists. Its
    enqueued jobs can be cancelled.
    """
    due = overdue(queue, client, 0.5)
    assert headrace.queues(client) == ["q"]
    turn(queue)
    assert queue.find(f"s@{due}").state == "waiting"
    assert queue.cancel(f"s@{due}")
    client.zadd(key("ticks"), {"s": due})
    turn(queue)
    assert queue.admin.purge() == 1
    assert [schedule.name for schedule in queue.admin.schedules()] == ["s"]
    client.zadd(key("ticks"), {"s": due})
    turn(queue)
    assert queue.admin.delete() == 1
    assert queue.admin.schedules() == []
    turn(queue)
    assert queue.counts() == Counts(enqueued=3, cancelled=1, deleted=2)


@pytest.mark.differs("keys")
def test_what_somebody_else_wrote_stops_nobody(queue, client):
    """An unreadable schedule and a tick without a schedule do not stop the others."""
    due = overdue(queue, client, 0.5)
    record = client.hget(key("schedules"), "s")
    client.hset(key("schedules"), "bad", record.replace(b"every 3600000", b"wrong 360000x"))
    client.zadd(key("ticks"), {"bad": due - 5, "lost": due - 6})
    lease = queue.lease(block=PATIENCE)
    assert tick(lease.job) == due
    wrong = schedule_ops.plan_ticks(queue.ops, queue._run(schedule_ops.ticking(queue.ops))).wrong
    assert len(wrong) == 1
    assert "schedule 'bad' of queue 'q'" in wrong[0]


@pytest.mark.differs("parts")
def test_too_many(queue, client):
    """A queue has at most a thousand schedules. Existing ones can be replaced."""
    queue.admin.schedule("s", b"x", every=LONG)
    client.hset(key("schedules"), mapping={f"s{i}": b"" for i in range(999)})
    with pytest.raises(TooManySchedules, match="1000 schedules"):
        queue.admin.schedule("t", b"x", every=LONG)
    assert not queue.admin.schedule("s", b"y", every=LONG)


@each(
    ("arguments", "error", "says"),
    [
        (("s", b"x"), ValueError, "every= or cron="),
        (("", b"x", 5), ValueError, "''"),
        ((5, b"x", 5), TypeError, "str"),
        (("s" * 401, b"x", 5), ValueError, "400 bytes"),
        (("s", 5, 5), TypeError, "payload"),
        (("s", b"x", 0.01), ValueError, "every=0.01"),
        (("s", b"x", None, "* * * *"), ValueError, "cron"),
        (("s", b"x", None, "* * * * *", "Mars/Olympus"), ValueError, "timezone"),
        (("s", b"x", 5, None, None, "sometimes"), ValueError, "missed"),
        (("s", b"x", 5, None, None, "once", {"data": "x"}), ValueError, "header"),
    ],
)
def test_refused_before_anything_is_sent(nowhere, arguments, error, says):
    queue = nowhere()
    names = ("every", "cron", "timezone", "missed", "headers")
    with pytest.raises(error, match=says):
        queue.admin.schedule(*arguments[:2], **dict(zip(names, arguments[2:], strict=False)))
    with pytest.raises((TypeError, ValueError)):
        queue.admin.unschedule("")


@pytest.mark.differs("keys")
def test_a_reader_that_waits_takes_part(connect, client):
    """A plain `lease` that blocks enqueues the jobs of schedules that come due meanwhile."""
    queue = connect()
    overdue(queue, client, 0.5)
    assert queue.lease(block=PATIENCE).complete()
    client.zadd(key("ticks"), {"s": now(client) + 300})
    lease = queue.lease(block=PATIENCE)
    assert now(client) >= tick(lease.job)
    until(lambda: queue.admin.schedules()[0].next_due * 1000 > now(client))


def test_schedules_that_are_too_much_for_one_answer(newest_connect, newest):
    queue = newest_connect()
    names = {f"s{n}": b"%d" % n * 700_000 for n in range(4)}
    for name, payload in names.items():
        queue.admin.schedule(name, payload, every=3600)
    assert [schedule.name for schedule in queue.admin.schedules()] == [*names]
    with newest.client() as client:
        client.zadd("headrace:{q}:q:ticks", {name: now(client) - 1 for name in names})
    found = {}
    while len(found) < len(names):
        found |= {
            lease.job.id.partition("@")[0]: lease.job.payload
            for lease in queue.lease_many(4, block=5)
        }
    assert found == names
