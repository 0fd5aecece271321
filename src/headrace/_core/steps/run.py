"""A run: one delivery of a job whose handler takes steps. It decides about records, and about its end.

The handler runs from its top at each delivery. A step that was recorded answers from its record; a sleep or wait that
is over lets the handler go on. The records are read once, with the first step, unless this is the first delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from attrs import define, field

from headrace._core.effects import Step, send
from headrace._model.job import Claim, Job
from headrace._model.policy import Durability
from headrace._model.steps import RUN_BYTES, RUN_RECORDS, Record, moment, step_name
from headrace._protocol import step_ops
from headrace._protocol.durability import with_durability
from headrace._protocol.queue_ops import Ops
from headrace._protocol.step_ops import BYTES_SPENT, LOST
from headrace.errors import ConfigurationError, InDoubt, RunLost, RunSuspended

Note = Callable[..., object]  # takes the name of a log event and the step's, and the trace of an earlier delivery


class Values(Protocol):
    """The writer and reader of recorded values: see `_codecs/recorded`."""

    def encoded(self, what: str, value: Any, function: Callable[..., Any] | None = None) -> bytes | None: ...

    def decoded(self, what: str, data: bytes | None, function: Callable[..., Any] | None = None) -> Any: ...


def ignored(*_: object) -> None:
    """Do nothing: the default of a run's callbacks."""


