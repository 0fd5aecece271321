"""Workers of ordered queues. Jobs of one key run one at a time and in order, over all workers and
shards."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field

from headrace import DeadLetter, NewJob, Queue, Release, Retry, RetryLater
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.processes import Processes
from tests.support.servers import Server


@define
class Judge:
    """A record of all runs by key and number. A cancelled job may run until its handler is told."""

    wrong: list[str] = field(factory=list[str])
    # the runs that count
    running: dict[tuple[str, int], object] = field(factory=dict[tuple[str, int], object])
    over: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    attempts: dict[tuple[str, int], int] = field(factory=dict[tuple[str, int], int])
    cancelled: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    lock: Any = field(factory=threading.Lock)

    def begins(self, key: str, number: int, attempt: int) -> object:
        """Begin a run. All earlier jobs of its key must have ended or been cancelled. Runs of
        earlier attempts do not count any more, and one of them may begin late when its lease is
        lost.
        """
        run = object()
        with self.lock:
            if attempt < self.attempts.get((key, number), 0):
                return run
            self.attempts[key, number] = attempt
            before = [n for n in range(number) if (key, n) not in self.over | self.cancelled]
            if before and (key, number) not in self.cancelled:
                self.wrong.append(f"{key}.{number} runs before {before} have ended")
            self.over.discard((key, number))
            self.running[key, number] = run
        return run

    def ends(self, key: str, number: int, run: object) -> None:
        """End a run, unless its lease was lost and another run has begun."""
        with self.lock:
            if self.running[key, number] is run:
                self.over.add((key, number))

    def cancel(self, key: str, number: int) -> None:
        """Record that a job is about to be cancelled."""
        with self.lock:
            self.cancelled.add((key, number))


@pytest.mark.slow
@pytest.mark.sampled("kind")
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("seed", [1])
def test_a_storm(server: Server, kind: str, shards: int, seed: int, large: bool) -> None:
    """Handlers of three workers fail in every way. Jobs are cancelled, leases end, and a worker
    stops."""
    judge, dice, tried = Judge(), random.Random(seed), set[tuple[str, int]]()
    settings: dict[str, Any] = {"shards": shards, "lease": 30.0}
    number_of_each = 25 if large else 12
    plan = {f"k{n}": [dice.random() for _ in range(number_of_each)] for n in range(8)}

    def worker() -> Running:
        made = Running(kind, url=server.url)

        @made.handler(
            Queue("q", url=server.url, **settings),
            ordered=True,
            concurrency=6,
            retry=Retry(attempts=50, wait=0),
        )
        def work(job: Any) -> Iterator[float]:
            number = int(job.payload)
            run = judge.begins(job.key, number, job.attempt)
            yield 0.001
            chance = plan[job.key][number]
            if chance < 0.3 and (job.key, number) not in tried:
                tried.add((job.key, number))
                raise (
                    Release
                    if chance < 0.05
                    else RetryLater(0.01)
                    if chance < 0.15
                    else ValueError("once more")
                )
            judge.ends(job.key, number, run)
            if chance > 0.94:
                raise DeadLetter("no")

        return made

    with Queue("q", url=server.url, **settings) as queue:
        queue.enqueue_many(
            [
                NewJob(b"%d" % n, key=key, id=f"{key}.{n}")
                for n in range(number_of_each)
                for key in plan
            ]
        )
        workers = [worker() for _ in range(3)]
        for one in workers:
            one.start()
        try:
            for _ in range(12):
                key, number = dice.choice(list(plan)), dice.randrange(number_of_each)
                judge.cancel(key, number)
                queue.cancel(f"{key}.{number}", key=key)
                queue.admin.expire()
            workers[0].stop()
            workers[0].close()
            workers[0] = worker()
            workers[0].start()
            assert queue.admin.drain(30)
        finally:
            for one in workers:
                one.stop()
                one.close()
        counts = queue.counts()
        assert (counts.present - counts.dead, counts.lost) == (0, 0)
    assert judge.wrong == []
    assert judge.over | judge.cancelled == {(key, n) for key in plan for n in range(number_of_each)}


def test_the_next_of_a_key_follows_at_once(server: Server, kind: str) -> None:
    """The call that settles one job of a key leases the next."""
    done: list[bytes] = []
    worker = Running(kind, url=server.url)

    @worker.handler(Queue("q", url=server.url), ordered=True, concurrency=4)
    def work(job: Any) -> None:
        done.append(job.payload)

    with Queue("q", url=server.url) as queue:
        queue.enqueue_many([NewJob(b"%d" % n, key="k") for n in range(200)])
        with worker:
            until(lambda: len(done) == 200)
    assert done == [b"%d" % n for n in range(200)]


@pytest.mark.long
def test_a_hot_key_keeps_no_other_waiting(server: Server, kind: str, gate: threading.Event) -> None:
    """A thousand jobs of a key wait for a long run. Jobs behind them and jobs without a key go
    on."""
    worker, done = Running(kind, url=server.url), list[bytes]()

    @worker.handler(Queue("q", url=server.url), ordered=True, concurrency=2)
    def work(job: Any) -> Iterator[Any]:
        if job.key == "hot" and job.payload == b"0":
            yield gate
        done.append(job.payload)

    with Queue("q", url=server.url) as queue:
        queue.enqueue_many(
            [*[NewJob(b"%d" % n, key="hot") for n in range(1000)], NewJob(b"a", key="other"), b"b"]
        )
        with worker:
            until(lambda: len(done) == 2)
            assert sorted(done) == [b"a", b"b"]
            gate.set()
            until(lambda: len(done) > 200)
    assert done[2:] == [b"%d" % n for n in range(len(done) - 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_killed_worker(processes: Processes, newest: Server) -> None:
    """Its job comes first elsewhere, before the other jobs of its key."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue_many(
            [
                NewJob(b"hold %s %d" % (key, n), key=key.decode())
                for n in range(3)
                for key in (b"a", b"b")
            ]
        )
        victim = processes.start("victim", concurrency=4, ordered=True)
        processes.await_notes(2, "began")
        os.kill(victim.pid, signal.SIGKILL)
        processes.open_gate()
        processes.start("heir", concurrency=4, ordered=True)
        assert queue.admin.drain(30)
    rows = sorted([*processes.notes("began"), *processes.notes("done")], key=lambda row: row.at)
    for key in "ab":
        ran = [
            (row.event, int(row.payload[-1]), row.attempt) for row in rows if row.payload[-3] == key
        ]
        assert ran == [
            ("began", 0, 1), ("began", 0, 2), ("done", 0, 2), ("began", 1, 1), ("done", 1, 1), ("began", 2, 1),
            ("done", 2, 1),
        ]  # fmt: skip
