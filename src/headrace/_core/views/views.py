"""The views of `headrace.inspect`, as generators of effects: written once for both colours, with bounded reads.

`Views` is the one reader of a process: it caches each reading for a moment, for all viewers, and keeps earlier counts,
for rates. It reads only on demand.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from attrs import define, evolve, field

from headrace._core.effects import Now, Scan, Step, send, send_all
from headrace._core.fair.shares import shares
from headrace._core.flows import sharded as flow_shards
from headrace._core.queue import calls
from headrace._core.views.redaction import Redact, Redaction
from headrace._model.checks import count
from headrace._model.codec import Codec, chosen
from headrace._model.flow import FlowState
from headrace._model.settings import QueueSettings
from headrace._model.shards import ShardRow, Table, apart, number_in
from headrace._model.state import Counts, JobState, Schedule, WorkerState, ended_as, summed
from headrace._model.views import (
    ENDED,
    KEPT,
    DeadGroup,
    DeadPage,
    Every,
    JobsPage,
    JobView,
    Overview,
    QueuePage,
    QueueView,
    RunsPage,
    ShardView,
    Trends,
    WorkerView,
    one_line,
    sum_trends,
)
from headrace._protocol import view_ops
from headrace._protocol.flow_ops import FlowOps
from headrace._protocol.keys import Keys, in_shard, job_id, pattern, queue_of, run_in, run_pattern
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, LISTED_PER_SCRIPT, OPS_PER_TRIP
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps, table
from headrace._protocol.view_ops import About

R = TypeVar("R")
STATES = ("waiting", "running", "delayed", "blocked", "dead")
TRAIL = 60  # earlier counts that are kept of each queue, for rates
RATE_S = 60.0  # seconds over which rates are measured
KEPT_AT_MOST = 256  # views
DEAD_PAGES = 10  # pages of 200 dead letters to group
JOBS_SHOWN = 20  # jobs of a group of dead letters, or of a worker
PARTS_A_PAGE = 8  # calls for a page at most
NOTHING_KEPT: tuple[float | None, Any, Exception | None] = (None, None, None)
SCANS_PER_LOOK = 50  # steps of 1,000 keys each: about 20 ms
LOOK_AGAIN_S = 10.0  # seconds between two passes over all keys


@define
class Catalogue:
    """The names found in the last scan of all keys, and in the current scan."""

    namespace: str
    whole: bool = field(default=False, init=False)
    _names: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)  # and whether it is sharded
    _found: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)  # in the pass that is under way
    _cursor: int = field(default=0, init=False)
    _since: float | None = field(default=None, init=False)  # the end of the last pass

    def refresh(self) -> Step[list[str]]:
        """Continue the search for queues; return the names found so far."""
        now = yield from Now()
        if self._cursor or self._since is None or now - self._since >= LOOK_AGAIN_S:
            for _ in range(SCANS_PER_LOOK):
                self._cursor, keys = yield from Scan(self._cursor, pattern(self.namespace))
                self._found.update((name, in_shard(key)) for key in keys if (name := queue_of(key)))
                if self._cursor == 0:
                    self._names, self._found = self._found, set()
                    self.whole, self._since = True, now
                    break
        return sorted({name for name, _ in self._names | self._found})

    def plain(self, name: str) -> bool:
        """Tell whether there is a queue of this name that has no shards."""
        return (name, False) in self._names or (name, False) in self._found

    def sharded(self, name: str) -> bool:
        """Tell whether there is a queue of this name that has shards."""
        return (name, True) in self._names or (name, True) in self._found

    def forget(self) -> None:
        """Begin the search again the next time."""
        self._since = None


@define(eq=False)
class OpsFactory:
    """Maker of the operations of each shard, for the priority levels that it is known to have."""

    catalogue: Catalogue
    codecs: Mapping[str, Codec[Any]]
    abouts: dict[str, About] = field(factory=dict[str, About], init=False)  # the last answers, by the prefix of keys
    past: dict[str, Counts] = field(factory=dict[str, Counts], init=False)  # by queue, the totals of gone shards

    def whole(self, name: str) -> Ops:
        """Make the operations of a queue without shards. Raises `ConfigurationError` for an invalid name."""
        return self._make(Keys.of(name, self.catalogue.namespace))

    def _make(self, keys: Keys) -> Ops:
        known = self.abouts.get(keys.prefix)
        settings = QueueSettings(priorities=known.levels if known else 1)
        codec = self.codecs.get(keys.queue, chosen(None))
        return (Ops if keys.shard is None else ShardOps)(keys, settings, codec, self.catalogue.namespace)

    def of(self, names: Sequence[str]) -> Step[dict[str, list[Ops]]]:
        """Make the operations of the shards of these queues, by queue.

        One script a queue reads the table of shards, unless the queue is known to have none.
        """
        keys = {name: Keys.of(name, self.catalogue.namespace) for name in names}
        asked = [name for name in keys if self.catalogue.sharded(name) or not self.catalogue.plain(name)]
        tables = (yield from send_all([table(keys[name], note=False) for name in asked])) if asked else []
        found = {name: Table.parse("", rows) for name, rows in zip(asked, tables, strict=True)}
        shards = {name: one.shards for name, one in found.items() if one is not None}
        self.past |= {name: one.gone(name) for name, one in found.items() if one is not None}
        return {name: [self._make(one) for one in self._keys(keys[name], shards.get(name, ()))] for name in names}

    def _keys(self, keys: Keys, shards: Iterable[ShardRow]) -> list[Keys]:
        some = [keys.at(part) for part in shards]
        return [keys, *some] if not some or self.catalogue.plain(keys.queue) else some

    def levelled(self, names: Sequence[str]) -> Step[dict[str, list[Ops]]]:
        """Like `of`, for the current priority levels."""
        parts = yield from self.of(names)
        every = [ops for name in names for ops in parts[name]]
        abouts = yield from send_all([view_ops.about(ops) for ops in every])
        self.abouts.update(zip((ops.keys.prefix for ops in every), abouts, strict=True))
        return {name: [self._make(ops.keys) for ops in parts[name]] for name in names}

    def about(self, parts: Sequence[Ops]) -> list[About]:
        """Return the last replies of these shards."""
        return [self.abouts[ops.keys.prefix] for ops in parts]

    def keep(self, names: Iterable[str]) -> None:
        """Forget the replies of other queues."""
        known = set(names)
        self.abouts = {prefix: one for prefix, one in self.abouts.items() if prefix.split(":")[-2] in known}
        self.past = {name: one for name, one in self.past.items() if name in known}


def place(cursor: str, parts: int) -> tuple[int, str]:
    """Read a cursor of a listing of several shards, one after another. Raises `ValueError`."""
    if parts == 1:
        return 0, cursor
    number, _, inner = cursor.partition(":") if cursor else ("0", "", "")
    if not number.isdecimal() or int(number) >= parts:
        raise ValueError(f"cursor {cursor!r:.100}: give that of the page before")
    return int(number), inner


def reason_key(reason: str) -> str:
    """Return the name of the group of dead letters with this *reason*."""
    return hashlib.sha256(_common(reason).encode("utf-8", "replace")).hexdigest()[:16]


def _common(reason: str) -> str:
    """Return the part that the reasons of one cause share: the first line, without numbers."""
    first = reason.strip().partition("\n")[0][:300]
    return re.sub(r"0x[0-9a-f]+|\d+", "#", first)


class Views:
    """Maker of all views of one namespace. *fresh*: seconds for which a view is shown again. *with_results*: reads the
    results of a job's steps, by the codec of its queue.
    """

    def __init__(
        self,
        namespace: str,
        codecs: Mapping[str, Codec[Any]] | None,
        redact: Redact | None,
        fresh: float,
        refusals: tuple[type[Exception], ...],
        with_results: Callable[[Codec[Any], JobState[Any]], JobState[Any]],
    ) -> None:
        self._catalogue = Catalogue(namespace)
        self._ops_factory = OpsFactory(self._catalogue, {name: chosen(codec) for name, codec in (codecs or {}).items()})
        self.namespace, self.fresh = namespace, fresh
        self.showing = Redaction(redact)
        self._refusals, self._with_results = refusals, with_results
        self._trails: dict[str, deque[tuple[float, int, int]]] = {}
        self._kept: dict[tuple[Any, ...], tuple[float, Any, Exception | None]] = {}

    def kept(self, key: tuple[Any, ...], build: Callable[[], Step[R]]) -> Step[R]:
        """Return the value that was read under *key* a moment ago, or read it by *build*. Errors are cached, too."""
        now = yield from Now()
        at, value, error = self._kept.get(key, NOTHING_KEPT)
        if at is None or now - at >= self.fresh:
            error = None
            try:
                read: Any = yield from build()
                value = read
            except Exception as raised:  # such as of an unreachable server: not each viewer should wait for it
                error = raised
            if len(self._kept) >= KEPT_AT_MOST:
                self._kept = {k: v for k, v in self._kept.items() if now - v[0] < self.fresh}
            self._kept[key] = ((yield from Now()), value, error)
        if error is not None:
            raise error
        found: R = value
        return found

    def forget(self) -> None:
        """Drop all cached readings, as an action has changed the queue."""
        self._kept.clear()
        self._catalogue.forget()

    # -- queues --------------------------------------------------------------------------------------

    def overview(self) -> Step[Overview]:
        """Read the overview."""
        return (yield from self.kept(("overview",), self._overview))

    def _overview(self) -> Step[Overview]:
        names = yield from self._catalogue.refresh()
        views: list[QueueView] = []
        broken: dict[str, str] = {}
        for start in range(0, len(names), OPS_PER_TRIP):
            some = names[start : start + OPS_PER_TRIP]
            try:
                views += yield from self._queues(some)
            except self._refusals:  # of one of them: a key of another type, say
                for name in some:
                    try:
                        views += yield from self._queues([name])
                    except self._refusals as error:
                        broken[name] = one_line(str(error))
        known = set(names)
        self._ops_factory.keep(known)
        self._trails = {name: trail for name, trail in self._trails.items() if name in known}
        now = max((one.now for one in self._ops_factory.abouts.values()), default=0.0)
        return Overview(now, tuple(views), self._catalogue.whole, broken)

    def _queues(self, names: Sequence[str]) -> Step[list[QueueView]]:
        """Read some queues in two round trips: first the number of levels, as the scripts take the streams of all."""
        return (yield from self._read((yield from self._ops_factory.levelled(names))))

    def _read(self, parts: Mapping[str, Sequence[Ops]]) -> Step[list[QueueView]]:
        ops: list[Op[Any]] = []
        for one in (one for some in parts.values() for one in some):
            ops += (one.measure(), one.workers())
        ops += (view_ops.relayed(self._ops_factory.whole(name)) for name in parts)
        read = yield from send_all(ops)
        replies: Iterator[Any] = iter(read)
        views = [self._view(name, some, [(next(replies), next(replies)) for _ in some]) for name, some in parts.items()]
        return [evolve(view, outbox=next(replies)) for view in views]

    def _view(
        self, name: str, parts: Sequence[Ops], read: Sequence[tuple[tuple[Counts, float, float], list[WorkerState]]]
    ) -> QueueView:
        """Make a queue's view from the replies of its shards."""
        abouts = self._ops_factory.about(parts)
        counts = summed([self._ops_factory.past.get(name, Counts()), *(counts for (counts, _, _), _ in read)])
        now = max(about.now for about in abouts)
        trail = self._trails.setdefault(name, deque(maxlen=TRAIL))
        if trail and (counts.enqueued < trail[-1][1] or now < trail[-1][0]):
            trail.clear()  # another queue of this name, or the clock went back
        if not trail or now - trail[-1][0] >= 0.5:
            trail.append((now, counts.enqueued, counts.completed))
        recent = [one for one in trail if now - one[0] <= RATE_S]
        rates: dict[str, float] = {}
        if len(recent) > 1:
            (start, *before), (end, *after) = recent[0], recent[-1]
            rates = dict(zip(("enqueued", "completed"), _rates(start, end, before, after), strict=True))
        steps = list(trail)
        line = tuple(_rates(a[0], b[0], a[1:], b[1:]) for a, b in pairwise(steps))
        shards = tuple(
            ShardView(ops.keys.shard.number, counts, lag, about.paused)
            for ops, about, ((counts, lag, _), _) in zip(parts, abouts, read, strict=True)
            if ops.keys.shard is not None
        )
        return QueueView(
            name, counts, max(lag for (_, lag, _), _ in read), any(about.paused for about in abouts),
            max(about.levels for about in abouts), _by_name(one for _, workers in read for one in workers),
            rates, line, shards,
        )  # fmt: skip

    def queue(self, name: str) -> Step[QueuePage]:
        """Read one queue."""
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[QueuePage]:
            parts = yield from self._of(name)
            (view,) = yield from self._read({name: parts})
            abouts = self._ops_factory.about(parts)
            schedules: list[Schedule] = []
            for ops in parts:
                schedules += yield from calls.schedules(ops)
            schedules.sort(key=lambda one: one.next_due)
            declared = max(abouts, key=lambda about: about.declaration)
            found = (yield from shares(parts)) if "terms" in declared.declared else []
            return QueuePage(
                abouts[0].now, view, declared.declared, declared.declaration, tuple(schedules), tuple(found)
            )

        return (yield from self.kept(("queue", name), build))

    def schedules(self, names: Sequence[str]) -> Step[dict[str, list[Schedule]]]:
        """Read the schedules of these queues, by queue; at most 500 of each."""
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[dict[str, list[Schedule]]]:
            found: dict[str, list[Schedule]] = {}
            for start in range(0, len(names), OPS_PER_TRIP):
                some = names[start : start + OPS_PER_TRIP]
                parts = yield from self._ops_factory.of(some)
                replies = iter((yield from send_all([ops.schedules() for name in some for ops in parts[name]])))
                found |= {name: [one for _ in parts[name] for one in next(replies)] for name in some}
            return found

        return (yield from self.kept(("schedules", *names), build))

    def trends(self, name: str, every: Every, number: int | None) -> Step[Trends]:
        """Read the trends of a queue."""
        if every not in KEPT:
            raise ValueError(f"every {every!r}: give 'minute' or 'hour'")
        if number is not None:
            count("number", number, most=KEPT[every])
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[Trends]:
            parts = (yield from self._ops_factory.of([name]))[name]
            return sum_trends(
                (yield from send_all([view_ops.trends(ops, every, number or KEPT[every]) for ops in parts]))
            )

        return (yield from self.kept(("trends", name, every, number), build))

    # -- jobs ----------------------------------------------------------------------------------------

    def jobs(
        self, name: str, state: str, cursor: str, limit: int, kind: str | None = None, end: str | None = None
    ) -> Step[JobsPage]:
        """Read a page of the jobs in one state. *kind* and *end* choose among jobs that have ended."""
        if state not in STATES and state != "ended":
            raise ValueError(f"state {state!r}: give one of {', '.join(STATES)}, ended")
        if (kind or end) and state != "ended":
            raise ValueError(f"kind and end are for jobs that have ended, not for the state {state!r}")
        listed = ended_as(kind, end) if state == "ended" else state
        self._ops_factory.whole(name).listing(state, cursor, limit)  # refused before anything is sent
        if limit > LISTED_PER_SCRIPT:
            raise ValueError(f"limit {limit}: give at most {LISTED_PER_SCRIPT}")

        def build() -> Step[JobsPage]:
            parts = yield from self._of(name)
            at, inner = place(cursor, len(parts))
            states, reads, now = list[JobState[Any]](), 0, 0.0
            while at < len(parts) and len(states) < limit and reads < PARTS_A_PAGE:
                some, inner, now = yield from send(view_ops.page(parts[at], listed, inner, limit - len(states)))
                states += some
                reads += bool(some or inner)  # a page ends after the parked jobs, after each level, and at 1 MiB
                at += not inner
            more = inner if len(parts) == 1 else f"{at}:{inner}" if at < len(parts) else ""
            return JobsPage(now, name, state, tuple(self.showing.job(one) for one in states), more)

        return (yield from self.kept(("jobs", name, listed, cursor, limit), build))

    def _of(self, name: str) -> Step[list[Ops]]:
        """Make the operations of each shard of a queue, for its current levels."""
        return (yield from self._ops_factory.levelled([name]))[name]

    def job(self, name: str, id: str) -> Step[JobView | None]:
        """Read one job."""
        self._ops_factory.whole(name)  # refused before anything is sent
        job_id(id)

        def build() -> Step[JobView | None]:
            gone: JobView | None = None
            for ops, its in _asked((yield from self._of(name)), id):
                found = yield from self._one(ops, its)
                if found is not None and not found.ended:
                    return found
                gone = gone or found
            return gone

        return (yield from self.kept(("job", name, id), build))

    def _one(self, ops: Ops, id: str) -> Step[JobView | None]:
        """Read one job of a shard, by the id that it has there."""
        state, token, cursor = yield from send(view_ops.seek(ops, id, ""))
        while state is None and cursor:
            state, token, cursor = yield from send(view_ops.seek(ops, id, cursor))
        if state is None or state.state in ENDED:
            result = yield from send(ops.result(id))
            return None if state is None and result is None else self.showing.gone(ops.keys.queue, id, state, result)
        until = position = None
        if state.state == "leased" and state.entry:
            holding = yield from send(view_ops.lease_of(ops, state.entry))
            until = holding.until if holding is not None and holding.worker == state.worker else None
        if state.state in ("waiting", "parked"):
            position = yield from calls.position(ops, id)
        state = self._with_results(ops.bound, state)
        return self.showing.job(state, token=token or None, until=until, position=position, whole=True)

    def find(self, id: str, names: Sequence[str]) -> Step[list[str]]:
        """Find the queues among *names* that have a job of this id. Reads the newest 1,000 dead letters, or 1 MiB."""
        job_id(id)
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[list[str]]:
            found: list[str] = []
            for start in range(0, len(names), OPS_PER_TRIP):
                some = names[start : start + OPS_PER_TRIP]
                parts = yield from self._ops_factory.levelled(some)
                asked = {name: _asked(parts[name], id) for name in some}
                states = iter((yield from send_all([ops.find(its) for name in some for ops, its in asked[name]])))
                found += (name for name in some if [None for _ in asked[name] if next(states) is not None])
            return found

        return (yield from self.kept(("find", id, *names), build))

    # -- dead letters --------------------------------------------------------------------------------

    def dead(self, name: str) -> Step[DeadPage]:
        """Group the dead letters of a queue by reason."""
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[DeadPage]:
            parts = yield from self._of(name)
            groups, seen, now = yield from self._grouped(parts)
            counts = yield from send_all([ops.counts() for ops in parts])
            shown = [self._group(key, states) for key, states in groups.items()]
            shown.sort(key=lambda one: (-one.number, one.reason))
            return DeadPage(now, name, tuple(shown), seen, max(seen, sum(one.dead for one in counts)))

        return (yield from self.kept(("dead", name), build))

    def dead_ids(self, name: str, key: str) -> Step[list[str]]:
        """Read the ids of the dead letters of one group, as far as `dead` looks."""
        groups, _, _ = yield from self._grouped((yield from self._of(name)))
        return [state.job.id for state in groups.get(key, ())]

    def _grouped(self, parts: Sequence[Ops]) -> Step[tuple[dict[str, list[JobState[Any]]], int, float]]:
        groups: dict[str, list[JobState[Any]]] = {}
        seen, now = 0, 0.0
        for number, ops in enumerate(parts):
            cursor, most = "", (DEAD_PAGES * LISTED_PER_SCRIPT - seen) // (len(parts) - number)  # an equal share
            for _ in range(DEAD_PAGES):
                states, cursor, now = yield from send(view_ops.page(ops, "dead", cursor, min(most, LISTED_PER_SCRIPT)))
                seen, most = seen + len(states), most - len(states)
                for state in states:
                    groups.setdefault(reason_key(state.reason or ""), []).append(state)
                if not cursor or most <= 0:
                    break
        return groups, seen, now

    def _group(self, key: str, states: list[JobState[Any]]) -> DeadGroup:
        moments = [state.since or 0.0 for state in states]
        first = states[0]
        reason = one_line(self.showing.text("reason", first.reason or "", first.job), 300)
        ids = tuple(state.job.id for state in states[:JOBS_SHOWN])
        return DeadGroup(key, reason, len(states), min(moments), max(moments), ids)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, name: str, worker: str) -> Step[WorkerView | None]:
        """Read a worker of a queue, and which jobs it has leased."""
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[WorkerView | None]:
            parts = yield from self._of(name)
            there = [one for some in (yield from send_all([ops.workers() for ops in parts])) for one in some]
            state = next((one for one in there if one.name == worker), None)
            if state is None:
                return None
            mine, looked = list[JobState[Any]](), 0
            for ops in parts:
                cursor = ""
                while looked < CLAIMS_PER_SCRIPT and len(mine) < min(JOBS_SHOWN, state.leased):
                    states, cursor, _ = yield from send(view_ops.page(ops, "running", cursor, LISTED_PER_SCRIPT))
                    mine += (one for one in states if one.worker == worker)
                    looked += len(states)
                    if not cursor:
                        break
            return WorkerView(state, tuple(self.showing.job(one) for one in mine[:JOBS_SHOWN]))

        return (yield from self.kept(("worker", name, worker), build))

    # -- flows ---------------------------------------------------------------------------------------

    def _flow(self, name: str, stages: list[str]) -> FlowOps:
        flow = FlowOps(name, self.namespace)
        for stage in stages:
            flow.declare(stage, (), (), {})
        return flow

    def _stages(self, flow: str) -> Step[list[str]]:
        names = yield from self._catalogue.refresh()
        return [name.partition("/")[2] for name in names if name.startswith(f"{flow}/")]

    def runs(self, flow: str, cursor: str) -> Step[RunsPage]:
        """Read some runs of a flow, as a scan of the server finds them."""
        self._flow(flow, [])  # refused before anything is sent
        if not cursor.isdigit() and cursor:
            raise ValueError(f"cursor {cursor!r}: give that of the page before")

        def build() -> Step[RunsPage]:
            stages, at, found = (yield from self._stages(flow)), int(cursor or 0), set[tuple[int | None, str]]()
            for _ in range(SCANS_PER_LOOK):
                at, keys = yield from Scan(at, run_pattern(flow, self.namespace))
                found |= {(number_in(key), run[1]) for key in keys if (run := run_in(key))}
                if at == 0 or len(found) >= OPS_PER_TRIP:
                    break
            names = flow_shards.by_place(sorted(found, key=lambda one: one[1]))
            known = yield from flow_shards.places(self._flow(flow, stages or ["-"]))
            states = (yield from flow_shards.read_at(known, names)) if names else {}
            about = yield from send(view_ops.about(self._ops_factory.whole(flow)))
            runs = [state for some in states.values() for state in some.values()]
            return RunsPage(about.now, flow, tuple(stages), tuple(runs), str(at) if at else "")

        return (yield from self.kept(("runs", flow, cursor), build))

    def run(self, flow: str, id: str) -> Step[FlowState | None]:
        """Read one run of a flow, or one of its children."""
        self._flow(flow, []).run(id)  # refused before anything is sent

        def build() -> Step[FlowState | None]:
            stages = yield from self._stages(flow)
            return (yield from flow_shards.read(self._flow(flow, stages or ["-"]), [id]))[0]

        return (yield from self.kept(("run", flow, id), build))


def _rates(start: float, end: float, before: Any, after: Any) -> tuple[float, float]:
    took = max(end - start, 0.001)
    enqueued, completed = ((b - a) / took for a, b in zip(before, after, strict=True))
    return enqueued, completed


def _by_name(workers: Iterable[WorkerState]) -> tuple[WorkerState, ...]:
    return tuple(sorted(workers, key=lambda one: one.name))


def _asked(parts: Sequence[Ops], id: str) -> list[tuple[Ops, str]]:
    """Return the shards that may have a job of this id, each with the id that the job has there."""
    bare, number = apart(id)
    return [(ops, id) for ops in parts if ops.keys.shard is None] + [
        (ops, bare) for ops in parts if ops.keys.shard is not None and number in (None, ops.keys.shard.number)
    ]
