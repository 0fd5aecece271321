"""The stages of a flow, as declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from attrs import evolve

from headrace._core.flows.calls import PlainFlow
from headrace._core.flows.sharded import FlowShards
from headrace._engine.functions import refuse_generator, refuse_parameters
from headrace._model.codec import Codec
from headrace._model.policy import ATTEMPTS, Rate, Retry
from headrace._protocol.flow_ops import FlowOps
from headrace.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


class Stages:
    """The base of both flows: the declaration of their stages."""

    def __init__(
        self, name: str, namespace: str, codec: Codec[Any] | None, lookup: Sequence[str], dead_limit: int,
        result_ttl: float | timedelta, fenced: bool, shards: int = 1,
    ) -> None:  # fmt: skip
        self.name = name
        self.ops = FlowOps(name, namespace, codec, lookup, dead_limit, result_ttl, fenced, shards)
        self._shards = FlowShards(self.ops) if self.ops.settings.shards > 1 else None
        self._verbs = PlainFlow(self.ops) if self._shards is None else self._shards

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def stage(
        self, name: str, *, next: str | Sequence[str] = (), children: str | Sequence[str] = (),
        concurrency: int | None = None, retry: Retry | None = None, deadline: float | timedelta | None = None,
        lease: float | timedelta = 60.0, max_attempts: int | None = ATTEMPTS, rate: Rate | Sequence[Rate] | None = None,
        tracebacks: bool = False,
    ) -> Callable[[F], F]:  # fmt: skip
        """Declare a stage, whose jobs are in the queue `<flow>/<name>`; runs begin in the first one declared.

        *next*: the stages its jobs may go to: the first is the default, `Next` chooses another. *children*: the stages
        in which children of its fan-outs may begin. The other options are as for `Worker.handler`. Decorates the
        stage's handler, which takes a `FlowJob`; a program that runs none needs only the call.
        """
        settings = evolve(self.ops.settings, lease=lease, max_attempts=max_attempts, rate=rate, tracebacks=tracebacks)
        options = {"concurrency": concurrency, "retry": retry, "deadline": deadline, "queue_settings": settings}
        stage = self.ops.declare(name, next, children, options)

        def register(function: F) -> F:
            if stage.functions:
                raise ConfigurationError(f"stage {name!r} of flow {self.name!r} has a handler already")
            refuse_generator(function)
            refuse_parameters(function, 1, "a job alone")
            stage.functions.append(function)
            return function

        return register
