"""The pulse of an `AsyncWorker` is a thread that keeps the leases, whatever handlers do.

The thread has its own event loop. `StallWatch` detects from there that a handler blocks the
worker's loop, and names the handler.

Roles start in the pulse, and reach the worker's loop by `post`. The worker's loop wakes them by a
`LoopEvent`. The state of consumers is safe for threads. If the worker's loop is closed without a
stop, the pulse ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from headrace._core.worker.lifecycle import Lifecycle
from headrace._engine.base import Unit
from headrace._engine.hooks import called
from headrace._net.aio.colour import happens
from headrace._net.aio.executor import AsyncExecutor
from headrace._protocol.limits import LOG_AGAIN_S
from headrace._telemetry.log import log_event


class LoopEvent(asyncio.Event):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._pulse_loop = loop

    def set(self) -> None:
        with suppress(RuntimeError):  # the pulse has ended
            self._pulse_loop.call_soon_threadsafe(super().set)


class Pulse:
    """A thread with its own event loop and connection, for a worker on the running loop."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._worker_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._roles: set[asyncio.Task[None]] = set()
        self._ending = LoopEvent(self._loop)
        self._ended: asyncio.Future[None] = self._worker_loop.create_future()
        detach_sentinel(executor.pool)
        threading.Thread(target=self._work, name="headrace-pulse", daemon=True).start()

    def event(self) -> LoopEvent:
        return LoopEvent(self._loop)

    def run(self, role: Coroutine[Any, Any, None], name: str) -> asyncio.Future[None]:
        """Run a role in the pulse. The future is done when the role has ended. Cancelling it
        cancels the role.
        """
        ended: asyncio.Future[None] = self._worker_loop.create_future()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(role, name=name)
            tasks.append(task)
            self._roles.add(task)
            task.add_done_callback(self._roles.discard)
            task.add_done_callback(lambda _: self.post(settle, ended))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        ended.add_done_callback(lambda one: self._call(cancel) if one.cancelled() else None)
        self._call(begin)
        return ended

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the pulse has ended
            self._loop.call_soon_threadsafe(function)

    def post(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the worker's loop was closed: for its peers the worker is dead
            self._ending.set()

    async def close(self) -> None:
        self._ending.set()
        await asyncio.wait([self._ended], timeout=2.0)  # a stopping worker waits for its pulse

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_closed())
        finally:
            self.post(settle, self._ended)

    async def _until_closed(self) -> None:
        await self._ending.wait()
        roles = list(self._roles)
        for role in roles:
            role.cancel()
        await asyncio.gather(*roles, return_exceptions=True)
        await self._executor.close()
        for sentinel in getattr(
            getattr(self._executor.pool, "sentinel_manager", None), "sentinels", ()
        ):
            with suppress(Exception):
                await sentinel.aclose()


def settle(
    future: asyncio.Future[Any], result: Any = None, error: BaseException | None = None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def detach_sentinel(pool: Any) -> None:
    """Give *pool* its own clients for Sentinel, if it uses the user's, which belong to another
    event loop.
    """
    theirs: Any = getattr(pool, "sentinel_manager", None)
    if hasattr(theirs, "sentinels"):
        forced = getattr(theirs, "_force_master_ip", None)
        places = [client.connection_pool.connection_kwargs for client in theirs.sentinels]
        pool.sentinel_manager = type(theirs)(
            [(place["host"], place["port"]) for place in places],
            min_other_sentinels=theirs.min_other_sentinels,
            sentinel_kwargs=theirs.sentinel_kwargs,
            **({} if forced is None else {"force_master_ip": forced}),
            **theirs.connection_kwargs,
        )


LOOPS = frozenset(("asyncio", "selectors", "uvloop"))
ADVICE = "make it a plain def, which runs in a thread, or move what blocks into asyncio.to_thread()"
Running = Callable[[Any], tuple[Unit, Callable[..., Any]] | None]


class StallWatch:
    """Asks the event loop again and again for a sign of life. *running* returns the unit and the
    handler of a task.
    """

    def __init__(self, lifecycle: Lifecycle, pulse: Pulse, running: Running) -> None:
        self._lifecycle = lifecycle
        self._pulse = pulse
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._limit = lifecycle.settings.heartbeat
        self._quiet_until: dict[str, float] = {}  # by the code that blocked the loop

    async def run(self) -> None:
        while True:
            turned = self._pulse.event()
            asked = self._lifecycle.stalled_since = time.monotonic()
            self._pulse.post(turned.set)
            await self._answered(turned, asked)
            self._lifecycle.stalled_since = None
            await asyncio.sleep(self._limit / 4)

    async def _answered(self, turned: asyncio.Event, asked: float) -> None:
        logged_at = 0.0
        while True:
            since = time.monotonic()
            if await happens(turned, self._limit):
                break
            now = time.monotonic()
            # we were late ourselves: the whole process was suspended
            if now - since > self._limit + 1.0:
                asked += now - since
                self._lifecycle.stalled_since = asked
            elif (not logged_at or now - logged_at >= LOG_AGAIN_S) and self._log_block(
                now - asked, now
            ):
                logged_at = now
        if logged_at:
            log_event(
                "loop_unblocked", "after %.1f s", time.monotonic() - asked, worker=self._worker
            )

    @property
    def _worker(self) -> str:
        return self._lifecycle.consumers[0].worker

    def _log_block(self, seconds: float, now: float) -> bool:
        """Log the code that blocks the loop. Return false if it was logged a short while ago."""
        task = asyncio.current_task(self._loop)
        found = self._running(task)
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - for just this
        name = ""
        code = claim = None
        if found is not None:
            unit, function = found
            name = called(function)
            more = f" and {len(unit) - 1} more" if len(unit) > 1 else ""
            what = f"handler {name} of queue {unit[0].job.queue!r}, on job {unit[0].job.id}{more}"
            advice = ADVICE
            claim = unit[0]
            code = getattr(function, "__code__", None)
        elif task is not None:
            name = _coroutine(task)
            advice = "let it await, or run it in a thread"
            what = f"task {task.get_name()!r}, {name}, which is no handler of this worker"
        elif not self._loop.is_running():
            advice = "run it for as long as the worker works"
            what = "nothing: it is not running"
        elif frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LOOPS:
            return False  # the loop has just gone on
        else:
            advice = "keep it short"
            what = "a callback"
        if now < self._quiet_until.get(name, 0.0):
            return False
        self._quiet_until[name] = now + LOG_AGAIN_S
        where = "" if frame is None else _place(frame, code)
        words = "for %.1f s now, by %s%s; nothing else goes on there meanwhile: %s"
        fields: dict[str, Any] = {"handler": name, "where": where, "seconds": round(seconds, 1)}
        if claim is None:
            fields["worker"] = self._worker
        log_event(
            "loop_blocked",
            words,
            seconds,
            what,
            where and f" ({where})",
            advice,
            claim=claim,
            **fields,
        )
        return True


def _coroutine(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "") or task.get_name()


def _place(frame: FrameType, code: CodeType | None) -> str:
    """Name the running lines. These are the handler's own line, if *code* is in the stack, and the
    innermost line.
    """
    inner = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    outer: FrameType | None = frame
    while outer is not None and outer.f_code is not code:
        outer = outer.f_back
    if outer is None or outer is frame:
        return inner
    return f"{outer.f_code.co_filename}:{outer.f_lineno}, at {inner}"
