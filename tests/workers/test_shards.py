"""Workers of sharded queues. All shards share one pool of slots, and none waits for another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
import redis

from headrace import DeadLetter, NewJob, Queue, Rate, Retry, Tasks
from headrace._core.queue.schedules import schedules
from headrace._core.shards import reshard as resharding
from headrace._core.shards.map import ShardMap
from headrace._core.worker import scheduler
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from headrace._protocol.limits import POLL_S
from headrace.errors import ShardsMismatch
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

SHARDS = 6


@pytest.fixture
def queue(server: Server) -> Any:
    with Queue("q", url=server.url, shards=SHARDS) as queue:
        yield queue


@pytest.mark.slow
@pytest.mark.sampled("kind")
@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_all_shards_share_the_slots(
    server: Server, queue: Any, kind: str, concurrency: int
) -> None:
    runs, seen = Recorder(), Counter[str]()
    worker = Running(kind, url=server.url)

    @worker.handler(queue, concurrency=concurrency)
    def work(job: Any) -> Any:
        with runs(job):
            yield 0.001
        seen[job.key] += 1
        return job.payload

    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(300)])
    with worker:
        assert queue.admin.drain(60)
        receipt = queue.enqueue(b"one more", key="k300")
        assert receipt.result(timeout=20) == b"one more"
    assert seen == {f"k{n}": 1 for n in range(301)}
    assert runs.most <= concurrency
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (301, 0, 0)
    assert [one for one in queue.admin.workers() if not one.name.startswith("queue-")] == []


@pytest.mark.slow
@pytest.mark.sampled("kind")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_shards_take_turns(server: Server, queue: Any, kind: str, concurrency: int) -> None:
    """Each shard has a backlog. None is drained while another waits."""
    worker, done, there = Running(kind, url=server.url), [], threading.Event()

    @worker.handler(queue, concurrency=concurrency)
    def work(job: Any) -> Any:
        while not there.is_set():
            yield 0.01
        yield 0.002
        done.append(job.shard)

    table = Table.of("q", SHARDS)
    keys = [
        next(f"k{n}" for n in range(999) if table.shard_of(f"k{n}") == shard)
        for shard in range(SHARDS)
    ]
    # so that an instant for which a shard's role waits counts little
    each = 80 * min(2, concurrency)
    queue.enqueue_many([NewJob(b"x", key=key) for _ in range(each) for key in keys])
    with worker:
        # a busy machine may let one come in late
        until(lambda: len(queue.admin.workers()) == SHARDS)
        there.set()
        assert queue.admin.drain(60)
    early = Counter(done[: len(done) // 2])
    assert min(early[shard] for shard in range(SHARDS)) >= each / 8, early


@pytest.mark.slow
@pytest.mark.sampled("kind")
@pytest.mark.parametrize(("shards", "rounds"), [(2, 8), (6, 6), (64, 2)])
def test_a_shard_with_a_backlog_starves_no_other(
    newest: Server, kind: str, shards: int, rounds: int
) -> None:
    """A job in another shard waits for about a round behind any backlog, in a worker without a free
    slot."""
    starving(
        newest, kind, shards, rounds, lambda worker, queue: worker.handler(queue, concurrency=2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 6])
def test_a_backlog_of_batches_starves_no_other_shard(
    newest: Server, kind: str, shards: int
) -> None:
    def register(worker: Running, queue: Any) -> Any:
        return worker.batch_handler(queue, max_size=4, max_wait=0.01, concurrency=2)

    starving(newest, kind, shards, 6, register)


def starving(server: Server, kind: str, shards: int, rounds: int, register: Any) -> None:
    """Enqueue a job in each shard without the backlog, *rounds* times. Return how many jobs of the
    backlog each waits for.
    """
    worker, backlog, seen = Running(kind, url=server.url), list[bytes](), dict[bytes, int]()

    def work(argument: Any) -> Any:
        yield 0.02
        for job in argument if isinstance(argument, list) else [argument]:
            if job.payload == b"backlog":
                backlog.append(job.payload)
            else:
                seen[job.payload] = len(backlog)

    table = Table.of("q", shards)
    keys = [
        next(f"k{n}" for n in range(99_999) if table.shard_of(f"k{n}") == shard)
        for shard in range(shards)
    ]
    with Queue("q", url=server.url, shards=shards) as queue:
        register(worker, queue)(work)
        queue.enqueue_many([NewJob(b"backlog", key=keys[0]) for _ in range(20_000)])
        with worker:
            until(
                lambda: len(queue.admin.workers()) == shards and len(backlog) > 20,
                "a registration in each shard",
            )
            waited: list[int] = []
            for turn in range(rounds):
                jobs = [
                    NewJob(b"%d/%d" % (turn, shard), key=keys[shard]) for shard in range(1, shards)
                ]
                began = len(backlog)
                queue.enqueue_many(jobs)
                until(
                    lambda: all(job.payload in seen for job in jobs),  # noqa: B023
                    f"{turn} of {rounds}: {len(seen)} have run",
                )
                waited += [seen[job.payload] - began for job in jobs]
            longest, share = max(waited), len(waited) / (len(waited) + len(backlog))
            assert longest <= 90 + 6 * shards, (longest, share)
            queue.admin.purge()


def test_the_table_is_read_by_the_clock(
    server: Server, queue: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a handler does not cause a read of the table."""
    worker, runs, looks, look = (
        Running(kind, url=server.url),
        Recorder(),
        list[float](),
        ShardMap.look,
    )

    @worker.handler(queue, concurrency=5)
    def work(job: Any) -> None:
        with runs(job.payload):
            pass

    def looked(known: ShardMap) -> Any:
        looks.append(time.monotonic())
        return look(known)

    queue.enqueue_many([b"x"] * 1_000)
    monkeypatch.setattr(ShardMap, "look", looked)
    with worker:
        runs.await_ended(1_000)
        looked_at = list(looks)
    assert looked_at
    assert len(looked_at) <= 2 + (looked_at[-1] - looked_at[0]) / POLL_S


