"""`durable=`. A call returns when replicas or the disk have its writes, and raises an error if they
have not."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import pytest
import redis

from headrace import ConfigurationError, Flow, NewJob, Queue, QueueFull, Replace
from headrace._model.policy import Durability
from headrace._net.sync.executor import Executor
from headrace._protocol.durability import with_durability
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace.errors import NotDurable
from tests.cluster.faults import MAY_NOT, TAKEOVER, follows, replace
from tests.cluster.mutants import DURABLE, DURABLE_IN_SCRIPTS
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.planted import plant, plant_scripts
from tests.support.servers import Binary, Server, binaries

pytestmark = pytest.mark.ci


class Pair(ExitStack):
    """A primary that writes to its disk, and its replica."""

    def __init__(self, binary: Binary) -> None:
        super().__init__()
        self.binary = binary
        options = ["--repl-diskless-sync-delay", "0", "--appendfsync", "always"]
        self.primary = Server(binary, tcp=True, appendonly=True, extra=options)
        self.replica = Server(binary, tcp=True, extra=options)

    @property
    def url(self) -> str:
        return self.primary.url

    def __enter__(self) -> Self:
        self.enter_context(self.primary)
        self.enter_context(self.replica)
        self.replica.ask("REPLICAOF", *self.primary.place)
        self.in_step()
        return self

    def in_step(self) -> None:
        """Wait until the replica follows and acknowledges."""
        until(
            lambda: self.replica.info("INFO", "replication")["master_link_status"] == "up",
            "a replica",
        )
        until(lambda: self.primary.ask("WAIT", 1, 100) == 1, "a replica in step")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica, of the newest server."""
    with Pair(binaries()[0]) as pair:
        yield pair


@pytest.fixture
def lagging(pair: Pair) -> Iterator[Pair]:
    """Freeze the replica, so that it takes no writes."""
    pair.replica.suspend()
    yield pair
    pair.replica.wake()
    pair.in_step()


@pytest.fixture
def connect(colour: str, pair: Pair) -> Iterator[Connect]:
    pair.primary.ask("FLUSHALL")
    with Connect(colour, pair) as connect:
        yield connect


def test_durable(connect: Connect, pair: Pair) -> None:
    queue = connect("q", durable="replicas:1,fsync", max_waiting=100)
    assert queue.enqueue(b"a").added
    assert len(queue.enqueue_many([b"x"] * 50)) == 50
    assert queue.complete(queue.lease())
    assert queue.retry(queue.lease())
    plain = connect("p")
    assert len(plain.enqueue_many([b"x"] * 2_500, durable="replicas:1")) == 2_500
    assert plain.enqueue_stream([b"x"] * 10, durable="fsync") == 10
    with redis.Redis(port=pair.replica.port) as replica:  # without waiting for it
        assert replica.xlen("headrace:{p}:p:jobs") == 2_510
    calls = pair.primary.info("INFO", "commandstats")
    waits = int(calls["cmdstat_wait"].split("calls=")[1].split(",")[0])
    plain.enqueue_many([b"x"] * 2_500, durable="replicas:1")
    after = pair.primary.info("INFO", "commandstats")["cmdstat_wait"]
    assert int(after.split("calls=")[1].split(",")[0]) == waits + 1  # once for all parts


