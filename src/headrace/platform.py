"""The names that an extension needs beside the public ones, for its own console, outbox, or
backend of a framework.

`headrace.console`, `headrace.sql` and `headrace.django` are such extensions. They import public
modules, this one, and one another, and nothing else of headrace: import-linter holds them to it. A
name here may change in any release, and the changelog says so.

- Servers: `Address`, `given`, `client_of`, `reached`, `Discovery`.
- Objects from inside: `InnerQueue`, `InnerWorker`, `worker_of`, `operator_queue`, `Stored`,
  `BaseReceipt`, `OutboxView`.
- Arguments: `checks`, `check_names`, `check_choice`, `QueueOptions`, `told_apart`, `parameters`,
  `recurrence`.
- Words: `HEADERS`, `WORDS`, `LIMITS`, `VERBS`, `protocol`.
- Screens: `visible`, `one_line`, `span`, `text_of`, `cause_first`, `declared_rates`, `other_terms`,
  `ranks`.
- Processes: `log_event`, `log_lines`, `heals`, `withhold_socket`, `forks`, and the parts of a
  colour, `aio` and `sync`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import redis
from attrs import frozen

from headrace import _forks as forks
from headrace._api.aio.inspector import AsyncInspector
from headrace._api.aio.queue import AsyncQueue
from headrace._api.aio.tasks import AsyncTasks
from headrace._api.aio.worker import AsyncWorker
from headrace._api.queue import BaseQueue
from headrace._api.sync.discovery import Discovery
from headrace._api.sync.tasks import Tasks
from headrace._api.sync.worker import Worker
from headrace._api.tasks import BaseTasks, serves_coroutines
from headrace._codecs.typed import Stored, Typed
from headrace._core.effects import Phase
from headrace._core.views.attention import other_terms
from headrace._core.views.choice import DATED, ORDERS, Choice
from headrace._core.views.flows import RUN_STATES, ranks
from headrace._core.views.reader import STATES
from headrace._model import checks
from headrace._model.event import ENDS, KINDS
from headrace._model.isolation import Isolation
from headrace._model.job import COST, FROM, KEY, PRIORITY, SHOWN_CHARACTERS, NewJob, NewTaskJob
from headrace._model.letters import cause_first
from headrace._model.policy import declared_rates
from headrace._model.receipt import BaseReceipt
from headrace._model.settings import KIND, QueueOptions, QueueSettings
from headrace._model.steps import NAME_CHARACTERS
from headrace._model.terms import RESERVED, parameters
from headrace._model.timing import MISSED, PREFIX, Recurring, Timing, missed_policy
from headrace._model.verbs import VERBS
from headrace._model.views.jobs import ENDED
from headrace._model.views.outbox import OutboxView
from headrace._model.views.texts import one_line, span, text_of, visible
from headrace._net.aio import colour as aio
from headrace._net.base.address import Address, client_of, given
from headrace._net.base.children import withhold_socket
from headrace._net.base.retries import heals
from headrace._net.sync import colour as sync
from headrace._net.sync.cluster import executor_of
from headrace._net.sync.executor import meet
from headrace._protocol.export import protocol
from headrace._protocol.features.conditions import Admission
from headrace._protocol.features.outbox import relayed
from headrace._protocol.keys import FLOW, Keys, job_id, worker_name
from headrace._protocol.limits import COURTESY_S, JOBS_PER_SCRIPT, LOG_AGAIN_S
from headrace._telemetry.log import JsonLines, TextLines, log_event
from headrace._telemetry.outbox import REPORT_EVERY_S, record_outbox, record_relayed
from headrace._telemetry.tracing import injected
from headrace.errors import ConfigurationError, HeadraceError

__all__ = [
    "HEADERS",
    "LIMITS",
    "VERBS",
    "WORDS",
    "Address",
    "BaseReceipt",
    "Discovery",
    "InnerQueue",
    "InnerWorker",
    "OutboxView",
    "QueueOptions",
    "Stored",
    "aio",
    "cause_first",
    "check_choice",
    "check_names",
    "checks",
    "client_of",
    "declared_rates",
    "forks",
    "given",
    "heals",
    "log_event",
    "log_lines",
    "one_line",
    "operator_queue",
    "other_terms",
    "parameters",
    "protocol",
    "ranks",
    "reached",
    "recurrence",
    "span",
    "sync",
    "text_of",
    "told_apart",
    "visible",
    "withhold_socket",
    "worker_of",
]


@frozen
class Headers:
    """The headers of a job that the core itself reads or writes."""

    kind: str = KIND
    key: str = KEY
    priority: str = PRIORITY
    cost: str = COST
    flow: str = FLOW
    moved_from: str = FROM
    reserved: str = RESERVED
    """The prefix of all but `kind`."""


@frozen
class Words:
    """The words of the views, and of their arguments."""

    states: tuple[str, ...] = STATES
    """States of the jobs that a queue lists."""
    ended: tuple[str, ...] = ENDED
    """States of jobs that have left their queue."""
    ends: tuple[str, ...] = ENDS
    """States of jobs that will not run again."""
    dated: tuple[str, ...] = DATED
    """Lists that are sorted by time, in one of the `orders`."""
    orders: tuple[str, ...] = ORDERS
    run_states: tuple[str, ...] = RUN_STATES
    event_kinds: tuple[str, ...] = KINDS
    missed: tuple[str, ...] = MISSED


@frozen
class Limits:
    """The bounds that an extension keeps, too."""

    jobs_per_script: int = JOBS_PER_SCRIPT
    levels: int = checks.LEVELS_AT_MOST
    name_characters: int = NAME_CHARACTERS
    shown_characters: int = SHOWN_CHARACTERS
    courtesy_s: float = COURTESY_S
    log_again_s: float = LOG_AGAIN_S
    report_every_s: float = REPORT_EVERY_S


HEADERS = Headers()
WORDS = Words()
LIMITS = Limits()


# -- servers ---------------------------------------------------------------------------------------


@contextmanager
def reached(url: str) -> Generator[None, None, None]:
    """Check that there is a server at *url*, even if it loads or hangs. An embedded one runs as
    long as the context.

    Raises `ConfigurationError` for a URL that can't be read, and `HeadraceError` for a server that
    does not answer.
    """
    address = Address(url)
    name = address.shown
    with ExitStack() as stack:
        stack.callback(address.leave)
        try:
            executor = executor_of(address.join())
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
        try:
            meet(executor)
        except (redis.RedisError, OSError) as error:
            raise HeadraceError(f"{name}: {error}") from error
        finally:
            executor.close()
        yield


# -- objects from inside ---------------------------------------------------------------------------


@frozen(eq=False)
class InnerQueue:
    """A queue of either colour, as an extension sees it. Calls of an `AsyncQueue` return
    awaitables."""

    queue: Any

    @property
    def address(self) -> Address:
        """The server that the queue names."""
        return cast("Address", self.queue._address)  # noqa: SLF001

    @property
    def namespace(self) -> str:
        """The namespace of its keys."""
        return str(self.queue.ops.namespace)

    @property
    def settings(self) -> QueueSettings:
        """Its options, checked."""
        return cast("QueueSettings", self.queue.ops.settings)

    def raw(self, kind: type[BaseQueue], address: Address | None = None) -> Any:
        """Return the same queue for payloads that are encoded already, with its connections, or on
        *address*."""
        made: Any = kind.__new__(kind)
        ops = self.queue.ops
        BaseQueue.__init__(
            made, self.queue.name, address or self.address, ops.settings, None, ops.namespace
        )
        return made

    def encoded(self, job: Any, *, traced: bool = False, conditions: bool = False) -> Any:
        """Check a payload or `NewJob`, and return its id, delay and flat fields. With *traced*
        they have the current trace.

        Raises as `enqueue` does. Without *traced*, a bare payload becomes bytes. A job may have
        conditions of its own, as for `enqueue`, with *conditions*.
        """
        ops = self.queue.ops
        return (Admission(ops) if conditions else ops).item(job, injected if traced else None)

    def receipt(self, job: NewJob[Any], *, added: bool) -> BaseReceipt[Any]:
        """Make a receipt that asks the queue for the job's result."""
        decode = job.decode if isinstance(job, NewTaskJob) else None
        (receipt,) = self.queue._bound([BaseReceipt(job.id or "", added)], decode)  # noqa: SLF001
        made: BaseReceipt[Any] = receipt
        return made

    def schedule(self, name: str) -> Any:
        """Find a schedule. Return its state and its declaration, or `None` if there is none."""
        return self.queue._drive(self.queue.admin._verbs.schedules.of(name))  # noqa: SLF001

    def record_relayed(self, waits: Iterable[float]) -> None:
        """Record for each row of an outbox the seconds from its writing to its job."""
        record_relayed(self.queue._place, waits)  # noqa: SLF001

    def report_outbox(self, views: Sequence[OutboxView]) -> Any:
        """Keep reports on the outbox of the queue, and record them as metrics. One script each,
        within a second."""
        for view in views:
            if not view.ended:
                record_outbox(self.queue._place, view)  # noqa: SLF001
        ops = [relayed(self.queue.ops, view) for view in views]
        return self.queue._executor.run_all(ops, within=COURTESY_S)  # noqa: SLF001


