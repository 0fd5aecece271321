"""The base of `Worker` and `AsyncWorker`, which registers handlers, and makes consumers of them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, Unpack

from attrs import evolve
from tenacity import wait_exponential_jitter

from headrace._api.flow import Stages
from headrace._api.guide import OF_WORKERS, Guided
from headrace._api.queue import BaseQueue
from headrace._api.tasks import (
    BaseTask,
    BaseTasks,
    check_annotations,
    declared_schedules,
    encoder,
    handler as task_handler,
    serve,
)
from headrace._core.flows.consumer import FlowConsumer
from headrace._core.shards.map import ShardMap
from headrace._core.shards.roles import ShardSlots
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.variants import KindConsumer, PersistentConsumer
from headrace._engine.hooks import (
    Hook,
    Hooked,
    called,
    is_async,
    refuse_bare,
    refuse_generator,
    refuse_parameters,
)
from headrace._model import checks, settings
from headrace._model.builds import build_name, rule_of
from headrace._model.codec import BytesCodec, Codec, chosen, warn_of_results
from headrace._model.isolation import Isolation, wanted
from headrace._model.job import Job
from headrace._model.policy import Retry
from headrace._model.settings import (
    GRACE_S,
    BatchOptions,
    HandlerOptions,
    HandlerSettings,
    QueueSettings,
    WorkerSettings,
    with_options,
)
from headrace._model.timing import Declared
from headrace._net.base.address import Address, Unpicklable, given, shown, shown_settings
from headrace._protocol.keys import Keys, worker_name
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps
from headrace._telemetry.log import log_event
from headrace._telemetry.worker import PARENTS
from headrace.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
ClientT = TypeVar("ClientT")
Seconds = float | timedelta
DEFAULT_WAIT = wait_exponential_jitter(initial=1, max=3600)


def processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def isolates(handler: HandlerSettings) -> bool:
    return any(one.isolation is not None for one in handler.kinds.values() or [handler])


def isolated(handler: HandlerSettings, stops: list[Hook]) -> HandlerSettings:
    if not isolates(handler):
        return handler
    from headrace._isolation.setup import isolated  # not for other workers: it takes time

    return isolated(handler, stops)


def new_worker_name() -> str:
    return f"worker-{secrets.token_hex(4)}"


def routed(kinds: Mapping[str | None, HandlerSettings], job: Job) -> Any:
    """Call the handler for the job's kind. Jobs of a kind without a handler never get here."""
    return (kinds.get(job.headers.get(settings.KIND)) or kinds[None]).function(job)


def merged(kinds: Mapping[str | None, HandlerSettings], slots: int) -> HandlerSettings:
    """Merge the options of handlers that share a queue. Raises `ConfigurationError` if two of them
    disagree."""
    handlers = list(kinds.values())
    queue = handlers[0].queue

    def agreed(name: str, values: Sequence[Any], default: Any) -> Any:
        given = [value for value in values if value != default or type(value) is not type(default)]
        for other in given[1:]:
            if other != given[0]:
                raise ConfigurationError(
                    f"queue {queue!r}: {name}={given[0]!r} and {name}={other!r}: its handlers share it: give it once"
                )
        return given[0] if given else default

    options = [handler.queue_settings.options() for handler in handlers]
    shared = {
        name: agreed(name, [one[name] for one in options], usual)
        for name, usual in QueueSettings().options().items()
    }
    codecs = [
        None if isinstance(handler.codec, BytesCodec) else handler.codec for handler in handlers
    ]
    return HandlerSettings(
        queue,
        partial(routed, kinds),
        concurrency=agreed("concurrency", [handler.concurrency for handler in handlers], slots),
        retry=Retry(),
        deadline=min(
            (handler.deadline for handler in handlers if handler.deadline is not None), default=None
        ),
        queue_settings=QueueSettings(**shared),
        codec=chosen(agreed("codec", codecs, None)),
        grace=agreed("grace", [handler.grace for handler in handlers], GRACE_S),
        kinds=kinds,
    )


