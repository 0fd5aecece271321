"""Random acts on runs, and a model of their laws. Handlers take steps and die between any two
scripts.

Each rule sends at most one script that writes. So any rule may come between two scripts: the death
of a worker (`die`), the loss of its lease, another holder. A delivery stays after it has lost its
lease: from then on it is a zombie, and nothing that it does may be recorded. Every other call is
sent twice, under one number.

No time passes while a rule runs but for a few ms: sleeps and timeouts take an hour, and `pass_time`
moves the due times of a suspended run, in its records and in `asleep`, into the past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
from attrs import define, evolve, field
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace import NewJob
from headrace._codecs.recorded import Recorded
from headrace._core.effects import Call, HeldJob, Send, Sleep
from headrace._core.steps.run import Callbacks, Run
from headrace._model.job import Claim
from headrace._model.settings import QueueSettings
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import ConfigurationError, InDoubt, RunLost, RunSuspended
from tests.support.servers import Server

HOUR = 3600.0
HOUR_MS = 3_600_000
IDS = ("one", "two")
WORKERS = ("ann", "bob", "cy")
NAMES = ("a", "b", "c")
SUSPENDED = {"sleep": "delayed", "wait": "blocked"}
LEFT = {
    "jobs",
    "wake",
    "stats",
    "taken",
    "workers",
    "registered",
    "dead",
    "control",
    "cancels",
}  # keys of an empty queue

# All runs: {id, number, bytes, records}...; the number of fields that belong to no run; and
# `asleep`.
LOOK = r"""
local fields, flat, runs, known = {}, redis.call('HGETALL', KEYS[1]), {}, 0
for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
for id, kept in pairs(fields) do
  if not string.find(id, '\t', 1, true) then
    local run, rows = cmsgpack.unpack(kept), {}
    for i = 1, run[1] do rows[i] = fields[id .. '\t' .. i] and cmsgpack.unpack(fields[id .. '\t' .. i]) or 'lost' end
    known = known + 1 + #rows + (fields[id .. '\tp'] and 1 or 0) + (fields[id .. '\td'] and 1 or 0)
    runs[#runs + 1] = {id, run[1], run[2], rows}
  end
end
return {runs, #flat / 2 - known, redis.call('ZRANGE', KEYS[2], 0, -1)}
"""

# An hour has passed for one suspended run.
PASS = r"""
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000) - 1
local run = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
for i = 1, run[1] do
  local name = ARGV[1] .. '\t' .. i
  local record = cmsgpack.unpack(redis.call('HGET', KEYS[1], name))
  if record[7] > now then
    record[7] = now
    redis.call('HSET', KEYS[1], name, cmsgpack.pack(record))
  end
end
local due = redis.call('ZSCORE', KEYS[2], ARGV[2])
if due and due ~= 'inf' and tonumber(due) > now then redis.call('ZADD', KEYS[2], now, ARGV[2]) end
return now
"""

# A worker of an older version completes a job: it knows of no records.
OLD = r"""
redis.call('XACK', KEYS[1], 'workers', ARGV[1])
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HINCRBY', KEYS[5], 'completed', 1)
"""


@define
class Record:
    """A record as the model expects it."""

    name: str
    kind: str
    attempt: int
    value: bytes | None = None
    ended: bool = False
    due: int = 0
    began: int = 0  # number of scripts that had run when it began
    done: int = 0  # and when the server knew of its beginning

    def over(self, leased_at: float) -> bool:
        return self.ended or 0 < self.due <= leased_at * 1000


@define(eq=False)
class Job:
    """A job, which is one life of an id."""

    key: str
    # or leased, sleep, wait, late (delayed by a retry, or enqueued so), dead, gone
    state: str = "waiting"
    spent: int = 0  # attempts
    holder: Delivery | None = None
    entry: str = ""  # when it was last leased
    due: bool = False  # if it is suspended: may it be leased?
    # its worker was declared dead since the last record: a retry may forgive that
    failed: bool = False
    forgiven: bool = False  # and did, perhaps: it has spent fewer attempts
    letter: str = ""  # the name of its run, while it is dead
    # how often the functions of steps with once=True began
    ran: Counter[str] = field(factory=Counter)

    @property
    def there(self) -> bool:
        return self.state not in ("dead", "gone")


@define(eq=False)
class Kept:
    """A run with the records of a job that the server must have."""

    job: Job
    records: list[Record] = field(factory=list)
    # its job has left otherwise than by a script that knows of records: a sweep may remove it
    stale: bool = False

    def open(self, name: str) -> Record | None:
        """Return the signal or wait of this name that is open."""
        found = [
            one
            for one in self.records
            if one.name == name and one.kind in ("signal", "wait") and not one.ended
        ]
        return found[0] if found else None


@define(eq=False)
class Delivery:
    """A running handler with its knowledge and its running functions."""

    job: Job
    claim: Claim
    run: Run
    attempt: int
    known: dict[str, Record] | None = None
    asked: set[str] = field(factory=set[str])
    # by the name of the step: is it once=True?
    running: dict[str, bool] = field(factory=dict[str, bool])
    began: dict[str, int] = field(factory=dict[str, int])  # when these steps began
    # its sleeps and waits that are not over: name and kind
    waits: dict[str, str] = field(factory=dict[str, str])
    beside: dict[str, Call[Any]] = field(factory=dict[str, Call[Any]])  # waits beside running steps
    leaving: bool = False  # one of them has ended the handler, or will
    ended: bool = False

    @property
    def holds(self) -> bool:
        return self.job.holder is self


def value_of() -> bytes:
    """Stand for the function of every step."""
    raise AssertionError("the machine says what it returns")


class Beside(Exception):
    """Raised when a sleep or wait has to stay, because a step runs beside it."""


def departs(claim: Claim) -> None:
    """Do as a worker does with a job that has left it."""
    setattr(claim, "ended", True)  # noqa: B010 - a held job


Which = tuple[int, bool]  # a delivery: its number, and whether it is a zombie
which = st.tuples(st.integers(0, 9), st.sampled_from([False, False, False, True]))
names = st.sampled_from(NAMES)
picks = st.integers(0, 9)
flags = st.booleans()


class Machine(RuleBasedStateMachine):
    """A queue, and the handlers of its jobs."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.redis = server.client()
        self.redis.flushall()
        self.jobs: list[Job] = []
        self.letters: list[Job] = []
        self.kept: dict[str, Kept] = {}
        self.deliveries: list[Delivery] = []
        # entries that were completed by a zombie while their run was suspended
        self.hollow: set[str] = set()
        self.serial = 0
        self.calls = 0

    def teardown(self) -> None:
        self.redis.close()

    @initialize(
        max_attempts=st.sampled_from([None, 2, 3]), dead_limit=st.sampled_from([9, 9, 1, 0])
    )
    def open(self, max_attempts: int | None, dead_limit: int) -> None:
        """Three jobs, of which two are leased."""
        self.ops = Ops(
            Keys.of("q", "headrace"),
            QueueSettings(max_attempts=max_attempts, dead_limit=dead_limit),
        )
        self.values = Recorded(self.ops.bound)
        self.max_attempts, self.dead_limit = max_attempts, dead_limit
        for worker in WORKERS:
            self.send(self.ops.beat(worker, HOUR, register=True))
        for key in (*IDS, None):
            self.enqueue(key, late=False)
        self.lease("ann", 2)

    # -- parts -------------------------------------------------------------------------------------

    def send(self, op: Op[Any]) -> Any:
        """Run a script. Every other recorded call is sent twice, as if its first reply was lost."""
        self.calls += 1
        wire = op.wire("EVAL", "machine", str(self.calls))
        reply = self.redis.execute_command(*wire)
        if op.lane_prefix and op.name != "lease" and self.calls % 2:
            assert self.redis.execute_command(*wire) == reply
        return op.decode(reply)

    def drive(self, call: Call[Any], turns: int = 20) -> Any:
        """Run a generator of a run to its end. Raises `Beside` if it only waits for so many
        turns."""
        answers: Any = None
        while True:
            try:
                effect = call.send(answers)
            except StopIteration as done:
                return done.value
            if isinstance(effect, Sleep):
                answers, turns = None, turns - 1
                if not turns:
                    raise Beside
            else:
                assert isinstance(effect, Send)
                answers = [self.send(op) for op in effect.ops]

    def outcome(self, call: Call[Any]) -> Any:
        """Return the answer of a call, or the class of its exception."""
        try:
            return self.drive(call)
        except (RunLost, RunSuspended, InDoubt, ConfigurationError, TimeoutError, Beside) as error:
            return type(error)

    def key(self, part: str) -> str:
        return self.ops.keys.key(part)

    def fresh(self) -> bytes:
        self.serial += 1
        return b"%d" % self.serial

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def live(self, key: str) -> Job | None:
        """Return the job that has this id now."""
        return next((job for job in self.jobs if job.key == key and job.there), None)

    def pick(self, jobs: Iterable[Job], pick: int) -> Job | None:
        chosen = list(jobs)
        return chosen[pick % len(chosen)] if chosen else None

    def one(self, which: Which) -> Delivery | None:
        """Choose one of the deliveries that hold their jobs, or of zombies."""
        pick, zombie = which
        chosen = [one for one in self.deliveries if one.holds is not zombie]
        return chosen[pick % len(chosen)] if chosen else None

    def own(self, job: Job) -> Kept:
        """Return the run of a job. The run of an earlier job of its id is replaced."""
        kept = self.kept.get(job.key)
        if kept is None or kept.job is not job:
            kept = self.kept[job.key] = Kept(job)
        return kept

    def put(self, delivery: Delivery, record: Record) -> None:
        """Record an attempt. The count of attempts starts again from it."""
        delivery.job.spent, delivery.job.failed = 1, False
        self.adds(delivery, record)

    def adds(self, delivery: Delivery, record: Record) -> None:
        """Record a step. A step that began without a script began after the finished ones."""
        record.done = self.calls
        record.began = record.began or self.calls
        self.own(delivery.job).records.append(record)

    def knows(self, delivery: Delivery) -> dict[str, Record]:
        """Return the records that a delivery has read, which are all records at its first step."""
        if delivery.known is None:
            kept = self.kept.get(delivery.job.key)
            there = kept is not None and kept.job is delivery.job and delivery.claim.token > 1
            rows = kept.records if kept is not None and there else []
            delivery.known = {one.name: evolve(one) for one in rows if one.kind != "signal"}
        return delivery.known

    def lose(self, delivery: Delivery) -> type[RunLost]:
        """Let a delivery find that it has lost its lease."""
        assert not delivery.holds
        delivery.ended = True
        return RunLost

    def leaves(self, job: Job, *, known: bool = True) -> None:
        """End a job. With *known*, the script removes its records."""
        job.state, job.holder = "gone", None
        kept = self.kept.get(job.key)
        if kept is None:
            return
        if known:
            del self.kept[job.key]
        elif kept.job is job:
            kept.stale = True

    def dies(self, job: Job) -> None:
        """Make a job a dead letter. Only so many are kept."""
        job.state, job.holder = "dead", None
        self.letters.append(job)
        kept = self.kept.get(job.key)
        if kept is not None and kept.job is job:
            del self.kept[job.key]
            if self.dead_limit:
                job.letter = "\n" + self.newest_letter(job.key)
                self.kept[job.letter] = kept
        while len(self.letters) > self.dead_limit:
            trimmed = self.letters.pop(0)
            trimmed.state = "gone"
            kept = self.kept.get(trimmed.letter)
            if kept is not None:
                kept.stale = True

    def newest_letter(self, key: str) -> str:
        """Return the entry of the newest dead letter with this id."""
        for entry, fields in self.redis.xrevrange(self.key("dead"), count=10):
            if fields[b"id"] == key.encode():
                return str(entry.decode())
        raise AssertionError(f"{key} has no letter")

    # -- jobs --------------------------------------------------------------------------------------

    @rule(key=st.sampled_from([*IDS, None]), late=flags)
    def enqueue(self, key: str | None, late: bool) -> None:
        """Enqueue a job. Ids are used again."""
        if sum(job.there for job in self.jobs) > 4:
            return
        new = NewJob(self.fresh(), id=key, delay=HOUR if late and key else None)
        (receipt,) = self.send(self.ops.enqueue([self.ops.item(new)]))
        assert receipt.added is (key is None or self.live(key) is None)
        if receipt.added:
            self.jobs.append(Job(receipt.id, "late" if new.delay else "waiting"))

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def lease(self, worker: str, limit: int) -> None:
        """Lease jobs. Each has one more attempt than it spent, and a job without attempts left
        dies."""
        self.leased(worker, limit)

    def leased(self, worker: str, limit: int) -> list[Delivery]:
        grant = self.send(self.ops.lease(worker, limit, ttl=HOUR, kind=HeldJob))
        assert grant is not None
        for died in grant.died:
            job = self.live(died.id)
            assert job is not None, died
            assert job.spent == self.max_attempts, died
            self.dies(job)
        made: list[Delivery] = []
        for claim in grant.claims:
            job = self.live(claim.job.id)
            assert job is not None, f"{claim.job.id} is leased, and is not there"
            assert job.state == "waiting" or (job.state in SUSPENDED and job.due), (
                f"{job} is leased"
            )
            job.spent += 1
            if job.forgiven and claim.job.attempt < job.spent:
                job.spent = max(1, claim.job.attempt)
            assert claim.job.attempt == job.spent, f"{job}: attempt {claim.job.attempt}"
            job.forgiven = False
            assert self.max_attempts is None or job.spent <= self.max_attempts, (
                f"{job} has no attempts left"
            )
            run = Run(self.ops, self.values, claim, Callbacks(departs), handled=True)
            delivery = Delivery(job, claim, run, job.spent)
            job.state, job.holder, job.entry, job.due = "leased", delivery, claim.entry, False
            made.append(delivery)
        self.deliveries += made
        return made

    lease_ = lease

    @rule(which=which)
    def die(self, which: Which) -> None:
        """End a handler's process. No other client knows yet."""
        delivery = self.one(which)
        if delivery is not None:
            self.deliveries.remove(delivery)

    @rule(which=which, fenced=flags)
    def complete(self, which: Which, fenced: bool) -> None:
        """Complete without a fence. The first caller wins, even a zombie."""
        delivery = self.one(which)
        if delivery is None:
            return
        self.complete_now(delivery, fenced=fenced)

    def complete_now(self, delivery: Delivery, *, fenced: bool) -> None:
        job = delivery.job
        (won,) = self.send(self.ops.complete([delivery.claim], fenced=fenced))
        same = job.there and job.state != "late" and job.entry == delivery.claim.entry
        assert won is (delivery.holds if fenced else same)
        if won:
            self.hollow |= {job.entry} if job.state in SUSPENDED else set()
            self.leaves(job)

    @rule(which=which)
    def old_completes(self, which: Which) -> None:
        """Complete as a worker of an older version."""
        delivery = self.one(which)
        if delivery is None:
            return
        job = delivery.job
        if delivery.holds:
            parts = [self.key(part) for part in ("jobs", "ids", "leases", "released", "stats")]
            self.redis.eval(OLD, len(parts), *parts, job.entry, job.key)
            self.leaves(job, known=False)

    @rule(which=which, worker=st.sampled_from(WORKERS))
    def come_again(self, which: Which, worker: str) -> None:
        """Complete, then enqueue a job with the same id, which begins."""
        delivery = self.one(which)
        if delivery is not None and delivery.holds:
            self.old_completes(which)
            self.enqueue(delivery.job.key, late=False)
            self.lease(worker, 3)

    @rule(which=which)
    def release(self, which: Which) -> None:
        """Release a job with no attempt spent."""
        delivery = self.one(which)
        if delivery is None:
            return
        assert self.send(self.ops.release([delivery.claim])) == [delivery.holds]
        if delivery.holds:
            delivery.job.spent -= 1
            delivery.job.state, delivery.job.holder = "waiting", None

    @rule(which=which, late=flags)
    def retry(self, which: Which, late: bool) -> None:
        """Retry a job, which spends an attempt, perhaps the last."""
        delivery = self.one(which)
        if delivery is None:
            return
        verdicts = self.send(self.ops.retry([(delivery.claim, HOUR if late else None, 1, "why")]))
        assert verdicts == [delivery.holds]
        if not delivery.holds:
            return
        job = delivery.job
        if job.spent == self.max_attempts:
            assert verdicts.letters
            self.dies(job)
        else:
            assert not verdicts.letters
            job.state, job.holder, job.entry = "late" if late else "waiting", None, ""
            job.forgiven, job.failed = job.failed, False

    @rule(which=which)
    def dead_letter(self, which: Which) -> None:
        """Make a dead letter, which keeps its records."""
        delivery = self.one(which)
        if delivery is None:
            return
        assert self.send(self.ops.dead_letter([(delivery.claim, "why")])) == [delivery.holds]
        if delivery.holds:
            self.dies(delivery.job)

    @rule(pick=picks, from_step=st.none() | names)
    def redrive(self, pick: int, from_step: str | None) -> None:
        """Redrive a job. Its run goes on, or forgets a step and all later ones."""
        job = self.pick(self.letters, pick)
        if job is None or sum(letter.key == job.key for letter in self.letters) > 1:
            return
        kept = self.kept.get(job.letter)
        rows = [] if kept is None else kept.records
        first = next(
            (i for i, one in enumerate(rows) if one.name == from_step and one.kind != "signal"),
            None,
        )
        if self.live(job.key) is not None or (from_step is not None and first is None):
            from_step = first = None
        moved, _ = self.send(
            admin_ops.redrive(self.ops, "-", [job.key], *([] if from_step is None else [from_step]))
        )
        assert moved == (self.live(job.key) is None)
        if not moved:
            return
        self.letters.remove(job)
        job.state, job.spent, job.entry, job.failed = "waiting", 0, "", False
        if kept is not None:
            self.kept[job.key] = self.kept.pop(job.letter)
        job.letter = ""
        if first is not None:
            self.forgets(job, rows, rows[first])
        self.lease("ann", 1)

    redrive_ = redrive

    @rule(which=which, pick=picks)
    def dies_and_comes_back(self, which: Which, pick: int) -> None:
        """Let a job die, and redrive it from one of its steps."""
        delivery = self.one(which)
        if delivery is None or not delivery.holds or not self.dead_limit:
            return
        steps = [one.name for one in self.own(delivery.job).records if one.kind != "signal"]
        self.dead_letter(which)
        self.redrive(self.letters.index(delivery.job), steps[pick % len(steps)] if steps else None)

    dies_and_comes_back_ = dies_and_comes_back

    def forgets(self, job: Job, rows: list[Record], step: Record) -> None:
        """Forget a step and the steps that began after it. The server's ms decide about concurrent
        steps."""
        left = {(row[0].decode(), row[1].decode()) for row in self.look()[0][job.key][2]}
        for one in list(rows):
            stays = (one.name, one.kind) in left
            if one.kind == "signal" or (one is not step and one.done <= step.began):
                assert stays, f"{one} is forgotten, and came before {step}"
            if one is step or (one.kind != "signal" and step.done <= one.began):
                assert not stays, f"{one} is kept, and came after {step}"
            if not stays:
                job.ran.pop(one.name, None)
                rows.remove(one)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        """Cancel a job. Its holder becomes a zombie."""
        job = self.pick(self.jobs, pick)
        if job is not None:
            gone = self.send(admin_ops.cancel(self.ops, job.key))
            now = self.live(job.key)
            assert gone is (now is not None)
            if now is not None:
                self.leaves(now)

    @rule(all_of_it=flags, really=picks)
    def remove(self, all_of_it: bool, really: int) -> None:
        """Purge waiting and sleeping jobs, or delete all."""
        if really > 1:  # or little would ever come of anything
            return
        if all_of_it:
            self.send(admin_ops.delete(self.ops))
            self.kept.clear()
            self.letters.clear()
            for worker in WORKERS:
                self.send(self.ops.beat(worker, HOUR, register=True))
        else:
            cursor = "-"
            while cursor:
                _, cursor = self.send(admin_ops.purge(self.ops, cursor))
        for job in self.jobs:
            if job.state in ("waiting", "late", "sleep") or all_of_it:
                self.leaves(job)

    @rule(pick=picks)
    def expire(self, pick: int) -> None:
        """End the lease of a job. The attempt is spent."""
        job = self.pick((job for job in self.jobs if job.holder is not None), pick)
        if job is not None:
            self.send(admin_ops.expire(self.ops, "-", [job.key]))
            job.state, job.holder = "waiting", None

    @rule(pick=picks, worker=st.sampled_from(WORKERS))
    def take_over(self, pick: int, worker: str) -> None:
        """Let another worker take over at once."""
        self.expire(pick)
        self.lease(worker, 1)

    take_over_, take_over__ = take_over, take_over

    @rule(worker=st.sampled_from(WORKERS))
    def fail_worker(self, worker: str) -> None:
        """Fail a worker, unless that could kill one of several jobs, because some of them lose no
        attempt."""
        if self.max_attempts is None:
            self.send(admin_ops.fail_worker(self.ops, worker))
            self.send(self.ops.beat(worker, HOUR, register=True))
            for job in self.jobs:
                if job.holder is not None and job.holder.claim.worker == worker:
                    job.state, job.holder, job.failed = "waiting", None, True

    @rule()
    def sweep(self) -> None:
        """Sweep some records of jobs that have left."""
        self.send(self.ops.reclaim("ann", HOUR))
        for key in [key for key, kept in self.kept.items() if kept.stale]:
            if not self.redis.hexists(self.key("steps"), key):
                del self.kept[key]

    @rule(pick=picks)
    def pass_time(self, pick: int) -> None:
        """Let an hour pass for a suspended or late job."""
        job = self.pick((job for job in self.jobs if job.state in (*SUSPENDED, "late")), pick)
        if job is None:
            return
        if job.state == "late":
            self.redis.zadd(self.key("delayed"), {job.key: 1}, xx=True)
            job.state = "waiting"
            return
        asleep = self.redis.zscore(self.key("asleep"), job.entry)
        now = self.redis.eval(PASS, 2, self.key("steps"), self.key("asleep"), job.key, job.entry)
        job.due = asleep != float("inf")
        for one in self.own(job).records:
            one.due = min(one.due, now)

    pass_time_, pass_time__ = pass_time, pass_time

    # -- steps -------------------------------------------------------------------------------------

    @rule(which=which, name=names, once=st.sampled_from([False, False, True]))
    def begin(self, which: Which, name: str, once: bool) -> None:
        """Begin a step. The code may have changed since the record, so a step of this name may have
        been a sleep."""
        delivery = self.one(which)
        if delivery is None:
            return
        before = self.calls
        got = self.outcome(delivery.run.begin(name, value_of, once=once))
        assert got == self.begun(delivery, name, once)
        if got == (False, None):
            delivery.running[name], delivery.began[name] = once, before

    begin_, begin__ = begin, begin

    def begun(self, delivery: Delivery, name: str, once: bool) -> Any:
        refused, found = self.asks(delivery, name, "step", "once")
        if refused is not None:
            return refused
        known = self.knows(delivery)
        if found is None:
            if once:
                if not delivery.holds:
                    return self.lose(delivery)
                delivery.job.ran[name] += 1
                assert delivery.job.ran[name] == 1, f"{name} of {delivery.job} begins twice"
                self.put(delivery, Record(name, "once", delivery.attempt))
                known[name] = Record(name, "once", delivery.attempt)
            return False, None
        return (True, self.values.decoded("", found.value)) if found.ended else InDoubt

    def asks(self, delivery: Delivery, name: str, *kinds: str) -> tuple[Any, Record | None]:
        """Return why a step of these kinds is refused, or the record that the delivery knows."""
        if delivery.ended or (delivery.leaving and "step" in kinds):
            return RunLost, None
        if name in delivery.asked:
            return ConfigurationError, None
        delivery.asked.add(name)
        found = self.knows(delivery).get(name)
        return (None if found is None or found.kind in kinds else ConfigurationError), found

    @rule(which=which, pick=picks)
    def end(self, which: Which, pick: int) -> None:
        """End the function of a step. Another handler may have the job by now."""
        delivery = self.one(which)
        if delivery is None:
            return
        if not delivery.running:
            return
        name = sorted(delivery.running)[pick % len(delivery.running)]
        once, value = delivery.running.pop(name), self.fresh()
        data = self.values.encoded("", value)
        got = self.outcome(delivery.run.end(name, value_of, value, 0.001))
        if not delivery.holds:
            delivery.ended = True
            assert got is RunLost
            return
        assert got == value
        assert delivery.known is not None
        done = Record(
            name,
            "once" if once else "step",
            delivery.attempt,
            data,
            ended=True,
            began=delivery.began[name],
        )
        delivery.known[name] = evolve(done)
        if once:
            (begun,) = [
                one
                for one in self.own(delivery.job).records
                if (one.name, one.kind) == (name, "once")
            ]
            begun.value, begun.ended, delivery.job.spent, delivery.job.failed = data, True, 1, False
        else:
            self.put(delivery, done)

    end_, end__ = end, end

    @rule(which=which, name=names, duration=st.sampled_from([0, HOUR, HOUR]), leaves=flags)
    def sleep(self, which: Which, name: str, duration: float, leaves: bool) -> None:
        """Sleep for a bounded time."""
        delivery = self.one(which)
        if delivery is None:
            return
        before, call = self.now(), delivery.run.sleep(name, duration, release_key=False)
        got = self.outcome(call)
        assert got == self.slept(delivery, name, before, int(duration * 1000))
        self.stays(delivery, name, call, got, leaves)

    def slept(self, delivery: Delivery, name: str, before: int, duration: int) -> Any:
        refused, found = self.asks(delivery, name, "sleep")
        if refused is not None:
            return refused
        if found is not None and found.over(delivery.claim.leased_at):
            return None
        if found is None and not delivery.holds:
            return self.lose(delivery)
        return self.waits(delivery, name, "sleep", before, duration)

    @rule(which=which, name=names, timeout=st.sampled_from([None, 0, HOUR, HOUR]), leaves=flags)
    def wait_for(self, which: Which, name: str, timeout: float | None, leaves: bool) -> None:
        """Wait for a signal that was there, comes later, or never comes."""
        delivery = self.one(which)
        if delivery is None:
            return
        before, call = self.now(), delivery.run.wait_for(name, timeout, release_key=False)
        got = self.outcome(call)
        assert got == self.waited(
            delivery, name, before, None if timeout is None else int(timeout * 1000)
        )
        self.stays(delivery, name, call, got, leaves)

    wait_for_, wait_for__ = wait_for, wait_for

    def waited(self, delivery: Delivery, name: str, before: int, timeout: int | None) -> Any:
        refused, found = self.asks(delivery, name, "wait")
        if refused is not None:
            return refused
        if found is not None and found.over(delivery.claim.leased_at):
            return self.values.decoded("", found.value) if found.ended else TimeoutError
        if found is None and not delivery.holds:
            return self.lose(delivery)
        signal = self.own(delivery.job).open(name)
        if found is None and signal is not None:
            signal.kind, signal.ended, signal.attempt = "wait", True, delivery.attempt
            signal.began = signal.done = self.calls
            return self.values.decoded("", signal.value)
        return self.waits(delivery, name, "wait", before, timeout)

    def waits(
        self, delivery: Delivery, name: str, kind: str, before: int, duration: int | None
    ) -> Any:
        """Record a sleep or wait, with the due time of the server if that is possible, unless it is
        known."""
        assert delivery.known is not None
        if name not in delivery.known:
            record = Record(name, kind, delivery.attempt)
            self.adds(delivery, record)
            if duration is not None:
                said = [
                    row
                    for row in self.look()[0][delivery.job.key][2]
                    if (row[0], row[1]) == (name.encode(), kind.encode())
                ]
                record.due = said[-1][6]
                assert before + duration <= record.due <= self.now() + duration
            delivery.known[name] = evolve(record)
            if duration == 0:
                return TimeoutError if kind == "wait" else None
        delivery.waits[name] = kind
        return Beside if delivery.running else RunSuspended

    def stays(self, delivery: Delivery, name: str, call: Call[Any], got: Any, leaves: bool) -> None:
        """Keep a call while steps run beside it, or let its handler end."""
        if got is Beside:
            delivery.beside[name] = call
        if got is RunSuspended:
            delivery.leaving = True
            if leaves:
                self.leaves_now(delivery)

    @rule(which=which, leaves=flags)
    def look_again(self, which: Which, leaves: bool) -> None:
        """Let a sleep or wait look whether steps run beside it."""
        delivery = self.one(which)
        if delivery is None or not delivery.beside:
            return
        name = min(delivery.beside)
        call = delivery.beside.pop(name)
        got = self.outcome(call)
        if delivery.ended:
            assert got is RunLost
            return
        assert got is (Beside if delivery.running else RunSuspended)
        self.stays(delivery, name, call, got, leaves)

    @rule(which=which)
    def handler_ends(self, which: Which) -> None:
        """End a handler by its sleep or wait."""
        delivery = self.one(which)
        if delivery is not None and delivery.leaving and not delivery.running:
            self.leaves_now(delivery)

    handler_ends_ = handler_ends

    def leaves_now(self, delivery: Delivery) -> None:
        """Suspend the run until the first of its sleeps and waits is over, if the lease still
        holds."""
        if delivery.ended:
            return
        delivery.ended, job, end = True, delivery.job, RunSuspended("i", "s")
        assert self.drive(delivery.run.leave(end)) is end
        if not delivery.holds:
            assert delivery.run.claim.job.lost
            return
        rows = [
            one
            for one in self.own(job).records
            if one.name in delivery.waits and one.kind in ("sleep", "wait")
        ]
        job.state = "wait" if "wait" in delivery.waits.values() else "sleep"
        job.holder, job.spent, job.failed = None, 0, False
        job.due = any(one.ended for one in rows)
        due = self.redis.zscore(self.key("asleep"), job.entry)
        first = min([one.due for one in rows if one.due and not one.ended], default=float("inf"))
        assert due <= self.now() if job.due else due == first, (
            f"{job} is due at {due}, and not at {first}"
        )

    @rule(pick=picks, name=names)
    def signal(self, pick: int, name: str) -> None:
        """Send a signal before, during or after the wait, or to a missing job."""
        job = self.pick(self.jobs, pick)
        if job is None:
            return
        value = self.values.encoded("", self.fresh())
        code = self.send(step_ops.signal(self.ops, job.key, name, "ada", value))
        assert step_ops.SIGNAL_OUTCOMES[code] == self.signalled(self.live(job.key), name, value)

    signal_, signal__ = signal, signal

    def signalled(self, job: Job | None, name: str, value: bytes | None) -> str:
        if job is None:
            return "unknown"
        kept = self.own(job)
        found = kept.open(name)
        if found is None:
            if any(one.name == name and one.kind == "wait" for one in kept.records):
                return "present"
            kept.records.append(Record(name, "signal", 0, value))
            return "kept"
        if found.kind == "signal":
            return "present"
        if 0 < found.due <= self.now():
            return "unknown"
        found.value, found.ended = value, True
        job.due = job.state in SUSPENDED
        return "woke" if job.due else "kept"

    @rule(which=which)
    def progress(self, which: Which) -> None:
        """Note progress. A zombie's is dropped."""
        delivery = self.one(which)
        if delivery is None:
            return
        assert self.send(step_ops.progress(self.ops, delivery.claim, 0.5, "half")) is delivery.holds
        if delivery.holds:
            self.own(delivery.job)

    # -- what must hold ----------------------------------------------------------------------------

    def look(self) -> tuple[dict[str, Any], int, list[str]]:
        runs, strays, asleep = self.redis.eval(LOOK, 2, self.key("steps"), self.key("asleep"))
        return (
            {row[0].decode(): row[1:] for row in runs},
            strays,
            [entry.decode() for entry in asleep],
        )

    @invariant()
    def holds(self) -> None:
        """Check that the records are the model's, and that each job is counted in its state."""
        if not hasattr(self, "ops"):
            return
        runs, strays, asleep = self.look()
        assert strays == 0, "fields that belong to no run"
        for key, kept in self.kept.items():
            if kept.job.there or kept.job.state == "dead":
                assert key in runs or not kept.records, f"the run of {kept.job} has gone"
        for key, (number, size, rows) in runs.items():
            kept = self.kept.get(key)
            assert kept is not None, f"the run {key!r} was left behind"
            wanted = [(one.name, one.kind, one.attempt, one.value, one.due) for one in kept.records]
            found = [(row[0].decode(), row[1].decode(), row[4], row[5], row[6]) for row in rows]
            assert found == wanted, key
            assert [row[3] > 0 for row in rows] == [one.ended for one in kept.records], key
            assert number == len(wanted)
            assert size == sum(len(one.name) + len(one.value or b"") for one in kept.records), key
        states = Counter(job.state for job in self.jobs)
        asleep_now = {job.entry for job in self.jobs if job.state in SUSPENDED}
        assert asleep_now <= set(asleep) <= asleep_now | self.hollow
        counts = self.send(view_ops.counts(self.ops))
        assert counts.lost == 0
        assert counts.leased == states["leased"]
        assert (
            counts.waiting + counts.parked + counts.delayed
            == states["waiting"] + states["late"] + states["sleep"]
        )
        assert counts.delayed >= states["late"] + states["sleep"]
        assert counts.blocked == states["wait"]
        assert counts.dead == len(self.letters)

    def calm(self) -> None:
        """End every job, and check that no key is left."""
        if not hasattr(self, "ops"):
            return
        for _ in range(60):
            for job in [job for job in self.jobs if job.there]:
                if job.holder is not None:
                    self.expire(0)
                if job.state in (*SUSPENDED, "late"):
                    self.due_at_last(job)
            for worker in WORKERS:
                for delivery in self.leased(worker, 3):
                    self.complete_now(delivery, fenced=True)
            self.holds()
            if not any(job.there for job in self.jobs):
                break
        assert not any(job.there for job in self.jobs), [job for job in self.jobs if job.there]
        cursor = "-"
        while cursor:
            _, cursor = self.send(admin_ops.purge_dead(self.ops, cursor, []))
        for _ in range(60):
            self.send(self.ops.reclaim("ann", HOUR))
            if not self.redis.exists(self.key("steps"), self.key("asleep")):
                break
        parts = {
            name.decode().rpartition(":")[2]
            for name in self.redis.scan_iter()
            if b":lane:" not in name
        }
        assert parts <= LEFT, parts - LEFT

    def due_at_last(self, job: Job) -> None:
        """Make a sleep or wait due, or send its signal."""
        if job.state == "wait" and self.redis.zscore(self.key("asleep"), job.entry) == float("inf"):
            names = [
                one.name
                for one in self.own(job).records
                if one.kind == "wait" and not one.ended and not one.due
            ]
            assert names, f"{job} waits for nothing"
            data = self.values.encoded("", None)
            code = self.send(step_ops.signal(self.ops, job.key, names[-1], "ada", data))
            assert step_ops.SIGNAL_OUTCOMES[code] == self.signalled(job, names[-1], data)
            return
        self.pass_time([one for one in self.jobs if one.state in (*SUSPENDED, "late")].index(job))
