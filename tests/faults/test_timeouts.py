"""`timeout=` of a queue and of a call. It bounds the call with its retries, and the error has the
outcome if known."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, Counts, Flow, Queue
from headrace._core.shards.transfer import WITHIN_S
from headrace._net.base.sockets import set_timeout
from headrace._net.sync.pool import exchanged, send
from headrace._protocol.op import pack
from headrace.errors import StreamStopped
from tests.faults.test_errors import ONE, Asked, admin, asked, asking, colour, counts, enqueue
from tests.support.colours import Connect
from tests.support.facts import each
from tests.support.program import PATIENCE, Script
from tests.support.proxy import Proxy
from tests.support.servers import Server

pytestmark = pytest.mark.ci

__all__ = ["admin", "asked", "colour"]
SHORT_S = 0.4
PING = pack(("PING",))
# seconds by which a busy machine may be late, and less than any timeout of a connection
LATE_S = 9.0

VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "enqueue": lambda q, _: q.enqueue(b"x", timeout=SHORT_S),
    "enqueue_many": lambda q, _: q.enqueue_many([b"x"] * 3000, timeout=SHORT_S),
    "complete": lambda q, lease: q.complete(lease, timeout=SHORT_S),
    "complete_many": lambda q, lease: q.complete_many([lease], timeout=SHORT_S),
    "release": lambda q, lease: lease.release(timeout=SHORT_S),
    "retry": lambda q, lease: lease.retry(timeout=SHORT_S),
    "dead_letter": lambda q, lease: lease.dead_letter("why", timeout=SHORT_S),
    "renew": lambda q, lease: lease.renew(timeout=SHORT_S),
    "cancel": lambda q, _: q.cancel("a", timeout=SHORT_S),
    "find": lambda q, _: q.find("a", timeout=SHORT_S),
    "counts": lambda q, _: q.counts(timeout=SHORT_S),
}


def late(
    asked: Asked, call: Callable[[Any], Any], outcome: str, kind: type[Exception] = redis.RedisError
) -> Exception:
    """Return the error of a call, which must end in time with *outcome* or one of several."""
    start = time.monotonic()
    with pytest.raises(kind) as raised:
        asked(call)
    assert time.monotonic() - start < SHORT_S + LATE_S
    error = raised.value.__cause__ if isinstance(raised.value, StreamStopped) else raised.value
    said = outcome_of(raised.value)
    assert said in outcome.split("|"), error.__notes__
    assert any(note.startswith(f"headrace: {said} after") for note in error.__notes__)
    return raised.value


def outcome_of(error: Any) -> str:
    """Return the outcome of the call that an error has."""
    return str((error.__cause__ if isinstance(error, StreamStopped) else error).outcome)


@pytest.fixture
def leased(asked: Asked) -> Iterator[Any]:
    """Return a lease of a queue whose server is known."""
    asked(enqueue)
    return asked(lambda q: q.lease())


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_is_silent(asked: Asked, leased: Any, proxy: Proxy, verb: str) -> None:
    """The server reads the call and never answers, so the outcome is unknown."""
    proxy.mute()
    error = late(asked, lambda q: VERBS[verb](q, leased), "unknown")
    assert isinstance(error, redis.TimeoutError)


@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many", "complete", "find"])
def test_a_server_that_is_gone(asked: Asked, leased: Any, proxy: Proxy, verb: str) -> None:
    proxy.refuse()
    # on a connection that had just closed
    error = late(asked, lambda q: VERBS[verb](q, leased), "not sent|unknown")
    # it may end in the middle of connecting
    assert isinstance(error, redis.ConnectionError | redis.TimeoutError)


def test_a_server_that_is_full(asked: Asked, admin: redis.Redis) -> None:
    """An answer that the server is full means that nothing has happened."""
    asked(enqueue)
    admin.config_set("maxmemory", 1)
    # its own class, but on 6.2
    refused(asked, lambda q: q.enqueue(b"x", timeout=SHORT_S), redis.ResponseError)
    refused(asked, lambda q: q.enqueue_stream([b"x"], timeout=SHORT_S), StreamStopped)
    admin.config_set("maxmemory", 0)
    assert asked(counts) == ONE


def refused(asked: Asked, call: Callable[[Any], Any], kind: type[Exception]) -> None:
    """Call until the outcome is refused. On a busy machine the last attempt may get no answer in
    time."""
    for _ in range(20):
        error = late(asked, call, "refused|unknown", Exception)
        if outcome_of(error) == "refused":
            assert isinstance(error, kind)
            return
    raise AssertionError("the answer never came in time")


@pytest.mark.parametrize("deaf", ["mute", "refuse"])
def test_of_a_queue(proxy: Proxy, colour: str, deaf: str) -> None:
    """Every verb takes it, and a call may have a longer one."""
    with asking(colour, proxy.url, timeout=SHORT_S) as asked:
        asked(enqueue)
        getattr(proxy, deaf)()
        late(asked, enqueue, "unknown" if deaf == "mute" else "not sent|unknown")
        late(asked, lambda q: q.admin.workers(), "not sent")  # no connection is made any more
        late(asked, lambda q: q.admin.drain(), "not sent")
        if deaf == "mute":
            return
        future = asked.begin(lambda q: q.enqueue(b"y", timeout=60))
        time.sleep(2 * SHORT_S)  # as long as the queue's own would last, and again
        assert not future.done()
        proxy.admit()
        assert future.result(30).added


def test_a_call_in_time_is_as_any_other(asked: Asked, proxy: Proxy) -> None:
    """The connection keeps its usual timeouts."""
    assert asked(lambda q: q.enqueue(b"x", timeout=5)).added
    assert asked(lambda q: q.enqueue_many([b"x"] * 2000, timeout=5))[-1].added
    assert asked(lambda q: q.lease(block=1.0)) is not None
    opened = proxy.connections
    for _ in range(5):
        asked(lambda q: q.counts(timeout=5))
        asked(counts)
    assert proxy.connections == opened
    if isinstance(asked.queue, Queue):
        pool = asked.queue._executor.pool
        connection = pool.get_connection()
        assert (
            timeout_of(connection._sock)
            == connection.socket_timeout
            == pool.connection_kwargs["socket_timeout"]
        )
        pool.release(connection)


def timeout_of(sock: socket.socket) -> float:
    """Return the seconds that the kernel lets a read of a socket wait."""
    assert sock.gettimeout() is None
    seconds, micros = struct.unpack(
        "@ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    )
    return float(seconds + micros / 1e6)


def test_what_the_kernel_ends_is_a_timeout(newest: Server) -> None:
    """It is not an error of a broken connection. Both a read and a write to a frozen server time
    out."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x")
        connection = queue._executor.connections.take()
        set_timeout(connection._sock, 0.05)
        os.kill(newest.pid, signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError, match="reading"):
                exchanged(connection, PING)
            with pytest.raises(redis.TimeoutError, match="writing"):
                send(connection, bytes(1 << 26))
        finally:
            os.kill(newest.pid, signal.SIGCONT)
            queue._executor.connections.drop(connection)