def _serves(handler: HandlerSettings) -> str:
    others = " (other kinds)" if handler.kinds else ""
    functions = [
        called(one.function) + (others if kind is None else f" (kind {kind})")
        for kind, one in (handler.kinds or {None: handler}).items()
    ]
    batch = f"batches of up to {handler.max_size}, " if handler.batch else ""
    return f"{handler.queue!r} with {', '.join(functions)}, {batch}{handler.concurrency} at once"


def _of_all_shards(make: Callable[..., Consumer], ops: Ops) -> Sequence[Consumer]:
    known = ShardMap(ops)
    slots = ShardSlots(map=known, make=lambda ops: make(ops, shared=slots))
    slots.members = list(map(slots.make, known.ordered()))
    return slots.members


def _consumer(
    kind: type[Consumer],
    handler: HandlerSettings,
    worker: str,
    recurring: Declared | None,
    ops: Ops,
    **options: Any,
) -> Consumer:
    if recurring is not None and isinstance(ops, ShardOps):
        recurring = recurring.within(ops.shard)
    made = kind(ops, handler, worker, DEFAULT_WAIT, recurring=recurring, **options)
    # until the table was read
    made.leasing.blocked_by_older = made.shared is not None and ops.settings.ordered
    return made


def _flow_consumer(handler: HandlerSettings, worker: str, ops: Ops, **options: Any) -> Consumer:
    flow = handler.flow.at(ops) if isinstance(ops, ShardOps) else handler.flow
    return FlowConsumer(ops, handler, worker, DEFAULT_WAIT, flow=flow, **options)


class Relaying(Protocol):
    """A relay, as its worker runs it. One for asyncio is ended by an `await`."""

    def join(self, other: object) -> bool:
        """Do the work of *other*, too, on the same session. Returns `False` if that is of another
        engine."""
        ...

    def begin(self, where: Address) -> None:
        """Begin. *where* is the server for a queue that names none."""

    def end(self) -> Any:
        """Stop."""


class Relayed(Protocol):
    """An outbox, as a worker knows it. `headrace.sql.Outbox` is one."""

    def relay(self, engine: Any, poll: Any = None) -> Relaying:
        """Make a relay of its rows."""
        ...


