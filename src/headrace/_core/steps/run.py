"""A run is one delivery of a job whose handler takes steps. It decides about records, and about its
end.

The handler runs from its top at each delivery. A step that was recorded answers from its record. A
sleep or wait that is over lets the handler go on. The records are read once, with the first step,
unless this is the first delivery.

A sleep or wait that is not over is recorded at once. When no step runs beside it any more, it
raises `RunSuspended`. The run is suspended when its handler has ended so. Until then another branch
of the handler may fail, and that counts. A lease by hand has no handler, so its run is suspended
before that is raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NoReturn, Protocol, cast

from attrs import define, field, frozen

from headrace._core.effects import Call, R, Send, Sleep, send
from headrace._core.steps.builds import Builds
from headrace._core.steps.names import Names
from headrace._core.steps.undo import LOOK_S, UNDER_WAY, Undos, refused_inside, stopped
from headrace._model.checks import Context
from headrace._model.job import NOWHERE, Claim, Home, Job, NewJob
from headrace._model.policy import Durability
from headrace._model.steps import RUN_BYTES, RUN_RECORDS, Record, moment, step_name
from headrace._protocol.durability import with_durability
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.features.runs.ops import BYTES_SPENT, LOST
from headrace._protocol.features.runs.records import Records
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import ConfigurationError, InDoubt, RunLost, RunSuspended

# of the event loop, in which tasks that were made beside a wait, or that a step has woken, take
# their steps
TURNS = 8
GRACE_S = 0.05  # seconds in which a branch takes its next step, once one of its steps has ended


class Values(Protocol):
    def check(self, what: str, function: Callable[..., Any]) -> None: ...

    def encoded(
        self, what: str, value: Any, function: Callable[..., Any] | None = None
    ) -> bytes | None: ...

    def decoded(
        self, what: str, data: bytes | None, function: Callable[..., Any] | None = None
    ) -> Any: ...

    def result(self, what: str, data: bytes | None, codec: Any, decode: Any) -> Any: ...


def ignored(*_: object) -> None:
    """Do nothing. This is the default of a run's callbacks."""


@frozen
class Callbacks:
    """The calls of a run to its worker."""

    depart: Callable[[Claim], object] = ignored
    """Called when the job leaves its worker, because its run is suspended, or its lease is lost."""
    note: Callable[..., object] = ignored
    """Takes the name of a log event and of the step, and the trace of an earlier delivery."""
    judged: Callable[[BaseException | None, Any, bool], str | None] = ignored
    """Takes the error and the result of a handler, and whether attempts count anew. Its answer is
    the reason for which the job is to die, or `None` if the job lives."""
    missing: Callable[[str], object] = ignored
    """Called with the builds that a run waits for, if no living worker has one."""
    context: Context = tuple  # the trace headers of a child that is started now
    away: Callable[[str], object] | None = None
    """Takes the prefix of the keys of a queue in another slot, in which a child was started. `None`
    if no worker fetches the ends of such children."""
    divide: Callable[[Keys, int], Call[Any]] | None = None
    """Makes the table of the shards of a queue that is used for the first time, and returns it."""
    home: Home = NOWHERE  # of the run's queue, with the shards of all queues of its worker


# a sleep or wait that is not over
@frozen
class Wait:
    number: int  # of its record
    release_key: bool  # other jobs of the key may run meanwhile
    group: int = 0  # of children that are all to be over, before the run goes on


# of a handler, which may take steps beside each other
@define(eq=False)
class Branches:
    made: list[tuple[str, Any]] = field(factory=list[tuple[str, Any]])
    """The coroutines that the handler made, each with the words of its call."""
    # steps whose functions run, and sleeps and waits not yet recorded
    running: set[str] = field(factory=set[str])
    waits: dict[str, Wait] = field(factory=dict[str, Wait])  # the open sleeps and waits, by name
    adopted: set[str] = field(factory=set[str])  # children in other slots, that were started there
    sealed: set[str] = field(factory=set[str])  # the homes that took none


