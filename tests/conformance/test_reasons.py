"""The reason of a failure stays with the job through all states until it is retried again."""

from __future__ import annotations

import pytest

from headrace import Counts, NewJob, Queue
from tests.support.steps import LONG, expire, key, leased

HEADERS = {"reason": "the user's", "h": "1"}
REASON, TRACEBACK = "headrace-reason", "headrace-traceback"


def failed(queue, delay=0.0, reason="why", name="a"):
    """Make a job that has failed once."""
    queue.enqueue(b"x", id=name, headers=HEADERS)
    assert queue.lease().retry(delay, reason)


def shown(queue, name="a"):
    """Return the state and the reason of `find`. The listings agree, and the user's headers are
    unchanged."""
    state = queue.find(name)
    listed = [
        one
        for listing in (
            queue.admin.waiting,
            queue.admin.running,
            queue.admin.delayed,
            queue.admin.dead,
        )
        for one in listing()
    ]
    (same,) = [one for one in listed if one.job.id == name]
    assert (same.state, same.reason, same.traceback) == (state.state, state.reason, state.traceback)
    for one in (state, same):
        ours = {"headrace-priority", "headrace-from"}
        assert {name: text for name, text in one.job.headers.items() if name not in ours} == HEADERS
    return state.state, state.reason


@pytest.mark.parametrize("delay", [0.0, LONG])
def test_the_last_reason_stays(queue, delay):
    failed(queue, delay)
    assert shown(queue) == ("delayed" if delay else "waiting", "why")
    if delay:
        assert queue.admin.reschedule("a", None)
    lease = queue.lease()
    assert dict(lease.job.headers) == HEADERS  # no handler takes it for a header
    assert shown(queue) == ("leased", "why")
    assert lease.release()
    assert shown(queue) == ("parked", "why")
    assert queue.lease().retry(delay, "why again")
    assert shown(queue) == ("delayed" if delay else "waiting", "why again")
    if delay:
        assert queue.admin.reschedule("a", None)
    assert queue.lease().retry()  # for no reason
    assert shown(queue) == ("waiting", None)


@pytest.mark.differs("keys")
def test_it_ends_with_the_job(queue, client):
    """No key of it is left. The next job has none, although it was enqueued with the first one's
    fields."""
    failed(queue)
    lease = queue.lease()
    assert lease.complete(
        then=[NewJob(b"next", id="a", headers={**lease.job.headers, REASON: "x", TRACEBACK: "y"})]
    )
    assert shown(queue) == ("waiting", None)
    ((_, fields),) = client.xrange(key("jobs"))
    assert set(fields) == {b"data", b"id", *(name.encode() for name in HEADERS)}


@pytest.mark.differs("keys")
def test_a_dead_letter_has_its_own(queue, client):
    """The letter does not have the reason of the failure before. After a redrive the reason is the
    letter's."""
    failed(queue)
    assert queue.lease().dead_letter("enough")
    assert shown(queue) == ("dead", "enough")
    assert REASON.encode() not in client.xrange(key("dead"))[0][1]
    assert queue.admin.redrive() == 1
    assert shown(queue) == ("waiting", "enough")
    assert queue.lease().dead_letter("")
    assert shown(queue) == ("dead", "")
    assert queue.admin.redrive() == 1
    assert shown(queue) == ("waiting", None)


def test_the_last_attempt(connect):
    """The worker died in the job's last attempt. The letter has both reasons once, even after
    further deaths."""
    queue = connect(max_attempts=2)
    failed(queue)
    queue.lease(duration=0.001)
    expire(queue)
    assert queue.lease() is None
    died = "no attempts left: its workers died, or let its leases expire; before that: why"
    assert shown(queue) == ("dead", died)
    assert queue.admin.redrive() == 1
    for _ in range(2):
        assert queue.lease(duration=0.001)
        expire(queue)
    assert queue.lease() is None
    assert shown(queue) == ("dead", died.partition(";")[0])


def test_it_goes_where_the_job_goes(connect):
    queue, other = connect("g/a"), connect("g/b")
    for delay, state in ((0.0, "waiting"), (LONG, "delayed")):
        failed(queue, delay, name=state)
        assert queue.admin.move("g/b") == 1
        assert shown(other, state) == (state, "why")
    assert other.admin.reschedule("delayed", None)
    assert shown(other, "delayed") == ("waiting", "why")


