"""Every error of a server or a connection. A call waits it out if it heals, and raises it at once
otherwise.

The errors are those of real servers, by way of a proxy that sees what was said. Three belong to
clusters of several nodes; there the proxy answers in the server's place (`inject`), and the tests
say so.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, ConfigurationError, Counts, Queue
from headrace._net.base import retries as retrying
from headrace._protocol.op import Op
from headrace._protocol.script import Script
from tests.support.awaiting import PATIENCE, until
from tests.support.cluster import SLOTS
from tests.support.proxy import Proxy
from tests.support.servers import EXACT, Binary, Server

ONE = Counts(waiting=1, enqueued=1)
AT_ONCE_S = 10.0  # seconds: a busy machine may take some, and a call that is tried again takes 45


class Asked:
    """A queue of either colour that is called from its own thread."""

    def __init__(self, colour: str, url: str, **options: Any) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner() if colour == "async" else None
        self.queue = (AsyncQueue if self._runner else Queue)("q", url=url, **options)
        # the calls under test only
        self.queue._leaser.tidy_at, self.queue._undeclared = float("inf"), False

    def begin(self, call: Callable[[Any], Any]) -> Future[Any]:
        return self._thread.submit(self._do, call)

    def __call__(self, call: Callable[[Any], Any]) -> Any:
        """Return the answer of *call* of the queue."""
        return self.begin(call).result(PATIENCE)

    def close(self) -> None:
        """Close the queue and end the thread."""
        self(lambda q: q.close())
        if self._runner:
            self._thread.submit(self._runner.close).result(PATIENCE)
        self._thread.shutdown()

    def _do(self, call: Callable[[Any], Any]) -> Any:
        if self._runner is None:
            return call(self.queue)

        async def wrapped() -> Any:
            answer = call(self.queue)
            return await answer if inspect.isawaitable(answer) else answer

        return self._runner.run(wrapped())


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def asking(colour: str, url: str, **options: Any) -> Iterator[Asked]:
    asked = Asked(colour, url, **options)
    try:
        yield asked
    finally:
        asked.close()


@pytest.fixture
def asked(proxy: Proxy, colour: str) -> Iterator[Asked]:
    with asking(colour, proxy.url) as asked:
        yield asked


@pytest.fixture
def admin(own: Server) -> Iterator[redis.Redis]:
    """Return a client that does not use the proxy."""
    with redis.Redis(unix_socket_path=own.path, socket_timeout=PATIENCE) as admin:
        yield admin


def enqueue(queue: Any) -> Any:
    return queue.enqueue(b"x")


def counts(queue: Any) -> Any:
    return queue.counts()


def heals(
    asked: Asked, proxy: Proxy, code: str, heal: Callable[[], object], call: Any = enqueue
) -> Any:
    """Call until the error was answered twice, then *heal*, and return the call's answer."""
    proxy.reset()
    future = asked.begin(call)
    until(
        lambda: (
            (code.encode() in proxy.replies and proxy.requests.count(b"EVALSHA") >= 2)
            or future.done()
        ),
        code,
    )
    assert not future.done(), f"did not wait for {code}: {future.result(0)}"
    heal()
    return future.result(PATIENCE)


def fails(
    asked: Asked, proxy: Proxy, code: str, kind: type[Exception], call: Any = enqueue
) -> Exception:
    """Return the error that *call* raises at once after a single attempt."""
    proxy.reset()
    start = time.monotonic()
    with pytest.raises(kind) as raised:
        asked(call)
    assert time.monotonic() - start < AT_ONCE_S
    assert re.search(code.encode(), proxy.replies)
    assert proxy.requests.count(b"EVALSHA") <= 1
    assert proxy.connections <= 1
    return raised.value


@pytest.mark.parametrize("tcp", [True, False])
def test_a_value_larger_than_the_server_takes(binary: Binary, colour: str, tcp: bool) -> None:
    """The server closes the connection or refuses the value. The client asks for the limit and ends
    the call."""
    most = 1 << 20
    calls: list[Callable[[Any], Any]] = [
        lambda q: q.enqueue(b"x" * (most + 1)),
        lambda q: q.enqueue(b"x" * 20 * most, headers={"a": "b"}),
        lambda q: q.admin.cancel_payload(b"x" * 5 * most),
    ]
    with (
        Server(binary, tcp=tcp, extra=["--proto-max-bulk-len", "1mb"]) as server,
        asking(colour, server.url) as asked,
    ):
        for call in calls:
            start = time.monotonic()
            with pytest.raises(ValueError, match=r"takes 1,048,576 at most"):
                asked(call)
            assert time.monotonic() - start < AT_ONCE_S
        assert asked(lambda q: q.enqueue(b"x" * most)).added
        assert asked(counts) == ONE


