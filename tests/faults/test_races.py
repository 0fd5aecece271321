"""Processes that race, sleep through their leases, and die. Each job completes once, and none is
lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
import redis
from attrs import frozen

from headrace import AsyncQueue, Counts, Queue
from headrace._api.sync.lease import Lease
from headrace._model.codec import BytesCodec
from headrace._model.job import Claim, Job
from headrace._net.aio import executor
from headrace._net.sync.executor import Executor
from headrace._net.sync.subscription import Subscription
from headrace._protocol.op import pack
from tests.support.awaiting import PATIENCE, until
from tests.support.processes import CONTEXT
from tests.support.servers import Server, binaries

PAIRS, CHUNK = 400, 10
SETTLE: dict[str, Callable[[Queue, Lease], bool]] = {
    "complete": lambda queue, lease: queue.complete(lease),
    "complete fenced": lambda queue, lease: queue.complete(lease, fenced=True),
    "release": lambda queue, lease: queue.release(lease),
    "retry": lambda queue, lease: queue.retry(lease),
    "dead_letter": lambda queue, lease: queue.dead_letter(lease, "late"),
    "renew": lambda queue, lease: queue.renew(lease),
}


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    """The queue `q`, for threads."""
    with Queue("q", url=server.url) as queue:
        yield queue


# -- racing ----------------------------------------------------------------------------------------


def racer(url: str, rows: list[tuple[str, str, int]], start: Barrier, answers: Connection) -> None:
    """Complete all of *rows* (worker, entry, count). Begin each chunk together with the other
    process."""
    with Queue("q", url=url) as queue:
        leases = [
            Lease(Claim(Job(entry, b"", "q"), worker, entry, n, n), queue)
            for worker, entry, n in rows
        ]
        won = []
        for at, lease in enumerate(leases):
            if at % CHUNK == 0:
                start.wait(PATIENCE)
            won.append(queue.complete(lease))
    answers.send(won)
    answers.close()


@pytest.mark.long
def test_racing_completions(queue: Queue, server: Server) -> None:
    """Two processes complete the same 400 jobs at the same time. Each job has exactly one
    winner."""
    queue.enqueue_many([b"x"] * PAIRS)
    rows = [(x.worker, x.claim.entry, x.claim.count) for x in queue.lease_many(PAIRS)]
    start = CONTEXT.Barrier(2)
    ends = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
    racers = [CONTEXT.Process(target=racer, args=(server.url, rows, start, end)) for _, end in ends]
    for process in racers:
        process.start()
    verdicts = []
    for (mine, theirs), process in zip(ends, racers, strict=True):
        assert mine.poll(PATIENCE)
        verdicts.append(mine.recv())
        process.join(PATIENCE)
        mine.close()
        theirs.close()
    assert [a + b for a, b in zip(*verdicts, strict=True)] == [1] * PAIRS
    assert min(sum(won) for won in verdicts) > 0  # it was a race
    assert queue.counts() == Counts(enqueued=PAIRS, completed=PAIRS)


# -- sleeping and dying ----------------------------------------------------------------------------


def holder(url: str, jobs: int, duration: float, orders: Connection) -> None:
    """Lease *jobs*, report it, and settle them as ordered."""
    with Queue("q", url=url) as queue:
        leases = queue.lease_many(jobs, block=PATIENCE, duration=duration)
        orders.send([lease.job.id for lease in leases])
        for lease in leases:
            orders.send(SETTLE[orders.recv()](queue, lease))
    orders.close()


@frozen
class Holder:
    """A process that holds leases."""

    pid: int
    orders: Connection
    jobs: list[str]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def settle(self, how: str) -> Any:
        """Let the process settle its next lease, and return the answer."""
        self.orders.send(how)
        assert self.orders.poll(PATIENCE)
        return self.orders.recv()


@contextmanager
def holding(server: Server, jobs: int, duration: float = 0.3) -> Iterator[Holder]:
    mine, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=holder, args=(server.url, jobs, duration, theirs))
    process.start()
    try:
        assert mine.poll(PATIENCE)
        assert process.pid is not None
        yield Holder(process.pid, mine, mine.recv())
    finally:
        process.kill()
        process.join(PATIENCE)
        process.close()
        mine.close()
        theirs.close()


def take_over(queue: Queue, jobs: int) -> list[Lease]:
    """Lease *jobs* whose leases have expired."""
    leases: list[Lease] = []
    while len(leases) < jobs:
        more = queue.lease_many(jobs - len(leases), block=PATIENCE)
        assert more, "they do not come back"
        leases += more
    return leases


def test_woken_after_another_finished(queue: Queue, server: Server) -> None:
    """The process slept through its leases, and another finished its jobs. It settles nothing and
    changes nothing."""
    queue.enqueue_many([b"x"] * len(SETTLE))
    with holding(server, len(SETTLE)) as sleeper:
        sleeper.signal(signal.SIGSTOP)
        leases = take_over(queue, len(SETTLE))
        assert [lease.job.id for lease in leases] == sleeper.jobs  # oldest first
        assert [lease.job.attempt for lease in leases] == [2] * len(SETTLE)
        assert queue.complete_many(leases) == [True] * len(SETTLE)
        before = queue.counts()
        sleeper.signal(signal.SIGCONT)
        assert [sleeper.settle(how) for how in SETTLE] == [False] * len(SETTLE)
        assert queue.counts() == before == Counts(enqueued=len(SETTLE), completed=len(SETTLE))
        assert not list(queue.admin.dead())


def test_woken_before_another_finished(queue: Queue, server: Server) -> None:
    """The process slept through its leases. It may complete first, and nothing else. The other then
    gets False."""
    queue.enqueue_many([b"x"] * len(SETTLE))
    with holding(server, len(SETTLE)) as sleeper:
        sleeper.signal(signal.SIGSTOP)
        leases = take_over(queue, len(SETTLE))
        sleeper.signal(signal.SIGCONT)
        answers = {how: sleeper.settle(how) for how in SETTLE}
        assert answers == {how: how == "complete" for how in SETTLE}
        assert queue.counts() == Counts(leased=5, completed=1, enqueued=6)
        assert {state.worker for state in queue.admin.running()} == {leases[0].worker}
        assert [queue.complete(lease) for lease in leases] == [False, *[True] * 5]
        assert queue.counts() == Counts(enqueued=6, completed=6)


def test_killed_holder(queue: Queue, server: Server) -> None:
    """The jobs of a process that was killed come back, in order, with an attempt spent."""
    queue.enqueue_many([b"x"] * 5)
    with holding(server, 5) as victim:
        victim.signal(signal.SIGKILL)
        leases = take_over(queue, 5)
    assert [lease.job.id for lease in leases] == victim.jobs
    assert [lease.job.attempt for lease in leases] == [2] * 5
    assert queue.complete_many(leases) == [True] * 5
    assert queue.counts() == Counts(enqueued=5, completed=5)


# -- cancelling ------------------------------------------------------------------------------------

ROUNDS = 300
# s before a cancel; the long ones for a busy machine
PAUSES = [*[0.0] * 60, *[0.0003] * 30, *[0.001] * 8, 0.1, 0.1]


@pytest.mark.slow
def test_cancelled_leases(queue: Queue, server: Server) -> None:
    """Awaited leases are cancelled at random moments while jobs arrive. Every job can still be
    leased.

    One whose lease call was cancelled after the server had carried it out goes back to the front,
    untouched.
    """
    dice = random.Random(1)

    async def story() -> list[str]:
        got = []
        async with AsyncQueue("q", url=server.url) as mine:
            for i in range(ROUNDS):
                task = asyncio.create_task(mine.lease(block=5.0))
                early = dice.random() < 0.5
                if early:
                    queue.enqueue(str(i))
                for _ in range(dice.randrange(8)):
                    await asyncio.sleep(dice.choice(PAUSES))
                if not early:
                    queue.enqueue(str(i))
                    await asyncio.sleep(dice.choice(PAUSES))
                task.cancel()
                try:
                    lease = await task
                except asyncio.CancelledError:
                    continue
                assert lease is not None
                assert await lease.complete()
                got.append(lease.job.id)
        return got

    got = asyncio.run(story())
    assert 0 < len(got) < ROUNDS
    left = queue.lease_many(ROUNDS)
    assert {lease.job.attempt for lease in left} == {1}
    assert queue.complete_many(left) == [True] * len(left)
    assert len({*got, *(lease.job.id for lease in left)}) == ROUNDS
    assert queue.counts() == Counts(enqueued=ROUNDS, completed=ROUNDS)


WIDE = 2500


@pytest.fixture
def moments(server: Server, pytestconfig: pytest.Config) -> int:
    """Return the number of moments at which a call is given up. Only the client matters, so most
    servers see a few."""
    return 30 if pytestconfig.option.full else 15 if server.binary == binaries()[0] else 5


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True])
def test_wide_leases_that_are_cancelled(
    server: Server, moments: int, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation hits any of the scripts. All jobs go back to the front, also when the loop
    is about to end."""
    # two seconds are not enough for a machine that is busy
    monkeypatch.setattr(executor, "UNDO_WITHIN_S", PATIENCE)

    async def main(after: float | None) -> float:
        queue = AsyncQueue("wide", url=server.url)
        await queue.counts()
        began = asyncio.get_running_loop().time()
        task = asyncio.create_task(queue.lease_many(WIDE, at_most_once=once))
        await asyncio.wait([task], timeout=after)
        took = asyncio.get_running_loop().time() - began
        if task.done() and not once:
            await asyncio.gather(*(lease.release() for lease in task.result()))
        task.cancel()
        await asyncio.wait([task])
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()  # as `asyncio.run` does in the end
        await queue.close()
        return took

    with Queue("wide", url=server.url) as queue:
        queue.admin.delete()
        queue.enqueue_many([b"x"] * WIDE)
        whole = asyncio.run(main(None))
        queue.enqueue_many([b"x"] * (WIDE - queue.counts().present))
        for number in range(moments):
            asyncio.run(main(whole * number / moments))
            counts = queue.counts()
            assert counts.leased == 0, counts
            assert once or counts.parked + counts.waiting == WIDE, counts
            queue.enqueue_many([b"x"] * (WIDE - counts.present))


