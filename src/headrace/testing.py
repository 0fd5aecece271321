"""Helpers for testing your own handlers against a real, private server (extra `embedded`), with any
test runner.

A plugin, which pytest finds by itself, has the fixtures `headrace_server`, `headrace_url`,
`headrace_run` and `headrace_travel`. They call the functions here.

    def test_sending(headrace_url, headrace_run):
        with Queue("emails", url=headrace_url) as queue:
            queue.enqueue(b"hello")
            headrace_run(app.worker)
            assert queue.counts().completed == 1
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from headrace._api.aio.colour import AsyncClosing
from headrace._api.aio.queue import AsyncQueue
from headrace._api.aio.worker import AsyncWorker
from headrace._api.replay import Replayed, Stage, recordings
from headrace._api.sync.colour import Closing
from headrace._api.sync.queue import Queue
from headrace._api.sync.worker import Worker
from headrace._embedded.server import EmbeddedServer
from headrace._model.recording import Recording
from headrace._model.state import Counts
from headrace._net.base.address import OPENED, Address, Connected
from headrace.errors import RunLost, RunSuspended, Verdict
from headrace.platform import InnerQueue

__all__ = [
    "Replayed",
    "emptied",
    "private_server",
    "recorded",
    "replay",
    "run",
    "run_until_empty",
    "run_until_empty_async",
    "travel",
]
POLL_S = 0.005  # seconds between two checks whether a queue is empty
# keys of a queue whose scores are moments
MOMENTS = ("asleep", "delayed", "leases", "limited", "resting", "ticks")
EARLIER = """
local rows = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  if rows[i + 1] ~= 'inf' then redis.call('ZADD', KEYS[1], string.format('%.0f', rows[i + 1] - ARGV[1]), rows[i]) end
end
"""
RECORDS_EARLIER = """
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local record = string.match(rows[i], '\t%d+$') and cmsgpack.unpack(rows[i + 1])
  if record and record[4] == 0 and record[7] > 0 then
    record[7] = math.max(1, record[7] - ARGV[1])
    redis.call('HSET', KEYS[1], rows[i], cmsgpack.pack(record))
  end
  local run = not string.find(rows[i], '\t', 1, true) and cmsgpack.unpack(rows[i + 1])
  if run and type(run[5]) == 'table' and run[5].held then
    run[5].held = run[5].held - ARGV[1]
    redis.call('HSET', KEYS[1], rows[i], cmsgpack.pack(run))
  end
end
"""
PINNED_EARLIER = """
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local due, build = string.match(rows[i + 1], '^(%d+)( .*)$')
  if due then redis.call('HSET', KEYS[1], rows[i], string.format('%.0f', due - ARGV[1]) .. build) end