def test_a_key_s_jobs_come_in_order_to_one_slot(server: Server, queue: Any, kind: str) -> None:
    worker, done = Running(kind, url=server.url), dict[str, list[int]]()

    @worker.handler(queue, concurrency=1)
    def work(job: Any) -> None:
        done.setdefault(job.key, []).append(int(job.payload))

    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n % 10}") for n in range(300)])
    with worker:
        assert queue.admin.drain(60)
    assert done == {f"k{k}": [*range(k, 300, 10)] for k in range(10)}


@pytest.mark.sampled
def test_a_foreign_job_wakes_a_worker_at_rest(server: Server, queue: Any, kind: str) -> None:
    worker, runs = Running(kind, url=server.url), Recorder()

    @worker.handler(queue, concurrency=1)
    def work(job: Any) -> None:
        with runs(job.payload):
            pass

    with worker:
        until(lambda: len(queue.admin.workers()) == SHARDS, "a registration in each shard")
        client: Any = redis.Redis.from_url(server.url)
        for part in Table.of("q", SHARDS).shards:
            client.xadd(Keys.of("q").at(part).key("jobs"), {"data": b"%d" % part.number})
            runs.await_ended(part.number + 1)
        client.close()
    assert runs.ended == [b"%d" % number for number in range(SHARDS)]


@pytest.mark.sampled
def test_slow_jobs_of_one_shard_leave_the_others_their_turn(
    server: Server, queue: Any, kind: str
) -> None:
    """Jobs that were leased ahead without a slot go back. They are leased again when there is
    one."""
    worker, gate, runs = Running(kind, url=server.url), threading.Event(), Recorder()

    @worker.handler(queue, concurrency=2)
    def work(job: Any) -> Any:
        with runs(job.payload):
            if job.payload == b"slow":
                yield gate

    queue.enqueue_many([NewJob(b"fast", key=f"k{n}") for n in range(200)])
    with worker:
        runs.await_ended(200)
        queue.enqueue_many([b"slow", b"slow"])
        runs.await_started(202)
        queue.enqueue_many([NewJob(b"fast", key=f"k{n}") for n in range(200)])
        until(lambda: queue.counts().leased == 2, "others are given back, or were not leased")
        gate.set()
        assert queue.admin.drain(60)
    assert len(runs.ended) == 402


