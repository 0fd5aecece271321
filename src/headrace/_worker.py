"""`Worker`: drives the roles with threads. Handlers are plain functions; no event loop."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

import redis

from headrace import _log as log
from headrace._effects import (
    Abort,
    Effect,
    Hear,
    Held,
    Listen,
    Now,
    Pause,
    Phase,
    Poke,
    Recall,
    Role,
    Say,
    Send,
    Start,
)
from headrace._execute import PAUSE, Executor
from headrace._feed import Feed
from headrace._feeds import Persistent
from headrace._handlers import Handlers, Seconds
from headrace._line import Line
from headrace._op import Op
from headrace._roles import Roles
from headrace._ticks import tick
from headrace._watch import Watch

Unit = list[Held]
GOODBYE = 2.0  # seconds that leaving a server may take which does not answer


class Worker(Handlers):
    """Runs handlers on threads: `@worker.handler("emails")`, then `worker.run()` or `with worker:`.

    *url* or *client* (a `redis.Redis`) as for `Queue`. *name*: this worker's own; started again under it, it has the
    jobs first that it held when it died, and a second live one is refused (`NameTaken`). *heartbeat*, *timeout*:
    seconds between signs of life, and without one until peers take over. *trace_parent*: whose child the span of a
    handler's run is, if somebody traces: the `poll`'s that brought the job, or the `message`'s that it is.
    """

    threads_only = True
    slots = 10

    def __init__(
        self, url: str | None = None, client: redis.Redis | None = None, name: str | None = None,
        heartbeat: Seconds = 2.0, timeout: Seconds = 10.0, namespace: str = "headrace", trace_parent: str = "poll",
    ) -> None:  # fmt: skip
        super().__init__(url, client, redis.Redis, name, heartbeat, timeout, namespace, trace_parent)
        self._running: _Engine | None = None

    def run(self) -> None:
        """Work until SIGINT or SIGTERM, or `stop()`; then let handlers finish. A second signal releases everything at
        once. Raises what ended the worker, if that was an error."""
        main = threading.current_thread() is threading.main_thread()
        before: dict[int, Any] = {}
        early: list[int] = []  # signals that came before there was anything to stop
        engine: _Engine | None = None
        error: BaseException | None = None

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if engine is None:
                early.append(number)
            else:  # in a thread of its own: a signal handler must not wait for locks that it may have interrupted
                threading.Thread(target=engine.stop, daemon=True).start()

        try:
            if main:
                before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
            engine = self.start()
            for _ in early:
                engine.stop()
            while not engine.stopping.wait(0.5):
                pass
            engine.finish()
            error = engine.error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if engine is not None and not engine.finished:  # interrupted otherwise than by our signals
                engine.halt()
                engine.finish()
            self._left()
        if error is not None:
            raise error

    def start(self) -> _Engine:
        """Begin working in the background; `with worker:` does it for you."""
        if self._running is not None and not self._running.finished:
            raise RuntimeError("this worker is running already")
        self._running = _Engine(self._roles(), self._connect(), self._client, self.trace_parent)
        log.say("worker_started", "%s, for %s", self.name, ", ".join(self.handlers), worker=self.name)
        return self._running

    def stop(self, wait: bool = True) -> None:
        """Stop taking jobs and let handlers finish; called again, release everything to the front at once.

        *wait*: until that is done; a handler that stops its own worker never waits, it would be for itself.
        """
        engine = self._running
        if engine is None:
            return
        engine.stop()
        if wait and not engine.runs_this():
            engine.finish()
            self._left()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        engine = self._running
        if engine is not None:
            engine.drain()  # no second stop: somebody may have called the first
            engine.finish()
            self._left()
            if engine.error is not None and error is None:
                raise engine.error


class _Engine:
    """One run of a worker."""

    def __init__(self, roles: Roles, url: str | None, client: Any, trace_parent: str) -> None:
        self.roles = roles
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self.finished = False
        self._asked = False  # to stop
        self._finish = threading.Lock()
        self._work = Executor(url, client)
        self._ears = Executor(url, client)  # closed under blocked reads when we stop
        self._pulse = Executor(url, client)  # a heartbeat waits for nobody's connection
        self._pulse.pause = min(PAUSE, roles.settings.heartbeat / 2)  # after an outage, others count the time
        self._line = Line(self._work)
        settings = self._work.pool.connection_kwargs
        self._watches = {feed.ops.keys.part("jobs"): Watch(feed, settings, trace_parent) for feed in roles.feeds}
        self._units: dict[int, queue.SimpleQueue[Unit | None]] = {}
        self._events: dict[int, list[threading.Event]] = {}
        self._all: list[threading.Event] = []
        self._fetchers: list[threading.Thread] = []
        self._listeners: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._runners: list[threading.Thread] = []
        for feed in self.roles.feeds:
            self._units[id(feed)] = queue.SimpleQueue()
            self._events[id(feed)] = []
            for number in range(feed.handler.concurrency):
                self._runners.append(self._thread(f"{feed.handler.queue}-{number}", self._handle, feed))
        self._role("beat", self.roles.beat(), None, self._pulse, self._others)
        self._role("keep", self.roles.keep(), None, self._work, self._others)
        self._role("hear", self.roles.hear(), None, self._work, self._others)
        for feed in self.roles.feeds:
            self._role("fetch", feed.fetch(), feed, self._work, self._fetchers)
            self._role("listen", feed.listen(), feed, self._ears, self._listeners)
            self._role("tick", tick(feed), feed, self._work, self._others)
            if isinstance(feed, Persistent):
                self._role("watch", feed.watch(roles.settings), feed, self._work, self._others)
        for thread in [*self._runners, *self._others, *self._fetchers, *self._listeners]:
            thread.start()

    def _thread(self, name: str, target: Any, *args: Any) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=f"headrace-{name}", daemon=True)

    def _role(
        self,
        name: str,
        role: Role,
        feed: Feed | None,
        executor: Executor,
        into: list[threading.Thread],
    ) -> None:
        event = threading.Event()
        self._all.append(event)
        if feed is not None:
            self._events[id(feed)].append(event)
        into.append(self._thread(name, self._drive, role, feed, executor, event))

    def _drive(self, role: Role, feed: Feed | None, executor: Executor, event: threading.Event) -> None:
        try:
            effect = next(role)
            while True:
                try:
                    answer = self._perform(effect, feed, executor, event)
                except BaseException as error:  # it is the role's to handle, whatever it is
                    effect = role.throw(error)
                else:
                    effect = role.send(answer)
        except StopIteration:
            pass
        except BaseException as error:  # comes out of run()
            # Closed under its blocked read, `listen` may raise anything.
            if self.roles.phase is Phase.RUNNING or (self.roles.phase < Phase.STOPPED and executor is not self._ears):
                log.say("role_failed", "%r", error, error=error, level=logging.DEBUG if self.error else None)
                self.error = self.error or error  # the others fail of the same, as a rule
                self.drain()

    def _perform(self, effect: Effect, feed: Feed | None, executor: Executor, event: threading.Event) -> Any:
        match effect:
            case Send(ops):
                return self._send(ops, executor)
            case Listen(command):
                return executor.wait(command)
            case Hear(channels, seconds):
                return self._line.hear(channels, seconds)
            case Now():
                return time.monotonic()
            case Pause(seconds):
                event.wait(seconds)
                event.clear()
            case Poke(everyone, whose):
                self._poke(self._all if everyone else self._events.get(id(whose or feed), self._all))
            case Say(text):
                log.say("schedule_failed", "%s", text)
            case Start(units):
                for unit in units:
                    self._units[id(feed)].put(unit)
            case Recall():
                return _drain(self._units[id(feed)])
            case Abort(held):
                _tell(held)
        return None

    def _send(self, ops: Sequence[Op[Any]], executor: Executor) -> list[Any]:
        since = time.perf_counter()
        replies = executor.run_all(ops)
        for op, reply in zip(ops, replies, strict=True):
            watch = self._watches.get(op.keys[0])
            if watch is not None:
                watch.answered(op, reply, since)
        return replies

    def _poke(self, events: Sequence[threading.Event]) -> None:
        for event in events:
            event.set()

    def _handle(self, feed: Feed) -> None:
        """One slot: run the handler on unit after unit."""
        units, function, batch = self._units[id(feed)], feed.handler.function, feed.handler.batch
        watch = self._watches[feed.ops.keys.part("jobs")]
        while (unit := units.get()) is not None:
            jobs = feed.begin(unit, time.monotonic())
            error: BaseException | None = None
            result: Any = None
            if not jobs:
                self._poke(self._events[id(feed)])
                continue
            try:
                argument = jobs if batch else jobs[0]
                result = watch.call(function, unit, argument) if watch.on else function(argument)
            except BaseException as raised:  # judged, whatever it is
                error = raised
            feed.finish(unit, time.monotonic(), error, result)
            self._poke(self._events[id(feed)])

    def stop(self) -> None:
        """Once: drain. Again: halt."""
        if self._asked:
            self.halt()
        else:
            self._asked = True
            self.drain()

    def drain(self) -> None:
        """Take nothing new, let handlers finish."""
        self.roles.turn(Phase.DRAINING)
        self.stopping.set()
        self._poke(self._all)
        self._ears.close()  # a blocked read would still be given a job, which nobody else is then woken for

    def halt(self) -> None:
        """Release everything now; handlers are told."""
        self.roles.turn(Phase.HALTING)
        self._work.budget = GOODBYE
        for feed in self.roles.feeds:
            for held in list(feed.held.values()):
                held.job.lost.set()
        self.drain()

    def runs_this(self) -> bool:
        """Whether it is one of our handlers that asks."""
        return threading.current_thread() in self._runners

    def finish(self) -> None:
        """Wait until everything is settled or released, and close."""
        with self._finish:
            if self.finished:
                return
            for thread in self._listeners:  # one may have been connecting as drain() closed what it found
                for _ in range(250):
                    self._ears.close()
                    thread.join(0.02)
                    if not thread.is_alive():
                        break
            for thread in self._fetchers:
                thread.join()
            self.roles.turn(Phase.STOPPED)
            self._work.budget = self._pulse.budget = GOODBYE
            self._poke(self._all)
            for feed in self.roles.feeds:
                for _ in range(feed.handler.concurrency):
                    self._units[id(feed)].put(None)
            self._line.close()
            for thread in self._others:
                thread.join(5)
            for feed in (feed for feed in self.roles.feeds if feed.registered):
                with suppress(Exception):  # the server may be gone; then leases and heartbeats run out by themselves
                    while (self._work.run(feed.ops.leave(feed.name)))[1] == "1":
                        pass
            for executor in (self._work, self._pulse):
                executor.close()
            self.finished = True
            log.say("worker_stopped", "%s", self.roles.feeds[0].worker, worker=self.roles.feeds[0].worker)


def _tell(held: Sequence[Held]) -> None:
    for one in held:
        one.job.lost.set()


def _drain(units: queue.SimpleQueue[Unit | None]) -> list[Unit]:
    drained: list[Unit] = []
    with suppress(queue.Empty):
        while True:
            unit = units.get_nowait()
            if unit is not None:
                drained.append(unit)
    return drained
