"""The declaration of a queue's terms, before the first job is leased, and its change by an operator."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from headrace._core.effects import Step, send
from headrace._model.settings import QueueSettings
from headrace._protocol import fair_ops
from headrace._protocol.queue_ops import Ops
from headrace.errors import TermsMismatch


def declare(ops: Ops, worker: str) -> Step[None]:
    """Declare the terms of a queue. Raises `TermsMismatch` if other workers live, and its terms have another structure.

    A structure that changes takes several calls, as jobs in lines get new lines.
    """
    terms = ops.settings.terms
    again = True
    while again:
        again, theirs = yield from send(fair_ops.declare(ops, worker))
        if theirs is not None:
            raise TermsMismatch(theirs, "" if terms is None else terms.structure)


def redeclare(shards: Sequence[Ops], settings: QueueSettings) -> Step[None]:
    """Change the terms in all shards, whatever workers declare."""
    for ops in shards:
        changed = evolve(ops, settings=settings)
        while (yield from send(fair_ops.redeclare(changed))):
            pass
