"""Handlers' verdicts. They are returned or come from exceptions by policy. A job's kind decides its
handler."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tenacity import retry_never

from headrace import (
    AsyncWorker,
    BatchError,
    Complete,
    Counts,
    DeadLetter,
    Job,
    NewJob,
    Queue,
    Release,
    Retry,
    RetryLater,
)
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


def of_kind(payload: bytes, kind: str | None = None) -> NewJob:
    return NewJob(payload, headers=None if kind is None else {"kind": kind})


# -- verdicts that are returned --------------------------------------------------------------------


def test_a_verdict_may_be_returned(work: Work, queue: Queue) -> None:
    """A returned verdict means the same as a raised one. RetryLater and Release spend no attempt,
    and DeadLetter ends the job.
    """
    worker = work()
    attempts: list[tuple[bytes, int]] = []
    verdicts: dict[bytes, Any] = {
        b"later": RetryLater(0.01, "not now"),
        b"spent": RetryLater(0.01, spend=True),
        b"back": Release(),
        b"class": Release,
        b"dead": DeadLetter("too late"),
        b"done": Complete(b"with this"),
    }

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> Any:
        first = job.payload not in {payload for payload, _ in attempts}
        attempts.append((job.payload, job.attempt))
        return verdicts[job.payload] if first else None

    receipts = queue.enqueue_many(list(verdicts))
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=6, completed=5, dead=1))
    again = [("later", 1), ("spent", 2), ("back", 1), ("class", 1)]
    assert Counter(attempts) == Counter([(payload, 1) for payload in verdicts]) + Counter(
        (payload.encode(), attempt) for payload, attempt in again
    )
    assert [letter.reason for letter in queue.admin.dead()] == ["too late"]
    assert queue.results(receipt.id for receipt in receipts) == {receipts[5].id: b"with this"}


@pytest.mark.parametrize("how", ["mapping", "error"])
def test_a_batch_may_return_its_verdicts(work: Work, queue: Queue, how: str) -> None:
    """A job that is not named, or has `None`, is completed. `Complete` keeps a result for one of
    the jobs."""
    worker = work()
    seen: list[bytes] = []

    @worker.batch_handler("q", max_size=5, max_wait=0.1, retry=Retry(wait=0))
    def body(jobs: list[Job]) -> Any:
        said: dict[bytes, Any] = {
            b"dead": DeadLetter("no"),
            b"later": RetryLater(0.01),
            b"done": Complete(b"this"),
        }
        verdicts = {
            job.id: said[job.payload]
            for job in jobs
            if job.payload in said and job.payload not in seen
        }
        seen.extend(job.payload for job in jobs)
        return verdicts if how == "mapping" else BatchError(verdicts)

    receipts = queue.enqueue_many([b"dead", b"later", b"done", b"a", b"b"])
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=5, completed=4, dead=1))
    assert Counter(seen) == {b"dead": 1, b"later": 2, b"done": 1, b"a": 1, b"b": 1}
    assert queue.results(receipt.id for receipt in receipts) == {receipts[2].id: b"this"}


# -- policies --------------------------------------------------------------------------------------


def test_what_exceptions_mean_by_policy(work: Work, queue: Queue) -> None:
    """A type of exception means retry, fail or release. Other exceptions are settled as usual
    (H-2)."""
    worker = work()
    runs: Counter[bytes] = Counter()
    errors: dict[bytes, Exception] = {
        b"dead": ValueError("bad"),
        b"later": TimeoutError("slow"),
        b"back": LookupError(),
        b"done": FileExistsError(),
        b"asked": ConnectionError(0.01),
        b"other": ArithmeticError("1/0"),
    }
    on: dict[Any, Any] = {
        ValueError: DeadLetter,
        TimeoutError: RetryLater(0.01),
        LookupError: Release,
        FileExistsError: Complete,
        ConnectionError: lambda error: RetryLater(error.args[0], spend=True),
    }
    attempts: dict[bytes, int] = {}

    @worker.handler("q", concurrency=1, retry=Retry(on=on, retry=retry_never))
    def body(job: Job) -> None:
        runs[job.payload] += 1
        attempts[job.payload] = job.attempt
        if runs[job.payload] == 1:
            raise errors[job.payload]

    queue.enqueue_many(list(errors))
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=6, completed=4, dead=2))
    assert runs == {b"dead": 1, b"later": 2, b"back": 2, b"done": 1, b"asked": 2, b"other": 1}
    assert attempts == {payload: 2 if payload == b"asked" else 1 for payload in errors}
    assert [letter.reason for letter in queue.admin.dead()] == [
        "ValueError: bad",
        "ArithmeticError: 1/0",
    ]


def test_a_policy_for_the_deadline(work: Work, queue: Queue) -> None:
    """After its deadline a job has failed by a `TimeoutError`, like any other."""
    worker = work()

    @worker.handler("q", deadline=0.2, retry=Retry(on={TimeoutError: DeadLetter}))
    def body(job: Job) -> Iterator[float]:
        while not job.lost:
            yield 0.005

    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().dead == 1)
    (letter,) = queue.admin.dead()
    assert (
        letter.reason
        == "TimeoutError: TimeoutError: the handler ran past its deadline of 0.2 s".partition(": ")[
            2
        ]
    )


# -- kinds -----------------------------------------------------------------------------------------


def test_each_kind_has_its_handler(work: Work, queue: Queue, record: Recorder) -> None:
    """Each kind has its own retry, and all share one number of slots. The handler without a kind
    gets the rest."""
    worker = work()
    made: dict[str, Any] = {
        "a": worker.handler("q", kind="a", concurrency=3, retry=Retry(attempts=1)),
        "b": worker.handler("q", kind="b", retry=Retry(attempts=3, wait=0)),
        "rest": worker.handler("q", retry=Retry(attempts=2, wait=0)),
    }
    for name, register in made.items():

        @register
        def body(job: Job, name: str = name) -> Iterator[float]:
            with record((name, job.headers.get("kind"))):
                yield 0.002
                if job.payload == b"fail":
                    raise OSError(name)

    jobs = [
        of_kind(payload, kind)
        for payload in [b"x"] * 9 + [b"fail"]
        for kind in ("a", "b", "c", None)
    ]
    queue.enqueue_many(jobs)
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=40, completed=36, dead=4))
    assert Counter(record.ended) == {
        ("a", "a"): 10,
        ("b", "b"): 12,
        ("rest", "c"): 11,
        ("rest", None): 11,
    }
    assert record.most <= 3
    tried = sorted((letter.reason or "", letter.job.attempt) for letter in queue.admin.dead())
    assert tried == [
        ("OSError: a", 1),
        ("OSError: b", 3),
        ("OSError: rest", 2),
        ("OSError: rest", 2),
    ]


def test_tasks_and_threads_in_one_queue(newest: Server, queue: Queue) -> None:
    """Under AsyncWorker one kind may be a coroutine with its own deadline, and another a plain
    function."""

    async def story() -> dict[str, Any]:
        worker = AsyncWorker(url=newest.url)
        ran: dict[str, Any] = {}

        @worker.handler("q", kind="task", deadline=0.3, retry=Retry(attempts=1))
        async def task(job: Job) -> bytes:
            ran["task"] = threading.current_thread()
            await asyncio.sleep(0 if job.payload == b"quick" else PATIENCE)
            return b"from a task"

        @worker.handler("q", kind="thread")
        def thread(job: Job) -> bytes:
            ran["thread"] = threading.current_thread()
            return b"from a thread"

        jobs = [of_kind(b"quick", "task"), of_kind(b"quick", "thread"), of_kind(b"slow", "task")]
        receipts = queue.enqueue_many(jobs)
        async with worker:
            while queue.counts() != Counts(enqueued=3, completed=2, dead=1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [*queue.results(receipt.id for receipt in receipts).values()] == [
            b"from a task",
            b"from a thread",
        ]
        return ran

    ran = asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert ran["task"] is threading.current_thread()
    assert ran["thread"] is not threading.current_thread()
    assert [letter.reason for letter in queue.admin.dead()] == [
        "TimeoutError: the handler ran past its deadline of 0.3 s"
    ]


def test_jobs_of_an_unknown_kind_are_quarantined(
    work: Work, queue: Queue, record: Recorder
) -> None:
    """The jobs are quarantined after a grace period with all their fields and a useful reason. They
    spend no attempt and delay no other job (B-4).
    """
    worker = work(heartbeat=0.1, timeout=1.0)

    @worker.handler("q", kind="a", concurrency=1, max_attempts=2, grace=1.0)
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    worker.handler("q", kind="b")(body)
    queue.enqueue_many(
        [of_kind(b"strange", "c"), of_kind(b"1", "a"), of_kind(b"kindless"), of_kind(b"2", "b")]
    )
    with worker:
        until(lambda: queue.counts().completed == 2)
        assert queue.counts().dead == 0
        until(lambda: queue.counts() == Counts(enqueued=4, completed=2, dead=2))
    assert record.ended == [b"1", b"2"]
    letters = {letter.job.payload: letter for letter in queue.admin.dead()}
    strange = letters[b"strange"]
    assert strange.reason == "no handler for jobs of kind 'c': this worker knows 'a', 'b'"
    assert (
        letters[b"kindless"].reason
        == "no handler for jobs of kind None: this worker knows 'a', 'b'"
    )
    assert (strange.job.headers, strange.job.attempt) == ({"kind": "c"}, 1)
    queue.admin.redrive(strange.job.id)
    lease = queue.lease()
    assert lease is not None
    # put back thirty times, for a moment each, and not leased in between
    assert 32 <= lease.token < 60


@pytest.mark.sampled("kind")
@pytest.mark.slow
@pytest.mark.parametrize("takes", [{"kind": "b"}, {}], ids=["by kind", "all"])
@pytest.mark.parametrize("grace", [0.0, 0.1])
def test_a_kind_that_a_living_worker_knows_is_not_buried(
    work: Work,
    queue: Queue,
    record: Recorder,
    gate: threading.Event,
    takes: dict[str, Any],
    grace: float,
) -> None:
    """The kind's worker may be busy for long. When it has gone, other workers may quarantine the
    jobs."""
    old, new = work(heartbeat=0.1, timeout=1.0), work(heartbeat=0.1, timeout=1.0)

    @old.handler("q", kind="a", grace=grace)
    def known(job: Job) -> None:
        with record("old"):
            pass

    @new.handler("q", concurrency=1, **takes)
    def unknown(job: Job) -> Iterator[Any]:
        with record(job.id):
            yield gate

    def put_back() -> bool:
        """Tell whether the old worker put each job back after its grace."""
        late = [
            state
            for state in queue.admin.delayed()
            if (state.due or 0.0) - state.job.enqueued_at >= 1.0
        ]
        return len(late) == 4

    with new:
        queue.enqueue(NewJob(b"x", id="busy", headers={"kind": "b"}))
        record.await_started(1)
        with old:
            queue.enqueue_many(of_kind(b"x", "b") for _ in range(4))
            until(put_back)
            assert queue.counts().dead == 0
            gate.set()
            until(lambda: queue.counts() == Counts(enqueued=5, completed=5))
    with old:
        queue.enqueue(of_kind(b"x", "b"))
        until(lambda: queue.counts().dead == 1)
    assert "old" not in record.ended


@pytest.mark.slow
def test_a_rolling_deploy(work: Work, queue: Queue, record: Recorder) -> None:
    """Workers that do not know a kind yet leave its jobs to other workers, on their first
    attempt."""
    old, new = (
        work(name="old", heartbeat=0.1, timeout=1.0),
        work(name="new", heartbeat=0.1, timeout=1.0),
    )

    @old.handler("q", kind="a", grace=PATIENCE)
    def known(job: Job) -> None:
        with record(("old", job.headers["kind"], job.attempt)):
            pass

    @new.handler("q", kind="b")
    def unknown(job: Job) -> None:
        with record(("new", job.headers["kind"], job.attempt)):
            pass

    queue.enqueue_many([of_kind(b"x", "b")] * 5)
    with old:
        until(lambda: queue.counts().delayed == 5)
        with new:
            queue.enqueue_many([of_kind(b"x", kind) for kind in "aabb"])
            until(lambda: queue.counts() == Counts(enqueued=9, completed=9))
    assert Counter(record.ended) == {("new", "b", 1): 7, ("old", "a", 1): 2}
