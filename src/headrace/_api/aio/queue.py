"""`AsyncQueue`. Its operations are made in `_api/queue` and `_core/verbs`, and sent by the driver.

Every method may raise redis-py's transport errors once the retries of about 45 s are used up. A
method that is called with bad arguments raises `ValueError` or `TypeError`, and nothing was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Unpack, overload

from headrace._api.aio.admin import AsyncAdmin
from headrace._api.aio.colour import AsyncClosing, Redis, Stream, each
from headrace._api.aio.completed import completed
from headrace._api.aio.events import AsyncEventStream
from headrace._api.aio.lease import AsyncLease
from headrace._api.queue import BaseQueue, Delay, last_progress
from headrace._core.queue.calls import BatchBuffer
from headrace._core.steps.run import refuse_steps
from headrace._forks import cached_property
from headrace._model.codec import Codec
from headrace._model.job import Claim, Job, NewJob, Plain, T, with_steps
from headrace._model.policy import Conditions, Full, with_conditions
from headrace._model.receipt import AsyncReceipt
from headrace._model.settings import QueueOptions, QueueSettings, with_options
from headrace._model.state import Counts, JobState
from headrace._net.aio.driver import AsyncDriver
from headrace._net.aio.keeping import AsyncKept
from headrace._net.aio.steps import AsyncSteps, driver, raised
from headrace._net.aio.waiters import AsyncWaiters
from headrace._net.base.address import Address, AsyncClient, Timeout
from headrace._protocol.limits import COURTESY_S


class AsyncQueue(AsyncClosing, AsyncDriver, BaseQueue, Generic[T]):
    """A named, ordered set of jobs on Redis Streams.

    - *name*: 1-200 letters, digits, `.`, `_`, `-`, and at most one `/` behind the group's name.
    - *url* or *client*: a `redis://`, `rediss://`, `unix://` or `embedded:DIR` URL (default
      `HEADRACE_URL`, then `REDIS_URL`), or a `redis.asyncio.Redis` of yours, whose settings we use
      for connections of our own.
    - *namespace*: the first part of all keys.
    - *codec*: it gives payloads a type: see `JSONCodec`. Without one they are bytes.
    - *lease*: how long a lease lasts. `lease(duration=)` is for one lease.
    - *max_attempts*: failed deliveries after which a job is dead, as it is after 20 deaths of its
      processes. `None` is no end.
    - *priorities*: levels, at most 10. All jobs of level 0 (the default) come before any of level
      1, and so on.
    - *ageing*: seconds after which a waiting job moves up one level, so that none waits for ever.
    - *dead_limit*: dead letters kept, the newest; 0 keeps none. After it was lowered, each death
      removes up to ten of the oldest.
    - *result_ttl*: how long a result is kept.
    - *history*: ends of jobs kept, so that `find` and `result` tell how they ended. 0 ends the
      history.
    - *history_ttl*: how long they are kept at most.
    - *trends*: `True` keeps counts of each minute of two days, and each hour of 90, in 200 kB: see
      `headrace.inspect.Trends`. `False` ends that.
    - *tracebacks*: keep with jobs that are retried, or die, where they failed, at most 4 KiB.
    - *fenced*: `complete` asks for the present holder, instead of letting the first completer win.
    - *rate*: one `Rate`, or several.
    - *max_waiting*: jobs that may wait (waiting, parked, delayed).
    - *full*: when so many wait, an enqueue raises `QueueFull` (`"raise"`), or waits for room
      (`"block"`).
    - *unique_for*: seconds for which the id of a completed job stays taken.
    - *durable*: where enqueues and settlements must be written, `replicas:1`, `fsync` or
      `replicas:1,fsync`.
    - *timeout*: how long a round trip is tried, retries and all; `timeout=` of a call bounds the
      whole call.
    - *shards*: streams over which jobs are spread, 1-256, each in a slot of its own of a cluster.
      It is the same for all queues of a group, and counts for the first use of one. Later, any
      number that the group has had is accepted (else `ShardsMismatch`). See `queue.admin.shards`.
    - *ordered*: jobs of the same `key` are handed out one at a time, in their order. The others of
      its key wait until one is completed, cancelled or dead. `complete` is fenced. All programs
      that lease from the queue must set it.
    - *fair*: the header, or two as in `org/user`, whose values share the workers' time. A queue has
      one `fair`, and one set of keys, which all programs obey that lease from it: see
      `docs/explanation/fairness.md`.
    - *weights*: shares of values of *fair*, 1 by default: `{"gold": 3.0}`. From 0.001 to 1,000,000,
      at most 10,000.
    - *limits*: how many jobs may be leased at a time, `Limit(5, key="tenant")` for each value of a
      header, `Limit(50)` in all.

    `ops` makes operations as values, for transactions of yours. See
    `docs/how-to/enqueue-in-a-transaction.md`.

    For one event loop.
    """

    @overload
    def __init__(
        self: AsyncQueue[bytes],
        name: str,
        url: str | None = None,
        *,
        client: AsyncClient | None = None,
        namespace: str = "headrace",
        codec: None = None,
        **options: Unpack[QueueOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: AsyncClient | None = None,
        namespace: str = "headrace",
        codec: Codec[T],
        **options: Unpack[QueueOptions],
    ) -> None: ...
    @with_options()
    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: AsyncClient | None = None,
        namespace: str = "headrace",
        codec: Codec[Any] | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        settings = QueueSettings.of(type(self), options)
        super().__init__(name, Address.of(url, client, Redis, self), settings, codec, namespace)

    _receipt = AsyncReceipt
    _completed = staticmethod(completed)

    @property
    def admin(self) -> AsyncAdmin[T]:
        """The verbs of operators, such as `queue.admin.pause()`, `queue.admin.dead()` and
        `queue.admin.reshard(12)`."""
        return AsyncAdmin(self)

    @cached_property
    def _waiters(self) -> AsyncWaiters:
        return AsyncWaiters(self.ops, self._executor)

    @overload
    async def enqueue(
        self: AsyncQueue[bytes],
        payload: Plain | NewJob[Plain],
        *,
        id: str | None = None,
        delay: Delay = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
        key: str | None = None,
        cost: float | None = None,
        **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...
    @overload
    async def enqueue(
        self,
        payload: T | NewJob[T],
        *,
        id: str | None = None,
        delay: Delay = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
        key: str | None = None,
        cost: float | None = None,
        **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...
    @with_conditions
    async def enqueue(
        self,
        payload: Any,
        *,
        id: str | None = None,
        delay: Delay = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
        key: str | None = None,
        cost: float | None = None,
        **conditions: Unpack[Conditions],
    ) -> AsyncReceipt:
        """Add a job to the back, or after *delay* (seconds, `timedelta`, aware `datetime`), on the
        server's clock.

        With *id*, a job of that id that is waiting, running or delayed is left as it is, and the
        receipt has `added=False`. *if_exists* decides otherwise for a job that has not begun:
        `Debounce(seconds)` puts it off, `Replace()` gives it this payload, `Throttle(seconds)`
        drops later jobs. The receipt's `outcome` says which. *unique_for*: seconds, or a
        `timedelta`, for which the id stays taken after its job was completed.

        A job that is leased, or was ever tried, is left as it is. *full*: where `max_waiting` jobs
        wait already, `raise` `QueueFull`, or `block` until there is room, for *timeout* seconds at
        most. It is the queue's, if not given. *key*: a text shared by jobs that belong together,
        which is their `job.key`. A sharded queue keeps them in one shard. *cost*: in a queue with
        `fair=` the job counts as so many jobs of mean run time, and is not measured. *durable*:
        where the write must be before the call returns, `replicas:1`, `fsync` or
        `replicas:1,fsync`. By default it is the queue's. Raises `NotDurable` with the receipt if
        the write is not there after two seconds. The job is in the queue then. One script, O(1). It
        is enqueue.lua, or with any of these, or with `max_waiting` or `unique_for` of the queue,
        enqueue_if.lua.
        """
        job = self._job(payload, id, headers, delay, priority, key, cost, **conditions)
        short = timeout is None and full is None and durable is None and not conditions
        direct = self._direct(job) if short else None
        if direct is not None:
            receipt: AsyncReceipt = self._received(*await self._executor.run_prepared(*direct))
        else:
            receipt = await self._drive(*self._enqueue(job, full, timeout, durable), timeout)
        if self._undeclared:
            await self._declare()
        return receipt

    @overload
    async def enqueue_many(
        self: AsyncQueue[bytes],
        jobs: Iterable[Plain | NewJob[Plain]],
        *,
        trace_each: bool = False,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
    ) -> list[AsyncReceipt]: ...
    @overload
    async def enqueue_many(
        self,
        jobs: Iterable[T | NewJob[T]],
        *,
        trace_each: bool = False,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
    ) -> list[AsyncReceipt]: ...
    async def enqueue_many(
        self,
        jobs: Iterable[Any],
        *,
        trace_each: bool = False,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
    ) -> list[AsyncReceipt]:
        """Add any number of payloads or `NewJob`s. Returns a receipt for each, in order.

        All are checked first, and if one is bad, nothing is sent. Then they go in parts of bounded
        size, each atomic. If a part fails, the parts before it are in the queue, the later parts
        are not, and the error's `receipts` are for the earlier parts. If the jobs have ids, the
        whole call can be repeated. One script a part, 1.5-2 µs of server time per job.
        *trace_each*: if there is tracing, make a span for each job, not only one for all. If the
        queue has `max_waiting`, a part is a tenth of that at most, and a part is added whole, or
        not at all. If there is no room, *full* decides, as for `enqueue`. Conditions are set in
        each `NewJob`. *durable* is as for `enqueue`. The call waits once, after the last part, or
        after each part if there are conditions. In a sharded queue each part goes to one shard, and
        the error's `receipts` are for all jobs, `None` for each job that may be missing.
        """
        receipts: list[AsyncReceipt] = await self._drive(
            *self._many(jobs, trace_each, full, timeout, durable), timeout
        )
        if self._undeclared:
            await self._declare()
        return receipts

    @overload
    async def enqueue_stream(
        self: AsyncQueue[bytes],
        jobs: Stream[Plain | NewJob[Plain]],
        progress: Callable[[int], object] | None = None,
        *,
        timeout: Timeout = None,
        full: Full | None = None,
    ) -> int: ...
    @overload
    async def enqueue_stream(
        self,
        jobs: Stream[T | NewJob[T]],
        progress: Callable[[int], object] | None = None,
        *,
        timeout: Timeout = None,
        full: Full | None = None,
    ) -> int: ...
    async def enqueue_stream(
        self,
        jobs: Stream[Any],
        progress: Callable[[int], object] | None = None,
        *,
        timeout: Timeout = None,
        full: Full | None = None,
        durable: str | None = None,
    ) -> int:
        """Add any number of payloads or `NewJob`s, as they come. Returns their number.

        It uses bounded memory, because it works like `enqueue_many` of a bounded number of jobs at
        a time. *progress* is called after each part, with the number of enqueued jobs. Raises
        `StreamStopped` from the error that ended it early, also an error of the iterable. Its
        `position` says how many jobs from the start are surely in, so that a repetition may skip
        them. If the jobs have ids, a repetition may also repeat some. *timeout* bounds each part,
        but not the iterable's own time. With `full="block"`, a full queue holds the stream back for
        *timeout* at most. *jobs* may be asynchronous.
        """
        buffer = BatchBuffer(progress)
        try:
            async for job in each(jobs):
                if buffer.full(job):
                    buffer.sent(
                        await self.enqueue_many(
                            buffer.part, timeout=timeout, full=full, durable=durable
                        )
                    )
            if buffer.part:
                buffer.sent(
                    await self.enqueue_many(
                        buffer.part, timeout=timeout, full=full, durable=durable
                    )
                )
        except Exception as error:
            raise buffer.stopped(error) from error
        return buffer.position

    async def _declare(self) -> None:
        for declaration in self._declarations():
            # once more, as a connection may be cut
            answer = await self._executor.attempt(declaration, COURTESY_S)
            self._warn_of_differences(
                answer or await self._executor.attempt(declaration, COURTESY_S)
            )

    async def lease(
        self,
        block: float | timedelta | None = 0.0,
        *,
        duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> AsyncLease[T] | None:
        """Lease the next job. Returns `None` if there is none within *block* seconds. 0 does not
        wait, and `None` waits for ever.

        *duration*: seconds of this lease. *at_most_once*: complete the job before handing it out.
        Jobs that do not decode go to the dead letters on the way. The call also reclaims jobs and
        promotes due jobs, at most once a second. One script (lease.lua). While it waits, one
        `XREADGROUP … BLOCK` a second.
        """
        leases = await self.lease_many(1, block, duration=duration, at_most_once=at_most_once)
        return leases[0] if leases else None

    async def lease_many(
        self,
        n: int,
        block: float | timedelta | None = 0.0,
        *,
        duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> list[AsyncLease[T]]:
        """Lease up to *n* jobs, as `lease` does. It waits for the first, then takes all that are
        available. 1.5-2.5 µs a job.
        """
        claims = await self._drive(*self._leasing(n, block, duration, at_most_once))
        try:
            if at_most_once:
                for claim in claims:
                    with_steps(claim.job, refuse_steps)
            return [AsyncLease(claim, self) for claim in claims]
        except BaseException:  # interrupted
            self._executor.undo(self._leaser.release(claims))
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
        """Remove the job for good. `True` for exactly one caller, ever, also if its reply was lost
        on the way.

        For that caller only, the same script keeps *result* (encoded by the codec) for
        `result_ttl`. It also enqueues the jobs of *then*, in queues of the same group. Follow-ups
        for other shards are sent on from there. Follow-ups are at most 1,000 jobs and about 1 MiB
        in all, or one of any size. More are a `ValueError`. *fenced*: only the present holder wins.
        *durable* is as for `enqueue`. `NotDurable` means that the job is complete, and its
        `answers` has the value that the call would have returned. One script (complete.lua), O(1).
        """
        completing = self._complete(lease, result, then, fenced, durable)
        if (noting := last_progress([lease.claim])) is not None:
            await self._drive(noting, None, timeout)
        won = (await self._run(*completing, timeout))[0]
        if won and then and self._verbs.hands_over(lease.claim, then):
            await self._drive(self._verbs.hand_over(lease.claim), None, timeout)
        return won

    async def complete_many(
        self,
        leases: Sequence[AsyncLease[T]],
        results: Sequence[Any] | Mapping[str, Any] | None = None,
        fenced: bool | None = None,
        *,
        timeout: Timeout = None,
        durable: str | None = None,
    ) -> list[bool]:
        """Complete the job of each lease, as `complete` does. Returns a bool for each, in order.

        *results*: as many as leases, in their order, or some by the ids of the jobs. `None` is no
        result. All are encoded before anything is sent. complete.lua, part by part, 2-3.5 µs a job,
        with a result 3-6 µs more.
        """
        return await self._drive(*self._complete_many(leases, results, fenced, durable), timeout)

    async def release(self, lease: AsyncLease[T], *, timeout: Timeout = None) -> bool:
        """Give the job back untouched, to the front. No attempt is spent. Returns `False` if the
        lease was lost. release.lua.
        """
        releasing = self._settle(lambda ops, claim: ops.release([claim]), lease)
        if (noting := last_progress([lease.claim])) is not None:
            await self._drive(noting, None, timeout)
        return (await self._run(*releasing, timeout))[0]

    async def retry(
        self,
        lease: AsyncLease[T],
        delay: Delay = 0.0,
        reason: str | BaseException = "",
        *,
        timeout: Timeout = None,
    ) -> bool:
        """Try the job again later, at the back of the queue or after *delay*. Returns `False` if
        the lease was lost. retry.lua.

        An attempt is spent. After the last one the job goes to the dead letters with *reason*.
        Until then `find`, `waiting` and `delayed` show the first 500 bytes of it. An exception for
        a *reason* is described, and its traceback kept, too, if the queue keeps `tracebacks`.
        """
        cause = self._cause(reason)
        settling = self._ending(lambda ops, claim: ops.retry([(claim, delay, True, cause)]), lease)
        return (await self._drive(*settling, timeout))[0]

    async def dead_letter(
        self, lease: AsyncLease[T], reason: str | BaseException, *, timeout: Timeout = None
    ) -> bool:
        """Take the job out of the queue for good, and keep it with *reason*, a text or an
        exception. Returns `False` if the lease was lost. dead_letter.lua.
        """
        cause = self._cause(reason)
        settling = self._ending(lambda ops, claim: ops.dead_letter([(claim, cause)]), lease)
        return (await self._drive(*settling, timeout))[0]

    async def renew(
        self,
        lease: AsyncLease[T],
        duration: float | timedelta | None = None,
        *,
        timeout: Timeout = None,
    ) -> bool:
        """Renew the lease from now on. Returns `False` if another worker has it, or the job is
        gone. renew.lua."""
        return (await self._run(self._renew(lease, duration), None, timeout))[0]

    def keeping(
        self,
        leases: Collection[AsyncLease[T]],
        *,
        heartbeat: float | timedelta = 2.0,
        timeout: float | timedelta = 10.0,
    ) -> AsyncKept:
        """Keep leases while a program works on their jobs, in a block `async with
        queue.keeping(leases)`.

        *leases*: a list or a set. It is read at each beat, so it may grow and shrink meanwhile.
        Each lease is renewed after a third of its time. `lease.job.lost` is true for a lost one.
        *heartbeat*: the most seconds between two beats. *timeout*: seconds without a beat after
        which all leases of this queue go to others. So a program that hangs for as long loses them.
        Errors are logged, and do not end it. Each beat is a round trip (beat.lua, renew.lua).
        """
        return AsyncKept(self._keeping(leases, heartbeat, timeout), self._drive, self.name)

    @overload
    async def result(
        self: AsyncQueue[bytes], id: str, timeout: float | timedelta | None = 0.0
    ) -> bytes | None: ...
    @overload
    async def result(self, id: str, timeout: float | timedelta | None = 0.0) -> Any: ...
    async def result(self, id: str, timeout: float | timedelta | None = 0.0) -> Any:
        """Return the result that the job's completion kept, decoded by the queue's codec (bytes
        without one). Waits up to *timeout* seconds for the job's end. 0 looks once, and `None`
        waits for ever.

        Returns `None` if the job was completed without a result, or nothing is known of this id. A
        call with a *timeout* waits for an unknown id, as its job may still be enqueued. Raises
        `JobFailed` as soon as the job is dead, cancelled or deleted. Raises `TimeoutError` if it
        has not ended in time, and `CodecError` if the codec can't read the result. All waiting
        calls share one subscription. result.lua, find.lua if there is none, and both every 5
        seconds while waiting.
        """
        return await self._drive(self._result(id, timeout))

    @overload
    async def results(
        self: AsyncQueue[bytes], ids: Iterable[str], timeout: float | timedelta | None = 0.0
    ) -> dict[str, bytes]: ...
    @overload
    async def results(
        self, ids: Iterable[str], timeout: float | timedelta | None = 0.0
    ) -> dict[str, Any]: ...
    async def results(
        self, ids: Iterable[str], timeout: float | timedelta | None = 0.0
    ) -> dict[str, Any]:
        """Return the available results of any number of jobs, by id, decoded. Waits up to *timeout*
        seconds for the others. 0 looks once, and `None` waits until all have ended.

        A job that has ended without a result is not in the answer. Raises `CodecError`. result.lua,
        part by part.
        """
        return await self._drive(self._results(ids, timeout))

    async def cancel(
        self,
        id: str,
        *,
        key: str | None = None,
        cascade: bool = True,
        timeout: Timeout = None,
    ) -> bool:
        """Remove a job, in any state but dead. A worker that holds it finds its lease lost.
        cancel.lua, O(1).

        *key*: the job's key. With it, a sharded queue asks one shard. Without it, it asks all
        shards. *cascade*: whether the children that its run has started, and theirs, are cancelled,
        too, with one cancel.lua each.
        """
        return await self._drive(self._verbs.cancel(id, key, cascade=cascade), None, timeout)

    async def signal(
        self,
        id: str,
        name: str,
        data: Any = None,
        *,
        by: str | None = None,
        key: str | None = None,
        timeout: Timeout = None,
    ) -> str:
        """Send *data* to the job *id*, whose handler waits for the signal *name* by `job.wait_for`,
        or will.

        Returns `woke` if the job waited, and goes on. Returns `kept` if the signal came before the
        wait, which will find it. Returns `present` if the job has a signal of this name, which
        stays. Returns `unknown` if there is no such job, or its wait has timed out. *data* is
        encoded by the queue's codec, or as JSON. *by*: its sender, up to 200 characters, for `find`
        and pages. By default it is the machine and the process. *key*: the job's key. With it, a
        sharded queue asks one shard. Without it, it asks all shards. Raises `CodecError` for data
        that can't be sent, `ValueError` for more than 64 KiB, or beyond the 1 MiB, or 1,000
        records, that a job may have. signal.lua, 25 µs.
        """
        return await self._drive(self._signal(id, name, data, by, key), None, timeout)

    def _steps_of(self, claim: Claim, job: Job) -> AsyncSteps:  # noqa: ARG002 - the claim has it
        return AsyncSteps(self._run_of(claim), driver(self._executor, raised))

    async def counts(self, *, timeout: Timeout = None) -> Counts:
        """Count the jobs in each state, at one instant (of each shard). counts.lua,
        O(consumers)."""
        return await self._drive(self._verbs.views.counts(), None, timeout)

    async def find(
        self, id: str, *, key: str | None = None, timeout: Timeout = None
    ) -> JobState[T] | None:
        """Find a job. Returns `None` if it is gone, or never was. find.lua, page by page over dead
        letters.

        *key*: the job's key. With it, a sharded queue asks one shard. Without it, it asks all
        shards.
        """
        return await self._drive(self._find(id, key), None, timeout)

    def events(
        self, kinds: Iterable[str] | None = None, timeout: float | timedelta | None = None
    ) -> AsyncEventStream:
        """Listen to events from now on. Returns an asynchronous iterator of `Event`, of *kinds* or
        all.

        It ends when nothing has come for *timeout* seconds (`None`: never). `async with
        queue.events() as events:` subscribes on entry, and closes the connection at the end. Events
        are delivered at most once. Events during a lost connection, or for a reader that is too
        slow, are not repeated. It has its own connection, and for a sharded queue one for each
        node. Events are in order within a shard. Shards that `reshard` adds are followed within two
        seconds.
        """
        return AsyncEventStream(
            self.ops, self._executor, *self._listening(kinds, timeout), self._drive
        )

    async def close(self) -> None:
        """Close the connections we opened, nothing else.

        Jobs that this queue leased stay leased until their leases expire. If it holds none, its
        registration and the records of its calls are deleted. The call waits 1 second at most for a
        server that is away. leave.lua if it leased, DEL.
        """
        if self._address.executor is not None:
            if "_waiters" in vars(self):  # else no call has waited
                await self._waiters.close()
            await self._executor.close(self._parting())
        self._detach()
