"""Values that `headrace.inspect` shows. Times are seconds of the server's clock; texts are bounded, and printable."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from attrs import evolve, field, frozen

from headrace._model.flow import FlowState
from headrace._model.job import shortened
from headrace._model.state import Attempt, Children, Counts, Schedule, WorkerState, summed
from headrace._model.steps import Progress, Step
from headrace._model.terms import Share, Structure

NO_RATES: Mapping[str, float] = {}
NOTHING_BROKEN: Mapping[str, str] = {}
RELAY_DEAD_AFTER_S = 60.0  # seconds: four reports of a relay are missing
ENDED = ("completed", "cancelled", "deleted")  # states of jobs that have left their queue


@frozen
class ShardView:
    """A shard of a queue: its `number`, its `counts` of one instant, the age in seconds of its oldest job that is next
    (`lag`), and whether it is `paused`.
    """

    number: int
    counts: Counts
    lag: float
    paused: bool


@frozen
class OutboxView:
    """The rows that wait in a queue's SQL outbox, as the `relay` of this name reported `age` seconds ago: how many
    (10,000 at most are counted), the seconds since the `oldest` was written, how many are `refused`, and `why`: the
    position and the reason of the first of these.
    """

    relay: str
    rows: int
    oldest: float
    refused: int
    ended: bool
    """Whether the relay has ended in good order since."""
    age: float = 0.0
    why: str = ""

    @property
    def dead(self) -> bool:
        """Whether the relay has neither reported for a minute nor ended in good order."""
        return not self.ended and self.age > RELAY_DEAD_AFTER_S

    @property
    def text(self) -> str:
        """Its words for screens."""
        rows = f"{self.rows:,} rows" + (f", the oldest for {self.oldest:.0f} s" if self.rows else "")
        why = f" ({self.why})" if self.why else ""
        refused = f", {self.refused:,} refused{why}" if self.refused else ""
        running = "is dead, it reported" if self.dead else "reported"
        relay = "ended" if self.ended else running
        return f"{rows}{refused}; the relay {self.relay} {relay} {self.age:.0f} s ago"


def program_name(registration: str) -> str:
    """Return the name of the program behind a worker's registration, which has a random part at its end."""
    return registration.rpartition(".")[0] or registration


@frozen
class QueueView:
    """A queue in an overview: `counts` of one instant, the age in seconds of the oldest job that is next (`lag`), and
    the jobs a second that were `enqueued` and `completed` in the last minute, as far as this reader has looked
    (`rates`, empty at first). Of a sharded queue (`shards`) the counts are sums, of an instant for each shard.
    """

    name: str
    counts: Counts
    lag: float
    paused: bool
    levels: int
    workers: tuple[WorkerState, ...]
    rates: Mapping[str, float] = NO_RATES
    trail: tuple[tuple[float, float], ...] = ()
    """Jobs a second that were enqueued and completed between the latest looks, the oldest first: for a small chart."""
    shards: tuple[ShardView, ...] = ()
    outbox: OutboxView | None = None
    """Its SQL outbox, if a relay has told of one."""
    trends: bool = False
    """Whether it keeps trends."""
    looks: tuple[float, ...] = ()
    """The times of the looks of `trail`, in seconds of the server's clock."""
    terms: str = ""
    """The structure of its terms, in words; empty for none."""

    @property
    def balanced(self) -> bool:
        """Whether the laws hold: every job that was enqueued is present, or has left as it should; and where slots of
        `fair` or `limits` are taken, each is of a leased job.
        """
        return not self.imbalance

    @property
    def imbalance(self) -> str:
        """The law that is broken: `2 missing`, `2 too many`, `3 slots of 2 leased jobs`; empty while both hold."""
        c = self.counts
        if c.lost:
            return f"{abs(c.lost)} {'missing' if c.lost > 0 else 'too many'}"
        return "" if c.held in (0, c.leased) else f"{c.held} slots of {c.leased} leased jobs"

    @property
    def law(self) -> str:
        """The law of conservation with this queue's numbers, all of one instant."""
        c = self.counts
        gone = f"{c.completed} completed + {c.cancelled} cancelled + {c.deleted} deleted + {c.dead_trimmed} trimmed"
        text = f"{c.enqueued} enqueued {'≠' if c.lost else '='} {gone} + {c.present - c.handing} present"
        return text if self.balanced else f"{text}: {self.imbalance}"

    @property
    def alive(self) -> int:
        """Workers that are alive."""
        return len(self.alive_names)

    @property
    def alive_names(self) -> frozenset[str]:
        """The names of workers that are alive, without the random part of each registration in a queue or shard."""
        return frozenset(program_name(one.name) for one in self.workers if one.alive)


