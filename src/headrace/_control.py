"""What an operator asks of a queue, and how both colours send: the part of `Queue` and `AsyncQueue` that moves no job
on its way. See `_queue`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from headrace import _calls as calls
from headrace._calls import Ahead, Call, Clock, Hark, Ignore, Nap, Observe, Wait, Whole
from headrace._execute import AsyncExecutor, Executor
from headrace._face import Delay, Face
from headrace._job import Counts, Job, JobState, NewJob, Repairs, Schedule, WorkerState
from headrace._line import AsyncEvents, AsyncNotices, Events, Notices
from headrace._observe import Seen
from headrace._op import Op

R = TypeVar("R")


class Sender:
    """How operations and calls are sent, sync."""

    _executor: Executor
    _notices: Notices

    def _run(self, op: Op[R], seen: Seen | None = None) -> R:
        if seen is None:
            return self._executor.run(op)
        with seen:
            return seen.done(self._executor.run(op))

    def _drive(self, call: Call[R], seen: Seen | None = None) -> R:
        if seen is not None:
            with seen:
                return seen.done(self._drive(call))
        try:
            effect = next(call)
            while True:
                try:
                    answer = self._perform(effect)
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            value: R = done.value
            return value

    def _perform(self, effect: calls.Effect) -> Any:
        match effect:
            case Op():
                return self._executor.run(effect)
            case Ahead(op, meanwhile):
                return self._executor.run(op, meanwhile)
            case Whole(op):
                return self._executor.run(op)
            case Wait(command):
                return self._executor.wait(command)
            case Clock():
                return time.monotonic()
            case Nap() | Observe() | Hark() | Ignore():
                return self._linger(effect)

    def _linger(self, effect: Nap | Observe | Hark | Ignore) -> Any:
        match effect:
            case Nap(seconds):
                return self._executor.sleep(seconds)
            case Observe(names, seconds):
                return self._notices.watch(names, seconds)
            case Hark(watch, seconds):
                return self._notices.wait(watch, seconds)
            case Ignore(watch):
                return self._notices.ignore(watch)


class Control(Sender, Face):
    """The sync part."""

    def _each(self, state: str) -> Iterator[JobState]:
        cursor, more = "", True
        while more:
            page = self._run(self.ops.listing(state, cursor))
            yield from page
            cursor, more = page.cursor, bool(page.cursor)

    def cancel(self, id: str) -> bool:
        """Remove a job, in whatever state but dead; a holder finds its lease lost. cancel.lua, O(1)."""
        return self._run(self.ops.cancel(id))

    def cancel_payload(self, payload: Any) -> int:
        """Remove every job of this payload, waiting, running or delayed; how many.

        cancel_payload.lua, 500 jobs a call.
        """
        return self._drive(self._payload(payload))

    def counts(self) -> Counts:
        """How many jobs are in each state, at one instant. counts.lua, O(consumers)."""
        return self._run(self.ops.counts())

    def peek(self) -> Job | None:
        """The job that would be leased next, without leasing it."""
        return next((item.job for item in self._each("waiting")), None)

    def waiting(self) -> Iterator[JobState]:
        """The jobs that wait, in the order in which they will be leased. list.lua, 200 jobs a call."""
        return self._each("waiting")

    def running(self) -> Iterator[JobState]:
        """The leased jobs, oldest first, each with its `worker` and `since` when (delivery or last renewal)."""
        return self._each("running")

    def delayed(self) -> Iterator[JobState]:
        """The delayed jobs, the first due first, each with when it is `due`."""
        return self._each("delayed")

    def dead(self) -> Iterator[JobState]:
        """The dead letters, oldest first, each with its `reason`, `worker` and `since` when."""
        return self._each("dead")

    def find(self, id: str) -> JobState | None:
        """Where a job is, or `None`: it is gone, or never was. find.lua."""
        return self._run(self.ops.find(id))

    def position(self, id: str) -> int | None:
        """How many jobs would be leased before this one, 0 for the next, 1,000 for that many or more; `None`: it does
        not wait. position.lua, O(jobs in front).
        """
        return self._run(self.ops.position(id))

    def redrive(self, *ids: str) -> int:
        """Send dead letters back to the back of the queue, all or those of *ids*, oldest first; how many.

        One whose id is taken again stays. redrive.lua, 500 a call.
        """
        return self._drive(calls.through(self.ops.redrive, ids))

    def purge_dead(self, *ids: str) -> int:
        """Remove dead letters for good, all or those of *ids*; how many."""
        return self._drive(calls.through(self.ops.purge_dead, ids))

    def purge(self) -> int:
        """Remove what waits (waiting, parked, delayed); how many. Leased and dead jobs stay. purge.lua, 500 a call."""
        return self._drive(calls.purge(self.ops))

    def delete(self) -> int:
        """Remove the queue with everything in it; how many jobs that were. It comes back on enqueue. delete.lua."""
        return self._run(self.ops.delete())

    def pause(self) -> bool:
        """Hand out no more jobs, to anybody, until `resume()`; `False`: the queue was paused already. pause.lua, O(1).

        What is leased goes on, and can be renewed and settled; jobs can be enqueued. It is kept on the server, and
        ends with `resume()` or `delete()` only.
        """
        return self._run(self.ops.pause(True))

    def resume(self) -> bool:
        """Hand out jobs again: everybody who waits is woken. `False`: the queue was not paused. pause.lua, O(1)."""
        return self._run(self.ops.pause(False))

    def paused(self) -> bool:
        """Whether the queue is paused. paused.lua, O(1)."""
        return self._run(self.ops.paused())

    def levels(self) -> int:
        """How many priority levels the queue is known to have: the most that one who gave a job a priority knew of.

        levels.lua, O(1).
        """
        return self._run(self.ops.levels())

    def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until nothing waits, runs or is delayed; dead letters don't count. `False`: not within *timeout*.

        `None` waits for ever. counts.lua, at most twice a second.
        """
        return self._drive(self._drain(timeout))

    def move(self, to: str, *ids: str) -> int:
        """Move jobs that wait (waiting, parked, delayed), all or those of *ids*, to the back of queue *to*; how many.

        They keep their order, ids, headers, attempts and times. One whose id is taken there stays, and so do leased
        and dead ones, and those of a flow. Here they count as `deleted`, there as `enqueued`. `ConfigurationError` if
        *to* is of another group. move.lua, 200 jobs a call, about 15 µs a job.
        """
        return self._drive(self._move(to, ids))

    def expire(self, *ids: str) -> int:
        """End leases now, all or those of the jobs *ids*: the jobs go to the front, the attempt is spent; how many.

        Settlements by their holders then answer `False`; `complete` does if it is fenced, or if another was
        first. expire.lua, 500 jobs a call.
        """
        return self._drive(calls.by_ids(self.ops.expire, ids, 500))

    def fail_worker(self, name: str) -> int:
        """Declare a worker dead: the jobs it holds go to the front, oldest first, the attempts spent; how many.

        *name*: as `workers()` has it, or without its random part, for all that have come under that name. Should it
        live, it learns so with its next heartbeat, stops its handlers and comes back. fail_worker.lua, 500 jobs a call.
        """
        return self._drive(calls.fail_worker(self.ops, name))

    def repair(self) -> Repairs:
        """Find and mend what foreign commands (XDEL, XACK, XTRIM, XGROUP, …) broke; what was mended, by kind.

        After our own operations there is nothing to find. Safe beside live workers and other repairs. What holds
        another type than ours is a `redis.ResponseError` that names the key, and nothing was done by that call.
        repair.lua, about 500 entries a call.
        """
        return self._drive(calls.repair(self.ops))

    def workers(self) -> list[WorkerState]:
        """Who is registered for this queue, until when it counts as alive, how much it has leased. workers.lua."""
        return self._run(self.ops.workers())

    def events(self, kinds: Iterable[str] | None = None, timeout: float | timedelta | None = None) -> Events:
        """What happens from now on: an iterator of `Event`, of *kinds* or all.

        It ends when nothing has come for *timeout* seconds (`None`: never). `with queue.events() as events:` is
        subscribed on entry, and hangs up at the end. Delivered at most once: what is told while the connection is
        lost, or to a reader that is too slow, is not told again. A connection of its own.
        """
        return Events(self.ops, self._executor, *self._listening(kinds, timeout))

    def reschedule(self, id: str, delay: Delay) -> bool:
        """Bring a delayed job forward or push it back: due *delay* from now, or at a moment; `None` or 0 sends it to
        the back of the queue at once. `False`: no delayed job has this id. reschedule.lua, O(log n).
        """
        return self._run(self.ops.reschedule(id, delay))

    def schedule(
        self, name: str, payload: Any, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool:  # fmt: skip
        """Make a job recur; `True` if the name is new, `False` if this replaced the schedule of that name.

        *every*: seconds or a `timedelta`, at least 0.1, counted from now on the server's clock. *cron*: five fields
        as in a crontab, or six with seconds first, in *timezone* (an IANA name, default UTC); needs `headrace[cron]`.
        Replaced by one of the same timing, a schedule keeps its next due time. *missed*: what becomes of ticks for
        which no worker was there: `skip` them, run `once` for them, or run `all` (the latest 1,000). Jobs have the
        id `<name>@<due in ms>`. Workers of this queue put them in. `ConfigurationError` if the queue has 1,000
        schedules, or without cronsim. Two scripts (schedules.lua, schedule.lua), O(log n).
        """
        job = NewJob(payload, headers=headers, priority=priority)
        return self._drive(self._schedule(name, job, every, cron, timezone, missed))

    def unschedule(self, name: str) -> bool:
        """End a schedule; jobs that it has put in stay. `False`: there is none of that name. unschedule.lua."""
        return self._run(self.ops.unschedule(name))

    def schedules(self) -> list[Schedule]:
        """What recurs, the next due first. schedules.lua, 2 µs each."""
        return self._run(self.ops.schedules())


class AsyncSender:
    """Like `Sender`, async."""

    _executor: AsyncExecutor
    _notices: AsyncNotices

    async def _run(self, op: Op[R], seen: Seen | None = None) -> R:
        if seen is None:
            return await self._executor.run(op)
        with seen:
            return seen.done(await self._executor.run(op))

    async def _drive(self, call: Call[R], seen: Seen | None = None) -> R:
        if seen is not None:
            with seen:
                return seen.done(await self._drive(call))
        try:
            effect = next(call)
            while True:
                try:
                    answer = await self._perform(effect)
                except BaseException as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            value: R = done.value
            return value

    async def _perform(self, effect: calls.Effect) -> Any:
        match effect:
            case Op():
                return await self._executor.run(effect)
            case Ahead(op, meanwhile):
                return await self._executor.run(op, meanwhile)
            case Whole(op, undo):
                return await self._executor.run_whole(op, undo)
            case Wait(command):
                return await self._executor.wait(command)
            case Clock():
                return time.monotonic()
            case Nap() | Observe() | Hark() | Ignore():
                return await self._linger(effect)

    async def _linger(self, effect: Nap | Observe | Hark | Ignore) -> Any:
        match effect:
            case Nap(seconds):
                return await self._executor.sleep(seconds)
            case Observe(names, seconds):
                return await self._notices.watch(names, seconds)
            case Hark(watch, seconds):
                return await self._notices.wait(watch, seconds)
            case Ignore(watch):
                return await self._notices.ignore(watch)


class AsyncControl(AsyncSender, Face):
    """The async part."""

    async def _each(self, state: str) -> AsyncIterator[JobState]:
        cursor, more = "", True
        while more:
            page = await self._run(self.ops.listing(state, cursor))
            for item in page:
                yield item
            cursor, more = page.cursor, bool(page.cursor)

    async def cancel(self, id: str) -> bool:
        """Like `Queue.cancel`."""
        return await self._run(self.ops.cancel(id))

    async def cancel_payload(self, payload: Any) -> int:
        """Like `Queue.cancel_payload`."""
        return await self._drive(self._payload(payload))

    async def counts(self) -> Counts:
        """Like `Queue.counts`."""
        return await self._run(self.ops.counts())

    async def peek(self) -> Job | None:
        """Like `Queue.peek`."""
        async for item in self._each("waiting"):
            return item.job
        return None

    def waiting(self) -> AsyncIterator[JobState]:
        """Like `Queue.waiting`."""
        return self._each("waiting")

    def running(self) -> AsyncIterator[JobState]:
        """Like `Queue.running`."""
        return self._each("running")

    def delayed(self) -> AsyncIterator[JobState]:
        """Like `Queue.delayed`."""
        return self._each("delayed")

    def dead(self) -> AsyncIterator[JobState]:
        """Like `Queue.dead`."""
        return self._each("dead")

    async def find(self, id: str) -> JobState | None:
        """Like `Queue.find`."""
        return await self._run(self.ops.find(id))

    async def position(self, id: str) -> int | None:
        """Like `Queue.position`."""
        return await self._run(self.ops.position(id))

    async def redrive(self, *ids: str) -> int:
        """Like `Queue.redrive`."""
        return await self._drive(calls.through(self.ops.redrive, ids))

    async def purge_dead(self, *ids: str) -> int:
        """Like `Queue.purge_dead`."""
        return await self._drive(calls.through(self.ops.purge_dead, ids))

    async def purge(self) -> int:
        """Like `Queue.purge`."""
        return await self._drive(calls.purge(self.ops))

    async def delete(self) -> int:
        """Like `Queue.delete`."""
        return await self._run(self.ops.delete())

    async def pause(self) -> bool:
        """Like `Queue.pause`."""
        return await self._run(self.ops.pause(True))

    async def resume(self) -> bool:
        """Like `Queue.resume`."""
        return await self._run(self.ops.pause(False))

    async def paused(self) -> bool:
        """Like `Queue.paused`."""
        return await self._run(self.ops.paused())

    async def levels(self) -> int:
        """Like `Queue.levels`."""
        return await self._run(self.ops.levels())

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Like `Queue.drain`."""
        return await self._drive(self._drain(timeout))

    async def move(self, to: str, *ids: str) -> int:
        """Like `Queue.move`."""
        return await self._drive(self._move(to, ids))

    async def expire(self, *ids: str) -> int:
        """Like `Queue.expire`."""
        return await self._drive(calls.by_ids(self.ops.expire, ids, 500))

    async def fail_worker(self, name: str) -> int:
        """Like `Queue.fail_worker`."""
        return await self._drive(calls.fail_worker(self.ops, name))

    async def repair(self) -> Repairs:
        """Like `Queue.repair`."""
        return await self._drive(calls.repair(self.ops))

    async def workers(self) -> list[WorkerState]:
        """Like `Queue.workers`."""
        return await self._run(self.ops.workers())

    def events(self, kinds: Iterable[str] | None = None, timeout: float | timedelta | None = None) -> AsyncEvents:
        """Like `Queue.events`."""
        return AsyncEvents(self.ops, self._executor, *self._listening(kinds, timeout))

    async def reschedule(self, id: str, delay: Delay) -> bool:
        """Like `Queue.reschedule`."""
        return await self._run(self.ops.reschedule(id, delay))

    async def schedule(
        self, name: str, payload: Any, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool:  # fmt: skip
        """Like `Queue.schedule`."""
        job = NewJob(payload, headers=headers, priority=priority)
        return await self._drive(self._schedule(name, job, every, cron, timezone, missed))

    async def unschedule(self, name: str) -> bool:
        """Like `Queue.unschedule`."""
        return await self._run(self.ops.unschedule(name))

    async def schedules(self) -> list[Schedule]:
        """Like `Queue.schedules`."""
        return await self._run(self.ops.schedules())
