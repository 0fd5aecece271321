"""Workers of queues with `fair=` and `limits=`. The tests cover threads, asyncio, batches, tasks,
flows and log events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from headrace import (
    DeadLetter,
    Flow,
    Limit,
    NewJob,
    Queue,
    Release,
    Retry,
    RetryLater,
    Tasks,
    Worker,
)
from headrace.testing import run
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]


def of(tenant: str, number: int, **more: Any) -> list[NewJob[bytes]]:
    """Make jobs of a tenant."""
    return [
        NewJob(f"{tenant}{at}".encode(), headers={"tenant": tenant}, **more) for at in range(number)
    ]


class Most:
    """The most runs at a time, of each tenant and in all."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[str] = []
        self._lock = threading.Lock()

    def enter(self, tenant: str) -> None:
        with self._lock:
            self.running[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.running[tenant])
            self.most["all"] = max(self.most["all"], self.running.total())

    def leave(self, tenant: str) -> None:
        with self._lock:
            self.running[tenant] -= 1
            self.done.append(tenant)


def test_limits_hold_over_workers_and_no_handler_waits(
    newest_queue: Queue[bytes], newest: Server, work: Work
) -> None:
    """Each worker leases only for free handlers, so that slots are full while jobs wait."""
    most = Most()
    limits = [Limit(2, key="tenant"), Limit(5)]

    def handle(job: Any) -> Any:
        tenant = job.headers["tenant"]
        most.enter(tenant)
        yield 0.005
        most.leave(tenant)

    newest_queue.enqueue_many([job for name in "abcd" for job in of(name, 30)])
    with ExitStack() as stack:
        for at in range(2):
            worker = work(name=f"w{at}")
            worker.handler("q", concurrency=8, limits=limits)(handle)
            stack.enter_context(worker)
        until(lambda: len(most.done) == 120)
    assert most.most == {"a": 2, "b": 2, "c": 2, "d": 2, "all": 5}
    assert newest_queue.counts().completed == 120


def test_a_newcomer_passes_a_flood(newest_queue: Queue[bytes], work: Work) -> None:
    """This also holds behind thousands of entries that no lease call has reached, and while all
    handlers are busy."""
    gate, order = threading.Event(), list[str]()

    def handle(job: Any) -> Any:
        yield gate
        order.append(job.headers["tenant"])

    newest_queue.enqueue_many(of("flood", 3000))
    worker = work()
    worker.handler("q", concurrency=2, fair="tenant")(handle)
    with worker:
        until(lambda: newest_queue.counts().leased >= 2)
        newest_queue.enqueue_many(of("ada", 3))
        lines = newest_queue.ops.keys.key("lines")
        with newest_queue_client(newest_queue) as client:
            until(lambda: client.zcard(lines) >= 2900)
        gate.set()
        until(lambda: order.count("ada") == 3)
    assert order.index("ada") < 300


@pytest.mark.ci
def test_handlers_that_end_together_do_not_begin_together(
    newest_queue: Queue[bytes], work: Work
) -> None:
    """A job of a quiet tenant would wait for all of them, again and again."""
    gates = [threading.Event()]
    begun: list[float] = []

    def handle(job: Any) -> Any:
        begun.append(time.monotonic())
        yield gates[-1]

    def spans() -> float:
        """The seconds in which eight handlers begin, of which each then runs for 50 ms at least."""
        until(lambda: len(begun) == 8 * len(gates) and time.monotonic() - begun[-1] > 0.05)
        span = begun[-1] - begun[-8]
        gates.append(threading.Event())
        gates[-2].set()
        return span

    newest_queue.enqueue_many(of("flood", 500))
    worker = work()
    worker.handler("q", concurrency=8, fair="tenant")(handle)
    with worker:
        spans()
        # half of the 50 ms in which they begin; on a busy machine they do not always end together
        assert any(spans() > 0.018 for _ in range(12))
        gates[-1].set()


def newest_queue_client(queue: Queue[bytes]) -> Any:
    """Make a plain client of the queue's server."""
    import redis

    return redis.Redis.from_url(queue._address.url)


def test_batches_of_one_value(newest_queue: Queue[bytes], work: Work) -> None:
    batches: list[list[str]] = []

    def handle(jobs: Any) -> None:
        batches.append([job.headers["tenant"] for job in jobs])

    newest_queue.enqueue_many(
        [job for pair in zip(of("a", 30), of("b", 30), strict=True) for job in pair]
    )
    worker = work()
    worker.batch_handler("q", max_size=10, same=True, fair="tenant")(handle)
    with worker:
        until(lambda: newest_queue.counts().completed == 60)
    assert all(len(set(batch)) == 1 for batch in batches)
    assert len(batches) < 20


def test_tasks_are_told_apart_by_an_argument(newest: Server) -> None:
    tasks = Tasks("calls", url=newest.url, limits=Limit(1, key="tenant"))
    most = Most()

    @tasks.task
    def call(tenant: str, number: int = 0) -> None:
        most.enter(tenant)
        threading.Event().wait(0.005)
        most.leave(tenant)

    tasks.enqueue_many([call.new(tenant, number) for number in range(5) for tenant in "ab"])
    worker = Worker(newest.url)
    worker.tasks(tasks, concurrency=5)
    with worker, tasks:
        until(lambda: len(most.done) == 10)
    assert (most.most["a"], most.most["b"]) == (1, 1)


