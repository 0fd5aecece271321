"""The values that cross the public API. Users get frozen values that know no client."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeGuard, overload

from attrs import define, field, frozen

from headrace.errors import REASON_CHARACTERS, ConfigurationError, RetryLater, describe_error

if TYPE_CHECKING:  # type checkers know typing_extensions, even if it is not installed
    from typing_extensions import TypeVar

    R = TypeVar("R")

    from headrace._model.policy import IfExists
    from headrace._model.steps import Signal, Timer

    T = TypeVar("T", default=bytes)  # the type of a queue's payloads
    T_co = TypeVar("T_co", default=bytes, covariant=True)
    A = TypeVar("A", default=Any)  # the payloads of a codec: a bare `Codec` takes any
else:
    from typing import TypeVar

    R = TypeVar("R")
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    A = TypeVar("A")

P = ParamSpec("P")
Plain = bytes | bytearray | memoryview | str  # the payloads of a queue of bytes

PRIORITY = "headrace-priority"  # the header of a job's level, unless that is 0
KEY = "headrace-key"  # the header of its key, if it has one
COST = "headrace-cost"  # the header of its cost, if it has one
PARENT = "headrace-parent"  # the header of a child: the queue and the id of its parent
FROM = "headrace-from"  # the header of the queue of its first enqueue, if it was moved
SHOWN_CHARACTERS = 200  # of a payload, or of another value, in a repr
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def shortened(payload: object) -> str:
    """Show a payload or another large value in about `SHOWN_CHARACTERS` at most, with its size if
    it is cut."""
    if isinstance(payload, (str, bytes, bytearray)) and len(payload) > SHOWN_CHARACTERS:
        unit = "characters" if isinstance(payload, str) else "bytes"
        return f"{payload[: SHOWN_CHARACTERS // 2]!r}… ({len(payload):,} {unit})"
    text = repr(payload)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[: SHOWN_CHARACTERS - 1]}… ({len(text):,} characters)"


class Escaped(str):
    """An id that is not UTF-8 in a printable form. `raw` has the bytes by which the server knows
    it.
    """

    __slots__ = ("raw",)
    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> Escaped:
        made = cls(raw.decode("utf-8", "backslashreplace"))
        made.raw = raw
        return made


class Anonymous(Escaped):
    """The id of a job that was enqueued in a sharded queue without an id. It is the entry and
    the shard's number, as in `1795-0@7`.
    """

    __slots__ = ("shard",)
    shard: int

    @classmethod
    def at(cls, entry: str, shard: int) -> Anonymous:
        made = cls(f"{entry}@{shard}")
        made.raw = entry.encode()
        made.shard = shard
        return made

    @property
    def entry(self) -> str:
        return self.raw.decode()


class ShardedName(str):
    __slots__ = ("shard",)
    shard: int

    @classmethod
    def at(cls, queue: str, shard: int) -> ShardedName:
        made = cls(queue)
        made.shard = shard
        return made


class Postponed(str):
    """The reason why a payload does not decode yet. Its codec asks for *delay*."""

    __slots__ = ("delay",)
    delay: Any

    @classmethod
    def of(cls, asked: RetryLater) -> Postponed:
        made = cls(
            f"payload does not decode yet: {asked.reason or describe_error(asked)}"[
                :REASON_CHARACTERS
            ]
        )
        made.delay = asked.delay
        return made


def on_wire(name: str) -> str | bytes:
    return name.raw if isinstance(name, Escaped) else name


class Lost:
    """Flag of a job that its handler has lost, because it was cancelled, deleted, or reclaimed.
    It is truthy from then on.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[Any]) -> None:
        self._job = job

    def __bool__(self) -> bool:
        return self._job._lost  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - we are a part of it

    def __repr__(self) -> str:
        return f"Lost({bool(self)})"

    def is_set(self) -> bool:
        """Return `True` once the job is no longer this handler's."""
        return bool(self)

    def set(self) -> None:
        """Mark the job as lost. The worker calls this."""
        object.__setattr__(self._job, "_lost", True)


