"""An inbox. The effects of a job are committed once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from headrace import ConfigurationError, Job, Queue
from headrace.errors import RunLost
from headrace.sql import forget, inbox
from tests.sql.databases import Database
from tests.support.awaiting import PATIENCE
from tests.support.servers import Server

ORDER = text("INSERT INTO orders VALUES (:name)")
JOB = Job("17", b"", "q", {}, 1, 1795307039.451)


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    """Return a queue with the name of the job's."""
    with newest.queue("q") as queue:
        yield queue


def test_effects_are_committed_once(database: Database) -> None:
    engine = database.engine()
    with Session(engine) as session:
        assert inbox(session, JOB)
        session.execute(ORDER, {"name": "17"})
        session.rollback()
    for attempt, first in ((1, True), (2, False), (1, False)):
        with Session(engine) as session, session.begin():
            assert inbox(session, Job("17", b"", "q", {}, attempt, JOB.enqueued_at)) is first
            if first:
                session.execute(ORDER, {"name": "17"})
    assert database.ask("SELECT name FROM orders") == ["17"]
    with engine.begin() as connection:
        # a later job of the same id
        assert inbox(connection, Job("17", b"", "q", {}, 1, JOB.enqueued_at + 1))
        assert inbox(connection, Job("17", b"", "another", {}, 1, JOB.enqueued_at))
        assert forget(connection, 3600) == 0
    database.ask("UPDATE headrace_inbox SET done_ms = done_ms - 7200000")
    with engine.begin() as connection:
        assert forget(connection, 3600) == 3


def test_the_job_of_all_deliveries_is_one(database: Database, queue: Queue[bytes]) -> None:
    queue.enqueue(b"a", id="17")
    for first in (True, False):
        lease = queue.lease()
        assert lease is not None
        with database.engine().begin() as connection:
            assert inbox(connection, lease.job) is first
        lease.retry(reason="again") if first else lease.dead_letter("never")
    queue.admin.redrive("17")
    lease = queue.lease()
    assert lease is not None
    with database.engine().begin() as connection:
        assert not inbox(connection, lease.job)
    lease.complete()
    queue.enqueue(b"a", id="17")
    lease = queue.lease()
    assert lease is not None
    with database.engine().begin() as connection:
        assert inbox(connection, lease.job)


@pytest.mark.parametrize("delay", [0, 3600])
def test_a_job_that_was_moved_is_the_same(database: Database, newest: Server, delay: int) -> None:
    """The job moves twice and back. A job of the same id and time in another queue is different."""
    with newest.queue("g/a") as source, newest.queue("g/b") as target:
        source.enqueue(b"a", id="17")
        lease = source.lease()
        assert lease is not None
        with database.engine().begin() as connection:
            assert inbox(connection, lease.job)
            twin = Job("17", b"", "g/c", {}, 1, lease.job.enqueued_at)
            assert inbox(connection, twin)
        lease.retry(delay, reason="again")
        for here, there in ((source, target), (target, source), (source, target)):
            assert here.admin.move(str(there.name)) == 1
        assert delay == 0 or target.admin.reschedule("17", 0)
        lease = target.lease()
        assert lease is not None
        assert (lease.job.attempt, lease.job.headers["headrace-from"]) == (2, "g/a")
        with database.engine().begin() as connection:
            assert not inbox(connection, lease.job)


def test_a_delivery_waits_for_another_to_commit(database: Database) -> None:
    answers: list[bool] = []

    def second() -> None:
        with database.engine().begin() as connection:
            answers.append(inbox(connection, JOB))

    with database.engine().begin() as connection:
        assert inbox(connection, JOB)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        assert not answers
    thread.join(PATIENCE)
    assert answers == [False]


def test_for_asyncio(database: Database) -> None:
    async def story() -> None:
        engine = database.async_engine()
        for first in (True, False):
            async with AsyncSession(engine) as session, session.begin():
                assert await inbox(session, JOB) is first
        async with AsyncSession(engine) as session, session.begin():
            assert await forget(session, 3600) == 0
        await engine.dispose()

    asyncio.run(story())


def test_bad_use(database: Database) -> None:
    with (
        Session(database.engine(), autobegin=False) as session,
        pytest.raises(ConfigurationError, match="in no transaction"),
    ):
        inbox(session, JOB)
    job = Job("18", b"", "q", {}, 1, JOB.enqueued_at)
    job.lost.set()
    with database.engine().begin() as connection:
        with pytest.raises(RunLost):
            inbox(connection, job)
        with pytest.raises(TypeError, match="must be a Job"):
            inbox(connection, "17")  # type: ignore[call-overload]
    assert database.ask("SELECT 1 FROM headrace_inbox") == []
