"""The order of a fair queue in plain Python, without a server, a clock or scripts.

`docs/explanation/fairness.md` has the rule. A *node* is a value, or a part of its path: `(0,
"acme")` in level 0, with two levels also `(0, "acme", "ada")`; the root of a level is `(0,)`. A
*line* has the waiting jobs of a value with the same values of all limits. A job has a *place*,
which decides its order in the line, and keeps it when it is released.

Each node that is no value has two rings of children. Times given are ms, credits and means are
whole us.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import count

from attrs import define, field, frozen

Node = tuple[object, ...]
Slot = tuple[str, str]
QUANTUM = 5000  # us of credit a visit, times the weight
UNKNOWN = 5000  # us, the mean run time of a queue in which no job has ended
WEIGHT_OF_LATEST = 8  # a run counts as an eighth of the mean


def whole(number: float) -> int:
    """Round to whole us, as the scripts do."""
    return math.floor(number + 0.5)


def lp(value: str | None) -> str:
    """Return a length and a value as features/limits.lua writes them."""
    return "-" if value is None else f"{len(value.encode())}:{value}"


@frozen
class Limit:
    """A bound of *most* leased jobs for each value of the header *key*, or for the queue. *each*
    has other bounds by value.
    """

    most: int
    key: str | None = None
    each: Mapping[str, int] = field(factory=dict)


@define(eq=False)
class Job:
    """A job. *cost* is in mean run times, and `None` stands for the measured time."""

    headers: Mapping[str, str]
    level: int = 0
    cost: float | None = None
    place: int = 0
    state: str = "waiting"
    since: float = 0.0
    charge: int = 0
    number: int = 1
    """The number of jobs in its batch, which share the time."""


@define(eq=False)
class Child:
    """A node, as its parent's rings have it. It is there while a job of it waits or is leased."""

    node: Node
    credit: int
    mean: int = 0
    running: int = 0
    ring: str = ""
    """`new`, `old`, or '' for none: no job of it may run."""
    round: int = 0
    """Of the old ring: when it is visited, or may be visited again."""
    number: int = 0


@define(eq=False)
class Rings:
    """The rings of a node. One has the new values, and the other the old ones."""

    new: list[Child] = field(factory=list)
    old: list[Child] = field(factory=list)
    round: int = 0
    turn: str = "new"

    def first(self) -> Child | None:
        """Return the child to visit next. The rings take turns while both have children."""
        ring = self.turn if getattr(self, self.turn) else self.other(self.turn)
        children: list[Child] = getattr(self, ring)
        if not children:
            return None
        if ring == "old":
            self.round = children[0].round
        return children[0]

    @staticmethod
    def other(ring: str) -> str:
        return "old" if ring == "new" else "new"


@define(eq=False)
class Line:
    """Waiting jobs with equal values, in the order of their places."""

    key: Node
    node: Node
    slots: list[Slot]
    jobs: list[Job] = field(factory=list)
    ready: bool = False
    """Its value is in a ring, and jobs of it were found able to run."""
    stop: Slot | None = None
    """The limit in whose line it stands."""
    admitted: bool = False


