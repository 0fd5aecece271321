"""Calls about schedules, as generators of effects."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from headrace._core.effects import Call, send, send_all
from headrace._model.state import Schedule
from headrace._model.timing import SCHEDULES_AT_MOST
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.features.schedules import DueSchedules, SchedulePlan, listed
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import TooManySchedules


def schedules(ops: Ops) -> Call[list[Schedule]]:
    return listed((yield from _ticking(ops, "all")))


def run_due_schedules(ops: Ops) -> Call[SchedulePlan]:
    plan = schedule_ops.plan_ticks(ops, (yield from _ticking(ops, "due")))
    answers = (yield from send_all(plan.ops)) if plan.ops else []
    # 2: one script was not enough for all ticks
    return evolve(plan, wait=0.0) if 2 in answers else plan


def _ticking(ops: Ops, which: str) -> Call[DueSchedules]:
    found = yield from send(schedule_ops.ticking(ops, which))
    while found.cursor:
        more = yield from send(schedule_ops.ticking(ops, which, found.cursor))
        found = evolve(more, rows=[*found.rows, *more.rows], last=[*found.last, *more.last])
    return found


def schedule(ops: Ops, build: Callable[[int], Op[int]]) -> Call[bool]:
    now = (yield from send(schedule_ops.ticking(ops, "none"))).now
    answer = yield from send(build(now))
    if answer < 0:
        raise TooManySchedules(SCHEDULES_AT_MOST)
    return answer > 0