@pytest.mark.parametrize("tcp", [True, False])
def test_a_value_too_large_for_a_user_who_may_not_ask(
    newest: Server, colour: str, tcp: bool
) -> None:
    """A value that announces the same size shows that the server refuses it. A smaller value is
    sent again as usual."""
    most = 1 << 20
    with (
        Server(newest.binary, tcp=tcp, extra=["--proto-max-bulk-len", "1mb"]) as server,
        redis.Redis(unix_socket_path=server.path) as admin,
    ):
        admin.acl_setuser(
            "default",
            enabled=True,
            nopass=True,
            keys=["*"],
            channels=["*"],
            commands=["+@all", "-config"],
        )
        with Proxy(server.path) as proxy, asking(colour, proxy.url) as asked:
            for size in (most + 1, 20 * most):
                start = time.monotonic()
                with pytest.raises(
                    ValueError, match=r"takes no value as large \(proto-max-bulk-len\)"
                ):
                    asked(lambda q, size=size: q.enqueue(b"x" * size))
                assert time.monotonic() - start < AT_ONCE_S
            assert asked(lambda q: q.enqueue(b"x" * most)).added
            assert asked(counts) == ONE


def test_a_value_that_is_refused_fails_nobody_else_s_call(newest: Server) -> None:
    """Concurrent calls are sent as one, and a large one is sent alone."""

    async def story(url: str) -> list[Any]:
        async with AsyncQueue("q", url=url) as queue:
            payloads = [b"x"] * 20 + [b"x" * ((1 << 20) + 1)] + [b"x"] * 20
            return await asyncio.gather(*map(queue.enqueue, payloads), return_exceptions=True)

    with Server(newest.binary, extra=["--proto-max-bulk-len", "1mb"]) as server:
        answers = asyncio.run(story(server.url))
    assert [number for number, one in enumerate(answers) if isinstance(one, Exception)] == [20]


# -- what heals ------------------------------------------------------------------------------------


@pytest.mark.sampled
def test_loading(binary: Binary, colour: str, tmp_path: Path) -> None:
    """During LOADING the call waits until the data are there."""
    slow = ["--key-load-delay", "50000"]  # µs
    with (
        Server(binary, directory=tmp_path, extra=slow) as server,
        redis.Redis(unix_socket_path=server.path) as admin,
        Proxy(server.path) as proxy,
        asking(colour, proxy.url) as asked,
    ):
        for i in range(10):  # events are served every 2 MB
            admin.set(f"big{i}", random.randbytes(2_200_000))
        asked(enqueue)
        admin.save()
        server.kill()
        proxy.reset()
        future = asked.begin(enqueue)
        server.start()
        assert future.result(PATIENCE).added
        assert b"-LOADING" in proxy.replies
        assert asked(counts) == Counts(waiting=2, enqueued=2)