@define(eq=False)
class _Open(Generic[T_co]):
    """A job under construction. Each delivery makes one, and it takes three times as long to fill a
    frozen class."""

    id: str
    payload: T_co = field(repr=shortened)
    queue: str
    headers: Mapping[str, str] = field(default=NO_HEADERS, repr=shortened)
    attempt: int = 1
    enqueued_at: float = 0.0
    _lost: bool = field(default=False, init=False, repr=False)
    # takes its steps, or makes the object that does
    _steps: Any = field(default=None, init=False, repr=False)


@frozen(eq=False)  # pyright: ignore[reportGeneralTypeIssues] - frozen from here on, on purpose
class Job(_Open[T_co]):
    """One unit of work for a handler, a `Job[T]` with a payload of `bytes` by default.

    `payload` is the value that the queue's codec decoded. `attempt` is 1 the first time and counts
    deliveries less releases. `enqueued_at` is the server's time of the first enqueue, in seconds
    since the epoch.
    """

    @property
    def priority(self) -> int:
        """Its level. Level 0 comes first."""
        level = self.headers.get(PRIORITY, "")
        return int(level) if level.isdigit() else 0

    @property
    def key(self) -> str | None:
        """The key that the job shares with related jobs, or `None` if it was enqueued without
        one.
        """
        return self.headers.get(KEY)

    @property
    def cost(self) -> float | None:
        """Its cost in mean run times of the queue's jobs. With `None` its own run time is
        measured.
        """
        try:
            cost = float(self.headers[COST])
        except (KeyError, ValueError):  # a foreign producer may write anything
            return None
        return cost if 0 < cost < math.inf else None

    @property
    def parent(self) -> tuple[str, str] | None:
        """The queue and the id of the job whose run has started it, or `None`."""
        queue, _, name = self.headers.get(PARENT, "").partition(" ")
        return (queue, name) if name else None

    @property
    def shard(self) -> int:
        """The number of its shard, which is 0 in a queue that is not sharded."""
        return getattr(self.queue, "shard", 0)

    @property
    def build(self) -> str:
        """The build of the worker that began its run. It is empty for a worker without `build=`,
        and until the first step of this delivery has answered.
        """
        return str(getattr(getattr(run_of(self), "builds", None), "begun_by", ""))

    @property
    def lost(self) -> Lost:
        """Truthy once the job is no longer its handler's, because it was cancelled, deleted, or
        reclaimed by a peer.
        """
        return Lost(self)

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        undo: Callable[[R], Any] | None,
        once: bool = False,
        **kwargs: Any,
    ) -> Awaitable[R]: ...
    @overload
    def step(  # type: ignore[overload-overlap]  # `undo` is no argument of the function
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,
        undo: Callable[[R], Any] | None,
        once: bool = False,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        once: bool,
        **kwargs: Any,
    ) -> Awaitable[R]: ...
    @overload
    def step(  # type: ignore[overload-overlap]  # `once` is no argument of the function
        self, name: str, function: Callable[..., R], /, *args: Any, once: bool, **kwargs: Any
    ) -> R: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        once: Any = False,
        undo: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run `function(*args, **kwargs)` once in the job's life, and return its value. An async
        handler must `await` it.

        The value is recorded under *name*, which no other step of this job has. Each later delivery
        returns the record without a run. The value is encoded like a task's result, by the
        function's annotation, else by the queue's codec, or as JSON. An exception is not recorded.
        It ends the delivery, and the step runs again in the next one. With *once* the beginning is
        recorded before the run. A step that was begun and has no end then raises `InDoubt`, and
        never runs again. Steps may run side by side.

        `undo(value)` takes the step back, if the run dies or calls `undo()`. It takes no steps, and
        runs at least once, in the handler's slot, behind the undos of all later steps.

        Raises `RunLost` if the job is not this handler's any more, `ConfigurationError` for a name
        that was taken before, `CodecError` for a value that can't be recorded, and `ValueError` for
        a value of more than 64 KiB, or beyond 1 MiB or 1,000 records of the job. One script
        (step.lua, 20 µs). The first step of a later delivery reads all records (steps.lua).
        """
        return self._taker().step(name, function, args, kwargs, once=once, undo=undo)

    def sleep(
        self, name: str, duration: float | timedelta | datetime, *, release_key: bool = False
    ) -> Any:
        """End this delivery, and begin the next one when the time has come. The call then
        returns at once. An async handler must `await` it. Steps beside it are recorded first.

        *duration* is seconds, a `timedelta`, or an aware `datetime`. Meanwhile the job has no
        lease, no slot and no worker. `find` and `counts` say `delayed`. The job spends no attempt.
        A job of an `ordered` queue keeps its key, unless *release_key*. Raises `RunSuspended`, a
        `BaseException`, to leave the handler. Do not catch it. Raises `ValueError` for a duration
        that is negative or ends after the year 9999, and otherwise the errors of `step`. wait.lua
        and suspend.lua, 20 µs each.
        """
        return self._taker().sleep(name, duration, release_key=release_key)

    def wait_for(
        self,
        name: str,
        timeout: float | timedelta | datetime | None = None,
        *,
        release_key: bool = False,
    ) -> Any:
        """Return the data of the signal *name*, which `queue.signal` sends. An async handler
        must `await` it.

        If the signal has not come, the call ends the delivery as `sleep` does, until the signal
        comes or *timeout* has passed. With `None` there is no limit, and with 0 the call looks
        once. After the timeout it raises `TimeoutError`, now and in each later delivery. If several
        waits and sleeps stand side by side, the first that is over begins the next delivery.
        Meanwhile the job is `blocked`. Raises `CodecError` if the data does not decode, and
        otherwise the errors of `step`. wait.lua and suspend.lua, 20 µs each.
        """
        return self._taker().wait_for(name, timeout, release_key=release_key)

    def undo(self) -> Any:
        """Undo the steps that were given `undo=`, the last first, and go on. An async handler must
        `await` it.

        Each undo is recorded, so that it does not run again. In later deliveries the undone steps
        return their values, and the call returns at once. A step that had failed before does not
        run again. It raises `StepFailed`. Raises the error of an undo, which ends the attempt.
        Raises `ConfigurationError` for a second call, or one in an undo, and `RunLost`. step.lua,
        20 µs for each undo, and twice more.
        """
        return self._taker().undo()

    def run(self, call: Any, /, *args: Any, **options: Any) -> Any:
        """Start a child, wait for its end as `wait_for` does, and return its result. An async
        handler must `await` it.

        *call* is a task, with the arguments of its call, `(queue, payload)`, or a `NewJob`. Its
        queue is in the group of this one. The child's id is made of this job's and its name, which
        is the task's or the queue's, with `-2` for the second one. *child* is another name. A
        payload for another queue is encoded, and its result decoded, with this queue's codec.
        Meanwhile this job is `blocked`, without a lease and without a slot.

        Raises `ChildFailed` if the child has died, or was cancelled or deleted. That is recorded,
        so each later delivery raises it again. Raises `ConfigurationError` for a queue of another
        group, or more than 10 children below each other, `ValueError` for a child with an id of its
        own, `CodecError` for a result of more than 64 KiB, or that does not decode, and otherwise
        the errors of `step`. child.lua and suspend.lua, 60 µs.
        """
        return self._taker().child(call, args, options)

    def run_all(
        self, calls: Sequence[Any], /, *, at_most: int | None = None, failed: str = "cancel"
    ) -> Any:
        """Run children side by side, and return their results in their order. An async handler must
        `await` it.

        *calls*: at most 1,000, each a tuple of a task and its arguments, `(queue, payload)`, a
        task, or a `NewJob`. *at_most*: how many run at the same time. The first failure raises
        `ChildFailed`. With *failed* `cancel` it cancels the others, with `wait` it waits until
        those that were started have ended. The errors and costs of a child are as for `run`.
        """
        return self._taker().children(calls, at_most, failed)

    def start(self, call: Any, /, *args: Any, **options: Any) -> Any:
        """Start a child, and return it as a `Child` without waiting. An async handler must `await`
        it.

        `first` waits for it. It goes on when this job ends. Arguments and errors are as for `run`.
        child.lua, 35 µs.
        """
        return self._taker().start(call, args, options)

    def first(self, **sources: Any) -> Any:
        """Wait for the first of several sources, and return its `name` and `value`. An async
        handler must `await` it.

        A source is `signal_of(name)`, `timer(…)`, or a child of `start`. The value is the signal's
        data, `None` of a timer, and the child's result. The choice is recorded, so each later
        delivery returns the same. Raises `ChildFailed` if a child that failed was the first. The
        other errors are as for `wait_for`. wait.lua for each new source, step.lua, suspend.lua.
        """
        return self._taker().first(sources)

    def signal_of(self, name: str) -> Signal:
        """Make the source of `first` that is over when the signal *name* has come."""
        made: Signal = self._taker().signal_of(name)
        return made

    def timer(
        self,
        *,
        days: float | None = None,
        hours: float | None = None,
        minutes: float | None = None,
        seconds: float | None = None,
        until: datetime | None = None,
    ) -> Timer:
        """Make the source of `first` that is over after this time, counted from the first call, or
        at the moment *until*. With `seconds=0` it wins if no other source is over.
        """
        parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        given = {unit: number for unit, number in parts.items() if number is not None}
        made: Timer = self._taker().timer(timedelta(**given) if given else None, until)
        return made

    def progress(self, fraction: float, text: str = "") -> None:
        """Record the progress of the job as *fraction*, from 0 to 1, and up to 200 characters of
        *text*. `find`, events and pages show it.

        Notes are sent once a second at most, the latest one, and at the end of a handler or lease
        (progress.lua). The call is never awaited, and never raises an error of the server's. Raises
        `TypeError` or `ValueError`.
        """
        self._taker().progress(fraction, text)

    def _taker(self) -> Any:
        steps = self._steps
        if steps is None:
            raise ConfigurationError(
                f"job {self.id!r} takes no steps and no progress: they are for handlers of single "
                "jobs, and leases; not for jobs of a batch, of a persistent handler, leased at most "
                "once, or in another process"
            )
        if callable(steps):
            steps = steps(self)
            object.__setattr__(self, "_steps", steps)
        return steps

    # to another process: its headers may be a proxy, which does not pickle
    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (
            self.id,
            self.payload,
            self.queue,
            dict(self.headers),
            self.attempt,
            self.enqueued_at,
        )


def with_steps(job: Job[T], make: Callable[[Job[Any]], Any]) -> Job[T]:
    """Return *job*, able to take steps. With the first step, *make* makes the object for it."""
    if job._steps is None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a part of it
        object.__setattr__(job, "_steps", make)
    return job


def run_of(job: Job[Any]) -> Any:
    """Return the run of *job*. It is `None` if the job has taken no step, and noted no progress."""
    steps = job._steps  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a part of it
    return None if steps is None or callable(steps) else getattr(steps, "run", None)


def make_job(
    id: str, payload: Any, queue: str, headers: Mapping[str, str], attempt: int, enqueued_at: float
) -> Job[Any]:
    # quickly: each delivery makes one
    job: Any = _Open(id, payload, queue, headers, attempt, enqueued_at)
    job.__class__ = Job
    made: Job[Any] = job
    return made


@frozen
class NewJob(Generic[T_co]):
    """A job to enqueue that has more than a payload, a `NewJob[T]`.

    `queue` is only for follow-ups (`then=`), and is a queue of the same group. `delay` is seconds,
    a `timedelta`, or an aware `datetime`. `unique_for` and `if_exists` decide its fate if its id is
    known, as in `Queue.enqueue`. Follow-ups and schedules take neither. `key` groups jobs that
    belong together. In a sharded queue they are in one shard. `cost` is for queues with `fair=`.
    The job then counts as so many jobs of the mean run time, and is not measured.
    """

    payload: T_co = field(repr=shortened)
    id: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=shortened)
    delay: float | timedelta | datetime | None = None
    priority: int = 0
    queue: str | None = None
    unique_for: float | timedelta | None = None
    if_exists: IfExists | None = None
    key: str | None = None
    cost: float | None = None


@frozen
class Home:
    # where queues are, as far as their declarations say
    servers: frozenset[Hashable] = frozenset()  # the names of the server: see `Address.servers`
    namespace: str = ""
    shards: Mapping[str, int] = field(factory=dict[str, int])  # the numbers of shards, by queue

    def differs(
        self, servers: frozenset[Hashable], namespace: str, *, sharded: bool | None = None
    ) -> str:
        # as far as both are known
        if self.servers and servers and self.servers.isdisjoint(servers):
            return "server"
        if self.namespace and namespace and self.namespace != namespace:
            return "namespace"
        divided = sharded is not None and any(
            (number > 1) != sharded for number in self.shards.values()
        )
        return "number of shards" if divided else ""


NOWHERE = Home()


@frozen
class NewTaskJob(NewJob[bytes]):
    """A job of a task, with the codec and the home of its queue. The codec also encodes it as a
    follow-up in another queue. *decode* decodes its result.
    """

    codec: Any = field(default=None, repr=False)
    decode: Any = field(default=None, repr=False)
    home: Home = field(default=NOWHERE, repr=False, eq=False)


def is_new(job: object) -> TypeGuard[NewJob[Any]]:
    return isinstance(job, NewJob)


@frozen
class Cause:
    reason: str = field(repr=shortened)
    traceback: str = field(default="", repr=False)  # to keep with it, if any
    error: str = ""  # the path of the error's class

    @property
    def size(self) -> int:
        return sum(len(text.encode("utf-8", "replace")) for text in (self.reason, self.traceback))


class Traceable:
    """Base of values that may have a trace context, the ticket of an offloaded payload, and the
    seconds that the handler ran. These are attributes and not fields, so that unset ones cost
    nothing.
    """

    __slots__ = ("ran", "ticket", "trace")
    ran: float
    ticket: str
    trace: Any


@define(eq=False)
class Claim(Traceable):
    """A worker's claim on a job until a deadline. Scripts settle the job by its data.

    `entry` is the stream entry that carries the job now. `count` is Redis's delivery count of that
    entry, and together with `worker` it is the fence. `token` grows with every delivery of the job.
    Hand it to your own database to refuse stale writers. `duration` is seconds, or `None` for the
    worker's own. `leased_at` is the server's time, in seconds. `named` is whether the job was
    enqueued with an id, which becomes free at its end. Such an id may equal the name of the entry.
    `size` is the number of bytes of its fields. `deaths` counts the dead holders of a suspect, and
    is 0 for any other job.
    """

    job: Job[Any]
    worker: str
    entry: str
    count: int
    token: int
    duration: float | None = None
    leased_at: float = 0.0
    named: bool = False
    size: int = 0
    deaths: int = field(default=0, kw_only=True)

    @property
    def began(self) -> str:
        """When the attempt began, for scripts. It is '+ms' before now if it was measured, or
        else '@ms', the time of the lease.
        """
        ran: float | None = getattr(self, "ran", None)
        return f"@{self.leased_at * 1000:.0f}" if ran is None else f"+{max(0.0, ran) * 1000:.0f}"

    @property
    def place(self) -> tuple[int, str]:
        """The shard and the entry, because entries of two shards may have the same ID."""
        return self.job.shard, self.entry
