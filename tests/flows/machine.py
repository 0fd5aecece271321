"""Random acts on a flow whose names come again and again, and the laws that hold after each act.

Two ids for runs, two names for children, fan-outs within fan-outs: whatever is kept under a name
meets what was kept before. `Machine.holds` asks the server, in one script, whether what the runs
know is what the queues hold; and what the machine itself remembers of fan-outs says whether a join
fired when it should.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from headrace import FanOut, NewJob, Next
from tests.flows.conftest import Flows
from tests.support.colours import Connect
from tests.support.servers import Server

BASE = "headrace:{shop}:shop"
STAGES = ("pick", "pack", "bill")
RUNS = ("o", "p")

# What the runs say of each job, and what the queues hold: {complaints}, {id, how, ...} of all jobs
# of all runs.
LOOK = r"""
local wrong, jobs, NONCES = {}, {}, 2 ^ 50
local function say(...) wrong[#wrong + 1] = table.concat({...}, ' ') end
local function hash(key)
  local flat, found = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local known = {}
for _, name in ipairs({'o', 'p'}) do
  local run = hash(KEYS[1] .. ':flow:' .. name)
  local live = 0
  for field, at in pairs(run) do
    local id = string.match(field, '^at:(.*)$')
    local how, stage, nonce, of = string.match(at, '^(%a+) (%S+) (%d+) (%d*)$')
    if id then
      local queue = KEYS[1] .. '/' .. stage .. ':'
      local score = tonumber(redis.call('ZSCORE', queue .. 'flows', id) or -1)
      local what, other = math.floor(score / NONCES), score % NONCES
      local entry = redis.call('HGET', queue .. 'ids', id)
      local back = how == 'dead' and what == 4 and other == tonumber(nonce)
      jobs[#jobs + 1], jobs[#jobs + 2] = id, back and 'redriven' or how
      if how == 'active' or how == 'blocked' then
        live, known[queue .. id] = live + 1, how
        if score < 0 or other ~= tonumber(nonce) then say(id, at, 'is not in flows:', score) end
        if what == 0 and not entry then say(id, at, 'is in no queue') end
        if (what == 0 or what == 4) and redis.call('ZSCORE', queue .. 'cancels', id) then
          say(id, at, 'counts as cancelled')
        end
        if what == 0 and (how == 'blocked') ~= (entry == 'blocked') then say(id, at, 'and its entry is', entry) end
      end
      if how == 'dead' and (run['why:' .. id] or '') == '' then say(id, at, 'does not say why') end
      if how == 'blocked' then
        local pending, failed, fanout = 0, 0, run['fanout:' .. id]
        for _, child in ipairs(cmsgpack.unpack(run['children:' .. id])) do
          local end_of, theirs = string.match(run['at:' .. child] or '', '^(%a+) %S+ %d+ (%d*)$')
          if end_of == 'active' or end_of == 'blocked' then pending = pending + 1 end
          if end_of == 'dead' or end_of == 'cancelled' then failed = failed + 1 end
          if end_of ~= 'done' and theirs ~= fanout then say(id, 'waits for', child, 'of another fan-out') end
        end
        if pending == 0 and what == 0 then say(id, 'waits for nobody') end
        if pending ~= tonumber(run['pending:' .. id]) or failed ~= tonumber(run['failed:' .. id]) then
          say(id, 'waits for', run['pending:' .. id], 'of', pending, 'failed', run['failed:' .. id], 'of', failed)
        end
      end
    end
  end
  if run.state and live ~= tonumber(run.live) then say(name, 'has', live, 'jobs, and says', run.live) end
  local ttl = redis.call('PTTL', KEYS[1] .. ':flow:' .. name)
  if run.state and (live > 0) ~= (ttl == -1) then say(name, 'has', live, 'jobs, and a TTL of', ttl) end
  local root = run['at:' .. name] or ''
  if run.state == 'running' and not string.match(root, '^[ab]') then say(name, 'runs, and is', root) end
end
for i = 2, #KEYS do
  local queue = KEYS[1] .. '/' .. KEYS[i] .. ':'
  for _, id in ipairs(redis.call('HKEYS', queue .. 'blocked')) do
    if known[queue .. id] ~= 'blocked' then say(id, 'is blocked in', KEYS[i], 'and no run knows of it') end
  end
end
return {wrong, jobs}
"""

runs = st.sampled_from(RUNS)
stages = st.sampled_from(STAGES)
picks = st.integers(0, 9)
names = st.lists(st.sampled_from(["x", "y"]), unique=True, max_size=2)
kinds = st.sampled_from(["pack", "pick", "bill"])
failing = st.sampled_from(["fail", "fail", "cancel", "continue"])


class Machine(RuleBasedStateMachine):
    """The acts and the laws. Each lease is a pair of its stage and the lease."""

    leases: Bundle[Any] = Bundle("leases")

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.redis = server.client()
        self.redis.flushall()
        self.connect = Connect("sync", server)
        self.flows = Flows(self.connect, dead_limit=1000)
        self.flows.stage("pick", next="bill", children=["pack", "pick", "bill"], max_attempts=2)
        self.flows.stage("pack", next="bill")
        self.flows.stage("bill")
        for name in STAGES:  # every look and every lease is ours
            queue = self.flows.queues[name] = self.connect(f"shop/{name}", max_attempts=2)
            queue._leaser.tidy_at = float("inf")
        self.jobs: dict[str, str] = {}
        self.fans: dict[str, list[str]] = {}
        self.serial = 0

    def teardown(self) -> None:
        self.connect.close()
        self.redis.close()

    @initialize(target=leases, kind=kinds, failed=failing, dead=st.integers(0, 3))
    def begin(self, kind: str, failed: str, dead: int) -> Any:
        """Begin two runs. One waits for two children, and dead children may fail it or be
        redriven."""
        for name in RUNS:
            assert self.flows.flow.start(b"0", id=name).added
        first, second = self.flows.queues["pick"].lease_many(2)
        self.holds()
        self.fan(("pick", first), kind, ["x", "y"], failed)
        children = self.flows.queues[kind].lease_many(2)
        for lease in children[: min(dead, 2)]:
            assert lease.dead_letter("why")
        parent = []
        if dead == 3:
            self.sweep()
            self.holds()
            self.flows.queues["pick"].admin.redrive("o")
            parent = [("pick", lease) for lease in self.flows.queues["pick"].lease_many(1)]
        return multiple(
            ("pick", second), *parent, *((kind, lease) for lease in children[min(dead, 2) :])
        )

    # -- the acts ----------------------------------------------------------------------------------

    @rule(name=runs, late=st.booleans())
    def start(self, name: str, late: bool) -> None:
        own = {job: how for job, how in self.jobs.items() if job.partition("/")[0] == name}
        self.serial += 1
        added = self.flows.flow.start(
            b"%d" % self.serial, id=name, delay=3600 if late else None
        ).added
        assert added == {"active", "blocked"}.isdisjoint(own.values())
        if added:
            for job in [job for job in self.fans if job.partition("/")[0] == name]:
                del self.fans[job]

    @rule(target=leases, stage=stages, n=st.integers(1, 3))
    def lease(self, stage: str, n: int) -> Any:
        return multiple(*((stage, lease) for lease in self.flows.queues[stage].lease_many(n)))

    # What is drawn more often than once is drawn more often than others.
    lease_, lease__ = lease, lease

    @rule(lease=consumes(leases), end=st.booleans())
    def complete(self, lease: Any, end: bool) -> None:
        self.flows.flow.complete(lease[1], Next(None) if end else None)

    complete_ = complete

    @rule(lease=leases, kind=kinds, some=names, failed=failing)
    def fan(self, lease: Any, kind: str, some: list[str], failed: str) -> None:
        job = lease[1].job.id
        if lease[0] != "pick" or job.count("/") > 2:
            return
        known, before = self.jobs.get(job), self.look()[1].get(job)
        fan = FanOut([NewJob(b"c", id=name) for name in some], stage=kind, failed=failed)
        won = self.flows.flow.complete(lease[1], fan)
        if (
            won
            and some
            and known in ("active", "redriven")
            and self.look()[1].get(job) == "blocked" != before
        ):
            which = self.redis.hget(f"{BASE}:flow:{job.partition('/')[0]}", f"fan:{job}").decode()
            self.fans[job] = [f"{job}/{which}/{name}" for name in some]

    fan_, fan__ = fan, fan

    @rule(
        lease=consumes(leases),
        how=st.sampled_from(["complete", "retry", "release", "dead_letter", "dead_letter"]),
    )
    def settle(self, lease: Any, how: str) -> None:
        getattr(lease[1], how)(*(["why"] if how == "dead_letter" else []))

    @rule(stage=stages)
    def worker_died(self, stage: str) -> None:
        """End attempts by the death of their worker."""
        self.flows.queues[stage].admin.expire()

    @rule(stage=st.sampled_from(["pick", "pick", "pack", "bill"]), pick=picks)
    def redrive(self, stage: str, pick: int) -> None:
        letters = [letter.job.id for letter in self.flows.queues[stage].admin.dead()]
        if letters:
            self.flows.queues[stage].admin.redrive(letters[pick % len(letters)])

    redrive_, redrive__ = redrive, redrive

    @rule(stage=kinds, seen=st.booleans())
    def die_again(self, stage: str, seen: bool) -> None:
        """Let a redriven job die once more, perhaps before any client has looked."""
        queue = self.flows.queues[stage]
        self.sweep()
        self.holds()
        letters = [letter.job.id for letter in queue.admin.dead()]
        if letters and queue.admin.redrive(letters[0]):
            if seen:
                self.sweep()
                self.holds()
            for lease in queue.lease_many(100):
                lease.dead_letter("again") if lease.job.id == letters[0] else lease.release()

    @rule(kind=kinds, failed=failing)
    def fan_again(self, kind: str, failed: str) -> None:
        """Redrive a dead parent, which fans out to the same names. Some of its children may still
        go on."""
        queue = self.flows.queues["pick"]
        self.sweep()
        self.holds()
        letters = [letter.job.id for letter in queue.admin.dead()]
        if letters and queue.admin.redrive(letters[0]):
            self.holds()
            for lease in queue.lease_many(100):
                if lease.job.id == letters[0]:
                    self.fan(("pick", lease), kind, ["x", "y"], failed)
                else:
                    lease.release()

    @rule(stage=stages)
    def redrive_all(self, stage: str) -> None:
        self.flows.queues[stage].admin.redrive()

    @rule(pick=picks, outside=st.booleans())
    def cancel(self, pick: int, outside: bool) -> None:
        if not self.jobs:
            return
        name = sorted(self.jobs)[pick % len(self.jobs)]
        if not outside:
            if self.flows.flow.cancel(name):
                stage = self.flows.flow.state(name).stage
                assert self.redis.zscore(f"{BASE}/{stage}:cancels", name) is not None, name
        else:
            for queue in self.flows.queues.values():
                queue.cancel(name)

    @rule(stage=stages, whole=st.booleans(), really=picks)
    def remove(self, stage: str, whole: bool, really: int) -> None:
        queue = self.flows.queues[stage]
        if really < 4:  # or little would ever come of anything
            queue.admin.delete() if whole else queue.admin.purge()

    @rule(stage=stages)
    def due(self, stage: str) -> None:
        """Make the delayed jobs of a stage due."""
        key = f"{BASE}/{stage}:delayed"
        for name in self.redis.zrange(key, 0, -1):
            self.redis.zadd(key, {name: 1})

    @rule()
    def sweep(self) -> None:
        self.flows.flow.state("o")

    sweep_, sweep__ = sweep, sweep

    @rule(name=runs)
    def forget(self, name: str) -> None:
        """End the time for which an ended run is kept."""
        if self.redis.ttl(f"{BASE}:flow:{name}") > 0:
            self.redis.delete(f"{BASE}:flow:{name}")
            for job in [job for job in self.fans if job.partition("/")[0] == name]:
                del self.fans[job]

    # -- what must hold ----------------------------------------------------------------------------

    def look(self) -> tuple[list[str], dict[str, str]]:
        wrong, flat = self.redis.eval(LOOK, 1 + len(STAGES), BASE, *STAGES)
        texts = [text.decode() for text in flat]
        return [text.decode() for text in wrong], dict(zip(texts[::2], texts[1::2], strict=True))

    @invariant()
    def holds(self) -> None:
        wrong, jobs = self.look()
        assert not wrong
        self.flows.now()  # the law of conservation
        for job, children in list(self.fans.items()):
            if jobs.get(job) != "blocked":
                del self.fans[job]
                # it joined: all of its own have ended, whoever has seen it
                if jobs.get(job) != "cancelled":
                    assert {jobs[child] for child in children} <= {"done", "dead", "cancelled"}, job
        self.jobs = jobs

    def calm(self) -> None:
        """End all remaining jobs, and check that no key is left."""
        for stage in STAGES:
            self.flows.queues[stage].admin.expire()
        for _ in range(60):
            self.sweep()
            for stage in STAGES:
                self.due(stage)
                for lease in self.flows.queues[stage].lease_many(100):
                    self.flows.flow.complete(lease)
            self.flows.queues["pick"].counts()
            self.holds()
            left = self.flows.now()
            if not any(set(states) - {"dead"} for states in left.values()):
                break
        else:
            raise AssertionError(left)
        self.sweep()
        assert [how for how in self.look()[1].values() if how in ("active", "blocked")] == []
        for name in RUNS:
            state = self.flows.flow.state(name)
            assert state is None or state.state in ("completed", "failed", "cancelled"), state
