"""Jobs that become dead letters without a run of a handler. Each is logged and counted once, with
kind and reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace import NewJob
from headrace.codecs import JSONCodec
from tests.conformance.test_suspects import dies
from tests.support.steps import LONG


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return the id, kind and reason of each logged dead letter."""
    found = [
        record for record in caplog.records if record.getMessage().startswith("job_dead_lettered")
    ]
    assert all(record.levelno == logging.ERROR for record in found)
    return [(record.job_id, record.kind, record.reason) for record in found]  # type: ignore[attr-defined]


def test_a_job_that_does_not_decode(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    connect().enqueue(NewJob(b"{", id="a", headers={"kind": "bill"}))
    queue = connect(codec=JSONCodec())
    assert queue.lease() is None
    ((job, kind, reason),) = said(caplog)
    assert (job, kind) == ("a", "bill")
    (letter,) = queue.admin.dead()
    assert letter.reason == reason


def leased(queue: Any, n: int = 1) -> list[Any]:
    """Enqueue and lease so many jobs of kind `bill`, with the ids a, b and so on."""
    queue.enqueue_many([NewJob(b"x", id=name, headers={"kind": "bill"}) for name in "abc"[:n]])
    leases: list[Any] = queue.lease_many(n)
    assert len(leases) == n
    return sorted(leases, key=lambda lease: lease.job.id)


def test_by_hand(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A lost lease makes no dead letter and no log line."""
    queue = connect(lease=LONG)
    one, two, lost = leased(queue, 3)
    assert lost.complete()
    assert queue.dead_letter(one, "no")
    assert two.dead_letter(ValueError("what"))
    assert not lost.dead_letter("too late")
    assert said(caplog) == [("a", "bill", "no"), ("b", "bill", "ValueError: what")]


def test_the_last_retry_by_hand(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue = connect(lease=LONG, max_attempts=2)
    (first,) = leased(queue)
    assert first.retry(reason="once")
    assert not said(caplog)
    assert queue.lease().retry(reason="twice")
    assert said(caplog) == [("a", "bill", "twice")]
    assert queue.counts().dead == 1


@pytest.mark.differs("ops")
def test_a_job_that_has_worn_out_its_workers(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = connect(lease=LONG, max_attempts=2)
    queue.enqueue(NewJob(b"x", id="a", headers={"kind": "bill"}))
    dies(queue, 1, times=20)
    assert queue.lease() is None
    assert said(caplog) == [
        ("a", "bill", "no attempts left: its process died 20 times while it ran")
    ]
    assert queue.counts().dead == 1