def test_batches_are_of_one_shard(server: Server, queue: Any, kind: str) -> None:
    worker, batches = Running(kind, url=server.url), list[list[Any]]()

    @worker.batch_handler(queue, max_size=20, max_wait=0.05)
    def work(jobs: Any) -> None:
        batches.append(list(jobs))

    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(200)])
    with worker:
        assert queue.admin.drain(60)
    assert sum(map(len, batches)) == 200
    assert all(len({job.shard for job in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) > 5


def test_failures_are_judged_as_anywhere(server: Server, queue: Any, kind: str) -> None:
    worker, tried = Running(kind, url=server.url), Counter[str]()

    @worker.handler(queue, concurrency=5, retry=Retry(attempts=3, wait=lambda _state: 0.0))
    def work(job: Any) -> None:
        tried[job.id] += 1
        if job.payload == b"dead":
            raise DeadLetter("no")
        if job.attempt < 3 or job.payload == b"poison":
            raise ValueError("again")

    receipts = [
        queue.enqueue(payload, key=f"k{n}")
        for n, payload in enumerate([b"ok", b"dead", b"poison"] * 5)
    ]
    with worker:
        assert queue.admin.drain(60)
    assert [tried[receipt.id] for receipt in receipts] == [3, 1, 3] * 5
    assert (queue.counts().completed, queue.counts().dead, queue.counts().lost) == (5, 10, 0)


@pytest.mark.sampled
def test_a_dead_worker_s_jobs_come_back_in_every_shard(
    server: Server, queue: Any, kind: str
) -> None:
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(60)])
    with Queue("q", url=server.url, shards=SHARDS, lease=1) as other:
        assert len(other.lease_many(60)) == 60
    worker, seen = Running(kind, url=server.url), Counter[str]()

    @worker.handler("q", shards=SHARDS, lease=1)
    def work(job: Any) -> None:
        seen[job.key] += 1

    with worker:
        assert queue.admin.drain(60)
    assert seen == {f"k{n}": 1 for n in range(60)}


def test_a_worker_of_another_number_of_shards_ends(server: Server, queue: Any, kind: str) -> None:
    queue.enqueue(b"x")
    worker = Running(kind, url=server.url)
    worker.handler("q", shards=SHARDS + 1)(lambda _job: None)
    worker.start()
    until(
        lambda: worker.engine is None or worker.engine.finished or worker.engine.error is not None,
        "its end",
    )
    with pytest.raises(ShardsMismatch, match=f"give shards={SHARDS}"):
        worker.close()


def test_a_rate_per_shard(server: Server, kind: str) -> None:
    with Queue(
        "q", url=server.url, shards=SHARDS, rate=Rate(2 * SHARDS, per=600, per_shard=True)
    ) as queue:
        worker, done = Running(kind, url=server.url), Counter[int]()

        @worker.handler(queue, concurrency=40)
        def work(job: Any) -> None:
            done[job.shard] += 1

        queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(120)])
        with worker:
            until(lambda: queue.counts().completed == 2 * SHARDS)
            assert not queue.admin.drain(0.3)
        assert done == dict.fromkeys(range(SHARDS), 2)
        assert queue.counts().present == 120 - 2 * SHARDS


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers declare their code's schedules often."""
    monkeypatch.setattr(scheduler, "DECLARE_EVERY_S", 0.1)


def declare(tasks: Any, kind: str, *timings: float) -> tuple[Any, list[str]]:
    """Declare a task that recurs. Return the ids of the jobs that it ran for."""
    ran: list[str] = []

    def double(n: int = 0) -> int:
        ran.append(tasks.job.id)
        return 2 * n

    async def double_async(n: int = 0) -> int:
        return double(n)

    task = tasks.task(name="double")(double_async if kind == "tasks" else double)
    for every in timings:
        task = tasks.cron(every=every)(task)
    return task, ran


def test_tasks(server: Server, kind: str) -> None:
    with Tasks("q", server.url, shards=SHARDS) as tasks:
        task, ran = declare(tasks, kind)
        first = [task.enqueue(n) for n in range(20)]
        named = [task.options(id=f"i{n}", key=f"k{n}").enqueue(n) for n in range(20)]
        assert not task.options(id="i3", key="k3").enqueue(5).added
        many = tasks.enqueue_many([task.new(n) for n in range(20)])
        worker = Running(kind, url=server.url)
        worker.worker.tasks(tasks, concurrency=7)
        with worker:
            for some in (first, named, many):
                assert [receipt.result(timeout=30) for receipt in some] == [*range(0, 40, 2)]
        assert len(ran) == len(set(ran)) == 60
        assert (
            len({shard.number for shard in tasks.queue.admin.shards() if shard.counts.completed})
            == SHARDS
        )


