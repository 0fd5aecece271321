"""Random calls of the real scripts on a queue with terms, followed by the model of `model.py`.

Before each lease the model gets the ends since the last call, by the server's times, and then the new jobs, as the
script finds them. Each job that the script picked must be one that the rule may pick, and the stored figures of each
value must equal the model's. Jobs are told apart by their entries, which are the places of the model. The number of
leased jobs depends on the clock, so no step draws anything that depends on it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from attrs import define, evolve, field
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headrace import NewJob
from headrace._model.job import Claim
from headrace._model.settings import QueueSettings
from headrace._model.terms import Limit as Declared
from headrace._protocol import fair_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from tests.fair.model import FairQueue, Job, Limit, Node
from tests.support.servers import Server

NEAR_MS = 0.05  # starts are stored in whole us
TERM_S = 3600.0
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


def lp(value: str | None) -> str:
    return "-" if value is None else f"{len(value.encode())}:{value}"


def name_of(node: Node) -> str:
    """The text of a node of the model."""
    return f"{node[0]}" + "".join(lp(value) for value in node[1:])  # type: ignore[arg-type]


@define(eq=False)
class Followed(FairQueue):
    """The model, which changes when a lease call of the script does."""

    def _refresh(self) -> None:
        """Wait for `look`."""

    def look(self) -> None:
        """Begin the values that have a job which may run. `Machine.compare` forgets idle values as the script does."""
        may_run = {self.node(job) for job in self.waiting if self.has_slot(job, whole=False)}
        active = {node[:depth] for node in may_run for depth in range(1, len(node) + 1)}
        for node in sorted(active - self.active, key=lambda node: (len(node), name_of(node))):
            if len(node) > 1:
                self.nodes[node[:-1]].begin(node)
        self.active = active

    def node(self, job: Job) -> Node:
        return (job.level, *(job.headers.get(name) for name in self.path))

    def pick(self, job: Job, now: float, charge: float) -> None:
        """Lease this job."""
        self.waiting.remove(job)
        self.held.append(job)
        job.state, job.since, job.charge = "leased", now, charge
        for parent, child in self._steps(self.node(job)):
            self.nodes[parent].pick(child, charge / self._weight(child))

    def may_be_next(self, job: Job, only: Node | None, *, stale: bool) -> str:
        """Tell why this job is not the next one, '' if it may be."""
        ready = [other for other in self.waiting if self.has_slot(other)]
        if job not in ready:
            return "there is no slot for it"
        if only is not None and self.node(job) != only:
            return "it is of another value than the first"
        if stale:  # a pick of a job that is gone has cost its value a turn
            return ""
        if only is None and job.level > min(other.level for other in ready):
            return "jobs of an earlier level wait"
        if job.place > min(other.place for other in ready if self.node(other) == self.node(job)):
            return "it passes another of its value"
        return "" if only is not None else self._starts_later(job, ready)

    def _starts_later(self, job: Job, ready: list[Job]) -> str:
        may_run = {self.node(other)[:depth] for other in ready for depth in range(1, len(self.path) + 2)}
        for parent, child in self._steps(self.node(job)):
            starts = self.nodes[parent].starts
            least = min(starts[other] for other in may_run if other[:-1] == parent)
            if starts[child] > least + NEAR_MS:
                return f"{child} begins at {starts[child]}, another at {least}"
        return ""


@define
class Setting:
    """Terms, as the queue and as the model have them."""

    fair: str | None
    limits: list[tuple[int, str | None]]
    weights: dict[tuple[str, ...], float] = field(factory=dict)
    priorities: int = 2

    def settings(self) -> QueueSettings:
        return QueueSettings(
            fair=self.fair,
            limits=[Declared(most, key) for most, key in self.limits],
            weights=dict(self.weights) or None,
            priorities=self.priorities,
            max_attempts=3,
        )

    def model(self) -> Followed:
        path = () if self.fair is None else tuple(self.fair.split("/"))
        return Followed(path, dict(self.weights), [Limit(most, key) for most, key in self.limits])


SETTINGS = [
    Setting("tenant", []),
    *[Setting("tenant", [], priorities=1)] * 4,  # the only one that the script's short way is for
    Setting("tenant", [(2, "tenant")], {("a",): 3.0}),
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
        self.gone_by: list[tuple[str, str, float]] = []  # ends that the model does not know: entry, state, ms
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
        return op.decode(self.client.execute_command(*op.wire("EVAL", "l", str(self.calls)), NEVER_DECODE=True))

    def key(self, part: str) -> str:
        return self.ops.keys.key(part)

    # -- calls -----------------------------------------------------------------------------------------------------

    @rule(
        many=st.integers(1, 4),
        org=st.sampled_from("xy"),
        tenant=st.sampled_from(["a", "b", "c", ""]),
        api=st.sampled_from(["", "m", "n"]),
        level=st.sampled_from([0, 0, 0, 1]),
        cost=st.sampled_from([None, None, 0.5, 4.0]),
    )
    def enqueue(self, many: int, org: str, tenant: str, api: str, level: int, cost: float | None) -> None:
        headers = {name: value for name, value in zip(NAMES, (org, tenant, api), strict=True) if value}
        job = NewJob(b"x", headers=headers, priority=min(level, self.setting.priorities - 1), cost=cost)
        self.send(self.ops.enqueue([self.ops.item(job) for _ in range(many)]))

    @rule(number=st.integers(2, 4), most=st.integers(1, 3))
    def drain(self, number: int, most: int) -> None:
        """Each of three tenants has several jobs; a few are leased, and the oldest leases end, a few at a time."""
        for tenant in "abc":
            self.enqueue(number, "x", tenant, "", 0, None)
        for _ in range(6):
            if self.leased(most) and self.claims:
                self.ended("complete", [self.claims.pop(entry) for entry in sorted(self.claims)[:3]])

    @rule(limit=st.integers(1, 6), same=st.booleans(), woken=st.booleans(), batch=st.sampled_from([1, 1, 3]))
    def lease(self, limit: int, same: bool, woken: bool, batch: int) -> None:
        self.leased(limit, same and self.setting.fair is not None, woken, batch)

    def declared(self) -> None:
        """Declare the terms, which become the queue's."""
        answer = self.send(fair_ops.declare(self.ops, "w"))
        assert (answer.again, answer.structure) == (False, self.ops.settings.terms.structure)

    def leased(self, limit: int, same: bool = False, woken: bool = False, batch: int = 1) -> int:
        """Lease, and follow it in the model. Answer the number of jobs."""
        grant = self.send(self.ops.lease("w", limit, ttl=TERM_S, woken=woken, same=same, batch=batch, fair=True))
        assert (grant.died, grant.undecodable, grant.paused, grant.unread) == ([], [], False, False)
        self.texts = self.client.hgetall(self.key("held"))
        self.follow()
        first: Node | None = None
        for claim in grant.claims:
            job = self.jobs[claim.entry]
            since, charge, number, _ = self.texts[claim.entry].split(" ", 3)
            assert job.state == "waiting", f"{claim.entry} is {job.state}"
            why = self.queue.may_be_next(job, first if same else None, stale=bool(self.stale))
            assert not why, f"{claim.entry} of {self.queue.node(job)}: {why}"
            cost = float(charge.removeprefix("=")) / 1000
            assert charge.startswith("=") == (job.cost is not None)
            if job.cost is not None:
                assert abs(cost - job.cost * self.queue.mean) <= 0.01 * cost + NEAR_MS
            elif self.queue.path and (mean := self.queue.means.get(self.queue.node(job))) is not None:
                assert abs(cost - mean) <= 0.01 * cost + NEAR_MS, f"the charge {cost} is not the mean {mean}"
            self.queue.pick(job, float(since), cost)
            job.number = int(number)
            assert job.number == max(1, min(batch, len(grant.claims)))
            first = first or self.queue.node(job)
            self.claims[claim.entry] = claim
        if len(grant.claims) < limit and not grant.more:
            able = [job for job in self.queue.waiting if self.queue.has_slot(job)]
            if same and first is not None:
                able = [job for job in able if self.queue.node(job) == first]
            assert not able, "a handler waits while a job may run"
        self.queue.look()
        self.compare()
        return len(grant.claims) + grant.more

    @rule(
        picks=st.lists(st.integers(0, 99), min_size=1, max_size=3),
        how=st.sampled_from(["complete", "complete", "release", "retry", "delay", "dead", "cancel", "expire"]),
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
            self.send(self.ops.retry([(claim, TERM_S if how == "delay" else 0.0, 0, "why") for claim in claims]))
        elif how == "dead":
            self.send(self.ops.dead_letter([(claim, "why") for claim in claims]))
        elif how == "cancel":
            assert all(self.send(self.ops.cancel(claim.job.id)) for claim in claims)
        else:
            self.send(self.ops.expire("-", [claim.job.id for claim in claims]))
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
        """The delayed jobs are due."""
        for name in self.client.zrange(self.key("delayed"), 0, -1):
            self.client.zadd(self.key("delayed"), {name: 1})

    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        """Cancel a job that a call has put into its line."""
        waiting = sorted(entry for entry, job in self.jobs.items() if job.state == "waiting" and job.level == 0)
        entry = waiting[pick % len(waiting)] if waiting else ""
        if entry and self.send(self.ops.cancel(entry)):
            job = self.jobs[entry]
            self.queue.waiting.remove(job)
            job.state = "gone"
            self.stale.add(self.place(entry))

    @rule(most=st.integers(1, 4), which=st.tuples(*[st.booleans()] * 3))
    def redeclare(self, most: int, which: tuple[bool, ...]) -> None:
        """The numbers of limits change."""
        limits = [
            (most if changes else number, key)
            for (number, key), changes in zip(self.setting.limits, which, strict=False)
        ]
        self.setting = evolve(self.setting, limits=limits)
        self.ops = evolve(self.ops, settings=self.setting.settings())
        self.declared()
        self.queue.limits = [Limit(number, key) for number, key in limits]

    @rule()
    def line_up(self) -> None:
        if not (self.gone_by or self.client.hexists(self.key("terms"), "again")):
            assert not self.send(fair_ops.line_up(self.ops, "w"))
            self.follow(settle=False)
            self.compare()

    # -- the model -------------------------------------------------------------------------------------------------

    def follow(self, *, settle: bool = True) -> None:
        """Give the model the events that the script has seen: ends, then jobs that came."""
        back = []
        for entry, state, when in self.gone_by if settle else ():
            job = self.jobs[entry]
            self.queue.end(job, when, "gone")
            job.state = state
            if state == "front":
                back.append(job)
        for job in back:
            self.queue.come_back(job, front=True)
        if settle:
            self.gone_by.clear()
        for entry, fields in self.client.xrange(self.key("jobs")):
            if entry not in self.jobs:
                headers = {name: fields[name] for name in NAMES if name in fields}
                cost = float(fields["headrace-cost"]) if "headrace-cost" in fields else None
                ms, _, number = entry.partition("-")
                place = int(ms) * 1_000_000 + int(number)
                self.jobs[entry] = Job(headers, int(fields.get("headrace-priority", 0)), cost, place)
                self.queue.waiting.append(self.jobs[entry])
        self.queue.look()

    # -- laws ------------------------------------------------------------------------------------------------------

    def slots_are_leased_jobs(self) -> None:
        """Slots and leased jobs are the same."""
        rows = self.client.xpending_range(self.key("jobs"), "workers", "-", "+", 1000)
        leased = [row["message_id"] for row in rows if row["consumer"] == "w"]
        assert sorted(self.client.hkeys(self.key("held"))) == sorted(leased), "held entries are not the leased jobs"
        members = self.client.zrange(self.key("slots"), 0, -1)
        found: Counter[str] = Counter(member.rpartition(" ")[0] for member in members)
        wanted: Counter[str] = Counter()
        for entry in leased:
            for limit in self.queue.limits:
                if limit.key is not None and limit.key in self.jobs[entry].headers:
                    wanted[lp(limit.key) + lp(self.jobs[entry].headers[limit.key])] += 1
        assert found == wanted, "slots are not the leased jobs"

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
        dropped, self.stale = self.stale, lines - wanted
        assert self.stale <= {self.place(entry) for entry, job in self.jobs.items() if job.state == "gone"}
        queue, kept = self.queue, self.client.hgetall(self.key("shares"))
        if not kept and not queue.held and not queue.waiting:  # the script has forgotten all
            queue.nodes.clear()
            queue.means.clear()
        records = {name[1:]: text.split() for name, text in kept.items() if name[0] == "a"}
        mean = float(self.client.hget(self.key("terms"), "mean") or 1000) / 1000
        assert abs(mean - queue.mean) <= NEAR_MS + 0.01 * mean, "the queue's mean"
        queue.mean = mean
        busy = {
            queue.node(job)[:depth] for job in (*queue.waiting, *queue.held) for depth in range(2, len(queue.path) + 2)
        }
        nodes = {name_of(child): child for fair in queue.nodes.values() for child in fair.starts}
        nodes |= {name_of(node): node for node in busy}
        assert dropped or self.stale or records.keys() <= nodes.keys(), f"nobody knows {records.keys() - nodes.keys()}"
        ready = set()
        for name, node in sorted(nodes.items(), key=lambda pair: len(pair[1])):
            fair = queue.nodes[node[:-1]]
            if name not in records:
                assert node not in queue.active, f"{name} may run, and is not stored"
                assert node not in busy or not any(queue.node(job)[: len(node)] == node for job in queue.held)
                assert dropped or len(node) > 2 or fair.starts.get(node, 0.0) <= fair.virtual + NEAR_MS, (
                    f"{name} lost its debt"
                )
                fair.starts.pop(node, None)
                queue.means.pop(node, None)
                continue
            start, its_mean, running, is_ready, _, _ = map(float, records[name])
            wanted = fair.starts.get(node)
            if wanted is None:
                assert start <= fair.virtual * 1000 + 1000 * NEAR_MS, f"{name} begins at {start}"
            else:
                assert dropped or abs(start / 1000 - wanted) <= NEAR_MS, (
                    f"{name} begins at {start / 1000}, not at {wanted}"
                )
            fair.starts[node] = start / 1000
            held = sum(queue.node(job)[: len(node)] == node for job in queue.held)
            assert running == held, f"{name} has {held} leased jobs, not {running}"
            if is_ready:
                ready.add(node)
            if len(node) == len(queue.path) + 1:
                known = queue.means.get(node, 0.0)
                assert abs(its_mean / 1000 - known) <= NEAR_MS + 0.01 * known, f"the mean of {name}"
                if its_mean:
                    queue.means[node] = its_mean / 1000
        for node, fair in [*queue.nodes.items()]:
            virtual = float(kept.get(f"v{name_of(node)}", 0)) / 1000
            if fair.starts and not dropped:
                assert abs(virtual - fair.virtual) <= NEAR_MS, f"the virtual time of {node}"
            fair.virtual = virtual
        missing = {node for node in queue.active if len(node) > 1} - ready
        assert not missing, f"{missing} may run, and are not ready"
        queue.active = ready | {node for node in queue.active if len(node) == 1}

    @staticmethod
    def place(entry: str) -> str:
        ms, _, number = entry.partition("-")
        return f"{chr(96 + len(ms))}{ms}{chr(96 + len(number))}{number}"

    def calm(self) -> None:
        """Lease and complete all: nothing is left behind."""
        if not hasattr(self, "ops"):
            return
        for _ in range(100):
            self.due()
            if self.claims:
                self.ended("complete", [self.claims.pop(entry) for entry in sorted(self.claims)])
            if not self.leased(50) and not self.claims:
                break
        assert not self.claims
        assert not self.client.exists(self.key("jobs:1")) or not self.client.xlen(self.key("jobs:1"))
        counts = self.send(self.ops.counts())
        assert counts.waiting + counts.leased + counts.delayed + counts.parked == 0, "jobs are left"
        parts = {key.removeprefix(self.ops.keys.prefix).partition(":")[0] for key in self.client.scan_iter()}
        assert not parts - LEFT, f"{parts - LEFT} are left"
