"""The watch over a worker's event loop, from its pulse: detects that a handler blocks it, and names the handler."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from headrace._core.worker.lifecycle import Lifecycle
from headrace._engine.base import Unit
from headrace._engine.functions import called
from headrace._engine.pulse import Pulse
from headrace._telemetry import log

LATE_S = 1.0  # seconds by which our own wake-up may be late; a later one means that the whole process was suspended
AGAIN_AFTER_S = 60.0  # seconds between two warnings about one block, or one handler
LOOPS = frozenset(("asyncio", "selectors", "uvloop"))
ADVICE = "make it a plain def, which runs in a thread, or move what blocks into asyncio.to_thread()"
Running = Callable[[Any], tuple[Unit, Callable[..., Any]] | None]


class StallWatch:
    """Asks the event loop again and again for a sign of life. *running*: returns the unit and the handler of a task."""

    def __init__(self, lifecycle: Lifecycle, pulse: Pulse, running: Running) -> None:
        self._lifecycle, self._pulse, self._running = lifecycle, pulse, running
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._limit = lifecycle.settings.heartbeat
        self._quiet_until: dict[str, float] = {}  # by the code that blocked the loop

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            turned = self._pulse.event()
            asked = self._lifecycle.stalled_since = time.monotonic()
            self._pulse.tell(turned.set)
            await self._answered(turned, asked)
            self._lifecycle.stalled_since = None
            await asyncio.sleep(self._limit / 4)

    async def _answered(self, turned: asyncio.Event, asked: float) -> None:
        told = 0.0  # when we last logged it
        while True:
            since = time.monotonic()
            if await _within(turned, self._limit):
                break
            now = time.monotonic()
            if now - since > self._limit + LATE_S:  # we were late ourselves: the whole process was suspended
                asked += now - since
                self._lifecycle.stalled_since = asked
            elif (not told or now - told >= AGAIN_AFTER_S) and self._tell(now - asked, now):
                told = now
        if told:
            log.say("loop_unblocked", "after %.1f s", time.monotonic() - asked, worker=self._worker)

    @property
    def _worker(self) -> str:
        return self._lifecycle.consumers[0].worker

    def _tell(self, seconds: float, now: float) -> bool:
        """Log the code that blocks the loop. Return false if it was logged a short while ago."""
        task = asyncio.current_task(self._loop)
        found = self._running(task)
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - for just this
        if found is not None:
            unit, function = found
            name = called(function)
            more = f" and {len(unit) - 1} more" if len(unit) > 1 else ""
            what = f"handler {name} of queue {unit[0].job.queue!r}, on job {unit[0].job.id}{more}"
            advice, claim, code = ADVICE, unit[0], getattr(function, "__code__", None)
        elif task is not None:
            name, advice, claim, code = _coroutine(task), "let it await, or run it in a thread", None, None
            what = f"task {task.get_name()!r}, {name}, which is no handler of this worker"
        elif not self._loop.is_running():
            name, advice, claim, code = "", "run it for as long as the worker works", None, None
            what = "nothing: it is not running"
        elif frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LOOPS:
            return False  # the loop has just gone on
        else:
            name, advice, claim, code = "", "keep it short", None, None
            what = "a callback"
        if now < self._quiet_until.get(name, 0.0):
            return False
        self._quiet_until[name] = now + AGAIN_AFTER_S
        where = "" if frame is None else _place(frame, code)
        words = "for %.1f s now, by %s%s; nothing else goes on there meanwhile: %s"
        fields: dict[str, Any] = {"handler": name, "where": where, "seconds": round(seconds, 1)}
        if claim is None:
            fields["worker"] = self._worker
        log.say("loop_blocked", words, seconds, what, where and f" ({where})", advice, claim=claim, **fields)
        return True


def _coroutine(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "") or task.get_name()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _place(frame: FrameType, code: CodeType | None) -> str:
    """Name the running lines: the handler's own line, if *code* is in the stack, and the innermost line."""
    inner = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    outer: FrameType | None = frame
    while outer is not None and outer.f_code is not code:
        outer = outer.f_back
    if outer is None or outer is frame:
        return inner
    return f"{outer.f_code.co_filename}:{outer.f_lineno}, at {inner}"
