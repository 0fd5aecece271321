"""`AsyncQueue`. Its operations are made in `_api/queue` and `_core/queue/calls`, and sent by the driver.

Every method may raise redis-py's transport errors once the retries of about 45 s are used up. A method that is called
with bad arguments raises `ValueError` or `TypeError`, and nothing was sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Unpack, overload
from zoneinfo import ZoneInfo

from headrace._api.aio.colour import Redis
from headrace._api.aio.completed import completed
from headrace._api.aio.events import AsyncEventStream
from headrace._api.aio.lease import AsyncLease
from headrace._api.aio.producing import AsyncProducing
from headrace._api.closing import AsyncClosing
from headrace._api.queue import Delay
from headrace._forks import cached_property
from headrace._model.bulk import Bulk
from headrace._model.codec import Codec
from headrace._model.job import Job, NewJob
from headrace._model.payload import Plain, T
from headrace._model.settings import QueueOptions, QueueSettings, with_options
from headrace._model.shards import Resharding, Shard
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState
from headrace._net.aio.keeping import AsyncKept
from headrace._net.aio.waiters import AsyncWaiters
from headrace._net.base.address import Address, AsyncClient
from headrace._net.base.connected import Timeout
from headrace._protocol.limits import LISTED_PER_SCRIPT


class AsyncQueue(AsyncClosing, AsyncProducing[T], Generic[T]):
    """A named, ordered set of jobs on Redis Streams.

    - *name*: 1-200 letters, digits, `.`, `_`, `-`, and at most one `/` behind the group's name.
    - *url* or *client*: a `redis://`, `rediss://`, `unix://` or `embedded:DIR` URL (default `HEADRACE_URL`, then
      `REDIS_URL`), or a `redis.asyncio.Redis` of yours, whose settings we use for connections of our own.
    - *lease*: seconds a lease lasts. *max_attempts*: deliveries after which a job is dead (`None`: no end).
    - *dead_limit*: dead letters kept. *result_ttl*: seconds a result is kept. *fenced*: `complete` asks for the present
      holder instead of letting the first completer win. *codec*: see `JSONCodec`.
    - *priorities*: levels, 1-10: all jobs of level 0 (the default) come before any of level 1, and so on. *ageing*:
      seconds after which a job that waits goes to the level before its own, so that none waits for ever.
    - *history*: ends of jobs kept, so that `find` and `result` tell how they ended, for *history_ttl* seconds (a week).
    - *trends*: counts are kept of each minute of two days, and each hour of 90: see `headrace.inspect.Trends`. 200 kB.
    - *tracebacks*: keep with jobs that are retried, or die, where they failed, at most 4 KiB.
    - *max_waiting*: jobs that may wait (waiting, parked, delayed). *full*: what an enqueue of more does, `raise` or
      `block`. *unique_for*: seconds for which the id of a completed job stays taken.
    - *durable*: how far enqueues and settlements must have come, `replicas:1`, `fsync` or `replicas:1,fsync`.
    - *timeout*: seconds for which a round trip is tried, retries and all; `timeout=` of a call bounds the whole call.
    - *shards*: streams over which its jobs are spread, 1-256, each in a slot of its own of a cluster; the same for all
      queues of a group, and fixed by the first use of one (`ShardsMismatch`). See `shards`.
    - *ordered*: jobs of the same `key` are handed out one at a time, in their order; the others of its key wait until
      one is completed, cancelled or dead. `complete` is fenced. All that lease from the queue must say so.

    For one event loop.
    """

    @overload
    def __init__(
        self: AsyncQueue[bytes], name: str, *, url: str | None = None, client: AsyncClient | None = None,
        namespace: str = "headrace", codec: None = None, **options: Unpack[QueueOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, name: str, *, url: str | None = None, client: AsyncClient | None = None,
        namespace: str = "headrace", codec: Codec[T], **options: Unpack[QueueOptions],
    ) -> None: ...  # fmt: skip
    @with_options()
    def __init__(
        self, name: str, *, url: str | None = None, client: AsyncClient | None = None,
        namespace: str = "headrace", codec: Codec[Any] | None = None, **options: Unpack[QueueOptions],
    ) -> None:  # fmt: skip
        settings = QueueSettings.of(type(self), options)
        super().__init__(name, Address.of(url, client, Redis, self), settings, codec, namespace)

    _completed = staticmethod(completed)

    @cached_property
    def _waiters(self) -> AsyncWaiters:
        return AsyncWaiters(self.ops, self._executor)

    async def lease(
        self, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> AsyncLease[T] | None:  # fmt: skip
        """Lease the next job; `None` if there is none within *block* seconds (0: do not wait; `None`: for ever).

        *duration*: seconds of this lease. *at_most_once*: complete the job before handing it out. Jobs that do not
        decode go to the dead letters on the way. Also reclaims and promotes what is due, at most once a second. One
        script (lease.lua); while waiting, one `XREADGROUP … BLOCK` a second.
        """
        leases = await self.lease_many(1, block, duration=duration, at_most_once=at_most_once)
        return leases[0] if leases else None

    async def lease_many(
        self, n: int, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> list[AsyncLease[T]]:  # fmt: skip
        """Like `lease`, up to *n* jobs: wait for the first, take those that are there then. 1.5-2.5 µs a job."""
        if self._undeclared and self.ops.settings.keeps:
            await self._declare()
        claims = await self._drive(*self._leasing(n, block, duration, at_most_once))
        try:
            return [AsyncLease(claim, self) for claim in claims]
        except BaseException:  # interrupted
            self._executor.undo(self._peer.release(claims))
            raise

    async def complete(
        self,
        lease: AsyncLease[T],
        result: Any = None,
        then: Sequence[NewJob[Any]] = (),
        fenced: bool | None = None,
        *,
        timeout: Timeout = None,
        durable: str | None = None,
    ) -> bool:
        """Remove the job for good. `True` for exactly one caller, ever, also if its reply was lost on the way.

        Only for that caller: *result* (encoded by the codec) is kept for `result_ttl`, and the jobs of *then* are
        enqueued (in queues of the same group), in the same script; those of other shards go there from it.
        *fenced*: only the present holder wins. *durable* as for `enqueue`: `NotDurable` means that it is done, and its
        `answers` say how. One script (complete.lua), O(1).
        """
        won = (await self._run(*self._complete(lease, result, then, fenced, durable), timeout))[0]
        if won and (handing := self._handing(lease, then)) is not None:
            await self._drive(handing, None, timeout)
        return won

    async def complete_many(
        self, leases: Sequence[AsyncLease[T]], results: Sequence[Any] | Mapping[str, Any] | None = None,
        fenced: bool | None = None, *, timeout: Timeout = None, durable: str | None = None,
    ) -> list[bool]:  # fmt: skip
        """Like `complete`, for each lease; return a bool each, in order.

        *results*: as many as leases, in their order, or some by the ids of the jobs; `None` is no result. All are
        encoded before anything is sent. complete.lua, part by part, 2-3.5 µs a job, with a result 3-6 µs more.
        """
        return await self._drive(*self._complete_many(leases, results, fenced, durable), timeout)

    async def release(self, lease: AsyncLease[T], *, timeout: Timeout = None) -> bool:
        """Give the job back untouched, to the front. No attempt is spent. `False`: the lease was lost. release.lua."""
        return (await self._run(*self._settle(lambda ops, claim: ops.release([claim]), lease), timeout))[0]

    async def retry(
        self, lease: AsyncLease[T], delay: Delay = 0.0, reason: str | BaseException = "", *, timeout: Timeout = None
    ) -> bool:
        """Try the job again later: to the back, or after *delay*. `False`: the lease was lost. retry.lua.

        An attempt is spent; after the last one the job goes to the dead letters with *reason*, and until then the first
        500 bytes of it are shown by `find`, `waiting` and `delayed`. An exception for a *reason* is described, and its
        traceback kept, too, if the queue keeps `tracebacks`.
        """
        cause = self._cause(reason)
        settling = self._settle(lambda ops, claim: ops.retry([(claim, delay, True, cause)]), lease)
        return (await self._run(*settling, timeout))[0]

    async def dead_letter(self, lease: AsyncLease[T], reason: str | BaseException, *, timeout: Timeout = None) -> bool:
        """Take the job out of the queue for good, and keep it with *reason*, a text or an exception. `False`: the lease
        was lost. dead_letter.lua.
        """
        cause = self._cause(reason)
        settling = self._settle(lambda ops, claim: ops.dead_letter([(claim, cause)]), lease)
        return (await self._run(*settling, timeout))[0]

    async def renew(
        self, lease: AsyncLease[T], duration: float | timedelta | None = None, *, timeout: Timeout = None
    ) -> bool:
        """Make the lease last again from now. `False`: another worker has it, or the job is gone. renew.lua."""
        return (await self._run(self._renew(lease, duration), None, timeout))[0]

    def keeping(
        self,
        leases: Collection[AsyncLease[T]],
        *,
        heartbeat: float | timedelta = 2.0,
        timeout: float | timedelta = 10.0,
    ) -> AsyncKept:
        """Keep leases while a program works on their jobs: `async with queue.keeping(leases):`.

        *leases*: a list or a set, looked at anew with each beat, so that it may grow and shrink meanwhile. Each is
        renewed once a third of it has passed; `lease.job.lost` is true of one that was lost. *heartbeat*: seconds
        between two beats, at most. *timeout*: seconds without one, after which this queue's leases, all of them, go to
        others; so a program that stands still for as long loses them. An error is logged, and it goes on. A round trip
        each time (beat.lua, renew.lua).
        """
        return AsyncKept(self._keeping(leases, heartbeat, timeout), self._drive, self.name)

    @overload
    async def result(self: AsyncQueue[bytes], id: str, timeout: float | timedelta | None = None) -> bytes | None: ...
    @overload
    async def result(self, id: str, timeout: float | timedelta | None = None) -> Any: ...
    async def result(self, id: str, timeout: float | timedelta | None = None) -> Any:
        """Return the result that the job's completion kept, decoded by the queue's codec (bytes without one), waiting
        up to *timeout* seconds for its end; `None` and 0 look once.

        `None`: it was completed without a result, or nothing is known of this id: with a *timeout*, that is waited for,
        as it may be enqueued yet. Raises `JobFailed` as soon as the job is dead, cancelled or deleted, `TimeoutError`
        if it has not ended in time, `CodecError` for what the codec can't read. All waiting calls share one
        subscription. result.lua, find.lua if there is none, and both every 5 seconds while waiting.
        """
        return await self._drive(self._result(id, timeout))

    @overload
    async def results(
        self: AsyncQueue[bytes], ids: Iterable[str], timeout: float | timedelta | None = None
    ) -> dict[str, bytes]: ...
    @overload
    async def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, Any]: ...
    async def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, Any]:
        """Return the results there are of any number of jobs, by id, decoded; wait up to *timeout* seconds for others.

        A job that has ended without a result is not in the answer. Raises `CodecError`. result.lua, part by part.
        """
        return await self._drive(self._results(ids, timeout))

    async def _each(self, state: str, limit: int = LISTED_PER_SCRIPT) -> AsyncIterator[JobState[T]]:
        pages = self._whole.pages(state, limit)
        while (page := await self._drive(pages.more())) is not None:
            for item in page:
                yield item

    async def cancel(self, id: str, *, key: str | None = None, timeout: Timeout = None) -> bool:
        """Remove a job, in any state but dead; a worker that holds it finds its lease lost. cancel.lua, O(1).

        *key*: the one it was enqueued with: in a sharded queue only its shard is asked, else all are.
        """
        return await self._drive(self._whole.cancel(id, key), None, timeout)

    @overload
    async def cancel_payload(self: AsyncQueue[bytes], payload: Plain) -> int: ...
    @overload
    async def cancel_payload(self, payload: T) -> int: ...
    async def cancel_payload(self, payload: Any) -> int:
        """Remove every job of this payload, waiting, running or delayed; return their number.

        cancel_payload.lua, page by page.
        """
        return await self._drive(self._payload(payload))

    async def counts(self, *, timeout: Timeout = None) -> Counts:
        """Count the jobs in each state, at one instant; in a sharded queue, each shard at its own. counts.lua,
        O(consumers).
        """
        return await self._drive(self._whole.counts(), None, timeout)

    async def peek(self) -> Job[T] | None:
        """Return the job that would be leased next, without leasing it. list.lua."""
        async for item in self._each("waiting", 1):
            return item.job
        return None

    def waiting(self) -> AsyncIterator[JobState[T]]:
        """List the waiting jobs, in the order in which they will be leased. list.lua, page by page."""
        return self._each("waiting")

    def running(self) -> AsyncIterator[JobState[T]]:
        """List the leased jobs, oldest first, each with its `worker` and the time `since` delivery or last renewal."""
        return self._each("running")

    def delayed(self) -> AsyncIterator[JobState[T]]:
        """List the delayed jobs, the first due first, each with the time it is `due`."""
        return self._each("delayed")

    def dead(self) -> AsyncIterator[JobState[T]]:
        """List the dead letters, oldest first, each with its `reason`, its `worker`, and the time `since` its death."""
        return self._each("dead")

    async def find(self, id: str, *, key: str | None = None, timeout: Timeout = None) -> JobState[T] | None:
        """Find a job; `None` if it is gone, or never was. find.lua, page by page over dead letters.

        *key*: the one it was enqueued with: in a sharded queue only its shard is asked, else all are.
        """
        return await self._drive(self._whole.find(id, key), None, timeout)

    async def position(self, id: str, *, key: str | None = None) -> int | None:
        """Count the jobs that would be leased before this one: 0 for the next, 1,000 for that many or more.

        `None` if it does not wait. In a sharded queue, those of its shard, which *key* tells, or else its id if it was
        given none (`ConfigurationError` without). position.lua, O(jobs in front), page by page.
        """
        return await self._drive(self._whole.position(id, key))

    async def redrive(self, *ids: str) -> int:
        """Send dead letters to the back of the queue, all or those of *ids*, oldest first; return their number.

        A dead letter whose id is taken again stays, and so do jobs that die meanwhile; of a sharded queue, in shards
        that it has reached: it goes from one to the next. redrive.lua, page by page.
        """
        return await self._drive(self._whole.redrive(ids))

    async def purge_dead(self, *ids: str) -> int:
        """Remove dead letters for good, all or those of *ids*; return their number. Jobs that die meanwhile stay; of a
        sharded queue, in shards that it has reached.
        """
        return await self._drive(self._whole.purge_dead(ids))

    async def bulk(self, action: str, state: str, *, reason: str = "", kind: str = "", cursor: str = "") -> Bulk:
        """Take one step of an action for all jobs in *state* that match: go on with the `cursor` of its answer.

        *action*: `cancel` (of jobs that are waiting, running or delayed), `expire` (running), `reschedule` (delayed: at
        once), `redrive` or `purge_dead` (dead). *reason*: a text in the job's reason. *kind*: its header `kind`.
        Jobs that come after the first step stay; one that has begun between being listed and being cancelled is
        cancelled, too. A step looks at some pages of jobs: list.lua, and the action's script.
        """
        return await self._drive(self._whole.bulk(action, state, reason, kind, cursor))

    async def purge(self) -> int:
        """Remove the jobs that wait (waiting, parked, delayed); return their number.

        Leased and dead jobs stay, and so do those enqueued meanwhile; of a sharded queue, in shards that it has
        reached. purge.lua, page by page.
        """
        return await self._drive(self._whole.purge())

    async def delete(self) -> int:
        """Remove the queue with everything in it; return the number of its jobs. An enqueue makes it anew.

        delete.lua: one call, and before it as many as the jobs of flows take, which go first.
        """
        return await self._drive(self._whole.delete())

    async def pause(self) -> bool:
        """Hand out no more jobs, to any worker, until `resume()`; `False`: the queue was paused already. pause.lua,
        O(1).

        Leased jobs go on, and can be renewed and settled; jobs can be enqueued. The pause is kept on the server, and
        ends with `resume()` or `delete()` only.
        """
        return await self._drive(self._whole.pause(True))

    async def resume(self) -> bool:
        """Hand out jobs again; all waiting workers are woken. `False`: the queue was not paused. pause.lua, O(1)."""
        return await self._drive(self._whole.pause(False))

    async def paused(self) -> bool:
        """Tell whether the queue is paused. paused.lua, O(1)."""
        return await self._drive(self._whole.paused())

    async def levels(self) -> int:
        """Return how many priority levels its jobs have had, or its workers declare. levels.lua, O(1)."""
        return await self._drive(self._whole.levels())

    async def shards(self) -> list[Shard]:
        """List the shards: the range of keys of each, its slot, the node that serves it, and its counts.

        A job with a *key* is in the shard of the CRC-32 of its key; one with an id only, in that of its id; any other
        in one after the other, and the number stands in its id (`1795307039451-0@7`). Each shard keeps all promises of
        a queue. Across shards, none has an order; counts and listings are of several instants; `dead_limit`, `history`
        and `levels` are those of a shard; a call for many jobs that fails may have done a part; a `Rate` is of each
        key, or has `per_shard`; each of S shards may have `max_waiting / S`. A queue with `shards=1` has no table, and
        answers an empty list. shards.lua, and counts.lua of each.
        """
        return await self._drive(self._shards())

    async def reshard(self, shards: int | None = None) -> Resharding:
        """Change the number of shards of the queue's group, 2-256, while work goes on; return how far it is.

        New jobs go to as many new shards at once. The old ones are worked off, by all workers; one that was empty for
        ten minutes leaves the table, which workers see to, and each further call, also without *shards*. A call that
        fails may be repeated, from anywhere. Clients go on: the number that they were given may be any that there was.
        See `docs/how-to/use-a-cluster.md` for what becomes of ids, keys, delays, dead letters and schedules.
        A few scripts a shard: shards.lua, seal.lua, inherit.lua, drained.lua, wipe.lua; a SCAN for those that go.
        """
        return await self._drive(self._reshard(shards))

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until no job is left but dead letters. `False`: not within *timeout*; `None` waits for ever.

        counts.lua, twice a second, more often at first.
        """
        return await self._drive(self._drain(timeout))

    async def move(self, to: str, *ids: str) -> int:
        """Move jobs that wait (waiting, parked, delayed), all or those of *ids*, to the back of queue *to*; return
        their number.

        They keep their order, ids, headers, attempts and times. A job whose id is taken there stays, and so do leased
        and dead ones, and those of a flow. Here they count as `deleted`, there as `enqueued`. On a cluster *to* must be
        of the same group (`ConfigurationError`). move.lua, page by page, about 15 µs a job.
        """
        return await self._drive(self._move(to, ids))

    async def expire(self, *ids: str) -> int:
        """End leases now, all or those of the jobs *ids*: their jobs go to the front, the attempt spent; return their
        number.

        Settlements by their holders then answer `False`; `complete` does if it is fenced, or if another was first.
        expire.lua, page by page.
        """
        return await self._drive(self._whole.expire(ids))

    async def fail_worker(self, name: str) -> int:
        """Declare a worker dead: the jobs it holds go to the front, oldest first, the attempts spent; return their
        number.

        *name*: as `workers()` has it, or without its random part, for all that have come under that name. If it is
        alive, it learns so with its next heartbeat, stops its handlers and comes back. fail_worker.lua, page
        by page.
        """
        return await self._drive(self._whole.fail_worker(name))

    async def repair(self) -> Repairs:
        """Repair damage by foreign commands (XDEL, XACK, XTRIM, XGROUP, …); count the repairs by kind.

        After our own operations there is nothing to find. Safe beside live workers and other repairs. A key of another
        type than ours raises a `redis.ResponseError` that names the key, and that call did nothing. repair.lua, page by
        page.
        """
        return await self._drive(self._whole.repair())

    async def workers(self) -> list[WorkerState]:
        """List the registered workers, the time until which each counts as alive, and how many jobs it has leased.
        workers.lua.
        """
        return await self._drive(self._whole.workers())

    def events(self, kinds: Iterable[str] | None = None, timeout: float | timedelta | None = None) -> AsyncEventStream:
        """Listen to events from now on: an asynchronous iterator of `Event`, of *kinds* or all.

        It ends when nothing has come for *timeout* seconds (`None`: never). `async with queue.events() as events:`
        subscribes on entry, and closes the connection at the end. Delivered at most once: events during a lost
        connection, or for a reader that is too slow, are not repeated. A connection of its own. Of a sharded queue: one
        for each node; the order is that of each shard, and those that `reshard` adds are listened to within two
        seconds.
        """
        return AsyncEventStream(self.ops, self._executor, *self._listening(kinds, timeout), self._drive)

    async def reschedule(self, id: str, delay: Delay) -> bool:
        """Give a delayed job another due time: *delay* from now, or a moment. `False`: no delayed job has this id.

        `None` or 0 sends it to the back of the queue at once. reschedule.lua, O(log n).
        """
        return await self._drive(self._whole.reschedule(id, delay))

    @overload
    async def schedule(
        self: AsyncQueue[bytes], name: str, payload: Plain, *, every: float | timedelta | None = None,
        cron: str | None = None, timezone: str | ZoneInfo | None = None, missed: str = "once",
        headers: Mapping[str, str] | None = None, priority: int = 0,
    ) -> bool: ...  # fmt: skip
    @overload
    async def schedule(
        self, name: str, payload: T, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool: ...  # fmt: skip
    async def schedule(
        self, name: str, payload: Any, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool:  # fmt: skip
        """Make a job recur; `True` if the name is new, `False` if this replaced the schedule of that name.

        *every*: seconds or a `timedelta`, at least 0.1, counted from now on the server's clock. *cron*: five fields as
        in a crontab, or six with seconds first, in *timezone* (an IANA name, default UTC); needs `headrace[cron]`. If
        it replaces a schedule of the same timing, the next due time stays. *missed*: what becomes of ticks that passed
        while no worker ran: `skip` them, run `once` for them, or run `all` (the latest 1,000). Jobs have the id
        `<name>@<due in ms>`. Workers of this queue enqueue them. `TooManySchedules` if the queue has 1,000,
        `ConfigurationError` without cronsim. Two scripts (schedules.lua, schedule.lua), O(log n).
        """
        job = NewJob(payload, headers=headers, priority=priority)
        return await self._drive(self._schedule(name, job, every, cron, timezone, missed))

    async def unschedule(self, name: str) -> bool:
        """End a schedule; jobs that it has enqueued stay. `False`: there is none of that name. unschedule.lua."""
        return await self._drive(self._whole.unschedule(name))

    async def schedules(self) -> list[Schedule]:
        """List the schedules, the next due first. schedules.lua, page by page, 4 µs each."""
        return await self._drive(self._whole.schedules())

    async def close(self) -> None:
        """Close the connections we opened, nothing else.

        Jobs that this queue leased stay leased until their leases expire; if it holds none, its registration and the
        records of its calls are deleted. Waits 1 second at most for a server that is away. leave.lua if it leased, DEL.
        """
        if self._address.executor is not None:
            if "_waiters" in vars(self):  # else no call has waited
                await self._waiters.close()
            await self._executor.close(self._parting())
        self._part()