@frozen
class Totals:
    """Sums over queues: jobs in each state, the jobs a second that came and were done (`None`: not known yet), the
    longest `lag`, and the workers that are alive.
    """

    waiting: int
    running: int
    delayed: int
    blocked: int
    dead: int
    completed: int
    enqueued_rate: float | None
    completed_rate: float | None
    lag: float
    workers: int

    @property
    def later(self) -> int:
        """Jobs whose turn comes later: delayed ones, and blocked ones."""
        return self.delayed + self.blocked

    @classmethod
    def of(cls, queues: Sequence[QueueView]) -> Totals:
        """Sum these queues. A worker of several queues counts once."""
        counts = summed([Counts(), *(queue.counts for queue in queues)])
        rates = [queue.rates for queue in queues if queue.rates]
        enqueued, completed = (
            sum(one.get(name, 0.0) for one in rates) if rates else None for name in ("enqueued", "completed")
        )
        lag = max((queue.lag for queue in queues), default=0.0)
        workers = len({name for queue in queues for name in queue.alive_names})
        waiting = counts.waiting + counts.parked
        return cls(
            waiting, counts.leased, counts.delayed, counts.blocked, counts.dead, counts.completed, enqueued, completed,
            lag, workers,
        )  # fmt: skip


@frozen
class ServerFacts:
    """The server, or the fullest primary of a cluster, as INFO tells it: its name and version, its address without
    secrets, the bytes that it uses and may use (`maxmemory`, 0: no limit), and how many commands it has refused for
    lack of memory (`refused`).
    """

    name: str
    version: str
    address: str
    memory: int = 0
    maxmemory: int = 0
    refused: int = 0

    @property
    def full(self) -> float:
        """The used part of `maxmemory`, 0 without a limit."""
        return self.memory / self.maxmemory if self.maxmemory else 0.0

    @property
    def text(self) -> str:
        """Its name, version and address."""
        return f"{self.name} {self.version} at {self.address}"


@frozen
class Attention:
    """A fact that needs attention.

    `kind` is dead, oldest, paused, no worker, unbalanced, unreadable, unknown kind, rate, outbox, terms or server;
    `queue` is '' for the server. `bad`: work fails or stands still; otherwise it may be intended, or end by itself.
    """

    kind: str
    queue: str
    text: str
    bad: bool = False


