"""A replay lets a handler take the steps of a recorded run, without a server.

Steps, sleeps and waits answer from the records. The first one without a record ends the handler,
because no function of a step is called and nothing is written.
"""

from __future__ import annotations

from typing import Any, cast

from attrs import define, field

from headrace._core.effects import Call, Effect, R, Send
from headrace._core.steps.run import Run
from headrace._core.steps.undo import Undos
from headrace._protocol.op import Op
from headrace.errors import CodecError, ConfigurationError, RunSuspended

UNDO = "job.undo()"  # in place of a name


class Unrecorded(RunSuspended):
    """A step, sleep or wait has no record, and ends the handler of a replay."""


class _Undos(Undos):
    """The undos of a replay, of which none is called."""

    def begin(self, run: Run) -> Call[bool]:
        if (yield from super().begin(run)):
            raise cast("Replay", run).stop_at(UNDO)
        return False


@define(eq=False)
class Replay(Run):
    """A run whose records are given, and whose writes are refused."""

    handled: bool = True
    undos: Undos = field(factory=_Undos)
    unrecorded: list[str] = field(factory=list[str])
    """The names that have no record, in the order in which the handler came to them."""
    raised: list[Exception] = field(factory=list[Exception])
    """The errors that the records have raised in the handler."""
    _name: str = ""  # that was asked for last

    @property
    def misfit(self) -> Exception | None:
        """The first error that tells of a record which does not fit the code."""
        wrong = (one for one in self.raised if isinstance(one, (ConfigurationError, CodecError)))
        return next(wrong, None)

    @property
    def unused(self) -> list[str]:
        """The recorded names that the handler has not asked for."""
        seen = self.asked | self.sourced
        return [name for name in self.records or () if name and name not in seen]

    def begin(
        self, name: object, function: Any, *, once: bool, undo: Any = None
    ) -> Call[tuple[bool, Any]]:
        known, value = yield from super().begin(name, function, once=once, undo=undo)
        if not known:
            self.running.discard(self._name)
            raise self.stop_at(self._name)
        return known, value

    def record(self, name: str, *_: Any, **_given: Any) -> Call[None]:
        yield from ()
        raise self.stop_at(name or UNDO)

    def note_progress(self) -> Call[None]:
        yield from ()

    def noted(self) -> list[Op[Any]]:
        return []

    def answered(self, call: Call[R]) -> Call[R]:
        """Drive a call of a handler's step. A write ends it, once the steps beside it stand."""
        try:
            return (yield from self._without_writes(call))
        except Unrecorded as end:
            yield from self.until_alone()
            self.leaving = self.leaving or end
            raise
        except Exception as error:
            self.raised.append(error)
            raise

    def _without_writes(self, call: Call[R]) -> Call[R]:
        try:
            effect: Effect = next(call)
            name = self._name
            while True:
                if isinstance(effect, Send):
                    effect = call.throw(self.stop_at(name))
                    continue
                try:
                    answer = yield effect
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            return cast("R", done.value)

    def ask(self, what: str, name: object) -> str:
        self._name = super().ask(what, name)
        return self._name

    def _suspend(self) -> Call[None]:
        yield from ()

    def stop_at(self, name: str) -> Unrecorded:
        self.undos.over(self)
        self.unrecorded.append(name)
        return Unrecorded(self.claim.job.id, name)
