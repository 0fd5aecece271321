"""The base of `Flow` and `AsyncFlow`, which turns arguments into operations and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from headrace._api.guide import Guided
from headrace._api.queue import BaseLease, Delay, behind_progress
from headrace._core.effects import Call, send, settle
from headrace._core.flows.calls import FlowVerbs
from headrace._core.flows.sharded import ShardedFlow
from headrace._engine.hooks import refuse_bare, refuse_generator, refuse_parameters
from headrace._model import checks
from headrace._model.codec import Codec
from headrace._model.isolation import Isolation, wanted as isolation_of
from headrace._model.job import Claim, NewJob
from headrace._model.policy import ATTEMPTS, Durability, Rate, Retry
from headrace._model.receipt import Receipt
from headrace._model.settings import QueueSettings
from headrace._model.terms import Limit, Named
from headrace._net.base.address import Address, Connected
from headrace._protocol.durability import with_durability
from headrace._protocol.features import results as result_ops
from headrace._protocol.features.flows.ops import FlowOps, new_run
from headrace._protocol.op import Op
from headrace._telemetry.client import SendSpan, SettleSpan, wanted
from headrace._telemetry.tracing import Place
from headrace.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


class Stages(Guided):
    """The base of both flows, with the declaration of their stages."""

    def __init__(
        self,
        name: str,
        namespace: str,
        codec: Codec[Any] | None,
        lookup: Sequence[str],
        dead_limit: int,
        result_ttl: float | timedelta,
        fenced: bool,
        shards: int = 1,
        address: Address | None = None,
    ) -> None:
        self.name = name
        options = QueueSettings(
            dead_limit=dead_limit, result_ttl=result_ttl, fenced=fenced, shards=shards
        )
        servers = frozenset if address is None else partial(getattr, address, "servers")
        self.ops = FlowOps(name, namespace, codec, lookup, options, servers)
        self._verbs = ShardedFlow(self.ops) if self.ops.settings.shards > 1 else FlowVerbs(self.ops)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def stage(
        self,
        name: str,
        *,
        next: str | Sequence[str] = (),
        children: str | Sequence[str] = (),
        concurrency: int | None = None,
        retry: Retry | None = None,
        deadline: float | timedelta | None = None,
        lease: float | timedelta = 60.0,
        max_attempts: int | None = ATTEMPTS,
        rate: Rate | Sequence[Rate] | None = None,
        tracebacks: bool = False,
        fair: str | None = None,
        weights: Named | None = None,
        limits: Limit | Sequence[Limit] | None = None,
        isolate: bool | Isolation = False,
    ) -> Callable[[F], F]:
        """Declare a stage, whose jobs are in the queue `<flow>/<name>`. Runs begin in the stage
        that is declared first.

        *next*: the stages its jobs may go to. The first is the default, and `Next` chooses another.
        *children*: the stages in which children of its fan-outs may begin. The other options are as
        for `Worker.handler`. *fair* and *limits* tell jobs apart by headers, which they have from
        the jobs before. It decorates the stage's handler, which takes a `FlowJob`. A program that
        runs no handler needs only the call.
        """
        if not isinstance(name, str):
            refuse_bare("@flow.stage", "a name", name)
        settings = evolve(
            self.ops.settings,
            lease=lease,
            max_attempts=max_attempts,
            rate=rate,
            tracebacks=tracebacks,
            fair=fair,
            weights=weights,
            limits=limits,
        )
        options = {
            "concurrency": concurrency,
            "retry": retry,
            "deadline": deadline,
            "isolation": isolation_of(isolate),
            "queue_settings": settings,
        }
        stage = self.ops.declare(name, next, children, options)

        def register(function: F) -> F:
            if stage.functions:
                raise ConfigurationError(
                    f"stage {name!r} of flow {self.name!r} has a handler already"
                )
            if not callable(function):
                raise TypeError(f"a handler must be callable, {function!r:.200} is not")
            refuse_generator(function)
            refuse_parameters(function, 1, "a job alone")
            stage.functions.append(function)
            return function

        return register


R = TypeVar("R")


class BaseFlow(Connected, Stages):
    """The base of both flows. It turns arguments into operations and calls, with their spans."""

    # how far starts and completions must have come, where the call says nothing
    _durable: Durability | None = None

    def _lasts(self, op: Op[R], durable: str | None) -> Op[R]:
        return with_durability(op, self._durable if durable is None else Durability.of(durable))

    def _start(
        self,
        payload: Any,
        id: str | None,
        attributes: Any,
        stage: str | None,
        delay: Delay,
        headers: Mapping[str, str] | None,
        durable: str | None,
    ) -> tuple[Call[Receipt], SendSpan | None]:
        place = Place(f"{self.name}/{self.ops.first(stage)}", self._settings)
        sending = SendSpan(place, headers=headers) if wanted() else None
        context = None if sending is None else sending.context
        name = new_run() if id is None else id
        job = NewJob(payload, name, headers, delay)

        def build(flow: FlowOps) -> Op[Receipt]:
            return self._lasts(flow.start(job, attributes, stage, context), durable)

        return self._verbs.start(name, build), sending

    def _complete(
        self, lease: object, outcome: Any, fenced: bool | None, durable: str | None
    ) -> tuple[Call[list[bool]], SettleSpan | None]:
        if not isinstance(lease, BaseLease):
            raise TypeError(
                f"lease must be a lease of lease() or lease_many(), not {type(lease).__name__}"
            )
        claim: Claim = lease.claim
        place = Place(claim.job.queue, self._settings, claim.worker)
        settling = SettleSpan(place, "complete", [claim.job]) if wanted() else None
        headers = None if settling is None else settling.headers
        completing = self._completing(claim, outcome, fenced, durable, headers)
        return behind_progress([claim], completing), settling

    def _completing(
        self, claim: Claim, outcome: Any, fenced: bool | None, durable: str | None, headers: Any
    ) -> Call[list[bool]]:
        flow = yield from self._verbs.of(claim)
        step = flow.step(claim, outcome, headers)
        fence = flow.settings.fenced if fenced is None else fenced
        if step is not None:
            return (
                yield from settle(
                    self._lasts(flow.advance([step], claim.worker if fence else ""), durable)
                )
            )
        ops = flow.stages[claim.job.queue.partition("/")[2]].ops
        results = {} if outcome is None else {claim.entry: result_ops.result_bytes(ops, outcome)}
        return (
            yield from send(
                self._lasts(ops.complete([claim], fenced=fence, results=results), durable)
            )
        )

    def _result(self, id: str, timeout: float | timedelta | None) -> Call[bytes | None]:
        return self._verbs.result(id, checks.patience(timeout))