class Alarm:
    """A request's time limit as web servers set it, by a signal whose handler raises at any
    place."""

    def __init__(self, raises: type[Exception]) -> None:
        self.raises = raises

    def __call__(self, number: int, _frame: object) -> None:
        raise self.raises("the request's time is over")

    def function(self, number: int, _frame: object) -> None:
        raise self.raises("the request's time is over")


@pytest.fixture
def alarmed() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class TimeIsOver(ConnectionError):
    pass


@pytest.mark.parametrize("raises", [TimeoutError, OSError, TimeIsOver])
@pytest.mark.parametrize("kind", ["function", "method", "object", "partial"])
def test_the_error_of_a_signal_handler_ends_a_call(
    newest: Server, proxy: Proxy, alarmed: Callable[[Any], None], raises: type[Exception], kind: str
) -> None:
    """The error looks like one of a broken connection, but causes no retry."""
    alarm = Alarm(raises)

    def function(number: int, frame: object) -> None:
        alarm(number, frame)

    alarmed(
        {
            "function": function,
            "method": alarm.function,
            "object": alarm,
            "partial": partial(alarm.function),
        }[kind]
    )
    with Queue("q", url=proxy.url) as queue:
        queue.enqueue(b"x", id="before")
        proxy.mute()
        for call in (
            lambda: queue.enqueue(b"x", id="a"),
            queue.counts,
            lambda: queue.lease(block=30),
        ):
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(raises, match=r"^the request's time is over$") as raised:
                call()
            assert type(raised.value) is raises
            assert time.monotonic() - start < LATE_S
        proxy.reset()
        assert queue.enqueue(b"x", id="a").added in (True, False)
        assert queue.counts().waiting == 2


INTERRUPTED = """
import random, signal, sys, time
from headrace import Queue

def over(*_):
    raise TimeoutError("time is over")

signal.signal(signal.SIGALRM, over)
interrupted, longest, number, spread = 0, 0.0, 0, random.Random(5)
with Queue("q", url=sys.argv[1]) as queue:
    queue.counts()
    while number < 300 or (interrupted < 20 and number < 20_000):  # a fast machine interrupts few calls
        added, tries = None, 0
        while added is None:
            start = time.monotonic()
            try:
                # A slow machine needs more to connect again.
                signal.setitimer(signal.ITIMER_REAL, 10 ** spread.uniform(-4, -2.4) * 1.2**tries)
                added = queue.enqueue(b"x", id=str(number))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except TimeoutError as error:
                assert str(error) == "time is over", error
                interrupted, tries = interrupted + 1, tries + 1
            longest = max(longest, time.monotonic() - start)
        assert added.id == str(number), added
        number += 1
print(interrupted, longest, number)
"""