def test_of_a_level(connect):
    """A job that comes from its level's stream brings its reason along."""
    queue = connect(priorities=2)
    queue.enqueue(b"x", id="a", priority=1, headers=HEADERS)
    assert queue.lease().retry(0, "why")
    assert shown(queue) == ("waiting", "why")
    lease = queue.lease()
    assert (shown(queue), lease.job.priority) == (("leased", "why"), 1)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 501, "x" * 500),
        ("ä" * 250, "ä" * 250),
        ("xä" + "ä" * 249, "x" + "ä" * 249),
        ("€" * 200, "€" * 166),
    ],
)
def test_it_is_short(queue, reason, kept):
    """A reason has at most 500 bytes and whole characters, because it is read with the job. A dead
    letter keeps all of it.
    """
    failed(queue, LONG, reason)
    assert shown(queue) == ("delayed", kept)
    assert queue.admin.reschedule("a", None)
    assert queue.lease().dead_letter(reason)
    assert shown(queue) == ("dead", reason)


def test_no_character_of_a_reason_begins_a_traceback(queue):
    failed(queue, LONG, "a\0b\xff")
    assert shown(queue) == ("delayed", "a\0b\xff")
    assert queue.find("a").traceback is None


@pytest.mark.differs("keys")
def test_a_foreign_producer_may_write_anything(queue, client):
    client.xadd(
        key("jobs"),
        {
            "data": "x",
            "id": "a",
            REASON: b"\xff",
            "h": "1",
            TRACEBACK: b"\xff" * 9999,
            REASON * 2: "",
        },
    )
    (state,) = queue.admin.waiting()
    assert (state.reason, state.traceback) == ("\\xff", "\\xff" * 9999)
    assert dict(state.job.headers) == {"h": "1", REASON * 2: ""}
    assert queue.lease().retry(0, "why")
    state = queue.find("a")
    assert (state.reason, state.traceback) == ("why", None)


def throw(text):
    raise ValueError(text)


def raised(text="no"):
    with pytest.raises(ValueError, match=text[:2]) as caught:
        throw(text)
    return caught.value


@pytest.mark.parametrize("keeps", [True, False])
def test_an_exception_for_a_reason(connect, keeps):
    """The exception is described. If the queue keeps tracebacks, its traceback is kept too."""
    queue = connect(tracebacks=keeps)
    failed(queue, LONG, raised())
    assert shown(queue) == ("delayed", "ValueError: no")
    traceback = queue.find("a").traceback
    assert (traceback is not None) == keeps
    if keeps:
        assert traceback.startswith("Traceback (most recent call last):\n")
        assert "in throw" in traceback
        assert traceback.endswith("\nValueError: no\n")
    assert queue.admin.reschedule("a", None)
    assert queue.lease().dead_letter(raised("never"))
    assert shown(queue) == ("dead", "ValueError: never")
    assert (queue.find("a").traceback or "").endswith("\nValueError: never\n" if keeps else "")
    assert queue.admin.redrive() == 1
    assert (queue.find("a").traceback or "").endswith("\nValueError: never\n" if keeps else "")
    assert queue.lease().retry(0, "other")
    assert queue.find("a").traceback is None


def test_an_exception_that_was_not_raised_has_no_traceback(connect):
    queue = connect(tracebacks=True)
    failed(queue, LONG, ValueError("no"))
    assert (shown(queue), queue.find("a").traceback) == (("delayed", "ValueError: no"), None)


def test_a_traceback_is_bounded(connect):
    """A traceback keeps 4 KiB. Its end shows the place, its beginning the call."""
    queue = connect(tracebacks=True)
    failed(queue, LONG, raised("ä" * 9000))
    traceback = queue.find("a").traceback
    assert 3000 < len(traceback.encode()) <= 4096
    assert traceback.startswith("Traceback")
    assert "\n[...]\n" in traceback
    assert traceback.endswith("ä\n")


@pytest.mark.differs("ops")
def test_tracebacks_count_as_bytes(connect, client):
    """A script reads about 1 MiB of jobs, and tracebacks count."""
    queue = connect(tracebacks=True)
    queue.enqueue_many([b"x"] * 400)
    error = raised("x" * 9000)
    for lease in queue.lease_many(400):
        assert lease.retry(LONG, error)
    page = queue._run(queue.ops.listing("delayed", "", 1000))
    assert page.cursor
    assert len(list(page)) < 300
    assert len(list(queue.admin.delayed())) == 400
    assert queue.counts() == Counts(delayed=400, enqueued=400)


def test_what_is_no_reason(queue):
    lease = leased(queue)
    for settle in (lambda: lease.retry(0, 5), lambda: lease.dead_letter(b"no")):
        with pytest.raises(TypeError, match="reason must be a str"):
            settle()
    with pytest.raises(TypeError, match="tracebacks must be a bool"):
        Queue("q", tracebacks=1)
