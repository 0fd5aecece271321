"""Values that describe a queue, such as counts, jobs' states, workers, schedules and repairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from attrs import astuple, field, frozen

from headrace._model.event import ENDS
from headrace._model.job import Job, T_co, shortened
from headrace._model.steps import Progress, Step


@frozen
class Counts:
    """The number of jobs in each state, and of jobs that have left the queue, at one instant.

    A run that sleeps is delayed, and a run that waits for a signal is blocked. The law of
    conservation always holds. It is `enqueued == completed + cancelled + deleted + dead_trimmed +
    waiting + parked + leased + delayed + blocked + dead`. `handing` counts follow-ups on their way
    to another shard of a sharded queue, where each counts as enqueued on arrival. `held` is the
    number of slots. In a queue with `fair` or `limits` it is `leased`, once no worker of an older
    version runs. Otherwise it is 0.
    """

    waiting: int = 0
    parked: int = 0
    leased: int = 0
    delayed: int = 0
    blocked: int = 0
    dead: int = 0
    enqueued: int = 0
    completed: int = 0
    cancelled: int = 0
    deleted: int = 0
    dead_trimmed: int = 0
    handing: int = 0
    held: int = 0

    @property
    def present(self) -> int:
        """Jobs that are in the queue in any state, or on their way from one shard to another."""
        return self._here + self.handing

    @property
    def _here(self) -> int:
        return self.waiting + self.parked + self.leased + self.delayed + self.blocked + self.dead

    @property
    def later(self) -> int:
        """The number of jobs whose turn comes later, which are delayed and blocked ones."""
        return self.delayed + self.blocked

    @property
    def lost(self) -> int:
        """The number of jobs that are missing by the law of conservation. It is not 0 only if
        foreign commands removed or added entries.
        """
        gone = self.completed + self.cancelled + self.deleted + self.dead_trimmed
        return self.enqueued - gone - self._here


def summed(some: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*map(astuple, some), strict=True)))


@frozen
class Repairs:
    """Counts of repaired damage by kind. The value is true if there was any.

    Pending entries without a job were `dangling` and are dropped. Jobs in no consumer's pending
    list were `stranded` and are parked, in front. Delayed jobs and suspended runs without a due
    time were `undated` and are due now. Due times without a job were `hollow` and are dropped.
    `ids_released` counts ids that no job has any more, and `ids_taken` jobs that have taken their
    own free id. `leftovers` are deadlines and releases of leases that have ended, and records of
    jobs that have left. `workers` are registrations of which only a half was left. `groups` are
    consumer groups that were lost or moved. `slots` were released after their lease had ended, or
    taken for a lease that had none. Jobs that were removed by hand now count as `deleted`, and jobs
    that were added uncounted count as `enqueued`, so that the law of conservation holds
    (`Counts.lost == 0`).
    """

    groups: int = 0
    dangling: int = 0
    stranded: int = 0
    undated: int = 0
    hollow: int = 0
    ids_released: int = 0
    ids_taken: int = 0
    leftovers: int = 0
    workers: int = 0
    deleted: int = 0
    enqueued: int = 0
    slots: int = 0

    @property
    def total(self) -> int:
        """The sum of all counts, which is 0 if nothing was broken."""
        return sum(astuple(self))

    def __bool__(self) -> bool:
        return self.total > 0

    def __add__(self, other: Repairs) -> Repairs:
        return Repairs(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@frozen
class Place:
    """The place of a child when its parent left a stage of a flow. It has the child's last
    `stage`, and its `state` as in a run.
    """

    id: str
    stage: str
    state: str


@frozen
class Children:
    """The children for which a flow's job has waited, in a queue that keeps a `history`.

    It counts children that have `completed`, have `failed` and were `cancelled`, and has the
    `places` of the first children, 16 KiB of them.
    """

    completed: int
    failed: int
    cancelled: int
    places: tuple[Place, ...] = field(default=(), repr=shortened)

    @property
    def told(self) -> str:
        """Its numbers in words."""
        numbers = (
            (self.completed, "completed"),
            (self.failed, "failed"),
            (self.cancelled, "cancelled"),
        )
        return (
            ", ".join(f"{number:,} {state}" for number, state in numbers if number)
            or "none has ended"
        )


@frozen
class Attempt:
    """An attempt at a job that has ended, in a queue that keeps a `history`.

    `began` and `ended` are the server's times, in seconds. `began` is `None` if it is unknown.
    `error` is the path of the exception's class, such as `builtins.ValueError`. It is `None` for an
    attempt that completed the job, or whose handler raised nothing. `reason` describes the failure.
    `traceback` is there if the queue keeps `tracebacks`. A delivery of a run that was `suspended`
    is an attempt too, and its `number` counts all deliveries.
    """

    number: int
    began: float | None
    ended: float
    worker: str | None = None
    error: str | None = None
    reason: str | None = field(default=None, repr=shortened)
    traceback: str | None = field(default=None, repr=False)
    suspended: bool = False

    @property
    def failed(self) -> bool:
        """Whether it neither completed the job nor was suspended."""
        return bool(self.reason or self.error)

    @property
    def took(self) -> float | None:
        """The seconds that it took, or `None` if its begin is unknown."""
        return None if self.began is None else max(0.0, self.ended - self.began)


@frozen
class JobState(Generic[T_co]):
    """A job and its state. `state` is waiting, parked, leased, delayed, blocked or dead. In a queue
    that keeps a `history` it may be completed, cancelled or deleted.

    A leased job has `worker`, and `since` is the time of its delivery or last renewal. A dead job
    has `worker`, and `since` is the time of its death. A delayed job has `due`, and so has a run
    that waits for a signal up to that moment. All times are server seconds. `reason` says why a job
    died or was last retried, in at most 500 bytes. `traceback` says where, if its queue keeps
    `tracebacks`. A job that can't be decoded has its bytes as the payload, and the cause in
    `reason`. `enqueued_at` is the time of the first enqueue. It is `None` also if a foreign
    producer wrote none that can be read.

    An ended job has `since`, the time of its end, and the `worker` if it is known. `job.attempt` is
    0 if it is unknown. Its `job` is whole if it was completed, cancelled or died, and its fields
    have no more than 64 KiB. Otherwise `payload` is `None`, and mostly `enqueued_at` too.

    `attempts` lists the attempts that have ended and reported how, in a queue with a history. An
    attempt whose worker died is not among them. `steps` and `progress` are the records of its
    handler. Only `find` reads them. `deliveries` counts how often it was delivered, and is 0 if
    unknown. `took` is the number of seconds that its handler ran, if it has reported that. It
    covers all deliveries of a run without its suspensions, and the last attempt of another job. A
    run that sleeps or waits for a signal is `suspended`. `build` is the build of the worker that
    began a run, if it had one. An ended job of a flow has the `children`
    for which it has waited.
    """

    job: Job[T_co]
    state: str
    worker: str | None = None
    since: float | None = None
    due: float | None = None
    reason: str | None = field(default=None, repr=shortened)
    entry: str | None = field(default=None, repr=False)
    traceback: str | None = field(default=None, repr=False)
    steps: Sequence[Step] = field(default=(), repr=False)
    progress: Progress | None = field(default=None, repr=False)
    attempts: Sequence[Attempt] = field(default=(), repr=False)
    deliveries: int = field(default=0, repr=False)
    took: float | None = field(default=None, repr=False)
    suspended: bool = field(default=False, repr=False)
    children: Children | None = field(default=None, repr=False)
    build: str = field(default="", repr=False)

    @property
    def overcome(self) -> bool:
        """Whether `reason` belongs to an attempt before the last delivery, which was suspended."""
        last = self.deliveries - 1 if self.state == "leased" else 0
        return self.suspended or any(one.suspended and one.number == last for one in self.attempts)

    @property
    def began(self) -> float | None:
        """The server's time, in seconds, when the first of its `attempts` began, or `None` if
        unknown.
        """
        return self.attempts[0].began if self.attempts else None

    @property
    def ended(self) -> float | None:
        """The server's time of its end, in seconds, or `None` if it has not ended."""
        return self.since if self.state in ENDS else None

    @property
    def workers(self) -> Sequence[str]:
        """The workers of its `attempts`, in their order, each once."""
        return tuple(dict.fromkeys(one.worker for one in self.attempts if one.worker))

    @property
    def enqueued_at(self) -> float | None:
        """The server's time of the first enqueue, in seconds since the epoch, or `None` if
        unknown.
        """
        return self.job.enqueued_at or None


