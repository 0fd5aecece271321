"""The declaration of a queue's terms, before the first job is leased, and its change by an
operator."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from headrace._core.effects import Call, send
from headrace._model.policy import Rate, declared_rates
from headrace._model.settings import QueueSettings
from headrace._protocol import view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.features.fair import DeclaredTerms
from headrace._protocol.queue_ops import Ops
from headrace.errors import ConfigurationError


def declare(ops: Ops, worker: str, *, again: bool = False) -> Call[DeclaredTerms]:
    """Declare the terms of *worker*. Returns the terms that the queue has, which may be others.

    A structure that changes takes several calls, as jobs in lines get new lines. *again*: ask
    whether all workers declare these terms by now.
    """
    while True:
        answer = yield from send(fair_ops.declare(ops, worker, again=again))
        if not answer.again:
            return answer


def redeclare(shards: Sequence[Ops], settings: QueueSettings) -> Call[None]:
    """Change the terms in all shards, whatever workers declare. The queue keeps its rate limits,
    unless the *settings* have some. Raises `ConfigurationError` if the server does not know them
    all.
    """
    if settings.terms is not None and not settings.rates:
        settings = evolve(
            settings,
            rate=_rates((yield from send(view_ops.about(shards[0]))).declared.get("rate", "")),
        )
    for ops in shards:
        changed = evolve(ops, settings=settings)
        while (yield from send(fair_ops.redeclare(changed))).again:
            pass


def _rates(words: str) -> list[Rate]:
    found = [Rate(*fields) for fields in declared_rates(words)]
    if len(found) != words.count("Rate("):
        raise ConfigurationError(
            "rate: the server does not know all rate limits of this queue: give them to the Queue"
        )
    return found