@frozen
class Overview:
    """All queues of a namespace at the time `now`, by name; `broken` says why others can't be read.

    `whole` once all keys of the server have been scanned: that takes several steps, so that no step holds up a large
    server. `attention` lists the facts that need attention, the worst first. `server` is `None` if INFO is refused.
    """

    now: float
    queues: tuple[QueueView, ...]
    whole: bool
    broken: Mapping[str, str] = NOTHING_BROKEN
    attention: tuple[Attention, ...] = ()
    server: ServerFacts | None = None
    looks: tuple[tuple[float, Mapping[str, tuple[int, int]]], ...] = field(default=(), repr=False)
    """The latest looks, the oldest first: the time, and how many jobs each queue had got and completed."""

    @property
    def totals(self) -> Totals:
        """The sums over all queues."""
        return Totals.of(self.queues)

    def throughput(self, names: Collection[str]) -> tuple[tuple[float, float, float], ...]:
        """Return the jobs a second that came to these queues, and were completed, between the latest looks.

        Each row has the time of the look at its end. A queue counts where both looks have it.
        """
        rows: list[tuple[float, float, float]] = []
        for (start, before), (end, after) in pairwise(self.looks):
            both = [(before[name], after[name]) for name in names if name in before and name in after]
            came, done = (sum(max(0, b[i] - a[i]) for a, b in both) / (end - start) for i in (0, 1))
            rows.append((end, came, done))
        return tuple(rows)

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The workers of all queues, by name and queue."""
        return tuple(sorted((w for q in self.queues for w in q.workers), key=lambda w: (w.name, w.queue)))


@frozen
class SlotView:
    """A value of a limit's header: `taken` slots are of leased jobs with it; `waits`: other jobs wait for one.
    `places`: its limit, if it has one of its own.
    """

    value: str
    taken: int
    waits: bool
    places: int | None = None


@frozen
class LimitView:
    """A limit by the header `key`, with `places` for each value, and the ten `values` that have taken the most. `more`:
    there are values that were not looked at.
    """

    key: str
    places: int
    values: tuple[SlotView, ...]
    more: bool = False


@frozen
class Tenants:
    """The values between which a queue is `fair`, by the headers `fair`, with the `shares` of the busiest, and its
    declared limits: pairs of a header (`None`: of the whole queue) and a number of jobs. `leased` jobs run now. `slots`
    are of the limits by a header.
    """

    queue: str
    fair: tuple[str, ...]
    limits: tuple[tuple[str | None, int], ...]
    shares: tuple[Share, ...]
    leased: int
    slots: tuple[LimitView, ...] = ()

    @classmethod
    def of(
        cls,
        queue: str,
        declared: Mapping[str, str],
        shares: Sequence[Share],
        leased: int,
        slots: Sequence[LimitView] = (),
    ) -> Tenants:
        """Read the terms in the words of their declaration. Limits that can't be read are left out."""
        words = map(re.compile(r"(\d+)(?: of (.+))?").fullmatch, declared.get("limits", "").split(", "))
        limits = tuple((word[2], int(word[1])) for word in words if word is not None)
        return cls(queue, fair_by(declared), limits, tuple(shares), leased, tuple(slots))

    @property
    def used(self) -> float:
        """The seconds of the workers' time that the shown values had of late."""
        return sum(share.used for share in self.shares)

    @property
    def most(self) -> int | None:
        """The number of jobs of one value that may run, if a limit has the header of `fair`; else `None`."""
        return next((limit for key, limit in self.limits if self.fair == (key,)), None)


def fair_by(declared: Mapping[str, str]) -> tuple[str, ...]:
    """Return the headers by which a queue is fair."""
    return Structure.read(declared.get("terms", "")).path


@frozen
class QueuePage:
    """One queue, with its declared options (`declared`), the number of the `declaration`, its schedules, and the shares
    of its busiest values, if it is fair, and the slots of its limits by a header.
    """

    now: float
    queue: QueueView
    declared: Mapping[str, str]
    declaration: int
    schedules: tuple[Schedule, ...]
    shares: tuple[Share, ...] = ()
    slots: tuple[LimitView, ...] = ()

    @property
    def fair(self) -> tuple[str, ...]:
        """The headers by which the queue is fair."""
        return fair_by(self.declared)

    @property
    def tenants(self) -> Tenants | None:
        """The values between which the queue is fair, and its limits; `None` for a queue without either."""
        if "terms" not in self.declared:
            return None
        return Tenants.of(self.queue.name, self.declared, self.shares, self.queue.counts.leased, self.slots)


@frozen
class Moment:
    """A line of a job's timeline: an event at `at` (`None`: the time is not known)."""

    at: float | None
    what: str = field(repr=shortened)