@define(eq=False)
class Run:
    """The steps of one delivery. Any thread may take them; two at a time must have different names."""

    ops: Ops
    values: Values
    claim: Claim
    depart: Callable[[Claim], object] = ignored
    """Called when the job leaves its worker: its run is suspended, or its lease is lost."""
    note: Note = ignored
    ttl: float = 0.0  # seconds for which a lease without a heartbeat counts as alive
    durable: Durability | None = None  # of its records, unless a worker's executor sees to it
    records: dict[str, Record] | None = None
    skip_sleeps: bool = False  # for tests: each sleep is over at once
    last: str = ""  # the name of the last record that was read
    asked: set[str] = field(factory=set[str])
    ended: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether its handler has ended, or is to end. A lease by hand counts as over: one task may take many."""
        return self.ended is not None or getattr(self.claim, "ended", True)

    # -- called by the drivers ---------------------------------------------------------------------

    def begin(self, name: object, function: Any, *, once: bool) -> Step[tuple[bool, Any]]:
        """Look for the record of a step. Return true and its value, or false: the step must run now.

        Raises `InDoubt` for a step with *once* that has begun, and not ended; `RunLost`; `ConfigurationError` for a
        name that was asked for before; `CodecError`.
        """
        label = self._ask("step", name)
        if not callable(function):
            raise TypeError(f"step {label!r}: give a function and its arguments, not {type(function).__name__}")
        record = (yield from self._known()).get(label)
        if record is None:
            if once:
                yield from self._record(label, None, 0.0, ended=False)
            return False, None
        self._must_be(record, "step", "once")
        if not record.ended:
            raise InDoubt(label)
        return True, self.values.decoded(f"step {label!r}", record.value, function)

    def failed(self, name: str) -> None:
        """Let the handler take a step again whose function has failed."""
        self.asked.discard(name)

    def end(self, name: str, function: Any, value: Any, took: float) -> Step[Any]:
        """Record the value of a step that took some seconds, and return it as later deliveries get it.

        Raises `CodecError`, `ValueError`, `RunLost`.
        """
        data = self.values.encoded(f"step {name!r}", value, function)
        read = self.values.decoded(f"step {name!r}", data, function)
        yield from self._record(name, data, took, ended=True)
        self.note("step_done", name)
        return read

    def sleep(self, name: object, duration: object, *, release_key: bool) -> Step[None]:
        """Suspend the run until the time has come. Raises `RunSuspended`, unless it has come; `RunLost`."""
        label = self._ask("sleep", name)
        due = moment("duration", duration, self.claim.leased_at)
        if not due:
            raise TypeError("duration must be seconds, a timedelta or an aware datetime, not None")
        record = (yield from self._known()).get(label)
        if record is not None:
            self._must_be(record, "sleep")
            if record.over(self.claim.leased_at) or self.skip_sleeps:
                self._resume(record)
                return
        due = "+0" if self.skip_sleeps else due
        yield from self._suspend(record, label, "sleep", due, release_key=release_key)

    def wait_for(self, name: object, timeout: object, *, release_key: bool) -> Step[Any]:
        """Return the data of a signal. Suspends the run if it has not come: raises `RunSuspended`. Raises
        `TimeoutError` if it did not come in time, `RunLost`, `CodecError`.
        """
        label = self._ask("wait", name)
        due = moment("timeout", timeout, self.claim.leased_at)
        record = (yield from self._known()).get(label)
        if record is not None:
            self._must_be(record, "wait")
            if record.ended:
                self._resume(record)
                return self._signalled(label, record.value)
        if record is not None and record.over(self.claim.leased_at):  # it has timed out
            self._resume(record)
        else:
            answer = yield from self._suspend(record, label, "wait", due, release_key=release_key)
            if answer.state == "there":
                return self._signalled(label, answer.value)
        raise TimeoutError(f"no signal {label!r} has come in time")

    def close(self, *, completed: bool) -> None:
        """Note the records that a handler which returned did not ask for: its code has changed, or its way."""
        for name in self.records or () if completed else ():
            if name not in self.asked:
                self.note("steps_unused", name)

    # -- parts -------------------------------------------------------------------------------------

    def _ask(self, what: str, name: object) -> str:
        """Check the name of a step, and that the run goes on."""
        if self.ended is not None:
            raise RunLost(self.claim.job.id) from self.ended
        label = step_name(name)
        if label in self.asked:
            raise ConfigurationError(
                f"{what} {label!r} was taken before in this run: a step is known by its name, so number those of a "
                f'loop: step(f"{label}-{{n}}", …)'
            )
        self.asked.add(label)
        return label

    def _known(self) -> Step[dict[str, Record]]:
        """Return the records by name: read from the server, unless this is the first delivery."""
        if self.records is None:
            rows = [] if self.claim.token == 1 else (yield from send(step_ops.read(self.ops, self.claim)))
            found = step_ops.own(rows)
            if self.records is None:  # another step has not read them meanwhile
                self.records, self.last = found, next(reversed(found), "")
        return self.records

    def _resume(self, record: Record) -> None:
        """Note that this delivery continues the run behind a sleep or wait: the last of its records, which ended the
        delivery before.
        """
        if record.name == self.last:
            self.note("run_resumed", record.name, record.traced)

    def _must_be(self, record: Record, *kinds: str) -> None:
        if record.kind not in kinds:
            raise ConfigurationError(
                f"{record.name!r} was recorded as a {record.kind}, and is a {kinds[0]} now: give what is new another "
                "name, so that runs from before the change go on"
            )

    def _record(self, name: str, value: bytes | None, took: float, *, ended: bool) -> Step[None]:
        records = yield from self._known()
        before = records.get(name)
        op = step_ops.record(
            self.ops, self.claim, before.number if before else 0, name, value, ended=ended, took=took, ttl=self.ttl
        )
        number = yield from send(with_durability(op, self.durable))
        if number <= LOST:
            raise self._refused(name, number)
        kind = "step" if ended and before is None else "once"
        records[name] = Record(number, name, kind, 0, int(ended), 0, value, 0)

    def _suspend(
        self, record: Record | None, name: str, kind: str, due: str, *, release_key: bool
    ) -> Step[step_ops.Suspended]:
        if record is not None:  # woken too early, as after the loss of the consumer group
            due = f"@{record.due}" if record.due else ""
        number = 0 if record is None else record.number
        op = step_ops.suspend(self.ops, self.claim, number, name, kind, due, release_key=release_key)
        answer = yield from send(with_durability(op, self.durable))
        if answer.state == "refused":
            raise self._refused(name, answer.why)
        if answer.state == "suspended":
            self.ended = RunSuspended(self.claim.job.id, name, answer.due)
            self.depart(self.claim)
            self.note("run_suspended", name)
            raise self.ended
        return answer

    def _signalled(self, name: str, value: bytes | None) -> Any:
        return self.values.decoded(f"signal {name!r}", value)

    def _refused(self, name: str, why: int) -> BaseException:
        if why == LOST:
            self.ended = RunLost(self.claim.job.id)
            self.claim.job.lost.set()
            self.depart(self.claim)
            return self.ended
        return refused(f"step {name!r}", why)


def refuse_steps(job: Job) -> NoReturn:
    """Raise `ConfigurationError`: a job that was leased at most once is complete, so that its run can't go on."""
    raise ConfigurationError(f"job {job.id!r} was leased with at_most_once=True, and is complete: it takes no steps")


def refused(what: str, why: int) -> ValueError:
    """Make the error of a record that does not fit into its run."""
    most = f"{RUN_BYTES:,} bytes of records" if why == BYTES_SPENT else f"{RUN_RECORDS:,} records"
    return ValueError(f"{what}: a run has {most} at most: record fewer or smaller values, or continue in a new job")