def test_a_stage_of_a_flow_has_terms_of_its_own(newest: Server) -> None:
    flow = Flow("shop", url=newest.url)
    most = Most()

    @flow.stage("pay", next="ship", concurrency=4)
    def pay(job: Any) -> None: ...

    @flow.stage("ship", concurrency=4, limits=Limit(1, key="tenant"))
    def ship(job: Any) -> None:
        most.enter(job.headers["tenant"])
        threading.Event().wait(0.005)
        most.leave(job.headers["tenant"])

    for _ in range(5):
        flow.start(b"x", headers={"tenant": "a"})
    worker = Worker(newest.url)
    worker.flow(flow)
    with worker, flow:
        until(lambda: len(most.done) == 5)
    assert most.most["a"] == 1


def test_a_header_that_no_job_has_is_reported(
    newest_queue: Queue[bytes], work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    newest_queue.enqueue_many(of("a", 150))
    worker = work()
    worker.handler("q", fair="tenant", limits=Limit(50, key="tenent"))(lambda job: None)
    with worker:
        until(lambda: newest_queue.counts().completed == 150)
    found = [
        entry.getMessage()
        for entry in caplog.records
        if entry.getMessage().startswith("key_unknown")
    ]
    assert len(found) == 1
    assert "'tenent'" in found[0]


def test_a_dead_worker_gives_its_slots_back(newest_queue: Queue[bytes], newest: Server) -> None:
    dead = Queue[bytes]("q", url=newest.url, limits=Limit(1, key="tenant"), lease=0.2)
    newest_queue.enqueue_many(of("a", 2))
    assert len(dead.lease_many(2)) == 1
    worker = Worker(newest.url)
    worker.handler("q", limits=Limit(1, key="tenant"), lease=0.2)(lambda job: None)
    with worker, dead:
        until(lambda: newest_queue.counts().completed == 2)


def test_a_run_that_sleeps_has_no_slot(newest_queue: Queue[bytes], work: Work) -> None:
    order: list[str] = []

    def handle(job: Any) -> Any:
        order.append(f"{job.id} {job.attempt}")
        if job.id == "0":
            yield partial(job.sleep, "night", 0.3)
        order.append(f"{job.id} done")

    newest_queue.enqueue_many(
        [NewJob(b"x", id=f"{at}", headers={"tenant": "a"}) for at in range(2)]
    )
    worker = work()
    worker.handler("q", concurrency=2, limits=Limit(1, key="tenant"))(handle)
    with worker:
        until(lambda: newest_queue.counts().completed == 2)
    assert order.index("1 done") < order.index("0 done")


def test_terms_of_a_deployment_that_changes_them(
    newest_queue: Queue[bytes], newest: Server
) -> None:
    """Without live workers a new one brings its structure, even while thousands of jobs are in
    lines."""
    with Queue[bytes]("q", url=newest.url, fair="tenant", weights={"a": 2.0}) as old:
        old.enqueue_many(of("a", 1500))
        assert old.lease().release()  # type: ignore[union-attr]
    done: list[bytes] = []
    worker = Worker(newest.url)
    worker.handler("q", fair="org", weights={"big": 3.0})(lambda job: done.append(job.payload))
    with worker:
        until(lambda: len(done) == 1500)
        with newest_queue_client(newest_queue) as client:
            terms = client.hgetall(newest_queue.ops.keys.key("terms"))
    assert terms[b"structure"] == b"fair=org limits= rates="
    assert {name for name in terms if name.startswith(b"w") and name != b"weighted"} == {b"w3:big"}


def test_workers_go_on_with_terms_that_an_operator_changes(
    newest_queue: Queue[bytes], work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    newest_queue.enqueue_many(
        [NewJob(b"x", headers={"tenant": "a", "org": f"{at % 3}"}) for at in range(50)]
    )
    worker, most = work(), Most()

    def handle(job: Any) -> Any:
        most.enter(job.headers["org"])
        yield 0.01
        most.leave(job.headers["org"])

    worker.handler("q", concurrency=2, fair="tenant")(handle)
    with worker:
        until(lambda: len(most.done) > 5)
        newest_queue.admin.redeclare(fair="org", limits=Limit(1))
        until(lambda: newest_queue.counts().held <= 1)
        most.most.clear()
        until(lambda: newest_queue.counts().completed == 50)
        until(lambda: "terms_changed" in caplog.text)
    assert "`fair=org limits=* rates=`" in caplog.text
    assert most.most["all"] == 1


def test_handlers_can_be_tested(newest: Server) -> None:
    tasks = Tasks("calls", fair="tenant", limits=Limit(1, key="tenant"))
    done: list[str] = []

    @tasks.task
    def call(tenant: str) -> None:
        done.append(tenant)

    with Queue[bytes]("calls", url=newest.url) as queue:
        queue.enqueue_many([call.new(tenant) for tenant in "aab"])
    worker = Worker()
    worker.tasks(tasks)
    run(worker, newest.url)
    assert sorted(done) == ["a", "a", "b"]


@pytest.mark.parametrize("end", [RetryLater(), DeadLetter("no"), Release(), ValueError("no")])
def test_slots_of_jobs_that_fail(
    newest_queue: Queue[bytes], newest: Server, end: Exception
) -> None:
    """Each end frees the slot, so that the next job of the value runs."""
    seen: list[str] = []

    def handle(job: Any) -> None:
        seen.append(job.id)
        if job.id == "0" and len(seen) < 3:
            raise end

    newest_queue.enqueue_many(
        [NewJob(b"x", id=f"{at}", headers={"tenant": "a"}) for at in range(3)]
    )
    worker = Worker(newest.url)
    worker.handler("q", limits=Limit(1, key="tenant"), retry=Retry(wait=0.0))(handle)
    with worker:
        until(lambda: {"1", "2"} <= set(seen) and newest_queue.counts().leased == 0)
    counts = newest_queue.counts()
    assert (counts.held, counts.lost) == (0, 0)
