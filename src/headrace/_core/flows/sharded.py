"""The verbs of a flow whose queues are sharded. A run stays in one shard with all its jobs, and
takes its steps there.

So a step is one script, as in any flow. A run that began before the number of shards was changed
stays where it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import define, field, frozen

from headrace._core.effects import Call, send, send_all
from headrace._core.flows import calls as flow_calls
from headrace._core.flows.calls import FlowVerbs
from headrace._core.shards.map import ShardMap, refuse_jobs_without_shards
from headrace._model.flow import FlowState
from headrace._model.job import Claim, NewJob
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed, Table
from headrace._protocol.features.flows.ops import STEPS_PER_SCRIPT, FlowOps, run_of
from headrace._protocol.op import Op
from headrace._protocol.shards import ShardOps, table


@frozen
class Places:
    """The places where the runs of a flow may be. These are its shards, by their numbers, or `None`
    for a flow without shards.
    """

    flow: FlowOps
    table: Table | None

    def at(self, number: int | None) -> FlowOps | None:
        if number is None:
            return self.flow
        rows = () if self.table is None else self.table.shards
        shard = next((row for row in rows if row.number == number), None)
        return (
            None if shard is None or self.table is None else self.flow.in_shard(shard, self.table)
        )

    def of(self, name: str) -> list[int | None]:
        if self.table is None:
            return [None]
        run = run_of(name)
        number = self.table.shard_of(run)
        return [number, *(row.number for row in self.table.before(run, number)), None]


def places(flow: FlowOps) -> Call[Places]:
    rows = yield from send(table(flow.keys, note=False))
    return Places(flow, Table.parse(flow.keys.group, rows) if rows else None)


def by_place(runs: Iterable[tuple[int | None, str]]) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = defaultdict(list)
    for number, name in runs:
        found[number].append(name)
    return found


def read_at(
    known: Places, names: Mapping[int | None, Sequence[str]]
) -> Call[dict[int | None, dict[str, FlowState]]]:
    asked = {number: flow for number in names if (flow := known.at(number)) is not None}
    first = yield from send_all(
        [flow.read(names[number][:STEPS_PER_SCRIPT]) for number, flow in asked.items()]
    )
    found: dict[int | None, dict[str, FlowState]] = {}
    for (number, flow), (states, begun) in zip(asked.items(), first, strict=True):
        rest = yield from flow_calls.read(flow, names[number][len(states) :], begun)
        every = zip(names[number], [*states, *rest], strict=True)
        found[number] = {name: state for name, state in every if state is not None}
    return found


def read(flow: FlowOps, names: Sequence[str]) -> Call[list[FlowState | None]]:
    known = yield from places(flow)
    asked = by_place((number, name) for name in names for number in known.of(name))
    found = (yield from read_at(known, asked)) if names else {}
    return [
        next((found[at][name] for at in known.of(name) if name in found.get(at, ())), None)
        for name in names
    ]


@define(eq=False)
class ShardedFlow(FlowVerbs):
    _map: ShardMap | None = None
    _made: dict[int, FlowOps] = field(factory=dict[int, FlowOps])

    @property
    def map(self) -> ShardMap:
        if self._map is None:
            self._map = ShardMap(next(iter(self.flow.declared().values())).ops)
        return self._map

    def ready(self) -> Call[None]:
        """Read the table, or write it, and note all queues in it. Raises `ShardsMismatch`."""
        if not self.map.known:
            yield from self.map.look()
            for stage in self.flow.declared().values():
                if stage.ops.keys.queue not in self.map.table.queues:
                    yield from refuse_jobs_without_shards(stage.ops)
                    yield from send(table(stage.ops.keys))

    def at(self, ops: ShardOps) -> FlowOps:
        number = ops.shard.number
        made = self._made.get(number)
        if made is None or made.stages.keys() != self.flow.stages.keys():
            self._made[number] = made = self.flow.at(ops)
        return made

    def of(self, claim: Claim) -> Call[FlowOps]:
        yield from self.ready()
        return self.at(self.map.at(claim.job.shard))

    def everywhere(self) -> Call[list[FlowOps]]:
        yield from self.ready()
        yield from self.map.look()
        return [self.at(ops) for ops in self.map.ordered()]

    def where(self, name: str) -> Call[list[FlowOps]]:
        run = run_of(name)  # it is checked
        yield from self.ready()
        yield from self.map.look()
        return [self.at(ops) for ops in self.map.where(run)[1][0]]

    def start(self, name: str, build: Callable[[FlowOps], Op[Receipt]]) -> Call[Receipt]:
        """Begin a run in the shard of its id, unless a run of that id goes on in another shard."""
        build(self.flow)  # refused before anything is sent
        return self._start(name, build)

    def _start(self, name: str, build: Callable[[FlowOps], Op[Receipt]]) -> Call[Receipt]:
        yield from self.ready()
        while True:
            ops = self.map.of(name)
            for older in self.map.before(NewJob(b"", name), ops):
                (state,) = yield from flow_calls.read(self.at(older), [name])
                if state is not None and state.state in flow_calls.GOING:
                    return Receipt(name, False)
            try:
                return (yield from send(build(self.at(ops))))
            except Sealed as error:
                yield from self.map.refused(ops, error)
