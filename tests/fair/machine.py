"""Random calls of the real scripts on a queue with terms, followed by the model of `model.py`.

Before each lease the model gets the ends since the last call, by the server's times, and then the
new jobs, as the script finds them. The script must pick the jobs that the model picks, in this
order, and all stored credits, means and rings must equal the model's. A place of a cancelled job
stays in its line for a while: then the model follows. Jobs are told apart by their entries, which
are the places of the model. The number of leased jobs depends on the clock, so no step draws
anything that depends on it.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
from attrs import define, evolve, field
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headrace import NewJob
from headrace._model.job import Claim
from headrace._model.settings import QueueSettings
from headrace._model.terms import Limit as Declared
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from tests.fair.model import UNKNOWN, Child, FairQueue, Job, Limit, Node, Rings, lp
from tests.support.servers import Server

TERM_S = 3600.0
RECORD = "<qqIqqffB"  # of a node: see agreed.lua
RINGS = {0: "", ord("n"): "new", ord("o"): "old"}
NAMES = ("org", "tenant", "api")
LEFT = {
    "lane",
    "jobs",
    "wake",
    "stats",
    "taken",
    "workers",
    "registered",
    "dead",
    "control",
    "cancels",  # for the time of a result
    "terms",
    "busy",
    "jobs:1",
    "released",
}


def name_of(node: Node) -> str:
    """Return the text of a node of the model."""
    return f"{node[0]}" + "".join(lp(value) for value in node[1:])  # type: ignore[arg-type]


def node_of(name: str) -> Node:
    values: list[object] = [int(name[0])]
    at = 1
    while at < len(name):
        if name[at] == "-":
            values.append(None)
            at += 1
            continue
        size, _, rest = name[at:].partition(":")
        values.append(rest[: int(size)])
        at += len(size) + 1 + int(size)
    return tuple(values)


@define
class Setting:
    """Terms, as the queue and as the model have them."""

    fair: str | None
    limits: list[tuple[int, str | None]]
    weights: dict[tuple[str, ...], float] = field(factory=dict)
    priorities: int = 2
    each: dict[str, int] = field(factory=dict)
    """The limits of tenants that have their own."""

    def settings(self) -> QueueSettings:
        return QueueSettings(
            fair=self.fair,
            limits=[
                Declared(most, key, each=self.each if key == "tenant" else {})
                for most, key in self.limits
            ],
            weights=dict(self.weights) or None,
            priorities=self.priorities,
            max_attempts=3,
        )

    def model(self) -> FairQueue:
        path = () if self.fair is None else tuple(self.fair.split("/"))
        return FairQueue(path, dict(self.weights), self.limits_of_model())

    def limits_of_model(self) -> list[Limit]:
        return [Limit(most, key, self.each if key == "tenant" else {}) for most, key in self.limits]


SETTINGS = [
    Setting("tenant", []),
    *[Setting("tenant", [], priorities=1)] * 4,  # the only one that the script's short way is for
    Setting("tenant", [(2, "tenant")], {("a",): 3.0}, each={"b": 1, "c": 3}),
    Setting("tenant", [(2, "api")]),
    Setting("tenant", [(4, None)], {("b",): 0.5}),
    Setting("org/tenant", [], {("x",): 2.0, ("x", "a"): 3.0}),
    Setting("org/tenant", [(2, "tenant"), (3, "api"), (6, None)], {("y",): 2.0}),
    Setting(None, [(2, "tenant")]),
    Setting(None, [(3, None)]),
]


class Machine(RuleBasedStateMachine):
    """A queue, its model, and the events since the model has looked."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.client: Any = server.client(decode_responses=True)
        self.client.flushall()
        self.jobs: dict[str, Job] = {}  # by entry
        self.claims: dict[str, Claim] = {}
        self.texts: dict[str, str] = {}  # of the held entries
        # ends that the model does not know: entry, state, ms
        self.gone_by: list[tuple[str, str, float]] = []
        self.stale: set[str] = set()  # places in lines of jobs that are gone: a pick drops them
        self.calls = 0

    def teardown(self) -> None:
        self.client.close()

    @initialize(number=st.integers(0, len(SETTINGS) - 1))
    def begin(self, number: int) -> None:
        self.setting = SETTINGS[number]
        self.ops = Ops(Keys.of("q"), self.setting.settings())
        self.queue = self.setting.model()
        self.declared()
        self.send(self.ops.declare(serving=True))
        self.send(self.ops.beat("w", TERM_S, register=True))
        assert not self.leased(1)

    def send(self, op: Op[Any]) -> Any:
        self.calls += 1
        return op.decode(
            self.client.execute_command(*op.wire("EVAL", "l", str(self.calls)), NEVER_DECODE=True)
        )

    def key(self, part: str) -> str:
        return self.ops.keys.key(part)

    # -- calls -------------------------------------------------------------------------------------

    @rule(
        many=st.integers(1, 4),
        org=st.sampled_from("xy"),
        tenant=st.sampled_from(["a", "b", "c", ""]),
        api=st.sampled_from(["", "m", "n"]),
        level=st.sampled_from([0, 0, 0, 1]),
        cost=st.sampled_from([None, None, 0.5, 4.0]),
    )
    def enqueue(
        self, many: int, org: str, tenant: str, api: str, level: int, cost: float | None
    ) -> None:
        headers = {
            name: value for name, value in zip(NAMES, (org, tenant, api), strict=True) if value
        }
        job = NewJob(
            b"x", headers=headers, priority=min(level, self.setting.priorities - 1), cost=cost
        )
        self.send(self.ops.enqueue([self.ops.item(job) for _ in range(many)]))

    @rule(number=st.integers(2, 4), most=st.integers(1, 3))
    def drain(self, number: int, most: int) -> None:
        """Give each of three tenants several jobs, then lease a few and end the oldest leases
        several times."""
        for tenant in "abc":
            self.enqueue(number, "x", tenant, "", 0, None)
        for _ in range(6):
            if self.leased(most) and self.claims:
                self.ended(
                    "complete", [self.claims.pop(entry) for entry in sorted(self.claims)[:3]]
                )

    @rule(
        limit=st.integers(1, 6),
        same=st.booleans(),
        woken=st.booleans(),
        batch=st.sampled_from([1, 1, 3]),
    )
    def lease(self, limit: int, same: bool, woken: bool, batch: int) -> None:
        self.leased(limit, same and self.setting.fair is not None, woken, batch)

    def declared(self) -> None:
        """Declare the terms, which become the queue's."""
        answer = self.send(fair_ops.declare(self.ops, "w"))
        assert (answer.again, answer.structure) == (False, self.ops.settings.terms.structure)

    def leased(self, limit: int, same: bool = False, woken: bool = False, batch: int = 1) -> int:
        """Lease in the queue and in the model. Return the number of jobs."""
        grant = self.send(
            self.ops.lease("w", limit, ttl=TERM_S, woken=woken, same=same, batch=batch, fair=True)
        )
        assert (grant.died, grant.undecodable, grant.paused, grant.unread) == ([], [], False, False)
        self.texts = self.client.hgetall(self.key("held"))
        self.follow()
        queue, picked = self.queue, [self.jobs[claim.entry] for claim in grant.claims]
        for job in picked:
            assert job.state == "waiting", f"{job.headers} is {job.state}"
        if self.stale:
            queue.lease(0.0, 0)
            for job in picked:
                queue.line_of(job).jobs.remove(job)
                queue.held.append(job)
                queue.taken.update(queue.line_of(job).slots)
                job.state = "leased"
        else:
            wanted = queue.lease(0.0, len(picked) if grant.more else limit, same=same)
            assert self.entries(picked) == self.entries(wanted), "other jobs than the model's"
        for claim, job in zip(grant.claims, picked, strict=True):
            since, charge, number, _ = self.texts[claim.entry].split(" ", 3)
            assert charge.startswith("=") == (job.cost is not None)
            assert self.stale or int(charge.removeprefix("=")) == job.charge, (
                f"the charge {charge} is not {job.charge}"
            )
            job.since, job.number, job.charge = (
                float(since),
                int(number),
                int(charge.removeprefix("=")),
            )
            assert job.number == max(1, min(batch, len(grant.claims)))
            self.claims[claim.entry] = claim
        if len(grant.claims) < limit and not grant.more and not same:
            assert not [job for job in queue.waiting if queue.has_slot(job)], (
                "a handler waits while a job may run"
            )
        self.compare()
        return len(grant.claims) + grant.more

    def entries(self, jobs: list[Job]) -> list[str]:
        """Return jobs for messages."""
        return [f"{job.place} {job.level} {dict(job.headers)}" for job in jobs]

    @rule(
        picks=st.lists(st.integers(0, 99), min_size=1, max_size=3),
        how=st.sampled_from(
            ["complete", "complete", "release", "retry", "delay", "dead", "cancel", "expire"]
        ),
    )
    def end(self, picks: list[int], how: str) -> None:
        held = sorted(self.claims)
        if held:
            chosen = dict.fromkeys(held[pick % len(held)] for pick in picks)
            self.ended(how, [self.claims.pop(entry) for entry in chosen])

    def ended(self, how: str, claims: list[Claim]) -> None:
        """End leases in one of the ways."""
        known = self.client.llen(self.key("settled"))
        if how == "complete":
            assert self.send(self.ops.complete(claims)) == [True] * len(claims)
        elif how == "release":
            assert all(self.send(self.ops.release(claims)))
        elif how in ("retry", "delay"):
            self.send(
                self.ops.retry(
                    [(claim, TERM_S if how == "delay" else 0.0, 0, "why") for claim in claims]
                )
            )
        elif how == "dead":
            self.send(self.ops.dead_letter([(claim, "why") for claim in claims]))
        elif how == "cancel":
            assert all(self.send(admin_ops.cancel(self.ops, claim.job.id)) for claim in claims)
        else:
            self.send(admin_ops.expire(self.ops, "-", [claim.job.id for claim in claims]))
        when, left = 0.0, [claim.entry for claim in claims]
        for text in self.client.lrange(self.key("settled"), known, -1):
            if text.startswith("@"):
                when = float(text[1:])
                continue
            entry = next((entry for entry in left if self.texts[entry] == text), None)
            assert entry is not None, "more was settled than ended"
            left.remove(entry)
            self.gone_by.append((entry, "front" if how in ("release", "expire") else "gone", when))
        assert not left, "an end is not measured"
        self.slots_are_leased_jobs()

    @rule()
    def due(self) -> None:
        for name in self.client.zrange(self.key("delayed"), 0, -1):
            self.client.zadd(self.key("delayed"), {name: 1})

    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        """Cancel a job that a call has put into its line."""
        waiting = sorted(
            entry for entry, job in self.jobs.items() if job.state == "waiting" and job.level == 0
        )
        entry = waiting[pick % len(waiting)] if waiting else ""
        if entry and self.send(admin_ops.cancel(self.ops, entry)):
            job = self.jobs[entry]
            self.queue.cancel(job)
            self.stale.add(self.place(entry))

    @rule(most=st.integers(1, 4), which=st.tuples(*[st.booleans()] * 3))
    def redeclare(self, most: int, which: tuple[bool, ...]) -> None:
        """Change the numbers of limits."""
        limits = [
            (most if changes else number, key)
            for (number, key), changes in zip(self.setting.limits, which, strict=False)
        ]
        each = {name: most if which[2] else number for name, number in self.setting.each.items()}
        self.setting = evolve(self.setting, limits=limits, each=each)
        self.ops = evolve(self.ops, settings=self.setting.settings())
        self.declared()
        self.queue.redeclare(self.queue.weights, self.setting.limits_of_model())

    @rule(
        org=st.sampled_from("xy"),
        tenant=st.sampled_from(["a", "b", "c", None]),
        whole=st.booleans(),
    )
    def pause(self, org: str, tenant: str | None, whole: bool) -> None:
        """Pause a value, or resume it if it is paused."""
        values = {"org": org, "tenant": tenant}
        if self.setting.fair is not None or self.setting.limits[0][1] is not None:
            self.turn(tuple(values[name] for name in self.headers())[: 1 if whole else 2])

    def headers(self) -> Sequence[str]:
        """The headers of a value."""
        return ("tenant",) if self.setting.fair is None else self.setting.fair.split("/")

    def turn(self, value: Node) -> None:
        """Pause a value, or resume it."""
        paused = value in self.queue.paused
        wanted = fair_ops.wanted(dict(zip(self.headers(), value, strict=False)))  # type: ignore[arg-type]
        assert self.send(fair_ops.pause(self.ops, wanted, not paused))
        assert not self.send(fair_ops.pause(self.ops, wanted, not paused))
        (self.queue.resume if paused else self.queue.pause)(value)
        assert set(self.send(fair_ops.paused(self.ops))) == self.queue.paused

    @rule()
    def line_up(self) -> None:
        if not (self.gone_by or self.client.hexists(self.key("terms"), "again")):
            assert not self.send(fair_ops.line_up(self.ops, "w"))
            self.follow(settle=False)
            self.queue.look()
            self.compare()

    # -- the model ---------------------------------------------------------------------------------

    def follow(self, *, settle: bool = True) -> None:
        """Give the model the events of the script. They are first ends, then new jobs."""
        for entry, state, when in self.gone_by if settle else ():
            job = self.jobs[entry]
            self.queue.end(job, when, state)
            job.state = "waiting" if state == "front" else state
        if settle:
            self.gone_by.clear()
        for entry, fields in self.client.xrange(self.key("jobs")):
            if entry not in self.jobs:
                headers = {name: fields[name] for name in NAMES if name in fields}
                cost = float(fields["headrace-cost"]) if "headrace-cost" in fields else None
                ms, _, number = entry.partition("-")
                place = int(ms) * 1_000_000 + int(number)
                self.jobs[entry] = Job(
                    headers, int(fields.get("headrace-priority", 0)), cost, place
                )
                self.queue.news.append(self.jobs[entry])

    # -- laws --------------------------------------------------------------------------------------

    def slots_are_leased_jobs(self) -> None:
        """Check that slots and leased jobs are the same."""
        rows = self.client.xpending_range(self.key("jobs"), "workers", "-", "+", 1000)
        leased = [row["message_id"] for row in rows if row["consumer"] == "w"]
        assert sorted(self.client.hkeys(self.key("held"))) == sorted(leased), (
            "held entries are not the leased jobs"
        )
        members = self.client.zrange(self.key("slots"), 0, -1)
        found: Counter[str] = Counter(member.rpartition(" ")[0] for member in members)
        wanted: Counter[str] = Counter()
        for entry in leased:
            for limit in self.queue.limits:
                if limit.key is not None and limit.key in self.jobs[entry].headers:
                    wanted[lp(limit.key) + lp(self.jobs[entry].headers[limit.key])] += 1
        assert found == wanted, "slots are not the leased jobs"

    def shares(self) -> dict[str, str]:
        """Return the records as texts, with bytes as characters."""
        rows = self.client.execute_command("HGETALL", self.key("shares"), NEVER_DECODE=True)
        pairs = rows.items() if isinstance(rows, dict) else zip(rows[::2], rows[1::2], strict=True)
        return {name.decode(): text.decode("latin-1") for name, text in pairs}

    def compare(self) -> None:
        """Compare the stored figures with the model's."""
        self.slots_are_leased_jobs()
        lines = {
            member.rpartition(" ")[2].partition("=")[0].rstrip("+")
            for member in self.client.zrange(self.key("lines"), 0, -1)
        }
        waiting = {entry for entry, job in self.jobs.items() if job.state == "waiting"}
        wanted = {self.place(entry) for entry in waiting}
        assert wanted <= lines, f"waiting jobs in no line: {sorted(wanted - lines)}"
        followed, self.stale = bool(self.stale), lines - wanted
        assert self.stale <= {
            self.place(entry) for entry, job in self.jobs.items() if job.state == "gone"
        }
        queue, kept = self.queue, self.shares()
        mean = int(self.client.hget(self.key("terms"), "mean") or UNKNOWN)
        if followed or self.stale:
            self.adopt(kept)
            return
        if not kept and not queue.held and not queue.waiting:  # the script has forgotten all
            queue.rings.clear()
        assert mean == queue.mean, "the queue's mean"
        assert {node: self.shown(child) for node, child in self.stored(kept).items()} == {
            node: self.shown(child) for node, child in queue.children.items()
        }
        for node, rings in self.rings(kept).items():
            known = queue.rings[node]
            assert (rings.round, rings.turn) == (known.round, known.turn), f"the turn of {node}"
            for one, other in ((rings.new, known.new), (rings.old, known.old)):
                assert [child.node for child in one] == [child.node for child in other], (
                    f"a ring of {node}"
                )
        for key, line in queue.lines.items():
            there = kept.get(f"l{name_of(key)}", "")
            stop = "" if line.stop is None else f"!{lp(line.stop[0])}{lp(line.stop[1])}"
            if len(key) > len(line.node):
                assert line.ready == (there[:1] not in ("", "!")), f"whether {key} is ready"
            assert there == stop or not (stop or there[:1] == "!"), f"where {key} stands"
        assert {slot: lines for slot, lines in self.limited().items() if lines} == {
            lp(slot[0]) + lp(slot[1]): [name_of(line.key) for line in lines]
            for slot, lines in queue.stopped.items()
            if lines
        }

    @staticmethod
    def shown(child: Child) -> tuple[Any, ...]:
        """Return the fields of a value or an organisation that must be equal."""
        return (
            child.credit,
            child.mean,
            child.running,
            child.ring,
            child.round * (child.ring != "new"),
        )

    @staticmethod
    def stored(kept: dict[str, str]) -> dict[Node, Child]:
        found = {}
        for name, text in kept.items():
            if name[0].isdigit():
                credit, mean, running, turn, number, _, _, ring = struct.unpack(
                    RECORD, text.encode("latin-1")
                )
                node = node_of(name)
                found[node] = Child(node, credit, mean, running, RINGS[ring], turn, number)
        return found

    def rings(self, kept: dict[str, str]) -> dict[Node, Rings]:
        found: dict[Node, Rings] = {}
        values = self.stored(kept)
        for name, text in kept.items():
            if name[0] == "v":
                found[node_of(name[1:])] = Rings(
                    [], [], int(text.split(" ")[0]), {"n": "new", "o": "old"}[text[-1]]
                )
        for member in self.client.zrange(self.key("ready"), 0, -1):
            match = re.fullmatch(r"(.*?) ([no])(\d{16})(\d{16}) (.*)", member)
            if match:
                child = values[node_of(match[5])]
                rings = found.setdefault(child.node[:-1], Rings())
                assert (child.ring[0], child.round, child.number) == (
                    match[2],
                    int(match[3]),
                    int(match[4]),
                )
                (rings.new if match[2] == "n" else rings.old).append(child)
        ringed = {child.node for rings in found.values() for child in (*rings.new, *rings.old)}
        assert ringed == {node for node, child in values.items() if child.ring}, (
            "a ring lacks a value"
        )
        return found

    def limited(self) -> dict[str, list[str]]:
        """Return the stored lines of limits."""
        found: dict[str, list[str]] = {}
        for member in self.client.zrange(self.key("stopped"), 0, -1):
            match = re.fullmatch(r"(.*) (\d{17})(.*)", member)
            if match:
                found.setdefault(match[1], []).append(match[3])
        return found

    def adopt(self, kept: dict[str, str]) -> None:
        """Load the stored state into the model."""
        queue = self.queue
        queue.children = self.stored(kept)
        queue.rings.clear()
        for node, rings in self.rings(kept).items():
            queue.rings[node] = rings
            for ring in (rings.new, rings.old):
                ring[:] = [queue.children[child.node] for child in ring]
        queue.mean = int(self.client.hget(self.key("terms"), "mean") or UNKNOWN)
        queue.again = bool(self.client.hexists(self.key("terms"), "again"))
        queue.stopped.clear()
        queue.waits.clear()
        numbers = [child.number for child in queue.children.values()]
        queue.numbers = itertools.count(1 + max([0, int(kept.get("c", 0)), *numbers]))
        stopped = {line: slot for slot, lines in self.limited().items() for line in lines}
        for name in stopped:
            self.line(node_of(name))
        for name in kept:
            if name[0] == "l":
                self.line(node_of(name[1:]))
        for child in queue.children.values():
            if child.ring and len(child.node) > len(queue.path):
                self.line(child.node)
        for key, line in queue.lines.items():
            there = kept.get(f"l{name_of(key)}", "")
            leafy = len(key) == len(line.node)
            child = queue.children.get(line.node)
            line.ready = (
                (child is not None and bool(child.ring)) if leafy else there[:1] not in ("", "!")
            )
            if leafy and not queue.path:
                line.ready = bool(line.jobs)
            slot = stopped.get(name_of(key))
            line.stop = next((one for one in line.slots if lp(one[0]) + lp(one[1]) == slot), None)
            queue._count(line, len(line.jobs))
        for slot, lines in self.limited().items():
            for name in lines:
                line = queue.lines[node_of(name)]
                assert line.stop is not None, f"{name} stands at {slot}"
                queue.stopped[line.stop].append(line)

    def line(self, key: Node) -> None:
        """Give the model this line, which may have no job."""
        names = [
            *self.queue.path,
            *(each.key for each in self.queue.limits if each.key not in (None, *self.queue.path)),
        ]
        if len(key) == len(names) + 1:
            headers = {
                name: value for name, value in zip(names, key[1:], strict=True) if value is not None
            }
            self.queue.line_of(Job(headers, key[0]))  # type: ignore[arg-type]

    @staticmethod
    def place(entry: str) -> str:
        ms, _, number = entry.partition("-")
        return f"{chr(96 + len(ms))}{ms}{chr(96 + len(number))}{number}"

    def calm(self) -> None:
        """Lease and complete all jobs, and check that no state is left."""
        if not hasattr(self, "ops"):
            return
        for value in list(self.queue.paused):
            self.turn(value)
        for _ in range(400):  # a limit of the queue may be one
            self.due()
            if self.claims:
                self.ended("complete", [self.claims.pop(entry) for entry in sorted(self.claims)])
            if not self.leased(50) and not self.claims:
                break
        assert not self.claims
        assert not self.client.exists(self.key("jobs:1")) or not self.client.xlen(
            self.key("jobs:1")
        )
        counts = self.send(view_ops.counts(self.ops))
        assert counts.waiting + counts.leased + counts.delayed + counts.parked == 0, "jobs are left"
        parts = {
            key.removeprefix(self.ops.keys.prefix).partition(":")[0]
            for key in self.client.scan_iter()
        }
        assert not parts - LEFT, f"{parts - LEFT} are left"
