"""The base of both engines, with the part of a worker's run that threads and tasks share."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, cast

from headrace import _forks
from headrace._codecs.recorded import Recorded
from headrace._core.effects import (
    Abort,
    BlockThen,
    Describe,
    Effect,
    For,
    HeldJob,
    Immediate,
    Join,
    LineUp,
    Log,
    Now,
    Phase,
    Receive,
    Resize,
    Role,
    Send,
    Sleep,
    Start,
    Stop,
    TakeBack,
    Wake,
)
from headrace._core.fair.roles import fair_roles
from headrace._core.presence.roles import presence_roles
from headrace._core.shards.map import divided
from headrace._core.shards.roles import shard_roles, slots_of
from headrace._core.steps.builds import Builds
from headrace._core.steps.run import Callbacks, Run
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import ALONE_AT_MOST, Lifecycle, ShutdownDeadline, many
from headrace._core.worker.roles import WAKE_IF, Channel, NamedRole, RoleOwner, all_roles
from headrace._core.worker.shared_read import SharedRead, by_place
from headrace._core.worker.slots import sharing
from headrace._engine.facts import process_facts
from headrace._engine.hooks import Contexts, Hook
from headrace._model.job import Home, Job
from headrace._net.base.address import Address
from headrace._net.base.pool import SPARE_S
from headrace._net.base.retries import RETRY_PAUSE_S
from headrace._protocol.limits import LOG_AGAIN_S
from headrace._protocol.op import Op
from headrace._telemetry.log import log_event
from headrace._telemetry.tracing import injected
from headrace._telemetry.worker import WorkerTelemetry
from headrace.errors import LeasesLeft, NotDurable, OutcomeUnknown, RunLost, describe_error

Unit = list[HeldJob]
LEAVE_WITHIN_S = 1.25  # seconds that a stop waits for a silent server, once no handler runs

FEATURES = (shard_roles, fair_roles, presence_roles)
"""Features that add their own roles, or admissions, when consumers join."""


def note_ran(run: Run) -> None:
    """Note how long the handler of a run has taken. Its suspension reports it."""
    held = cast("Any", run.claim)  # a job that a worker holds
    held.ran = time.monotonic() - held.started


def left_behind(lifecycle: Lifecycle) -> LeasesLeft | None:
    leases = lifecycle.kept()
    if not leases:
        return None
    error = LeasesLeft(leases)
    log_event("leases_left", "%s", error, worker=lifecycle.consumers[0].worker)
    return error


class Event(Protocol):
    def set(self) -> None:
        """Wake the role."""


class _ConditionalEvent:
    """The event of a role that sometimes has no work for a consumer. The consumer wakes the role by
    it.
    """

    def __init__(
        self, event: Event, condition: Callable[[Consumer], bool], consumer: Consumer
    ) -> None:
        self._event = event
        self._condition = condition
        self._consumer = consumer

    def set(self) -> None:
        if self._condition(self._consumer):
            self._event.set()


class RoundTrip:
    """A round trip of a worker. It is sent again while its outcome is unknown.

    Its calls are fenced, or may happen twice.
    """

    def __init__(self, engine: BaseEngine, ops: Sequence[Op[Any]]) -> None:
        self._engine = engine
        self._ops = ops
        self._since = time.perf_counter()
        self.replies: list[Any] | None = None

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> bool:
        if isinstance(error, NotDurable):
            self.replies = self._engine.not_durable(error)
        if self.replies is not None:
            self._engine.answered(self._ops, self.replies, self._since)
        return isinstance(error, (NotDurable, OutcomeUnknown))


class BaseEngine(ABC):
    executors: Any  # executors by channel
    stopping: Any  # set when the worker starts to stop
    fetchers = 1  # number of `fetch` roles for each consumer

    def __init__(
        self,
        lifecycle: Lifecycle,
        executors: Mapping[Channel, Any],
        address: Address,
        trace_parent: str,
        stops: list[Hook],
    ) -> None:
        self.lifecycle = lifecycle
        self.contexts = Contexts()
        self._address = address
        self._trace_parent = trace_parent
        self.error: BaseException | None = None
        self._failing = _forks.lock()
        self.finished = False
        self._stops = stops  # hooks left to call at the end, the last first
        self._asked = False  # whether a stop was requested
        self._leased = False  # whether a job was ever leased: the user has a worker's rights
        self._gave_up = False  # whether the stop gave up the server, which did not answer
        self._lagged = float("-inf")  # when a settlement without durability was last logged
        self._hurried = False  # whether calls to nodes out of reach end soon, as the worker stops
        self._outage = executors["work"].outage
        # Heartbeats are retried soon: after an outage, peers count the time without a heartbeat.
        executors["pulse"].pause = min(RETRY_PAUSE_S, lifecycle.settings.heartbeat / 2)
        # We detect a hung server before peers declare this worker dead: another server may have its
        # address by now. It has a second at least, as it may be busy.
        executors["pulse"].lower_timeouts(max(1.0, lifecycle.settings.timeout / 4))
        executors["work"].durable = lifecycle.settings.durable
        self._where = executors["blocking"].place
        queues = [consumer.ops for consumer in lifecycle.consumers]
        shards = {str(ops.keys.queue): ops.settings.shards for ops in queues}
        self._home = Home(address.meant(), queues[0].namespace, shards)
        for consumer in lifecycle.consumers:
            if (shared := slots_of(consumer)) is not None:
                shared.map.sound = executors["work"].healthy
        if len(self._parts()) > ALONE_AT_MOST:  # heartbeats of many parts share connections
            executors["pulse"].combine()
        if many(lifecycle):
            executors["work"].combine()
            for channel in ("work", "blocking"):
                executors[channel].connections.keep = SPARE_S
        self._telemetries: dict[str, WorkerTelemetry] = {}
        # makers of the steps of jobs, by consumer
        self.takers: dict[int, Callable[[Job], Any] | None] = {}
        self._all: list[Event] = []
        self._events: dict[int, list[Event]] = {}
        self._running: dict[str, list[Any]] = {}  # threads or tasks, by the role that they run

    def _add(self, consumers: Sequence[Consumer]) -> list[Any]:
        settings = self.executors["work"].pool.connection_kwargs
        for consumer in consumers:
            self._telemetries[consumer.ops.keys.key("jobs")] = WorkerTelemetry(
                consumer, settings, self._trace_parent
            )
            self._events[id(consumer)] = []
            self.takers[id(consumer)] = self._taker(consumer)
            self._seat(consumer)
        return self._make_roles(
            all_roles(self.lifecycle, self.fetchers, self._place, consumers, FEATURES)
        )

    def _make_roles(self, roles: Iterator[NamedRole]) -> list[Any]:
        added: list[Any] = []
        for name, role, owner, channel in roles:
            added.append(self._role(name, role, owner, channel))
            self._running.setdefault(name, []).append(added[-1])
        return added

    def _begin(self, roles: Iterator[NamedRole]) -> None:
        if self.lifecycle.phase is Phase.RUNNING:
            self._launch(self._make_roles(roles))

    def join(self, consumers: Sequence[Consumer]) -> None:
        if self.lifecycle.phase is Phase.RUNNING:
            self.lifecycle.join(consumers)
            self._launch(self._add(consumers))

    @abstractmethod
    def _seat(self, consumer: Consumer) -> None:
        """Give a consumer its slots, shared with other consumers or its own."""

    @abstractmethod
    def _launch(self, roles: Sequence[Any]) -> None:
        """Start the threads of roles that are added while the worker runs. Tasks run already."""

    def _place(self, consumer: Consumer) -> Hashable:
        return cast("Hashable", self._where(consumer.ops.keys))

    def _parts(self) -> list[list[Consumer]]:
        return by_place(self.lifecycle.consumers, self._place)

    @abstractmethod
    def _role(self, name: str, role: Role, owner: RoleOwner, channel: Channel) -> Any:
        """Make the thread or task that runs a role."""

    def wakes(self, event: Event, name: str, owner: RoleOwner) -> None:
        # the role *name* sleeps on this event
        self._all.append(event)
        if isinstance(owner, SharedRead):
            for consumer in owner.consumers:
                self._events[id(consumer)].append(_ConditionalEvent(event, owner.take_in, consumer))
        elif owner is not None:
            self._events[id(owner)].append(
                _ConditionalEvent(event, WAKE_IF[name], owner) if name in WAKE_IF else event
            )

    def wake(self, consumer: object = None) -> None:
        for event in self._events.get(id(consumer), self._all):
            event.set()
        if isinstance(consumer, Consumer) and consumer.shared is not None:
            other = consumer.shared.next()
            for event in self._events[id(other)] if other is not None else ():
                event.set()

    def telemetry(self, consumer: Consumer) -> WorkerTelemetry:
        return self._telemetries[consumer.ops.keys.key("jobs")]

    def followed(self, effect: BlockThen, woken: bool, reply: Any) -> tuple[bool, Any]:
        if reply is not None:
            self.answered([effect.op], [reply], time.perf_counter())
        return woken, reply

    def answered(self, ops: Sequence[Op[Any]], replies: Sequence[Any], since: float) -> None:
        if not self._leased and any(op.name == "lease" for op in ops):
            self._leased = True
            for executor in self.executors.values():
                executor.rights = True
        for op, reply in zip(ops, replies, strict=True):
            telemetry = self._telemetries.get(op.keys[0])
            if telemetry is not None:
                telemetry.answered(op, reply, since)

    def not_durable(self, error: NotDurable) -> list[Any]:
        """Log that settlements were not as durable as asked, at most once a minute. Return the
        answers.
        """
        now = time.monotonic()
        if now - self._lagged >= LOG_AGAIN_S:
            self._lagged = now
            log_event("not_durable", "%s", error)
        return error.answers

    def failed(self, error: BaseException, channel: Channel) -> None:
        """Stop the worker after a role's *error*, which `run()` will raise. Ignore errors that a
        stop causes.
        """
        self.wake()  # wakes all that wait for the role's end
        if self._gave_up or self._hurried or self.lifecycle.phase >= Phase.STOPPED:
            return
        if channel == "blocking" and self.lifecycle.phase is not Phase.RUNNING:
            return  # a read may raise any error when its connection is closed
        with self._failing:
            first = self.error is None
            self.error = self.error or error
        # The other roles usually fail for the same reason at the same moment.
        log_event(
            "role_failed",
            "%s",
            describe_error(error),
            error=error,
            level=None if first else logging.DEBUG,
        )
        self.drain()

    def perform(self, effect: Immediate, consumer: Consumer | None) -> Any:
        match effect:
            case Start(units):
                self.start(consumer, units)
            case Wake(everyone, owner):
                self.wake(None if everyone else owner or consumer)
            case For(its, asked):
                return self.perform(asked, its)
            case TakeBack():
                return self.take_back(consumer)
            case Abort(held):
                self.abort(held)
            case Join(consumers):
                self.join(consumers)
            case Resize(its, number):
                self.resize(its, number)
            case LineUp() if consumer is not None:
                self._begin(fair_roles(self.lifecycle, [consumer], self._place))
            case Describe():
                return process_facts()
            case Stop():
                self.drain()
            case Log(event, text):
                log_event(event, "%s", text)
            case _:
                raise TypeError(f"{effect!r} is not performed by an engine")
        return None

    def _taker(self, consumer: Consumer) -> Callable[[Job], Any] | None:
        single = not (consumer.handler.batch or consumer.handler.persistent)
        return partial(self._steps, consumer) if single else None

    def run(self, consumer: Consumer, job: Job) -> Run:
        held = next((one for one in list(consumer.jobs.held.values()) if one.job is job), None)
        if held is None:
            raise RunLost(job.id)
        callbacks = Callbacks(
            consumer.depart,
            partial(self.telemetry(consumer).stepped, held),
            partial(self._judged, consumer, held),
            partial(self._misses, consumer, held),
            injected,
            lambda home: consumer.jobs.homes.note(home, time.monotonic()),
            partial(divided, consumer.ops.namespace),
            self._home,
        )
        builds = Builds(consumer.handler.build, consumer.of(held).runs)
        values = Recorded(consumer.ops.bound)
        made = Run(consumer.ops, values, held, callbacks, builds, handled=True)
        return cast("Run", consumer.jobs.runs.setdefault(held, made))

    @staticmethod
    def _judged(
        consumer: Consumer, held: HeldJob, error: BaseException | None, result: Any, anew: bool
    ) -> str | None:
        """Return why a job is to die, if its handler ended so. Its undos have the handler's
        deadline anew."""
        why = consumer.dies(held, error, result, anew=anew)
        if why is not None:
            held.started = time.monotonic()
        return why

    def _misses(self, consumer: Consumer, held: HeldJob, builds: str) -> None:
        if consumer.jobs.missing.note(builds, time.monotonic()):
            self.telemetry(consumer).stepped(held, "build_missing", builds)

    @abstractmethod
    def _steps(self, consumer: Consumer, job: Job) -> Any:
        """Make the object by which a handler takes steps."""

    @abstractmethod
    def start(self, consumer: Consumer | None, units: Sequence[Unit]) -> None:
        """Run the handler on these units as slots become free."""

    def resize(self, consumer: Consumer, number: int) -> None:
        """Run at most *number* handlers of a queue at once. Running handlers go on."""
        for one in sharing(consumer):
            one.concurrency = number
            one.slot_freed()
            self.wake(one)

    @abstractmethod
    def take_back(self, consumer: Consumer | None) -> tuple[list[Unit], bool]:
        """Remove and return the units that have not started. Also return whether another unit has a
        slot."""

    @abstractmethod
    def abort(self, held: Sequence[HeldJob]) -> None:
        """Tell the handlers of these jobs to give up."""

    def _stop_waiting(self) -> None:
        """End the blocked reads. A read could otherwise take a job's wake-up from other workers."""
        self.executors["blocking"].stop_waiting()

    def stop(self) -> None:
        if self._asked:  # it drains already
            self.halt()
        else:
            self._asked = True
            self.drain()

    def drain(self) -> None:
        begins = self.lifecycle.phase < Phase.DRAINING
        self.lifecycle.advance_to(Phase.DRAINING)
        self.stopping.set()
        if begins:
            self._say_stopping()
        for consumer in self.lifecycle.consumers:
            self.abort(consumer.endless())
        self.wake()
        self._stop_waiting()

    def _say_stopping(self) -> None:
        consumers = self.lifecycle.consumers
        running = sum(
            bool(held.started)
            for consumer in consumers
            for held in list(consumer.jobs.held.values())
        )
        waits = (
            f", and waits for {running} that run; told again, it gives them back" if running else ""
        )
        words = "%s takes no more jobs%s"
        log_event(
            "worker_stopping",
            words,
            consumers[0].worker,
            waits,
            worker=consumers[0].worker,
            running=running,
        )

    def halt(self) -> None:
        self.lifecycle.advance_to(Phase.HALTING)
        for consumer in self.lifecycle.consumers:
            self.abort(list(consumer.jobs.held.values()))
        self.drain()

    def _over(self, deadline: ShutdownDeadline, now: float) -> bool:
        """Tell whether the stop gives up the server.

        On a cluster one node may be out of reach while others answer. Once no handler runs, calls
        to it end soon.
        """
        over = deadline.over(now, self._outage.answers)
        if not self._hurried and len(self._parts()) > 1 and deadline.idle(now) >= LEAVE_WITHIN_S:
            self._hurried = True
            for executor in self.executors.values():
                executor.budget = LEAVE_WITHIN_S
        return over

    def _shutdown_deadline(self, now: float) -> ShutdownDeadline:
        return ShutdownDeadline(self.lifecycle, LEAVE_WITHIN_S, now, self._outage.answers)

    def _stopped(self) -> None:
        self.error = self.error or left_behind(self.lifecycle)
        self._address.leave()
        self.finished = True
        worker = self.lifecycle.consumers[0].worker
        back: dict[str, int] = {}
        for one in self.lifecycle.consumers:
            if one.jobs.given_back:  # the number for all shards of a queue
                back[str(one.ops.keys.queue)] = (
                    back.get(one.ops.keys.queue, 0) + one.jobs.given_back
                )
        what = ", ".join(f"{number} of {queue!r}" for queue, number in back.items()) or "nothing"
        log_event(
            "worker_stopped", "%s; given back: %s", worker, what, worker=worker, given_back=back
        )


