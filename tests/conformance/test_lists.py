"""Lists of jobs in `headrace.inspect`. The selected jobs are shown in order, and the reading is
bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from headrace import NewJob, Queue
from headrace._core.views.jobs import LOOKED_AT_MOST
from headrace.inspect import Inspector
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import LONG

Look = Callable[..., Any]


@pytest.fixture
def look(connect: Connect) -> Look:
    """Make inspectors of both colours that read anew each time."""
    return partial(connect.make, Inspector, fresh=0)


@pytest.fixture(params=[1, 3], ids=["plain", "sharded"])
def queue(server: Server, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """The queue `q`, with a history."""
    with Queue("q", url=server.url, history=10_000, shards=request.param) as queue:
        yield queue


def listed(inspector: Any, state: str, limit: int = 200, **choice: Any) -> list[str]:
    """Return all ids of a list, page by page."""
    ids: list[str] = []
    cursor, pages = "", 0
    while cursor or not pages:
        page = inspector.jobs("q", state, cursor, limit, **choice)
        assert len(page.jobs) <= limit
        ids += (job.id for job in page.jobs)
        cursor, pages = page.cursor, pages + 1
    return ids


def mails(number: int) -> list[NewJob[bytes]]:
    """Make jobs of two kinds and three tenants."""
    return [
        NewJob(
            b'{"order": %d}' % i,
            id=f"i{i:04}",
            headers={"kind": ("mail", "sms")[i % 2], "tenant": ("ada", "grace", "tony")[i % 3]},
        )
        for i in range(number)
    ]


def test_a_choice_in_every_state(look: Look, queue: Queue) -> None:
    """Kind, header, and texts of payload and reason select jobs together, with any size of
    pages."""
    queue.enqueue_many(mails(60))
    one = look()
    assert listed(one, "waiting", kind="mail", header="tenant=ada", limit=3) == listed(
        one, "waiting", kind="mail", header="tenant=ada"
    )
    assert sorted(listed(one, "waiting", kind="mail", header="tenant=ada")) == [
        f"i{i:04}" for i in range(0, 60, 6)
    ]
    assert listed(one, "waiting", payload='"order": 17') == ["i0017"]
    assert listed(one, "waiting", payload='{ "order": 17 }') == ["i0017"]
    assert (
        listed(one, "waiting", header="tenant=nobody") == listed(one, "waiting", reason="x") == []
    )
    leases = queue.lease_many(60)
    assert sorted(listed(one, "running", kind="sms")) == [f"i{i:04}" for i in range(1, 60, 2)]
    for lease in leases:
        number = int(lease.job.id[1:])
        if number < 20:
            lease.retry(delay=LONG, reason=f"late {number}")
        elif number < 40:
            lease.dead_letter(f"broken pipe {number}")
        else:
            lease.complete()
    assert listed(one, "delayed", reason="late 7") == ["i0007"]
    assert sorted(listed(one, "dead", reason="broken", kind="mail", limit=2)) == [
        f"i{i:04}" for i in range(20, 40, 2)
    ]
    assert sorted(listed(one, "ended", end="completed", kind="sms")) == [
        f"i{i:04}" for i in range(41, 60, 2)
    ]
    assert sorted(listed(one, "ended", end="dead", payload='"order": 39')) == ["i0039"]


@pytest.mark.parametrize("state", ["dead", "ended"])
def test_order_and_time(look: Look, queue: Queue, state: str) -> None:
    """Both orders list the same jobs. A time is found without reading up to it."""
    queue.enqueue_many(mails(60))
    for _ in range(6):
        for lease in queue.lease_many(10):
            assert lease.dead_letter("why") if state == "dead" else lease.complete()
        time.sleep(0.005)  # so that ends have several times
    one = look()
    moments = {job.id: job.finished for job in one.jobs("q", state, limit=200).jobs}
    assert len(moments) == 60
    for limit in (7, 200):
        oldest, newest = listed(one, state, limit), listed(one, state, limit, order="newest")
        assert sorted(oldest) == sorted(newest) == sorted(moments)
    if not queue.admin.shards():
        assert [moments[name] for name in newest] == sorted(moments.values(), reverse=True)
        assert [moments[name] for name in oldest] == sorted(moments.values())
    cut = sorted(moments.values())[29]
    after = {name for name, at in moments.items() if at >= cut}
    before = {name for name, at in moments.items() if at <= cut}
    for order in ("oldest", "newest"):
        assert set(listed(one, state, order=order, since=cut)) == after
        assert set(listed(one, state, order=order, until=cut, limit=9)) == before
        assert (
            set(listed(one, state, order=order, since=cut, until=datetime.fromtimestamp(cut, UTC)))
            == after & before
        )
        assert listed(one, state, order=order, since=time.time() + LONG) == []
    assert one.jobs("q", state, since=cut, limit=200).looked == len(after)
    assert one.jobs("q", state, until=cut, order="newest", limit=200).looked == len(before)


def test_time_of_jobs_that_have_not_ended(look: Look, queue: Queue) -> None:
    """The time is their first enqueue."""
    queue.enqueue_many(mails(5))
    at = look().jobs("q", "waiting").jobs[0].enqueued_at
    assert len(listed(look(), "waiting", since=at - 60)) == 5
    assert (
        listed(look(), "waiting", since=at + 60) == listed(look(), "waiting", until=at - 60) == []
    )


@pytest.mark.slow
def test_a_search_is_bounded(look: Look, queue: Queue) -> None:
    """The search is bounded in jobs and bytes. It then tells how many jobs it read, and where it
    goes on."""
    number = LOOKED_AT_MOST + 500
    queue.enqueue_many(
        [
            NewJob(b"x", id=f"i{i}", headers={"kind": "rare" if i == number - 1 else "usual"})
            for i in range(number)
        ]
    )
    one = look()
    first = one.jobs("q", "waiting", kind="rare")
    assert LOOKED_AT_MOST <= first.looked <= LOOKED_AT_MOST + 200
    assert first.cursor
    assert listed(one, "waiting", kind="rare") == [f"i{number - 1}"]
    queue.admin.purge()
    queue.enqueue_many([b"y" * 400_000 for _ in range(30)])
    large = one.jobs("q", "waiting", payload="z")
    assert 10 <= large.looked < 20
    assert large.cursor


def test_redacted_texts_are_not_found(look: Look, queue: Queue) -> None:
    """A search finds no text that is not shown."""
    queue.enqueue(b'{"key": "s3cret"}', id="a", headers={"kind": "s3cret", "token": "s3cret"})
    queue.lease().dead_letter("bad s3cret")
    one = look(redact=lambda what, text, job: text.replace("s3cret", "***"))
    for state in ("dead", "ended"):
        for choice in (
            {"kind": "s3cret"}, {"header": "token=s3cret"}, {"payload": "s3cret"}, {"reason": "s3cret"},
        ):  # fmt: skip
            assert listed(one, state, **choice) == []
        for choice in (
            {"kind": "***"},
            {"header": "token=***"},
            {"payload": "***"},
            {"reason": "bad *"},
        ):
            assert listed(one, state, **choice) == ["a"]
    assert [kind.kind for kind in one.kinds("q").kinds] == ["***"]


def test_wait_duration_and_end(look: Look, queue: Queue) -> None:
    """The times are shown if they are known. A running job has its delivery, and an ended one its
    history."""
    one = look()
    queue.enqueue(b"x", id="a", headers={"kind": "mail"})
    queue.enqueue(b"x", id="late", delay=LONG)
    time.sleep(0.05)
    (waiting,) = one.jobs("q", "waiting").jobs
    assert (waiting.kind, waiting.wait, waiting.duration, waiting.finished) == (
        "mail",
        None,
        None,
        None,
    )
    lease = queue.lease()
    time.sleep(0.05)
    for running in (one.jobs("q", "running").jobs[0], one.job("q", "a")):
        assert 0.04 < running.wait < LONG
        assert 0.04 < running.duration < LONG
        assert running.finished is None
    lease.complete()
    for done in (one.jobs("q", "ended").jobs[0], one.job("q", "a")):
        assert 0.04 < done.wait < LONG
        assert 0.04 < done.duration < LONG
        assert abs(done.finished - done.enqueued_at - done.wait - done.duration) < 0.01
    (late,) = one.jobs("q", "delayed").jobs
    assert (late.kind, late.wait, late.duration, late.finished) == (None, None, None, None)
    assert (one.job("q", "late").shard is None) == (not queue.admin.shards())


def test_a_death_without_a_history(look: Look, server: Server) -> None:
    """Only its moment is known."""
    with server.queue("r") as queue:
        queue.enqueue(b"x", id="a")
        queue.lease().dead_letter("why")
    (dead,) = look().jobs("r", "dead").jobs
    assert dead.finished == dead.since > 1e9
    assert (dead.wait, dead.duration) == (None, None)


def test_kinds(look: Look, queue: Queue, server: Server) -> None:
    """Kinds have their number, failures, and percentiles of run and wait, the most frequent
    first."""
    queue.enqueue_many([*mails(40), NewJob(b"x", id="bare"), NewJob(b"x", id="cancelled")])
    queue.cancel("cancelled")
    leases = queue.lease_many(50)
    time.sleep(0.03)
    for lease in leases:
        number = lease.job.id[1:]
        assert (
            lease.dead_letter("why")
            if number.isdigit() and int(number) % 4 == 1
            else lease.complete()
        )
    page = look().kinds("q")
    assert (page.kept, page.seen) == (True, 41)
    assert [(one.kind, one.number, one.dead, one.failing) for one in page.kinds] == [
        ("mail", 20, 0, 0.0), ("sms", 20, 10, 0.5), (None, 1, 0, 0.0),
    ]  # fmt: skip
    for one in page.kinds:
        for low, high in (one.run, one.wait):
            assert 0 <= low <= high < LONG
        assert one.run[0] > 0.02
    assert page.since is not None
    with server.queue("r") as other:
        other.enqueue(b"x")
        other.lease().complete()
    bare = look().kinds("r")
    assert (bare.kept, bare.kinds, bare.seen) == (False, (), 0)


@pytest.mark.parametrize(
    ("state", "choice", "match"),
    [
        ("waiting", {"end": "dead"}, "end is for jobs that have ended"),
        ("ended", {"end": "lost"}, "give one of completed"),
        ("waiting", {"order": "newest"}, "for jobs that are dead or have ended"),
        ("dead", {"order": "random"}, "give one of oldest, newest"),
        ("dead", {"header": "tenant"}, "give name=value"),
        ("dead", {"since": -1}, "seconds from 1970 on"),
        ("dead", {"until": float("nan")}, "seconds from 1970 on"),
        ("dead", {"since": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ("dead", {"kind": 5}, "kind must be a str"),
        ("dead", {"since": "now"}, "seconds or datetimes"),
    ],
)
def test_bad_choices_are_refused(
    look: Look, state: str, choice: dict[str, Any], match: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        look(url="redis://localhost:1").jobs("q", state, **choice)
