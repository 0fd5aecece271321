"""The judge of the storm. It reads the log of the processes and the server, and never uses the
library.

Complaints, by kind:

    law        `counts()` does not add up
    stranded   an entry was handed out, and is nobody's: it will never be handed out again
    dangling   somebody holds an entry that is not there
    index      ids, releases, lease terms, delayed jobs or wake tokens that belong to nothing
    unheard    what rang for a blocked reader is not handed out while newer jobs are completed
    double     completed, or cancelled, or both, more than once
    ghost      cancelled or rescheduled after it had ended
    claimed    a caller was told that it won, and the server does not know of it
    denied     somebody won, and everybody who held the job was told that he had not
    fence      a stale holder was obeyed
    token      a token was handed out twice
    twice      one call added a job twice, or said that another had
    phantom    a job that nobody ever tried to enqueue, or other bytes than were enqueued
    lost       an acknowledged job is nowhere at the end
    error      a process ended by an error that is none of the transport
    left       something stays behind at the end
    loser      a job of `then=` came, though its call did not complete the job
    rate       more jobs were handed out in a second than the rate admits

and those of the flow's runs.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from attrs import asdict, define, evolve, field, frozen

from headrace import Counts, Queue
from tests.chaos.actors import METERED, QUEUE, RATE
from tests.chaos.flow_judge import BASE, RUNS, Runs, created_again, sick
from tests.chaos.flow_load import STAGES

PREFIX = f"headrace:{{{QUEUE}}}:{QUEUE}:"
PREFIXES = [PREFIX, *(f"{BASE}/{stage}:" for stage in STAGES), f"headrace:{{{METERED}}}:{METERED}:"]
RESERVED = {"parked", "parked:s", "parked:1", "parked:2", "idle", "limited", "behind"}
WAKES = 16  # tokens in the wake stream at most
SAMPLES = 25  # samples, and completions, after which what rang should have been handed out

# One instant: every index against every other. Answers {kind, what}..., and what rang and is not
# handed out.
SAMPLE = """
local function key(part) return KEYS[1] .. part end
local wrong = {}
local function say(kind, what) if #wrong < 20 then wrong[#wrong + 1] = {kind, what} end end
local jobs = key('jobs')
local there, pending, woke, last = {}, {}, {}, '0-0'
for _, row in ipairs(redis.call('XRANGE', jobs, '-', '+')) do there[row[1]] = true end
for level = 1, 2 do
  for _, row in ipairs(redis.call('XRANGE', jobs .. ':' .. level, '-', '+')) do there[row[1] .. '.' .. level] = true end
