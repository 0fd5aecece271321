"""Who says whether it went well: from the log of the processes, and from the server, never from the library.

Complaints, by kind:

    law        `counts()` does not add up
    stranded   an entry was handed out, and is nobody's: it will never be handed out again
    dangling   somebody holds an entry that is not there
    index      ids, releases, lease terms, delayed jobs or wake tokens that belong to nothing
    unheard    what rang for a blocked reader is not handed out while newer jobs are completed
    double     completed, or cancelled, or both, more than once
    claimed    a caller was told that it won, and the server does not know of it
    denied     somebody won, and everybody who held the job was told that he had not
    fence      a stale holder was obeyed
    token      a token was handed out twice
    twice      one call added a job twice, or said that another had
    phantom    a job that nobody ever tried to enqueue, or other bytes than were enqueued
    lost       an acknowledged job is nowhere at the end
    error      a process ended by an error that is none of the transport
    left       something stays behind at the end
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redis
from attrs import define, field, frozen

from headrace import Counts, Queue
from tests.chaos.actors import QUEUE

PREFIX = f"headrace:{{{QUEUE}}}:{QUEUE}:"
RESERVED = {"parked", "bell"}
WAKES = 16  # tokens in the wake stream at most
SAMPLES = 25  # samples, and completions, after which what rang should have been handed out

# One instant: every index against every other. Answers {kind, what}..., and what rang and is not handed out.
SAMPLE = """
local function key(part) return KEYS[1] .. part end
local wrong = {}
local function say(kind, what) if #wrong < 20 then wrong[#wrong + 1] = {kind, what} end end
local jobs = key('jobs')
if redis.call('EXISTS', jobs) == 0 then return {{}, {}} end
local there, pending, rung, last = {}, {}, {}, '0-0'
for _, row in ipairs(redis.call('XRANGE', jobs, '-', '+')) do there[row[1]] = true end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', jobs)) do
  for i = 1, #group, 2 do if group[i] == 'last-delivered-id' then last = group[i + 1] end end
  for _, row in ipairs(redis.call('XPENDING', jobs, 'workers', '-', '+', 1000000)) do
    pending[row[1]] = row[2]
    if not there[row[1]] then say('dangling', row[1] .. ' held by ' .. row[2]) end
    if row[2] == 'bell' then rung[#rung + 1] = row[1] end
  end
end
for _, row in ipairs(redis.call('XRANGE', jobs, '-', last)) do
  if not pending[row[1]] then say('stranded', row[1] .. ' ' .. table.concat(row[2], ' ')) end
end
local late = {}
for _, id in ipairs(redis.call('ZRANGE', key('delayed'), 0, -1)) do
  late[id] = true
  if redis.call('HEXISTS', key('bodies'), id) == 0 then say('index', 'delayed without a body: ' .. id) end
end
for _, id in ipairs(redis.call('HKEYS', key('bodies'))) do
  if not late[id] then say('index', 'body that is not delayed: ' .. id) end
end
local ids = redis.call('HGETALL', key('ids'))
for i = 1, #ids, 2 do
  if ids[i + 1] == 'delayed' and not late[ids[i]] or ids[i + 1] ~= 'delayed' and not there[ids[i + 1]] then
    say('index', 'id of nothing: ' .. ids[i] .. ' ' .. ids[i + 1])
  end
end
for _, entry in ipairs(redis.call('HKEYS', key('released'))) do
  if not there[entry] and not late[entry] then say('index', 'releases of nothing: ' .. entry) end
end
for _, entry in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
  if not pending[entry] or pending[entry] == 'parked' then say('index', 'term of no lease: ' .. entry) end
end
if redis.call('XLEN', key('wake')) > tonumber(ARGV[1]) then say('index', 'too many wake tokens') end
local ended = {}
for _, name in ipairs({'won', 'gone'}) do
  local all = redis.call('HGETALL', 'chaos:' .. name)
  for i = 1, #all, 2 do
    ended[all[i]] = (ended[all[i]] or 0) + all[i + 1]
    if ended[all[i]] > 1 then say('double', all[i]) end
  end
end
return {wrong, rung}
"""


@frozen
class Fate:
    """What the server knows of all jobs at the end."""

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
    ids: dict[str, set[str]] = field(factory=lambda: defaultdict(set))  # by payload, as anybody was told
    handed: dict[str, set[tuple[str, int]]] = field(factory=lambda: defaultdict(set))  # by id: who, token
    blind: set[str] = field(factory=set)  # ids that went to a handler, which can't say whether it won
    newest: dict[str, int] = field(factory=dict)  # by id: a token that was handed out
    stale: set[tuple[str, str, int]] = field(factory=set)
    heard: dict[tuple[str, str, int], bool] = field(factory=dict)  # by who, id, token
    winners: dict[str, str] = field(factory=dict)  # by id
    cancelled: set[str] = field(factory=set)
    seen: Counter[str] = field(factory=Counter)  # kinds of lines
    _at: int = 0
    _rung: dict[bytes, tuple[int, int]] = field(factory=dict)  # samples, and the completions at the first

    def complain(self, kind: str, what: str) -> None:
        if what not in self.complaints[kind][:20]:
            self.complaints[kind].append(what)

    # -- the log -------------------------------------------------------------------------------------

    def read(self) -> None:
        """Go on reading."""
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
        """One line."""
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
            case "off", [_, name, "1"]:
                self.cancelled.add(name)
            case "bad", [who, *error]:
                self.complain("error", f"{who}: {' '.join(error)}")

    def taken(self, kind: str, who: str, name: str, token: int) -> None:
        """Somebody was handed a job."""
        self.newest[name] = max(token, self.newest.get(name, 0))
        if kind == "run":
            self.blind.add(name)
            return
        if any(token == other for _, other in self.handed[name]):
            self.complain("token", f"{name}: {token} handed out again, to {who}")
        self.handed[name].add((who, token))

    def told(self, kind: str, who: str, name: str, token: int, *, won: bool) -> None:
        """Somebody settles a job."""
        if kind == "ask":
            if self.newest[name] > token:
                self.stale.add((who, name, token))
        elif kind == "did":
            if won and (who, name, token) in self.stale:
                self.complain("fence", f"{who} held {name} by {token}, which is stale, and was obeyed")
        else:
            if won and name in self.winners:
                self.complain("double", f"{name}: {who} and {self.winners[name]} were told that they won")
            if won:
                self.winners[name] = who
            self.heard[who, name, token] = won

    def known(self, payload: str, name: str) -> None:
        """Somebody was told of a job."""
        if payload not in self.tried:
            self.complain("phantom", f"{name}: {payload!r} was never enqueued")
        self.ids[payload].add(name)
        if len(self.ids[payload]) > 1:
            self.complain("twice", f"{payload}: {sorted(self.ids[payload])}")

    # -- the server ------------------------------------------------------------------------------------

    def sample(self, queue: Queue) -> Counts:
        """Look at one instant of the server, and at the log until now."""
        op = queue.ops.counts()
        pipe = self.client.pipeline(transaction=True)
        pipe.execute_command(*op.wire())
        pipe.eval(SAMPLE, 1, PREFIX, WAKES)
        reply, (wrong, rung) = pipe.execute()
        counts = op.decode(reply)
        if counts.lost:
            self.complain("law", f"{counts.lost} lost: {counts}")
        for kind, what in wrong:
            self.complain(kind.decode(), what.decode())
        self.adopted(rung, counts.completed)
        self.read()
        return counts

    def adopted(self, rung: Iterable[bytes], completed: int) -> None:
        """What rang must be handed out before anything newer is, by whoever leases next."""
        before, self._rung = self._rung, {}
        for entry in rung:
            samples, since = before.get(entry, (0, completed))
            self._rung[entry] = samples + 1, since
            if samples >= SAMPLES and completed - since >= SAMPLES:
                self.complain("unheard", f"{entry!r}: rang {samples} samples ago, {completed - since} completed since")

    def finish(self, queue: Queue) -> Fate:
        """The verdict, when all is quiet."""
        self.read()
        letters = [(state.job.id, state.job.payload.decode()) for state in queue.dead()]
        fate = Fate(self._hash("won"), self._hash("gone"), dict(letters), len(letters), queue.counts())
        for payload, times in self.added.items():
            if times != 1:  # payloads are one producer's, and so are their ids: one of its calls added the job
                self.complain("twice", f"{payload}: added {times} times")
        for name, payload in self.acked.items():
            if not (name in fate.won or name in fate.gone or name in fate.dead):
                self.complain("lost", f"{name} {payload}")
        for name, payload in fate.dead.items():
            self.known(payload, name)
        told = {name for names in self.ids.values() for name in names}
        for name in fate.won.keys() | fate.gone.keys():
            if name not in told and name not in self.tried:  # of some ids nobody was told: they are payloads
                self.complain("phantom", f"{name} was completed or cancelled, and nobody knows it")
        for name, times in (Counter(fate.won) + Counter(fate.gone) + Counter(name for name, _ in letters)).items():
            if times > 1:
                self.complain("double", f"{name}: {times} ends")
        self.verdicts(fate)
        all_ended = len(fate.won) + len(fate.gone) + len(fate.dead)
        if fate.counts != Counts(
            enqueued=all_ended, completed=len(fate.won), cancelled=len(fate.gone), dead=len(fate.dead)
        ):
            self.complain("law", f"{fate.counts} of {len(fate.won)}, {len(fate.gone)}, {len(fate.dead)}")
        self.leftovers()
        return fate

    def _hash(self, name: str) -> dict[str, int]:
        found: Any = self.client.hgetall(f"chaos:{name}")
        return {key.decode(): int(value) for key, value in found.items()}

    def verdicts(self, fate: Fate) -> None:
        """What callers were told, against what the server has counted."""
        for (who, name, _), won in self.heard.items():
            if won and name not in fate.won:
                self.complain("claimed", f"{who} was told that it completed {name}")
        for name in self.cancelled - fate.gone.keys():
            self.complain("claimed", f"cancelled: {name}")
        for name in fate.won.keys() - self.blind:
            verdicts = [self.heard.get((who, name, token)) for who, token in self.handed[name]]
            if not verdicts or all(verdict is False for verdict in verdicts):
                self.complain("denied", f"{name}: completed, and its holders were told {verdicts}")

    def leftovers(self) -> None:
        """An empty queue keeps its stream and group, counters, a few wake tokens, dead letters; records expire."""
        keys: list[bytes] = list(self.client.scan_iter(count=1000))
        for key in keys:
            part = key.decode().removeprefix(PREFIX)
            if part.startswith("lane:"):
                if self.client.pttl(key) < 0:
                    self.complain("left", f"{part} does not expire")
            elif part not in {"jobs", "wake", "stats", "dead", "chaos:won", "chaos:gone"}:
                self.complain("left", part)
        for stream, most in (("jobs", 0), ("wake", 2 * WAKES)):
            info: Any = self.client.xpending(PREFIX + stream, "workers")
            if info["pending"] > most or self.client.xlen(PREFIX + stream) > most:
                self.complain("left", f"{stream}: {info}")
        names = {row["name"].decode() for row in self.client.xinfo_consumers(PREFIX + "jobs", "workers")}
        for name in names - RESERVED:
            self.complain("left", f"consumer {name}")

    def report(self) -> str:
        """Everything to complain about."""
        return os.linesep.join(f"{kind}: {what}" for kind, all_of in self.complaints.items() for what in all_of)
