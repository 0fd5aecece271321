"""One run of a `Worker`, whose roles and handlers are threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from headrace import _forks
from headrace._core.effects import BlockThen, HeldJob, Phase, Role, Start
from headrace._core.steps.run import Run
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle, ShutdownDeadline
from headrace._core.worker.roles import Channel, RoleOwner
from headrace._core.worker.slots import first_of, leads
from headrace._engine.base import BaseEngine, BaseRoleDriver, RoundTrip, Unit, note_ran
from headrace._engine.hooks import Hook, hook_failed, surrounded
from headrace._model.job import Job
from headrace._net.base.address import Address
from headrace._net.sync.cluster import executor_of
from headrace._net.sync.driver import Driver
from headrace._net.sync.executor import Executor
from headrace._net.sync.steps import Steps, driver
from headrace._net.sync.subscription import Subscription
from headrace._net.sync.undoing import buried
from headrace._protocol.op import Op
from headrace.errors import OutcomeUnknown


def call_stops(hooks: list[Hook], error: BaseException | None = None) -> BaseException | None:
    while hooks:
        hook = hooks.pop()
        try:
            hook()
        except BaseException as raised:
            hook_failed(hook, raised)
            error = error or raised
    return error


class Wakeup:
    """An event on which one thread sleeps.

    It is a lock that is free when the event is set. That is faster than `threading.Event`, which is
    written in Python for many threads.
    """

    def __init__(self) -> None:
        # the lock of a worker: a forked child has none of its threads
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread. If it is awake, its next sleep ends at once."""
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread has just set it
                self._lock.release()

    def sleep(self, seconds: float) -> None:
        self._lock.acquire(timeout=max(0.0, seconds))


