"""Random operations of three clients on a real server and on the model. After each step both must
agree.

The clients are one for threads (`ann`), one for asyncio (`bob`), and one whose connection loses the
first reply of whatever it sends (`cy`): each of its calls reaches the server twice, under one
number.

Nothing here waits for time to pass, but for leases of a millisecond: what is late is made so by
rewriting a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import hypothesis.strategies as st
import redis
from attrs import asdict
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import headrace
from headrace import JobState, NewJob
from headrace._protocol import view_ops
from headrace._protocol.op import Op
from tests.model.model import NO_PAYLOAD, PRIORITY, UNIQUE, Held, Job, Model
from tests.support.colours import Connect, bare
from tests.support.servers import Server

COLOURS = {"ann": "sync", "bob": "async", "cy": "sync"}
LISTINGS = ("waiting", "running", "delayed", "dead")
LONG = 3600.0  # s
INSTANT = 0.001  # s of a lease that is over at once
MOST = 9  # jobs that may wait, where that is a condition
TERM = 60_000  # ms of a lease without a duration of its own
Pair = tuple[Any, Held]
PARTS = {
    "jobs",
    "jobs:1",
    "jobs:2",
    "wake",
    "stats",
    "taken",
    "cancels",  # for the time of a result
    "dead",
    "deaths",  # until the next sweep
    "workers",
    "registered",
}  # the keys that an empty queue may have

clients = st.sampled_from(list(COLOURS))
payloads = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
names = st.sampled_from(["one", "two", "three"])
headers = st.sampled_from([None, {"lang": "en"}])
delays = st.none() | st.tuples(st.sampled_from(["in", "at", "past"]), st.integers(1, 3))
durations = st.sampled_from([None, None, 600.0, INSTANT])
fences = st.sampled_from([None, None, True, False])
picks = st.integers(0, 9)
flags = st.booleans()
levels = st.sampled_from([0, 0, 1, 2])
news = st.tuples(payloads, st.none() | names, headers, delays, levels)


class Stammering:
    """Sends every operation twice, under one number, and knows the second reply only.

    But of a lease that handed out nothing the first: a copy's reply says that there is perhaps
    more, each time.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client, self._calls = client, 0
        self.op: Op[Any] | None = None
        self.reply: Any = None

    def run(
        self, op: Op[Any], meanwhile: Callable[[], None] | None = None, within: float | None = None
    ) -> Any:
        if meanwhile is not None:
            meanwhile()
        if not op.lane_prefix:
            return op.decode(self._client.execute_command(*op.wire()))
        self._calls += 1
        self.op = op
        first = self.again()
        self.reply = self.again()
        return op.decode(first if op.name == "lease" and not (first[2] or first[3]) else self.reply)

    def again(self) -> Any:
        """Let a copy of the last call arrive."""
        assert self.op is not None
        return self._client.execute_command(*self.op.wire(lane="stammering", call=str(self._calls)))


