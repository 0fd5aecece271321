"""The first calls of a user, names, and bad arguments."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from redis.crc import key_slot

from headrace import AsyncLease, AsyncQueue, ConfigurationError, Counts, Lease, NewJob, Queue
from headrace._model.job import Claim, Job
from headrace.codecs import JSONCodec
from tests.support.colours import bare
from tests.support.facts import each
from tests.support.steps import LONG, expire, leased, payloads, present


def test_enqueue_lease_complete(queue):
    receipt = queue.enqueue(b"a")
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload, lease.job.attempt) == (receipt.id, b"a", 1)
    assert (lease.job.queue, lease.job.headers, bool(lease.job.lost)) == ("q", {}, False)
    assert lease.complete() is True
    assert lease.complete() is False
    assert queue.complete(lease) is False
    assert list(queue.admin.waiting()) == []
    assert queue.counts() == Counts(enqueued=1, completed=1)


def test_nothing_there(queue):
    """On a queue that never existed, every verb answers, none raises, and none creates a key."""
    assert queue.counts() == Counts()
    assert queue.admin.peek() is None
    assert [
        list(listing())
        for listing in (
            queue.admin.waiting,
            queue.admin.running,
            queue.admin.delayed,
            queue.admin.dead,
        )
    ] == [[]] * 4
    assert (
        queue.find("a"),
        queue.result("a"),
        queue.cancel("a"),
        queue.admin.cancel_payload(b"a"),
    ) == (
        None,
        None,
        False,
        0,
    )
    assert (
        queue.admin.redrive(),
        queue.admin.purge(),
        queue.admin.purge_dead(),
        queue.admin.workers(),
    ) == (
        0,
        0,
        0,
        [],
    )
    assert (queue.admin.delete(), queue.complete_many([]), queue.enqueue_many([])) == (0, [], [])
    assert queue.lease() is None
    assert queue.lease_many(10) == []
    assert queue.counts() == Counts()


@pytest.mark.differs("order")
def test_first_in_first_out(queue):
    """Jobs are leased in the order of their enqueues, one by one and many at once (W-6)."""
    jobs = [b"%d" % i for i in range(20)]
    for job in jobs[:5]:
        queue.enqueue(job)
    queue.enqueue_many(jobs[5:])
    assert payloads(queue.admin.waiting()) == jobs
    got = [queue.lease().job.payload for _ in range(10)]
    got += [lease.job.payload for lease in queue.lease_many(100)]
    assert got == jobs


def test_three_queues(connect):
    """Each of three queues lists, counts and leases its own jobs (W-1, W-5)."""
    jobs = {name: [f"{name}{i}".encode() for i in range(3)] for name in ("a", "b", "c/d")}
    for name, mine in jobs.items():
        connect(name).enqueue_many(mine)
    for name, mine in jobs.items():
        queue = connect(name)
        assert payloads(queue.admin.waiting()) == mine
        assert (queue.admin.peek().payload, queue.counts().waiting) == (mine[0], 3)
        assert [(lease.job.queue, lease.job.payload) for lease in queue.lease_many(9)] == [
            (name, job) for job in mine
        ]


def test_conservation(queue):
    """After every step each job is in one state, and the counters add up."""
    done = {"completed": 0, "cancelled": 0, "deleted": 0, "dead_trimmed": 0}

    def now(**states):
        counts = queue.counts()
        assert counts == Counts(**states, **done, enqueued=counts.enqueued)
        assert counts.lost == 0
        assert counts.present == sum(states.values())

    queue.enqueue_many([b"%d" % i for i in range(10)])
    now(waiting=10)
    queue.enqueue_many([NewJob(b"late", delay=LONG), NewJob(b"later", id="late", delay=LONG)])
    now(waiting=10, delayed=2)
    leases = queue.lease_many(6)
    now(waiting=4, leased=6, delayed=2)
    leases.append(queue.lease(duration=0.001))
    now(waiting=3, leased=7, delayed=2)
    expire(queue)
    now(waiting=3, parked=1, leased=6, delayed=2)
    assert leases[0].release()
    now(waiting=3, parked=2, leased=5, delayed=2)
    assert leases[1].retry()
    now(waiting=4, parked=2, leased=4, delayed=2)
    assert leases[2].retry(LONG)
    now(waiting=4, parked=2, leased=3, delayed=3)
    assert leases[3].dead_letter("no")
    now(waiting=4, parked=2, leased=2, delayed=3, dead=1)
    assert leases[4].renew()
    now(waiting=4, parked=2, leased=2, delayed=3, dead=1)
    assert leases[4].complete(then=[NewJob(b"next"), NewJob(b"next", delay=LONG)])
    done["completed"] += 1
    now(waiting=5, parked=2, leased=1, delayed=4, dead=1)
    assert queue.cancel(leases[5].job.id)
    done["cancelled"] += 1
    now(waiting=5, parked=2, delayed=4, dead=1)
    assert queue.cancel("late")
    done["cancelled"] += 1
    now(waiting=5, parked=2, delayed=3, dead=1)
    assert queue.admin.cancel_payload(b"9") == 1
    done["cancelled"] += 1
    now(waiting=4, parked=2, delayed=3, dead=1)
    assert queue.admin.redrive() == 1
    now(waiting=5, parked=2, delayed=3)
    assert queue.lease(at_most_once=True).job.payload == b"0"
    done["completed"] += 1
    now(waiting=5, parked=1, delayed=3)
    held = queue.lease_many(2)
    assert held[0].dead_letter("no")
    assert queue.admin.purge_dead() == 1
    done["dead_trimmed"] += 1
    now(waiting=4, leased=1, delayed=3)
    assert queue.admin.purge() == 7
    done["deleted"] += 7
    now(leased=1)
    assert queue.admin.delete() == 1
    done["deleted"] += 1
    now()


def test_context_manager(colour, server):
    """Leaving the block closes the connections that the queue opened. Leased jobs stay leased."""

    async def story():
        async with AsyncQueue("q", url=server.url, **server.binary.options) as queue:
            assert isinstance(queue, AsyncQueue)
            await queue.enqueue(b"a")
            assert isinstance(await queue.lease(), AsyncLease)

    if colour == "async":
        asyncio.run(story())
    else:
        with server.queue("q") as queue:
            assert isinstance(queue, Queue)
            queue.enqueue(b"a")
            assert isinstance(queue.lease(), Lease)
    with server.client() as client:
        assert len(client.client_list()) == max(1, server.binary.masters)  # its own
    with server.queue("q") as queue:
        assert present(queue) == {"leased": 1}


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", "group/part", "-", ".", "a" * 200, f"{'a' * 99}/{'b' * 100}"]
)
def test_names(newest_connect, name):
    """Every allowed name works (W-22)."""
    queue = newest_connect(name, namespace=name.replace("/", "")[:100])
    assert leased(queue).complete()
    assert queue.name == name


@each(
    "name",
    [
        "",
        "a b",
        "a:b",
        "{a}",
        "a*",
        "ä",
        "a/b/c",
        "/a",
        "a/",
        "/",
        "a\n",
        "a\x00",
        "a" * 201,
        "a\udc80",
    ],
)
def test_bad_names(nowhere, name):
    """A name that is not allowed is refused, and the error lists the allowed characters (W-22)."""
    with pytest.raises(
        ConfigurationError, match=r"queue name .*: use 1-200 letters, digits"
    ) as error:
        nowhere(name)
    assert isinstance(error.value, ValueError)
    with pytest.raises(ConfigurationError, match=r"namespace .*: use 1-100 letters, digits"):
        nowhere(namespace=name)


@pytest.mark.differs("parts")
def test_a_group_shares_a_slot(connect, client):
    """All keys of the queues of one group are in one hash slot. The keys of another group are in
    another."""
    one, two, other = connect("shop/orders"), connect("shop/bills"), connect("else/orders")
    for queue in (one, two, other):
        queue.enqueue(b"late", id="a", delay=LONG)
        leases = [leased(queue, duration=LONG) for _ in range(4)]
        leases[0].complete(result=b"done")
        leases[1].release()
        leases[2].dead_letter("no")
    slots = {}
    for key in client.scan_iter():
        slots.setdefault(key.partition(b"}")[0], set()).add(key_slot(key))
    assert set(slots) == {b"headrace:{shop", b"headrace:{else"}
    assert [len(found) for found in slots.values()] == [1, 1]
    assert slots[b"headrace:{shop"] != slots[b"headrace:{else"]


def test_namespaces(connect, client):
    """Queues of one name in two namespaces have nothing in common."""
    one, two = connect(namespace="one"), connect(namespace="two")
    assert one.enqueue(b"1", id="a").added
    assert two.enqueue(b"2", id="a").added
    assert one.lease().job.payload == b"1"
    assert payloads(two.admin.waiting()) == [b"2"]
    assert two.admin.delete() == 1
    assert present(one) == {"leased": 1}
    assert {key.partition(b":")[0] for key in client.scan_iter()} == {b"one", b"two"}


# -- bad arguments ---------------------------------------------------------------------------------


@each(
    ("options", "kind", "what"),
    [
        ({"lease": 0}, ValueError, "lease=0"),
        ({"lease": -1.0}, ValueError, "lease=-1"),
        ({"lease": float("nan")}, ValueError, "lease=nan"),
        ({"lease": float("inf")}, ValueError, "lease=inf"),
        ({"lease": "60"}, TypeError, "lease must be seconds"),
        ({"lease": None}, TypeError, "lease must be seconds"),
        ({"lease": True}, TypeError, "lease must be seconds"),
        ({"max_attempts": 0}, ValueError, "max_attempts=0"),
        ({"max_attempts": 1.0}, TypeError, "max_attempts must be an int"),
        ({"max_attempts": True}, TypeError, "max_attempts must be an int"),
        ({"priorities": 0}, ValueError, "priorities=0"),
        ({"priorities": "1"}, TypeError, "priorities must be an int"),
        ({"dead_limit": -1}, ValueError, "dead_limit=-1"),
        ({"dead_limit": None}, TypeError, "dead_limit must be an int"),
        ({"result_ttl": 0}, ValueError, "result_ttl=0"),
        ({"result_ttl": timedelta(-1)}, ValueError, "result_ttl="),
        ({"result_ttl": "1"}, TypeError, "result_ttl must be seconds"),
        ({"fenced": 1}, TypeError, "fenced must be a bool"),
        ({"namespace": 5}, TypeError, "namespace must be a str"),
        ({"name": 5}, TypeError, "queue must be a str"),
        ({"name": b"q"}, TypeError, "queue must be a str"),
        ({"name": None}, TypeError, "queue must be a str"),
    ],
)
def test_bad_settings(nowhere, options, kind, what):
    """A setting that makes no sense is refused, and named."""
    with pytest.raises(kind, match=what):
        nowhere(**options)


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that is what is wrong with it
CALLS = {
    "enqueue": [
        ((None,), {}, TypeError, "payload must be bytes or str"),
        ((5,), {}, TypeError, "payload must be bytes or str"),
        ((["a"],), {}, TypeError, "payload must be bytes or str"),
        (("\ud800",), {}, ValueError, "payload"),
        ((b"x",), {"id": ""}, ValueError, "id ''"),
        ((b"x",), {"id": 5}, TypeError, "id must be a str"),
        ((b"x",), {"id": b"a"}, TypeError, "id must be a str"),
        ((b"x",), {"id": "a\nb"}, ValueError, "id .*control characters"),
        ((b"x",), {"id": "\x00"}, ValueError, "id .*control characters"),
        ((b"x",), {"id": "\x7f"}, ValueError, "id .*control characters"),
        ((b"x",), {"id": "\x9f"}, ValueError, "id .*control characters"),
        ((b"x",), {"id": "\ud800"}, ValueError, "id .*not valid Unicode"),
        ((b"x",), {"id": "é" * 250 + "e"}, ValueError, "id of 501 bytes"),
        ((b"x",), {"delay": -1}, ValueError, "delay=-1"),
        ((b"x",), {"delay": float("nan")}, ValueError, "delay=nan"),
        ((b"x",), {"delay": 1e12}, ValueError, "delay="),
        ((b"x",), {"delay": "1"}, TypeError, "delay must be seconds"),
        ((b"x",), {"delay": True}, TypeError, "delay must be seconds"),
        ((b"x",), {"delay": NAIVE}, ValueError, "delay: .*time zone"),
        ((b"x",), {"priority": 1}, ValueError, "priority=1"),
        ((b"x",), {"priority": -1}, ValueError, "priority=-1"),
        ((b"x",), {"priority": 0.0}, TypeError, "priority must be an int"),
        ((b"x",), {"headers": "a"}, TypeError, "headers must map str to str"),
        ((b"x",), {"headers": [("a", "b")]}, TypeError, "headers must map str to str"),
        ((b"x",), {"headers": {"a": 1}}, TypeError, "headers must map str to str"),
        ((b"x",), {"headers": {"a": b"b"}}, TypeError, "headers must map str to str"),
        ((b"x",), {"headers": {b"a": "b"}}, TypeError, "headers must map str to str"),
        ((b"x",), {"headers": {"": "b"}}, ValueError, "header name ''"),
        ((b"x",), {"headers": {"data": "b"}}, ValueError, "header name 'data'"),
        ((b"x",), {"headers": {"id": "b"}}, ValueError, "header name 'id'"),
        ((b"x",), {"headers": {"attempt": "1"}}, ValueError, "header name 'attempt'"),
        ((b"x",), {"headers": {"enq": "1"}}, ValueError, "header name 'enq'"),
        ((b"x",), {"headers": {"a": "\ud800"}}, ValueError, "header 'a'"),
        ((b"x",), {"headers": {"\ud800": "a"}}, ValueError, "header "),
        ((b"x",), {"headers": {str(i): "" for i in range(5000)}}, ValueError, "headers: "),
        ((NewJob(b"x", queue="other"),), {}, ValueError, "queue"),
        ((NewJob(b"x"),), {"id": "a"}, TypeError, "id"),
    ],
    "enqueue_many": [
        ((None,), {}, TypeError, "jobs must be"),
        ((5,), {}, TypeError, "jobs must be"),
        ((b"abc",), {}, TypeError, "jobs must be"),
        (("abc",), {}, TypeError, "jobs must be"),
        ((NewJob(b"x"),), {}, TypeError, "jobs must be"),
        (([b"x"] * 2000 + [None],), {}, TypeError, "payload must be bytes or str"),
        (([b"x"] * 2000 + [NewJob(b"x", id="")],), {}, ValueError, "id ''"),
        (([b"x"] * 2000 + [NewJob(b"x", headers={"a": "\ud800"})],), {}, ValueError, "header 'a'"),
        (([b"x"] * 2000 + [NewJob(b"x", queue="other")],), {}, ValueError, "queue"),
    ],
    "lease": [
        ((-1,), {}, ValueError, "block=-1"),
        ((), {"block": float("nan")}, ValueError, "block=nan"),
        ((), {"block": "1"}, TypeError, "block must be seconds"),
        ((), {"block": True}, TypeError, "block must be seconds"),
        ((), {"duration": 0}, ValueError, "duration=0"),
        ((), {"duration": -1}, ValueError, "duration=-1"),
        ((), {"duration": "1"}, TypeError, "duration must be seconds"),
    ],
    "lease_many": [
        ((0,), {}, ValueError, "n=0"),
        ((-1,), {}, ValueError, "n=-1"),
        ((1.0,), {}, TypeError, "n must be an int"),
        ((None,), {}, TypeError, "n must be an int"),
        ((1, -1), {}, ValueError, "block=-1"),
        ((1,), {"duration": 0}, ValueError, "duration=0"),
    ],
    "complete": [
        ((None,), {}, TypeError, "lease must be"),
        (("a",), {}, TypeError, "lease must be"),
        (("LEASE", 5), {}, TypeError, "result: "),
        (("LEASE",), {"then": NewJob(b"x")}, TypeError, "then must"),
        (("LEASE",), {"then": [b"x"]}, TypeError, "then must hold NewJob"),
        (("LEASE",), {"then": [NewJob(5)]}, TypeError, "payload must be bytes or str"),
        (("LEASE",), {"then": [NewJob(b"x", id="")]}, ValueError, "id ''"),
        (("LEASE",), {"then": [NewJob(b"x", queue="a b")]}, ValueError, "queue name 'a b'"),
        (("LEASE",), {"then": [NewJob(b"x", queue="other/q")]}, ValueError, "then: .*'other'"),
        (("STRANGE",), {}, ValueError, "lease"),
    ],
    "complete_many": [
        ((["LEASE", None],), {}, TypeError, "lease must be"),
        ((["LEASE", "STRANGE"],), {}, ValueError, "lease"),
    ],
    "release": [((None,), {}, TypeError, "lease must be"), (("STRANGE",), {}, ValueError, "lease")],
    "retry": [
        ((None,), {}, TypeError, "lease must be"),
        (("STRANGE",), {}, ValueError, "lease"),
        (("LEASE", -1), {}, ValueError, "delay=-1"),
        (("LEASE", "1"), {}, TypeError, "delay must be seconds"),
        (("LEASE", NAIVE), {}, ValueError, "delay: .*time zone"),
        (("LEASE",), {"reason": 5}, TypeError, "reason must be a str"),
        (("LEASE",), {"reason": None}, TypeError, "reason must be a str"),
    ],
    "dead_letter": [
        ((None, "no"), {}, TypeError, "lease must be"),
        (("STRANGE", "no"), {}, ValueError, "lease"),
        (("LEASE", 5), {}, TypeError, "reason must be a str"),
        (("LEASE", b"no"), {}, TypeError, "reason must be a str"),
    ],
    "renew": [
        ((None,), {}, TypeError, "lease must be"),
        (("STRANGE",), {}, ValueError, "lease"),
        (("LEASE", 0), {}, ValueError, "duration=0"),
        (("LEASE", "1"), {}, TypeError, "duration must be seconds"),
    ],
    "cancel": [((5,), {}, TypeError, "id must be a str"), (("",), {}, ValueError, "id ''")],
    "cancel_payload": [((5,), {}, TypeError, "payload must be bytes or str")],
    "find": [
        ((None,), {}, TypeError, "id must be a str"),
        (("\n",), {}, ValueError, "id .*control characters"),
    ],
    "result": [
        ((5,), {}, TypeError, "id must be a str"),
        (("a", "1"), {}, TypeError, "timeout must be seconds"),
        (("a", -1), {}, ValueError, "timeout=-1"),
        (("a", float("nan")), {}, ValueError, "timeout=nan"),
    ],
    "redrive": [
        ((5,), {}, TypeError, "id must be a str"),
        ((["a"],), {}, TypeError, "id must be a str"),
        (("a", ""), {}, ValueError, "id ''"),
    ],
    "purge_dead": [
        ((None,), {}, TypeError, "id must be a str"),
        (("a", "\n"), {}, ValueError, "id "),
    ],
}
ROWS = [
    pytest.param(verb, *row, id=f"{verb}-{number}")
    for verb, rows in CALLS.items()
    for number, row in enumerate(rows)
]


@each(("verb", "args", "options", "kind", "what"), ROWS)
def test_bad_arguments(nowhere, verb, args, options, kind, what):
    """A bad argument is a TypeError or ValueError that names it, and nothing was sent."""
    queue = nowhere()

    def handle(name):
        claim = Claim(Job("1-1", b"", name), "w", "1-1", 1, 1)
        kind = AsyncLease if nowhere.colour == "async" else Lease
        return nowhere.wrap(kind(claim, bare(queue)))

    # a lease of ours, and one of another queue's
    handles = {"LEASE": handle("q"), "STRANGE": handle("another")}

    def shown(value):
        if isinstance(value, list) and len(value) < 9:
            return [shown(item) for item in value]
        return handles.get(value, value) if isinstance(value, str) else value

    with pytest.raises(kind, match=what):
        getattr(queue if hasattr(queue, verb) else queue.admin, verb)(*map(shown, args), **options)


def test_what_a_codec_refuses(nowhere):
    """A payload or a result that the codec can't encode is refused before a call is sent."""
    queue = nowhere(codec=JSONCodec())
    with pytest.raises(ValueError, match="payload does not encode as JSON"):
        queue.enqueue(object())
    with pytest.raises(ValueError, match="payload does not encode as JSON"):
        queue.enqueue_many([{}] * 2000 + [object()])