class Slow(BytesCodec):
    """A codec in Python, which is slow enough to be interrupted."""

    def decode(self, data: bytes) -> bytes:
        return bytes(reversed(bytes(reversed(data))))


def interrupted(url: str, once: bool, moments: int, answers: Connection) -> None:
    """Lease and be interrupted repeatedly. Answer with (leased, still held) of each time, and the
    number of hits."""
    armed: list[bool] = []

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    hits, found = 0, []
    with Queue("ctrl-c", url=url, codec=Slow()) as queue, Queue("ctrl-c", url=url) as other:
        other.admin.delete()
        for number in range(moments):
            other.enqueue_many([b"x"] * (WIDE - other.counts().present))
            leases: list[Any] = []
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, 0.001 + number * 0.06 / moments)
                leases = queue.lease_many(WIDE, at_most_once=once)
                armed.clear()
            except KeyboardInterrupt:
                armed.clear()
                hits += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            found.append((other.counts().leased, 0 if once else len(leases)))
            if leases:
                other.admin.delete()
    answers.send((found, hits))
    answers.close()


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
def test_leases_that_are_interrupted(server: Server, moments: int, once: bool) -> None:
    """Ctrl-C comes at any moment in any script and during decoding. No client holds a job that it
    was not given.

    In a process of its own, which a signal at the wrong moment may end.
    """
    mine, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=interrupted, args=(server.url, once, moments, theirs))
    process.start()
    theirs.close()
    try:
        assert mine.poll(PATIENCE)
        found, hits = mine.recv()
    finally:
        process.kill()
        process.join(PATIENCE)
        mine.close()
    assert [leased for leased, _ in found] == [held for _, held in found]
    assert hits


