"""Workers under names of their own, operators who act on workers, and queues that are paused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace import Counts, Job, Queue
from headrace.errors import NameTaken
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.processes import Processes
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
ENGINES = pytest.mark.parametrize("kind", ["threads", "tasks"])
NEVER = 600.0  # seconds of a timeout that no test awaits


def consumers(queue: Queue, server: Server) -> set[str]:
    """Return the consumers of the group without random parts and reserved ones."""
    with redis.Redis(unix_socket_path=server.path) as client:
        rows = client.xinfo_consumers(queue.ops.keys.key("jobs"), "workers")
    return {row["name"].decode().partition(".")[0] for row in rows} - {"parked", "idle"}


# -- names -----------------------------------------------------------------------------------------


def test_a_worker_alone_is_listed(work: Work, queue: Queue) -> None:
    """The worker is listed with its queue and the number of its jobs. Afterwards none is listed
    (W-4)."""
    gate = threading.Event()
    worker = work(name="w1")

    @worker.handler("q")
    def body(_: Job) -> Iterator[threading.Event]:
        yield gate

    with worker:
        queue.enqueue_many([b"x"] * 2)
        until(lambda: [x.leased for x in queue.admin.workers()] == [2])
        (state,) = queue.admin.workers()
        assert state.name.startswith("w1.")
        assert (state.queue, state.alive) == ("q", True)
        assert {job.worker for job in queue.admin.running()} == {state.name}
        gate.set()
    assert queue.admin.workers() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["threads"])
def test_a_killed_worker_resumes(
    server: Server, kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A worker that is started again under its name runs its own jobs first, long before its leases
    or heartbeat would end. They count as deliveries (B-1).
    """
    with Processes(kind, server.url, tmp_path) as processes, Queue("q", url=server.url) as queue:
        first = processes.start("w1", concurrency=2, heartbeat=0.5, timeout=NEVER)
        queue.enqueue_many([b"hold 0", b"hold 1"])
        processes.await_notes(2, "began")
        queue.enqueue_many([b"front", b"new"])
        front, new = queue.lease_many(2)
        new.release()
        front.release()
        os.kill(first.pid, signal.SIGKILL)
        began = time.time()
        second = processes.start("w1", concurrency=1, heartbeat=0.5, timeout=NEVER)
        done = processes.await_notes(4, "done")
        record_property("seconds until its jobs ran", round(done[0].at - began, 2))
        assert done[0].at - began < 60.0
        assert {note.pid for note in done} == {second.pid}
        order = [note.payload for note in done]
        assert order[0] == "hold 0"
        assert sorted(order) == ["front", "hold 0", "hold 1", "new"]
        assert {note.payload: note.attempt for note in done} == {
            "hold 0": 2,
            "hold 1": 2,
            "front": 1,
            "new": 1,
        }
        until(lambda: queue.counts() == Counts(enqueued=4, completed=4))
        assert consumers(queue, server) == {"w1", queue._leaser.name}
        assert len([x for x in queue.admin.workers() if x.name.startswith("w1.")]) == 1


def die_often(server: Server, queue: Queue) -> None:
    """Give the only job eighteen deaths."""
    with redis.Redis(unix_socket_path=server.path) as client:
        (row,) = client.xpending_range(queue.ops.keys.key("jobs"), "workers", "-", "+", 1)
        client.hset(queue.ops.keys.key("deaths"), row["message_id"], 18)


def test_poison_under_a_name(processes: Processes, queue: Queue, newest: Server) -> None:
    """The job is dead after 20 deaths, though the named worker resumes it at once."""
    queue.enqueue(b"die")
    for number in range(3):
        if queue.counts().dead:
            break
        if number == 1:
            die_often(newest, queue)
        process = processes.start("w1", concurrency=1, heartbeat=0.2, timeout=NEVER, max_attempts=2)
        until(lambda process=process: queue.counts().dead or not process.is_alive())
    assert [note.attempt for note in processes.notes("began")] == [1, 2]
    assert queue.counts() == Counts(dead=1, enqueued=1)


@ENGINES
def test_a_second_one_under_a_name(work: Work, queue: Queue, record: Recorder) -> None:
    """The second worker is refused with advice, and the first goes on. It is let in when the first
    has gone (B-7)."""
    first, second = (work(name="w1", heartbeat=0.3, timeout=NEVER) for _ in range(2))
    for worker in first, second:

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(job.id):
                pass

    with first:
        until(queue.admin.workers)
        (name,) = [x.name for x in queue.admin.workers()]
        second.start()
        until(lambda: second.engine.error is not None)
        with pytest.raises(
            NameTaken, match=rf"name='w1': {name} lives under this name, on queue 'q'; give each"
        ):
            second.close()
        queue.enqueue(b"x")
        record.await_ended(1)
        assert [x.name for x in queue.admin.workers()] == [name]
    again = work(name="w1", heartbeat=30.0, timeout=NEVER)

    @again.handler("q")
    def body_too(job: Job) -> None:
        with record(job.id):
            pass

    with again:  # at once: who has stopped holds no name
        queue.enqueue(b"y")
        record.await_ended(2)


