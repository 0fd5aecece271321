"""Jobs that go to other shards, while their sender dies at any step, repeats it, or comes late.

Sweepers are generators, and each step of one is taken by a rule: so a step of another, a consumer
that is quick, and any time may come between two of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis
from attrs import define, evolve
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace import NewJob
from headrace._core.effects import Now, Send
from headrace._core.shards.map import ShardMap
from headrace._core.shards.transfer import Targets, hand_over
from headrace._model.settings import QueueSettings
from headrace._protocol import view_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps
from headrace._protocol.transfer_ops import jobs_in_outbox
from tests.support.servers import Server

SHARDS = 3
KEYS = [f"k{n}" for n in range(12)]
QUEUES = ("g/a", "g/b")
MINUTE_MS = 60_000
WHICH = st.integers(0, 3)


@define(eq=False)
class Sweeper:
    """A client that hands over jobs. Its knowledge is its own or shared with the next."""

    known: ShardMap
    outboxes: list[ShardOps]
    targets: Targets
    call: Any = None
    effect: Any = None
    clock: float = 0.0

    def begin(self) -> None:
        """Go on to the next call that is sent."""
        if self.call is None:
            self.call = hand_over(self.known, self.outboxes, self.targets, pages=3)
            self.effect = next(self.call)
            self.settle()

    def settle(self) -> None:
        """Answer effects that ask for the time."""
        while isinstance(self.effect, Now):
            self.clock += 100.0
            self.answer(self.clock)

    def answer(self, reply: Any) -> None:
        try:
            self.effect = self.call.send(reply)
        except StopIteration:
            self.call = self.effect = None
        else:
            self.settle()

    def fail(self) -> None:
        """Let the sent call fail as far as the client knows."""
        try:
            self.effect = self.call.throw(redis.ConnectionError("cut"))
        except StopIteration:
            self.call = self.effect = None
        else:
            self.settle()

    def die(self) -> None:
        if self.call is not None:
            self.call.close()
        self.call = self.effect = None
        self.targets = Targets()


class Machine(RuleBasedStateMachine):
    """Follow-ups for any shard, with sweepers and consumers. Each job runs once."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.client: Any = redis.Redis(unix_socket_path=server.path)
        self.client.flushall()
        settings = QueueSettings(shards=SHARDS)
        self.known = known = ShardMap(Ops(Keys.of(QUEUES[0]), settings))
        self.parts = [part.of(queue) for queue in QUEUES for part in known.ordered()]
        shared = Targets()
        self.sweepers = [
            Sweeper(known, self.parts, shared), Sweeper(known, self.parts, shared),
            Sweeper(known, self.parts, Targets()), Sweeper(known, self.parts[:SHARDS], Targets()),
        ]  # fmt: skip
        self.late: list[Op[Any]] = []
        self.expected: set[bytes] = set()
        self.done: Counter[bytes] = Counter()
        self.number = 0

    def teardown(self) -> None:
        try:
            self.calm()
        finally:
            self.client.close()

    def run_op(self, op: Op[Any]) -> Any:
        """Run a script, as a caller that never repeats it."""
        reply = self.client.execute_command(*op.wire("EVAL", "machine", ""))
        if isinstance(reply, Exception):
            raise reply
        return op.decode(reply)

    def fresh(self) -> bytes:
        """Draw a payload that no other job has."""
        self.number += 1
        payload = b"%d" % self.number
        self.expected.add(payload)
        return payload

    @initialize()
    def some(self) -> None:
        for part in self.parts:
            self.run_op(part.enqueue([self.fresh(), self.fresh()]))

    @rule(
        where=st.integers(0, 5),
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        late=st.booleans(),
        twice=st.booleans(),
    )
    def finish(self, where: int, keys: list[str], late: bool, twice: bool) -> None:
        """Complete a job that has follow-ups for any shard. With *twice* another holder completes
        it too late."""
        part = self.parts[where % len(self.parts)]
        grant = self.run_op(part.lease("w", 1, ttl=3600.0))
        if not grant.claims:
            return
        for again in (False, True)[: 1 + twice]:
            then = [
                NewJob(
                    b"never" if again else self.fresh(),
                    key=key,
                    queue=QUEUES[n % 2],
                    delay=0.001 if late else None,
                )
                for n, key in enumerate(keys)
            ]
            (won,) = self.run_op(part.complete(grant.claims, then=then))
            assert won is not again
        self.done[grant.claims[0].job.payload] += 1

    @rule(where=st.integers(0, 5))
    def consume(self, where: int) -> None:
        """Do all available jobs."""
        part = self.parts[where % len(self.parts)]
        self.run_op(part.reclaim("w", 3600.0))
        grant = self.run_op(part.lease("w", 100, ttl=3600.0))
        if grant.claims:
            assert all(self.run_op(part.complete(grant.claims)))
            self.done.update(claim.job.payload for claim in grant.claims)

    @rule(which=WHICH, steps=st.integers(1, 12))
    def sweep(self, which: int, steps: int) -> None:
        """Take some steps."""
        self.step(self.sweepers[which], steps)

    def step(self, one: Sweeper, steps: int) -> None:
        """Take so many steps of a sweeper."""
        for _ in range(steps):
            one.begin()
            if one.call is not None:
                assert isinstance(one.effect, Send)
                one.answer([self.run_op(op) for op in one.effect.ops])

    @rule(which=WHICH, steps=st.integers(0, 8), ran=st.booleans())
    def die(self, which: int, steps: int, ran: bool) -> None:
        """Die before a step, or after it."""
        one = self.sweepers[which]
        self.step(one, steps)
        one.begin()
        if ran and one.call is not None:
            for op in one.effect.ops:
                self.run_op(op)
        one.die()

    @rule(which=WHICH, steps=st.integers(0, 8), ran=st.booleans(), arrives=st.booleans())
    def cut(self, which: int, steps: int, ran: bool, arrives: bool) -> None:
        """Lose a reply or a call, which may arrive later."""
        one = self.sweepers[which]
        self.step(one, steps)
        one.begin()
        if one.call is None:
            return
        for op in one.effect.ops:
            if ran:
                self.run_op(op)
            if arrives:
                self.late.append(op)
        one.fail()

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 50))
    def arrive(self, at: int) -> None:
        """Run a call that arrives late."""
        self.run_op(self.late.pop(at % len(self.late)))

    @rule(minutes=st.sampled_from([1, 4, 6, 9, 11]))
    def pass_time(self, minutes: int) -> None:
        """Let time pass on the servers, by making all recorded times older."""
        ms = minutes * MINUTE_MS
        for part in self.parts:
            key = part.keys.key("handed")
            for nonce, score in self.client.zrange(key, 0, -1, withscores=True):
                self.client.zadd(key, {nonce: score - ms})
        for targets in {id(one.targets): one.targets for one in self.sweepers}.values():
            for target in targets.since:
                targets.since[target] -= ms
        for one in self.sweepers:
            if one.call is None:
                continue
            running = one.call.gi_frame.f_locals["self"]
            for target in running.since if running.since is not one.targets.since else ():
                running.since[target] -= ms
            one.effect = Send([_older(op, ms) for op in one.effect.ops], one.effect.within)
        self.late = [_older(op, ms) for op in self.late]

    @invariant()
    def nothing_is_doubled(self) -> None:
        assert not [payload for payload, times in self.done.items() if times > 1]
        assert set(self.done) <= self.expected

    def calm(self) -> None:
        """Let all clients go on to the end. No job is lost, and no record is kept."""
        for op in self.late:
            self.run_op(op)
        for one in self.sweepers:
            one.die()
        last = Sweeper(self.known, self.parts, Targets())
        for _ in range(3):
            last.begin()
            while last.call is not None:
                last.answer([self.run_op(op) for op in last.effect.ops])
        while any(self.run_op(view_ops.counts(part)).present for part in self.parts):
            for where in range(len(self.parts)):
                self.consume(where)
        assert self.done == dict.fromkeys(self.expected, 1)
        for part in self.parts:
            assert self.run_op(view_ops.counts(part)).lost == 0
            assert self.run_op(jobs_in_outbox(part)) == 0
            assert not self.client.exists(
                *(part.keys.key(name) for name in ("outbox", "outdue", "closing"))
            )
            latest = self.client.zrange(part.keys.key("handed"), -1, -1, withscores=True)
            seconds, _ = self.client.time()
            assert not latest or latest[0][1] < (seconds + 700) * 1000, (
                "what has come is kept for ten minutes"
            )


def _older(op: Op[Any], ms: int) -> Op[Any]:
    if op.name != "accept" or not op.args[0]:
        return op
    return evolve(op, args=[max(0, int(op.args[0]) - ms), *op.args[1:]])
