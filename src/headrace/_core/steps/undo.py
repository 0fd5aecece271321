"""The undoing of a run. It says which undo comes next, and what a replay may run.

An undo is the function that a handler gives for a step. It takes the step's value. The record of
such a step is `undoable`, and `undone` once its undo has run. The undos run in reverse order of the
records, each at least once.

A record without a name says that the run is undone. `job.undo()` writes it as `undoing`, and ends
it behind the last undo. The handler then goes on. When the run dies, it is `dying`, with the reason
as its value. It stays open until an operator redrives the job, which then begins again.

A later delivery replays the handler, so that it gives the undos again. A step without a record does
not run there. It had failed before, and fails again with `StepFailed`, so that the handler takes
the same way. The replay of a run that dies ends as soon as all undos are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field, frozen

from headrace._core.effects import Call, Sleep
from headrace._model.steps import Record
from headrace.errors import (
    ConfigurationError,
    DeadLetter,
    RunLost,
    RunSuspended,
    StepFailed,
)

if TYPE_CHECKING:
    from headrace._core.steps.run import Run

MISSED_AT_MOST = 100  # steps that fail in one replay: a loop that repeats a step would not end
LOOK_S = 0.01  # seconds between two looks at the steps beside the end of a handler
UNKNOWN = "its reason can't be read"
# the run whose undo this is
UNDER_WAY: ContextVar[object] = ContextVar("headrace_undo")


class NotReached(ConfigurationError):
    """A step is to be undone, and the handler has not come to it."""


@frozen
class Undo:
    """A function that undoes a step, and its argument."""

    name: str
    function: Callable[[Any], Any]
    value: Any

    @contextmanager
    def under_way(self, run: Run) -> Generator[None, None, None]:
        """Refuse steps of the run, while the function runs."""
        token = UNDER_WAY.set(run)
        try:
            yield
        finally:
            UNDER_WAY.reset(token)


def stopped(error: BaseException | None) -> bool:
    """Tell whether sleeps and waits have ended a handler. Other errors are failures, also beside
    them."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(stopped, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return error is None or isinstance(error, (RunSuspended, RunLost))


def refused_inside(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is taken in an undo: an undo is recorded as a whole, so let it do all that is to be undone"
    )


