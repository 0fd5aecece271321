"""Workers that die, freeze or lose their server. They are real processes on every server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from attrs import define

from headrace import Counts, Job, Queue
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.processes import Processes
from tests.support.servers import Server
from tests.workers.test_stop import consumers

HEARTBEAT, TIMEOUT = 0.3, 1.0


@pytest.fixture(params=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@define
class Scene:
    """A server, a queue, worker processes, and workers of this process."""

    server: Server
    queue: Queue
    processes: Processes
    make: Callable[..., Running]

    def peer(
        self, name: str, record: Recorder, concurrency: int = 1, gate: threading.Event | None = None
    ) -> Running:
        """Start a worker in this process whose handlers wait for *gate*."""
        running = self.make(url=self.server.url, name=name, heartbeat=HEARTBEAT, timeout=TIMEOUT)

        @running.handler("q", concurrency=concurrency)
        def body(job: Job) -> Iterator[threading.Event]:
            with record((name, job.payload, job.attempt, time.monotonic())):
                if gate is not None:
                    yield gate

        running.start()
        return running

    def names(self) -> set[str]:
        """Return the registered workers without random parts."""
        return {state.name.partition(".")[0] for state in self.queue.admin.workers()}

    def await_seasoned(self, *names: str) -> None:
        """Wait until they are old enough to declare others dead."""
        with redis.Redis(unix_socket_path=self.server.path) as client:

            def seasoned() -> bool:
                seconds, micros = client.time()
                now = seconds + micros / 1e6
                known = {
                    x.name.partition(".")[0]: now - x.since
                    for x in self.queue.admin.workers()
                    if x.alive
                }
                return all(known.get(name, 0.0) > TIMEOUT for name in names)

            until(seasoned)


@pytest.fixture
def scene(
    server: Server, kind: str, work: Callable[..., Running], tmp_path: Path
) -> Iterator[Scene]:
    with Processes(kind, server.url, tmp_path) as processes, Queue("q", url=server.url) as queue:
        yield Scene(server, queue, processes, work)


def test_a_killed_worker(
    scene: Scene, record: Recorder, record_property: Callable[[str, object], None]
) -> None:
    """Its jobs run elsewhere in order on attempt 2, and other workers' jobs are untouched. No key
    of it is left, nor of a worker that was killed without jobs (W-17, W-18).
    """
    queue, processes = scene.queue, scene.processes
    victim = processes.start("victim", concurrency=5)
    mine = queue.enqueue_many([b"hold %d" % n for n in range(5)])
    processes.await_notes(5, "began")
    gate, others = threading.Event(), Recorder()
    bystander = scene.peer("bystander", others, 2, gate)
    queue.enqueue_many([b"mine", b"mine"])
    others.await_started(2)
    idler = processes.start("idler", concurrency=1)
    rescuer = scene.peer("rescuer", record)
    scene.await_seasoned("victim", "bystander", "idler", "rescuer")
    began = time.monotonic()
    for process in victim, idler:
        os.kill(process.pid, signal.SIGKILL)
    record.await_ended(5)
    took = max(row[3] for row in record.started) - began
    record_property("seconds until all jobs of a killed worker ran elsewhere", round(took, 3))
    assert took < 50.0  # 1.3 s on an idle machine; not by their leases, which are for a minute
    assert [row[1:3] for row in record.started] == [(b"hold %d" % n, 2) for n in range(5)]
    until(lambda: scene.names() == {"bystander", "rescuer"})
    assert {name.partition(".")[0] for name in consumers(scene.server, queue)} == {
        "bystander",
        "rescuer",
    }
    until(lambda: queue.counts() == Counts(leased=2, enqueued=7, completed=5))
    assert all(queue.find(receipt.id) is None for receipt in mine)
    gate.set()
    until(lambda: queue.counts().completed == 7)
    for worker in bystander, rescuer:
        worker.close()
    assert [row[2] for row in others.ended] == [1, 1]
    assert not processes.notes("done")


@pytest.mark.slow
def test_two_killed_and_six_who_notice(scene: Scene, record: Recorder) -> None:
    """Each job runs again exactly once for each loss, although six peers look for dead workers at
    the same time (H-5).
    """
    queue, processes = scene.queue, scene.processes
    victims = [processes.start(f"victim{n}", concurrency=4) for n in range(2)]
    queue.enqueue_many([b"hold %d" % n for n in range(8)])
    processes.await_notes(8, "began")
    with ExitStack() as stack:
        peers = [scene.peer(f"peer{n}", record) for n in range(6)]
        for peer in peers:
            stack.callback(peer.close)
        scene.await_seasoned(*[f"peer{n}" for n in range(6)])
        for process in victims:
            os.kill(process.pid, signal.SIGKILL)
        until(lambda: queue.counts().completed == 8)
        until(lambda: len(scene.names()) == 6)
    assert Counter(row[1] for row in record.ended) == {b"hold %d" % n: 1 for n in range(8)}
    assert {row[2] for row in record.ended} == {2}
    assert queue.counts() == Counts(enqueued=8, completed=8)


def test_a_frozen_worker(scene: Scene, record: Recorder) -> None:
    """Its jobs run elsewhere. When it wakes, it learns that it was declared dead, stops its
    handlers, and works under a new name (W-20).
    """
    queue, processes = scene.queue, scene.processes
    frozen = processes.start("frozen", concurrency=3)
    queue.enqueue_many([b"hold %d" % n for n in range(3)])
    processes.await_notes(3, "began")
    (name,) = [state.name for state in queue.admin.workers()]
    rescuer = scene.peer("rescuer", record)
    scene.await_seasoned("rescuer")
    os.kill(frozen.pid, signal.SIGSTOP)
    record.await_ended(3)
    assert [row[1:3] for row in record.started] == [(b"hold %d" % n, 2) for n in range(3)]
    until(lambda: queue.counts().completed == 3)
    rescuer.close()
    os.kill(frozen.pid, signal.SIGCONT)
    lost = processes.await_notes(3, "lost")
    assert {note.payload for note in lost} == {"hold 0", "hold 1", "hold 2"}
    queue.enqueue_many([b"quick"] * 10)
    until(lambda: queue.counts().completed == 13)
    assert {note.pid for note in processes.notes("done")} == {frozen.pid}
    assert [note.payload for note in processes.notes("done")] == ["quick"] * 10
    (new,) = [state.name for state in queue.admin.workers()]
    assert new.startswith("frozen.")
    assert new != name
    assert {x.partition(".")[0] for x in consumers(scene.server, queue)} == {"frozen"}
    assert queue.counts() == Counts(enqueued=13, completed=13)


@pytest.mark.sampled
def test_poison(scene: Scene) -> None:
    """A job that kills every process is dead after twenty attempts, and the queue goes on (B-5)."""
    queue, processes = scene.queue, scene.processes
    queue.enqueue_many([b"die", b"good", b"good"])
    workers = [
        processes.start(
            f"w{n}", concurrency=1, heartbeat=0.2, timeout=0.6, max_attempts=3, retry=None
        )
        for n in range(4)
    ]
    with redis.Redis(unix_socket_path=scene.server.path) as client:
        deaths = queue.ops.keys.key("deaths")
        until(lambda: client.hlen(deaths), "its first death")
        for entry in client.hkeys(deaths):
            client.hset(deaths, entry, 19)
    until(lambda: queue.counts().dead == 1 and queue.counts().completed == 2)
    (letter,) = queue.admin.dead()
    assert letter.job.payload == b"die"
    assert str(letter.reason) == "no attempts left: its process died 20 times while it ran"
    assert len(processes.notes("began", payload="die")) <= 3
    assert sum(process.is_alive() for process in workers) >= 1
    assert queue.counts() == Counts(enqueued=3, completed=2, dead=1)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_server_that_comes_back(
    server: Server,
    kind: str,
    work: Callable[..., Running],
    record: Recorder,
    how: str,
    tmp_path: Path,
) -> None:
    """The server is away for longer than all timeouts. The workers keep their names, and none is
    declared dead."""
    always = ["--appendfsync", "always"]
    own = Server(server.binary, appendonly=True, directory=tmp_path, extra=always)
    gate = threading.Event()
    with own, Queue("q", url=own.url) as queue:
        workers = [work(url=own.url, name=name, heartbeat=0.2, timeout=0.6) for name in ("a", "b")]
        for worker in workers:

            @worker.handler("q", concurrency=2)
            def body(job: Job) -> Iterator[threading.Event]:
                with record((job.payload, job.attempt)):
                    if job.payload == b"hold":
                        yield gate

            worker.start()
        queue.enqueue_many([b"hold"] * 4)
        record.await_started(4)
        names = {state.name for state in queue.admin.workers()}
        (own.stop if how == "stopped" else own.kill)()
        time.sleep(0.9)  # longer than the timeout: what is awaited is that nothing happens
        own.start()
        queue.enqueue_many([b"later"] * 4)
        until(lambda: all(state.alive for state in queue.admin.workers()))
        time.sleep(0.9)  # again: whoever would declare others dead had the time for it
        assert {state.name for state in queue.admin.workers()} == names
        gate.set()
        until(lambda: queue.counts().completed == 8)
        for worker in workers:
            worker.close()
        assert Counter(record.ended) == {(b"hold", 1): 4, (b"later", 1): 4}
        assert queue.counts() == Counts(enqueued=8, completed=8)
        assert queue.admin.workers() == []
