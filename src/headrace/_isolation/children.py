"""The children of an isolated handler. They are started ahead, replaced, recycled and killed."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from attrs import define, field

from headrace import _forks
from headrace._isolation.link import Broken, Link, Message
from headrace._isolation.nursery import Nursery, heard
from headrace._isolation.program import MIB, Program, resident
from headrace._isolation.values import remade
from headrace._model.isolation import Isolation
from headrace._telemetry.isolated import Reason, record_killed, record_recycled, record_start
from headrace._telemetry.log import log_event
from headrace.errors import ConfigurationError, Killed, describe_error

AGAIN_S = 1.0  # seconds until a child is started again, after one could not start
START_WITHIN_S = 60.0  # seconds that a child has to import its handler's module
LOOK_S = 0.05  # seconds between two looks whether a child lives


@define(eq=False)
class Process:
    pid: int
    told: int  # a file, which tells its end
    link: Link
    most: float  # jobs until it is replaced
    jobs: int = 0
    began: float = field(factory=time.monotonic)
    job: str = ""  # that it runs
    rss: int = 0  # bytes of memory after its last job, if it is measured
    code: int | None = None  # with which it has ended
    lock: Any = field(factory=_forks.lock)

    def gone(self, patience: float = 0.0) -> bool:
        """Wait so many seconds for its end. Return whether it has ended."""
        ends = select.poll()
        ends.register(self.told, select.POLLIN)
        if self.code is None and ends.poll(patience * 1000):
            with self.lock:
                if self.code is None:
                    self.code = heard(self.told)
                    os.close(self.told)
        return self.code is not None

    def fate(self) -> str:
        """Describe how the process has ended. It waits for that a moment."""
        self.gone(1.0)
        if self.code is None:
            return "its connection was closed"
        return f"signal {-self.code}" if self.code < 0 else f"exit status {self.code}"

    def kill(self, grace: float) -> None:
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, START_WITHIN_S)):
            self._signal(number)
            if self.gone(patience):
                break
        self._signal(signal.SIGKILL)
        self.link.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants. It leads a group of its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class Children:
    """The pool of children of one queue's isolated handlers."""

    def __init__(
        self, queue_name: str, program: Program, isolation: Isolation, number: int
    ) -> None:
        self.queue = queue_name
        self.isolation = isolation
        self.number = number
        self._nursery = Nursery(f"headrace-{queue_name}", program, loads=isolation.start != "spawn")
        self._idle: deque[Process | BaseException] = deque()  # the last is taken: it is warm
        self._freed = _forks.condition()
        self._waiting = 0  # threads that wait for a child
        self._lock = _forks.lock()
        self._alive: set[Process] = set()
        self._closed = False
        # a job of a coroutine may send several operations at once
        self.sender = ThreadPoolExecutor(max(4, 2 * number), "headrace-child-ops")

    def begin(self) -> None:
        """Start all children, and wait for the first. Raises the error by which it could not."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigurationError(
                "a child process of an isolated handler imports this program, which starts its "
                "worker at once: do that under `if __name__ == '__main__':`"
            )
        atexit.register(self.end)
        # one is ready before one is replaced
        spare = bool(self.isolation.recycle_jobs or self.isolation.recycle_mb)
        for _ in range(self.number + spare):
            self._background(self._run_up)
        first = self._taken()
        if isinstance(first, BaseException):
            self.end()
            raise ConfigurationError(
                f"queue {self.queue!r}: a child process could not load its handler: "
                f"{describe_error(first)}"
            ) from first
        self._put(first)

    def take(self) -> Process:
        """Wait for a free child. Raises the error by which it could not start."""
        one = self._taken()
        if isinstance(one, BaseException):
            if self._closed:
                self._put(one)  # for the next
            raise one
        return one

    def give(self, one: Process) -> None:
        """Take back a child after a job. One that has had its jobs, or memory, is replaced."""
        one.jobs += 1
        one.job = ""
        limit = self.isolation.recycle_mb
        large = limit is not None and one.rss > limit * MIB
        if not large and one.jobs < one.most:
            self._put(one)
            return
        record_recycled(self.queue)
        why = f"{one.rss / MIB:,.0f} MiB" if large else f"{one.jobs:,} jobs"
        log_event("child_recycled", "process %d of %s, after %s", one.pid, self.queue, why)
        self._background(self._replace, one)

    def told(self) -> list[list[Any]]:
        """Describe the children, for `ChildFacts`."""
        now = time.monotonic()
        with self._lock:
            some = sorted(self._alive, key=lambda one: one.began)
        return [
            [one.pid, one.jobs, round(now - one.began, 1), resident(one.pid), one.job]
            for one in some
        ]

    def kill(self, one: Process, reason: str, kind: Reason) -> Killed:
        """End a child that runs too long, and start another. Return the error of its job."""
        self._background(self._run_up)
        one.kill(float(self.isolation.grace_s))  # type: ignore[arg-type]
        return self._lost(one, reason, kind)

    def died(self, one: Process, reason: str | None = None) -> Killed:
        """Replace a child that has ended by itself. Return the error of its job."""
        kind: Reason = "died" if reason is None else "memory"
        reason = reason or one.fate()
        self._background(self._run_up)
        one.kill(0.0)
        return self._lost(one, reason, kind)

    def end(self) -> None:
        """End all children. Jobs that still run in them are lost by it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = [
                threading.Thread(
                    target=self._let_go, args=(one,), name="headrace-child", daemon=True
                )
                for one in self._alive
            ]
        atexit.unregister(self.end)
        self.sender.shutdown(wait=False, cancel_futures=True)
        self._put(Killed("the worker has stopped"))
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self._nursery.end()

    # -- parts -------------------------------------------------------------------------------------

    def _put(self, one: Process | BaseException, *, last: bool = False) -> None:
        # a fresh child is the last that is taken
        (self._idle.appendleft if last else self._idle.append)(one)
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def _taken(self) -> Process | BaseException:
        while True:
            try:
                return self._idle.pop()
            except IndexError:
                with self._freed:
                    self._waiting += 1
                    if not self._idle:  # another thread may take the next without the lock
                        self._freed.wait()
                    self._waiting -= 1

    def _lost(self, one: Process, reason: str, kind: Reason) -> Killed:
        record_killed(self.queue, kind)
        with self._lock:
            self._alive.discard(one)
        log_event("child_killed", "process %d of %s: %s", one.pid, self.queue, reason)
        return Killed(reason)

    def _let_go(self, one: Process) -> None:
        with suppress(Broken):
            one.link.send({"is": "stop"})
        one.gone(float(self.isolation.grace_s))  # type: ignore[arg-type]
        one.kill(0.0)
        with self._lock:
            self._alive.discard(one)

    def _replace(self, one: Process) -> None:
        self._run_up()
        self._let_go(one)

    def _background(self, call: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=call, args=args, name="headrace-child", daemon=True).start()

    def _run_up(self, pause: float = 0.0) -> None:
        time.sleep(pause)
        try:
            one = self._born()
        except BaseException as error:
            if not self._closed:
                self._put(error)
                self._background(self._run_up, AGAIN_S)
            return
        with self._lock:
            late = self._closed
            self._alive.add(one)
        if late:
            self._let_go(one)
        else:
            self._put(one, last=True)

    def _born(self) -> Process:
        """Start a child, and wait until it has loaded its handler. Raises its error."""
        began = time.monotonic()
        pid, told, ours = self._nursery.start()
        most = self.isolation.recycle_jobs
        jobs = float("inf") if most is None else max(1.0, most * random.uniform(0.9, 1.1))
        one = Process(pid, told, Link(ours, LOOK_S), jobs, began=began)
        try:
            head, _ = self._first(one)
        except (Broken, TimeoutError) as error:
            fate = str(error) if isinstance(error, TimeoutError) else one.fate()
            one.kill(0.0)
            raise Killed(f"a child process did not start: {fate}") from None
        if head["is"] == "refused":
            one.kill(float(self.isolation.grace_s))  # type: ignore[arg-type]
            raise remade(head["error"])
        record_start(self.queue, time.monotonic() - one.began)
        return one

    def _first(self, one: Process) -> Message:
        end = time.monotonic() + START_WITHIN_S
        while (message := one.link.receive()) is None:
            if one.gone():
                raise Broken
            if time.monotonic() > end:
                raise TimeoutError(f"not ready in {START_WITHIN_S:g} s")
        return message
