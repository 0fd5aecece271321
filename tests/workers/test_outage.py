"""Workers whose server is away. It is gone, refuses, hangs, loads or is full while workers start,
work and stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from headrace import Counts, Job, Queue
from headrace._engine import base as engine
from headrace._engine.base import LEAVE_WITHIN_S
from headrace._net.base import connections, retries as retry
from headrace._protocol import limits
from headrace._telemetry import client as observe
from headrace.errors import LeasesLeft
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

pytestmark = pytest.mark.ci

Work = Callable[..., Running]
AWAY = pytest.mark.parametrize("away", ["gone", "frozen"])


@pytest.fixture
def own(newest: Server) -> Iterator[Server]:
    """Start a server that may be broken."""
    with Server(newest.binary, appendonly=True) as server:
        yield server


def leave(server: Server, away: str) -> None:
    """Take the server away, silently or with closed connections."""
    if away == "gone":
        server.kill()
    else:
        os.kill(server.pid, signal.SIGSTOP)


@contextmanager
def soon(most: float) -> Iterator[None]:
    """Check that the block takes no longer than *most* seconds."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < most, f"{took:.1f} s"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "headrace")
    return lambda event: [
        record for record in caplog.records if getattr(record, "event", "") == event
    ]


# -- stopping --------------------------------------------------------------------------------------

STOP = 2.0 + 4.0  # seconds: what is promised, and what a busy machine may add; it was 25 to 83


@AWAY
def test_an_idle_worker_stops(work: Work, own: Server, away: str) -> None:
    """The worker holds no job, so it stops without an error."""
    worker = work(url=own.url)

    @worker.handler("q")
    def body(job: Job) -> None: ...

    with Queue("q", url=own.url) as queue:
        worker.start()
        until(queue.admin.workers)
    leave(own, away)
    time.sleep(0.2)  # whatever is under way meets that, or not
    with soon(STOP):
        worker.close()


