"""A connection that breaks at any byte. Every call answers truthfully and has acted exactly once.

For each call a rehearsal measures its conversation with the server; then it is repeated as often as
that has bytes, and the connection is cut after each of them: of the requests, and of the replies (0
bytes of a reply: it was carried out, and nobody heard). It is our side that is cut: on other
servers than the newest, every thirteenth byte will do, and for the other colour every fifth, but
for `--full`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from attrs import frozen

from headrace import AsyncQueue, Counts, NewJob, Queue
from headrace._api.queue import _DECLARED
from headrace._core.effects import Call, send_all
from headrace._model.job import Claim
from headrace._protocol.features.runs import ops as runs
from headrace._protocol.keys import Keys
from headrace._protocol.op import pack
from headrace._protocol.queue_ops import Ops
from headrace.errors import RunSuspended
from tests.support.proxy import Proxy
from tests.support.servers import Server, binaries

NAME = "q"  # short: every byte of a key costs a cut
OTHER = "m"  # a queue in another slot
ENDS = [binaries()[0], binaries()[-1]]


@frozen
class Case:
    """One call with its preparation and the facts that must hold after it.

    `act` answers with a value or an awaitable of it. `holds` sees the answer and what `prepare`
    brought, and asks the server directly.
    """

    name: str
    prepare: Callable[[Queue], Any]
    act: Callable[[Any, Any], Any]
    holds: Callable[[Queue, Any, Any], None]
    counts: Counts
    start: str = ""
    """Where the conversation begins that is cut: at the first request that has this word."""
    tap: Callable[[Queue, bytes], None] | None = None
    step: int = 1
    leases: bool = False
    """Whether it ends with a call to lease, whose request is that of "lease": every seventh byte of
    it will do."""


def nothing(queue: Queue) -> None:
    pass


def waits(queue: Queue) -> None:
    queue.enqueue(b"x", id="i")


def leased(queue: Queue) -> Any:
    queue.enqueue(b"x")
    return queue.lease()


def yes(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True


def is_added(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer.added
    state = queue.find(answer.id)
    assert state is not None
    assert state.job.payload == b"x"


def begins(queue: Any) -> Any:
    """Enqueue in the first call of a queue, whose declaration follows it."""
    _DECLARED.discard(queue._said())
    queue._undeclared = True
    return queue.enqueue(b"x")


def is_declared(queue: Queue, prepared: Any, answer: Any) -> None:
    is_added(queue, prepared, answer)
    assert queue._executor.connections.send(
        [pack(("HEXISTS", queue.ops.keys.key("stats"), "declared"))]
    ) == [1]


def are_added(queue: Queue, prepared: Any, answer: Any) -> None:
    assert [r.added for r in answer] == [True] * 4
    waiting = {
        state.job.id: state.job.payload
        for state in [*queue.admin.waiting(), *queue.admin.delayed()]
    }
    assert [waiting[r.id] for r in answer] == [b"a", b"b", b"c", b"d"]


def is_leased(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is not None
    assert (answer.job.payload, answer.job.attempt) == (b"x", 1)
    assert [state.worker for state in queue.admin.running()] == [answer.worker]
    assert queue.renew(answer)


def is_completed(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    assert queue.result(prepared.job.id) == b"r"
    assert [state.job.payload for state in queue.admin.waiting()] == [b"next"]
    assert queue.complete(prepared) is False


def is_parked(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    again = queue.lease()
    assert again is not None
    assert (again.job.id, again.job.attempt) == (prepared.job.id, 1)
    assert queue.release(again)


def is_retried(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    assert queue.renew(prepared) is False
    assert [state.job.id for state in queue.admin.waiting()] == [prepared.job.id]


def is_dead(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    assert [(s.job.id, s.reason) for s in queue.admin.dead()] == [(prepared.job.id, "why")]


def expired(queue: Queue) -> Any:
    queue.enqueue(b"x")
    lease = queue.lease(duration=0.001)
    time.sleep(0.002)
    return lease


def is_taken_over(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is not None
    assert (answer.job.id, answer.job.attempt) == (prepared.job.id, 2)
    assert queue.renew(prepared) is False
    assert queue.renew(answer)


def soon(queue: Any) -> Any:
    """Lease, with the upkeep for other workers before it."""
    queue._leaser.tidy_at = float("-inf")
    return queue.lease()


def steps_of(queue: Any, lease: Any) -> Any:
    """Return the steps of a lease on *queue*."""
    return queue._steps_of(queue._claim(lease), lease.job)


def stepped() -> bytes:
    return b"value"


def is_recorded(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer == b"value"
    state = queue.find(prepared.job.id)
    assert state is not None
    assert [(step.name, step.state, step.result) for step in state.steps] == [
        ("a", "done", b"value")
    ]
    assert queue.renew(prepared)


def asleep(queue: Any, lease: Any) -> Any:
    """Sleep for an hour and return the exception that ends the delivery."""
    steps = steps_of(queue, lease)

    async def awaited(sleeping: Any) -> Any:
        with pytest.raises(RunSuspended) as caught:
            await sleeping
        return caught.value

    if isinstance(queue, AsyncQueue):
        return awaited(steps.sleep("a", 3600, release_key=False))
    with pytest.raises(RunSuspended) as caught:
        steps.sleep("a", 3600, release_key=False)
    return caught.value


def is_asleep(queue: Queue, prepared: Any, answer: Any) -> None:
    assert (answer.job, answer.step) == (prepared.job.id, "a")
    state = queue.find(prepared.job.id)
    assert state is not None
    assert [(step.name, step.state, step.due) for step in state.steps] == [
        ("a", "sleeping", answer.due)
    ]
    assert queue.renew(prepared) is False


def waits_for_signal(queue: Queue) -> Any:
    lease = leased(queue)
    with pytest.raises(RunSuspended):
        lease.job.wait_for("a")
    return lease


def is_signalled(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer == "woke"
    state = queue.find(prepared.job.id)
    assert state is not None
    assert [(step.name, step.state, step.result) for step in state.steps] == [
        ("a", "signalled", b"value")
    ]
    again = queue.lease()
    assert again is not None
    assert again.job.wait_for("a") == b"value"
    assert queue.release(again)


CHILD = f"x/{OTHER}~1"


def other(queue: Queue) -> Queue:
    """Return the queue in another slot, which has parents or children of runs in *queue*."""
    return Queue(OTHER, url=queue._address.target, namespace="n")


def started(ops: Ops, claim: Claim, name: str) -> Call[bool]:
    """Record a child of the queue *name*, and start it there."""
    (made,) = yield from send_all([runs.child_away(ops, claim, "c", Keys.of(name, "n"), CHILD)])
    assert not isinstance(made, int)
    (yes,) = yield from send_all([runs.adopt(ops, claim, made, NewJob(b"y", queue=name))])
    return yes


def starts(queue: Any, lease: Any) -> Any:
    return queue._drive(started(queue.ops, queue._claim(lease), OTHER))


def is_started(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    state = queue.find(prepared.job.id)
    assert state is not None
    assert [(step.name, step.state) for step in state.steps] == [("c", "running")]
    with other(queue) as there:
        assert [one.job.id for one in there.admin.waiting()] == [CHILD]
        assert there.counts() == ADDED


def leased_child(queue: Queue) -> Any:
    with other(queue) as parents:
        parent = leased(parents)
        assert parents._drive(started(parents.ops, parents._claim(parent), NAME))
    return queue.lease()


def is_reported(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer is True
    assert queue.complete(prepared) is False
    with other(queue) as parents:
        (parent,) = parents.admin.running()
        is_learned(parents, parent, parents._drive(fetched(parents.ops, NAME)))


def ended_child(queue: Queue) -> Any:
    lease = leased(queue)
    assert starts(queue, lease)
    with other(queue) as there:
        assert there.complete(there.lease(), b"r")
    return lease


def fetched(ops: Ops, name: str) -> Call[int]:
    """Record the ends of children, and remove their reports. Return how many they were."""
    home = Keys.of(name, "n").prefix
    (found,) = yield from send_all([runs.reports(ops, home, [])])
    yield from send_all([runs.learn(ops, home, found)])
    yield from send_all([runs.reports(ops, home, found.words[::2])])
    return len(found.words) // 2


def is_learned(queue: Queue, prepared: Any, answer: Any) -> None:
    assert answer == 1
    state = queue.find(prepared.job.id)
    assert state is not None
    assert [(step.state, step.result) for step in state.steps] == [("done", b"r")]
    home = OTHER if queue.name == NAME else NAME
    assert queue._drive(fetched(queue.ops, home)) == 0


def forgets(queue: Queue) -> None:
    queue._executor.connections.send([pack(("SCRIPT", "FLUSH"))])


def arrives(queue: Queue, request: bytes) -> None:
    """Let a job arrive when a client blocks or has tried to."""
    if b"$10\r\nXREADGROUP" in request:  # the command, not the text of a script
        queue.enqueue(b"x")


BATCH = [b"a", NewJob(b"b", id="b"), NewJob(b"c", delay=60, id="c"), b"d"]
THEN = [NewJob(b"next", id="n")]
MANY = Counts(waiting=3, delayed=1, enqueued=4)
LEASED = Counts(leased=1, enqueued=1)
ADDED = Counts(waiting=1, enqueued=1)
FOLLOWED = Counts(waiting=1, enqueued=2, completed=1)
COMPLETED = Counts(enqueued=1, completed=1)
PARKED = Counts(parked=1, enqueued=1)
DEAD = Counts(dead=1, enqueued=1)
CANCELLED = Counts(enqueued=1, cancelled=1)
CASES = [
    Case("enqueue", nothing, lambda q, _: q.enqueue(b"x"), is_added, ADDED),
    Case("enqueue first", nothing, lambda q, _: begins(q), is_declared, ADDED, step=3),
    Case("enqueue with id", nothing, lambda q, _: q.enqueue(b"x", id="i"), is_added, ADDED),
    Case("enqueue anew", forgets, lambda q, _: q.enqueue(b"x"), is_added, ADDED, step=23),
    Case("enqueue_many", nothing, lambda q, _: q.enqueue_many(BATCH), are_added, MANY),
    Case("lease", waits, lambda q, _: q.lease(), is_leased, LEASED),
    Case(
        "lease after blocking", nothing, lambda q, _: q.lease(block=5), is_leased, LEASED,
        start="XREADGROUP", tap=arrives, leases=True,
    ),
    Case("lease of an expired one", expired, lambda q, _: soon(q), is_taken_over, LEASED, leases=True),
    Case("complete", leased, lambda q, x: q.complete(x, b"r", THEN), is_completed, FOLLOWED),
    Case("complete fenced", leased, lambda q, x: q.complete(x, fenced=True), yes, COMPLETED),
    Case("retry", leased, lambda q, x: q.retry(x), is_retried, ADDED),
    Case("release", leased, lambda q, x: q.release(x), is_parked, PARKED),
    Case("dead_letter", leased, lambda q, x: q.dead_letter(x, "why"), is_dead, DEAD),
    Case("cancel waiting", waits, lambda q, _: q.cancel("i"), yes, CANCELLED),
    Case("cancel leased", leased, lambda q, x: q.cancel(x.job.id), yes, CANCELLED),
    Case("step", leased, lambda q, x: steps_of(q, x).step("a", stepped, (), {}, once=False), is_recorded, LEASED),
    Case("sleep", leased, asleep, is_asleep, Counts(delayed=1, enqueued=1)),
    Case("signal", waits_for_signal, lambda q, x: q.signal(x.job.id, "a", b"value"), is_signalled, PARKED),
    Case("start of a child", leased, starts, is_started, LEASED),
    Case("end of a child", leased_child, lambda q, x: q.complete(x, b"r"), is_reported, COMPLETED),
    Case("fetched end", ended_child, lambda q, _: q._drive(fetched(q.ops, OTHER)), is_learned, LEASED),
    Case("renew", leased, lambda q, x: q.renew(x), yes, LEASED),
]  # fmt: skip


class Bench:
    """A queue without a proxy, and the means to call the same queue through one."""

    def __init__(self, server: Server, proxy: Proxy, step: int, **options: Any) -> None:
        self.step = step
        self.direct = Queue(NAME, url=server.url, namespace="n", **options)
        self.client = redis.Redis(unix_socket_path=server.path)
        self.proxy = proxy
        self.cuts = 0
        self.prepared: Any = None
        self.found: dict[bytes, bytes] = {}
        self.fresh_until = 0.0

    def prepare(self, case: Case, queue: Queue | AsyncQueue) -> Any:
        """Fill an empty server for *case*. A recent preparation is restored from a dump."""
        # tidy when told to
        self.direct._leaser.tidy_at = queue._leaser.tidy_at = time.monotonic() + 3600
        if self.found and time.monotonic() < self.fresh_until:
            with self.client.pipeline(transaction=False) as pipe:
                pipe.flushdb()
                for key, dump in self.found.items():
                    pipe.restore(key, 0, dump)
                pipe.execute()
            return self.prepared
        self.client.flushdb()
        self.prepared = case.prepare(self.direct)
        self.found = {key: self.client.dump(key) for key in self.client.scan_iter()}
        self.fresh_until = time.monotonic() + 5.0  # far less than leases last
        return self.prepared

    def arm(self, case: Case, side: str, after: int) -> None:
        """Cut after *after* bytes of *side*, or never for -1."""
        if after < 0:
            self.proxy.reset()
        else:
            self.proxy.cut(side, after)
        if case.tap is not None:
            tap = case.tap
            self.proxy.tap = lambda request: tap(self.direct, request)

    def settled(self, case: Case, side: str, after: int, prepared: Any, answer: Any) -> None:
        """Check that no job is lost or doubled and the answer is true."""
        where = f"{case.name}: cut after {after} bytes of {side}"
        assert after < 0 or self.proxy.fired, f"{where}: not reached"
        self.cuts += after >= 0
        self.proxy.reset()
        try:
            case.holds(self.direct, prepared, answer)
            counts = self.direct.counts()
            assert counts == case.counts
            assert counts.lost == 0
        except AssertionError as error:
            error.add_note(where)
            raise

    def places(self, case: Case) -> Iterator[tuple[str, int]]:
        """Yield the places of cuts after a rehearsal. They are all bytes of the requests and the
        replies, or some of them.
        """
        step = case.step * self.step
        requests, replies = bytes(self.proxy.requests), bytes(self.proxy.replies)
        begin = max(0, requests.find(case.start.encode()) - 30) if case.start else 0
        last = requests.rfind(b"EVALSHA") if case.leases else len(requests)
        yield from (("requests", n) for n in range(begin, last + 1, step))
        yield from (
            ("requests", len(requests) - n) for n in range(0, len(requests) - last, 7 * step)
        )
        yield from (("replies", n) for n in range(0, len(replies) + 1, step))

    def close(self) -> None:
        self.direct.close()
        self.client.close()


@pytest.fixture
def bench(server: Server, pytestconfig: pytest.Config) -> Iterator[Bench]:
    with Proxy(server.path) as proxy:
        bench = Bench(
            server, proxy, 1 if server.binary == ENDS[0] or pytestconfig.option.full else 13
        )
        yield bench
        bench.close()


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cut_at_every_byte(bench: Bench, case: Case, record_property: Any) -> None:
    """Wherever the connection breaks, the call answers truthfully and acts exactly once."""
    cut_everywhere(bench, case, max_attempts=19)  # which it declares
    record_property("cuts", bench.cuts)


def cut_everywhere(bench: Bench, case: Case, **options: Any) -> None:
    """Make the call through the proxy, once for each place where it is cut."""
    with Queue(NAME, url=bench.proxy.url, namespace="n", **options) as queue:

        def once(side: str, after: int) -> None:
            prepared = bench.prepare(case, queue)
            bench.arm(case, side, after)
            answer = case.act(queue, prepared)
            if after < 0:
                places.extend(bench.places(case))
            bench.settled(case, side, after, prepared, answer)

        places: list[tuple[str, int]] = []
        queue.counts()  # connected
        once("requests", -1)
        places.clear()  # scripts are known from here on
        once("requests", -1)
        for side, after in places:
            once(side, after)
    assert bench.cuts > 50 / bench.step


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("binary", ENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cut_at_every_byte_async(
    bench: Bench, case: Case, pytestconfig: pytest.Config, record_property: Any
) -> None:
    """The same calls are awaited. Without `--full`, every fifth byte is tried."""

    async def story() -> None:
        async with AsyncQueue(NAME, url=bench.proxy.url, namespace="n", max_attempts=19) as queue:

            async def once(side: str, after: int) -> None:
                prepared = bench.prepare(case, queue)
                bench.arm(case, side, after)
                answer = case.act(queue, prepared)
                answer = await answer if inspect.isawaitable(answer) else answer
                if after < 0:
                    places.extend(bench.places(case))
                bench.settled(case, side, after, prepared, answer)

            places: list[tuple[str, int]] = []
            # the requests are those of the other colour
            bench.step *= 1 if pytestconfig.option.full else 5
            await queue.counts()
            await once("requests", -1)
            places.clear()
            await once("requests", -1)
            for side, after in places:
                await once(side, after)

    asyncio.run(story())
    record_property("cuts", bench.cuts)
    assert bench.cuts > 50 / bench.step


def test_late_request(bench: Bench) -> None:
    """A request that was given up arrives after later calls were answered. It is not carried out
    again."""
    bench.client.flushdb()
    # which it declares
    with Queue(NAME, url=bench.proxy.url, namespace="n", max_attempts=19) as queue:
        queue.enqueue(b"warm")  # connected, and the script is known
        bench.proxy.hold()
        assert queue.enqueue(b"first").added
        assert bench.proxy.fired
        assert queue.enqueue(b"second").added
        bench.proxy.deliver()
        waiting = [state.job.payload for state in queue.admin.waiting()]
        assert waiting == [b"warm", b"first", b"second"]
        assert bench.direct.counts() == Counts(waiting=3, enqueued=3)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_late_lease_after_closing(bench: Bench, colour: str) -> None:
    """A late copy of a lease call gives no job to a closed queue. Its record is not deleted
    either."""
    bench.client.flushdb()
    bench.direct.enqueue_many([b"first", b"second", b"third"])
    url = bench.proxy.url

    async def story() -> None:
        async with AsyncQueue(NAME, url=url, namespace="n") as queue:
            assert await queue.lease()
            bench.proxy.hold()
            assert await queue.lease()

    if colour == "async":
        asyncio.run(story())
    else:
        with Queue(NAME, url=url, namespace="n") as queue:
            assert queue.lease()
            bench.proxy.hold()
            assert queue.lease()
    assert bench.proxy.fired
    bench.proxy.deliver()
    assert bench.direct.counts() == Counts(leased=2, waiting=1, enqueued=3)


def test_late_request_after_giving_up(bench: Bench) -> None:
    """A call that failed may be carried out later, once. Later calls are not affected."""
    bench.client.flushdb()
    # which it declares
    with Queue(NAME, url=bench.proxy.url, namespace="n", max_attempts=19) as queue:
        queue.enqueue(b"warm")  # connected, and the script is known
        queue._executor.budget = 0.05
        bench.proxy.hold(refuse=True)
        with pytest.raises(redis.ConnectionError):
            queue.enqueue(b"first")
        bench.proxy.admit()
        queue.counts()
        bench.proxy.cut("replies", 0)
        bench.proxy.tap = lambda _: bench.proxy.deliver()
        queue._executor.budget = 5.0
        assert queue.enqueue(b"second").added
        bench.proxy.reset()
        waiting = sorted(state.job.payload for state in queue.admin.waiting())
        assert waiting == [b"first", b"second", b"warm"]
        assert bench.direct.counts() == Counts(waiting=3, enqueued=3)
