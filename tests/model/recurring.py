"""The machine of `machine` with schedules. They are made, replaced, run by hand, paused, resumed
and removed, and their ticks come.

Intervals are hours: a tick is made late by rewriting it. Due jobs are enqueued at once, so that the
other rules meet no tick.
"""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from headrace._protocol.features import schedules as schedule_ops
from tests.model.machine import PARTS, Machine, clients, headers, payloads, picks
from tests.model.model import Recurring

HOUR = 3_600_000  # ms
PAUSED = 2 * 10**14  # ms by which the tick of a paused schedule is later
# ms; never close to a whole number of intervals
LATE = (1_000, HOUR // 2, 3 * HOUR + HOUR // 2, 8 * HOUR + HOUR // 2)
schedules = st.sampled_from(["often", "seldom"])


class Scheduling(Machine):
    """The steps, and schedules of two names."""

    PARTS: ClassVar[set[str]] = PARTS | {"schedules", "ticks"}

    @rule(
        client=clients, name=schedules, payload=payloads, head=headers, hours=st.sampled_from([1, 1, 2]),
        missed=st.sampled_from(["skip", "once", "all"]),
    )  # fmt: skip
    def schedule(
        self,
        client: str,
        name: str,
        payload: bytes,
        head: dict[str, str] | None,
        hours: int,
        missed: str,
    ) -> None:
        """Make or replace a schedule. With the same interval its next tick stays."""
        before, every = self.milliseconds(), hours * HOUR
        known = self.model.schedules.get(name)
        queue = self.queues[client]
        new = queue.admin.schedule(name, payload, every=hours * 3600, missed=missed, headers=head)
        assert new == (known is None)
        made = self.model.schedule(name, Recurring(payload, head or {}, every, missed))
        if known is None or known.every != every:
            made.due = int(self.redis.zscore(self.key("ticks"), name)) - PAUSED * made.paused
            assert before + every <= made.due <= self.milliseconds() + every

    @precondition(lambda self: self.model.schedules)
    @rule(client=clients, name=schedules, how=st.sampled_from(["pause", "resume", "unschedule"]))
    def by_hand(self, client: str, name: str, how: str) -> None:
        """Pause, resume or end a schedule, if there is one of that name."""
        verb = how if how == "unschedule" else f"{how}_schedule"
        assert getattr(self.queues[client].admin, verb)(name) == getattr(self.model, verb)(name)
        self.turn(client)

    @precondition(lambda self: self.model.schedules)
    @rule(client=clients, pick=picks, late=st.none() | st.sampled_from(LATE))
    def toggle(self, client: str, pick: int, late: int | None) -> None:
        """Resume a paused schedule. Pause another one and let ticks pass."""
        name = self.one(pick)
        paused = self.model.schedules[name].paused
        self.by_hand(client, name, "resume" if paused else "pause")
        if not paused and late is not None:
            self.ticks_come(client, pick, late)

    @precondition(lambda self: self.model.schedules)
    @rule(client=clients, name=schedules)
    def run_now(self, client: str, name: str) -> None:
        """Enqueue the job of a schedule, whether it is paused or not."""
        before, ran = self.milliseconds(), self.queues[client].admin.run_schedule(name)
        assert (ran is not None) == (name in self.model.schedules)
        if ran is not None:
            by, _, moment = ran.removesuffix("-now").rpartition("@")
            assert by == name
            assert before <= int(moment) <= self.milliseconds() + 10  # ms of other jobs of one ms
            self.model.run_schedule(name, int(moment), ran)

    @precondition(lambda self: self.model.schedules)
    @rule(client=clients, pick=picks, late=st.sampled_from(LATE))
    def ticks_come(self, client: str, pick: int, late: int) -> None:
        """Make the next tick of a schedule due some time ago, even of a paused one."""
        name = self.one(pick)
        known = self.model.schedules[name]
        known.due = self.milliseconds() - late
        self.redis.zadd(self.key("ticks"), {name: known.due + PAUSED * known.paused}, xx=True)
        self.turn(client)

    def one(self, pick: int) -> str:
        """Return the name of one of the schedules."""
        return sorted(self.model.schedules)[pick % len(self.model.schedules)]

    def turn(self, client: str) -> None:
        """Enqueue the jobs of due schedules, as every leasing client does."""
        queue = self.queues[client]
        for op in schedule_ops.plan_ticks(
            queue.ops, queue._run(schedule_ops.ticking(queue.ops))
        ).ops:
            assert queue._run(op) == 1
        self.model.tick(self.milliseconds())

    def milliseconds(self) -> int:
        return int(self.time() * 1000)

    @invariant()
    def schedules_agree(self) -> None:
        """Check that the schedules are the model's, the next due first and paused ones last."""
        queue = self.queues["ann"]
        found = queue._run(schedule_ops.schedules(queue.ops))
        assert [one.name for one in found] == self.model.by_tick()
        for one in found:
            known = self.model.schedules[one.name]
            last: Any = None if one.last_run is None else round(one.last_run * 1000)
            assert (round(one.next_due * 1000), one.paused) == (known.due, known.paused)
            assert (one.every, one.missed) == (known.every / 1000, known.missed)
            assert (last, one.last_id) == known.last

    # Rules of several names are chosen more often: see `Machine`.
    toggle_, toggle__, toggle___ = toggle, toggle, toggle
    schedule_, run_now_, ticks_come_ = schedule, run_now, ticks_come