@define(eq=False)
class FairQueue:
    """A queue with `fair=path`, `weights=` and `limits=`."""

    path: tuple[str, ...] = ("tenant",)
    weights: dict[tuple[str, ...], float] = field(factory=dict)
    limits: list[Limit] = field(factory=list)
    held: list[Job] = field(factory=list)
    children: dict[Node, Child] = field(factory=dict)
    rings: defaultdict[Node, Rings] = field(factory=lambda: defaultdict(Rings))
    lines: dict[Node, Line] = field(factory=dict)
    stopped: defaultdict[Slot, list[Line]] = field(factory=lambda: defaultdict(list))
    mean: int = UNKNOWN
    ends: list[tuple[Job, float]] = field(factory=list)
    fronts: list[Job] = field(factory=list)
    news: list[Job] = field(factory=list)
    """Jobs at which no call has looked."""
    coming: list[Line] = field(factory=list)
    waits: Counter[Node] = field(factory=Counter)
    taken: Counter[Slot] = field(factory=Counter)
    again: bool = False
    paused: set[Node] = field(factory=set)
    resumed: list[Node] = field(factory=list)
    """Values whose lines are to take part again, in the next call."""
    turned: list[Line] = field(factory=list)
    """Lines of paused values that this call has turned away."""
    places: Iterator[int] = field(factory=lambda: count(1))
    numbers: Iterator[int] = field(factory=lambda: count(1))

    # -- what happens to jobs ----------------------------------------------------------------------

    @property
    def waiting(self) -> list[Job]:
        return [
            *self.fronts,
            *self.news,
            *(job for line in self.lines.values() for job in line.jobs),
        ]

    def enqueue(
        self, headers: Mapping[str, str], *, level: int = 0, cost: float | None = None
    ) -> Job:
        """Add a job at the back of its line."""
        job = Job(headers, level, cost, next(self.places))
        self.news.append(job)
        return job

    def lease(
        self, now: float, limit: int = 1, *, same: bool = False, batch: bool = False
    ) -> list[Job]:
        """Lease up to *limit* jobs. *same* asks for one value. With *batch* their time is divided
        by their number."""
        self.turned.clear()
        self._settle()
        room = min(
            [limit, *(each.most - len(self.held) for each in self.limits if each.key is None)]
        )
        self._look()
        leased: list[Job] = []
        while True:
            for level in sorted({line.key[0] for line in self.lines.values()}, key=str):
                self._admit(level)
                if len(leased) < room and not (same and leased):
                    self._pick(level, now, room, leased, same)
            if not self.coming or len(leased) >= room or (same and leased):
                break
        self._admit(None)
        for job in leased if batch else ():
            job.number = len(leased)
        self._forget(leased)
        return leased

    def look(self) -> None:
        """Put new jobs into lines, without a lease."""
        self.turned.clear()
        self._look(settled=False)
        for level in sorted({line.key[0] for line in self.lines.values()}, key=str):
            self._admit(level)
        self._forget([])

    def end(self, job: Job, now: float, state: str = "gone") -> None:
        """End a lease. The job is gone (completed, cancelled or dead), waits in front (`front`,
        after a release, a reclaim or an expiry), waits at the back (`back`, after a retry), or is
        held back (`later`, delayed or suspended).
        """
        self.held.remove(job)
        for slot in self.line_of(job).slots:
            self.taken[slot] -= 1
        self.ends.append((job, now))
        job.state = state
        if state in ("front", "back"):
            self.come_back(job, front=state == "front")

    def come_back(self, job: Job, *, front: bool) -> None:
        """Put a job into its line, at its former place or at the back."""
        job.state = "waiting"
        if front:
            insort(self.fronts, job, key=_place)
        else:
            job.place = next(self.places)
            self.news.append(job)

    def cancel(self, job: Job) -> None:
        job.state = "gone"
        for some in (self.fronts, self.news):
            if job in some:
                some.remove(job)
                return
        line = self.line_of(job)
        line.jobs.remove(job)
        self._count(line, -1)

    def redeclare(self, weights: dict[tuple[str, ...], float], limits: list[Limit]) -> None:
        """Change the numbers while the queue runs."""
        self.weights, self.limits = weights, limits
        self.again = any(self.stopped.values())

    # -- values ------------------------------------------------------------------------------------

    def node(self, job: Job) -> Node:
        """Return the node to which this job's lease is charged."""
        return (job.level, *(job.headers.get(name) for name in self.path))

    def line_of(self, job: Job) -> Line:
        keys = [
            limit.key
            for limit in self.limits
            if limit.key is not None and limit.key not in self.path
        ]
        key = (*self.node(job), *(job.headers.get(name) for name in keys))
        if key not in self.lines:
            slots = sorted(
                (limit.key, job.headers[limit.key])
                for limit in self.limits
                if limit.key is not None and limit.key in job.headers
            )
            self.lines[key] = Line(key, self.node(job), slots)
        return self.lines[key]

    def most(self, slot: Slot) -> int:
        """The number of leased jobs that a limit admits."""
        return next(
            limit.each.get(slot[1], limit.most) for limit in self.limits if limit.key == slot[0]
        )

    def has_slot(self, job: Job) -> bool:
        """Tell whether all limits admit this job now. A job without the header has no limit of that
        key."""
        whole_queue = all(len(self.held) < limit.most for limit in self.limits if limit.key is None)
        return whole_queue and self._may_run(self.line_of(job))

    def pause(self, value: Node) -> None:
        """Pause the jobs of a value, or of an organisation with all its users."""
        self.paused.add(value)
        self.resumed = [one for one in self.resumed if one != value]

    def resume(self, value: Node) -> None:
        """Let these jobs run again, from the next call on."""
        self.paused.remove(value)
        self.resumed.append(value)

    def _halted(self, line: Line) -> bool:
        return any(
            line.key[1 : depth + 2] in self.paused for depth in range(max(1, len(self.path)))
        )

    def _may_run(self, line: Line) -> bool:
        return not self._halted(line) and self._full(line) is None

    def _full(self, line: Line) -> Slot | None:
        return next((slot for slot in line.slots if self.taken[slot] >= self.most(slot)), None)

    def quantum(self, node: Node) -> int:
        """Return the credit of a visit."""
        weight = self.weights.get(tuple(value or "" for value in node[1:]), 1.0)  # type: ignore[misc]
        return max(1, whole(QUANTUM * weight))

    def _above(self, node: Node) -> Iterator[Child]:
        """Yield a value, and the nodes above it."""
        for depth in range(len(node), 1, -1):
            if node[:depth] in self.children:
                yield self.children[node[:depth]]

    def _count(self, line: Line, number: int) -> None:
        for depth in range(1, len(line.node) + 1):
            self.waits[line.node[:depth]] += number

    # -- a call ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Apply the ends since the last call. A correction is bounded to a visit's credit, either
        way."""
        freed: Counter[Slot] = Counter()
        for job, when in self.ends:
            ran = whole(max(0.0, 1000 * (when - job.since) / job.number))
            node = self.node(job)
            value = self.children.get(node)
            if job.cost is None:
                if value is not None and len(node) > 1:
                    value.mean = max(
                        1,
                        whole(value.mean + (ran - value.mean) / WEIGHT_OF_LATEST)
                        if value.mean
                        else ran,
                    )
                self.mean = max(1, whole(self.mean + (ran - self.mean) / WEIGHT_OF_LATEST))
            for child in self._above(node):
                child.running = max(0, child.running - 1)
                if job.cost is None:
                    quantum = self.quantum(child.node)
                    child.credit = max(-quantum, min(quantum, child.credit + job.charge - ran))
            freed.update(self.line_of(job).slots)
            job.number = 1
        self.ends.clear()
        for path in self.resumed:
            some = [
                line
                for line in self.lines.values()
                if line.jobs and line.key[1 : 1 + len(path)] == path
            ]
            self.coming += sorted(some, key=_name)
        self.resumed.clear()
        for slot in sorted(freed, key=slot_name):
            for _ in range(freed[slot]):
                self._let_in(slot)
        if self.again:
            self._let_all_in()

    def _let_in(self, slot: Slot) -> None:
        """Move the first line of a limit back to its ring."""
        if self.stopped[slot]:
            line = self.stopped[slot].pop(0)
            line.stop = None
            self.coming.append(line)

    def _let_all_in(self) -> None:
        """Move lines back for which there are slots after the limits have changed."""
        self.again = False
        let: Counter[Slot] = Counter()
        for slot in sorted(self.stopped, key=slot_name):
            for line in list(self.stopped[slot]):
                if self._may_run(line) and self.taken[slot] + let[slot] < self.most(slot):
                    let[slot] += 1
                    self.stopped[slot].remove(line)
                    line.stop = None
                    self.coming.append(line)

    def _look(self, *, settled: bool = True) -> None:
        """Put new jobs into their lines."""
        for job in (*self.fronts, *self.news) if settled else self.news:
            line = self.line_of(job)
            insort(line.jobs, job, key=_place)
            self._count(line, 1)
            if line not in self.coming:
                self.coming.append(line)
        self.news.clear()
        if settled:
            self.fronts.clear()

    def _admit(self, level: object) -> None:
        """Let lines with new jobs or slots take part, if a job of them may run."""
        later = []
        while self.coming:
            line = self.coming.pop(0)
            if level is not None and line.key[0] != level:
                later.append(line)
            elif line.stop is None and not line.ready and line not in self.turned:
                if self._may_run(line):
                    line.ready = True
                    self._join(line.node)
                else:
                    self._turn_away(line)
        self.coming = later

    def _join(self, node: Node) -> None:
        """Enter the rings. A value without waiting and leased jobs is new. Other values are old,
        from the round in which they may be visited again.
        """
        while len(node) > 1:
            rings, child = self.rings[node[:-1]], self.children.get(node)
            if child is None:
                child = self.children[node] = Child(node, self.quantum(node))
                child.ring = "new"
                child.number = next(self.numbers)
                rings.new.append(child)
            elif not child.ring:
                child.round = max(child.round, rings.round)
                self._enter_old(rings, child)
            else:
                return
            node = node[:-1]

    def _enter_old(self, rings: Rings, child: Child) -> None:
        child.ring = "old"
        child.number = next(self.numbers)
        insort(rings.old, child, key=_turn)

    def _turn_away(self, line: Line) -> None:
        """Move a line whose jobs may not run to the line of its limit. Its slots go to other
        lines."""
        line.ready = False
        stop = self._full(line)
        if self._halted(line):
            stop = None
            self.turned.append(line)
        if line.jobs and stop is not None:
            line.stop = stop
            insort(self.stopped[stop], line, key=_level)
        for slot in line.slots:
            if self.taken[slot] < self.most(slot):
                self._let_in(slot)

    def _pick(self, level: object, now: float, room: int, leased: list[Job], same: bool) -> None:
        root: Node = (level,)
        while len(leased) < room:
            self._admit(level)
            node = root
            while len(node) <= len(self.path):
                child = self.rings[node].first()
                if child is None:
                    break
                if child.credit > 0:
                    node = child.node
                else:
                    self._over(child, ring="old", had=False)
            if len(node) <= len(self.path):
                return
            line = self._next_line(node)
            if line is None:
                if node == root:
                    return
                self._leave(node, had=False)
                continue
            while line is not None:
                leased.append(self._take(line, now))
                line = self._next_line(node)
                if len(leased) == room or not (
                    same or all(child.credit > 0 for child in self._above(node))
                ):
                    break
            self._end_visit(node, gone=line is None)
            if same:
                return

    def _next_line(self, node: Node) -> Line | None:
        """Return the line of a value with the first job that may run."""
        while True:
            lines = [line for line in self.lines.values() if line.node == node and line.ready]
            if not lines:
                return None
            line = min(lines, key=lambda line: line.jobs[0].place if line.jobs else 0)
            if line.jobs and self._may_run(line):
                return line
            self._turn_away(line)

    def _take(self, line: Line, now: float) -> Job:
        job = line.jobs.pop(0)
        self._count(line, -1)
        self.held.append(job)
        self.taken.update(line.slots)
        node = self.node(job)
        mean = self.children[node].mean if node in self.children else 0
        job.state, job.since = "leased", now
        job.charge = (
            max(1, whole(job.cost * self.mean)) if job.cost is not None else mean or self.mean
        )
        for child in self._above(node):
            child.credit -= job.charge
            child.running += 1
        if not line.jobs:
            self._turn_away(line)
        return job

    def _end_visit(self, node: Node, *, gone: bool) -> None:
        """Remove a visited value from its ring, or move it to the end of the old one. Do the same
        above it."""
        while len(node) > 1:
            child = self.children[node]
            if gone:
                self._over(child, ring="", had=True)
            elif child.credit <= 0:
                self._over(child, ring="old", had=True)
            node = node[:-1]
            gone = gone and not (self.rings[node].new or self.rings[node].old)

    def _leave(self, node: Node, *, had: bool) -> None:
        while len(node) > 1:
            self._over(self.children[node], ring="", had=had)
            node = node[:-1]
            if self.rings[node].new or self.rings[node].old:
                return

    def _over(self, child: Child, *, ring: str, had: bool) -> None:
        """End a visit. Rounds that pay the debt are skipped, and the credit of the next visit is
        given. *had* tells that a job was taken. Otherwise the child keeps its credit and its round.
        """
        rings, quantum = self.rings[child.node[:-1]], self.quantum(child.node)
        getattr(rings, child.ring).pop(0)
        owed = max(0, -child.credit)
        rounds = owed // quantum + 1 if had or child.credit <= 0 else 0
        if rounds:
            child.credit = rounds * quantum - owed
        child.round = rings.round + rounds
        if had:  # it is no turn of the old ring if that had nobody: then it would be visited twice
            rings.turn = "old" if child.ring == "new" and rings.old else "new"
        child.ring = ring
        if ring:
            self._enter_old(rings, child)

    def _forget(self, leased: list[Job]) -> None:
        """Remove a node of which no job waits or is leased."""
        for node, child in list(self.children.items()):
            if not (child.ring or child.running or self.waits[node]):
                del self.children[node]
                self.rings.pop(node, None)
        for key, line in list(self.lines.items()):
            if not (line.jobs or line.ready or line.stop):
                del self.lines[key]
        self.waits += Counter()
        if not (leased or self.lines or self.held or self.children):
            self.rings.clear()


def slot_name(slot: Slot) -> str:
    """Return the text of a slot, which orders slots."""
    return lp(slot[0]) + lp(slot[1])


def _place(job: Job) -> int:
    return job.place


def _level(line: Line) -> str:
    return str(line.key[0])


def _name(line: Line) -> str:
    return f"{line.key[0]}" + "".join(map(lp, line.key[1:]))  # type: ignore[arg-type]


def _turn(child: Child) -> tuple[int, int]:
    return child.round, child.number