@pytest.mark.parametrize("kind", ["threads"])
def test_a_frozen_one_loses_its_name(processes: Processes, queue: Queue) -> None:
    """Another worker takes over its name and jobs. The woken worker learns this and ends."""
    frozen = processes.start("w1", concurrency=1, heartbeat=1.0, timeout=NEVER)
    queue.enqueue(b"hold")
    processes.await_notes(1, "began")
    os.kill(frozen.pid, signal.SIGSTOP)
    other = processes.start("w1", concurrency=1, heartbeat=1.0, timeout=NEVER)
    assert [note.pid for note in processes.await_notes(1, "done")] == [other.pid]
    os.kill(frozen.pid, signal.SIGCONT)
    processes.await_notes(1, "lost", pid=frozen.pid)
    until(lambda: not frozen.is_alive())
    assert frozen.exitcode == 1  # NameTaken
    assert other.is_alive()
    assert queue.counts() == Counts(enqueued=1, completed=1)


def test_without_names_any_number_may_come(work: Work, queue: Queue, record: Recorder) -> None:
    workers = [work() for _ in range(3)]
    for worker in workers:

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(job.id):
                pass

        worker.start()
    until(lambda: len(queue.admin.workers()) == 3)
    for worker in workers:
        worker.close()
    assert queue.admin.workers() == []


# -- what an operator does to workers --------------------------------------------------------------


@ENGINES
def test_a_failed_worker(work: Work, queue: Queue) -> None:
    """Its jobs are available at once. The worker learns it with its next heartbeat, stops them, and
    registers again."""
    began: list[bytes] = []
    lost: list[bytes] = []
    release = threading.Event()
    worker = work(name="w1", heartbeat=0.3, timeout=NEVER)

    @worker.handler("q", concurrency=2)
    def body(job: Job) -> Iterator[float]:
        began.append(job.payload)
        try:
            while job.attempt == 1 and not release.is_set():
                if job.lost:
                    return
                yield 0.01
        finally:
            if job.lost:
                lost.append(job.payload)

    with worker:
        queue.enqueue_many([b"a", b"b"])
        # leased, and not yet begun, they would be lost unseen
        until(lambda: sorted(began) == [b"a", b"b"])
        (before,) = [x.name for x in queue.admin.workers()]
        assert queue.admin.fail_worker("w1") == 2
        until(lambda: queue.counts() == Counts(enqueued=2, completed=2))
        until(lambda: sorted(lost) == [b"a", b"b"])
        (after,) = [x.name for x in queue.admin.workers()]
        assert before != after
        release.set()


@ENGINES
def test_expired_leases_of_a_worker(work: Work, queue: Queue, record: Recorder) -> None:
    """They run again, even in the same worker, and each is completed once."""
    gate = threading.Event()
    worker = work()

    @worker.handler("q", concurrency=4)
    def body(job: Job) -> Iterator[threading.Event]:
        with record(job.attempt):
            yield gate

    with worker:
        queue.enqueue_many([b"a", b"b"])
        record.await_started(2)
        assert queue.admin.expire() == 2
        record.await_started(4)
        assert record.started == [1, 1, 2, 2]
        gate.set()
        until(lambda: queue.counts() == Counts(enqueued=2, completed=2))


# -- pause -----------------------------------------------------------------------------------------


@pytest.mark.slow
@ENGINES
def test_a_paused_worker(
    work: Work, queue: Queue, newest: Server, record: Recorder, gate: threading.Event
) -> None:
    """Running jobs go on. No other begins, and the server is not asked in vain. After a resume work
    begins at once."""
    worker = work()

    @worker.handler("q", concurrency=5)
    def body(job: Job) -> Iterator[threading.Event]:
        with record(job.payload):
            yield gate

    with worker:
        queue.enqueue(b"running")
        record.await_started(1)
        queue.admin.pause()
        queue.enqueue_many([b"x"] * 10)
        reads = calls(newest)["xread"]
        until(lambda: calls(newest)["xread"] > reads + 1)
        before = calls(newest)
        time.sleep(2.0)  # what is awaited is that hardly anything happens
        ran = calls(newest) - before
        # 8, as a rule: a read and a lease a second, looks, beats
        assert ran["xread"] + ran["evalsha"] <= 16
        assert not ran["xreadgroup"]
        gate.set()
        until(lambda: queue.counts().completed == 1)
        assert record.started == [b"running"]
        assert queue.counts() == Counts(waiting=10, enqueued=11, completed=1)
        began = time.monotonic()
        queue.admin.resume()
        until(lambda: queue.counts() == Counts(enqueued=11, completed=11))
        assert time.monotonic() - began < 10.0


def test_paused_before_it_starts(work: Work, queue: Queue, record: Recorder) -> None:
    """A worker of a paused queue waits and can stop. A later one begins when the queue is
    resumed."""
    queue.admin.pause()
    queue.enqueue(b"x")
    workers = [work(), work()]
    for worker in workers:

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(job.id):
                pass

    with workers[0]:
        until(queue.admin.workers)
    assert queue.counts() == Counts(waiting=1, enqueued=1)
    with workers[1]:
        until(queue.admin.workers)
        queue.admin.resume()
        record.await_ended(1)
    assert queue.counts() == Counts(enqueued=1, completed=1)
