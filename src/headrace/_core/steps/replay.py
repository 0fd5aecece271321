"""A replay lets a handler take the steps of a recorded run, without a server.

Steps, sleeps and waits answer from the records. The first one without a record ends the handler,
because no function of a step is called and nothing is written.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from attrs import define, field

from headrace._core.effects import Call, R
from headrace._core.steps.run import Run
from headrace._core.steps.undo import Undos
from headrace._protocol.op import Op
from headrace.errors import CodecError, ConfigurationError, RunSuspended

UNDO = "job.undo()"  # in place of a name


class Unrecorded(RunSuspended):
    """A step, sleep or wait has no record, and ends the handler of a replay."""


class _Undos(Undos):
    def begin(self, run: Run) -> Call[bool]:
        if (yield from super().begin(run)):
            raise cast("Replay", run).stop_at(UNDO)
        return False


@define(eq=False)
class Replay(Run):
    """A run whose records are given, and whose writes are refused."""

    replayed: ClassVar[bool] = True
    handled: bool = True
    undos: Undos = field(factory=_Undos)
    unrecorded: list[str] = field(factory=list[str])
    """The names that have no record, in the order in which the handler came to them."""
    raised: list[Exception] = field(factory=list[Exception])
    """The errors that the records have raised in the handler."""

    @property
    def misfit(self) -> Exception | None:
        """The first error that tells of a record which does not fit the code."""
        wrong = (one for one in self.raised if isinstance(one, (ConfigurationError, CodecError)))
        return next(wrong, None)

    @property
    def unused(self) -> list[str]:
        return self.names.unused(self.records or ())

    def absent(self, name: str) -> Call[None]:
        yield from super().absent(name)
        raise self.stop_at(name)

    # of the choice of `first`, which the records decide, or of a new `job.undo()`
    def record(self, name: str, *_: Any, **_given: Any) -> Call[None]:
        yield from ()
        if not name:
            raise self.stop_at(UNDO)

    def noted(self) -> list[Op[Any]]:
        return []

    def answered(self, call: Call[R]) -> Call[R]:
        """Make a call of a handler's step. One that has no record ends it, once the steps beside it
        stand."""
        try:
            return (yield from call)
        except Unrecorded as end:
            yield from self.until_alone()
            self.leaving = self.leaving or end
            raise
        except Exception as error:
            self.raised.append(error)
            raise

    def _suspend(self) -> Call[None]:
        yield from ()

    def stop_at(self, name: str) -> Unrecorded:
        self.undos.over(self)
        self.unrecorded.append(name)
        return Unrecorded(self.claim.job.id, name)
