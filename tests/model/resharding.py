"""Clients that enqueue with old and new tables while others change the number of shards. Any of
them stops between any two scripts. One job of an id exists at a time, and each accepted job is done
once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import redis
from attrs import define, field
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace import NewJob
from headrace._core.effects import Now, Overlap, Scan, Send
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import reshard, tidy
from headrace._core.verbs.queue import ShardedQueue
from headrace._model.settings import QueueSettings
from headrace._model.shards import Table
from headrace._net.base.retries import first_error
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps, WholeOps, shard_ops
from tests.support.servers import Server

QUEUES = ("g/a", "g/b")
SHARDS = 2
IDS = ["one", "two"]
SETTINGS = QueueSettings(shards=SHARDS)
LONG_AGO_MS = 700_000
who = st.integers(0, 3)
steps = st.sampled_from([0, 1, 3, 6, 40, 40, 40])


@define(eq=False)
class Client:
    """A client with its own table and a call under way."""

    queue: str
    whole: ShardedQueue = field(init=False)
    call: Any = None
    effect: Any = None
    jobs: list[tuple[bytes, str | None]] = field(factory=list[tuple[bytes, str | None]])

    def __attrs_post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew as another program."""
        self.whole = ShardedQueue(ShardMap(WholeOps(Keys.of(self.queue), SETTINGS, shards=SHARDS)))
        self.call = self.effect = None
        self.jobs = []