end
for _, group in ipairs(redis.call('EXISTS', jobs) == 1 and redis.call('XINFO', 'GROUPS', jobs) or {}) do
  for i = 1, #group, 2 do if group[i] == 'last-delivered-id' then last = group[i + 1] end end
  for _, row in ipairs(redis.call('XPENDING', jobs, 'workers', '-', '+', 1000000)) do
    pending[row[1]] = row[2]
    if not there[row[1]] then say('dangling', row[1] .. ' held by ' .. row[2]) end
    if row[2] == 'idle' then woke[#woke + 1] = row[1] end
  end
end
for _, row in ipairs(redis.call('XRANGE', jobs, '-', last)) do
  if not pending[row[1]] then say('stranded', row[1] .. ' ' .. table.concat(row[2], ' ')) end
end
-- The id that a delayed job itself bears: a second job of an id is delayed under the name of the entry that it had.
local function own_id(name)
  local ok, fields = pcall(cmsgpack.unpack, redis.call('HGET', key('bodies'), name) or '')
  for i = 1, ok and type(fields) == 'table' and #fields or 0, 2 do
    if fields[i] == 'id' then return fields[i + 1] end
  end
  return name
end
local late = {}
for _, id in ipairs(redis.call('ZRANGE', key('delayed'), 0, -1)) do
  late[id] = true
  if redis.call('HEXISTS', key('bodies'), id) == 0 then say('index', 'delayed without a body: ' .. id) end
  if redis.call('HGET', key('ids'), id) ~= 'delayed' and own_id(id) == id then
    say('index', 'delayed without its id: ' .. id)
  end
end
for _, id in ipairs(redis.call('HKEYS', key('bodies'))) do
  if not late[id] then say('index', 'body that is not delayed: ' .. id) end
end
local ids = redis.call('HGETALL', key('ids'))
for i = 1, #ids, 2 do
  local at = ids[i + 1]
  local held = at == 'blocked' and redis.call('HEXISTS', key('blocked'), ids[i]) == 1
  if at == 'delayed' and not late[ids[i]] or at ~= 'delayed' and not there[at] and not held then
    say('index', 'id of nothing: ' .. ids[i] .. ' ' .. ids[i + 1])
  end
end
for _, entry in ipairs(redis.call('HKEYS', key('released'))) do
  if not there[entry] and not late[entry] then say('index', 'releases of nothing: ' .. entry) end
end
for _, entry in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
  if not pending[entry] or string.find(pending[entry], '^parked') then say('index', 'term of no lease: ' .. entry) end
end
if redis.call('XLEN', key('wake')) > tonumber(ARGV[1]) then say('index', 'too many wake tokens') end
return {wrong, woke}
"""

# What has ended twice, by any queue: the names of a stage's jobs are preceded by the stage's.
ENDS = """
local ended, wrong = {}, {}
for _, name in ipairs({'won', 'gone'}) do
  local all = redis.call('HGETALL', 'chaos:' .. name)
  for i = 1, #all, 2 do
    ended[all[i]] = string.find(all[i], '|sick') and 0 or (ended[all[i]] or 0) + all[i + 1]
    if ended[all[i]] > 1 and #wrong < 20 then wrong[#wrong + 1] = all[i] end
  end
end
return wrong
"""


@frozen
class Fate:
    """The ends of all jobs, as the server knows them."""

    won: Mapping[str, int]
    gone: Mapping[str, int]
    dead: Mapping[str, str]
    """Payloads by id."""
    buried: int
    counts: Counts


@define
class Judge:
    """Reads the log as it grows, and looks at the server."""

    log: Path
    client: redis.Redis
    complaints: dict[str, list[str]] = field(factory=lambda: defaultdict(list))
    tried: set[str] = field(factory=set)
    acked: dict[str, str] = field(factory=dict)  # payloads by id
    added: Counter[str] = field(factory=Counter)  # by payload
    # by payload, as anybody was told
    ids: dict[str, set[str]] = field(factory=lambda: defaultdict(set))
    # by id: who, token
    handed: dict[str, set[tuple[str, int]]] = field(factory=lambda: defaultdict(set))
    # ids that went to a handler, which can't say whether it won
    blind: set[str] = field(factory=set)
    newest: dict[str, int] = field(factory=dict)  # by id: a token that was handed out
    stale: set[tuple[str, str, int]] = field(factory=set)
    heard: dict[tuple[str, str, int], bool] = field(factory=dict)  # by who, id, token
    winners: dict[str, str] = field(factory=dict)  # by id
    # by who, id: whether it had ended before he asked
    asked: dict[tuple[str, str], bool] = field(factory=dict)
    # by id: what was heard
    cancels: dict[str, list[bool]] = field(factory=lambda: defaultdict(list))
    refused: set[str] = field(factory=set)  # payloads of follow-ups that must not come
    metered: bool = True  # whether the clock of the server tells how many jobs came in a second
    runs: Runs = field(init=False)
    seen: Counter[str] = field(factory=Counter)  # kinds of lines
    last: Counts = field(factory=Counts)  # that were sampled
    _at: int = 0
    # samples, and the completions at the first
    _rung: dict[bytes, tuple[int, int]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.runs = Runs(self.client, self.complain)

    def complain(self, kind: str, what: str) -> None:
        if what not in self.complaints[kind][:20]:
            self.complaints[kind].append(what)

    # -- the log -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the new lines of the log."""
        with self.log.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        end = len(data) if data.endswith(b" .") else data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode().splitlines():
            kind, *rest = line.split(" ")
            if rest and rest.pop() == ".":  # else somebody was killed while he wrote it
                self.seen[kind] += 1
                self.take(kind, rest)

    def take(self, kind: str, rest: list[str]) -> None:
        """Take one line of the log."""
        match kind, rest:
            case "try", [_, payload]:
                self.tried.add(payload)
            case "ack", [_, payload, name, added]:
                self.known(payload, name)
                self.added[payload] += int(added)
                if added == "1":
                    self.acked[name] = payload
            case (("job" | "run"), [who, payload, name, number]):
                self.known(payload, name)
                self.taken(kind, who, name, int(number))
            case (("ask" | "did" | "end"), [who, name, token, *verdict]):
                self.told(kind, who, name, int(token), won=verdict == ["1"])
            case (("can" | "mov"), [who, name]):
                self.asked[who, name] = name in self.winners or any(self.cancels[name])
                if kind == "can":
                    self.runs.asked[name] += 1
            case (("off" | "due"), [who, name, verdict]):
                self.answered(kind, who, name, done=verdict == "1")
            case (("not" | "dup" | "met"), _):
                self.odd(kind, rest)
            case (("beg" | "got" | "bag"), _):
                self.runs.take(kind, rest)
            case "bad", [who, *error]:
                self.complain("error", f"{who}: {' '.join(error)}")

    def odd(self, kind: str, rest: list[str]) -> None:
        """Return a line about an event that must not happen, or that happens by itself."""
        match kind, rest:
            case "not", [_, payload]:
                self.refused.add(payload)
                if payload in self.ids:
                    self.complain("loser", f"{payload}: {self.ids[payload]}")
            case "dup", [who, name, added]:
                if added == "1":
                    self.complain("twice", f"{who} could enqueue {name}, which was put back")
            case "met", [who, name, token]:
                if not re.fullmatch(r"tick@\d+", name):
                    self.complain("phantom", f"{name} is no job of the schedule")
                self.ids["tick"] = {name}
                self.tried.add(name)
                self.taken("job", who, name, int(token))

    def taken(self, kind: str, who: str, name: str, token: int) -> None:
        """Record that a process leased a job."""
        self.newest[name] = max(token, self.newest.get(name, 0))
        if kind == "run":
            self.blind |= {name, name.replace("pick|", "fan|")}
            return
        if not created_again(name) and any(token == other for _, other in self.handed[name]):
            self.complain("token", f"{name}: {token} handed out again, to {who}")
        self.handed[name].add((who, token))

    def answered(self, kind: str, who: str, name: str, *, done: bool) -> None:
        """Record that a process cancelled or rescheduled a job."""
        if done and self.asked[who, name] and not sick(name):
            self.complain(
                "ghost", f"{who} was told that he did ({kind}) what came after the end of {name}"
            )
        if kind == "off":
            self.cancels[name].append(done)
            if done and name in self.winners and not sick(name):
                self.complain(
                    "double",
                    f"{name}: {self.winners[name]} was told he completed it, {who} he cancelled it",
                )

    def told(self, kind: str, who: str, name: str, token: int, *, won: bool) -> None:
        """Record that a process settles a job."""
        if kind == "ask":
            if self.newest[name] > token and not created_again(name):
                self.stale.add((who, name, token))
        elif kind == "did":
            if won and (who, name, token) in self.stale:
                self.complain(
                    "fence", f"{who} held {name} by {token}, which is stale, and was obeyed"
                )
        else:
            if won and (name in self.winners or any(self.cancels[name])) and not sick(name):
                self.complain(
                    "double",
                    f"{name}: {who}, and {self.winners.get(name, 'who cancelled it')}, were told that they won",
                )
            if won:
                self.winners[name] = who
            self.heard[who, name, token] = won or self.heard.get((who, name, token), False)

    def known(self, payload: str, name: str) -> None:
        """Record that a process saw a job."""
        if "|" in name:
            self.runs.known(payload, name)
            return
        if payload not in self.tried:
            self.complain("phantom", f"{name}: {payload!r} was never enqueued")
        if payload in self.refused:
            self.complain("loser", f"{payload}: {name}")
        self.ids[payload].add(name)
        if len(self.ids[payload]) > 1:
            self.complain("twice", f"{payload}: {sorted(self.ids[payload])}")

    # -- the server --------------------------------------------------------------------------------

    def sample(self, queue: Queue) -> Counts:
        """Look at one instant of the server, and at the log up to it."""
        op = queue.ops.counts()
        pipe = self.client.pipeline(transaction=True)
        for prefix in PREFIXES:
            pipe.execute_command(
                *evolve(op, keys=[prefix + key.removeprefix(PREFIX) for key in op.keys]).wire()
            )
            pipe.eval(SAMPLE, 1, prefix, WAKES)
        pipe.eval(RUNS, 1, BASE)
        pipe.eval(ENDS, 0)
        try:
            *replies, runs, ended = pipe.execute()
        except redis.OutOfMemoryError:  # some full servers queue no transaction
            return self.last
        every = [op.decode(reply) for reply in replies[::2]]
        for prefix, counts, (wrong, _) in zip(PREFIXES, every, replies[1::2], strict=True):
            if counts.lost:
                self.complain("law", f"{counts.lost} lost: {prefix} {counts}")
            for kind, what in wrong:
                self.complain(kind.decode(), f"{prefix} {what.decode()}")
        for name in ended:
            self.complain("double", name.decode())
        self.runs.sampled(runs)
        self.rated()
        self.adopted(replies[1][1], every[0].completed)
        self.read()
        self.last = every[0]
        return self.last

    def rated(self) -> None:
        """Check that no second had more jobs than the rate admits with its burst."""
        granted: Any = self.client.hgetall("chaos:granted") if self.metered else {}
        for second, jobs in granted.items():
            if int(jobs) > RATE.limit / RATE.per + RATE.tokens:
                self.complain("rate", f"{int(jobs)} in second {int(second)}")

    def adopted(self, woke: Iterable[bytes], completed: int) -> None:
        """Check that a woken job is leased before newer ones, by any client."""
        before, self._rung = self._rung, {}
        for entry in woke:
            samples, since = before.get(entry, (0, completed))
            self._rung[entry] = samples + 1, since
            if samples >= SAMPLES and completed - since >= SAMPLES:
                self.complain(
                    "unheard",
                    f"{entry!r}: rang {samples} samples ago, {completed - since} completed since",
                )

    def finish(self, queue: Queue, *others: Queue) -> None:
        """Judge when all is quiet. *others* have no dead letters."""
        self.read()
        letters = [(state.job.id, state.job.payload.decode()) for state in queue.admin.dead()]
        won, gone = self._hash("won"), self._hash("gone")
        self.verdicts(won, gone)
        self.runs.finish(
            *(_staged(each) for each in (won, gone, self.dead_in_stages())), self.cancels
        )
        won, gone = _staged(won, False), _staged(gone, False)
        fate = Fate(won, gone, dict(letters), len(letters), _summed([queue, *others]))
        for payload, times in self.added.items():
            # payloads are one producer's, and so are their ids: one of its calls added the job
            if times != 1:
                self.complain("twice", f"{payload}: added {times} times")
        for name, payload in self.acked.items():
            if not (name in fate.won or name in fate.gone or name in fate.dead):
                self.complain("lost", f"{name} {payload}")
        for name, payload in fate.dead.items():
            self.known(payload, name)
        told = {name for names in self.ids.values() for name in names}
        for name in fate.won.keys() | fate.gone.keys():
            # of some ids nobody was told: they are payloads
            if name not in told and name not in self.tried:
                self.complain("phantom", f"{name} was completed or cancelled, and nobody knows it")
        for name, times in (
            Counter(fate.won) + Counter(fate.gone) + Counter(name for name, _ in letters)
        ).items():
            if times > 1:
                self.complain("double", f"{name}: {times} ends")
        all_ended = len(fate.won) + len(fate.gone) + len(fate.dead)
        if fate.counts != Counts(
            enqueued=all_ended,
            completed=len(fate.won),
            cancelled=len(fate.gone),
            dead=len(fate.dead),
        ):
            self.complain(
                "law", f"{fate.counts} of {len(fate.won)}, {len(fate.gone)}, {len(fate.dead)}"
            )
        self.leftovers()

    def _hash(self, name: str) -> dict[str, int]:
        found: Any = self.client.hgetall(f"chaos:{name}")
        return {key.decode(): int(value) for key, value in found.items()}

    def dead_in_stages(self) -> Counter[str]:
        """Return the dead letters of stages by name."""
        found: Counter[str] = Counter()
        for stage in STAGES:
            for _, letter in self.client.xrange(f"{BASE}/{stage}:dead"):
                found[f"{stage}|{letter[b'id'].decode()}"] += 1
        return found

    def verdicts(self, won: Mapping[str, int], gone: Mapping[str, int]) -> None:
        """Compare the answers to callers with the server's counts."""
        for (who, name, _), done in self.heard.items():
            if done and name not in won:
                self.complain("claimed", f"{who} was told that it completed {name}")
        for name, verdicts in self.cancels.items():
            if any(verdicts) and name not in gone and not name.startswith("run|"):
                self.complain("claimed", f"cancelled: {name}")
        for name in gone.keys() - self.cancels.keys():
            if "|" not in name and name not in self.runs.asked:
                self.complain("phantom", f"{name} was cancelled, and nobody asked for it")
        for name in won.keys() - self.blind:
            if name.startswith("pick|"):
                continue  # it is its last child that completes it
            holders = self.handed[name.replace("fan|", "pick|")]
            heard = [self.heard.get((who, name, token)) for who, token in holders]
            if not heard or all(verdict is False for verdict in heard):
                self.complain("denied", f"{name}: completed, and its holders were told {heard}")

    def leftovers(self) -> None:
        """Check the keys of an empty queue. It keeps its stream and group, counters, a few wake
        tokens and dead letters. Records expire.
        """
        keys = [key.decode() for key in self.client.scan_iter(count=1000)]
        self.runs.leftovers([key for key in keys if key.startswith(BASE)])
        for key in keys:
            part = key.removeprefix(
                next((prefix for prefix in PREFIXES if key.startswith(prefix)), "")
            )
            if part.startswith("lane:") or part in ("cancels", "tallies"):
                if self.client.pttl(key) < 0:
                    self.complain("left", f"{part} does not expire")
            elif part not in {
                "jobs",
                "jobs:1",
                "jobs:2",
                "wake",
                "stats",
                "dead",
                "chaos:won",
                "chaos:gone",
                "chaos:granted",
                "rates",
            } and not key.startswith(BASE + ":"):
                self.complain("left", key)
        for prefix in PREFIXES:
            if self.client.exists(prefix + "jobs"):
                self.left_in(prefix)

    def left_in(self, prefix: str) -> None:
        for stream, most in (("jobs", 0), ("wake", 2 * WAKES)):
            info: Any = self.client.xpending(prefix + stream, "workers")
            if info["pending"] > most or self.client.xlen(prefix + stream) > most:
                self.complain("left", f"{prefix}{stream}: {info}")
        for level in (1, 2):
            if self.client.xlen(f"{prefix}jobs:{level}"):
                self.complain("left", f"{prefix}jobs:{level}")
        names = {
            row["name"].decode() for row in self.client.xinfo_consumers(prefix + "jobs", "workers")
        }
        for name in names - RESERVED:
            self.complain("left", f"{prefix} consumer {name}")

    def report(self) -> str:
        return os.linesep.join(
            f"{kind}: {what}" for kind, all_of in self.complaints.items() for what in all_of[:20]
        )


def _summed(queues: Sequence[Queue]) -> Counts:
    every = [asdict(queue.counts()) for queue in queues]
    return Counts(**{name: sum(counts[name] for counts in every) for name in every[0]})


def _staged(counted: Mapping[str, int], staged: bool = True) -> Counter[str]:
    """Return the counts of stages, or of the others."""
    return Counter({name: number for name, number in counted.items() if ("|" in name) is staged})
