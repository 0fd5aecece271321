"""The slots that the shards of a queue share, and the table of these shards."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from headrace._core.effects import Step
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import gather_schedule
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.slots import SharedSlots
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps


@define(eq=False)
class ShardSlots(SharedSlots):
    """Slots whose members are the consumers of the shards in *map*; *make* makes the consumer of another shard."""

    map: ShardMap = field(kw_only=True)
    make: Callable[[Ops], Consumer] = field(kw_only=True)

    def takes_schedules(self, ops: Ops) -> bool | None:
        """Tell whether schedules are made in the shard of *ops*; `None`: they are not even declared there yet."""
        state = self.map.state_of(ops.shard) if isinstance(ops, ShardOps) else "open"
        return None if state in {None, "opening"} else state != "draining"

    def gather_schedule(self, ops: Ops, name: str) -> Step[None]:
        """Have a schedule of an older shard go on in the shard of *ops*."""
        if isinstance(ops, ShardOps):
            yield from gather_schedule(self.map, ops, name)


def slots_of(consumer: Consumer) -> ShardSlots | None:
    """Return the slots that *consumer* shares with other shards; `None` if its queue is not sharded."""
    return consumer.shared if isinstance(consumer.shared, ShardSlots) else None
