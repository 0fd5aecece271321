"""Workers under rate limits."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis

from headrace import Counts, Job, NewJob, Queue, Rate
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
ENGINES = pytest.mark.parametrize("kind", ["threads", "tasks"])


@ENGINES
@pytest.mark.parametrize("key", [None, "group"])
def test_workers_keep_to_the_limit(work: Work, queue: Queue, key: str | None) -> None:
    """Two workers share a limit. Ten jobs take at least the time of nine tokens, and none is lost
    or runs twice."""
    queue.enqueue_many(NewJob(b"x", headers={"group": "a"}) for _ in range(10))
    ran: list[str] = []
    workers = [work(), work()]
    for worker in workers:

        @worker.handler("q", rate=Rate(50, burst=1, key=key))
        def body(job: Job) -> None:
            assert job.attempt == 1
            ran.append(job.id)

    start = time.monotonic()
    with workers[0], workers[1]:
        until(lambda: queue.counts() == Counts(enqueued=10, completed=10))
        took = time.monotonic() - start
    assert len(set(ran)) == len(ran) == 10
    assert took >= 9 / 50 - 0.01


@contextmanager
def lateness(server: Server) -> Iterator[list[float]]:
    """Measure how late this machine wakes a thread and answers it, in seconds, until it is
    closed."""
    over, found = threading.Event(), list[float]()

    def look() -> None:
        with redis.Redis(unix_socket_path=server.path) as client:
            client.ping()
            while not over.is_set():
                start = time.monotonic()
                over.wait(0.01)
                client.ping()
                found.append(time.monotonic() - start - 0.01)

    thread = threading.Thread(target=look)
    thread.start()
    yield found
    over.set()
    thread.join()


@pytest.mark.sampled("kind")
@ENGINES
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("burst", [1, 10, None])
@pytest.mark.parametrize("key", [None, "group"])
def test_workers_reach_the_limit_and_stay_below(
    work: Work, queue: Queue, newest: Server, key: str | None, burst: int | None, workers: int
) -> None:
    """While jobs wait and slots are free, at least 95 % of the limit is used, but for delays of
    this machine."""
    rate = Rate(50 if burst != 1 else 20, burst=burst, key=key)
    queue.enqueue_many(
        NewJob(b"x", headers={"group": "a"}) for _ in range(rate.tokens + 5 * rate.limit)
    )
    made = [work() for _ in range(workers)]
    for worker in made:

        @worker.handler("q", rate=rate, concurrency=1 if workers == 1 else 10)
        def body(job: Job) -> None:
            pass

    at: list[float] = []
    with ExitStack() as stack:
        late = stack.enter_context(lateness(newest))
        events = stack.enter_context(queue.events(["leased"], timeout=20))
        for worker in made:
            stack.enter_context(worker)
        for number in range(rate.tokens + rate.limit, rate.tokens + 4 * rate.limit, rate.limit):
            at.extend(event.at for event in itertools.islice(events, number - len(at)))
            assert len(at) == number
            took = at[-1] - at[-1 - rate.limit]
            # A bucket of few tokens overflows while nobody comes; one of many has them still.
            missed = 3 * statistics.fmean(late) * rate.limit if burst == 1 else 3 * max(late) / took
            if 1 / took >= 0.95 - missed:
                # a machine that stood still for a moment may try again: a worker that starves,
                # starves always
                break
        else:
            pytest.fail(
                f"1 s of the limit took {took:.2f} s; late by {statistics.fmean(late)}, {max(late)}"
            )
    for first, last in itertools.combinations(range(len(at)), 2):
        passed = round(at[last] - at[first] + 0.002, 4)  # whole milliseconds, and not a bit less
        assert last - first + 1 <= round(rate.tokens + passed * rate.limit, 3)


@pytest.mark.slow
@ENGINES
def test_a_worker_that_must_wait_does_not_spin(work: Work, queue: Queue, newest: Server) -> None:
    worker = work()
    queue.enqueue_many([b"x"] * 5)

    @worker.handler("q", rate=Rate(1, per=600))
    def body(job: Job) -> None:
        pass

    with worker:
        until(lambda: queue.counts().completed == 1)
        reads = calls(newest)["xread"]
        until(lambda: calls(newest)["xread"] > reads + 1)  # it waits for the wake stream only
        before = calls(newest)
        until(lambda: calls(newest)["xread"] > before["xread"] + 1)
        ran = calls(newest) - before
    assert ran["evalsha"] <= 15
    assert queue.counts() == Counts(waiting=4, enqueued=5, completed=1)