@frozen
class RunState:
    """A run in a queue, which is a job that has taken steps.

    `state` is that of its job: `leased`, `delayed` if it sleeps, or `blocked` if it waits for a
    signal. It stands in `at`, the name of its open sleep or wait, or else of its last record, whose
    `kind` is step, once, sleep or wait. `began` is when its first record began. `due` is when a
    suspended run goes on at the latest, or `None` for never. Both are seconds of the server.
    `build` is the build of the worker that began it, or ''. `waits_for` names the builds that may
    continue it, if a worker of another build has held it back. It is tried again when it is due.
    """

    id: str
    queue: str
    state: str
    at: str
    kind: str
    began: float
    due: float | None = None
    build: str = ""
    waits_for: str = ""


CHILDREN_TOLD = 100  # of a queue in a worker's report, which is small


@frozen
class ChildFacts:
    """One child process of isolated handlers, as its worker reported it. `jobs` is how many it has
    ended, `since` the server's time of its start in seconds, `memory` its resident bytes (0 if
    unknown), and `job` the id of the job that it runs, or ''.
    """

    pid: int
    jobs: int
    since: float
    memory: int
    job: str


@frozen
class WorkerFacts:
    """Facts that a worker reports every ten seconds while it is active. They are its machine
    (`host`), the versions of headrace and Python, its process (`pid`), its resident memory in
    bytes (0 if unknown), and how many jobs of the queue it runs at a time (`slots`). `own` is how
    many its code says, where an operator has set another number, or 0. `at` is the server's time of
    the report, in seconds. `build` is its build, or ''. `missing` names builds for
    which it has held back a run of late, and that no living worker has. `children` are the
    processes of the queue's isolated handlers, 100 at most.
    """

    host: str
    version: str
    python: str
    pid: int
    memory: int
    slots: int
    at: float
    build: str = ""
    missing: str = ""
    children: tuple[ChildFacts, ...] = ()
    own: int = 0


