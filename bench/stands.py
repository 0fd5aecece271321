"""Queues that are filled as deep as allowed, and the helpers for the cases of `scripts.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, field, frozen

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace._model.job import Claim, make_job
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

R = TypeVar("R")
DAY = 86400.0
WORKER = "bench.w"
LEVELS = 10
# Jobs as the scripts leave them, without what it costs a client to send each.
FILL = """
local jobs, ids, dead, delayed, bodies, stats = unpack(KEYS)
local state, payload, from, to = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
for n = from, to - 1 do
  local name, fields = state .. '-' .. n, {'data', payload}
  if n % 10 == 0 or state == 'delayed' then fields[3], fields[4] = 'id', name end
  for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
  if state == 'dead' then
    fields[3], fields[4] = 'id', name
    redis.call('XADD', dead, '*', 'reason', 'no good', 'worker', 'w', 'released', '0', unpack(fields))
  elseif state == 'delayed' then
    redis.call('HSET', bodies, name, cmsgpack.pack(fields))
    redis.call('ZADD', delayed, 9007199254740000 + n, name)
    redis.call('HSET', ids, name, 'delayed')
  else
    local entry = redis.call('XADD', jobs, '*', unpack(fields))
    if fields[3] == 'id' then redis.call('HSET', ids, name, entry) end
  end
end
redis.call('HINCRBY', stats, 'enqueued', to - from)
if state ~= 'dead' and state ~= 'delayed' then redis.call('HINCRBY', stats, 'added', to - from) end
if #payload > 4096 then redis.call('HSET', stats, 'largest', #payload) end
if ARGV[5] ~= '' then
  redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[5], 'COUNT', to - from, 'STREAMS', jobs, '>')