class BaseWorker(Guided, Hooked, Unpicklable, Generic[ClientT]):
    """The base of both workers, with their handlers and settings."""

    _elsewhere = OF_WORKERS
    _client_type: ClassVar[type]
    _slots = 100
    _running: Any = None  # the engine of its last run

    def __init__(
        self,
        url: str | None = None,
        client: ClientT | None = None,
        name: str | None = None,
        heartbeat: Seconds = 2.0,
        timeout: Seconds = 10.0,
        namespace: str = "headrace",
        trace_parent: str = "poll",
        max_outage: Seconds | None = None,
        tracebacks: bool = False,
        durable: str | None = None,
        build: str | None = None,
    ) -> None:
        """Make a worker, which has no handlers yet.

        - *url* or *client*: as for the queue of the same colour.
        - *name*: shown by `queue.admin.workers()`, with a random part behind it. A worker that
          starts under the name of a dead worker gets its jobs first. A second live worker of the
          same name is refused (`NameTaken`).
        - *heartbeat*: between signs of life.
        - *timeout*: without a sign of life, until peers take over its jobs; at least twice
          *heartbeat*.
        - *namespace*: as for queues.
        - *trace_parent*: the parent of the span of a handler's run, if there is tracing: the `poll`
          that brought the job, or the `message` itself, the span that sent it.
        - *max_outage*: how long the server may be away before the worker ends. `None` waits for
          ever.
        - *tracebacks*: keep tracebacks with jobs that are retried or die, in all queues.
        - *durable*: where settlements must be written, as for a queue. A settlement that is not
          confirmed is logged, and work goes on.
        - *build*: the version of your code, such as `"2026.11.28-abc"`, by default the environment
          variable `HEADRACE_BUILD`. Runs remember the build that began them: `job.build`,
          `queue.find`, `queue.admin.runs`.
        """
        super().__init__()
        self.settings = WorkerSettings(heartbeat, timeout, max_outage, durable)
        self.name = worker_name(name) if name is not None else new_worker_name()
        self.named = name is not None
        self.namespace = namespace
        self.trace_parent = trace_parent
        self.build = build_name(os.environ.get("HEADRACE_BUILD", "") if build is None else build)
        self.tracebacks = QueueSettings(tracebacks=tracebacks).tracebacks
        if trace_parent not in PARENTS:
            raise ValueError(
                f"trace_parent={trace_parent!r}: give {' or '.join(map(repr, PARENTS))}"
            )
        self.handlers: dict[str, HandlerSettings] = {}
        self._concurrency_given: set[str] = set()  # queues whose concurrency was given
        self._tasks: list[BaseTasks] = []
        self._relays: list[Relaying] = []
        self._pid = os.getpid()
        self._signalled = False  # whether a signal has ended the last run
        self._address = self._own = Address.of(url, client, self._client_type, self)
        Keys.of("any", namespace)

    def __repr__(self) -> str:
        engine = self._running
        state = "not started"
        if engine is not None:
            state = "stopped" if engine.finished else engine.lifecycle.phase.name
        queues = ", ".join(
            f"{one.queue!r} ({one.concurrency} at once)" for one in self.handlers.values()
        )
        return f"<{type(self).__name__} {self.name!r}, {state.lower()}: {queues or 'no handlers'}>"

    @with_options(HandlerOptions)
    def handler(
        self,
        queue: str | BaseQueue,
        *,
        concurrency: int | None = None,
        retry: Retry | None = None,
        deadline: Seconds | None = None,
        codec: Codec[Any] | None = None,
        kind: str | None = None,
        grace: Seconds | None = None,
        persistent: bool = False,
        isolate: bool | Isolation = False,
        runs: str = "any",
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Register a function that takes a `Job` of *queue*. Its return value is the job's result,
        which the codec encodes.

        - *queue*: a name, or a queue, whose declaration it takes: name, codec, limits and all other
          options.
        - *concurrency*: how many run at once, by default 10 threads, or 100 tasks of an event loop.
          A `Worker` has one thread more, which takes turns with them; with 1 it is always the same
          thread.
        - *retry*: the policy for failures (`Retry`). By default there are 20 attempts, with
          exponential backoff and jitter from 1 s to 1 h, about eight hours in all. If only one of
          its `attempts` and *max_attempts* is given, both have that value.
        - *deadline*: seconds a run may take. Then it counts as failed. An async handler is
          cancelled, and a thread learns it from `job.lost`. A handler can't extend it.
        - *kind*: only jobs whose header `kind` is this. A queue may have a handler for each kind,
          and one without for all others. Each has its own function, *retry* and *deadline*, while
          all other options are the queue's. Give them at one of its handlers.
        - *grace*: seconds (300) for which a job is put back that no handler takes, before it is a
          dead letter. It is only for *kind*.
        - *persistent*: a job does not end when the handler returns, but runs again, on one worker
          at a time. It has no *deadline*, no *max_attempts*, and no `attempts` or `stop` of a
          `Retry`.
        - *isolate*: run in child processes, by default as many as this machine has processors. At
          its *deadline* a child is killed. A child that dies fails its job alone (`Killed`).
          `headrace.isolation.Isolation` has limits for memory and jobs. The function must stand at
          the top of its module, which the children import.
        - *runs*: the builds whose runs this worker continues. They are `"any"` build, the `"same"`
          build, or with `"at_least"` each build that is not later, where groups of digits are
          compared as numbers. A run that no build began counts for each. The first step of another
          run ends its delivery, without an attempt. A worker that continues it takes it within
          about a second, once it has room.
        - *ordered*: jobs that were enqueued with the same `key` run one at a time, in their order,
          over all workers. A job that is retried or released keeps its place, and the others of its
          key wait. Give it to all workers of the queue, at its `Queue` or here.

        All other options are the queue's, as in `Queue`.
        """
        declared = self._declared("handler", queue, codec, options, HandlerOptions)
        own: dict[str, Any] = {
            "kind": kind,
            "grace": grace,
            "persistent": persistent,
            "isolation": wanted(isolate),
            "runs": rule_of(runs, self.build),
        }

        def register(function: F) -> F:
            self._register(*declared, function, concurrency, retry, deadline, **own)
            return function

        return register

    @with_options(BatchOptions)
    def batch_handler(
        self,
        queue: str | BaseQueue,
        *,
        max_size: int = 1000,
        max_wait: Seconds = 0.05,
        same: bool = False,
        concurrency: int = 1,
        retry: Retry | None = None,
        deadline: Seconds | None = None,
        codec: Codec[Any] | None = None,
        isolate: bool | Isolation = False,
        **options: Unpack[BatchOptions],
    ) -> Callable[[F], F]:
        """Register a function that takes up to *max_size* jobs of *queue* (a name, or a queue) at
        once.

        Returning completes all. `BatchError({job.id: exception})` settles some apart. Any other
        exception counts for every job.

        - *max_size*: jobs in a batch. It starts when it is full.
        - *max_wait*: how long the first job of a batch waits for others.
        - *same*: all jobs of a batch have the same value of `fair`.

        The other options are as for `handler`; *concurrency* is 1.
        """
        declared = self._declared("batch_handler", queue, codec, options, BatchOptions)
        own: dict[str, Any] = {
            "batch": True,
            "max_size": max_size,
            "max_wait": checks.seconds("max_wait", max_wait),
            "same": same,
            "isolation": wanted(isolate),
        }

        def register(function: F) -> F:
            self._register(*declared, function, concurrency, retry, deadline, **own)
            return function

        return register

    def _declared(
        self,
        caller: str,
        queue: str | BaseQueue,
        codec: Codec[Any] | None,
        options: HandlerOptions | BatchOptions,
        kind: type,
    ) -> tuple[str, QueueSettings, Codec | None]:
        settings = QueueSettings.of(getattr(self, caller), options, kind)
        if isinstance(queue, str):
            return queue, settings, codec
        if not isinstance(queue, BaseQueue):
            refuse_bare(f"@worker.{caller}", "a queue, or its name", queue)
        given = sorted([*(options.keys() - {"ordered"}), *(["codec"] if codec is not None else [])])
        if given:
            raise ConfigurationError(
                f"{given[0]}: queue {queue.name!r} declares its options itself: give it there, not at its {caller}"
            )
        if queue.ops.namespace != self.namespace:
            raise ConfigurationError(
                f"queue {queue.name!r} is in namespace {queue.ops.namespace!r}, this worker in {self.namespace!r}"
            )
        ordered = queue.ops.settings.ordered or settings.ordered
        return queue.name, evolve(queue.ops.settings, ordered=ordered), queue.ops.codec

    def tasks(
        self,
        tasks: BaseTasks,
        *,
        concurrency: int | None = None,
        grace: Seconds | None = None,
        isolate: bool | Isolation = False,
        runs: str = "any",
    ) -> None:
        """Register all tasks of *tasks*, including tasks that it declares before this worker runs.

        They share the queue, and *concurrency* slots, by their kind, which is their name, as in
        `handler`. A job of a name that is no task here is put back for *grace* seconds (300), then
        dead-lettered. *isolate* and *runs* are as in `handler`.
        """
        if not isinstance(tasks, BaseTasks):
            raise TypeError(f"tasks must be a Tasks or AsyncTasks, not {type(tasks).__name__}")
        declared = self._declared("tasks", tasks.queue, None, {}, HandlerOptions)
        shared: dict[str, Any] = {
            "grace": grace,
            "isolation": wanted(isolate),
            "runs": rule_of(runs, self.build),
        }

        def register(task: BaseTask[..., Any, Any]) -> None:
            own: dict[str, Any] = {"kind": task.name, "encode": encoder(task), **shared}
            self._register(
                *declared, task_handler(task), concurrency, task.retry, task.deadline, **own
            )

        serve(tasks, register)
        self._tasks.append(tasks)

    def _isolate(self, isolation: Isolation) -> None:
        def within(one: HandlerSettings) -> HandlerSettings:
            return evolve(one, isolation=one.isolation or isolation)

        for queue, handler in self.handlers.items():
            if handler.persistent:
                continue
            slots = (
                handler.concurrency
                if queue in self._concurrency_given
                else isolation.processes or processors()
            )
            kinds = {kind: within(one) for kind, one in handler.kinds.items()}
            made = evolve(within(handler), kinds=kinds, concurrency=slots)
            if kinds:
                made = evolve(made, function=partial(routed, kinds), isolation=None)
            self.handlers[queue] = made

    def relay(self, outbox: Relayed, engine: Any, *, poll: Seconds | None = None) -> None:
        """Move the committed rows of *outbox*, a `headrace.sql.Outbox`, to its queue, for as long
        as this worker runs.

        *engine*: of SQLAlchemy, for asyncio only with an `AsyncWorker`; in Django, an alias of a
        database. *poll*: as of `headrace.sql.Relay`, which says what it does. It ends when all
        handlers have ended. A database or server that is away never ends the worker. That is logged
        (`relay_failed`), and tried again. The queue may be any. If it names no server, it is on the
        worker's.
        """
        made = getattr(outbox, "relay", None)
        if made is None:
            raise TypeError(f"outbox must be a headrace.sql.Outbox, not {type(outbox).__name__}")
        relay: Relaying = made(engine, poll)
        if self._threads_only and is_async(relay.end):
            raise ConfigurationError(
                "an engine for asyncio: give it to an AsyncWorker, or this worker one for threads"
            )
        if not any(one.join(relay) for one in self._relays):
            self._relays.append(relay)

    def flow(self, flow: Stages, *stages: str) -> None:
        """Register the handlers of a flow's stages. These are all stages with a handler, or the
        named stages."""
        if not isinstance(flow, Stages):
            raise TypeError(f"flow must be a Flow or an AsyncFlow, not {type(flow).__name__}")
        ops = flow.ops
        if ops.namespace != self.namespace:
            raise ConfigurationError(
                f"flow {flow.name!r} is in namespace {ops.namespace!r}, this worker elsewhere"
            )
        declared = ops.declared()
        wanted = [name.removeprefix(f"{flow.name}/") for name in stages]
        wanted = wanted or [name for name in declared if declared[name].functions]
        if lacking := [
            name for name in wanted if name not in declared or not declared[name].functions
        ]:
            raise ConfigurationError(f"flow {flow.name!r} has no handler for {lacking[0]!r}")
        if not wanted:
            raise ConfigurationError(
                f"flow {flow.name!r} has no handlers: decorate some with @flow.stage(name)"
            )
        for name in wanted:
            function = declared[name].functions[0]
            options = dict(declared[name].options)
            settings = options.pop("queue_settings")
            self._register(
                f"{flow.name}/{name}", settings, ops.codec, function, **options, flow=ops
            )

    def _register(
        self,
        queue: str,
        queue_settings: QueueSettings,
        codec: Codec[Any] | None,
        function: Callable[..., Any],
        concurrency: int | None,
        retry: Retry | None,
        deadline: Seconds | None,
        *,
        kind: str | None = None,
        grace: Seconds | None = None,
        **special: Any,
    ) -> None:
        Keys.of(queue, self.namespace)
        refuse_generator(function)
        refuse_parameters(
            function, 1, "a list of jobs alone" if special.get("batch") else "a job alone"
        )
        if self._threads_only and is_async(function):
            raise ConfigurationError(f"{function!r} is async: register it with an AsyncWorker")
        if kind is not None and not isinstance(kind, str):
            raise TypeError(f"kind must be a str, not {type(kind).__name__}")
        if kind == "":
            raise ValueError(
                "kind='': give a name, or None for all jobs that no other handler takes"
            )
        if grace is not None and kind is None:
            raise ConfigurationError(
                "grace: for jobs of unknown kinds; give it at a handler with a kind"
            )
        slots = self._slots if concurrency is None else concurrency
        if concurrency is not None:
            self._concurrency_given.add(queue)
        if (isolation := special.get("isolation")) is not None:
            slots = isolation.processes or concurrency or processors()
        made = HandlerSettings(
            queue,
            function,
            concurrency=slots,
            retry=Retry() if retry is None else retry,
            deadline=None if deadline is None else checks.seconds("deadline", deadline, zero=False),
            queue_settings=queue_settings,
            codec=chosen(codec),
            grace=GRACE_S if grace is None else checks.seconds("grace", grace),
            **special,
        )
        if not made.batch and not made.persistent:  # whose return values are no results
            warn_of_results(function, made.codec, stacklevel=3)
        old = self.handlers.get(queue)
        if old is None and kind is None:
            self.handlers[queue] = made
            return
        kinds = {} if old is None else dict(old.kinds) or {None: old}
        if kind in kinds or made.batch:
            which = "" if kind is None else f" of kind {kind!r}"
            raise ConfigurationError(
                f"queue {queue!r} has a handler already{which}: one handler per queue and worker, or one per kind"
            )
        kinds[kind] = made
        if any(handler.batch or handler.persistent for handler in kinds.values()):
            raise ConfigurationError(
                f"queue {queue!r}: a batch handler, or a persistent one, takes all of its jobs"
            )
        if any(handler.flow is not None for handler in kinds.values()):
            raise ConfigurationError(f"queue {queue!r}: a flow's handler takes all of its jobs")
        self.handlers[queue] = merged(kinds, self._slots)

    def _reach(self, url: str | None) -> None:
        """Return the address for a run. It is *url*, or else the worker's own address, or the
        environment's. Join an embedded server.
        """
        for tasks in self._tasks:
            check_annotations(tasks)
        if not self.handlers:
            raise ConfigurationError(
                "this worker has no handlers: register one with @worker.handler(queue)"
            )
        self._refuse_middleware_of_nothing()
        self._address = self._own if url is None else Address(given(url), instead_of=self._own)
        self._address.join()

    def _forget_parents(self) -> None:
        """Forget the run of the parent in a forked child, which has none of its threads and event
        loops."""
        if self._pid != os.getpid():
            self._running = None
            self._pid = os.getpid()
            if not self.named:
                self.name = new_worker_name()

    def _refuse_middleware_of_nothing(self) -> None:
        plain = [one for one in self._around if not is_async(one)]
        if not plain or self._threads_only:
            return
        each = [
            one for handler in self.handlers.values() for one in (*handler.kinds.values(), handler)
        ]
        if all(is_async(one.function) for one in each if not one.kinds):
            raise ConfigurationError(
                f"middleware {called(plain[0])} is a plain def, which surrounds plain functions in their threads, and "
                "all handlers of this worker are coroutines: make it async"
            )

    def _request_stop(self, wait: bool) -> Any:
        """Ask the engine to stop. Return it if the caller should *wait* for its end, which a
        handler never does."""
        self._forget_parents()
        engine = self._running
        if engine is None:
            return None
        engine.stop()
        return engine if wait and not engine.runs_this() else None

    def _drained(self) -> Any:
        # `None` without an engine; this is no second stop, as `stop()` may have been called before
        self._forget_parents()
        if (engine := self._running) is not None:
            engine.drain()
        return engine

    def _started(self, loop: str = "") -> None:
        serves = "; ".join(map(_serves, self.handlers.values()))
        address = self._address
        suffix = loop and f", by {loop}"
        server = (
            shown(given(address.url)) if address.client is None else shown_settings(address.client)
        )
        text = f"{self.name} serves {serves}; on {server}{suffix}"
        log_event(
            "worker_started",
            "%s",
            text,
            worker=self.name,
            server=server,
            queues=list(self.handlers),
        )

    def _with_children(self, stops: list[Hook]) -> list[HandlerSettings]:
        """Start the children of isolated handlers, and wait for them. *stops* ends them."""
        return [isolated(handler.limited(), stops) for handler in self.handlers.values()]

    def _lifecycle(self, handlers: Sequence[HandlerSettings]) -> Lifecycle:
        consumers: list[Consumer] = []
        flows: list[Any] = []
        for h in (evolve(one, around=tuple(self._around), build=self.build) for one in handlers):
            queue_settings = evolve(
                h.queue_settings, tracebacks=self.tracebacks or h.queue_settings.tracebacks
            )
            ops = Ops(Keys.of(h.queue, self.namespace), queue_settings, h.codec, self.namespace)
            if h.flow is not None:
                first = not any(h.flow is flow for flow in flows)
                flows.append(h.flow)
                make = partial(_flow_consumer, h, self.name, named=self.named, sweeper=first)
            else:
                plain = KindConsumer if h.kinds else Consumer
                kind = PersistentConsumer if h.persistent else plain
                recurring = declared_schedules(h.queue, self._tasks)
                make = partial(_consumer, kind, h, self.name, recurring, named=self.named)
            consumers += _of_all_shards(make, ops) if queue_settings.shards > 1 else [make(ops)]
        return Lifecycle(self.settings, consumers)