def test_not_durable(connect: Connect, lagging: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells which jobs are in the queue. A repeated call with an id adds no job and waits
    again."""
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    queue = connect("q", durable="replicas:1")
    with pytest.raises(
        NotDurable, match=r"not durable as wanted \(replicas:1\): 0 replicas have it"
    ) as one:
        queue.enqueue(b"a", id="one")
    (receipt,) = one.value.receipts
    assert (receipt.id, receipt.added, one.value.replicas) == ("one", True, 0)
    with pytest.raises(NotDurable) as again:
        queue.enqueue(b"a", id="one")
    assert [receipt.added for receipt in again.value.receipts] == [False]
    with pytest.raises(NotDurable) as many:
        queue.enqueue_many([b"x"] * 2_500)
    assert len(many.value.receipts) == 2_500
    with pytest.raises(NotDurable) as conditional:
        queue.enqueue_many([b"y", NewJob(b"z", id="one", if_exists=Replace())])
    assert [receipt.outcome for receipt in conditional.value.receipts] == ["added", "replaced"]
    with pytest.raises(NotDurable) as done:
        queue.complete_many(queue.lease_many(500))
    assert done.value.answers == [True] * 500
    assert queue.counts().waiting == 2_501 + 1 - 500


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_flows(colour: str, lagging: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writes of a start and of a completion have happened. Calls override the queue's
    option."""
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    lagging.primary.ask("FLUSHALL")
    with Connect(colour, lagging) as connect, Queue("shop/a", url=lagging.url) as queue:
        flow = connect.make(Flow, "shop", durable="replicas:1")
        flow.stage("a", next="b")
        flow.stage("b")
        with pytest.raises(NotDurable, match="0 replicas have it") as begun:
            flow.start(b"x", id="one")
        assert [(one.id, one.added) for one in begun.value.receipts] == [("one", True)]
        lease = queue.lease()
        assert lease is not None
        with pytest.raises(NotDurable) as done:
            flow.complete(lease, b"result")
        assert done.value.answers == [[True]]
        assert flow.state("one").stage == "b"
        lagging.replica.wake()
        lagging.in_step()
        assert flow.start(b"x", id="two").added
        lagging.replica.suspend()
        with pytest.raises(ValueError, match='give "replicas:1"'):
            flow.start(b"x", durable="all")


def test_a_full_queue_is_no_lack_of_durability(
    connect: Connect, lagging: Pair, monkeypatch: Any
) -> None:
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    queue = connect("q", durable="replicas:1", max_waiting=1)
    with pytest.raises(NotDurable):
        queue.enqueue(b"a")
    with pytest.raises(QueueFull):
        queue.enqueue(b"b")


def test_a_repeated_call_writes_before_it_waits(lagging: Pair) -> None:
    """On a connection without writes, WAIT would succeed at once."""
    executor = Executor(lagging.url)
    op = with_durability(Ops(Keys.of("q")).enqueue([b"x"]), Durability(replicas=1))
    lane = executor._lane(op)
    try:
        for _ in range(2):
            with pytest.raises(NotDurable) as error:
                executor.run_all([op], lanes=[lane], within=1.0)
            assert error.value.replicas == 0
            executor.connections.disconnect()
    finally:
        executor.close()


def test_a_disk_that_lags(connect: Connect, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system writes to its disk late. Replicas do not replace the disk."""
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    queue = connect("q", durable="replicas:1,fsync")
    pair.primary.ask("CONFIG", "SET", "appendfsync", "no")
    try:
        with pytest.raises(NotDurable, match="not durable as wanted") as error:
            queue.enqueue(b"a")
        assert (error.value.replicas, error.value.fsynced) == (1, False)
    finally:
        pair.primary.ask("CONFIG", "SET", "appendfsync", "always")


def test_what_a_failover_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and completions that the replica lacks are lost. Acknowledged writes of durable calls
    are not."""
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    with Pair(binaries()[0]) as pair:
        with (
            Queue("q", url=pair.url) as plain,
            Queue("q", url=pair.url, durable="replicas:1") as durable,
        ):
            plain.enqueue(b"x", id="before")
            durable.enqueue_many([NewJob(b"x", id="durably, done"), NewJob(b"x", id="durably")])
            leases = plain.lease_many(2)
            assert durable.complete(leases[1])
            pair.replica.suspend()
            # else it would read on what is under way
            pair.primary.ask("CLIENT", "KILL", "TYPE", "replica")
            assert plain.complete(leases[0])
            assert plain.enqueue(b"x", id="after").added
            with pytest.raises(NotDurable):
                durable.enqueue(b"x", id="not durably")
            with pytest.raises(NotDurable):
                durable.complete(plain.lease())
            pair.primary.kill()
        pair.replica.wake()
        pair.replica.ask("REPLICAOF", "NO", "ONE")
        with Queue("q", url=pair.replica.url) as heir:
            known = [
                name
                for name in ("before", "durably, done", "durably", "after", "not durably")
                if heir.find(name)
            ]
            assert known == ["before", "durably"]
            assert heir.counts().completed == 1


def test_another_primary_meanwhile(
    connect: Connect, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a batch go to two primaries. The first part may be lost, although the second has
    a replica."""
    queue = connect("q")
    changed = threading.Event()
    original = Ops.enqueue

    def enqueue(self: Ops, items: Any) -> Any:
        op = original(self, items)
        # the first part is in
        if pair.primary.ask("EXISTS", "headrace:{q}:q:jobs") and not changed.is_set():
            changed.set()
            pair.primary.ask("REPLICAOF", *pair.replica.place)
            pair.primary.ask("REPLICAOF", "NO", "ONE")  # as a primary that begins another history
        return op

    monkeypatch.setattr(Ops, "enqueue", enqueue)
    try:
        with pytest.raises(NotDurable, match="the primary changed meanwhile"):
            queue.enqueue_many([b"x" * 1_000] * 4_000, durable="fsync")
    finally:
        pair.replica.ask("REPLICAOF", *pair.primary.place)
        pair.in_step()


@pytest.fixture(scope="module")
def wavering() -> Iterator[Cluster]:
    """Yield a cluster of one master and its replica, which decide nothing by themselves."""
    with Cluster(binaries()[0], masters=1, replicas=1, extra=[f"--{MAY_NOT}", "yes"]) as cluster:
        yield cluster


def replaced_while_it_waits(
    cluster: Cluster, key: str, call: Callable[[], Any]
) -> BaseException | None:
    """Let the master lose the writes of *call* to *key* and be the master again before the wait
    ends. Return the error of the call.
    """
    (master,) = cluster.primaries
    heir = cluster.replica_of(master)
    with ThreadPoolExecutor(1) as pool:
        before = master.ask("DUMP", key)

        def begin() -> Future[Any]:
            called = pool.submit(call)
            until(lambda: master.ask("DUMP", key) != before, "the write")
            return called

        called = replace(master, heir, begin)
        master.ask(*TAKEOVER)
        until(lambda: follows(heir), "a replica")

        def ended() -> bool:
            # the other history has to come as far as the first had
            master.ask("SET", "elsewhere", "x" * 1_000)
            return called.done()

        until(ended, "the call")
        return called.exception()


@pytest.mark.slow
@pytest.mark.parametrize("call", ["enqueue", "enqueue_many", "complete"])
def test_a_wait_that_outlives_its_history(
    call: str, colour: str, wavering: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master is replaced during a wait and is the master again. Its replica lacks the writes of
    the call."""
    # both take-overs are over by then
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 6_000)
    with Connect(colour, wavering) as connect:
        queue = connect("w/a", url=f"{wavering.url}?socket_timeout=60", durable="replicas:1")
        queue.admin.delete()
        queue.enqueue(b"x", id="there")
        lease, key = queue.lease(), "headrace:{w}:w/a:jobs"
        calls: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: queue.enqueue(b"x", id="one"),
            "enqueue_many": lambda: queue.enqueue_many([NewJob(b"x", id="one")]),
            "complete": lambda: queue.complete(lease),
        }
        error = replaced_while_it_waits(wavering, key, calls[call])
        lost = queue.find("there") is not None if call == "complete" else queue.find("one") is None
        assert lost
        assert isinstance(error, NotDurable), error


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_workers_settlements(pair: Pair, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Settlements wait for the replica. A slow replica is logged once and stops no job."""
    pair.primary.ask("FLUSHALL")
    worker = Running(kind, url=pair.url, durable="replicas:1")
    worker.handler("q")(lambda _job: None)
    with Queue("q", url=pair.url) as queue, worker:
        queue.enqueue(b"x")
        until(lambda: queue.counts().completed == 1, "a job")
        assert "not_durable" not in caplog.text
        pair.replica.suspend()
        try:
            queue.enqueue_many([b"x"] * 5)
            until(lambda: queue.counts().completed == 6, "jobs")
            until(lambda: "is not durable as wanted (replicas:1)" in caplog.text, "a warning")
        finally:
            pair.replica.wake()
        pair.in_step()


@pytest.mark.slow
def test_on_a_cluster(colour: str) -> None:
    options = [f"--{MAY_NOT}", "yes"]  # the replica does not take over from a busy master
    with (
        Cluster(binaries()[0], 1, 1, extra=options) as cluster,
        Connect(colour, cluster) as connect,
    ):
        queue = connect("q", durable="replicas:1")
        assert queue.enqueue(b"x").added
        assert len(queue.enqueue_many([b"x"] * 2_500)) == 2_500
        cluster.nodes[1].suspend()
        with pytest.raises(NotDurable) as error:
            queue.enqueue_many([b"x"] * 1_500)
        assert len(error.value.receipts) == 1_500
        cluster.nodes[1].wake()


def test_a_server_that_can_not(connect: Connect, newest: Server) -> None:
    """No call is sent, because the server has no disk to wait for or, as on 6.2, does not know the
    command."""
    queue = connect("q", url=newest.url, durable="fsync")
    with pytest.raises(
        ConfigurationError, match=r"nothing was sent, as the server says: .*appendonly"
    ):
        queue.enqueue(b"x")
    assert queue.counts().waiting == 0


def test_a_server_that_answers_too_early(connect: Connect) -> None:
    """No call is sent to it, as its answer would say nothing."""
    extra = ["--appendfsync", "everysec"]
    with Server(binaries()[0], appendonly=True, extra=extra) as server:
        queue = connect("q", url=server.url, durable="fsync")
        with pytest.raises(
            ConfigurationError, match=r"nothing was sent, as Valkey 9\.1\S* answers"
        ):
            queue.enqueue(b"x")
        assert queue.counts().waiting == 0
        acl = ["ACL", "SETUSER", "modest", "on", "nopass", "~*", "&*", "+@all", "-config"]
        server.ask(*acl)
        server.ask("CONFIG", "SET", "appendfsync", "always")
        modest = connect("q", url=server.url.replace("unix://", "unix://modest:x@"))
        with pytest.raises(ConfigurationError, match=r"needs \+config\|get"):
            modest.enqueue(b"x", durable="fsync")
        assert queue.enqueue(b"x").added
        modest.close()
        queue.close()


def test_whether_a_frozen_server_can_wait_is_asked_within_the_calls_bound(
    connect: Connect, pair: Pair
) -> None:
    """The question ends with the call and not after a connection's timeout."""
    queue = connect("q", url=f"{pair.url}?socket_timeout=300", durable="replicas:1", timeout=2.0)
    queue.counts()  # there is a connection
    pair.primary.suspend()
    try:
        with pytest.raises(redis.TimeoutError) as late:
            queue.enqueue(b"x")
        assert late.value.outcome == "not sent"  # type: ignore[attr-defined]
    finally:
        pair.primary.wake()
    assert queue.counts().waiting == 0


@pytest.mark.slow
def test_a_frozen_master_is_not_asked_what_another_can(colour: str) -> None:
    """The call's own master is asked whether it can wait."""
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    with Cluster(binaries()[0], extra=options) as cluster, Connect(colour, cluster) as connect:
        group, other, _ = cluster.groups()
        living, frozen = cluster.owner(group), cluster.owner(other)
        bounds: dict[str, Any] = {"durable": "fsync", "timeout": 3.0}
        queues = [
            connect(group, url=f"redis+cluster://127.0.0.1:{living.port}", **bounds)
            for _ in range(8)
        ]
        for queue in queues:
            queue.counts()  # it knows all masters
        frozen.suspend()
        try:
            # these know none
            queues += [connect(group, url=cluster.url, **bounds) for _ in range(4)]
            for queue in queues:
                start = time.monotonic()
                assert queue.enqueue(b"x").added
                assert time.monotonic() - start < 1.0
        finally:
            frozen.wake()


def test_what_is_not_understood() -> None:
    with pytest.raises(ValueError, match='give "replicas:1", "fsync" or "replicas:1,fsync"'):
        Queue("q", durable="all")
    with pytest.raises(TypeError, match="durable must be a str"):
        Queue("q", durable=1)  # type: ignore[call-overload]


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", [*DURABLE, *DURABLE_IN_SCRIPTS])
def test_planted_bug(
    mutant: str, pair: Pair, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of these tests finds the bug."""
    if mutant in DURABLE:
        bug = DURABLE[mutant]
        plant(monkeypatch, bug.module, bug.old, bug.new)
        found_by = bug.found_by
    else:
        edit, found_by = DURABLE_IN_SCRIPTS[mutant]
        plant_scripts(monkeypatch, [edit])
    pair.primary.ask("FLUSHALL")
    check: Any = globals()[found_by]
    wanted = inspect.signature(check).parameters
    with Connect("sync", pair) as connect:
        given = {
            "connect": connect,
            "pair": pair,
            "monkeypatch": monkeypatch,
            "colour": "sync",
            "call": "enqueue",
        }
        given |= {
            name: request.getfixturevalue(name)
            for name in ("lagging", "wavering")
            if name in wanted
        }
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(**{name: given[name] for name in wanted})