end
"""


@contextmanager
def private_server(folder: Path) -> Generator[EmbeddedServer, None, None]:
    """Yield a private server with its data in *folder*. It stops with the last of its users."""
    server = EmbeddedServer.join(folder)
    try:
        yield server
    finally:
        server.leave()


def emptied(server: EmbeddedServer) -> str:
    """Empty a private server (FLUSHALL), and return its URL."""
    with redis.Redis(unix_socket_path=server.path) as client:
        client.execute_command("FLUSHALL")  # pyright: ignore[reportUnknownMemberType]
    return f"unix://{server.path}"


def run(
    worker: Worker | AsyncWorker,
    url: str,
    *,
    until_empty: bool = True,
    timeout: float = 30.0,
    skip_sleeps: bool = False,
) -> None:
    """Run *worker*, your application's own, on the server at *url* until its queues are empty.

    The server that it was made for is not touched. Raises the first exception of a handler, once
    the worker has stopped. The handler's job is settled as its `Retry` says. Raises `TimeoutError`
    after *timeout* seconds. Its message has the number of jobs left, and the time at which a later
    one is due. Without *until_empty* it does not wait for jobs that are due later, such as retries
    and runs that sleep, and for blocked jobs, such as runs that wait for a signal. With
    *skip_sleeps* each `job.sleep` is over at once. An `AsyncWorker` runs on an event loop of its
    own, in another thread if this one has one. At the end it closes queues and flows that handlers
    have opened. They connect anew when they are used again.
    """
    raised: list[BaseException] = []
    own = worker._own  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    queues = [
        Queue(
            name,
            url=url,
            namespace=worker.namespace,
            priorities=given.priorities,
            shards=given.shards,
        )
        for name, handler in worker.handlers.items()
        for given in [handler.queue_settings]
    ]
    deadline = time.monotonic() + timeout

    def over() -> bool:
        done = _declared(worker) and not _to_run(queues, until_empty)
        return bool(raised) or done or time.monotonic() > deadline

    worker._own = Address(url)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    try:
        with _watched(worker, raised.append, skip_sleeps=skip_sleeps):
            if isinstance(worker, Worker):
                before = set(OPENED)
                try:
                    with worker:
                        while not over():
                            time.sleep(POLL_S)
                finally:
                    for one in _opened(before):
                        one.close()
            else:
                _on_own_loop(_until(worker, over))
        left = _to_run(queues, until_empty)
        later = _later(queues) if left and until_empty else ""
    finally:
        worker._own = own  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        for queue in queues:
            queue.close()
    if raised:
        raise raised[0]
    if left:
        raise TimeoutError(f"after {timeout:g} s there are still {left} jobs to run{later}")


def travel(url: str, seconds: float) -> None:
    """Let *seconds* pass for the queues of the server at *url*.

    Delayed jobs, ticks of schedules, ends of leases with their own duration, turns under rate
    limits, and ends of sleeps and waits are due so much earlier. Other leases, results and the
    deadlines of workers keep to the server's own clock.
    """
    client: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]
    with client:
        for key in client.scan_iter("*:{*}:*", count=1000, _type="zset"):
            if bytes(key).rpartition(b":")[2].decode() in MOMENTS:
                client.eval(EARLIER, 1, key, int(seconds * 1000))
        for key in client.scan_iter("*:{*}:*:steps", count=1000, _type="hash"):
            client.eval(RECORDS_EARLIER, 1, key, int(seconds * 1000))
        for key in client.scan_iter("*:{*}:*:pinned", count=1000, _type="hash"):
            client.eval(PINNED_EARLIER, 1, key, int(seconds * 1000))


async def _until(worker: AsyncWorker, over: Callable[[], bool]) -> None:
    before = set(OPENED)
    try:
        async with worker:
            while not await asyncio.to_thread(over):  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(POLL_S)
    finally:
        for one in _opened(before):
            one.close()
        for one in _opened(before, AsyncClosing):
            await one.close()


def _opened(before: set[Connected], kind: type = Closing) -> list[Any]:
    return [one for one in set(OPENED) - before if isinstance(one, kind)]


def _on_own_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1, "headrace-testing") as other:
        other.submit(asyncio.run, coroutine).result()


@contextmanager
def _watched(
    worker: Worker | AsyncWorker, collect: Callable[[BaseException], object], *, skip_sleeps: bool
) -> Generator[None, None, None]:
    """Give *worker* middleware that collects the exceptions of its handlers, unless they are
    verdicts or end a run.
    """

    @contextmanager
    def watched(job: Any) -> Generator[None, None, None]:
        if skip_sleeps:
            _skip_sleeps(job)
        try:
            yield
        except BaseException as error:
            if not isinstance(
                error, (Verdict, RunLost, RunSuspended, asyncio.CancelledError, GeneratorExit)
            ):
                collect(error)
            raise

    def plain(job: Any, call: Callable[[], Any]) -> Any:
        with watched(job):
            return call()

    async def awaited(job: Any, call: Callable[[], Any]) -> Any:
        with watched(job):
            return await call()

    inner: Any = worker
    around, own = inner._around, inner._own  # noqa: SLF001
    middleware = plain if isinstance(worker, Worker) else awaited
    inner._around = [middleware, *around]  # noqa: SLF001
    # its tasks may name the application's server
    inner._own = Address(own.url, own.client, instead_of=Address(None))  # noqa: SLF001
    try:
        yield
    finally:
        inner._around, inner._own = around, own  # noqa: SLF001


def _skip_sleeps(job: Any) -> None:
    make: Any = getattr(job, "_steps", None)

    def sleepless(job: Any) -> Any:
        steps = make(job)
        steps.skip_sleeps()
        return steps

    if callable(make):
        object.__setattr__(job, "_steps", sleepless)


def _declared(worker: Worker | AsyncWorker) -> bool:
    engine = worker._running  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    some = [] if engine is None else [one.recurring for one in engine.lifecycle.consumers]
    return all(one is None or one.declared_as for one in some)


def _to_run(queues: Sequence[Queue], later: bool) -> int:
    """Count the jobs left to run, which are jobs in the queue, and due ticks of schedules.

    Without *later*, jobs that are due later are left out, and jobs that wait for a signal or for
    others.
    """
    now = time.time()
    ticks = sum(
        one.next_due <= now and not one.paused
        for queue in queues
        for one in queue.admin.schedules()
    )
    out = 0
    for queue in () if later else queues:
        states = [*queue.admin.delayed(), *queue.admin.blocked()]
        out += sum(one.due is None or one.due > now for one in states)
    return ticks + _jobs_left([queue.counts() for queue in queues]) - out


def _later(queues: Sequence[Queue]) -> str:
    now = time.time()
    states = [one for queue in queues for one in (*queue.admin.delayed(), *queue.admin.blocked())]
    first = min(states, key=lambda one: one.due or math.inf, default=None)
    if first is None or (first.due is not None and first.due <= now):
        return ""
    when = (
        "waits for a signal, or for other jobs"
        if first.due is None
        else f"is due in {first.due - now:,.0f} s"
    )
    return (
        f"; job {first.job.id!r} of queue {first.job.queue!r} {when}: with until_empty=False a run ends without such "
        "jobs, headrace_travel(seconds) lets the time pass, and skip_sleeps=True ends each sleep at once"
    )


def run_until_empty(
    worker: Worker, *queues: Queue, timeout: float = 10.0, skip_sleeps: bool = False
) -> None:
    """Run *worker* until nothing is waiting, leased or delayed in *queues*.

    With *skip_sleeps* each `job.sleep` is over at once. Raises `TimeoutError`, with the number of
    jobs left, after *timeout* seconds, and any error that ended the worker.
    """
    deadline = time.monotonic() + timeout
    with _watched(worker, id, skip_sleeps=skip_sleeps), worker:
        while left := _jobs_left([queue.counts() for queue in queues]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s there are still {left} jobs to run")
            time.sleep(POLL_S)


async def run_until_empty_async(
    worker: AsyncWorker, *queues: AsyncQueue, timeout: float = 10.0, skip_sleeps: bool = False
) -> None:
    """Run *worker* until nothing is waiting, leased or delayed in *queues*.

    With *skip_sleeps* each `job.sleep` is over at once. Raises `TimeoutError`, with the number of
    jobs left, after *timeout* seconds, and any error that ended the worker.
    """
    deadline = time.monotonic() + timeout
    with _watched(worker, id, skip_sleeps=skip_sleeps):
        async with worker:
            while left := _jobs_left([await queue.counts() for queue in queues]):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"after {timeout:g} s there are still {left} jobs to run")
                await asyncio.sleep(POLL_S)


def recorded(queue: Queue[Any]) -> Generator[str, None, None]:
    """Yield the runs of *queue* that are suspended or running, each as a line of JSON for `replay`.

    `headrace runs export` writes the same lines. Payloads and values are as the queue's codec has
    written them. Two scripts for each 20 runs (list.lua, and steps.lua for each run).
    """
    plain = InnerQueue(queue).raw(Queue)
    for one in recordings(plain, time.time()):
        yield one.line


def replay(
    worker: Worker | AsyncWorker, record: str | bytes, *, removed: Sequence[str] = ()
) -> Replayed:
    """Tell whether a recorded run would go on with the handlers of *worker*, without a server.

    *record* is a line of `recorded`. The handler is called with the job of that run. Its steps,
    sleeps and waits answer from the records, and no function of a step is called. The first name
    without a record ends the replay. Hooks and middleware of the worker do not run, and code of the
    handler between its steps does.

    A run would not go on if its payload or a value does not decode, if a name was recorded as
    another kind, or if the handler raises an error of its own. It would not go on either if a name
    that was recorded is gone from the code, which comes to a name without a record. A step may have
    been renamed then, and would run again. Names that were removed on purpose are *removed*. Raises
    `ConfigurationError` for a line that can't be read, and for a stage of a flow.
    """
    return Stage(worker, Recording.of(record), removed).replay()


def _jobs_left(counts: list[Counts]) -> int:
    return sum(count.present - count.dead for count in counts)