@frozen
class JobView:
    """A job as it may be shown. An ended job is shown as far as its result or a `history` is kept.

    `until`, `token` and `holder` describe its lease, if it has one; `timeline` lists the events that its data records.
    `steps` and `progress` are the records of its handler; the `result` of a step is a `Payload`. `attempts` have ended.
    `kind` is its header of that name. `shard` is the number of the shard that has it, where one job was asked for.
    """

    id: str
    queue: str
    state: str
    attempt: int
    priority: int
    enqueued_at: float | None
    payload: Payload
    headers: Mapping[str, str] = field(repr=shortened)
    holder: str | None = None
    since: float | None = None
    due: float | None = None
    reason: str | None = field(default=None, repr=shortened)
    traceback: str | None = field(default=None, repr=False)
    token: int | None = None
    until: float | None = None
    position: int | None = None
    result: Payload | None = None
    timeline: tuple[Moment, ...] = ()
    steps: tuple[Step, ...] = ()
    progress: Progress | None = None
    attempts: tuple[Attempt, ...] = ()
    kind: str | None = None
    wait: float | None = None
    """Seconds from its first enqueue to its first attempt, delays included; `None`: not known. Of a running job in its
    first attempt: at most, as the renewal of its lease counts as its delivery.
    """
    duration: float | None = None
    """Seconds that its last attempt took, or of a run all its deliveries, without its suspensions; of a running job
    since its delivery, or since the last renewal of its lease; `None`: not known.
    """
    finished: float | None = None
    """The server's time of its end or its death, in seconds; `None` if it has not ended, or that is not known."""
    shard: int | None = None
    deliveries: int = 0
    """The times that it was handed out; 0: not known."""
    suspended: bool = False
    """Whether it is a run that sleeps, or waits for a signal."""
    children: Children | None = None
    """Of an ended job of a flow: the children for which it waited."""
    overcome: bool = False
    """Whether its `reason` tells of an attempt before its last delivery: that one was suspended."""

    @property
    def is_run(self) -> bool:
        """Whether its handler has taken steps, as far as that is known."""
        return bool(self.steps) or self.suspended or any(one.suspended for one in self.attempts)

    @property
    def counted(self) -> str:
        """The word for one of its `attempts`: a run has deliveries."""
        return "delivery" if self.is_run else "attempt"

    @property
    def told(self) -> str | None:
        """Its `reason`, if that tells of its state now."""
        return None if self.overcome else self.reason

    @property
    def ended(self) -> bool:
        """Whether it has left the queue: completed, cancelled or deleted. A history may have kept its payload."""
        return self.state in ENDED


@frozen
class JobsPage:
    """A page of the jobs of a queue in one state; `cursor` is where to go on, empty at the end. `looked`: the number of
    jobs that were read for it.
    """

    now: float
    queue: str
    state: str
    jobs: tuple[JobView, ...]
    cursor: str
    looked: int = 0


@frozen
class KindView:
    """The jobs of one kind (`None`: without one) that ended of late: their `number`, the `dead` among them.

    `run` and `wait` are the 50th and the 95th percentile, in seconds, of how long their last attempts took, and of how
    long they waited for their first; `None` where that is not known of any.
    """

    kind: str | None
    number: int
    dead: int
    run: tuple[float, float] | None
    wait: tuple[float, float] | None

    @property
    def failing(self) -> float:
        """The part that died, from 0 to 1."""
        return self.dead / self.number


@frozen
class KindsPage:
    """The kinds of the jobs that ended last in a queue with a `history`, the most frequent first.

    `seen` jobs were looked at, completed or dead; the first of them ended at `since`. `kept`: whether the queue keeps a
    history.
    """

    now: float
    queue: str
    kept: bool
    kinds: tuple[KindView, ...] = ()
    seen: int = 0
    since: float | None = None


@frozen
class WorkerView:
    """A worker of a queue, and some of the jobs that it has leased, oldest first."""

    worker: WorkerState
    jobs: tuple[JobView, ...]


@frozen
class StageView:
    """A stage of a flow: its `queue`, and the stages to which its jobs go on (`next`) or fan out (`children`)."""

    name: str
    queue: QueueView
    next: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


@frozen
class FlowView:
    """A flow, or another group of queues, with its stages in their order; `known`: whether workers have declared it,
    so that its order is known.
    """

    name: str
    stages: tuple[StageView, ...]
    known: bool


@frozen
class RunsPage:
    """Some runs of a flow, in no order; `cursor` is where to go on, empty at the end."""

    now: float
    flow: str
    stages: tuple[str, ...]
    runs: tuple[FlowState, ...]
    cursor: str


def has_job(state: str) -> bool:
    """Tell whether a queue has the job of a run or child in this state, '' before it comes. They are in no history."""
    return state not in ("", "completed", "cancelled")