class BaseRoleDriver:
    def __init__(
        self, engine: Any, name: str, owner: RoleOwner, channel: Channel, event: Any
    ) -> None:
        self._consumer = None if isinstance(owner, SharedRead) else owner
        self._engine = engine
        self._executor = engine.executors[channel]
        self._channel: Channel = channel
        self._event = event
        engine.wakes(event, name, owner)

    def _perform(self, effect: Effect, end: float | None = None) -> Any:  # noqa: PLR0911 - a line an effect
        """Perform an effect. Return its answer, or for asyncio perhaps the coroutine that waits for
        it.
        """
        match effect:
            case Now():
                return time.monotonic()
            case Send(ops, within):
                return self._engine.send(ops, self._executor, within)
            case Sleep(seconds):
                return self._sleep(seconds)
            case BlockThen():
                return self._engine.wait(effect, self._executor)
            case Receive(channels, seconds):
                return self._engine.subscription(channels).receive(channels, seconds)
            case Immediate():
                return self._perform_at_once(effect)
            case _:
                driver: Any = super()
                return driver._perform(effect, end)  # noqa: SLF001 - the driver of all generators, in its colour

    def _perform_at_once(self, effect: Immediate) -> Any:
        return self._engine.perform(effect, self._consumer)

    def _sleep(self, seconds: float) -> Any:
        raise NotImplementedError