class Machine(RuleBasedStateMachine):
    """The steps of the machine. A lease is a pair of the library's and the model's."""

    leases: Bundle[Pair] = Bundle("leases")
    ids: Bundle[str] = Bundle("ids")
    PARTS: ClassVar[set[str]] = PARTS
    CONDITIONS: ClassVar[dict[str, Any]] = {
        "replace": headrace.Replace(),
        "throttle": headrace.Throttle(LONG),
    }

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.redis = redis.Redis(unix_socket_path=server.path)
        self.redis.flushall()
        self.connects = {colour: Connect(colour, server) for colour in ("sync", "async")}
        self.queues: dict[str, Any] = {}
        self.stammering = Stammering(self.redis)
        self.serial = 0
        self.foreign_known = server.binary.name != "redis-6.2"

    @initialize(
        target=leases,
        max_attempts=st.sampled_from([None, 1, 2, 3]),
        dead_limit=st.sampled_from([1000, 2, 1, 0]),
        fenced=flags,
        priorities=st.sampled_from([1, 3, 3]),
    )
    def open(self, max_attempts: int | None, dead_limit: int, fenced: bool, priorities: int) -> Any:
        """Open three clients of one queue. Each has leased two jobs, and others wait."""
        options: dict[str, Any] = {
            "max_attempts": max_attempts,
            "dead_limit": dead_limit,
            "fenced": fenced,
        }
        options["priorities"] = self.priorities = priorities
        for name, colour in COLOURS.items():
            queue = self.queues[name] = self.connects[colour]("q", **options)
            queue._leaser.name, queue._leaser.tidy_at = name, float("inf")
        self.queues["cy"]._executor.run = self.stammering.run
        self.queues["cy"]._executor.run_whole = lambda effect, _within: self.stammering.run(
            effect.op
        )
        self.bounded_queue = self.connects["async"]("q", max_waiting=MOST, full="raise", **options)
        # where some follow-ups go
        self.next_queue = self.connects["sync"]("q/next", priorities=priorities)
        self.fenced = fenced
        self.model = Model(max_attempts, dead_limit, self.time(), self.foreign_known)
        self.next = Model(now=self.model.now, counts_foreign=self.foreign_known)
        made = [
            self.new((payload, name, None, delay, level))
            for level, (payload, named) in enumerate(
                ((b"a", "one"), (b"b", "two"), (b"c", "three"))
            )
            for name, delay in ((named, None), (None, None), (None, None), (None, ("in", 1)))
        ]
        receipts = self.queues["ann"].enqueue_many([new for new, _ in made])
        for (_, job), receipt in zip(made, receipts, strict=True):
            self.add(job, receipt)
        pairs = [
            self.pair(queue.lease_many(2), self.model.lease(name, 2))
            for name, queue in self.queues.items()
        ]
        return multiple(*(pair for some in pairs for pair in some))

    def teardown(self) -> None:
        for connect in self.connects.values():
            connect.close()
        self.redis.close()

    # -- help --------------------------------------------------------------------------------------

    def time(self) -> float:
        seconds, micros = self.redis.time()
        return seconds + micros / 1e6

    def key(self, part: str) -> str:
        return f"headrace:{{q}}:q:{part}"

    def moment(self, delay: tuple[str, int] | None) -> tuple[Any, float]:
        """Return a delay for the library, and the due time for the model. No two jobs are due at
        one time."""
        if delay is None:
            return None, 0.0
        kind, slot = delay
        self.serial += 1
        after = slot * 10_000.0 + self.serial
        if kind == "in":
            return after, self.model.now + after
        due = self.model.now + (5_000 + after if kind == "at" else -after)
        return datetime.fromtimestamp(due, UTC), due

    def new(self, given: tuple[Any, ...], queue: str | None = None) -> tuple[NewJob, Job]:
        payload, name, head, delay, level = given
        after, due = self.moment(delay)
        level = level % self.priorities
        new = NewJob(payload, name, head, after, level, queue)
        return new, Job(
            payload, name, {**(head or {}), **({PRIORITY: str(level)} if level else {})}, due=due
        )

    def add(self, job: Job, receipt: headrace.Receipt) -> str:
        """Enqueue into the model. The server has just answered *receipt*."""
        assert receipt.added == self.model.enqueue(job), receipt
        assert receipt.id == (job.id or receipt.id)
        job.id = receipt.id
        return receipt.id

    def pair(self, found: Sequence[Any], expected: Sequence[Held]) -> list[Pair]:
        """Check that the right jobs were leased in the right order, and pair the leases."""
        assert [lease.job.payload for lease in found] == [held.job.payload for held in expected]
        for lease, held in zip(found, expected, strict=True):
            same(lease.job, held.job)
            assert (lease.token, lease.worker) == (held.token, held.worker)
        return list(zip(found, expected, strict=True))

    def prove(self, worker: str, *, senior: bool) -> None:
        """Let the queue look watched for long or for a moment, before *worker* looks."""
        if worker in self.model.alive:
            # never ahead of the server
            now, run = int(self.time() * 1000), self.redis.info("server")["run_id"]
            pulse = f"{now - (20_000 if senior else 0)} {now} 0 0 10000 {run}"
            self.redis.hset(self.key("stats"), "pulse", pulse)
        self.redis.hdel(self.key("stats"), "sweep")  # the last one was long ago

    def pass_time(self, duration: float | None, leased: Sequence[Held]) -> None:
        """Let leases of a millisecond run out before the next step."""
        if duration == INSTANT:
            start = self.time()
            while self.time() < start + 2 * INSTANT:
                pass
            for held in leased:
                held.job.expired = True

    # -- producing ---------------------------------------------------------------------------------

    @rule(target=ids, client=clients, given=news)
    def enqueue(self, client: str, given: tuple[Any, ...]) -> str:
        new, job = self.new(given)
        options = {
            "id": new.id,
            "headers": new.headers,
            "delay": new.delay,
            "priority": new.priority,
        }
        return self.add(job, self.queues[client].enqueue(new.payload, **options))

    @rule(
        target=ids, client=clients, many=st.lists(news, max_size=4) | st.lists(payloads, max_size=4)
    )
    def enqueue_many(self, client: str, many: list[Any]) -> Any:
        made = [
            (given, Job(given)) if isinstance(given, bytes) else self.new(given) for given in many
        ]
        receipts = self.queues[client].enqueue_many([new for new, _ in made])
        return multiple(*(self.add(job, r) for (_, job), r in zip(made, receipts, strict=True)))

    @rule(target=ids, client=clients, name=ids, payload=payloads)
    def enqueue_again(self, client: str, name: str, payload: bytes) -> str:
        """Use an id that a job already had, given or generated."""
        return self.add(Job(payload, name), self.queues[client].enqueue(payload, id=name))

    @rule(
        target=ids, client=clients, given=news, name=names,
        how=st.sampled_from(["replace", "replace", "throttle", "unique_for", "max_waiting"]),
    )  # fmt: skip
    def enqueue_if(self, client: str, given: tuple[Any, ...], name: str, how: str) -> str:
        """Enqueue under a condition. The model predicts the outcome."""
        new, job = self.new((given[0], name, *given[2:]))
        options: dict[str, Any] = {
            "headers": new.headers,
            "delay": new.delay,
            "priority": new.priority,
        }
        queue = self.bounded_queue if how == "max_waiting" else self.queues[client]
        if how in self.CONDITIONS:
            options["if_exists"] = self.CONDITIONS[how]
        if how == "unique_for":
            options[how] = LONG
            job.headers = {**job.headers, UNIQUE: str(int(LONG * 1000))}
        try:
            outcome = queue.enqueue(new.payload, id=name, **options).outcome
        except headrace.QueueFull:
            outcome = "refused"
        assert outcome == self.model.enqueue_if(job, how, MOST)
        return name

    @rule(target=ids, payload=st.none() | payloads, head=headers, level=levels)
    def foreign(self, payload: bytes | None, head: dict[str, str] | None, level: int) -> str:
        """Send the bare XADD of a program that knows only the key."""
        fields: Any = {**({} if payload is None else {"data": payload}), **(head or {"lang": "de"})}
        level = level % self.priorities
        entry = self.redis.xadd(self.key(f"jobs:{level}" if level else "jobs"), fields).decode()
        name = f"{entry}.{level}" if level else entry
        added = {PRIORITY: str(level)} if level else {}
        self.model.appear(Job(payload, name, {**(head or {"lang": "de"}), **added}))
        return name

    # -- leasing -----------------------------------------------------------------------------------

    @rule(
        target=leases, client=clients, n=st.integers(1, 4), duration=durations,
        once=st.sampled_from([False, False, False, True]), block=st.sampled_from([0.0, 0.001]),
        tidy=flags, senior=flags,
    )  # fmt: skip
    def lease(
        self,
        client: str,
        n: int,
        duration: float | None,
        once: bool,
        block: float,
        tidy: bool,
        senior: bool,
    ) -> Any:
        queue = self.queues[client]
        queue._leaser.tidy_at = float("-inf" if tidy else "inf")
        if tidy:
            self.prove(client, senior=senior)
            self.model.reclaim(client, senior=senior)
        found = queue.lease_many(n, block, duration=duration, at_most_once=once)
        expected = self.model.lease(client, n, at_most_once=once)
        for held in expected:
            held.job.own_term = duration is not None
        self.pass_time(duration, expected)
        return multiple(*self.pair(found, expected))

    @rule(times=st.integers(1, 3))
    def ring(self, times: int) -> None:
        """Answer a blocked read whose reader is gone. The queue does not change."""
        for _ in range(times):
            self.redis.execute_command(*self.queues["ann"].ops.wait(0.001))

    @precondition(lambda self: self.stammering.op is not None)
    @rule()
    def late_copy(self) -> None:
        """Let a copy of the last call arrive late. The answer is the same. A copy of a lease call
        returns the jobs that are still held.
        """
        op, reply = self.stammering.op, self.stammering.reply
        assert op is not None
        # it holds a suspect: nothing was done, nothing is recorded
        if op.name == "lease" and reply[0] == 2:
            return
        again = self.stammering.again()
        if op.name != "lease":
            assert again == reply
            return
        had = [(claim.job.id, claim.token) for claim in op.decode(reply).claims]
        held = {
            (job.id, job.deliveries) for job in self.model.in_state("leased") if job.holder == "cy"
        }
        assert [(claim.job.id, claim.token) for claim in op.decode(again).claims] == [
            x for x in had if x in held
        ]

    # -- settling ----------------------------------------------------------------------------------

    @rule(
        target=leases, client=clients, pair=consumes(leases), again=flags, fenced=fences,
        result=st.sampled_from([None, b"r", b"s"]),
        then=st.lists(st.tuples(news, st.sampled_from([None, "q/next"])), max_size=2), repeat=st.none() | payloads,
    )  # fmt: skip
    def complete(
        self, client: str, pair: Pair, again: bool, fenced: bool | None, result: bytes | None, then: list[Any],
        repeat: bytes | None,
    ) -> Any:  # fmt: skip
        """Complete a job with follow-ups. Another job of its id may come afterwards."""
        lease, held = pair
        made = [self.new(given, queue) for given, queue in then]
        won = self.queues[client].complete(bare(lease), result, [new for new, _ in made], fenced)
        assert won == self.model.complete(
            held, result, fenced=self.fenced if fenced is None else fenced
        )
        for new, job in made if won else ():
            (self.next if new.queue else self.model).enqueue(job)
        assert kept_result(self.queues[client], str(held.job.id)) == self.model.result(
            str(held.job.id)
        )
        if repeat is not None and UNIQUE in held.job.headers:
            self.enqueue_if(client, (repeat, None, None, None, 0), str(held.job.id), "unique_for")
        elif repeat is not None:
            self.enqueue_again(client, str(held.job.id), repeat)
        return kept(pair, won and again)

    @rule(client=clients, pair=leases, more=st.lists(leases, max_size=3), fenced=fences)
    def complete_many(self, client: str, pair: Pair, more: list[Pair], fenced: bool | None) -> None:
        pairs = [pair, *more]
        verdicts = self.queues[client].complete_many(
            [bare(lease) for lease, _ in pairs], fenced=fenced
        )
        fence = self.fenced if fenced is None else fenced
        assert verdicts == [self.model.complete(held, fenced=fence) for _, held in pairs]

    @rule(
        target=leases, pair=consumes(leases), again=flags, delay=delays, duration=durations,
        how=st.sampled_from(["release", "retry", "dead_letter", "renew"]),
    )  # fmt: skip
    def settle(
        self,
        pair: Pair,
        again: bool,
        delay: tuple[str, int] | None,
        duration: float | None,
        how: str,
    ) -> Any:
        lease, held = pair
        given, modelled = {
            "release": ((), ()),
            "retry": tuple(zip(self.moment(delay), ("later", "later"), strict=True)),
            "dead_letter": (("never",), ("never",)),
            "renew": ((duration,), ()),
        }[how]
        done = getattr(lease, how)(*given)
        assert done == getattr(self.model, how)(held, *modelled)
        if how == "renew" and done:
            held.job.own_term = (duration or lease.claim.duration) is not None
            self.pass_time(duration or lease.claim.duration, [held])
        return kept(pair, done and (again or how == "renew"))

    @rule(
        client=clients, pair=leases, more=st.lists(leases, max_size=3), fenced=fences,
        how=st.sampled_from(["complete", "release", "retry", "dead_letter", "renew"]),
    )  # fmt: skip
    def settle_many(
        self, client: str, pair: Pair, more: list[Pair], fenced: bool | None, how: str
    ) -> None:
        """Settle leases of one worker in one script without a spent attempt, as a worker does."""
        queue, model = self.queues[client], self.model
        if how == "complete":
            verdicts = queue.complete_many(
                [bare(lease) for lease, _ in (pair, *more)], fenced=fenced
            )
            fence = self.fenced if fenced is None else fenced
            assert verdicts == [model.complete(held, fenced=fence) for _, held in (pair, *more)]
            return
        pairs = [pair, *(other for other in more if other[1].worker == pair[1].worker)]
        claims = [lease.claim for lease, _ in pairs]
        does: dict[str, tuple[Op[list[bool]], Callable[[Held], bool]]] = {
            "release": (queue.ops.release(claims), model.release),
            "retry": (
                queue.ops.retry([(c, None, False, "") for c in claims]),
                partial(model.retry, spend=False),
            ),
            "dead_letter": (
                queue.ops.dead_letter([(c, "") for c in claims]),
                partial(model.dead_letter, reason=""),
            ),
            "renew": (queue.ops.renew(claims, ttl=70.0), model.renew),
        }
        op, modelled = does[how]
        verdicts = queue._run(op)
        assert verdicts == [modelled(held) for _, held in pairs]
        for held in [
            held for (_, held), done in zip(pairs, verdicts, strict=True) if done and how == "renew"
        ]:
            held.job.own_term = False

    # -- what comes with time ----------------------------------------------------------------------

    @precondition(lambda self: self.model.in_state("leased"))
    @rule(pick=picks)
    def expire(self, pick: int) -> None:
        """End a lease, by its deadline or by the age of its worker's leases."""
        held = self.model.in_state("leased")
        job = held[pick % len(held)]
        entry = self.entry(job)
        if self.redis.zscore(self.key("leases"), entry) is not None:
            self.redis.zadd(self.key("leases"), {entry: 1})
        else:
            assert self.redis.xclaim(
                self.key("jobs"), "workers", job.holder, 0, [entry], idle=10 * TERM, justid=True
            )
        job.expired = True

    def entry(self, job: Job) -> str:
        states = self.queues["ann"].admin.running()
        return next(state.entry for state in states if state.job.id == job.id)

    @precondition(lambda self: self.model.delayed())
    @rule(some=st.lists(st.tuples(picks, st.integers(1, 3)), min_size=1, max_size=3))
    def come_due(self, some: list[tuple[int, int]]) -> None:
        """Let delays end, in the order of their moments."""
        for pick, slot in some:
            delayed = self.model.delayed()
            job = delayed[pick % len(delayed)]
            self.serial += 1
            job.due = slot * 10_000.0 + self.serial
            assert self.redis.zadd(
                self.key("delayed"), {str(job.id): job.due * 1000}, xx=True, ch=True
            )

    @precondition(lambda self: any(self.model.alive.values()))
    @rule(pick=picks)
    def fall_silent(self, pick: int) -> None:
        """Let a worker miss its heartbeats for too long."""
        living = [name for name, alive in self.model.alive.items() if alive]
        worker = living[pick % len(living)]
        self.redis.zadd(self.key("workers"), {worker: int(self.time() * 1000) - 5_000}, xx=True)
        self.model.alive[worker] = False

    @rule(client=clients, senior=flags)
    def reclaim(self, client: str, senior: bool) -> None:
        queue = self.queues[client]
        self.prove(client, senior=senior)
        found = queue._run(queue.ops.reclaim(client, 10.0))
        expected = self.model.reclaim(client, senior=senior)
        assert (found.moved, found.declared, found.promoted) == expected, (found, expected)
        assert not found.more

    @rule(target=leases, client=clients, heir=clients, n=st.integers(1, 3))
    def die(self, client: str, heir: str, n: int) -> Any:
        """Let a worker lease jobs and die, and another reclaim them. This is the usual way to a
        suspect."""
        self.live(client, "register")
        leased = self.lease(client, n, None, False, 0.0, False, False)
        self.redis.zadd(self.key("workers"), {client: int(self.time() * 1000) - 5_000}, xx=True)
        self.model.alive[client] = False
        self.live(heir, "register")
        self.reclaim(heir, senior=True)
        return leased

    @rule(target=ids, client=clients, payload=payloads)
    def crowd(self, client: str, payload: bytes) -> Any:
        """Fill the queue to its bound and enqueue one more job."""
        room = MOST - len(self.model.in_state("waiting", "parked", "delayed"))
        added = self.enqueue_many(client, [payload] * room)
        self.enqueue_if(client, (payload, None, None, None, 0), "four", "max_waiting")
        return added

    @rule(client=clients, how=st.sampled_from(["beat", "register", "lease", "leave"]))
    def live(self, client: str, how: str) -> None:
        """Let workers register, send heartbeats and leave. A dead or unregistered one is told
        so."""
        queue, model = self.queues[client], self.model
        if how == "leave":
            assert queue._run(queue.ops.leave(client))[0] == model.leave(client)
        elif how == "lease":
            if client not in model.alive:
                assert queue._run(queue.ops.lease(client, 1)) is None
                self.stammering.op = None  # nothing was done, nothing is recorded
        else:
            register = how == "register"
            beat = queue.ops.beat(client, 70.0, register=register, kinds=[""] if register else ())
            assert queue._run(beat) == model.beat(client, register=register)

    # -- the whole queue ---------------------------------------------------------------------------

    @rule(client=clients, name=ids, payload=st.none() | payloads)
    def cancel(self, client: str, name: str, payload: bytes | None) -> None:
        queue, model = self.queues[client], self.model
        if payload is None:
            assert queue.cancel(name) == model.cancel(name)
        else:
            assert queue.admin.cancel_payload(payload) == model.cancel_payload(payload)

    @precondition(lambda self: self.model.in_state("dead"))
    @rule(
        client=clients,
        pick=st.none() | picks,
        what=st.sampled_from(["redrive", "redrive", "purge_dead"]),
    )
    def letters(self, client: str, pick: int | None, what: str) -> None:
        """Redrive or purge all dead letters, or the letters of one id."""
        dead = self.model.in_state("dead")
        wanted = [] if pick is None else [str(dead[pick % len(dead)].id)]
        assert getattr(self.queues[client].admin, what)(*wanted) == getattr(self.model, what)(
            wanted
        )

    @precondition(lambda self: self.model.in_state("dead"))
    @rule(client=clients, pick=picks, payload=payloads)
    def mend(self, client: str, pick: int, payload: bytes) -> None:
        """Redrive a dead letter with another payload."""
        dead = self.model.in_state("dead")
        wanted = [str(dead[pick % len(dead)].id)]
        mended = self.queues[client].admin.redrive(*wanted, payload=payload)
        assert mended == self.model.redrive(wanted, payload)

    @precondition(lambda self: len(self.model.jobs) > 10)
    @rule(client=clients, how=st.sampled_from(["purge", "delete", "drain"]))
    def clear(self, client: str, how: str) -> None:
        queue = self.queues[client]
        if how != "drain":
            assert getattr(queue.admin, how)() == getattr(self.model, how)()
            return
        for job in self.model.in_state("leased"):  # one by one, and nothing is left behind
            assert queue.cancel(str(job.id)) == self.model.cancel(str(job.id))
        assert (queue.admin.purge(), queue.admin.purge_dead()) == (
            self.model.purge(),
            self.model.purge_dead(),
        )
        parts = {
            key.decode().removeprefix(self.key(""))
            for key in self.redis.scan_iter(self.key("*"), count=1000)
        }
        left = {part for part in parts if not part.startswith(("lane:", "result:"))} - self.PARTS
        assert not left, left

    # -- looking -----------------------------------------------------------------------------------

    @rule(
        client=clients,
        name=ids,
        state=st.sampled_from(LISTINGS),
        limit=st.none() | st.integers(1, 3),
    )
    def look(self, client: str, name: str, state: str, limit: int | None) -> None:
        """Find one job by its id, peek at the next one, and read a listing in pages of *limit*."""
        queue = self.queues[client]
        one, job = queue.find(name), self.model.find(name)
        assert (one is None) == (job is None)
        if one is not None and job is not None:
            agree(one, job)
        assert kept_result(queue, name) == self.model.result(name)
        first, waiting = queue.admin.peek(), self.model.waiting()
        assert (first is None) == (not waiting)
        if first is not None:
            same(first, waiting[0])
        found, cursor = [] if limit else list(getattr(queue.admin, state)()), ""
        while limit:
            page = queue._run(queue.ops.listing(state, cursor, limit))
            found += page
            cursor = page.cursor
            if not cursor:
                break
        agree_all(found, self.model.listing(state))
        agree_all([*getattr(self.next_queue.admin, state)()], self.next.listing(state))

    @invariant()
    def agrees(self) -> None:
        """Check in one round trip that counts, listings and workers are the model's."""
        ops, model = self.queues["ann"].ops, self.model
        places = ["parked:0 -", "suspects:0 -", "idle:0 -", "new:0 -"]  # a page each
        places += [
            f"{part}:{level} -" for level in range(1, self.priorities) for part in ("parked", "new")
        ]
        waiting = [view_ops.listing(ops, "waiting", place) for place in places]
        others = [view_ops.listing(ops, state, "") for state in LISTINGS[1:]]
        asked = [
            view_ops.counts(ops),
            self.next_queue.ops.counts(),
            view_ops.workers(ops),
            *waiting,
            *others,
        ]
        counts, next_counts, workers, *pages = self.queues["ann"]._executor.run_all(asked)
        pages = [[job for page in pages[: len(places)] for job in page], *pages[len(places) :]]
        assert (asdict(counts), asdict(next_counts)) == (model.counts(), self.next.counts())
        assert counts.lost == 0 or not self.foreign_known
        for state, found in zip(LISTINGS, pages, strict=True):
            agree_all([*found], model.listing(state))
        holders = [job.holder for job in model.in_state("leased")]
        seen = {worker.name: (worker.alive, worker.leased) for worker in workers}
        assert seen == {name: (alive, holders.count(name)) for name, alive in model.alive.items()}

    @invariant()
    def bounded(self) -> None:
        """Check that all records beside the jobs belong to jobs that exist."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hkeys(self.key("ids")).hkeys(self.key("released"))
            pipe.zrange(self.key("leases"), 0, -1).hkeys(self.key("bodies"))
            ids, released, terms, bodies = pipe.execute()
        living = [job for job in self.model.jobs if job.state != "dead"]
        assert {name.decode() for name in ids} <= {job.id for job in living}
        assert len(released) == sum(job.unspent > 0 for job in living)
        assert len(terms) <= len(self.model.in_state("leased"))
        assert len(bodies) == len(self.model.in_state("delayed"))

    # A rule of several names is chosen more often; without, most steps would have nothing to
    # settle.
    lease_, lease__, settle_, settle__, settle_many_ = lease, lease, settle, settle, settle_many
    enqueue_if_ = enqueue_if


def kept(pair: Pair, again: bool) -> Any:
    """Return a lease that is used again although it may be stale, or forget it."""
    return pair if again else multiple()


def same(seen: headrace.Job, job: Job) -> None:
    """Compare a job of the library with the model's, which learns the values that the server
    chose."""
    job.id = job.id or seen.id
    job.enqueued_at = job.enqueued_at or seen.enqueued_at
    expected = (job.id, job.payload or b"", dict(job.headers), job.attempt, job.enqueued_at)
    assert (seen.id, seen.payload, dict(seen.headers), seen.attempt, seen.enqueued_at) == expected


def kept_result(queue: Any, name: str) -> bytes | None:
    """Return the result that is kept of a job."""
    return queue.results([name]).get(name)


def agree(seen: JobState, job: Job) -> None:
    """Compare a job and its state."""
    same(seen.job, job)
    assert seen.state == job.state
    if job.state in {"leased", "dead"}:
        assert (seen.worker, seen.since is not None) == (job.holder, True)
    undecoded = job.payload is None and job.state != "dead"
    assert (seen.reason or "") == (NO_PAYLOAD if undecoded else job.reason)
    if job.state == "delayed":
        assert seen.due is not None
        assert -0.01 < seen.due - job.due < 4_000


def agree_all(seen: Sequence[JobState], jobs: Sequence[Job]) -> None:
    assert [state.job.payload for state in seen] == [job.payload or b"" for job in jobs]
    for state, job in zip(seen, jobs, strict=True):
        agree(state, job)