@AWAY
@pytest.mark.parametrize("second", [False, True], ids=["once", "twice"])
def test_a_busy_worker_stops(
    work: Work, own: Server, away: str, second: bool, record: Recorder, said: Any, gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The worker stops when its longest handler has ended, or at once after a second stop. It logs
    the jobs that it holds.
    """
    monkeypatch.setattr(engine, "LEAVE_WITHIN_S", LEAVE_WITHIN_S / 2)
    worker = work(url=own.url)

    @worker.handler("q", concurrency=2)
    def body(job: Job) -> Iterator[Any]:
        with record(job.id):
            while not (gate.is_set() or job.lost):
                yield 0.005

    with Queue("q", url=own.url) as queue:
        ids = [receipt.id for receipt in queue.enqueue_many([b"a", b"b", b"c"])]
        worker.start()
        record.await_started(2)
    leave(own, away)
    worker.stop(wait=False)
    time.sleep(LEAVE_WITHIN_S)  # twice as long as it waits for the server
    assert not worker.engine.finished, "it has not waited for its handlers"
    if second:
        worker.stop(wait=False)
    else:
        gate.set()
    with soon(STOP), pytest.raises(LeasesLeft) as raised:
        worker.close()
    assert (
        {("q", name) for name in ids[:2]}
        <= set(raised.value.leases)
        <= {("q", name) for name in ids}
    )
    assert len(record.ended) == 2
    assert ids[0] in said("leases_left")[0].getMessage()


@AWAY
def test_a_persistent_job_is_told_to_end(
    work: Work, own: Server, away: str, record: Recorder
) -> None:
    """The role that would tell it waits for the server."""
    worker = work(url=own.url)

    @worker.handler("q", persistent=True)
    def body(job: Job) -> Iterator[Any]:
        with record(job.id):
            while not job.lost:
                yield 0.005

    with Queue("q", url=own.url) as queue:
        queue.enqueue(b"x")
        worker.start()
        record.await_started(1)
    leave(own, away)
    with soon(STOP), pytest.raises(LeasesLeft):
        worker.close()
    record.await_ended(1)


def test_a_server_that_comes_back_in_time(
    work: Work, own: Server, record: Recorder, gate: threading.Event
) -> None:
    """The handler still runs when the server is back. Its job is completed."""
    worker = work(url=own.url)

    @worker.handler("q")
    def body(job: Job) -> Iterator[Any]:
        with record(job.id):
            yield gate

    with Queue("q", url=own.url) as queue:
        queue.enqueue(b"x")
        worker.start()
        record.await_started(1)
        own.kill()
        worker.stop(wait=False)
        own.start()
        gate.set()
        worker.close()
        assert queue.counts() == Counts(enqueued=1, completed=1)
        assert queue.admin.workers() == []


# -- an outage while it works ----------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make outages last a hundred times as long."""
    monkeypatch.setattr(retry, "SLACK_S", 1e9)
    monkeypatch.setattr(
        retry, "time", SimpleNamespace(clock_gettime=lambda _clock: 100 * time.monotonic())
    )
    monkeypatch.setattr(observe, "REPEAT_AFTER_S", 0.3)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_it_waits_for_ever(work: Work, own: Server, record: Recorder, said: Any) -> None:
    """The worker logs it once and again at growing intervals, and goes on."""
    worker = work(url=own.url)

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    with Queue("q", url=own.url) as queue, worker:
        queue.enqueue(b"a")
        record.await_ended(1)
        until(lambda: queue.counts().completed == 1)
        began = time.monotonic()
        own.kill()
        until(lambda: len(said("connection_lost")) >= 4, "it is said again")
        assert 100 * (time.monotonic() - began) > 2 * limits.RETRY_BUDGET_S
        pauses = [
            b.created - a.created
            for a, b in zip(said("connection_lost")[1:], said("connection_lost")[2:], strict=False)
        ]
        assert pauses[0] < pauses[1]
        assert not worker.engine.stopping.is_set()
        own.start()
        queue.enqueue(b"b")
        record.await_ended(2)
        until(lambda: said("connection_restored"))
    assert len(said("connection_restored")) == 1
    assert not said("role_failed")


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_bound(work: Work, own: Server, said: Any) -> None:
    """After `max_outage` the worker ends with the error."""
    worker = work(url=own.url, max_outage=200)

    @worker.handler("q")
    def body(job: Job) -> None: ...

    worker.start()
    # Before it has read an answer, it takes an absent server for a wrong address.
    until(lambda: worker.engine.lifecycle.consumers[0].registered)
    began = time.monotonic()
    own.kill()
    until(worker.engine.stopping.is_set)
    assert 100 * (time.monotonic() - began) > 150
    with pytest.raises(redis.ConnectionError):
        worker.close()
    assert len(said("role_failed")) == 1


@pytest.mark.parametrize("bound", [0, -1, "no", True])
def test_what_is_no_bound(work: Work, bound: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="max_outage"):
        work(max_outage=bound)


# -- an outage as it starts ------------------------------------------------------------------------


def begun(worker: Running) -> None:
    """Wait until the worker has started, and had time to give up."""
    worker.start()
    outage = worker.engine._outage  # a full server answers, but for what would add jobs
    until(lambda: outage.found or outage.answers or worker.engine.stopping.is_set())
    time.sleep(2 * retry.FIRST_ANSWER_S)
    assert not worker.engine.stopping.is_set(), worker.engine.error


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first answer come within moments, and any answer soon."""
    monkeypatch.setattr(retry, "FIRST_ANSWER_S", 0.7)
    monkeypatch.setattr(connections, "AT_LEAST_S", 0.5)  # a socket's timeout may be half a second


def frozen(server: Server) -> Callable[[], object]:
    os.kill(server.pid, signal.SIGSTOP)
    return lambda: os.kill(server.pid, signal.SIGCONT)


def busy(server: Server) -> Callable[[], object]:
    def block() -> None:
        with redis.Redis(unix_socket_path=server.path, socket_timeout=PATIENCE) as client:
            client.config_set("lua-time-limit", 10)
            with pytest.raises(redis.ResponseError):
                client.eval("while true do end", 0)

    blocker = threading.Thread(target=block)
    blocker.start()
    client = redis.Redis(unix_socket_path=server.path)

    def blocked() -> bool:
        try:
            return not client.ping()
        except redis.ResponseError:
            return True

    until(blocked)

    def heal() -> None:
        client.script_kill()
        client.close()
        blocker.join(PATIENCE)

    return heal


def configured(name: str, value: str, healed: str) -> Callable[[Server], Callable[[], object]]:
    def apply(server: Server) -> Callable[[], object]:
        client = redis.Redis(unix_socket_path=server.path)
        client.config_set(name, value)

        def heal() -> None:
            client.config_set(name, healed)
            client.close()

        return heal

    return apply


def replica(server: Server) -> Callable[[], object]:
    client = redis.Redis(unix_socket_path=server.path)
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof("127.0.0.1", 1)

    def heal() -> None:
        client.replicaof("NO", "ONE")
        client.close()

    return heal


STATES: dict[str, Callable[[Server], Callable[[], object]]] = {
    "frozen": frozen,
    "busy": busy,
    "replica": replica,
    "no replicas": configured("min-replicas-to-write", "1", "0"),
    "out of memory": configured("maxmemory", "1", "0"),
    "no room for clients": configured("maxclients", "1", "1000"),
}


@pytest.mark.sampled("kind")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("state", STATES)
def test_a_server_that_answers_is_waited_for(
    work: Work, own: Server, state: str, record: Recorder
) -> None:
    """The server is there, whatever it answers or if it is silent, so the worker waits for it."""
    with Queue("q", url=own.url) as queue:
        queue.enqueue(b"x")
    heal = STATES[state](own)
    try:
        worker = work(url=f"{own.url}&socket_timeout=0.5")

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(job.payload):
                pass

        begun(worker)
    finally:
        heal()
    record.await_ended(1)
    worker.close()


@pytest.mark.usefixtures("impatient")
def test_a_server_that_loads_is_waited_for(
    work: Work, newest: Server, tmp_path: Path, record: Recorder
) -> None:
    """Its data take longer to load than a first answer may take."""
    with Server(newest.binary, directory=tmp_path, extra=["--key-load-delay", "50000"]) as server:
        with (
            redis.Redis(unix_socket_path=server.path) as client,
            Queue("q", url=server.url) as queue,
        ):
            queue.enqueue(b"x")
            for i in range(12):  # events are served every 2 MB
                client.pipeline().set(f"big{i}", b"x" * 3_000_000).set(f"small{i}", b"").execute()
            client.save()
        server.kill()
        starter = threading.Thread(target=server.start)
        starter.start()
        until(lambda: Path(server.path).exists())
        worker = work(url=server.url)

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(job.payload):
                pass

        worker.start()
        starter.join(PATIENCE)
        record.await_ended(1)
        worker.close()


@pytest.mark.usefixtures("impatient")
def test_nobody_there(work: Work, tmp_path: Path, said: Any) -> None:
    """A wrong address raises redis-py's error within seconds, whatever `max_outage`."""
    worker = work(url=f"unix://{tmp_path}/no.sock", max_outage=1000)
    worker.handler("q")(lambda _: None)
    with soon(5.0):
        worker.start()
        until(worker.engine.stopping.is_set)
        with pytest.raises(redis.ConnectionError):
            worker.close()
    assert len(said("connection_lost")) == 1


def test_what_stood_still_is_not_counted() -> None:
    """Only the time of attempts and pauses counts against the budget."""
    patience = retry.RetryBudget(observe.Outage({}), lambda: 5.0, 1.0, retry.Trip([]))
    patience.since -= 3600  # an attempt of at most a second took an hour: the process was stopped
    patience._passed(1.0)
    assert 0 < patience.trip.spent <= retry.SLACK_S
    patience.since -= 1.5
    patience._passed(1.0)
    assert 1.5 <= patience.trip.spent <= retry.SLACK_S + 1.6


def test_both_engines_are_as_patient() -> None:
    assert LEAVE_WITHIN_S < 2.0
