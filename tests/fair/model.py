"""The order of a queue that is fair between values, in plain Python: no server, no clock, no scripts.

`docs/explanation/fairness.md` has the rule. A *node* is a value, or a part of its path: `(0, "acme")` in level 0, with
two levels also `(0, "acme", "ada")`; the root of a level is `(0,)`. A *line* is a node's waiting jobs with the same
values of all limits. A job has a *place*, which decides its order in the line, and keeps it when it is released.

`Fair` is one level of the rule, a node and its children. `FairQueue` has all nodes, lines and slots. Times are ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count

from attrs import define, field, frozen

Node = tuple[object, ...]
UNKNOWN_MS = 1.0  # the mean run time of a queue in which no job has ended; see fairness.md for why it is short
WEIGHT_OF_LATEST = 8  # a run counts as an eighth of the mean


@frozen
class Limit:
    """At most *most* leased jobs: of each value of the header *key*, or of the queue."""

    most: int
    key: str | None = None


@define(eq=False)
class Job:
    """A job. *cost*: in mean run times, `None` for the measured time."""

    headers: Mapping[str, str]
    level: int = 0
    cost: float | None = None
    place: int = 0
    state: str = "waiting"
    since: float = 0.0
    charge: float = 0.0
    number: int = 1
    """The number of jobs in its batch, which share the time."""


@define
class Fair:
    """The shares of the children of a node: the next start of each, and the virtual time."""

    virtual: float = 0.0
    starts: dict[Node, float] = field(factory=dict)

    def begin(self, child: Node) -> None:
        """Let a child take part that had no job which may run: it has no credit, and keeps its debt."""
        self.starts[child] = max(self.virtual, self.starts.get(child, 0.0))

    def pick(self, child: Node, share: float) -> None:
        """Charge a child that is leased from."""
        self.virtual = self.starts[child]
        self.starts[child] += share

    def correct(self, child: Node, share: float) -> None:
        """Correct the charge by the measured time."""
        self.starts[child] = self.starts.get(child, self.virtual) + share

    def forget(self, child: Node) -> None:
        """Remove an idle child that is in no debt."""
        if self.starts.get(child, 0.0) <= self.virtual:
            self.starts.pop(child, None)


@define(eq=False)
class FairQueue:
    """A queue with `fair=path`, `weights=` and `limits=`."""

    path: tuple[str, ...] = ("tenant",)
    weights: dict[tuple[str, ...], float] = field(factory=dict)
    limits: list[Limit] = field(factory=list)
    waiting: list[Job] = field(factory=list)
    held: list[Job] = field(factory=list)
    nodes: defaultdict[Node, Fair] = field(factory=lambda: defaultdict(Fair))
    means: dict[Node, float] = field(factory=dict)
    mean: float = UNKNOWN_MS
    active: set[Node] = field(factory=set)
    """The nodes that have a job which may run."""
    places: Iterator[int] = field(factory=lambda: count(1))

    def enqueue(self, headers: Mapping[str, str], *, level: int = 0, cost: float | None = None) -> Job:
        """Add a job at the back of its line."""
        job = Job(headers, level, cost, next(self.places))
        self.waiting.append(job)
        self._refresh()
        return job

    def lease(self, now: float, limit: int = 1, *, same: bool = False, batch: bool = False) -> list[Job]:
        """Lease up to *limit* jobs. *same*: of one value. *batch*: their time is divided by their number."""
        leased: list[Job] = []
        while len(leased) < limit:
            node = self._next(self.node(leased[0]) if same and leased else None)
            if node is None:
                break
            job = min((job for job in self.waiting if self.node(job) == node and self.has_slot(job)), key=_place)
            self.waiting.remove(job)
            self.held.append(job)
            job.state, job.since, job.charge = "leased", now, self._charge(job)
            for parent, child in self._steps(node):
                self.nodes[parent].pick(child, job.charge / self._weight(child))
            leased.append(job)
            self._refresh()
        for job in leased if batch else ():
            job.number = len(leased)
        return leased

    def end(self, job: Job, now: float, state: str = "gone") -> None:
        """End a lease: the job is gone (completed, cancelled, dead), waits in front (`front`: released, reclaimed,
        expired), waits at the back (`back`: retried), or is held back (`later`: delayed, suspended).
        """
        self.held.remove(job)
        node, ran = self.node(job), (now - job.since) / job.number
        if job.cost is None:
            before = self.means.get(node, self.mean)
            self.means[node] = before + (ran - before) / WEIGHT_OF_LATEST
            self.mean += (ran - self.mean) / WEIGHT_OF_LATEST
            for parent, child in self._steps(node):
                self.nodes[parent].correct(child, (ran - job.charge) / self._weight(child))
        job.state, job.number = state, 1
        if state in ("front", "back"):
            self.come_back(job, front=state == "front")
        self._refresh()

    def come_back(self, job: Job, *, front: bool) -> None:
        """Put a job into its line: by the place that it had, or at the back."""
        if not front:
            job.place = next(self.places)
        job.state = "waiting"
        self.waiting.append(job)
        self._refresh()

    def cancel(self, job: Job) -> None:
        """Remove a waiting job."""
        self.waiting.remove(job)
        job.state = "gone"
        self._refresh()

    def node(self, job: Job) -> Node:
        """Return the node to which this job's lease is charged."""
        return (job.level, *(job.headers.get(name, "") for name in self.path))

    def slots(self, limit: Limit, job: Job) -> int:
        """Count the slots of this limit that are taken: of the value that *job* has, or of the queue."""
        if limit.key is None:
            return len(self.held)
        return sum(other.headers.get(limit.key) == job.headers.get(limit.key) for other in self.held)

    def has_slot(self, job: Job, *, whole: bool = True) -> bool:
        """Tell whether all limits admit this job now; without *whole* only limits with a key. A job without the header
        has no limit of that key.
        """
        return all(
            self.slots(limit, job) < limit.most
            for limit in self.limits
            if (whole if limit.key is None else limit.key in job.headers)
        )

    def redeclare(self, weights: dict[tuple[str, ...], float], limits: list[Limit]) -> None:
        """Change the numbers while the queue runs."""
        self.weights, self.limits = weights, limits
        self._refresh()

    def _charge(self, job: Job) -> float:
        return self.means.get(self.node(job), self.mean) if job.cost is None else job.cost * self.mean

    def _weight(self, node: Node) -> float:
        return self.weights.get(tuple(str(value) for value in node[1:]), 1.0)

    @staticmethod
    def _steps(node: Node) -> Iterator[tuple[Node, Node]]:
        """Yield (parent, child) from the root of the level to *node*."""
        for depth in range(1, len(node)):
            yield node[:depth], node[: depth + 1]

    def _next(self, only: Node | None) -> Node | None:
        """Return the value from which to lease, level by level; *only*: that value, or none."""
        if only is not None:
            return only if only in self.active else None
        roots = sorted(node for node in self.active if len(node) == 1)
        if not roots or not any(map(self.has_slot, self.waiting)):
            return None
        node = roots[0]
        while len(node) <= len(self.path):
            children = [child for child in self.active if child[:-1] == node]
            starts = self.nodes[node].starts
            node = min(children, key=lambda child: (starts[child], str(child[-1])))
        return node

    def _refresh(self) -> None:
        """Find which nodes have a job that may run, and forget idle nodes."""
        may_run = {self.node(job) for job in self.waiting if self.has_slot(job, whole=False)}
        active = {node[:depth] for node in may_run for depth in range(1, len(node) + 1)}
        for node in sorted(active - self.active, key=len):
            if len(node) > 1:
                self.nodes[node[:-1]].begin(node)
        self.active = active
        if not (self.waiting or self.held):
            self.nodes.clear()
            self.means.clear()
            return
        busy = {self.node(job)[:depth] for job in (*self.waiting, *self.held) for depth in range(1, len(self.path) + 2)}
        for parent, fair in list(self.nodes.items()):
            for child in [child for child in fair.starts if child not in busy]:
                fair.forget(child)
                if child not in fair.starts:
                    self.means.pop(child, None)
            if not fair.starts:
                del self.nodes[parent]


def _place(job: Job) -> int:
    return job.place
