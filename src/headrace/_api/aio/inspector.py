"""`AsyncInspector`. Its views are made in `_core/views/views`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from headrace._api.aio.colour import AsyncClosing, Lock, Redis
from headrace._codecs.recorded import with_results
from headrace._core.effects import Call
from headrace._core.views.choice import Choice
from headrace._core.views.redaction import Redact
from headrace._core.views.views import Views
from headrace._model.checks import seconds
from headrace._model.codec import Codec
from headrace._model.flow import FlowView, RunsPage, RunView
from headrace._model.letters import DeadPage
from headrace._model.state import Schedule
from headrace._model.steps import Step as JobStep
from headrace._model.terms import Tenants
from headrace._model.views.activity import Activity, Step
from headrace._model.views.jobs import JobsPage, JobView, KindsPage, ScheduleView, WorkerView
from headrace._model.views.overview import Overview
from headrace._model.views.queues import QueuePage
from headrace._model.views.trends import Every, Trends
from headrace._net.aio.driver import AsyncDriver
from headrace._net.base.address import Address, AsyncClient
from headrace._net.base.retries import bounding
from headrace.errors import HeadraceError

R = TypeVar("R")
REFUSALS = (ResponseError, HeadraceError)  # errors of one queue, where others may be sound


class AsyncInspector(AsyncClosing, AsyncDriver):
    """Reader of all queues of a namespace, for programs that show them. It changes nothing.

    - *url* or *client*: as for `AsyncQueue`. *namespace*: the first part of all keys.
    - *codecs*: the codec of each queue, to show payloads; without a codec, bytes are shown as JSON,
      text or hexadecimal.
    - *redact*: a function of (what, text, job) that returns what may be shown of a text of a job,
      in full. *what* is `payload`, `result`, `reason`, `traceback`, `header NAME` (of tenants,
      too), `step NAME` (its result) or `progress`. If it raises, nothing is shown.
    - *fresh*: seconds for which a reading is shown again, so that one inspector serves any number
      of viewers.
    - *timeout*: seconds for which a round trip is tried.

    For one event loop.

    Its reads are bounded, however many jobs there are. Methods raise redis-py's errors of a server
    that is away. Bad arguments raise `ValueError` or `TypeError`, and nothing was sent.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: AsyncClient | None = None,
        namespace: str = "headrace",
        codecs: Mapping[str, Codec[Any]] | None = None,
        redact: Redact | None = None,
        fresh: float | timedelta = 2.0,
        timeout: float | timedelta = 5.0,
    ) -> None:
        self._within = bounding(seconds("timeout", timeout, zero=False))
        self._address = place = Address.of(url, client, Redis, self)
        limits = seconds("fresh", fresh), REFUSALS
        self.views = Views(
            namespace, codecs, redact, *limits, with_results, place=lambda: place.shown
        )
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(namespace={self.views.namespace!r})"

    def forget(self) -> None:
        """Drop all cached readings, as an action has changed the queue."""
        self.views.forget()

    async def _see(self, view: Call[R]) -> R:
        async with self._lock:
            return await self._drive(view)

    async def overview(self) -> Overview:
        """Read all queues, the server, and the list of facts that need attention. Each queue has
        its counts, lag, rates and workers, and whether it is paused.

        A SCAN finds the queues, at most 50,000 keys a look. Each queue takes four scripts
        (about.lua, measure.lua, workers.lua, relayed.lua), 45 µs in all, 50 queues a round trip.
        Every ten seconds it sends INFO. It also sends signs.lua for the queues with jobs that do
        not run, 25 at once. It sends trends.lua for queues whose oldest job waits for more than a
        minute.
        """
        return await self._see(self.views.overview())

    async def throughput(self, names: Sequence[str]) -> Trends | None:
        """Read the sums of the last two hours' trends of the queues *names*, as far as they keep
        trends. Returns `None` if none does. The trends are read anew every 30 seconds. trends.lua,
        5 kB of each shard.
        """
        return await self._see(self.views.throughput(names))

    async def tenants(self) -> tuple[Tenants, ...]:
        """Read the shares and limits of the queues that have some, at most 50 queues. Like
        `overview`, and shares.lua, 100 µs a queue.
        """
        return await self._see(self.views.tenants())

    async def queue(self, name: str) -> QueuePage:
        """Read one queue, how it is declared, and its schedules. Three scripts, and
        schedules.lua."""
        return await self._see(self.views.queue(name))

    async def trends(self, name: str, every: Every = "minute", number: int | None = None) -> Trends:
        """Read the counts of a queue at the start of each of the last *number* minutes or hours.

        *every*: `minute` (two days of them are kept) or `hour` (90 days). *number*: all, if not
        given. A queue has trends from when it is declared with `trends=True`. trends.lua, 100 KB at
        most, of each shard.
        """
        return await self._see(self.views.trends(name, every, number))

    async def activity(self, names: Sequence[str], step: Step = "minute") -> Activity:
        """Read the counts of the workers of the queues *names*, for each minute of the last two
        hours, or each ten minutes of a day. They say how many jobs were done, retried and died, how
        long they waited and ran, and how busy the workers were, by kind and by machine.

        Workers count by themselves, unless the queue is declared with `trends=False`. They report
        every ten seconds, and when they stop. Waits and runs are estimates. tallies.lua of each
        shard, 50 a round trip: at first up to 1 ms, and then 10 µs, as the past is kept.
        """
        return await self._see(self.views.activity(names, step))

    async def jobs(
        self,
        name: str,
        state: str,
        cursor: str = "",
        limit: int = 50,
        *,
        kind: str | None = None,
        end: str | None = None,
        header: str | None = None,
        reason: str | None = None,
        payload: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        order: str = "oldest",
    ) -> JobsPage:
        """Read a page of the jobs in *state*, from *cursor* of the page before. The states are
        waiting, running, delayed, blocked, dead and ended. Ended jobs are in the history.

        A page has at most 200 jobs, or 1 MiB. list.lua.

        - *kind*, *header* (`name=value`), *reason*, *payload*: only jobs of this kind, with this
          header, or with this text in their reason or payload. Texts are compared as they are
          shown, as far as *redact* leaves them.
        - *since*, *until*: only jobs of this time (seconds of the server's clock, or datetimes). It
          is the time of their end or death, and for other jobs of their first enqueue. *end*: only
          jobs that ended so, which is completed, dead, cancelled or deleted.
        - *order*: `oldest` or `newest` first. `newest` is for jobs that are dead or have ended, in
          each shard.

        Such a choice looks at 2,000 jobs or 4 MiB. `cursor` goes on from there, and `looked` is the
        number of jobs.
        """
        choice = Choice(kind, end, header, reason, payload, since, until, order)
        return await self._see(self.views.jobs(name, state, cursor, limit, choice))

    async def kinds(self, name: str) -> KindsPage:
        """Read which kinds of jobs ended last in a queue that keeps a `history`. Each kind has its
        number of jobs and of failures, and how long they ran and waited. The newest 1,000 ends are
        read, or 4 MiB of them. list.lua.
        """
        return await self._see(self.views.kinds(name))

    async def job(self, name: str, id: str) -> JobView | None:
        """Read one job with its whole payload, its lease and its timeline. Returns `None` if
        nothing is known of it.

        find.lua, and lease_of.lua, position.lua or result.lua.
        """
        return await self._see(self.views.job(name, id))

    async def descendants(
        self, steps: Sequence[JobStep]
    ) -> Mapping[tuple[str, str], tuple[JobStep, ...]]:
        """Read which children the children among these *steps* of a job have started, and these
        again, by their queue and their id. Results are left out. At most 40 jobs are read, level by
        level. about.lua of each queue and find.lua of each job, two round trips a level.
        """
        return await self._see(self.views.descendants(steps))

    async def find(self, id: str, names: Sequence[str]) -> list[str]:
        """Read in which of the queues *names* there is a job of this id. It looks at the newest
        1,000 dead letters of a queue, or 1 MiB of them. It sends two scripts a queue, for 50 queues
        a round trip.
        """
        return await self._see(self.views.find(id, names))

    async def schedules(self, names: Sequence[str]) -> dict[str, list[Schedule]]:
        """Read the schedules of the queues *names*, by queue, at most 500 of each. schedules.lua,
        50 a round trip."""
        return await self._see(self.views.schedules(names))

    async def schedule(self, name: str, schedule: str) -> ScheduleView | None:
        """Read a schedule of the queue *name*, with payload and headers of its jobs. Returns `None`
        without such a schedule. schedules.lua.
        """
        return await self._see(self.views.schedule(name, schedule))

    async def dead(self, name: str) -> DeadPage:
        """Group the dead letters of a queue by reason and kind, the newest 2,000 or 4 MiB.
        list.lua, page by page."""
        return await self._see(self.views.dead(name))

    async def deaths(self, names: Sequence[str], key: str = "") -> DeadPage:
        """Like `dead`, for several queues, with an equal share of each at first. With *key*, the
        page has only that group, and the newest 200 of its letters. The letters of more than 8
        queues are read again after ten seconds where `overview` has counted another number of them,
        and after a minute elsewhere, if `fresh` is 2 seconds.
        """
        return await self._see(self.views.deaths(names, key))

    async def dead_ids(self, name: str, key: str) -> list[str]:
        """Read the ids of the dead letters in the group *key*, among the letters that `dead` reads.
        Like `dead`."""
        return await self._see(self.views.dead_ids(name, key))

    async def worker(self, name: str, worker: str) -> WorkerView | None:
        """Read a worker of a queue, and up to 20 of the jobs that it has leased. Returns `None` if
        it is not registered.

        workers.lua, and list.lua for the oldest 400 leased jobs.
        """
        return await self._see(self.views.worker(name, worker))

    async def flows(self) -> tuple[FlowView, ...]:
        """Read the flows, and other groups of queues, with their stages in the order that workers
        have declared. Like `overview`.
        """
        return await self._see(self.views.flows())

    async def runs(
        self,
        flow: str,
        cursor: str = "",
        *,
        state: str = "",
        stage: str = "",
        prefix: str = "",
        newest: bool = False,
    ) -> RunsPage:
        """Read some runs of a flow, from *cursor* of the page before. SCAN of at most 50,000 keys,
        and flow_read.lua.

        It returns only runs in *state* (running, blocked, completed, failed or cancelled) and in
        *stage*, with ids that begin with *prefix*, as far as these are given. A page looks at 1,000
        runs or a few more, and may be empty before the end. It ends with 50 runs, which are in no
        order. With *newest* it has all runs of these 1,000, the newest first.
        """
        return await self._see(self.views.runs(flow, cursor, state, stage, prefix, newest))

    async def run(self, flow: str, id: str) -> RunView | None:
        """Read a run of a flow, or a child of one, with its children. Returns `None` if it is
        unknown by now. flow_read.lua, four times at most, and find.lua for 21 jobs at most.
        """
        return await self._see(self.views.run(flow, id))

    async def close(self) -> None:
        """Close the connections we opened, nothing else."""
        if self._address.executor is not None:
            await self._executor.close()
        self._address.leave()