def test_readonly(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After READONLY the call waits until the server is a primary again. Each attempt opens a new
    connection."""
    asked(counts)
    admin.replicaof("127.0.0.1", 1)
    assert heals(asked, proxy, "READONLY", lambda: admin.replicaof("NO", "ONE")).added
    assert proxy.connections >= 1
    assert asked(counts) == ONE


def test_masterdown(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After MASTERDOWN the call waits for the end of the failover."""
    admin.config_set("replica-serve-stale-data", "no")
    admin.replicaof("127.0.0.1", 1)
    assert heals(asked, proxy, "MASTERDOWN", lambda: admin.replicaof("NO", "ONE")).added
    assert asked(counts) == ONE


def test_oom(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After OOM an enqueue waits for room."""
    admin.config_set("maxmemory", 1)
    assert heals(asked, proxy, "OOM", lambda: admin.config_set("maxmemory", 0)).added
    assert asked(counts) == ONE


def test_oom_drains(asked: Asked, admin: redis.Redis) -> None:
    """A full server can be drained. Leasing and every settlement work, and so does losing a
    lease."""
    for _ in range(8):
        asked(enqueue)
    old = [asked(lambda q: q.lease(duration=0.001)) for _ in range(2)]
    asked.queue._leaser.tidy_at = float("-inf")  # reclaim them, also on a full server
    asked.queue._executor.budget = 0.5
    admin.config_set("maxmemory", 1)
    a, b, c, d, e, f, g = (asked(lambda q: q.lease()) for _ in range(7))
    assert asked(lambda q: q.renew(a)) is True
    assert asked(lambda q: q.complete(a)) is True
    assert asked(lambda q: q.release(b)) is True
    assert asked(lambda q: q.retry(c)) is True
    assert asked(lambda q: q.retry(d, delay=60)) is True
    assert asked(lambda q: q.dead_letter(e, "why")) is True
    assert asked(lambda q: q.cancel(f.job.id)) is True
    assert asked(lambda q: q.complete(g, fenced=True)) is True
    for lost in (a, b, c, d, e, f, g, *old):
        for settle in ("release", "retry", "renew", "complete"):
            if settle != "complete" or lost not in (b, c, *old):
                assert asked(lambda q, name=settle, it=lost: getattr(q, name)(it)) is False
        assert asked(lambda q, it=lost: q.dead_letter(it, "why")) is False
        assert asked(lambda q, it=lost: q.complete(it, fenced=True)) is False
    assert asked(lambda q: q.cancel("nobody")) is False
    assert asked(counts).lost == 0


def test_oom_drops_results(
    asked: Asked, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full server jobs complete without their results. The log says so once, with a number."""
    for _ in range(6):
        asked(enqueue)
    leases = [asked(lambda q: q.lease()) for _ in range(6)]
    admin.config_set("maxmemory", 1)
    assert asked(lambda q: q.complete(leases[0], b"r")) is True
    assert asked(lambda q: q.complete(leases[0], b"r")) is False
    assert asked(lambda q: q.complete_many(leases[1:4], [b"r", None, b"r"])) == [True] * 3
    assert [asked(lambda q, it=lease: q.result(it.job.id, timeout=0)) for lease in leases[:4]] == [
        None
    ] * 4
    said = [record for record in caplog.records if getattr(record, "event", "") == "result_dropped"]
    (words,) = [record.getMessage() for record in said]
    assert words.startswith(
        "result_dropped: 1 jobs of queue 'q' are complete without their results: the server is out"
    )
    admin.config_set("maxmemory", 0)
    assert asked(lambda q: q.complete(leases[4], b"kept")) is True
    assert asked(lambda q: q.result(leases[4].job.id, timeout=0)) == b"kept"
    outage = asked.queue._executor.outage
    ((queue, (_, number)),) = outage._drops.items()
    assert (queue, number) == ("q", 2)
    outage._drops[queue] = (0.0, number)  # a minute later
    admin.config_set("maxmemory", 1)
    assert asked(lambda q: q.complete(leases[5], b"r")) is True
    assert "result_dropped: 3 jobs of queue 'q'" in caplog.text


def test_busy(asked: Asked, proxy: Proxy, admin: redis.Redis, own: Server) -> None:
    """After BUSY the call waits for the end of a foreign script."""
    admin.config_set("lua-time-limit", 10)
    with redis.Redis(unix_socket_path=own.path) as other, ThreadPoolExecutor(1) as thread:
        asked(counts)
        endless = thread.submit(other.eval, "while true do end", 0)
        until(lambda: _busy(admin))
        assert heals(asked, proxy, "-BUSY", admin.script_kill).added
        with pytest.raises(redis.ResponseError):
            endless.result(PATIENCE)
    assert asked(counts) == ONE


def _busy(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError:
        return True
    return False


def test_misconf(asked: Asked, proxy: Proxy, admin: redis.Redis, own: Server) -> None:
    """After MISCONF the call waits until the server can save again."""

    def save(wanted: str) -> None:
        until(lambda: not admin.info("persistence")["rdb_bgsave_in_progress"])
        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == wanted, "BGSAVE")

    admin.config_set("save", "3600 1")
    obstacle = Path(own.path).with_name("dump.rdb")
    obstacle.mkdir()
    save("err")

    def heal() -> None:
        obstacle.rmdir()
        save("ok")

    assert heals(asked, proxy, "MISCONF", heal).added
    assert asked(counts) == ONE


def test_noreplicas(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After NOREPLICAS the call waits until there are enough replicas."""
    admin.config_set("min-replicas-to-write", 1)
    assert heals(
        asked, proxy, "NOREPLICAS", lambda: admin.config_set("min-replicas-to-write", 0)
    ).added
    assert asked(counts) == ONE


@pytest.mark.sampled
def test_clusterdown(binary: Binary, colour: str) -> None:
    """After CLUSTERDOWN the call waits until the slots are served."""
    with (
        Server(binary, tcp=True, extra=["--cluster-enabled", "yes"]) as server,
        Proxy(server.path) as proxy,
        asking(colour, proxy.url) as asked,
    ):
        heal = lambda: server.ask("CLUSTER", "ADDSLOTS", *range(SLOTS))  # noqa: E731
        assert heals(asked, proxy, "-CLUSTERDOWN", heal).added
        assert asked(counts) == ONE


def test_tryagain(asked: Asked, proxy: Proxy) -> None:
    """After TRYAGAIN, here from the proxy, the call waits for the end of the slot's migration."""
    asked(counts)
    proxy.inject("TRYAGAIN Multiple keys request during rehashing of slot", 3)
    assert asked(enqueue).added
    assert proxy.requests.count(b"EVALSHA") == 4  # three are refused
    assert asked(counts) == ONE


def test_noscript(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After NOSCRIPT the source is sent, at once and only once."""
    asked(enqueue)
    admin.script_flush()
    proxy.reset()
    assert asked(enqueue).added
    assert b"-NOSCRIPT" in proxy.replies
    assert (proxy.requests.count(b"EVALSHA"), proxy.requests.count(b"EVAL\r\n")) == (1, 1)
    assert asked(counts) == Counts(waiting=2, enqueued=2)


def test_nogroup(asked: Asked, admin: redis.Redis) -> None:
    """After NOGROUP a lease call makes the group again at the start, so that every job can be
    leased."""
    first = asked(enqueue)
    assert asked(lambda q: q.lease()).job.id == first.id
    second = asked(enqueue)
    key = asked.queue.ops.keys.key("jobs")
    admin.xgroup_destroy(key, "workers")
    again = [asked(lambda q: q.lease(block=1)) for _ in range(2)]
    assert [lease.job.id for lease in again] == [first.id, second.id]
    assert asked(counts) == Counts(leased=2, enqueued=2)


def test_nogroup_while_blocked(asked: Asked, admin: redis.Redis) -> None:
    """A blocked lease call that gets NOGROUP waits on and gets the next job."""
    future = asked.begin(lambda q: q.lease(block=PATIENCE))
    until(lambda: admin.info("clients")["blocked_clients"])
    admin.xgroup_destroy(asked.queue.ops.keys.key("jobs"), "workers")
    with Queue("q", url=f"unix://{admin.get_connection_kwargs()['path']}") as other:
        receipt = other.enqueue(b"x")
    assert future.result(PATIENCE).job.id == receipt.id


@pytest.mark.parametrize("settle", ["complete", "release", "retry", "dead_letter", "renew"])
def test_nogroup_settled(asked: Asked, admin: redis.Redis, settle: str) -> None:
    """A lease is lost with its group, and its settlement returns False. A job that is still there
    can be completed."""
    asked(enqueue)
    lease = asked(lambda q: q.lease())
    admin.xgroup_destroy(asked.queue.ops.keys.key("jobs"), "workers")
    reason = ["why"] if settle == "dead_letter" else []
    assert asked(lambda q: getattr(q, settle)(lease, *reason)) is (settle == "complete")
    assert asked(lambda q: q.complete(lease, fenced=True)) is False


def test_flushed(asked: Asked, admin: redis.Redis) -> None:
    """After FLUSHALL leases are lost and their settlements return False. The queue goes on."""
    asked(enqueue)
    lease = asked(lambda q: q.lease())
    admin.flushall()
    for settle in ("complete", "release", "retry", "renew"):
        assert asked(lambda q, name=settle: getattr(q, name)(lease)) is False
    assert asked(lambda q: q.dead_letter(lease, "why")) is False
    receipt = asked(enqueue)
    assert asked(lambda q: q.lease()).job.id == receipt.id


def test_unblocked(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """After UNBLOCKED a blocked lease call waits on."""
    future = asked.begin(lambda q: q.lease(block=PATIENCE))
    until(lambda: admin.info("clients")["blocked_clients"])
    for client in admin.client_list():
        if client["cmd"] == "xreadgroup":
            admin.client_unblock(int(client["id"]), error=True)
    until(lambda: b"-UNBLOCKED" in proxy.replies)
    with Queue("q", url=proxy.url) as other:
        receipt = other.enqueue(b"x")
    assert future.result(PATIENCE).job.id == receipt.id


def test_refused(asked: Asked, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refused connection the call waits for the server."""
    asked(counts)
    proxy.refuse()
    attempts = _spied(asked, monkeypatch)
    future = asked.begin(enqueue)
    until(lambda: len(attempts) >= 3)
    proxy.admit()
    assert future.result(PATIENCE).added
    assert asked(counts) == ONE


def _spied(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the times of the executor's attempts."""
    attempts: list[float] = []
    kind = type(asked.queue._executor.connections)
    send = kind.send

    def spy(self: Any, *args: Any, **options: Any) -> Any:
        attempts.append(time.monotonic())
        return send(self, *args, **options)

    monkeypatch.setattr(kind, "send", spy)
    return attempts


def test_closed(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """The server closes connections by CLIENT KILL, an idle timeout or a restart. The call connects
    again at once."""
    asked(enqueue)
    proxy.reset()
    admin.client_kill_filter(_type="normal", skipme=True)
    start = time.monotonic()
    assert asked(enqueue).added
    assert time.monotonic() - start < AT_ONCE_S
    assert proxy.connections == 1
    assert asked(counts) == Counts(waiting=2, enqueued=2)


@pytest.mark.slow
def test_timeout(asked: Asked, proxy: Proxy) -> None:
    """Without a reply the call is sent again after the socket's timeout, and it acts once."""
    asked.queue._executor.pool.connection_kwargs["socket_timeout"] = 0.2  # at least 7 s elsewhere
    asked(enqueue)
    proxy.mute()
    future = asked.begin(enqueue)
    until(lambda: proxy.connections >= 1)  # it has given up the first
    proxy.reset()
    assert future.result(PATIENCE).added
    assert asked(counts) == Counts(waiting=2, enqueued=2)


# -- what does not heal ----------------------------------------------------------------------------


def test_wrongtype(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """WRONGTYPE means that the key is foreign. It is raised at once."""
    admin.set(asked.queue.ops.keys.key("jobs"), "mine")
    fails(asked, proxy, "WRONGTYPE", redis.ResponseError)
    fails(asked, proxy, "WRONGTYPE", redis.ResponseError, lambda q: q.lease(block=PATIENCE))


def test_noauth(asked: Asked, proxy: Proxy, admin: redis.Redis) -> None:
    """NOAUTH is raised at once."""
    admin.config_set("requirepass", "secret")
    fails(asked, proxy, "NOAUTH", redis.AuthenticationError)
    fails(asked, proxy, "NOAUTH", redis.AuthenticationError, lambda q: q.lease(block=PATIENCE))


def test_wrongpass(colour: str, proxy: Proxy, admin: redis.Redis) -> None:
    """WRONGPASS is raised at once."""
    admin.config_set("requirepass", "secret")
    with asking(colour, proxy.url.replace("//", "//:wrong@")) as asked:
        fails(asked, proxy, "WRONGPASS", redis.AuthenticationError)


@pytest.mark.parametrize("rule", ["~* +@all -evalsha", "~else +@all", "~* +@all -xadd"])
def test_noperm(colour: str, proxy: Proxy, admin: redis.Redis, rule: str) -> None:
    """NOPERM is raised at once. It concerns the command, a key, or a command within the script."""
    admin.execute_command("ACL SETUSER", "app", "on", ">secret", "&*", *rule.split())
    with asking(colour, proxy.url.replace("//", "//app:secret@")) as asked:
        fails(asked, proxy, "NOPERM|ACL failure|can't run this command", redis.ResponseError)


def test_syntax(asked: Asked, proxy: Proxy) -> None:
    """A script that the server does not understand is raised at once."""
    broken = Op("broken", Script("broken", "return (", "0" * 40), [], [], lambda reply: reply)
    fails(asked, proxy, "compiling", redis.ResponseError, lambda q: q._executor.run(broken))
    assert proxy.requests.count(b"EVAL\r\n") == 1


@pytest.mark.parametrize(
    "error", ["MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "CROSSSLOT Keys in request"]
)
def test_redirected(asked: Asked, proxy: Proxy, error: str) -> None:
    """MOVED, ASK and CROSSSLOT come from the proxy. A client of one server does not follow and
    raises them at once."""
    asked(counts)
    proxy.inject(error, 1)
    start = time.monotonic()
    moved = error.startswith("MOVED")
    with pytest.raises(
        ConfigurationError if moved else redis.ResponseError,
        match="redis.cluster://" if moved else None,
    ):
        asked(enqueue)
    assert time.monotonic() - start < AT_ONCE_S
    assert proxy.requests.count(b"EVALSHA") == 1


def test_wrong_address(proxy: Proxy, colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server from the start, the error is raised after the short budget of the first
    answer."""
    assert retrying.FIRST_ANSWER_S <= 5
    monkeypatch.setattr(retrying, "FIRST_ANSWER_S", 0.3)
    proxy.refuse()
    with asking(colour, proxy.url) as asked:
        start = time.monotonic()
        with pytest.raises(
            redis.ConnectionError, match=re.compile("refused|connect", re.IGNORECASE)
        ):
            asked(enqueue)
        assert time.monotonic() - start < AT_ONCE_S


def test_budget(asked: Asked, proxy: Proxy) -> None:
    """If the server does not come back, redis-py's own error is raised when the budget is spent."""
    asked(counts)
    asked.queue._executor.budget = 0.3
    proxy.refuse()
    start = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        asked(enqueue)
    assert time.monotonic() - start < AT_ONCE_S


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False], ids=["with its data", "without"])
def test_restart_under_a_blocked_lease(binary: Binary, colour: str, durable: bool) -> None:
    """A blocked lease call survives a crash of the server, even one that lost all data."""
    with (
        Server(binary, appendonly=durable) as server,
        redis.Redis(unix_socket_path=server.path) as admin,
        asking(colour, server.url) as asked,
        Queue("q", url=server.url) as other,
    ):
        future = asked.begin(lambda q: q.lease(block=PATIENCE))
        until(lambda: admin.info("clients")["blocked_clients"])
        server.kill()
        server.start()
        receipt = other.enqueue(b"x")
        lease = future.result(PATIENCE)
        assert (lease.job.id, lease.job.attempt) == (receipt.id, 1)
        assert asked(lambda q: q.complete(lease)) is True
        assert other.counts() == Counts(enqueued=1, completed=1)


@pytest.mark.slow
def test_restart_under_load(binary: Binary, colour: str) -> None:
    """Jobs are enqueued and completed while the server crashes and comes back. Each is done once,
    and none is lost."""
    total = 600
    with (
        Server(binary, appendonly=True, extra=EXACT) as server,
        asking(colour, server.url) as asked,
    ):
        progress = threading.Semaphore(0)
        jobs, done = [], []

        def work() -> None:
            for i in range(total):
                jobs.append(asked(lambda q, n=i: q.enqueue(str(n))))
                if i % 2:
                    lease = asked(lambda q: q.lease())
                    assert asked(lambda q, it=lease: q.complete(it)) is True
                    done.append(lease.job.payload)
                if i % 200 == 100:
                    progress.release()

        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(work)
            for _ in range(3):
                assert progress.acquire(timeout=PATIENCE)
                server.kill()
                server.start()
            future.result(PATIENCE)
        assert all(receipt.added for receipt in jobs)
        assert done == [str(i).encode() for i in range(total // 2)]
        with Queue("q", url=server.url) as other:
            assert [s.job.payload for s in other.admin.waiting()] == [
                str(i).encode() for i in range(total // 2, total)
            ]
            assert other.counts() == Counts(
                waiting=total // 2, enqueued=total, completed=total // 2
            )