end
"""


@frozen
class Fill:
    """The number of jobs in each state."""

    size: int
    """Bytes of a payload."""
    each: int
    """Jobs dead, delayed, leased and parked."""
    waiting: int
    levels: int = 1


FILLS = {
    "deep": Fill(100, 100_000, 1_000_000),
    "levels": Fill(100, 10_000, 10_000, LEVELS),
    "10KB": Fill(10_000, 1_000, 1_000),
    "100KB": Fill(100_000, 1_000, 1_000),
    "1MB": Fill(1_000_000, 250, 250),
}


def queue(name: str, **settings: Any) -> Ops:
    """Return the operations of a queue of the bench."""
    return Ops(
        Keys.of(f"bench/{name}"), QueueSettings(**{"dead_limit": 10**9, "lease": DAY} | settings)
    )


@define
class Stand:
    """Filled queues, with helpers for the cases."""

    client: Any
    fill: Fill
    ops: Ops = field(init=False)
    numbers: dict[str, int] = field(factory=dict[str, int])

    def __attrs_post_init__(self) -> None:
        self.ops = queue("q", priorities=self.fill.levels)

    # -- filling -----------------------------------------------------------------------------------

    def run(self, op: Op[R]) -> R:
        """Send an operation."""
        return op.decode(self.client.execute_command(*op.wire()))

    def payload(self) -> bytes:
        """Return a payload of the fill's size."""
        return b"%0*d" % (self.fill.size, 7)

    @property
    def batch(self) -> int:
        """Return as many jobs as fit into a call."""
        return max(1, min(JOBS_PER_SCRIPT, BYTES_PER_SCRIPT // self.fill.size))

    def some(self, most: int) -> int:
        """Return so many jobs that a script has enough to do and the bench ends."""
        return min(most, 4 * self.batch)

    def put(self, ops: Ops, state: str, number: int, consumer: str = "", level: int = 0) -> None:
        """Add jobs in a state. *consumer* then holds them."""
        stream = [ops.keys.key("jobs"), *ops.keys.levels(LEVELS)][level]
        parts = [
            stream,
            *(ops.keys.key(key) for key in ("ids", "dead", "delayed", "bodies", "stats")),
        ]
        header = ["headrace-priority", str(level)] if level else []
        begin = self.numbers.get(f"{ops.keys.queue}{state}", 0)
        self.numbers[f"{ops.keys.queue}{state}"] = begin + number
        for at in range(begin, begin + number, self.batch):
            upto = min(at + self.batch, begin + number)
            self.client.eval(FILL, 6, *parts, state, self.payload(), at, upto, consumer, *header)

    def prepare(self) -> None:
        """Fill the queue."""
        self.client.flushall()
        self.group(self.ops)
        self.put(self.ops, "dead", self.fill.each)
        self.put(self.ops, "delayed", self.fill.each)
        self.run(self.ops.beat(WORKER, DAY, register=True))
        self.put(self.ops, "leased", self.fill.each, WORKER)
        self.put(self.ops, "parked", self.fill.each, "parked")
        for level in range(1, self.fill.levels):
            self.put(self.ops, "waiting", self.fill.waiting, level=level)
            self.put(self.ops, "parked", self.fill.each, f"parked:{level}")
        self.put(self.ops, "waiting", self.fill.waiting)
        if self.fill.levels > 1:
            self.client.hset(self.ops.keys.key("stats"), "levels", self.fill.levels - 1)

    def group(self, ops: Ops) -> Ops:
        """Make a queue as its first lease makes it."""
        self.run(ops.lease("nobody", 1, ttl=DAY))
        self.run(ops.leave("nobody"))
        return ops

    def name(self, state: str, at: int) -> str:
        """Return the id of one of them. A negative *at* counts from the end."""
        number = self.numbers[f"{self.ops.keys.queue}{state}"]
        return f"{state}-{(at if at >= 0 else number + at) // 10 * 10}"

    # -- for the cases -----------------------------------------------------------------------------

    def claims(self, number: int, *, named: bool = False) -> list[Claim]:
        """Return claims of some leased jobs."""
        jobs, number, claims = self.ops.keys.key("jobs"), min(number, self.batch), list[Claim]()
        for row in self.held((100 if named else 2) * number):
            entry = row["message_id"].decode()
            ((_, fields),) = self.client.xrange(jobs, entry, entry) if named else [(b"", {})]
            if named == (b"id" in fields):
                name = fields[b"id"].decode() if named else entry
                job = make_job(name, self.payload(), self.ops.keys.queue, {}, 1, 0.0)
                claims.append(
                    Claim(
                        job,
                        WORKER,
                        entry,
                        row["times_delivered"],
                        1,
                        None,
                        0.0,
                        named,
                        self.fill.size,
                    )
                )
            if len(claims) == number:
                return claims
        raise AssertionError("too few are leased")

    def held(self, number: int) -> list[Any]:
        """Return so many pending entries of the worker. Missing ones are added."""
        jobs = self.ops.keys.key("jobs")
        rows: list[Any] = self.client.xpending_range(jobs, "workers", "-", "+", number, WORKER)
        if len(rows) < number:
            self.put(self.ops, "leased", number - len(rows), WORKER)
            return self.held(number)
        return rows

    def leased(self, ops: Ops, number: int, worker: str = WORKER, **options: Any) -> Ops:
        """Lease *number* of a queue."""
        while number > 0:
            grant = self.run(ops.lease(worker, min(number, self.batch), ttl=DAY, **options))
            assert grant is not None
            assert grant.claims
            number -= len(grant.claims)
        return ops

    def fresh(self, name: str, number: int, **settings: Any) -> Ops:
        """Make another queue with *number* waiting jobs."""
        ops = queue(name, **settings)
        for key in self.client.scan_iter(match=f"headrace:{{bench}}:bench/{name}:*", count=10_000):
            self.client.unlink(key)
        self.put(self.group(ops), "waiting", number)
        return ops

    def sure(self, ops: Ops) -> None:
        """Make a record as if *ops*' queue had been watched for long."""
        seconds, micros = self.client.time()
        run: Any = self.client.info("server")
        kept = f"1000 {seconds * 1000 + micros // 1000} 0 0 600000 {run['run_id']}"
        self.client.hset(ops.keys.key("stats"), "pulse", kept)


def chunks(items: Sequence[R], size: int) -> Iterator[Sequence[R]]:
    """Yield *items*, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