@frozen
class ChildView:
    """A child of a run: its `state` and `stage`, as a run has them; `began` with its siblings, and `ended`, both times
    as far as known. `job`: the state of its job in the queue, where that was read.
    """

    id: str
    state: str
    stage: str
    began: float | None = None
    ended: float | None = None
    job: str = ""

    @property
    def name(self) -> str:
        """Its name among its siblings."""
        return self.id.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """Its state in one word: of its job, if that was read."""
        return self.job or ("going on" if self.state == "running" else self.state)

    @property
    def there(self) -> bool:
        """Whether its queue has its job."""
        return has_job(self.state)

    def took(self, now: float) -> float | None:
        """Return the seconds from its begin to its end, or to *now*."""
        until = self.ended if self.state not in ("running", "blocked") else now
        return None if self.began is None or until is None else max(0.0, until - self.began)


@frozen
class RunView(FlowState):
    """A run, or a child of one, with the stages that it has `passed`, in this order, and its seconds in each; `took`:
    seconds in its present or last `stage`. `None`: not known. `parts`: its children, as far as `whole` says all of
    them. `job`: the state of its job in the queue, while it goes on. `now`: when it was read.
    """

    passed: Mapping[str, float | None] = field(factory=dict[str, "float | None"])
    since: float | None = None
    """When it came to its present stage, or had left its last."""
    parts: tuple[ChildView, ...] = ()
    now: float = 0.0
    job: str = ""
    whole: bool = True

    @classmethod
    def of(
        cls, state: FlowState, began: float | None, ends: Mapping[str, float], parts: Sequence[ChildView]
    ) -> RunView:
        """Join a state with the times at which its job `began`, and left stages."""
        goes_on = state.state in ("running", "blocked")
        passed: dict[str, float | None] = {}
        if "/" not in state.id:  # it left them before this version wrote when
            passed = {stage: None for stage in state.results if stage not in ends and stage != state.stage}
        since = None if passed else began
        for stage, at in sorted(ends.items(), key=lambda end: (end[1], end[0] == state.stage)):
            if stage != state.stage or not goes_on:
                passed[stage] = None if since is None else max(0.0, at - since)
                since = at
        known = (state.attributes, state.results, state.children, state.failed, state.pending)
        end = (state.started_at, state.ended_at, state.reason)
        return cls(state.id, state.state, state.stage, *known, *end, passed, since, tuple(parts))

    @property
    def there(self) -> bool:
        """Whether its queue has its job."""
        return has_job(self.state)

    @property
    def took(self) -> float | None:
        """The seconds in its present or last stage."""
        if self.state not in ("running", "blocked"):
            return self.passed.get(self.stage)
        return None if self.since is None else max(0.0, self.now - self.since)


SHOWN_CHARACTERS = 16_384  # characters of a text that are shown of one job
READ_BYTES = 4 * SHOWN_CHARACTERS  # bytes of a payload that are read to show it
LAYOUT = "\n\t"  # characters that do not print, and may stay in a text of several lines
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
LINE_CHARACTERS = 160  # characters of a text that are shown in a list


@frozen
class ScheduleView:
    """A schedule of a `queue` as it may be shown, with the `payload` and the `headers` of its jobs."""

    queue: str
    schedule: Schedule
    payload: Payload
    headers: Mapping[str, str] = field(repr=shortened)


@frozen
class Payload:
    """A payload as it may be shown: `kind` is text, json or hex; `size` bytes there are, `cut` if not all is shown."""

    kind: str
    text: str = field(repr=shortened)
    size: int
    cut: bool = False
    whole: bool = False
    """Whether the text is all of it, neither redacted nor escaped: then it may be edited."""

    @property
    def line(self) -> str:
        """Its beginning, on one line."""
        return one_line(self.text, cut=self.cut)


def span(seconds: float | None) -> str:
    """Write a duration in few characters."""
    if seconds is None:
        return ""
    size, unit = next((unit for unit in UNITS if seconds >= unit[0]), (1.0, "s"))
    number = f"{seconds / size:.1f}".removesuffix(".0") if seconds < 10 * size and unit != "s" else ""
    return f"{number or round(seconds / size)} {unit}"