@frozen(eq=False)
class InnerWorker:
    """A worker of either colour, as an extension sees it."""

    worker: Any

    @property
    def address(self) -> Address:
        """The server that the worker names."""
        return cast("Address", self.worker._address)  # noqa: SLF001

    @property
    def stopping(self) -> bool:
        """Whether it stops."""
        engine = self.worker._running  # noqa: SLF001
        return engine is not None and engine.lifecycle.phase is not Phase.RUNNING

    @property
    def signalled(self) -> bool:
        """Whether it has stopped because of a signal."""
        return bool(self.worker._signalled)  # noqa: SLF001

    def isolate(self, isolation: Isolation) -> None:
        """Let its handlers run in child processes, as far as they can."""
        self.worker._isolate(isolation)  # noqa: SLF001

    def declare_schedules(
        self, queue: Any, found: Iterable[tuple[str, tuple[Timing, str], NewJob[Any]]]
    ) -> None:
        """Let the worker declare the schedules of a queue. Each has a task's path, its
        `recurrence`, and its job.

        A schedule that the queue has of an earlier declaration, and that is not among these, is
        removed.
        """
        made: Any = BaseTasks(queue)
        made._recurring += [Recurring(f"{PREFIX}{path}", *when, job) for path, when, job in found]  # noqa: SLF001
        self.worker._tasks.append(made)  # noqa: SLF001


