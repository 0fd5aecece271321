"""The base of `Queue` and `AsyncQueue`. It turns arguments into operations and calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar, cast

from attrs import evolve, field, frozen

from headrace._api.guide import OF_LEASES, OF_QUEUES, Guided
from headrace._api.results import Decode, QueueSource, aligned, decoded, value_of
from headrace._codecs.recorded import Recorded, with_results
from headrace._core.effects import Call, send, settle
from headrace._core.queue.keeping import Keeping
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.shards.leasing import ShardedLeaser
from headrace._core.shards.map import OneShard, ShardMap
from headrace._core.steps.run import Callbacks, Run, note_last
from headrace._core.verbs.queue import QueueVerbs, ShardedQueue
from headrace._engine.facts import program
from headrace._forks import cached_property
from headrace._model import checks
from headrace._model.checks import refuse_unknown
from headrace._model.codec import Codec, chosen
from headrace._model.event import kinds as checked_kinds
from headrace._model.job import Cause, Claim, Home, Job, NewJob, T, is_new, run_of, with_steps
from headrace._model.policy import Conditions, Durability, Full, conditional, full as checked_full
from headrace._model.receipt import BaseReceipt, Receipt, bind, received
from headrace._model.settings import QueueSettings, WorkerSettings
from headrace._model.state import JobState
from headrace._model.steps import step_name
from headrace._net.base.address import Address, Connected, Timeout, Unpicklable
from headrace._net.base.retries import SETTLING, bounding, place
from headrace._protocol.durability import with_durability
from headrace._protocol.every_op import EveryOp
from headrace._protocol.features import results as result_ops
from headrace._protocol.features.conditions import Admission
from headrace._protocol.keys import Keys, job_id
from headrace._protocol.op import Op, Prepared
from headrace._protocol.queue_ops import Item, Ops, enqueue_full, enqueue_one
from headrace._protocol.replies import Declaration, Verdicts
from headrace._protocol.shards import WholeOps
from headrace._telemetry.client import ReceiveSpan, SendSpan, SettleSpan, wanted
from headrace._telemetry.log import log_event
from headrace._telemetry.steps import STEP_WORDS, record_step
from headrace._telemetry.tracing import Place, injected
from headrace.errors import ConfigurationError, NotDurable, class_path, describe_error, traced

Q = TypeVar("Q", bound="BaseQueue")


@frozen(eq=False)
class BaseLease(Guided, Unpicklable, Generic[Q, T]):
    """The base of both leases."""

    _elsewhere = OF_LEASES
    _instead = "send its job, and settle it here"

    claim: Claim
    _queue: Q = field(repr=False)

    def _beside(self) -> Mapping[str, Any]:
        return {"lease.job": self.job}

    @property
    def job(self) -> Job[T]:
        """The job, with its `id`, `payload`, `headers`, `attempt` and `enqueued_at`. It takes steps
        as in a handler."""
        claim: Claim = self.claim
        return with_steps(claim.job, partial(self._queue._steps_of, claim))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    @property
    def token(self) -> int:
        """A number that grows with every delivery of the job. It is for your own fencing (`… WHERE
        token < ?`)."""
        return self.claim.token

    @property
    def worker(self) -> str:
        """The name under which it was leased."""
        return self.claim.worker


R = TypeVar("R")

Delay = float | timedelta | datetime | None
_DECLARED: set[Hashable] = set()  # by this process: a declaration is sent once


def last_progress(claims: Sequence[Claim]) -> Call[None] | None:
    """Make the call that notes the progress of these jobs, before their leases end. Returns `None`
    if all was sent."""
    runs = [
        run
        for claim in claims
        if (run := run_of(claim.job)) is not None and run.progress is not None
    ]
    return note_last(runs) if runs else None


def behind_progress(claims: Sequence[Claim], call: Call[R]) -> Call[R]:
    """Make a call that ends leases, behind the call that notes their last progress."""
    if (noting := last_progress(claims)) is not None:
        yield from noting
    return (yield from call)


class BaseQueue(Guided, Connected):
    """The base of both queues. It has the settings, and turns arguments into operations and calls,
    with their spans."""

    _elsewhere = OF_QUEUES
    _receipt: type[BaseReceipt[Any]]  # of its colour

    def __init__(
        self,
        name: str,
        address: Address,
        settings: QueueSettings,
        codec: Codec[Any] | None,
        namespace: str,
    ) -> None:
        self.name = name
        keys = Keys.of(name, namespace)
        codec = chosen(codec)
        self.ops: EveryOp
        self._verbs: QueueVerbs[OneShard] | QueueVerbs[ShardMap]
        if settings.shards == 1:
            self.ops = EveryOp(keys, settings, codec, namespace, address.meant)
            self._verbs = QueueVerbs(OneShard(self.ops))
        else:
            self.ops = WholeOps(keys, settings, codec, namespace, address.meant, settings.shards)
            self._verbs = ShardedQueue(
                ShardMap(self.ops, lambda some: bool(self._executor.healthy(some)))
            )
        self._within = bounding(settings.timeout)
        self._admission = Admission(self.ops)
        self._undeclared = True
        self._short = not settings.keeps and self._may_be_short()
        self._leaser: DirectLeaser | ShardedLeaser = self._verbs.leaser()
        self._pid = os.getpid()
        self._address = address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _beside(self) -> Mapping[str, Any]:
        return {"queue.admin": cast("Any", self).admin}

    def _parting(self) -> list[Op[Any]]:
        """Make the operations to send on closing. They end our registration, which is the parent's
        after a fork."""
        return self._leaser.leaving() if self._pid == os.getpid() else []

    def _declarations(self) -> list[Op[Declaration]]:
        """Make the operations that declare this queue. There are none if this process has declared
        it so, or `_recorded` does.
        """
        if self.ops.settings.keeps:
            return []
        self._undeclared = False
        said = self._said()
        if said in _DECLARED:
            return []
        _DECLARED.add(said)
        return self._verbs.declarations()

    def _recorded(self, call: Call[R]) -> Call[R]:
        """Make a call, and before the first one declare a history, or trends. They have to begin
        before the call's job, which may end at once. Each queue object declares them, as others may
        have removed the queue.
        """
        if self._undeclared and self.ops.settings.keeps:
            answers, complete = yield from self._verbs.declare()
            if complete:
                self._undeclared = False
                self._short = self._may_be_short()
            for answer in answers:
                self._warn_of_differences(answer)
        return (yield from call)

    def _may_be_short(self) -> bool:
        settings = self.ops.settings
        free = self._within is None and settings.max_waiting is None and settings.durable is None
        return free and settings.shards == 1

    def _said(self) -> Hashable:
        return (
            os.getpid(),
            place(self._executor.pool),
            self.ops.keys.key("jobs"),
            *self._ours().items(),
        )

    def _ours(self) -> dict[str, str]:
        return self.ops.declaration()

    def _warn_of_differences(self, answer: Declaration | None) -> None:
        if answer is None or not answer.others:
            return
        for text in answer.differences(self.name, self._ours(), serving=False):
            log_event("declaration_differs", "%s", text, queue=self.name)

    @cached_property
    def _home(self) -> Home:
        shards = {self.name: self.ops.settings.shards}
        return Home(self._address.servers, self.ops.namespace, shards)

    @cached_property
    def _prepared(
        self,
    ) -> tuple[Prepared[bytes, tuple[str, bool]], Prepared[Item, tuple[str, bool]]]:
        return enqueue_one(self.ops), enqueue_full(self.ops)

    def _direct(self, job: Any) -> tuple[Prepared[Any, tuple[str, bool]], Any] | None:
        """Return the prepared call of an untraced payload or `NewJob`, and its item.

        Return `None` for a job that needs more.
        """
        if not self._short or wanted():
            return None
        if isinstance(job, NewJob):
            unique = job.id is not None and self.ops.settings.unique_for is not None
            if unique or job.unique_for is not None or job.if_exists is not None:
                return None
        item = self.ops.item(job)
        return self._prepared[isinstance(item, tuple)], item

    def _received(self, name: str, new: bool) -> Any:
        return received(name, new, self._receipt, QueueSource(self))

    def _job(
        self,
        payload: Any,
        id: str | None,
        headers: Mapping[str, str] | None,
        delay: Delay,
        priority: int,
        key: str | None,
        cost: float | None,
        **conditions: Any,
    ) -> Any:
        beside = (
            id is not None
            or headers is not None
            or delay is not None
            or key is not None
            or cost is not None
        )
        if not beside and not conditions and type(priority) is int and not priority:
            return payload
        if conditions:
            refuse_unknown(
                cast("Any", self).enqueue, conditions.keys() - Conditions.__annotations__
            )
        job: NewJob[Any] = NewJob(
            payload, id, headers, delay, priority, key=key, cost=cost, **conditions
        )
        if not isinstance(payload, NewJob):
            return job
        if job != NewJob[Any](payload):
            raise TypeError(
                "give id, headers, delay, priority, key, cost and conditions to the NewJob, not beside it"
            )
        return payload  # pyright: ignore[reportUnknownVariableType]

    def _enqueue(
        self, given: Any, full: Full | None, timeout: Timeout, durable: str | None
    ) -> tuple[Call[Any], SendSpan | None]:
        job: NewJob[Any] = given if is_new(given) else NewJob(given)
        settings = self.ops.settings
        lasts = self._durable(durable)
        about_id = (settings.unique_for is not None and job.id is not None) or conditional(job)
        if full is not None:
            checked_full(full)
        sending = SendSpan(self._place, headers=job.headers) if wanted() else None
        context = None if sending is None else sending.context
        if about_id or settings.max_waiting is not None:
            admission = self._admission.with_durability(lasts)
            limit = self._limit(full, timeout)
            item = admission.item(job, context)
            call = self._verbs.admit(job, admission, item, limit, asks=about_id)
            return self._recorded(self._added_by(call)), sending
        plain = self.ops.item(job, context)

        def add(ops: Ops) -> Call[list[Receipt]]:
            return send(with_durability(ops.enqueue([plain]), lasts))

        return self._recorded(self._added_by(self._verbs.enqueue(job, add, asks=False))), sending

    def _added_by(self, call: Call[list[Receipt]]) -> Call[Any]:
        try:
            return self._bound((yield from call))[0]
        except NotDurable as error:  # the job is in the queue
            error.receipts = self._bound(error.receipts or error.answers[0])
            raise

    def _durable(self, durable: str | None) -> Durability | None:
        return self.ops.settings.durable if durable is None else Durability.of(durable)

    def _limit(self, full: Full | None, timeout: Timeout) -> float | None:
        """Return the seconds for which to wait for room. `None` means not at all."""
        if checked_full(full or self.ops.settings.full) == "raise":
            return None
        return (
            self.ops.settings.timeout
            if timeout is None
            else checks.seconds("timeout", timeout, zero=False)
        )

    def _many(
        self, jobs: Any, trace_each: bool, full: Full | None, timeout: Timeout, durable: str | None
    ) -> tuple[Call[Any], SendSpan | None]:
        settings = self.ops.settings
        limit = self._limit(full, timeout)
        durability = self._durable(durable)
        jobs = checks.listed(jobs)
        mixed = any(issubclass(kind, NewJob) for kind in set(map(type, jobs)))
        sending = SendSpan(self._place, jobs, batch=True, each=trace_each) if wanted() else None
        context = None if sending is None else sending.context
        asks = settings.unique_for is not None or (
            mixed and any(map(conditional, filter(is_new, jobs)))
        )
        if asks and settings.shards > 1:
            raise ConfigurationError(
                "conditions and unique_for of jobs of a sharded queue: only with enqueue, one job at a time"
            )
        if asks or settings.max_waiting is not None:
            whole = timeout is not None
            admission = self._admission.with_durability(durability)
            call = self._verbs.admit_many(
                admission, jobs, limit, whole=whole, context=context, bind=self._bound
            )
        else:
            call = self._verbs.enqueue_many(jobs, context, self._bound, durability)
        return self._recorded(call), sending

    def _leasing(
        self,
        limit: int,
        block: float | timedelta | None,
        duration: float | timedelta | None,
        once: bool,
    ) -> tuple[Call[list[Claim]], ReceiveSpan | None]:
        checks.count("n", limit)
        if once and (self.ops.settings.ordered or self.ops.settings.limits):
            raise ConfigurationError(
                "at_most_once: not for an ordered queue, nor with limits: "
                "a job that is complete before it runs keeps neither the next job of its key back, nor a slot"
            )
        wait = None if block is None else checks.seconds("block", block)
        term = None if duration is None else checks.seconds("duration", duration, zero=False)
        if self._pid != os.getpid():  # a fork has a name of its own
            self._leaser = self._verbs.leaser()
            self._pid = os.getpid()
        self._place.client = self._leaser.name  # also if it had to take another
        receiving = ReceiveSpan(self._place, batch=limit > 1) if wanted() else None
        return self._recorded(self._leaser.lease(limit, wait, term, once)), receiving

    def _complete(
        self,
        lease: BaseLease[Any, Any],
        result: Any,
        then: Sequence[NewJob[Any]],
        fenced: bool | None,
        durable: str | None,
    ) -> tuple[Op[list[bool]], SettleSpan | None]:
        claim = self._claim(lease)
        durability = self._durable(durable)
        results = {} if result is None else {claim.entry: result_ops.result_bytes(self.ops, result)}
        settling = SettleSpan(self._place, "complete", [claim.job]) if wanted() else None
        if settling is not None:
            then = settling.follow(then, self._next)
        ops = self._verbs.at(claim)
        return with_durability(
            ops.complete([claim], fenced=fenced, results=results, then=then), durability
        ), settling

    def _next(self, job: NewJob[Any]) -> Place:
        return self._place if job.queue is None else Place(job.queue, self._settings)

    def _complete_many(
        self,
        leases: Sequence[BaseLease[Any, Any]],
        results: object,
        fenced: bool | None,
        durable: str | None,
    ) -> tuple[Call[list[bool]], SettleSpan | None]:
        claims = [self._claim(lease) for lease in leases]
        durability = self._durable(durable)
        each = zip(claims, aligned(results, [claim.job.id for claim in claims]), strict=True)
        kept = {
            claim.place: result_ops.result_bytes(self.ops, result)
            for claim, result in each
            if result is not None
        }
        jobs = [claim.job for claim in claims]
        settling = (
            SettleSpan(self._place, "complete", jobs, batch=True) if claims and wanted() else None
        )
        return behind_progress(
            claims, self._verbs.complete_many(claims, fenced, kept, durability)
        ), settling

    def _cause(self, reason: object) -> Any:
        if not isinstance(reason, BaseException):
            return reason
        traceback = traced(reason) if self.ops.settings.tracebacks else ""
        return Cause(describe_error(reason), traceback, class_path(reason))

    def _settle(
        self, op: Callable[[Ops, Claim], Op[R]], lease: BaseLease[Any, Any]
    ) -> tuple[Op[R], SettleSpan | None]:
        claim = self._claim(lease)
        made = op(self._verbs.at(claim), claim)
        if made.name in SETTLING:
            made = with_durability(made, self.ops.settings.durable)
        return made, SettleSpan(self._place, made.name, [claim.job]) if wanted() else None

    def _ending(
        self, op: Callable[[Ops, Claim], Op[Verdicts]], lease: BaseLease[Any, Any]
    ) -> tuple[Call[Verdicts], SettleSpan | None]:
        made, span = self._settle(op, lease)
        return behind_progress([lease.claim], settle(made)), span

    @cached_property
    def _place(self) -> Place:
        return Place(self.name, self._settings, self._leaser.name)

    def _steps_of(self, claim: Claim, job: Job) -> Any:
        raise NotImplementedError

    def _run_of(self, claim: Claim) -> Run:
        note = partial(record_step, self._place, claim)
        home = evolve(self._home, servers=self._address.meant())
        callbacks = Callbacks(note=note, context=injected, home=home)
        ops = self._verbs.at(claim)
        ttl = self._leaser.ttl(claim.duration)
        values = Recorded(ops.bound)
        durable = self.ops.settings.durable
        return Run(ops, values, claim, callbacks, ttl=ttl, durable=durable)

    def _find(self, id: str, key: str | None) -> Call[JobState[Any] | None]:
        found = yield from self._verbs.views.find(id, key)
        return None if found is None else with_results(self.ops.bound, found)

    def _signal(self, id: str, name: str, data: Any, by: str | None, key: str | None) -> Call[str]:
        label = step_name(name)
        sender = program() if by is None else step_name(by, "by", "the sender")
        value = Recorded(self.ops.bound).encoded(f"signal {label!r}", data)
        outcome = yield from self._verbs.signal(id, key, label, sender, value)
        if outcome == "kept":
            log_event(
                "signal_kept",
                STEP_WORDS["signal_kept"],
                id,
                self.name,
                label,
                queue=self.name,
                job_id=id,
                step=label,
            )
        return outcome

    def _renew(
        self, lease: BaseLease[Any, Any], duration: float | timedelta | None
    ) -> Op[list[bool]]:
        claim = self._claim(lease)
        term = (
            claim.duration if duration is None else checks.seconds("duration", duration, zero=False)
        )
        return self._verbs.at(claim).renew([claim], duration=term, ttl=self._leaser.ttl(term))

    def _keeping(
        self, leases: Collection[BaseLease[Any, Any]], heartbeat: object, timeout: object
    ) -> Keeping:
        if not isinstance(leases, Collection) or isinstance(leases, (str, bytes)):  # type: ignore[redundant-expr]
            raise TypeError(f"leases must be a collection of leases, not {type(leases).__name__}")
        return Keeping(
            lambda: [self._claim(lease) for lease in list(leases)],
            self._verbs.at,
            lambda: self._leaser.leasers(),  # noqa: PLW0108 - a fork has another
            self.ops.settings.lease,
            WorkerSettings(heartbeat=heartbeat, timeout=timeout),
        )

    def _bound(self, receipts: Sequence[Receipt], decode: Decode | None = None) -> Any:
        """Let *receipts* ask this queue for results. *decode* decodes them in place of the
        codec."""
        bind(receipts, self._receipt, QueueSource(self, decode))
        return receipts

    def _result(self, id: str, timeout: float | timedelta | None) -> Call[Any]:
        name = job_id(id)
        limit = checks.patience(timeout)
        return value_of(
            self.ops, id, (yield from self._verbs.results.end_of(name, limit, own=False))
        )

    def _results(
        self, ids: Iterable[str], timeout: float | timedelta | None
    ) -> Call[dict[str, Any]]:
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise TypeError(f"ids must be an iterable of str, not {type(ids).__name__}")
        names = [job_id(name) for name in ids]
        found = yield from self._verbs.results.of(names, checks.patience(timeout))
        return {name: decoded(self.ops.bound, name, data) for name, data in found.items()}

    def _listening(
        self, kinds: object, timeout: float | timedelta | None
    ) -> tuple[tuple[str, ...], float | None]:
        quiet = None if timeout is None else checks.seconds("timeout", timeout, zero=False)
        return checked_kinds(kinds), quiet

    def _claim(self, lease: object) -> Claim:
        if not isinstance(lease, BaseLease):
            raise TypeError(
                f"lease must be a lease of lease() or lease_many(), not {type(lease).__name__}"
            )
        claim: Claim = lease.claim
        if claim.job.queue != self.name:  # entries of two queues may have the same ID
            raise ValueError(
                f"lease of a job of queue {claim.job.queue!r}: settle it there, not in {self.name!r}"
            )
        return claim
