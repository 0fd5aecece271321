"""Schedules that code declares: a worker registers them, so that schedules which left the code end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from headrace._model.job import NewJob
from headrace._model.shards import ShardRow
from headrace._model.timing import Timing
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text

PREFIX = "tasks/"  # prefix of the names of schedules that tasks declare


@frozen
class Recurring:
    """A schedule that code declares: `schedule`'s arguments."""

    name: str
    timing: Timing
    missed: str
    job: NewJob[Any]


@define(eq=False)
class Declared:
    """The schedules that a worker's code declares for one queue, and name and time of the last declaration."""

    schedules: Sequence[Recurring]
    said_as: str = ""
    again_at: float = 0.0
    set: str = field(init=False)  # differs for each set of schedules that another version could declare

    def __attrs_post_init__(self) -> None:
        each = sorted(f"{one.name}\n{one.timing}\n{one.missed}\n{one.job.priority}" for one in self.schedules)
        self.set = hashlib.sha256("\n\n".join(each).encode()).hexdigest()[:16] if each else ""

    def within(self, shard: ShardRow) -> Declared:
        """Return the schedules whose names belong to a shard. They are declared only in that shard."""
        return Declared([one for one in self.schedules if shard.covers(one.name)])

    def op(self, ops: Ops, worker: str) -> Op[tuple[bool, list[str]]]:
        """Declare the schedules. The reply: whether to make them (again), and the names of ended schedules."""
        names = [one.name for one in self.schedules]
        return ops._op(  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - a room of its own
            "recur", [worker, self.set, *names], lambda reply: (reply[0] == 1, [text(name) for name in reply[1:]])
        )