@frozen
class OtherTerms:
    """Terms that a worker declares while its queue has others. `structure` has them in words,
    with '' for none, and `since` is the server's time of the difference, in seconds.
    """

    structure: str
    since: float


@frozen
class WorkerState:
    """A registered worker of a queue. It is alive until `deadline` (server seconds) unless it
    sends another heartbeat.

    `facts` are there if it reported some in the last day. `asked` is the request of an operator,
    which is `quiet`, `stop` or empty. `differs` is there if it declares other terms than the queue
    has. It then obeys the queue's.
    """

    name: str
    queue: str
    since: float
    deadline: float
    leased: int
    alive: bool
    facts: WorkerFacts | None = None
    asked: str = ""
    differs: OtherTerms | None = None


@frozen
class Schedule:
    """A recurring job, and when it is due next (`next_due`, server seconds). One of `every`
    (seconds) and `cron` is set.

    `missed` decides about ticks that passed while no worker ran. It is `skip`, `once` or `all`.
    While the schedule is `paused`, no tick comes, and `next_due` is the tick that was the next.
    `last_run` is the time of the last tick whose job was enqueued, or of its enqueue by hand, in
    server seconds. `last_id` is the id of that job. Both are `None` if there was none.
    """

    name: str
    next_due: float
    every: float | None
    cron: str | None
    timezone: str | None
    missed: str
    paused: bool = False
    last_run: float | None = None
    last_id: str | None = None


def ended_as(kind: str | None, state: str | None) -> str:
    """Name a listing of jobs that have ended, all or only some. Raises `TypeError` or
    `ValueError`."""
    if kind is not None and not isinstance(kind, str):
        raise TypeError(f"kind must be a str, not {type(kind).__name__}")
    if state is not None and state not in ENDS:
        raise ValueError(f"state={state!r:.100}: give one of {', '.join(ENDS)}")
    return f"ended:{state or ''}:{kind or ''}" if kind or state else "ended"
