"""One run of a `Worker`: its roles and handlers as threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from headrace._base.connections import Attend
from headrace._base.engine import BaseEngine, BaseRoleDriver, Unit
from headrace._base.hooks import Hook, hook_failed, surrounded
from headrace._core.effects import (
    Abort,
    BlockThen,
    Effect,
    Held,
    Join,
    Log,
    Phase,
    Receive,
    Role,
    Send,
    Sleep,
    Start,
    TakeBack,
    Wake,
)
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Farewell, Lifecycle
from headrace._core.worker.roles import Channel
from headrace._core.worker.slots import first_of, leads
from headrace._core.worker.together import Together
from headrace._protocol.op import Op
from headrace._sync.cluster import executor_of
from headrace._sync.driver import Driver
from headrace._sync.executor import Executor
from headrace._sync.subscription import Subscription
from headrace.errors import NotDurable, OutcomeUnknown

HAND_OVER_S = 3e-5  # seconds for which a role rests that has started a handler: its thread needs the interpreter's lock


def call_stops(hooks: list[Hook], error: BaseException | None = None) -> BaseException | None:
    """Call the hooks of the end, the last first; return the first error that there is."""
    while hooks:
        hook = hooks.pop()
        try:
            hook()
        except BaseException as raised:
            hook_failed(hook, raised)
            error = error or raised
    return error


class Engine(BaseEngine):
    """One run of a worker."""

    def __init__(
        self, lifecycle: Lifecycle, url: str | None, client: Any, trace_parent: str, attend: Attend | None
    ) -> None:
        limit = lifecycle.settings.max_outage
        work = executor_of(url, client, limit, attend=attend)
        blocking = executor_of(url, client, limit, work.outage, attend)  # closed under blocked reads when we stop
        pulse = executor_of(url, client, limit, work.outage, attend)  # a heartbeat waits for no other call
        self.executors: dict[Channel, Executor] = {"work": work, "pulse": pulse, "blocking": blocking}
        super().__init__(lifecycle, self.executors, trace_parent)
        self.stopping = threading.Event()
        self._subscriptions: dict[tuple[str, ...], Subscription] = {}  # by channels
        self._finish = threading.Lock()
        self._putting = threading.Lock()  # shards that share slots keep the order of their units
        self._units: dict[int, queue.SimpleQueue[tuple[Consumer, Unit] | None]] = {}
        for one in lifecycle.consumers:
            self._seat(one)
        self._runners = [
            self._thread(f"{consumer.handler.queue}-{number}", self._handle, consumer)
            for consumer in filter(leads, lifecycle.consumers)
            for number in range(consumer.handler.concurrency)
        ]
        self._begin()

    def _seat(self, consumer: Consumer) -> None:
        first = self._units.get(id(first_of(consumer)))
        self._units[id(consumer)] = queue.SimpleQueue() if first is None else first

    def _launch(self, role: threading.Thread) -> threading.Thread:
        role.start()
        return role

    def begin(self) -> None:
        """Start the threads. The worker knows its engine by now: the first handler may ask it to stop."""
        for thread in [*self._runners, *chain(*self._running.values())]:
            thread.start()

    def _thread(self, name: str, target: Any, *args: Any) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=f"headrace-{name}", daemon=True)

    def _role(self, name: str, role: Role, whose: Consumer | Together | None, channel: Channel) -> threading.Thread:
        return self._thread(name, RoleDriver(self, whose, channel, threading.Event()).run, role)

    def send(self, ops: Sequence[Op[Any]], executor: Executor, within: float | None = None) -> list[Any]:
        """Send operations in one round trip, until they are answered or the worker has stopped."""
        since = time.perf_counter()
        replies: list[Any] | None = None
        while replies is None:
            if self._gave_up:
                raise TimeoutError("the worker has stopped")
            with suppress(OutcomeUnknown):  # what a worker sends is fenced, or may happen twice: begin anew
                try:
                    replies = executor.run_all(ops, within=within)
                except NotDurable as error:
                    replies = self.not_durable(error)
        self.answered(ops, replies, since)
        return replies

    def wait(self, effect: BlockThen, executor: Executor) -> tuple[bool, Any]:
        """Block on the server, and send what follows that."""
        time.sleep(HAND_OVER_S)
        try:
            rung, reply = executor.wait_then(effect)
        except OutcomeUnknown:  # as in `send`
            return True, None
        if reply is not None:
            self.answered([effect.op], [reply], time.perf_counter())
        return rung, reply

    def start(self, consumer: Consumer | None, units: Sequence[Unit]) -> None:
        """Run the handler on these units, as slots become free."""
        for unit in units:
            assert consumer is not None  # noqa: S101
            with self._putting:
                self._units[id(consumer)].put((consumer, unit))

    def take_back(self, consumer: Consumer | None) -> list[Unit]:
        """Return the units that have not started; they no longer will."""
        units, waiting, others = self._units[id(consumer)], list[Unit](), list[tuple[Consumer, Unit]]()
        with self._putting:
            with suppress(queue.Empty):
                while True:
                    item = units.get_nowait()
                    if item is None:
                        continue
                    if item[0] is consumer:
                        waiting.append(item[1])
                    else:
                        others.append(item)
            for item in others:  # of the shards that share these slots, in their order
                units.put(item)
        return waiting

    def abort(self, held: Sequence[Held]) -> None:
        """Tell the handlers of these jobs to give up; a thread cannot be stopped."""
        for one in held:
            one.job.lost.set()

    def _handle(self, consumer: Consumer) -> None:
        """Run the handler on unit after unit: one slot."""
        units, handler, batch = self._units[id(consumer)], consumer.handler, consumer.handler.batch
        function = surrounded(handler.function, handler.around)
        telemetry, shared = self.telemetry(consumer), consumer.shared is not None
        while (item := units.get()) is not None:
            consumer, unit = item
            if shared:
                telemetry = self.telemetry(consumer)
            jobs = consumer.begin(unit, time.monotonic())
            error: BaseException | None = None
            result: Any = None
            if not jobs:
                self.wake(consumer)
                continue
            try:
                argument = jobs if batch else jobs[0]
                result = telemetry.call(function, unit, argument) if telemetry.on else function(argument)
            except BaseException as raised:  # judged, whatever it is
                error = raised
            consumer.finished(unit, time.monotonic(), error, result)
            self.wake(consumer)

    def subscription(self, channels: Sequence[str]) -> Subscription:
        """Return the connection that listens on these channels."""
        found = self._subscriptions.get(key := tuple(channels))
        return found or self._subscriptions.setdefault(key, Subscription(self.executors["work"]))

    def _unsubscribe(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.close()

    def _stop_waiting(self) -> None:
        self.executors["blocking"].stop_waiting()

    def runs_this(self) -> bool:
        """Tell whether one of our handlers is the caller."""
        return threading.current_thread() in self._runners

    def finish(self) -> None:
        """Wait until everything is settled or released, or no server answers, and close."""
        with self._finish:
            if self.finished:
                return
            farewell = self._farewell(time.monotonic())
            # A read may have been connecting as drain() closed what it found.
            self._await(self._running["wait"], farewell, self._stop_waiting)
            self._await(self._running["fetch"], farewell)
            self.lifecycle.advance_to(Phase.STOPPED)
            self.wake()
            for consumer in filter(leads, self.lifecycle.consumers):
                for _ in range(consumer.handler.concurrency):
                    self._units[id(consumer)].put(None)
            self._unsubscribe()
            # Again and again: redis-py opens a connection anew that is closed just before it is read.
            self._await([*chain(*self._running.values())], farewell, self._unsubscribe)
            leaving = [self._role("leave", self.lifecycle.leave(part), None, "work") for part in self._parts()]
            for thread in leaving:
                thread.start()
            self._await(leaving, farewell)
            for executor in self.executors.values():
                executor.close()
            self.error = call_stops(self.stops, self.error)
            self._stopped()

    def _await(
        self, threads: Sequence[threading.Thread], farewell: Farewell, prod: Callable[[], None] | None = None
    ) -> None:
        """Wait until the threads have ended. If the server is given up first, all calls to it end, too."""
        for thread in threads:
            while thread.is_alive() and not self._gave_up:
                if prod is not None:
                    prod()
                thread.join(0.02)
                if self._over(farewell, time.monotonic()):
                    self._gave_up = True
                    for executor in self.executors.values():
                        executor.give_up()


class RoleDriver(BaseRoleDriver, Driver):
    """The driver of one role, in its thread."""

    _engine: Engine

    def run(self, role: Role) -> None:
        """Drive a role to its end."""
        try:
            self._drive(role)
        except BaseException as error:
            self._engine.failed(error, self._channel)

    def _perform(self, effect: Effect, end: float | None = None) -> Any:
        match effect:
            case Send(ops, within):
                return self._engine.send(ops, self._executor, within)
            case Sleep(seconds):
                self._event.wait(seconds)
                self._event.clear()
                return None
            case BlockThen():
                return self._engine.wait(effect, self._executor)
            case Receive(channels, seconds):
                return self._engine.subscription(channels).receive(channels, seconds)
            case Start() | Wake() | TakeBack() | Abort() | Join() | Log():
                return self._engine.perform(effect, self._consumer)
            case _:
                return super()._perform(effect, end)