def visible(text: str, keep: str = "") -> str:
    r"""Spell characters that do not print as escapes (`\x00`, `\u202e`), but those in *keep*."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, most: int = LINE_CHARACTERS, *, cut: bool = False) -> str:
    """Return the beginning of *text* on one line, marked by an ellipsis if it is cut, or the text was *cut* before."""
    start = visible(" ".join(text[: 4 * most].split()))
    return f"{start[:most]}…" if cut or len(start) > most or len(text) > 4 * most else start


def bounded(text: str, most: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return the printable beginning of *text*, in several lines, and whether that is less than all."""
    return visible(text[:most], keep=LAYOUT), len(text) > most


def readable(data: bytes) -> tuple[str, str]:
    """Return the format of *data*, text, json or hex, and its beginning as text.

    JSON is an object or a list that is small enough to be parsed whole.
    """
    start = data[:READ_BYTES]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(data))
    except UnicodeDecodeError:
        return "hex", start.hex(" ", -2)
    if len(start) == len(data) and text.lstrip()[:1] in {"{", "["}:
        try:
            return "json", json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return "text", text


def text_of(value: Any) -> tuple[str, str]:
    """Return the kind of a decoded payload, and its text: bytes as `readable` has them, all else as JSON."""
    if isinstance(value, (bytes, bytearray)):
        return readable(bytes(value))
    if isinstance(value, str):
        return "text", value
    try:
        return "json", json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return "text", repr(value)


Every = Literal["minute", "hour"]
EVERY_S = {"minute": 60, "hour": 3600}  # seconds between two records
KEPT = {"minute": 2880, "hour": 2160}  # records that a queue keeps: two days, and 90


@frozen
class TrendPoint:
    """A record of a queue's counts.

    `waiting` (parked jobs too), `leased`, `later` (delayed or blocked) and `dead` are counts at the moment `at`; `lag`
    is how many seconds the oldest of the next jobs had waited then. `enqueued`, `completed` and `removed` (cancelled,
    deleted, trimmed) count the jobs of the `seconds` since the record before. That is longer ago than a minute, or an
    hour, if no worker has swept the queue meanwhile. For a sharded queue all values are sums, but `lag` is the longest.
    Each shard keeps its own records. The first record of a new shard leaves out its earlier work.
    """

    at: float
    seconds: float
    enqueued: int
    completed: int
    removed: int
    waiting: int
    leased: int
    later: int
    dead: int
    lag: float


@frozen
class Trends:
    """Counts that a queue had, oldest first; `kept`: whether the queue is declared with `trends=True`."""

    now: float
    queue: str
    every: Every
    kept: bool
    points: tuple[TrendPoint, ...]


def sum_trends(shards: Sequence[Trends]) -> Trends:
    """Sum the trends of a queue's shards, minute by minute, or hour by hour.

    A shard without a record, as it was not swept then, counts with the jobs of its last record.
    """
    length = EVERY_S[shards[0].every]
    sums: dict[int, TrendPoint] = {}
    times = sorted({int(one.at) // length for shard in shards for one in shard.points})
    for shard in shards:
        own = {int(one.at) // length: one for one in shard.points}
        last: TrendPoint | None = None
        for time in times:
            if time in own:
                last = own[time]
            elif last is not None:
                last = evolve(last, at=0.0, seconds=0.0, enqueued=0, completed=0, removed=0, lag=0.0)
            if last is not None:
                sums[time] = _both(sums[time], last) if time in sums else last
    return evolve(
        shards[0],
        now=max(shard.now for shard in shards),
        kept=any(shard.kept for shard in shards),
        points=tuple(sums[time] for time in times),
    )


def _both(a: TrendPoint, b: TrendPoint) -> TrendPoint:
    return TrendPoint(
        max(a.at, b.at),
        max(a.seconds, b.seconds),
        a.enqueued + b.enqueued,
        a.completed + b.completed,
        a.removed + b.removed,
        a.waiting + b.waiting,
        a.leased + b.leased,
        a.later + b.later,
        a.dead + b.dead,
        max(a.lag, b.lag),
    )
