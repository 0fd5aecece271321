"""The verbs of a flow whose queues have shards: a run is in one shard, with all its jobs, and takes its steps there.

So a step is one script, as in any flow. A run that began before the number of shards was changed stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from headrace._core import flow_calls
from headrace._core.effects import Step, send
from headrace._core.shard_map import ShardMap
from headrace._model.flow import FlowState
from headrace._model.job import Claim, NewJob
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed
from headrace._model.state import Counts, summed
from headrace._protocol.flow_ops import FlowOps, run_of
from headrace._protocol.op import Op
from headrace._protocol.shards import PartOps, table

GOING = ("running", "blocked")


@define(eq=False)
class FlowShards:
    """A flow whose queues have shards."""

    flow: FlowOps
    _map: ShardMap | None = None
    _made: dict[int, FlowOps] = field(factory=dict[int, FlowOps])

    @property
    def map(self) -> ShardMap:
        """The table, as far as it is known."""
        if self._map is None:
            self._map = ShardMap(next(iter(self.flow.declared().values())).ops)
        return self._map

    def ready(self) -> Step[None]:
        """Read the table, or write it, and note all queues in it. Raises `ShardsMismatch`."""
        if not self.map.known:
            yield from self.map.look()
            for stage in self.flow.declared().values():
                yield from send(table(stage.ops.keys))

    def at(self, part: PartOps) -> FlowOps:
        """Return the flow in one shard."""
        number = part.shard.number
        made = self._made.get(number)
        if made is None or made.stages.keys() != self.flow.stages.keys():
            self._made[number] = made = self.flow.at(part)
        return made

    def of(self, claim: Claim) -> FlowOps:
        """Return the flow in the shard of a claim."""
        return self.at(self.map.at(claim.job.shard))

    def everywhere(self) -> Step[list[FlowOps]]:
        """Return the flow in each shard, of a table that is read anew."""
        yield from self.ready()
        yield from self.map.look()
        return [self.at(part) for part in self.map.ordered()]

    def where(self, name: str) -> Step[list[FlowOps]]:
        """Return the flow in each shard where the run of a job may be: that of its id first."""
        run = run_of(name)  # it is checked
        yield from self.ready()
        yield from self.map.look()
        return [self.at(part) for part in self.map.where(run)[1][0]]

    # -- verbs -------------------------------------------------------------------------------------

    def start(self, name: str, build: Callable[[FlowOps], Op[Receipt]]) -> Step[Receipt]:
        """Begin a run, in the shard of its id, unless one of that id goes on in another."""
        yield from self.ready()
        while True:
            part = self.map.of(name)
            for older in self.map.before(NewJob(b"", name), part.shard.number):
                (state,) = yield from flow_calls.read(self.at(older), [name])
                if state is not None and state.state in GOING:
                    return Receipt(name, False)
            try:
                return (yield from send(build(self.at(part))))
            except Sealed as error:
                yield from self.map.refused(part, error)

    def state(self, name: str) -> Step[FlowState | None]:
        """Fetch the state of one job."""
        for flow in (yield from self.where(name)):
            found = yield from flow_calls.state(flow, name)
            if found is not None:
                return found
        return None

    def find(self, wanted: dict[str, str]) -> Step[list[FlowState]]:
        """Find the runs that have not ended and have all of these attributes, in the order of their ids."""
        found: list[FlowState] = []
        for flow in (yield from self.everywhere()):
            found += yield from flow_calls.find(flow, wanted)
        return sorted(found, key=lambda state: state.id)

    def result(self, name: str, timeout: float | None) -> Step[bytes | None]:
        """Fetch the last stage's result; wait up to *timeout* seconds for the end."""
        return flow_calls.awaited(lambda: self.state(name), timeout)

    def cancel(self, name: str) -> Step[bool]:
        """Cancel a job of a flow, and then its children."""
        for flow in (yield from self.where(name)):
            if (yield from flow_calls.cancel(flow, name)):
                return True
        return False

    def counts(self) -> Step[dict[str, Counts]]:
        """Count the jobs of each stage's queue: the sums over all shards."""
        found: dict[str, list[Counts]] = {}
        for flow in (yield from self.everywhere()):
            for name, counts in (yield from flow_calls.counts(flow)).items():
                found.setdefault(name, []).append(counts)
        return {name: summed(some) for name, some in found.items()}

    def drawing(self, live: bool) -> Step[str]:
        """Draw the stages as Mermaid, with their counts if *live*."""
        return self.flow.drawing((yield from self.counts()) if live else None)
