"""A feature that decides which leased jobs start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from headrace import Counts, Job, Queue
from headrace._core.effects import Call, HeldJob, Now
from headrace._core.verdicts import Settlement
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.roles import NamedRole
from headrace._core.worker.shared_read import Place
from headrace._engine import base
from tests.support.awaiting import until
from tests.support.engines import Running

FIRST = 3  # jobs that a worker starts at once


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_feature_puts_leased_jobs_off(
    work: Callable[..., Running], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a room and a line of one table. The jobs that it puts off spend no attempt, and the
    worker asks for them when they are due."""
    before: list[str] = []
    ran: list[str] = []
    put_off: list[str] = []

    def admit(consumer: Consumer, fresh: Sequence[HeldJob]) -> Call[Sequence[HeldJob]]:
        yield Now()
        admitted = list[HeldJob]()
        for held in fresh:
            if len(before) < FIRST or held.job.id in put_off:
                before.append(held.job.id)
                admitted.append(held)
            else:
                put_off.append(held.job.id)
                consumer.settle(held, Settlement("retry", held, delay=0.05, spend=0))
        return admitted

    def feature(_: Lifecycle, consumers: Sequence[Consumer], __: Place) -> Iterator[NamedRole]:
        for consumer in consumers:
            leasing = consumer.leasing
            leasing.admissions = (*leasing.admissions, partial(admit, consumer))
        return iter(())

    monkeypatch.setattr(base, "FEATURES", (*base.FEATURES, feature))
    queue.enqueue_many([b"x"] * 10)
    worker = work()

    @worker.handler("q", concurrency=10)
    def body(job: Job) -> None:
        assert job.attempt == 1
        ran.append(job.id)

    with worker:
        until(lambda: queue.counts() == Counts(enqueued=10, completed=10))
    assert len(put_off) == 10 - FIRST
    assert sorted(ran) == sorted(before)
    assert set(before[FIRST:]) == set(put_off)
