"""A replay lets a handler take the steps of a recorded run, without a server.

Steps, sleeps and waits answer from the records. The first one without a record ends the handler,
because no function of a step is called and nothing is written.
"""

from __future__ import annotations

from typing import Any, cast

from attrs import define, field

from headrace._core.effects import Call, Effect, R, Send
from headrace._core.steps.run import Run
from headrace._protocol.op import Op
from headrace.errors import CodecError, ConfigurationError, RunSuspended


class Unrecorded(RunSuspended):
    """A step, sleep or wait has no record, and ends the handler of a replay."""


@define(eq=False)
class Replay(Run):
    """A run whose records are given, and whose writes are refused."""

    handled: bool = True
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
        return [name for name in self.records or () if name not in self.asked]

    def begin(self, name: object, function: Any, *, once: bool) -> Call[tuple[bool, Any]]:
        known, value = yield from super().begin(name, function, once=once)
        if not known:
            self.running.discard(self._name)
            raise self._stop_at(self._name)
        return known, value

    def note_progress(self) -> Call[None]:
        yield from ()

    def noted(self) -> list[Op[Any]]:
        return []

    def answered(self, call: Call[R]) -> Call[R]:
        """Drive a call of a handler's step. A write ends it, once the steps beside it stand."""
        try:
            return (yield from self._without_writes(call))
        except Unrecorded as end:
            yield from self._until_alone()
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
                    effect = call.throw(self._stop_at(name))
                    continue
                try:
                    answer = yield effect
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            return cast("R", done.value)

    def _ask(self, what: str, name: object) -> str:
        self._name = super()._ask(what, name)
        return self._name

    def _suspend(self) -> Call[None]:
        yield from ()

    def _stop_at(self, name: str) -> Unrecorded:
        self.unrecorded.append(name)
        return Unrecorded(self.claim.job.id, name)
