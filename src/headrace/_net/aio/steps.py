"""`AsyncSteps` has the steps of one run, taken by its handler. Their decisions are in
`_core/steps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from headrace._core.effects import Call, Effect, Scan, Send, Sleep
from headrace._core.steps import children
from headrace._core.steps.run import Run
from headrace._model.steps import NAME_CHARACTERS, Signal, Timer, fraction_of
from headrace._net.aio.colour import (
    Driven,
    background,
    callable_here,
    made,
    settled,
    sleep,
    takes_steps,
)
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.undoing import Drive, buried, undone
from headrace._telemetry.steps import StepSpan
from headrace.errors import ConfigurationError, NotDurable


def driver(executor: AsyncExecutor, late: Callable[[NotDurable], list[Any]]) -> Drive:
    """Make the function that runs the generators of a run on an executor.

    *late* answers for a write that is not as durable as asked.
    """

    async def perform(effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return await sleep(effect.seconds)
        if isinstance(effect, Scan):
            return await executor.scan(effect.cursor, effect.pattern)
        assert isinstance(effect, Send)  # noqa: S101 - a run does nothing else
        try:
            return await executor.run_all(effect.ops, within=effect.within)
        except NotDurable as error:
            return late(error)

    async def drive(call: Call[Any]) -> Any:
        try:
            effect = next(call)
            while True:
                try:
                    answer = await perform(effect)
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            return done.value

    return drive


def raised(error: NotDurable) -> list[Any]:
    raise error


class AsyncSteps:
    """The steps of one run, where `Job.step` and its siblings end."""

    def __init__(self, run: Run, drive: Drive, home: object = None) -> None:
        self.run = run
        self.drive = drive
        # the event loop of the handler, if another thread may be the first to take its steps
        self._home = home
        self._noted = float("-inf")  # when progress was last sent

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *,
        once: bool,
        undo: Callable[..., Any] | None = None,
    ) -> Driven[Any]:
        return made(
            self.run.branches.made,
            f"step {name!r:.100}",
            self._step(name, function, args, options, once=once, undo=undo),
        )

    def sleep(self, name: str, duration: Any, *, release_key: bool) -> Driven[Any]:
        return made(
            self.run.branches.made,
            f"sleep {name!r:.100}",
            self._waited("sleep", name, self.run.sleep(name, duration, release_key=release_key)),
        )

    def wait_for(self, name: str, timeout: Any, *, release_key: bool) -> Driven[Any]:
        return made(
            self.run.branches.made,
            f"wait {name!r:.100}",
            self._waited("wait", name, self.run.wait_for(name, timeout, release_key=release_key)),
        )

    def undo(self) -> Driven[Any]:
        return made(self.run.branches.made, "job.undo()", self._undo())

    def child(self, call: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Driven[Any]:
        child = children.new(self.run, call, args, options)
        return self._child(child.name, children.run(self.run, child))

    def children(self, calls: Any, at_most: int | None, failed: str) -> Driven[Any]:
        some = children.each(self.run, calls)
        cancels = children.cancels(failed)
        most = children.most(at_most)
        label = some[0].name if some else ""
        return self._child(label, children.run_all(self.run, some, most, cancels=cancels))

    def start(self, call: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Driven[Any]:
        child = children.new(self.run, call, args, options)
        return self._child(child.name, children.start(self.run, child))

    def first(self, sources: Mapping[str, Any]) -> Driven[Any]:
        named = children.sources_of(self.run, sources)
        label = self.run.names.numbered("first")
        return self._child(label, children.first(self.run, label, named))

    def signal_of(self, name: str) -> Signal:
        return children.signal_of(name)

    def timer(self, after: timedelta | None, until: datetime | None) -> Timer:
        return children.timer(after, until)

    def _child(self, name: str, call: Call[Any]) -> Driven[Any]:
        return made(
            self.run.branches.made, f"child {name!r:.100}", self._waited("child", name, call)
        )

    async def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *,
        once: bool,
        undo: Callable[..., Any] | None,
    ) -> Any:
        if undo is not None:
            callable_here(f"step {name!r:.100}: undo=", undo)
        with self._taking("step", name) as span:
            known, value = await self.drive(self.run.begin(name, function, once=once, undo=undo))
            if known:
                return span.replayed(value)
            since = time.monotonic()
            try:
                value = await settled(function(*args, **options))
                return await self.drive(
                    self.run.end(name, function, value, time.monotonic() - since, undo)
                )
            except BaseException:
                self.run.failed(name)
                raise

    async def _undo(self) -> Any:
        with self._taking("undo", ""):
            await undone(self.run, self.drive)

    async def _waited(self, kind: str, name: str, call: Call[Any]) -> Any:
        with self._taking(kind, name):
            return await self.drive(call)

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Finish the run after its handler has ended. Return the error that settles its job."""
        error = await self.drive(self.run.leave(error))
        if self.run.undos.concern(self.run, error):
            error = await buried(self.run, self.drive, error, result)
        return error

    def _taking(self, kind: str, name: str) -> StepSpan:
        """Make the span of a step. Raises `ConfigurationError` in the task of another job's
        handler.
        """
        if not takes_steps(self.run):
            raise ConfigurationError(
                f"{kind} {name!r:.100} of job {self.run.claim.job.id!r} is taken in the task of another job: "
                "take it in its own"
            )
        return StepSpan(kind, name)

    def skip_sleeps(self) -> None:
        self.run.skip_sleeps = True

    def progress(self, fraction: float, text: str) -> None:
        """Note how far the job has come, now, or a second after the last note."""
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        first = self.run.progress is None
        self.run.progress = (fraction_of(fraction), text[:NAME_CHARACTERS])
        if first:
            background(self._home, max(0.0, self._noted + 1.0 - time.monotonic()), self._note)

    async def _note(self) -> None:
        self._noted = time.monotonic()
        if self.run.progress is not None and self.run.ended is None:
            with suppress(Exception):  # it is only for the eye
                await self.drive(self.run.note_progress())