@define(eq=False)
class Run:
    """The steps of one delivery. Any thread may take them. Steps that run at the same time must
    have different names.
    """

    replayed: ClassVar[bool] = False  # its records are given, and nothing is written

    ops: Ops
    values: Values
    claim: Claim
    callbacks: Callbacks = field(factory=Callbacks)
    builds: Builds = field(factory=Builds)
    ttl: float = 0.0  # seconds for which a lease without a heartbeat counts as alive
    durable: Durability | None = None  # of its records, unless a worker's executor sees to it
    handled: bool = False  # a worker's handler takes the steps, and `leave` follows its end
    records: dict[str, Record] | None = None
    skip_sleeps: bool = False  # for tests: each sleep is over at once
    began_last: int = 0  # ms when the last of the records that were read began
    names: Names = field(factory=Names)
    branches: Branches = field(factory=Branches)
    undos: Undos = field(factory=Undos)
    recorded: bool = False  # a step: attempts start anew from it
    progress: tuple[float, str] | None = None  # that was not sent yet
    leaving: RunSuspended | None = None  # raised in the handler, which is to end by it
    # the call that suspends it is under way: that its lease is gone means nothing
    parting: bool = False
    ended: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether its handler has ended, or is to end. A lease by hand counts as over, because one
        task may take many.
        """
        return self.ended is not None or getattr(self.claim, "ended", True)

    @property
    def lost(self) -> bool:
        return self.ended is not None or bool(self.claim.job.lost) or (self.handled and self.over)

    def shards_of(self, job: NewJob[Any]) -> int | None:
        # of a child's queue, as its task or its worker declares it
        named = job.queue or str(self.claim.job.queue)
        own: Home = getattr(job, "home", NOWHERE)
        return own.shards.get(named) or self.callbacks.home.shards.get(named)

    def dies_of(self, error: BaseException | None, result: Any = None) -> str | None:
        """Return why its job is to die, if its handler ended so. Return `None` if it would go
        on."""
        return self.callbacks.judged(error, result, self.recorded)

    # -- called by the drivers ---------------------------------------------------------------------

    def begin(
        self, name: object, function: Any, *, once: bool, undo: Any = None
    ) -> Call[tuple[bool, Any]]:
        """Look for the record of a step. Returns true and its value, or false if the step must run
        now.

        Raises `InDoubt` for a step with *once* that has begun, and not ended. Raises
        `ConfigurationError` for a name that was asked for before, or an annotation that can't be
        read. Raises `RunLost` and `CodecError`, too.
        """
        label = self.ask("step", name)
        runs = False
        if not callable(function):
            raise TypeError(
                f"step {label!r}: give a function and its arguments, not {type(function).__name__}"
            )
        if undo is not None and not callable(undo):
            raise TypeError(
                f"step {label!r}: undo={undo!r:.100} can't be called: give a function that takes the step's value"
            )
        self.values.check(f"step {label!r}", function)
        self.branches.running.add(label)
        try:
            records = yield from self.known()
            record = records.get(label)
            if record is None:
                if self.replayed or "" in records:
                    yield from self.absent(label)
                if once:
                    yield from self.record(label, None, 0.0, kind="once", ended=False)
                runs = True
                return False, None
            self.must_be(record, "step", "once", "undoable", "undone")
            if not record.ended:
                raise InDoubt(label)
            value = self.values.decoded(f"step {label!r}", record.value, function)
            if undo is not None:
                self.undos.give(label, undo, value)
            return True, value
        finally:
            if not runs:
                self.branches.running.discard(label)

    def failed(self, name: str) -> None:
        self.names.asked.discard(name)
        self.branches.running.discard(name)

    def end(self, name: str, function: Any, value: Any, took: float, undo: Any = None) -> Call[Any]:
        """Record the value of a step that took some seconds, and return it as later deliveries get
        it.

        Raises `CodecError`, `ValueError`, `RunLost`.
        """
        data = self.values.encoded(f"step {name!r}", value, function)
        read = self.values.decoded(f"step {name!r}", data, function)
        kind = "once" if name in (self.records or ()) else "step"
        if undo is not None:
            kind = "undoable"
            # before its record: another branch may call `job.undo()` meanwhile
            self.undos.give(name, undo, read)
        yield from self.record(name, data, took, kind=kind, ended=True)
        self.branches.running.discard(name)
        self.callbacks.note("step_done", name)
        return read

    def sleep(self, name: object, duration: object, *, release_key: bool) -> Call[None]:
        """Return if the time has come. Raises `RunSuspended` if not, `RunLost`."""
        label = self.ask("sleep", name)
        due = moment("duration", duration, self.claim.leased_at)
        if not due:
            raise TypeError("duration must be seconds, a timedelta or an aware datetime, not None")
        record = yield from self.waiting(label, "sleep", "+0" if self.skip_sleeps else due)
        if not (record.over(self.claim.leased_at) or self.skip_sleeps):
            yield from self.stop([record], release_key=release_key)
        self.resume(record)

    def wait_for(self, name: object, timeout: object, *, release_key: bool) -> Call[Any]:
        """Return the data of a signal. Raises `RunSuspended` if it has not come, `TimeoutError` if
        it did not come in time, `RunLost`, `CodecError`.
        """
        label = self.ask("wait", name)
        due = moment("timeout", timeout, self.claim.leased_at)
        record = yield from self.waiting(label, "wait", due)
        if not record.over(self.claim.leased_at):
            yield from self.stop([record], release_key=release_key)
        self.resume(record)
        if not record.ended:
            raise TimeoutError(f"no signal {label!r} has come in time")
        return self.values.decoded(f"signal {label!r}", record.value)

    def leave(self, error: BaseException | None) -> Call[BaseException | None]:
        """Finish the run after its handler has ended, and return the error of the handler.

        If sleeps or waits have ended it, the run is suspended. Progress that was not sent yet is
        noted. A step that was made and never awaited is the error of a handler that would be done.
        """
        made = self.branches.made
        self.branches.made = []
        if self.leaving is not None and not self.lost and stopped(error):
            self.ended = self.leaving
            while self.branches.running and not self.claim.job.lost:
                yield Sleep(LOOK_S)
            yield from self._suspend()
            return error
        yield from note_last([self])
        forgotten = unawaited(made) if error is None else []
        if forgotten:
            return ConfigurationError(
                f"{', '.join(forgotten[:3])}: never awaited, so it did nothing. Write `await "
                "job.step(…)`, and likewise for `sleep` and `wait_for`"
            )
        return error

    def note_progress(self) -> Call[None]:
        if ops := self.noted():
            yield Send(ops)

    def close(self, *, completed: bool) -> None:
        """Note the records that a handler which returned did not ask for. Its code has changed, or
        it went another way.
        """
        for name in self.names.unused(self.records or ()) if completed else ():
            self.callbacks.note("steps_unused", name)

    # -- parts, also of other verbs ----------------------------------------------------------------

    def ask(self, what: str, name: object) -> str:
        """Check the name of a step, and that the run goes on. Sleeps and waits may join those that
        end the handler."""
        left = self.ended or (self.leaving if what == "step" else None)
        if left is not None:
            raise RunLost(self.claim.job.id) from left
        label = step_name(name)
        if UNDER_WAY.get(None) is self:
            raise refused_inside(f"{what} {label!r}")
        self.names.ask(what, label)
        return label

    def known(self) -> Call[dict[str, Record]]:
        """Return the records by name. They are read from the server, unless this is the first
        delivery."""
        if self.records is None:
            rows = (
                Records()
                if self.claim.token == 1
                else (yield from send(step_ops.read(self.ops, self.claim)))
            )
            if self.records is None:  # another step has not read them meanwhile
                self.builds.begun(rows.build if rows else self.builds.own)
                self.records = step_ops.own(rows)
                self.began_last = max((record.began for record in self.records.values()), default=0)
        if self.builds.waits_for:
            self.leaving = self.leaving or RunSuspended(self.claim.job.id, self.builds.waits_for)
            raise self.leaving
        return self.records

    # called before a step, sleep, wait or child without a record begins
    def absent(self, name: str) -> Call[None]:
        yield from self.undos.missing(self, name)

    def resume(self, record: Record) -> None:
        """Note that this delivery continues the run behind a sleep or wait. Nothing has begun since
        that was over."""
        if record.began < (record.ended or record.due) >= self.began_last:
            self.callbacks.note("run_resumed", record.name, record.traced)

    def must_be(self, record: Record, *kinds: str) -> None:
        if record.kind not in kinds:
            raise ConfigurationError(
                f"{record.name!r} was recorded as a {record.kind}, and is a {kinds[0]} now: give what is new another "
                "name, so that runs from before the change go on"
            )

    def record(
        self, name: str, value: bytes | None, took: float, *, kind: str, ended: bool
    ) -> Call[None]:
        """Write the record of a step, or of an undoing, whose name is ''."""
        records = yield from self.known()
        before = records.get(name)
        op = step_ops.record(
            self.ops,
            self.claim,
            before.number if before else 0,
            name,
            value,
            kind=kind,
            ended=ended,
            took=took,
            ttl=self.ttl,
        )
        (number,) = yield from self.noting([op])
        if number <= LOST:
            raise self.refused(name, number)
        self.recorded = True
        records[name] = Record(number, name, kind, 0, int(ended), 0, value, 0)

    def noting(self, ops: Sequence[Op[R]]) -> Call[list[R]]:
        """Send operations that make records. The first one of a run follows its build."""
        durable: list[Op[Any]] = [with_durability(op, self.durable) for op in ops]
        if self.builds.own and not self.records:
            durable.insert(0, step_ops.build(self.ops, self.claim, self.builds.own))
        answers: list[R] = (yield Send(durable))[-len(ops) :]
        return answers

    def waiting(self, name: str, kind: str, due: str) -> Call[Record]:
        """Return the record of a sleep or wait, which is made now if there is none."""
        self.branches.running.add(name)
        try:
            records = yield from self.known()
            if name not in records:
                yield from self.absent(name)
                op = step_ops.wait(self.ops, self.claim, name, kind, due)
                (answer,) = yield from self.noting([op])
                if isinstance(answer, int):
                    raise self.refused(name, answer)
                records[name] = answer
            self.must_be(records[name], kind)
            return records[name]
        finally:
            self.branches.running.discard(name)

    def stop(
        self, records: Sequence[Record], *, release_key: bool = False, every: bool = False
    ) -> Call[NoReturn]:
        """Raise `RunSuspended` when no step runs beside these waits. The run goes on when the first
        of them is over, or with *every* all of them."""
        names = [record.name for record in records]
        if "" in (self.records or ()) and self.undos.dies(self):
            yield from self.undos.missing(self, names[0])
        group = records[0].number if every else 0
        for record in records:
            self.branches.waits[record.name] = Wait(record.number, release_key, group)
        try:
            yield from self.until_alone()
            if self.ended is None and not self.lost and not self.handled:
                self.ended = RunSuspended(self.claim.job.id, names[0])
                yield from self._suspend()
        except BaseException:
            for name in names:
                self.branches.waits.pop(name, None)  # the handler does not wait for it any more
            raise
        if self.lost and not isinstance(self.ended, RunSuspended):
            raise RunLost(self.claim.job.id)
        dues = [record.due / 1000 for record in records if record.due]
        end = RunSuspended(self.claim.job.id, names[0], min(dues, default=None))
        self.leaving = self.leaving or end
        raise end

    def until_alone(self) -> Call[None]:
        for _ in range(TURNS):
            yield Sleep(0.0)
        waited = 0.0
        while self.branches.running and not self.lost:
            while self.branches.running and not self.lost:
                # between two looks at the steps beside: a tenth of the time so far
                pause = min(max(waited / 10, 0.001), 0.25)
                yield Sleep(pause)
                waited += pause
            yield Sleep(GRACE_S)

    def _part(self, op: Op[list[str] | None], name: str) -> Call[list[str] | None]:
        self.parting = True
        try:
            *_, answer = yield Send((*self.noted(), with_durability(op, self.durable)))
        except BaseException:  # the handler fails
            self.ended = None
            self.parting = False
            raise
        if answer is None:
            self.refused(name, LOST)
        else:
            self.callbacks.depart(self.claim)
        return cast("list[str] | None", answer)

    def _suspend(self) -> Call[None]:
        if wanted := self.builds.waits_for:
            alive = yield from self._part(step_ops.hold(self.ops, self.claim, wanted), wanted)
            if alive is not None and not self.builds.alive(alive):
                self.callbacks.missing(wanted)
            return
        waits = list(self.branches.waits.values())
        release_key = all(wait.release_key for wait in waits)
        groups = {wait.group for wait in waits}
        op = step_ops.suspend(
            self.ops,
            self.claim,
            [wait.number for wait in waits],
            release_key=release_key,
            every=len(groups) == 1 and groups != {0},
        )
        name = next(iter(self.branches.waits))
        if (yield from self._part(op, name)) is not None:
            self.callbacks.note("run_suspended", name)

    def noted(self) -> Sequence[Op[Any]]:
        latest = self.progress
        self.progress = None
        return () if latest is None else (step_ops.progress(self.ops, self.claim, *latest),)

    def refused(self, name: str, why: int) -> BaseException:
        if why == LOST:
            self.ended = RunLost(self.claim.job.id)
            self.claim.job.lost.set()
            self.callbacks.depart(self.claim)
            return self.ended
        return refused(f"step {name!r}", why)


def unawaited(made: Sequence[tuple[str, Any]]) -> list[str]:
    still = [one for one in made if inspect.getcoroutinestate(one[1]) == inspect.CORO_CREATED]
    for _, call in still:
        call.close()  # it would warn, too
    return [words for words, _ in still]


def note_last(runs: Sequence[Run]) -> Call[None]:
    """Note the progress of runs that end, if some was not sent yet. That is one round trip, or none
    if all was sent."""
    ops = [op for run in runs if not run.lost for op in run.noted()]
    if ops:
        with suppress(Exception):  # it is only for the eye
            yield Send(ops, 5.0)  # the end of the handler waits for it


def refuse_steps(job: Job) -> NoReturn:
    """Raise `ConfigurationError`, because a job that was leased at most once is complete. Its run
    cannot go on."""
    raise ConfigurationError(
        f"job {job.id!r} was leased with at_most_once=True, and is complete: it takes no steps and "
        "no progress"
    )


def refused(what: str, why: int) -> ValueError:
    most = f"{RUN_BYTES:,} bytes of records" if why == BYTES_SPENT else f"{RUN_RECORDS:,} records"
    return ValueError(
        f"{what}: a run has {most} at most: record fewer or smaller values, or continue in a new job"
    )
