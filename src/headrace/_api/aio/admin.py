"""`AsyncAdmin` has the operators' verbs of a queue. Their decisions are in `_core`. Errors are as
in `AsyncQueue`."""

# ruff: noqa: SLF001 - this is a part of the queue

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, overload
from zoneinfo import ZoneInfo

from attrs import evolve
from redis.exceptions import ClusterCrossSlotError

from headrace._api.guide import Guided
from headrace._api.queue import Delay
from headrace._core.queue import calls
from headrace._core.queue.bulk import Match
from headrace._core.shards.map import OneShard, ShardMap
from headrace._core.verbs.queue import QueueVerbs
from headrace._model import checks
from headrace._model.job import Job, NewJob, Plain, T
from headrace._model.shards import Resharding, Shard
from headrace._model.state import JobState, Repairs, RunState, Schedule, WorkerState, ended_as
from headrace._model.terms import Limit, Named, Share, Value
from headrace._model.timing import Timing
from headrace._model.verbs import Bulk
from headrace._net.base.cluster import slot_of
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace._api.aio.queue import AsyncQueue


@checks.names_meant
class AsyncAdmin(Guided, Generic[T]):
    """The verbs of operators, which pause, list, repair and change a queue. `AsyncQueue.admin`
    makes it.

    It uses the connections of its queue, and opens none before the first call.

    Listings are read in pages while jobs move. A job that changes its state meanwhile may be listed
    twice, or not at all.
    """

    def __init__(self, queue: AsyncQueue[T]) -> None:
        self._queue: Any = queue
        self._verbs: QueueVerbs[OneShard] | QueueVerbs[ShardMap] = self._queue._verbs
        self._drive = queue._drive  # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        return f"{self._queue!r}.admin"

    def _beside(self) -> Mapping[str, Any]:
        return {"queue": self._queue}

    async def _each(
        self, state: str, limit: int = LISTED_PER_SCRIPT, value: object = None
    ) -> AsyncIterator[JobState[T]]:
        pages = self._verbs.views.pages(state, limit, value)
        while (page := await self._drive(pages.more())) is not None:
            for item in page:
                yield item

    async def pause(self, *, value: str | Value | None = None) -> bool:
        """Hand out no more jobs, to any worker, until `resume()`. Returns `False` if the queue was
        paused already. pause.lua, O(1).

        *value*: only jobs of this value, as in `purge`, with its errors. An organisation includes
        all its users. At most 1,000 values are paused, or `ConfigurationError` is raised. They stay
        paused while weights and limits change, and no longer if the queue tells its jobs apart by
        other headers. With `ordered`, jobs behind a paused job of their key wait. pause_value.lua,
        O(1). Each lease then asks about its values, 5 µs each.

        Leased jobs go on, and can be renewed and settled. Jobs can be enqueued. The pause is kept
        on the server, and ends with `resume()` or `delete()` only.
        """
        return await self._drive(self._verbs.admin.pause(True, value))

    async def resume(self, *, value: str | Value | None = None) -> bool:
        """Hand out jobs again, and wake all waiting workers. Returns `False` if the queue was not
        paused. pause.lua, O(1).

        *value*: jobs of this value, if the queue is not paused as well. pause_value.lua, O(1). Then
        each lease takes up to 100 of its lines.
        """
        return await self._drive(self._verbs.admin.pause(False, value))

    async def paused_values(self) -> list[Value]:
        """Return the paused values, also those without jobs. shares.lua, 20 µs + 0.2 µs for each
        value with a weight or limit of its own.
        """
        return await self._drive(self._verbs.views.paused_values())

    async def paused(self) -> bool:
        """Tell whether the queue is paused. paused.lua, O(1)."""
        return await self._drive(self._verbs.views.paused())

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until no job is left but dead letters. Returns `False` if jobs are left after
        *timeout*. `None` waits for ever.

        counts.lua, twice a second, more often at first.
        """
        apart = self._queue.ops.settings.shards > 1
        return await self._drive(
            calls.drain(self._verbs.views.counts, checks.patience(timeout), apart=apart)
        )

    async def purge(self, *, value: str | Value | None = None) -> int:
        """Remove the jobs that wait (waiting, parked, delayed), all or only the jobs of a *value*.
        Returns their number.

        *value*: a value of the header of `fair`, as `shares()` names it, such as `"acme"`. With two
        headers it is `"acme/ada"` or `("acme", "ada")`, and `"acme"` means all of an organisation.
        Without `fair` it is a value of the header of the only limit. Raises `ConfigurationError` if
        the queue has no such terms.

        Leased and dead jobs stay. Jobs that are enqueued meanwhile stay, too (in a sharded queue,
        in shards that the call has reached). purge.lua, page by page.
        """
        return await self._drive(self._verbs.admin.purge(value))

    async def purge_dead(self, *ids: str) -> int:
        """Remove dead letters for good, all or only the jobs *ids*. Returns their number. Jobs that
        die meanwhile stay (in a sharded queue, in the shards that the call has passed).
        """
        return await self._drive(self._verbs.admin.purge_dead(ids))

    @overload
    async def redrive(
        self: AsyncAdmin[bytes],
        *ids: str,
        from_step: str | None = None,
        payload: Plain | EllipsisType = ...,
    ) -> int: ...
    @overload
    async def redrive(
        self, *ids: str, from_step: str | None = None, payload: T | EllipsisType = ...
    ) -> int: ...
    async def redrive(self, *ids: str, from_step: str | None = None, payload: Any = ...) -> int:
        """Send dead letters to the back of the queue, all or only the jobs *ids*, oldest first.
        Returns their number.

        A run keeps its records, and goes on behind them. With *from_step*, a single run forgets the
        record of that step and of all that began after it. Signals that no wait has taken stay.
        Raises `ValueError` if it has no record of that name, and changes nothing then.

        *payload* replaces the payload of a single job, in the same script. `...` keeps it. The job
        keeps its id, headers and records. Raises `ValueError` without an id or for more than one,
        and for a payload that is too large. Raises the codec's errors, too. Nothing is sent then. A
        codec that keeps payloads elsewhere deletes the old one, which is found first by find.lua.

        A dead letter whose id is taken again stays, and so do jobs that die meanwhile. In a sharded
        queue the call goes from shard to shard. Jobs that die in a shard that it has passed stay.
        redrive.lua, page by page.
        """
        return await self._drive(self._verbs.admin.redrive(ids, from_step, payload))

    async def move(self, to: str, *ids: str) -> int:
        """Move jobs that wait (waiting, parked, delayed), all or only the jobs *ids*, to the back
        of queue *to*. Returns their number.

        Jobs keep their order, ids, headers, attempts, times and records. The header `headrace-from`
        names the queue of their first enqueue. A job whose id is taken in *to* stays, and so do
        leased jobs, runs that sleep or wait, children of runs, dead letters, and jobs of a flow.
        Moved jobs count as `deleted` here, and as `enqueued` in *to*. Raises `ConfigurationError`
        if *to* is of another group on a cluster. move.lua, page by page, about 15 µs a job.
        """
        try:
            return await self._drive(self._verbs.admin.move(to, ids))
        except ClusterCrossSlotError:
            raise ConfigurationError(
                f"to={to!r}: on a cluster one script reaches one group only, and none was moved: "
                "name both queues '<group>/<part>'"
            ) from None

    async def expire(self, *ids: str) -> int:
        """End leases now, all or only the leases of the jobs *ids*. Their jobs go to the front, and
        the attempt is spent. Returns their number.

        Settlements by their holders then answer `False`. `complete` does so only if it is fenced,
        or if another was first. expire.lua, page by page.
        """
        return await self._drive(self._verbs.admin.expire(ids))

    async def fail_worker(self, name: str) -> int:
        """Declare a worker dead. The jobs that it holds go to the front, oldest first, and a death
        is counted for each. Returns their number.

        *name*: a name as in `workers()`. Without its random part it means all workers of that name.
        A live worker learns of it with its next heartbeat, stops its handlers, and comes back.
        fail_worker.lua, page by page.
        """
        return await self._drive(self._verbs.admin.fail_worker(name))

    async def quiet_worker(self, name: str) -> bool:
        """Ask a worker to lease no more jobs of this queue, and to finish its running jobs. It
        gives back the jobs that wait for a slot, and stays registered. It leases again after
        `resume_worker`, however long that takes, also if it came back under a new name meanwhile.
        Returns `False` if there is no such worker.

        *name*: as for `fail_worker`. The worker learns of it at once, or within ten seconds if a
        message is lost. Raises `HeadraceError` if it runs an older version. ask_worker.lua.
        """
        return await self._drive(self._verbs.admin.ask_worker(name, "quiet"))

    async def resume_worker(self, name: str) -> bool:
        """Let a worker lease jobs again after `quiet_worker`. Returns `False` if there is no such
        worker. ask_worker.lua.
        """
        return await self._drive(self._verbs.admin.ask_worker(name, ""))

    async def stop_worker(self, name: str) -> bool:
        """Ask the program of a worker to stop as by SIGTERM. It leases no more jobs of any queue,
        and its handlers finish. `headrace work` does not start that process again, but systemd may.
        Returns `False` if there is no such worker.

        *name*, errors and delay: as for `quiet_worker`. ask_worker.lua.
        """
        return await self._drive(self._verbs.admin.ask_worker(name, "stop"))

    async def set_concurrency(self, number: int | None) -> None:
        """Set how many handlers each worker of the queue runs at once, in place of its
        `concurrency=`. `None` ends that. The number is kept on the server until then.

        Live workers obey at once, or within ten seconds if a message is lost. New workers obey a
        second after their start. With fewer, running handlers go on, and no job is lost. Workers
        with isolated handlers run at most their own number. Raises `ValueError` for a number below
        1. set_concurrency.lua, O(1).
        """
        return await self._drive(self._verbs.admin.set_concurrency(number))

    async def delete(self) -> int:
        """Remove the queue with everything in it. Returns the number of its jobs. An enqueue
        creates the queue again.

        One call of delete.lua, after the calls that remove jobs of flows.
        """
        return await self._drive(self._verbs.admin.delete())

    async def repair(self, *, dry_run: bool = False) -> Repairs:
        """Repair damage by foreign commands (XDEL, XACK, XTRIM, XGROUP, …). Returns the number of
        repairs of each kind.

        After our own operations there is nothing to find. The call is safe beside live workers and
        other repairs. A key of another type than ours raises a `redis.ResponseError` that names the
        key, and that call did nothing. repair.lua, page by page.

        *dry_run*: change nothing, and count the repairs that would be made. If foreign commands
        made jobs share a free id, each of them may count.
        """
        return await self._drive(self._verbs.admin.repair(dry=dry_run))

    async def bulk(
        self,
        action: str,
        state: str,
        *,
        reason: str = "",
        kind: str = "",
        group: str = "",
        cursor: str = "",
    ) -> Bulk:
        """Take one step of an action for all jobs in *state* that match. The next step begins at
        the `cursor` of the answer.

        *action*: `cancel` (of jobs that are waiting, running or delayed), `expire` (running),
        `reschedule` (delayed: at once), `redrive` or `purge_dead` (dead). *reason*: a text in the
        job's reason. *kind*: its header `kind`. *group*: the key of a group of dead letters, as
        `Inspector.dead` has it. Jobs that come after the first step stay. A job that begins between
        its listing and its cancellation is cancelled, too. A step looks at some pages of jobs, by
        list.lua and the action's script.
        """
        return await self._drive(
            self._verbs.admin.bulk(action, state, Match(reason, kind, group), cursor)
        )

    @overload
    async def cancel_payload(
        self: AsyncAdmin[bytes], payload: Plain, *, cascade: bool = True
    ) -> int: ...
    @overload
    async def cancel_payload(self, payload: T, *, cascade: bool = True) -> int: ...
    async def cancel_payload(self, payload: Any, *, cascade: bool = True) -> int:
        """Remove every job of this payload that is waiting, running or delayed. Returns their
        number.

        *cascade*: as for `cancel`. The children are not counted. cancel_payload.lua, page by page.
        """
        codec = self._queue.ops.codec
        if not getattr(codec, "repeatable", True):
            raise ConfigurationError(
                f"{codec!r:.200} encodes equal payloads differently: cancel jobs by id"
            )
        encoded = self._queue.ops.bound.encode(payload)
        return await self._drive(self._verbs.admin.cancel_payload(encoded, cascade=cascade))

    async def reschedule(self, id: str, delay: Delay) -> bool:
        """Give a delayed job another due time, *delay* from now or a moment. Returns `False` if no
        delayed job has this id.

        `None` or 0 sends it to the back of the queue at once. reschedule.lua, O(log n).
        """
        return await self._drive(self._verbs.admin.reschedule(id, delay))

    @overload
    async def schedule(
        self: AsyncAdmin[bytes],
        name: str,
        payload: Plain,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str | ZoneInfo | None = None,
        missed: str = "once",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        cost: float | None = None,
    ) -> bool: ...
    @overload
    async def schedule(
        self,
        name: str,
        payload: T,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str | ZoneInfo | None = None,
        missed: str = "once",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        cost: float | None = None,
    ) -> bool: ...
    async def schedule(
        self,
        name: str,
        payload: Any,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str | ZoneInfo | None = None,
        missed: str = "once",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        cost: float | None = None,
    ) -> bool:
        """Make a job recur. Returns `True` if the name is new, and `False` if this replaced the
        schedule of that name.

        *every*: seconds or a `timedelta`, at least 0.1, counted from now on the server's clock.
        *cron*: five fields as in a crontab, or six with seconds first, in *timezone* (an IANA name,
        default UTC). It needs `headrace[cron]`. If it replaces a schedule of the same timing, the
        next due time stays. *missed* decides about ticks that passed while no worker ran: `skip`
        them, run `once` for them, or run `all` (the latest 1,000). Jobs have the id `<name>@<due in
        ms>`. Workers of this queue enqueue them. Raises `TooManySchedules` if the queue has 1,000,
        and `ConfigurationError` without cronsim. Two scripts (schedules.lua, schedule.lua), O(log
        n).
        """
        job = NewJob(payload, headers=headers, priority=priority, cost=cost)
        timing = Timing.of(every, cron, timezone)
        return await self._drive(self._verbs.schedules.add(name, timing, missed, job))

    async def unschedule(self, name: str) -> bool:
        """End a schedule. Jobs that it has enqueued stay. Returns `False` without a schedule of
        that name. unschedule.lua.
        """
        return await self._drive(self._verbs.schedules.remove(name))

    async def run_schedule(self, name: str) -> str | None:
        """Enqueue the job of a schedule now, also if the schedule is paused. Returns the job's id,
        `<name>@<ms>-now`.

        The next tick stays. Returns `None` if no schedule has this name. run_schedule.lua, 20 µs.
        """
        return await self._drive(self._verbs.schedules.run(name))

    async def pause_schedule(self, name: str) -> bool:
        """Let a schedule enqueue no jobs until `resume_schedule`. Jobs that it has enqueued stay.

        Returns `False` if no schedule has this name, or it was paused already. A new `schedule()`
        of this name leaves it paused. `unschedule` ends the pause, too. pause_schedule.lua, O(log
        n).
        """
        return await self._drive(self._verbs.schedules.pause(name, True))

    async def resume_schedule(self, name: str) -> bool:
        """Let a paused schedule enqueue jobs again. Its `missed` decides about the ticks of the
        pause.

        Returns `False` if no schedule has this name, or it was not paused. pause_schedule.lua,
        O(log n).
        """
        return await self._drive(self._verbs.schedules.pause(name, False))

    async def schedules(self) -> list[Schedule]:
        """List the schedules, the next due first, paused ones last. schedules.lua, page by page, 4
        µs each."""
        return await self._drive(self._verbs.schedules.listed())

    async def shards(self) -> list[Shard]:
        """List the shards. Each has its range of keys, its slot, the node that serves it, and its
        counts.

        A job with a *key* is in the shard of the CRC-32 of its key. A job with only an id is in the
        shard of the CRC-32 of its id. Other jobs go to the shards in turn, and their ids end in the
        shard's number (`1795307039451-0@7`). Each shard keeps all promises of a queue. Across
        shards, jobs have no order. Counts and listings see each shard at another instant.
        `dead_limit`, `history` and `levels` hold for each shard. A call for many jobs that fails
        may have done a part. A `Rate` holds for each key, or has `per_shard`. Each of S shards may
        have `max_waiting / S`. A queue with `shards=1` has no table, and answers an empty list.
        shards.lua, and counts.lua of each.
        """
        rows = await self._drive(self._verbs.views.by_shard())
        node = self._queue._executor.node
        return [
            Shard(
                row.number, row.first, row.last, slot_of(keys.prefix), node(keys), counts, row.state
            )
            for row, keys, counts in rows
        ]

    async def reshard(self, shards: int | None = None) -> Resharding:
        """Change the number of shards of the queue's group, 2-256, while work goes on. Returns how
        far the change is.

        New jobs go to *shards* new shards at once. All workers work off the old shards. Workers, or
        another call, also without *shards*, remove a shard that was empty for ten minutes. Any
        client may repeat a call that fails. Other clients go on, with any number of shards that the
        queue ever had. See `docs/how-to/use-a-cluster.md` for the effects on ids, keys, delays,
        dead letters and schedules. A few scripts a shard (shards.lua, seal.lua, inherit.lua,
        drained.lua, wipe.lua), and a SCAN for each removed shard.
        """
        return await self._drive(self._verbs.admin.reshard(shards))

    async def levels(self) -> int:
        """Return how many priority levels its jobs have had, or its workers declare. levels.lua,
        O(1)."""
        return await self._drive(self._verbs.views.levels())

    async def workers(self) -> list[WorkerState]:
        """List the registered workers, each with its deadline and its number of leased jobs.
        workers.lua."""
        return await self._drive(self._verbs.views.workers())

    async def redeclare(
        self,
        *,
        fair: str | None = None,
        weights: Named | None = None,
        limits: Limit | Sequence[Limit] | None = None,
    ) -> None:
        """Change the queue's terms while its workers run. They go on with the new terms, and log
        `terms_changed`.

        The arguments are as for `AsyncQueue`. Without any the queue has no terms from then on. Its
        rates stay. Jobs that run keep their slots. The workers that live now declare others in
        vain. When all of them have been replaced, the terms of the new ones count. Raises
        `ConfigurationError` for bad terms, and if the server does not know all rates. about.lua,
        then declare_terms.lua, 500 waiting jobs a call.
        """
        settings = evolve(self._queue.ops.settings, fair=fair, weights=weights, limits=limits)
        await self._drive(self._verbs.admin.redeclare(settings))

    async def shares(self) -> list[Share]:
        """Return the shares of the ten values of `fair` that had the most of the workers' time of
        late. Then come the ten whose oldest job has waited for longest, if they are others.

        A share has the running and waiting jobs, and how long jobs waited. The list is empty for a
        queue without `fair`. In a sharded queue the numbers are sums, and the times are of the
        slowest shard. It looks at the first 20,000 lines of a shard. shares.lua, 50 µs, and 3 µs a
        line.
        """
        return await self._drive(self._verbs.views.shares())

    async def peek(self) -> Job[T] | None:
        """Return the job that would be leased next, without leasing it. list.lua."""
        async for item in self._each("waiting", 1):
            return item.job
        return None

    def waiting(self, *, value: str | Value | None = None) -> AsyncIterator[JobState[T]]:
        """List the waiting jobs, in the order in which they will be leased. list.lua, page by page.

        *value*: only jobs of this value, with the errors of `purge`. Each page looks at 1,000
        waiting jobs of all.
        """
        return self._each("waiting", value=value)

    def running(self) -> AsyncIterator[JobState[T]]:
        """List the leased jobs, oldest first, each with its `worker` and the time `since` delivery
        or last renewal."""
        return self._each("running")

    def delayed(self) -> AsyncIterator[JobState[T]]:
        """List the delayed jobs, the first due first, each with the time it is `due`."""
        return self._each("delayed")

    def blocked(self) -> AsyncIterator[JobState[T]]:
        """List the jobs of flows that wait for their children, in no order. A job may come twice
        while others change. list.lua, page by page.
        """
        return self._each("blocked")

    async def runs(
        self,
        *,
        state: str | None = None,
        build: str | None = None,
        waits_for: str | None = None,
    ) -> AsyncIterator[RunState]:
        """List the runs, which are jobs that have taken steps, while they are suspended or running.

        *state*: only `blocked` runs, which wait for a signal or a child, `delayed` ones, which
        sleep, or `leased` ones. Others are listed only if asked for: `waiting` for a worker, or
        `dead`, for which all such jobs are looked at. *build*: only those that a worker of this
        build began, where '' is a worker without one. *waits_for*: only those that are held back
        for this build.

        list.lua and runs.lua, page by page, 5 µs a run.
        """
        pages = self._verbs.views.runs(state)
        while (page := await self._drive(pages.more())) is not None:
            for item in page:
                held_for = waits_for is None or waits_for == item.waits_for.removesuffix(
                    " or later"
                )
                if held_for and build in (None, item.build):
                    yield item

    def dead(self) -> AsyncIterator[JobState[T]]:
        """List the dead letters, oldest first, each with its `reason`, its `worker`, and the time
        `since` its death."""
        return self._each("dead")

    def ended(
        self, *, kind: str | None = None, state: str | None = None
    ) -> AsyncIterator[JobState[T | None]]:
        """List the jobs that have ended, the oldest end first, as far as the queue's `history`
        goes. list.lua, O(log n) and 1-2 µs per job, page by page.

        *kind*: only jobs of this kind, such as a task's name. *state*: only completed, cancelled,
        deleted or dead ones (`ValueError` for another). `since` says when a job ended, `worker`
        which one had it, `job.attempt` in which attempt (0 if unknown), and `reason` why. A job
        that was completed, cancelled or died is whole, with its `attempts`, unless its fields have
        more than 64 KiB. Then, and for others, `job.payload` is `None`. A queue without a history
        lists nothing.
        """
        return self._each(ended_as(kind, state))

    async def position(self, id: str, *, key: str | None = None) -> int | None:
        """Count the jobs that would be leased before this one. 0 is the next job, and 1,000 stands
        for that many or more.

        Returns `None` if the job does not wait. In a sharded queue only jobs of its shard count.
        The shard follows from *key*, or from an id that headrace made. Otherwise it raises
        `ConfigurationError`. position.lua, O(jobs in front), page by page.
        """
        return await self._drive(self._verbs.views.position(id, key))
