"""The verbs of a queue's schedules."""

from __future__ import annotations

from typing import Any, Generic

from attrs import define

from headrace._core.effects import Call
from headrace._core.queue import schedules
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import gather_schedule
from headrace._core.verbs.asking import M, each, first
from headrace._model.job import NewJob
from headrace._model.state import JobState, Schedule
from headrace._model.timing import Timing
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.keys import job_id
from headrace._protocol.queue_ops import Ops


@define(eq=False)
class ScheduleVerbs(Generic[M]):
    map: M

    def add(self, name: str, timing: Timing, missed: str, job: NewJob[Any]) -> Call[bool]:
        # checks all arguments
        schedule_ops.schedule(self.map.of(job_id(name)), name, timing, missed, job)
        yield from self.map.look()
        ops = self.map.of(name)
        known = yield from self._gather(ops, name)
        return (
            yield from schedules.schedule(
                ops, schedule_ops.schedule(ops, name, timing, missed, job)
            )
        ) and not known

    def _gather(self, ops: Ops, name: str) -> Call[bool]:  # noqa: ARG002 - there is no other shard
        yield from ()
        return False

    def remove(self, name: str) -> Call[bool]:
        return each(self.map, name, name, schedule_ops.unschedule)

    def listed(self) -> Call[list[Schedule]]:
        yield from self.map.look()
        found: list[Schedule] = []
        for ops in self.map.ordered():
            found += yield from schedules.schedules(ops)
        return sorted(found, key=lambda one: (one.paused, one.next_due))

    def of(self, name: str) -> Call[tuple[Schedule, JobState[Any]] | None]:
        return first(self.map, name, schedule_ops.schedule_of)

    def pause(self, name: str, pause: bool) -> Call[bool]:
        return each(
            self.map, name, name, lambda ops, name: schedule_ops.pause_schedule(ops, name, pause)
        )

    def run(self, name: str) -> Call[str | None]:
        return first(self.map, name, schedule_ops.run_schedule)


@define(eq=False)
class ShardedSchedules(ScheduleVerbs[ShardMap]):
    def _gather(self, ops: Ops, name: str) -> Call[bool]:
        return gather_schedule(self.map, self.map.at(ops.number), name)