def test_a_connection_that_was_interrupted_as_it_was_made(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes before the connection has a parser. Neither the next call nor the next
    subscription gets it."""
    kind, interrupts = queue._executor.pool.connection_class, list[bool]()
    greet = kind.on_connect_check_health

    def interrupted(connection: Any, *args: Any, **options: Any) -> Any:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return greet(connection, *args, **options)

    monkeypatch.setattr(kind, "on_connect_check_health", interrupted)
    subscription = Subscription(queue._executor)
    for call, expected in (
        (queue.counts, Counts()),
        (lambda: subscription.receive(["c"], 0).state, "anew"),
    ):
        interrupts.append(True)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert call() == expected
    subscription.receive(["c"], 0)
    subscription.close()
    subscription.receive(["c"], 0)


def test_cancelled_enqueues(queue: Queue, server: Server) -> None:
    """Awaited enqueues are cancelled at random moments. Each job is added once or not at all, and
    an answered one once.
    """
    dice = random.Random(2)

    async def story() -> list[bytes]:
        answered = []
        async with AsyncQueue("q", url=server.url) as mine:
            await mine.counts()
            for i in range(ROUNDS):
                task = asyncio.create_task(mine.enqueue(str(i)))
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(dice.choice(PAUSES))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    continue
                answered.append(str(i).encode())
        return answered

    answered = asyncio.run(story())
    there = [state.job.payload for state in queue.admin.waiting()]
    assert 0 < len(answered) < ROUNDS
    assert len(there) == len(set(there))
    assert set(answered) <= set(there)
    assert queue.counts() == Counts(waiting=len(there), enqueued=len(there))


def test_a_read_that_is_ended_closes_its_connection_itself(newest: Server) -> None:
    """If another thread closed it, a new socket might get its number before the read begins to
    wait."""
    reader = Executor(newest.url)
    subscription = Subscription(reader)
    wait = threading.Thread(target=reader.wait, args=(("BLPOP", "x", "8"),))
    listen = threading.Thread(target=lambda: [subscription.receive(["x"], 60.0) for _ in range(2)])
    closed: list[threading.Thread] = []

    def watched(connection: Any) -> None:
        plain = connection.disconnect

        def disconnect(*args: Any, **options: Any) -> None:
            closed.append(threading.current_thread())
            plain(*args, **options)

        connection.disconnect = disconnect

    with redis.Redis(unix_socket_path=newest.path) as client:
        wait.start()
        listen.start()
        until(
            lambda: client.pubsub_channels() and client.info("clients")["blocked_clients"], "both"
        )
    watched(next(iter(reader._blocked)))
    watched(subscription._connection)
    reader.stop_waiting()
    subscription.close()
    for thread in (wait, listen):
        thread.join(30)
        assert not thread.is_alive()
        assert thread in closed
    assert threading.current_thread() not in closed
    reader.close()


@pytest.mark.timeout(60)
def test_a_connection_that_the_event_loop_has_lost(queue: Queue, server: Server) -> None:
    """A connection whose socket is about to be closed is not written to. An event loop might watch
    its number for ever and never read from the next socket of that number.
    """

    async def story() -> None:
        loop: Any = asyncio.get_running_loop()
        async with AsyncQueue("q", url=server.url, timeout=5) as ours:
            for number in range(5):
                await ours.enqueue(b"%d" % number)
                pool = ours._executor.connections
                connection, _ = pool._free[-1]
                # lost while a call has it, and before
                held = await pool.take() if number % 2 else None
                connection._writer.transport.abort()
                if held is not None:
                    with pytest.raises(redis.ConnectionError):
                        await held.send_packed_command([pack(("PING",))])
                    await pool.drop(held)
            watched = loop._selector.get_map().values()
            assert [key.fd for key in watched if key.data[1] is not None] == []

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(story())
    assert queue.counts().enqueued == 5