def test_calls_that_are_interrupted_again_and_again_end(newest: Server) -> None:
    """Interruptions come at any instruction. No call hangs or acts twice, and none gets the reply
    of another."""
    with Script(INTERRUPTED, [newest.url]) as program:
        said, complaints = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, complaints
    interrupted, longest, number = map(float, said.split())
    assert interrupted >= 20, interrupted
    assert longest < LATE_S
    with Queue("q", url=newest.url) as queue:
        assert queue.counts() == Counts(waiting=int(number), enqueued=int(number))


def test_an_awaited_call_is_bounded_too(proxy: Proxy) -> None:
    """One timer serves all calls, on two connections, one after the other and again later."""

    async def story() -> None:
        async with AsyncQueue("q", url=proxy.url) as queue:
            await queue.enqueue(b"x")
            executor = queue._executor
            pools = executor.connections
            both = [await pools.take(), await pools.take()]
            for _ in range(2):
                for connection in both:
                    pools.give(connection)
                pools.timeout = 60.0
                assert await asyncio.gather(*(pools.send([PING]) for _ in both)) == [[b"PONG"]] * 2
                pools.timeout = 0.2
                proxy.mute()
                first = asyncio.create_task(pools.send([PING]))
                await asyncio.sleep(0.05)
                start = time.monotonic()
                for call in (first, asyncio.create_task(pools.send([PING]))):
                    with pytest.raises(redis.TimeoutError, match=r"no answer within 0.2 s"):
                        await call
                assert 0.15 < time.monotonic() - start < LATE_S
                proxy.reset()
                pools.timeout = 60.0
                both = [await pools.take(), await pools.take()]
            for connection in both:
                pools.give(connection)

    asyncio.run(story())


def test_a_new_connection_has_the_usual_timeouts(asked: Asked) -> None:
    """This holds for a connection that a bounded call made."""
    assert asked(lambda q: q.enqueue(b"x", timeout=1)).added
    assert asked(lambda q: q.lease(block=0)) is not None
    assert asked(lambda q: q.lease(block=1.5)) is None


def test_all_who_wait_together(proxy: Proxy) -> None:
    """A thousand coalesced calls end in time, while they wait for a turn, for others, or for the
    server."""

    async def story() -> None:
        async with AsyncQueue("q", url=proxy.url) as queue:
            await queue.enqueue(b"x")
            proxy.mute()
            start = time.monotonic()
            calls = [queue.enqueue(b"x", timeout=SHORT_S) for _ in range(900)]
            calls += [queue.find("a", timeout=SHORT_S) for _ in range(100)]  # type: ignore[misc]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - start < SHORT_S + LATE_S
            assert all(isinstance(answer, redis.TimeoutError) for answer in answers)
            assert {answer.outcome for answer in answers} == {"unknown", "not sent"}  # type: ignore[union-attr]

    asyncio.run(story())


@each("timeout", [0, -1, float("nan"), "1", True])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    """An invalid timeout is refused without a server."""
    with pytest.raises((TypeError, ValueError), match="timeout"):
        Queue("q", url="redis://localhost:1", timeout=timeout)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        Flow("f", url="redis://localhost:1", timeout=timeout)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        Queue("q", url="redis://localhost:1").enqueue(b"x", timeout=timeout)


def test_a_time_out_while_a_socket_s_path_is_opened(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py raises an `AttributeError` for it, because such a connection has no host."""

    def connect(_: Any) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(redis.UnixDomainSocketConnection, "_connect", connect)
    with (
        Queue("q", url=own.url, timeout=0.3) as queue,
        pytest.raises(redis.exceptions.TimeoutError),
    ):
        queue.enqueue(b"x")


@pytest.mark.parametrize("shards", [1, 4])
def test_a_lease_waits_for_a_frozen_server(
    newest: Server, newest_connect: Connect, shards: int
) -> None:
    """The call waits until its time is over, with and without shards. A shard is waited for less
    while others answer.
    """
    queue = newest_connect("q", shards=shards)
    queue.enqueue(b"x")
    os.kill(newest.pid, signal.SIGSTOP)
    wake = threading.Timer(WITHIN_S + 2.0, os.kill, (newest.pid, signal.SIGCONT))
    wake.start()
    try:
        lease = queue.lease(block=1.0)
    finally:
        wake.join()
    assert lease.job.payload == b"x"
    assert lease.complete() is True