def worker_of(found: Any) -> Any:
    """Return a worker for *found* if it is a `Tasks` or `AsyncTasks`, on the server that it
    names. Otherwise return *found*.

    It is an `AsyncWorker` for an `AsyncTasks`, and wherever a task is async.
    """
    if not isinstance(found, (Tasks, AsyncTasks)):
        return found
    kind: Any = AsyncWorker if isinstance(found, AsyncTasks) or serves_coroutines(found) else Worker
    queue: Any = found.queue
    at = InnerQueue(queue).address
    worker = kind(at.url, client=at.client, namespace=InnerQueue(queue).namespace)
    worker.tasks(found)
    return worker


def operator_queue(inspector: AsyncInspector, name: str, **options: Any) -> AsyncQueue[Any]:
    """Open a queue for an operator. It declares nothing, and takes typed texts, stored bytes,
    and `Stored` payloads.
    """
    queue: AsyncQueue[Any] = AsyncQueue(name, codec=Typed(inspector.views.codec(name)), **options)
    queue._undeclared = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return queue


# -- arguments -------------------------------------------------------------------------------------


def check_names(
    queue: object = "any",
    namespace: object = "headrace",
    *,
    job: object = None,
    worker: object = None,
) -> None:
    """Refuse a name that the core would refuse. Raises `TypeError`, `ValueError`, or
    `ConfigurationError`."""
    Keys.of(queue, namespace)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - it checks them
    if job is not None:
        job_id(job)
    if worker is not None:
        worker_name(worker)


def check_choice(state: str, **chosen: Any) -> None:
    """Refuse a choice that the list of this *state* does not have. Raises `TypeError` or
    `ValueError`."""
    Choice(**chosen).check(state)


def told_apart(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the options of a queue. Return the headers, besides the kind, by which it then tells
    jobs apart."""
    settings = QueueSettings(**options)
    names = [] if settings.terms is None else [*settings.terms.names]
    names += [one.key for one in settings.rates if one.key is not None]
    return tuple(name for name in dict.fromkeys(names) if name != KIND)


def recurrence(every: object, cron: object, timezone: object, missed: object) -> tuple[Timing, str]:
    """Check the times of a recurring task, and its policy for missed ticks, for
    `InnerWorker.declare_schedules`.

    Raises `TypeError`, `ValueError` or `ConfigurationError`.
    """
    return Timing.of(every, cron, timezone), missed_policy(missed)


# -- processes -------------------------------------------------------------------------------------


def log_lines(form: str) -> logging.Formatter:
    """Make the formatter of our log lines, `text` (with the number of the process) or `json`."""
    return JsonLines() if form == "json" else TextLines(process=True)
