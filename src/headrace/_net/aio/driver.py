"""The driver of the generators in `_core`. It performs each effect, and sends the answer back."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace._core.effects import (
    AwaitEnds,
    AwaitRoom,
    Block,
    BlockAmong,
    Call,
    Effect,
    ForgetEnds,
    Inform,
    NoteDead,
    Now,
    Overlap,
    PassTurn,
    Scan,
    Send,
    Sleep,
    Undo,
    Undoable,
    WatchEnds,
)
from headrace._forks import cached_property
from headrace._model.checks import seconds
from headrace._net.aio.cluster import executor_of
from headrace._net.aio.colour import sleep
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.wait_queue import WaitQueues
from headrace._net.base.address import OPENED, Connected, Timeout, least
from headrace._protocol.op import Op
from headrace._telemetry.client import Span, dead_lettered

if TYPE_CHECKING:
    from headrace._net.aio.waiters import AsyncWaiters

R = TypeVar("R")


class AsyncDriver(Connected):
    """Runs operations, and the generators of calls. It is the base of `AsyncQueue` and
    `AsyncFlow`."""

    _wait_queues: WaitQueues | None = None

    @cached_property
    def _executor(self) -> AsyncExecutor:
        made = self._address.open(
            lambda at: executor_of(at.target, at.client, attend=at.attend, shares=True)
        )
        made.within = self._within
        OPENED.add(self)
        return made

    if TYPE_CHECKING:

        @cached_property
        def _waiters(self) -> AsyncWaiters: ...

    async def _run(self, op: Op[R], span: Span | None = None, timeout: Timeout = None) -> R:
        within = None if timeout is None else seconds("timeout", timeout, zero=False)
        if span is None:
            return await self._executor.run(op, within=within)
        with span:
            return span.done(await self._executor.run(op, within=within))

    async def _drive(self, call: Call[R], span: Span | None = None, timeout: Timeout = None) -> R:
        within = None if timeout is None else seconds("timeout", timeout, zero=False)
        if span is not None:
            with span:
                return span.done(await self._drive(call, None, timeout))
        end = None if within is None else time.monotonic() + within
        try:
            effect = next(call)
            while True:
                try:
                    answer = await self._perform(effect, end)
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)  # what was answered may be large
                    answer = None
        except StopIteration as done:
            return cast("R", done.value)
        except BaseException as error:
            # interrupted between two effects: the call may undo something
            with suppress(BaseException):
                effect = call.throw(error)
                while True:
                    effect = call.send(await self._perform(effect))
            raise
        finally:
            if self._wait_queues is not None:
                self._wait_queues.leave()

    async def _perform(self, effect: Effect, end: float | None = None) -> Any:  # noqa: C901, PLR0911, PLR0912 - a line an effect
        within = self._within if end is None else max(0.001, end - time.monotonic())
        match effect:
            case Send((op,), None):
                return [await self._executor.run(op, within=within)]
            case Send(ops, bound):
                return await self._executor.run_all(ops, within=least(within, bound))
            case Now():
                return time.monotonic()
            case Overlap(op, meanwhile):
                return await self._executor.run(op, meanwhile, within)
            case Undoable():
                effect.answer = await self._executor.run_whole(effect, least(within, effect.within))
                return effect.answer
            case Block(command):
                return await self._executor.wait(command)
            case BlockAmong():
                return await self._executor.wait_among(effect)
            case AwaitRoom(command, seconds):
                if self._wait_queues is None or not self._wait_queues.of_this_loop:
                    self._wait_queues = WaitQueues(self._executor.wait)
                return await self._wait_queues.wait(command, seconds)
            case PassTurn():
                return None if self._wait_queues is None else self._wait_queues.leave()
            case Sleep(seconds):
                return await sleep(seconds)
            case Undo(ops):
                return self._executor.undo(ops)
            case WatchEnds(names, seconds):
                return await self._waiters.waiter(names, seconds)
            case AwaitEnds(waiter, seconds):
                return await self._waiters.wait(waiter, seconds)
            case ForgetEnds(waiter):
                return await self._waiters.ignore(waiter)
            case Scan(cursor, pattern):
                return await self._executor.scan(cursor, pattern, within)
            case Inform():
                return await self._executor.info(within)
            case NoteDead(died):
                dead_lettered(self._settings, died)
                return None
            case _:
                raise TypeError(f"{effect!r} is for a worker's driver")
