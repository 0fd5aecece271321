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

PREFIX = "tasks/"  # of the names of schedules that are declared by tasks


@frozen
class Recurring:
    """A schedule that code declares: `schedule`'s arguments."""

    name: str
    timing: Timing
    missed: str
    job: NewJob[Any]


@define(eq=False)
class Declared:
    """The schedules that a worker's code declares for one queue, and under which name that was said last, and when."""

    schedules: Sequence[Recurring]
    said_as: str = ""
    again_at: float = 0.0
    set: str = field(init=False)  # differs where anything differs that another version could declare

    def __attrs_post_init__(self) -> None:
        each = sorted(f"{one.name}\n{one.timing}\n{one.missed}\n{one.job.priority}" for one in self.schedules)
        self.set = hashlib.sha256("\n\n".join(each).encode()).hexdigest()[:16] if each else ""

    def within(self, shard: ShardRow) -> Declared:
        """Return the schedules that belong to a shard, by their names: they are declared there only."""
        return Declared([one for one in self.schedules if shard.covers(one.name)])

    def op(self, ops: Ops, worker: str) -> Op[tuple[bool, list[str]]]:
        """Say it. The reply: whether the schedules are to be made (again), and the names of those that ended."""
        names = [one.name for one in self.schedules]
        return ops._op(  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - a room of its own
            "recur", [worker, self.set, *names], lambda reply: (reply[0] == 1, [text(name) for name in reply[1:]])
        )