@pytest.mark.usefixtures("soon")
def test_schedules_of_tasks_are_in_the_shards_of_their_names(server: Server, kind: str) -> None:
    """Each tick makes one job with any number of shards. A schedule that left the code ends."""
    with Tasks("q", server.url, shards=SHARDS) as tasks:
        _, ran = declare(tasks, kind, 3600, 0.1, 7200)
        worker = Running(kind, url=server.url)
        worker.worker.tasks(tasks)
        with worker:
            until(lambda: len(ran) >= 5)
            until(lambda: len(tasks.queue.admin.schedules()) == 3)
            until(
                lambda: all(one.recurring.declared_as for one in worker.engine.lifecycle.consumers)
            )
            assert sorted(one.name for one in tasks.queue.admin.schedules()) == [
                "tasks/double", "tasks/double#2", "tasks/double#3",
            ]  # fmt: skip
        assert all(name.startswith("tasks/double#2@") for name in ran)
        assert len(set(ran)) == len(ran)
        for shard in tasks.queue.admin.shards():
            often = Table.of("q", SHARDS).shard_of("tasks/double#2") == shard.number
            assert shard.counts.enqueued == (len(ran) if often else 0) + shard.counts.present
    with Tasks("q", server.url, shards=SHARDS) as tasks:
        declare(tasks, kind, 3600)
        worker = Running(kind, url=server.url)
        worker.worker.tasks(tasks)
        with worker:
            until(lambda: [one.name for one in tasks.queue.admin.schedules()] == ["tasks/double"])


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("runs", [True, False], ids=["a worker that runs", "one that starts later"])
def test_schedules_of_tasks_keep_their_tick_in_new_shards(
    server: Server, kind: str, runs: bool
) -> None:
    with Tasks("q", server.url, shards=SHARDS) as tasks:
        declare(tasks, kind, 3600)
        worker = Running(kind, url=server.url)
        worker.worker.tasks(tasks)
        worker.start()
        until(tasks.queue.admin.schedules)
        due = tasks.queue.admin.schedules()[0].next_due
        if not runs:
            worker.close()
        # the steps of `reshard`, but for the last, which moves schedules, too
        change = tasks.queue._verbs.map
        for step in (resharding.begin(change, 2 * SHARDS), resharding.seal(change)):
            tasks.queue._drive(step)
        if not runs:
            worker = Running(kind, url=server.url)
            worker.worker.tasks(tasks)
            worker.start()
        new = tasks.queue._verbs.map.of("tasks/double")
        assert new.shard.number >= SHARDS
        until(lambda: tasks.queue._drive(schedules(new)))
        until(lambda: len(tasks.queue.admin.schedules()) == 1, "the old shard lets it go")
        assert [one.next_due for one in tasks.queue.admin.schedules()] == [due]
        worker.close()


@pytest.mark.ci
def test_persistent_jobs_have_one_holder_in_every_shard(
    server: Server, queue: Any, kind: str
) -> None:
    """When a worker stops, its jobs go to another at once. No job is leased ahead in any shard."""
    record = Recorder()

    def holder(name: str, slots: int) -> Running:
        worker = Running(kind, url=server.url, name=name, heartbeat=0.3, timeout=1.2)

        @worker.handler(queue, persistent=True, concurrency=slots)
        def body(job: Any) -> Any:
            with record((name, job.key)):
                while not job.lost:
                    yield 0.005

        return worker

    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(8)])
    first, second = holder("first", 5), holder("second", 8)
    with second:
        with first:
            record.await_started(8)
            until(lambda: queue.counts().leased == 8)
            held = {key for name, key in record.started if name == "first"}
        record.await_started(8 + len(held))
        assert record.most <= 8
        assert {key for name, key in record.started if name == "second"} == {
            f"k{n}" for n in range(8)
        }
        assert {key for name, key in record.ended} == held
    counts = queue.counts()
    assert (counts.parked, counts.enqueued, counts.lost) == (8, 8, 0)


@pytest.mark.sampled
def test_a_persistent_job_whose_holder_died_is_held_again(
    server: Server, queue: Any, kind: str
) -> None:
    record = Recorder()
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(8)])
    with Queue("q", url=server.url, shards=SHARDS, lease=0.5) as other:
        assert len(other.lease_many(8)) == 8
    worker = Running(kind, url=server.url)

    @worker.handler(queue, persistent=True, concurrency=8, retry=Retry(wait=0))
    def body(job: Any) -> Any:
        with record(job.key):
            if len(record.started) <= 12:
                raise OSError("no route")
            while not job.lost:
                yield 0.005

    with worker:
        record.await_started(20)
        until(lambda: queue.counts().leased == 8)
    assert set(record.started) == {f"k{n}" for n in range(8)}
    assert (queue.counts().parked, queue.counts().dead) == (8, 0)
