"""A connection that breaks at any byte of a lease or a completion. Each job has its slot once or
not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Counts, Limit, NewJob, Queue
from tests.faults.test_cut_connections import Bench, Case, cut_everywhere
from tests.support.proxy import Proxy
from tests.support.servers import Server

TERMS: Any = {"fair": "tenant", "limits": [Limit(1, key="tenant"), Limit(5)]}


def lines(queue: Queue) -> None:
    """Enqueue two jobs of a value that has one slot."""
    queue.enqueue_many([NewJob(name, headers={"tenant": "ada"}) for name in (b"x", b"y")])


def leased(queue: Queue) -> Any:
    """Lease the first job. The other one waits for the slot."""
    lines(queue)
    return queue.lease()


def is_held(queue: Queue, prepared: Any, answer: Any) -> None:
    assert (answer.job.payload, answer.job.attempt) == (b"x", 1)
    assert queue.lease() is None
    assert queue.renew(answer)


def is_given_back(queue: Queue, prepared: Any, answer: Any) -> None:
    """Check that the next job takes the slot."""
    assert answer is True
    again = queue.lease()
    assert again is not None
    assert (again.job.payload, again.job.attempt) == (b"y", 1)
    assert queue.counts().held == 1
    assert queue.release(again)


HELD = Counts(waiting=1, leased=1, enqueued=2, held=1)
BACK = Counts(parked=1, completed=1, enqueued=2)
CASES = [
    Case("lease", lines, lambda q, _: q.lease(), is_held, HELD),
    Case("complete", leased, lambda q, x: q.complete(x), is_given_back, BACK),
    Case("complete fenced", leased, lambda q, x: q.complete(x, fenced=True), is_given_back, BACK),
    Case("lease and complete", lines, lambda q, _: q.complete(q.lease()), is_given_back, BACK),
    Case(
        "dead_letter",
        leased,
        lambda q, x: q.dead_letter(x, "why"),
        is_given_back,
        Counts(parked=1, dead=1, enqueued=2),
    ),
]


@pytest.fixture
def bench(server: Server, large: bool) -> Iterator[Bench]:
    """Return both ways to a queue with terms."""
    with Proxy(server.path) as proxy:
        bench = Bench(server, proxy, 1 if large else 17, **TERMS)
        yield bench
        bench.close()


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cut_at_every_byte(bench: Bench, case: Case) -> None:
    """Every byte is tried on the newest server, and every seventeenth on the others."""
    cut_everywhere(bench, case, **TERMS)