class Engine(BaseEngine):
    def __init__(
        self, lifecycle: Lifecycle, address: Address, trace_parent: str, stops: list[Hook]
    ) -> None:
        limit = lifecycle.settings.max_outage
        connect = partial(executor_of, address.target, address.client, limit, attend=address.attend)
        work = connect()
        blocking = connect(outage=work.outage)  # closed during blocked reads when we stop
        pulse = connect(outage=work.outage)  # a heartbeat waits for no other call
        self.executors: dict[Channel, Executor] = {
            "work": work,
            "pulse": pulse,
            "blocking": blocking,
        }
        super().__init__(lifecycle, self.executors, address, trace_parent, stops)
        self.stopping = _forks.event()
        self._subscriptions: dict[tuple[str, ...], Subscription] = {}  # subscriptions by channels
        self._finish = _forks.lock()
        self._putting = _forks.lock()  # keeps the order of units of shards that share slots
        self._units: dict[int, queue.SimpleQueue[tuple[Consumer, Unit | RoleDriver] | None]] = {}
        # by consumer: units that wait for a slot, or have a slot
        self._begun: dict[int, set[int]] = {}
        # by the first consumer that shares them: handler threads that do not end yet
        self._seats = {id(one): one.concurrency for one in filter(leads, lifecycle.consumers)}
        self._add(lifecycle.consumers)
        self._runners = [
            self._runner(consumer, number)
            for consumer in filter(leads, lifecycle.consumers)
            for number in range(consumer.concurrency)
        ]

    def _seat(self, consumer: Consumer) -> None:
        first = id(first_of(consumer))
        self._units[id(consumer)] = self._units.setdefault(first, queue.SimpleQueue())
        self._begun[id(consumer)] = self._begun.setdefault(first, set())

    def _launch(self, roles: Sequence[RoleDriver]) -> None:
        for role in roles:
            role.start()

    def begin(self) -> None:
        """Start the threads. The worker must know its engine before this, as the first handler may
        ask it to stop.
        """
        for one in [*self._runners, *chain(*self._running.values())]:
            one.start()

    def _runner(self, consumer: Consumer, number: int) -> threading.Thread:
        return self._thread(f"{consumer.handler.queue}-{number}", self._handle, consumer)

    def resize(self, consumer: Consumer, number: int) -> None:
        """Start handler threads, or let some end once no job waits for them. It starts fewer if the
        system has no more, and is asked again with the next report.
        """
        first = first_of(consumer)
        seats = self._seats[id(first)]
        self._runners = [one for one in self._runners if one.is_alive()]
        with suppress(RuntimeError):
            while seats < number:
                one = self._runner(first, seats)
                one.start()
                self._runners.append(one)
                seats += 1
        while seats > number:
            self._units[id(first)].put(None)
            seats -= 1
        self._seats[id(first)] = seats
        super().resize(consumer, seats)

    def _thread(self, name: str, target: Any, *args: Any) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=f"headrace-{name}", daemon=True)

    def _role(self, name: str, role: Role, owner: RoleOwner, channel: Channel) -> RoleDriver:
        driver = RoleDriver(self, name, owner, channel, role)
        if (
            name == "wait"
            and isinstance(owner, Consumer)
            and owner.shared is None
            and owner.handler.concurrency > 1
        ):
            driver.delegates = True
            number = owner.handler.concurrency
            driver.thread = self._thread(
                f"{owner.handler.queue}-{number}", self._handle, owner, driver
            )
        else:
            driver.thread = self._thread(name, driver.drive)
        return driver

    def send(
        self, ops: Sequence[Op[Any]], executor: Executor, within: float | None = None
    ) -> list[Any]:
        """Send operations in one round trip, until they are answered or the worker has stopped."""
        trip = RoundTrip(self, ops)
        while trip.replies is None:
            if self._gave_up:
                raise TimeoutError("the worker has stopped")
            with trip:
                trip.replies = executor.run_all(ops, within=within)
        return trip.replies

    def wait(self, effect: BlockThen, executor: Executor) -> tuple[bool, Any]:
        time.sleep(3e-5)  # a handler that has just started needs the interpreter's lock
        with suppress(OutcomeUnknown):  # as in `send`
            return self.followed(effect, *executor.wait_then(effect))
        return True, None

    def start(self, consumer: Consumer | None, units: Sequence[Unit]) -> None:
        assert consumer is not None  # noqa: S101
        put = self._units[id(consumer)].put
        begun = self._begun[id(consumer)]
        with self._putting:
            for unit in units:
                begun.add(id(unit))
                put((consumer, unit))

    def delegate(self, consumer: Consumer, unit: Unit, driver: RoleDriver) -> bool:
        """Let an idle thread continue to drive a role, so that the thread of the role can handle
        *unit*.

        A lone job then waits for no other thread, and starts in a fifth less time. Return false if
        no thread is idle.
        """
        begun = self._begun[id(consumer)]
        with self._putting:
            if len(begun) >= consumer.concurrency:
                return False
            begun.add(id(unit))
            self._units[id(consumer)].put((consumer, driver))
        return True

    def take_back(self, consumer: Consumer | None) -> tuple[list[Unit], bool]:
        units = self._units[id(consumer)]
        waiting = list[Unit]()
        others: list[tuple[Consumer, Unit | RoleDriver] | None] = []
        with self._putting:
            with suppress(queue.Empty):
                while True:
                    item = units.get_nowait()
                    if item and item[0] is consumer and not isinstance(item[1], RoleDriver):
                        waiting.append(item[1])
                    else:
                        others.append(item)
            begun = self._begun[id(consumer)]
            begun.difference_update(map(id, waiting))
            # in their order: units of other shards that share these slots, and ends of threads
            for item in others:
                units.put(item)
        return waiting, bool(begun)

    def abort(self, held: Sequence[HeldJob]) -> None:
        for one in held:
            one.job.lost.set()

    def _handle(self, consumer: Consumer, driver: RoleDriver | None = None) -> None:
        # the body of a handler thread, which drives a role between units if asked to
        units = self._units[id(consumer)]
        begun = self._begun[id(consumer)]
        handler = consumer.handler
        batch = consumer.handler.batch
        function = surrounded(handler.function, handler.around)
        telemetry = self.telemetry(consumer)
        shared = consumer.shared is not None
        fresh = self.contexts.fresh
        attach = object.__setattr__
        taker = self.takers[id(consumer)]
        item = units.get() if driver is None else (consumer, driver)
        while item is not None:
            consumer, unit = item
            if isinstance(unit, RoleDriver):
                item = unit.drive()
                continue
            if shared:
                telemetry = self.telemetry(consumer)
                taker = self.takers[id(consumer)]
            error: BaseException | None = None
            result: Any = None
            if jobs := consumer.begin(unit, time.monotonic()):
                argument: Any = jobs if batch else jobs[0]
                if taker is not None:
                    attach(argument, "_steps", taker)
                try:
                    if telemetry.on:
                        result = fresh().run(telemetry.call, function, unit, argument)
                    else:
                        result = fresh().run(function, argument)
                except BaseException as raised:  # any error is judged
                    error = raised
                if consumer.jobs.runs and (run := consumer.jobs.runs.get(unit[0])) is not None:
                    error = self._left(run, error, result)
                consumer.finished(unit, time.monotonic(), error, result)
            begun.discard(id(unit))
            # after the removal: a role sets `saturated` before it checks the slots
            consumer.slot_freed()
            self.wake(consumer)
            # These objects may be large.
            item = argument = error = result = None
            unit = []
            jobs = []
            item = units.get()

    def _steps(self, consumer: Consumer, job: Job) -> Steps:
        return Steps(self.run(consumer, job), driver(self.executors["work"], self.not_durable))

    def _left(self, run: Run, error: BaseException | None, result: Any) -> BaseException | None:
        note_ran(run)
        try:
            drive = driver(self.executors["work"], self.not_durable)
            error = drive(run.leave(error))
            if not run.undos.concern(run, error):
                return error
            return self.contexts.fresh().run(buried, run, drive, error, result)
        except BaseException as raised:
            return raised

    def subscription(self, channels: Sequence[str]) -> Subscription:
        found = self._subscriptions.get(key := tuple(channels))
        return found or self._subscriptions.setdefault(key, Subscription(self.executors["work"]))

    def _unsubscribe(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.close()

    def runs_this(self) -> bool:
        roles = (role.thread for role in self._running["wait"] if role.delegates)
        return threading.current_thread() in (*self._runners, *roles)

    def finish(self) -> None:
        """Wait until everything is settled or released, or the server does not answer. Then
        close."""
        with self._finish:
            if self.finished:
                return
            deadline = self._shutdown_deadline(time.monotonic())
            # A read may have been connecting while drain() closed the open connections.
            self._await(self._running["wait"], deadline, self._stop_waiting)
            self._await(self._running["fetch"], deadline)
            self.lifecycle.advance_to(Phase.STOPPED)
            self.wake()
            for consumer in filter(leads, self.lifecycle.consumers):
                for _ in range(self._seats[id(consumer)]):
                    self._units[id(consumer)].put(None)
            self._unsubscribe()
            # Again and again: redis-py reopens a connection that is closed just before a read.
            self._await([*chain(*self._running.values())], deadline, self._unsubscribe)
            leaving = [
                self._role("leave", self.lifecycle.leave(part), None, "work")
                for part in self._parts()
            ]
            for role in leaving:
                role.start()
            self._await(leaving, deadline)
            for executor in self.executors.values():
                executor.close()
            self.error = self.contexts.start.run(call_stops, self._stops, self.error)
            self._stopped()

    def _await(
        self,
        roles: Sequence[RoleDriver],
        deadline: ShutdownDeadline,
        prod: Callable[[], None] | None = None,
    ) -> None:
        """Wait until these roles have ended. If we give up the server first, all calls to it end,
        too.
        """
        for role in roles:
            while not role.ended.is_set() and not self._gave_up:
                if prod is not None:
                    prod()
                role.ended.wait(0.02)
                if self._over(deadline, time.monotonic()):
                    self._gave_up = True
                    for executor in self.executors.values():
                        executor.give_up()


# drives one role, in one thread until its end, or in one thread after another
class RoleDriver(BaseRoleDriver, Driver):
    _engine: Engine
    thread: threading.Thread  # the first thread
    # whether the thread may handle a leased job while another thread drives the role
    delegates = False

    def __init__(
        self, engine: Engine, name: str, owner: RoleOwner, channel: Channel, role: Role
    ) -> None:
        super().__init__(engine, name, owner, channel, Wakeup())
        self._role = role
        self.ended = _forks.event()
        self.ended.set()  # the role has not begun

    def start(self) -> None:
        self.ended.clear()
        self.thread.start()

    def drive(self) -> tuple[Consumer, Unit] | None:
        """Drive the role to its end, or until the caller must handle the returned unit while
        another thread drives.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            while True:
                effect = self._role.send(answer) if error is None else self._role.throw(error)
                answer = error = None
                if isinstance(effect, Start) and (mine := self._mine(effect.units)) is not None:
                    return mine
                try:
                    answer = self._perform(effect)
                except BaseException as raised:
                    error = raised
        except StopIteration:
            pass
        except BaseException as failed:
            self._engine.failed(failed, self._channel)
        self.ended.set()
        return None

    def _mine(self, units: Sequence[Unit]) -> tuple[Consumer, Unit] | None:
        """Return a unit for the caller to handle, if there is one and another thread is free to
        drive the role.
        """
        consumer = self._consumer
        if not self.delegates or consumer is None or len(units) != 1:
            return None
        return (consumer, units[0]) if self._engine.delegate(consumer, units[0], self) else None

    def _sleep(self, seconds: float) -> None:
        self._event.sleep(seconds)