class Machine(RuleBasedStateMachine):
    """Clients of two queues of a group, driven script by script."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.client: Any = redis.Redis(unix_socket_path=server.path)
        self.client.flushall()
        self.clients = [Client(QUEUES[number % 2]) for number in range(4)]
        self.number = 0
        self.accepted: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.done: Counter[bytes] = Counter()

    def teardown(self) -> None:
        try:
            self.calm()
        finally:
            self.client.close()

    # -- what a call sends -------------------------------------------------------------------------

    def run_op(self, op: Op[Any]) -> Any:
        try:
            reply = self.client.execute_command(*op.wire("EVAL", "machine", ""))
        except redis.ResponseError as error:
            raise first_error([error]) or error from None
        return op.decode(reply)

    def begin(self, client: Client, call: Any, jobs: list[tuple[bytes, str | None]]) -> None:
        client.call, client.jobs = call, jobs
        self.take(client, lambda: next(call))

    def take(self, client: Client, go_on: Any) -> None:
        """Go on to the next call that is sent, or to the end."""
        try:
            client.effect = go_on()
            while isinstance(client.effect, Now):
                client.effect = client.call.send(0.0)
        except StopIteration as end:
            jobs, client.call, client.effect, client.jobs = client.jobs, None, None, []
            for (payload, _), receipt in zip(jobs, end.value if jobs else (), strict=True):
                if receipt.added:
                    self.accepted.add(payload)
                    self.maybe.discard(payload)
                else:
                    self.maybe.discard(payload)

    def step(self, client: Client) -> None:
        """Run the sent call and give its answer."""
        effect = client.effect
        try:
            answer: Any
            if isinstance(effect, Send):
                answer = [self.run_op(op) for op in effect.ops]
            elif isinstance(effect, Overlap):
                answer = self.run_op(effect.op)
            else:
                assert isinstance(effect, Scan)
                cursor, keys = self.client.scan(effect.cursor, match=effect.pattern, count=1000)
                answer = cursor, [key.decode() for key in keys]
        except Exception as error:
            raised = error
            self.take(client, lambda: client.call.throw(raised))
        else:
            self.take(client, lambda: client.call.send(answer))

    # -- rules -------------------------------------------------------------------------------------

    @initialize()
    def some(self) -> None:
        for client in self.clients:
            self.begin(client, client.whole.map.look(), [])
            while client.call is not None:
                self.step(client)

    def job(self, name: str | None) -> NewJob[bytes]:
        self.number += 1
        payload = b"%d" % self.number
        self.maybe.add(payload)
        return NewJob(payload, id=name)

    def idle(self, at: int) -> Client | None:
        client = self.clients[at]
        return client if client.call is None else None

    @rule(at=who, name=st.sampled_from([*IDS, None]), times=steps)
    def enqueue(self, at: int, name: str | None, times: int) -> None:
        if (client := self.idle(at)) is None:
            return
        job = self.job(name)
        item = client.whole.map.ops.item(job)

        def add(ops: ShardOps) -> Any:
            return (yield from _send(ops.enqueue([item])))

        self.begin(client, client.whole.enqueue(job, add, asks=False), [(job.payload, name)])
        self.go_on(at, times)

    @rule(
        at=who,
        names=st.lists(st.sampled_from([*IDS, None]), min_size=1, max_size=3, unique=True),
        times=steps,
    )
    def enqueue_many(self, at: int, names: list[str | None], times: int) -> None:
        if (client := self.idle(at)) is None:
            return
        jobs = [self.job(name) for name in names]
        call = client.whole.enqueue_many(jobs, None, len, None)
        self.begin(client, call, [(job.payload, job.id) for job in jobs])
        self.go_on(at, times)

    @rule(at=who, shards=st.sampled_from([2, 3, 4]), times=steps)
    def change(self, at: int, shards: int, times: int) -> None:
        if (client := self.idle(at)) is not None and len(client.whole.map.table.shards) < 20:
            self.begin(client, reshard(client.whole.map, shards), [])
            self.go_on(at, times)

    @rule(at=who)
    def tidy(self, at: int) -> None:
        """Remove long empty shards from the table."""
        if (client := self.idle(at)) is not None:
            for _ in range(2):
                self.begin(client, tidy(client.whole.map), [])
                self.go_on(at, 100)
                self.pass_time()

    @rule(at=who, times=steps)
    def later(self, at: int, times: int) -> None:
        self.go_on(at, times)

    def go_on(self, at: int, times: int) -> None:
        """Run some scripts of a call."""
        for _ in range(times):
            if self.clients[at].call is not None:
                self.step(self.clients[at])

    @rule(at=who, after=st.booleans())
    def crash(self, at: int, after: bool) -> None:
        """End a program before or after its sent call."""
        client = self.clients[at]
        if client.call is None:
            return
        if after and isinstance(client.effect, Send):
            for op in client.effect.ops:
                try:
                    self.run_op(op)
                except Exception:
                    break
        if client.call is not None:
            client.call.close()
        client.forget()
        self.begin(client, client.whole.map.look(), [])
        while client.call is not None:
            self.step(client)

    @rule(
        at=who,
        shards=st.sampled_from([2, 3, 4]),
        times=st.integers(1, 9),
        name=st.sampled_from(IDS),
    )
    def change_half(self, at: int, shards: int, times: int, name: str) -> None:
        """Stop a change halfway. Then a program with the new table and one with the old table
        enqueue the same id."""
        self.change(at, shards, times)
        self.crash(at, after=False)
        self.enqueue(at, name, 40)
        self.enqueue((at + 2) % 4, name, 40)

    @rule(part=st.integers(0, 30), queue=st.sampled_from(QUEUES))
    def consume(self, part: int, queue: str) -> None:
        """Lease and complete all jobs of one shard."""
        parts = self.parts(queue)
        self.work_off(parts[part % len(parts)])

    @rule()
    def pass_time(self) -> None:
        for key in self.client.scan_iter("headrace:*:stats"):
            if self.client.hexists(key, "drained"):
                self.client.hincrby(key, "drained", -LONG_AGO_MS)

    @precondition(lambda self: self.number)
    @invariant()
    def of_an_id_there_is_one_job(self) -> None:
        for queue in QUEUES:
            there: Counter[bytes] = Counter()
            for key in self.client.scan_iter(f"headrace:{{g~*:{queue}:ids"):
                there.update(self.client.hkeys(key))
            assert not [name for name, times in there.items() if times > 1], there

    @invariant()
    def nothing_is_done_twice(self) -> None:
        assert not [payload for payload, times in self.done.items() if times > 1]

    # -- the end -----------------------------------------------------------------------------------

    def parts(self, queue: str) -> list[ShardOps]:
        """Return the shards of the table. Jobs anywhere else are lost."""
        ops = Ops(Keys.of(queue), SETTINGS)
        rows: Any = self.client.hgetall(ops.keys.shards)
        table = Table.parse("g", {field.decode(): row.decode() for field, row in rows.items()})
        assert table is not None, rows
        return [shard_ops(ops, table, part) for part in table.shards]

    def work_off(self, ops: ShardOps) -> None:
        while True:
            grant = self.run_op(ops.lease("w", 10, ttl=60.0))
            if grant is None or not grant.claims:
                return
            assert all(self.run_op(ops.complete(grant.claims)))
            self.done.update(claim.job.payload for claim in grant.claims)

    def calm(self) -> None:
        for client in self.clients:
            for _ in range(2_000):
                if client.call is None:
                    break
                self.step(client)
            assert client.call is None, "it has no end"
        for queue in QUEUES:
            for ops in self.parts(queue):
                self.work_off(ops)
        assert self.accepted <= set(self.done), "lost"
        assert set(self.done) <= self.accepted | self.maybe
        last = self.clients[0]
        for _ in range(2):
            self.begin(last, reshard(last.whole.map, None), [])
            while last.call is not None:
                self.step(last)
            self.pass_time()
        assert all(part.state == "open" for part in last.whole.map.table.shards)


def _send(op: Op[Any]) -> Any:
    (reply,) = yield Send((op,))
    return reply