@define(eq=False)
class Undos:
    """The undos of one delivery."""

    given: dict[str, Undo] = field(factory=dict[str, Undo])  # by the names of their steps
    asked: bool = False  # `job.undo()` was called
    missed: int = 0  # steps that have failed in a replay

    # -- what the records say ----------------------------------------------------------------------

    def mode(self, run: Run) -> Record | None:
        return (run.records or {}).get("")

    def dies(self, run: Run) -> bool:
        mode = self.mode(run)
        return mode is not None and mode.kind == "dying"

    def due(self, run: Run) -> list[Record]:
        """List the records that are to be undone, the last first."""
        some = [one for one in (run.records or {}).values() if one.kind == "undoable"]
        return sorted(some, key=lambda one: -one.number)

    def left(self, run: Run) -> bool:
        """Tell whether the handler has still to come to a step that is to be undone."""
        return any(one.name not in self.given for one in self.due(run))

    def reason(self, run: Run) -> str:
        mode = self.mode(run)
        try:
            return str(run.values.decoded("why", mode.value if mode else None) or UNKNOWN)
        except Exception:  # whatever the codec raises
            return UNKNOWN

    # -- steps -------------------------------------------------------------------------------------

    def give(self, name: str, function: Callable[[Any], Any], value: Any) -> None:
        self.given[name] = Undo(name, function, value)

    def missing(self, run: Run, name: str) -> Call[None]:
        """Let a step without a record run, or a wait that is not over stay. Raises an error in a
        replay."""
        if self.mode(run) is None or (self.asked and not self.dies(run)):
            return
        if not self.dies(run) or self.left(run):
            run.branches.running.discard(name)
            yield from run.until_alone()
        if self.dies(run) and not run.handled:
            raise ConfigurationError(
                f"job {run.claim.job.id!r} is to die of: {self.reason(run)}. Call job.undo(), and end its lease with "
                "dead_letter()"
            )
        if (self.dies(run) and not self.left(run)) or self.missed >= MISSED_AT_MOST:
            raise RunSuspended(run.claim.job.id, name)
        self.missed += 1
        run.names.asked.discard(name)
        raise StepFailed(run.claim.job.id, name)

    # -- job.undo() --------------------------------------------------------------------------------

    def begin(self, run: Run) -> Call[bool]:
        """Begin `job.undo()`, once the steps beside it are recorded. Return whether undos are to
        run.

        Raises `ConfigurationError` for a second call, or one in an undo, and `RunLost`.
        """
        if UNDER_WAY.get(None) is run:
            raise refused_inside("job.undo()")
        if self.asked:
            raise ConfigurationError(
                "job.undo() was called before: a run is undone once, so give what comes later a job of its own"
            )
        yield from run.known()
        self.asked = True
        run.branches.running.add("")
        while run.branches.running != {""} and not run.lost:
            yield Sleep(LOOK_S)
        if run.lost or run.leaving is not None:
            raise RunLost(run.claim.job.id) from run.leaving
        if self.dies(run):
            return not run.handled  # the end of the handler undoes it
        mode = self.mode(run)
        if mode is not None:
            return not mode.ended
        # without undos, too: steps that are recorded behind it are not for a later call to undo
        due = bool(self.due(run))
        yield from run.record("", None, 0.0, kind="undoing", ended=not due)
        return due

    def end(self, run: Run) -> Call[None]:
        mode = self.mode(run)
        if mode is not None and mode.kind == "undoing":
            yield from run.record("", None, 0.0, kind="undoing", ended=True)

    def over(self, run: Run) -> None:
        run.branches.running.discard("")

    # -- undos -------------------------------------------------------------------------------------

    def die(self, run: Run, reason: str) -> Call[None]:
        """Record that the run dies."""
        try:
            value = run.values.encoded("why", reason)
        except Exception:  # the codec takes no text
            value = None
        yield from run.record("", value, 0.0, kind="dying", ended=False)

    def next(self, run: Run) -> Undo | None:
        """Return the next undo, or `None` if all have run. Raises `NotReached` for a step to which
        the handler did not come, and `RunLost`."""
        if run.lost:
            raise RunLost(run.claim.job.id)
        due = self.due(run)
        if not due:
            return None
        name = due[0].name
        if name not in self.given:
            raise NotReached(
                f"step {name!r} is to be undone, and the handler has not come to it with undo=: its code has changed, "
                "or it failed before"
            )
        return self.given[name]

    def done(self, run: Run, undo: Undo, took: float) -> Call[None]:
        value = (run.records or {})[undo.name].value
        yield from run.record(undo.name, value, took, kind="undone", ended=True)
        run.callbacks.note("step_undone", undo.name)

    # -- the end of a handler ----------------------------------------------------------------------

    def concern(self, run: Run, error: BaseException | None) -> bool:
        """Tell whether the end of a handler may begin the undos, or go on with them."""
        if run.records is None or run.lost or run.leaving is not None:
            return False
        ends = isinstance(error, Exception) or stopped(error)
        return ends and (self.mode(run) is not None or bool(self.due(run)))

    def unfinished(self, run: Run, error: BaseException | None) -> BaseException | None:
        """Return the error of a handler that does not die. A replay that has not come to
        `job.undo()` is no success."""
        mode = self.mode(run)
        open_ = mode is not None and not mode.ended and not self.asked
        if open_ and stopped(error):
            return ConfigurationError(
                "job.undo() has begun to undo this run, and the handler has not come to it again: its code has changed"
            )
        return error

    def failed(
        self, run: Run, error: BaseException | None, wrong: BaseException
    ) -> BaseException | None:
        """Return the error of a job whose undo raised *wrong*. A dead letter has the first reason,
        too."""
        if run.lost or not isinstance(wrong, Exception):
            return wrong
        if not self.dies(run):  # that it dies could not be recorded
            return error
        what = "an undo failed: "
        if isinstance(wrong, NotReached) and isinstance(error, Exception):
            wrong = error
            what = "the handler failed before its undos: "
        if (why := run.dies_of(wrong)) is None:
            return wrong
        return _dead(f"{what}{why}; the run died of: {self.reason(run)}", wrong)

    def dead(self, run: Run, error: BaseException | None) -> BaseException:
        return _dead(self.reason(run), error)


def _dead(reason: str, cause: BaseException | None) -> DeadLetter:
    letter = DeadLetter(reason)
    letter.__cause__ = cause
    return letter
