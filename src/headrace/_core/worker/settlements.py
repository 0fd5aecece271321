"""Settlements as operations to send: grouped by kind, in bounded scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from attrs import evolve, frozen

from headrace._core.verdicts import Settlement
from headrace._model.job import Claim
from headrace._protocol.limits import BYTES_PER_SCRIPT, CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Op, chunks
from headrace._protocol.queue_ops import Ops

size = attrgetter("size")
alike = attrgetter(
    "kind", "claim.worker", "attempts", "pause"
)  # the attributes that settlements of one operation share


def operations(ops: Ops, some: Sequence[Settlement]) -> Iterator[Op[list[bool]]]:
    """Make operations of settlements that are alike, as `alike` says."""
    match some[0].kind:
        case "complete":
            for chunk in chunks(some, lambda one: len(one.result or b""), JOBS_PER_SCRIPT, BYTES_PER_SCRIPT):
                results = {one.claim.entry: one.result for one in chunk if one.result is not None}
                yield ops.complete([one.claim for one in chunk], results=results)
        case "release":
            for chunk in chunks(some, size, CLAIMS_PER_SCRIPT, BYTES_PER_SCRIPT):
                yield ops.release([one.claim for one in chunk], pause=some[0].pause)
        case "dead":
            for chunk in chunks(some, size, REWRITES_PER_SCRIPT, BYTES_PER_SCRIPT):
                yield evolve(ops.dead_letter([(one.claim, one.cause) for one in chunk]), items=chunk)
        case _:
            for chunk in chunks(some, size, REWRITES_PER_SCRIPT, BYTES_PER_SCRIPT):
                items = [(one.claim, one.delay, one.spend, one.cause) for one in chunk]
                yield evolve(ops.retry(items, max_attempts=some[0].attempts), items=chunk)


@frozen(eq=False)
class SettlementBatch:
    """The settlements of one round trip."""

    plain: Sequence[Claim]  # completed without a result to keep
    verdicts: Sequence[Settlement]  # all other settlements
    ops: Sequence[Op[list[bool]]]

    @property
    def claims(self) -> list[Claim]:
        """List the claims that this settles."""
        return [*self.plain, *(verdict.claim for verdict in self.verdicts)]

    @property
    def next_due(self) -> float | None:
        """Return the seconds until the first of these jobs is due again; `None` if no job is delayed."""
        some = [one for one in self.verdicts if one.kind == "retry" or (one.kind == "release" and one.delay)]
        return min((one.delay for one in some if isinstance(one.delay, float)), default=None)
