"""Tasks under `mypy --strict` and pyright. Wrong ones are in `wrong_tasks.py`. The file is never
run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, assert_type

import redis
import redis.asyncio

from headrace import (
    AsyncReceipt,
    AsyncTask,
    AsyncTasks,
    AsyncWorker,
    Job,
    NewJob,
    Queue,
    Receipt,
    Retry,
    Task,
    Tasks,
    Worker,
)
from headrace.codecs import Compressed

tasks = Tasks("mail")
async_tasks = AsyncTasks("mail", "redis://localhost", codec=Compressed(), max_attempts=5)


@tasks.task(retry=Retry(attempts=5), deadline=30)
def welcome(to: str, *, at: datetime | None = None) -> int:
    return len(to)


@tasks.task
def bare(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


@tasks.task(name="other")
async def coroutine(to: str) -> bytes:
    return to.encode()


@async_tasks.task
def plain(to: str) -> None: ...


@async_tasks.task(priority=1)
async def later(to: str, copies: int = 1) -> str:
    return to * copies


@tasks.cron("0 3 * * *", tz="Europe/Berlin")
def nightly() -> str:
    return "done"


@async_tasks.cron(every=timedelta(minutes=5), missed="skip")
@async_tasks.task(retry=Retry(attempts=1))
async def often() -> int:
    return 5


assert_type(nightly(), str)
assert_type(nightly, Task[[], str, str])
assert_type(welcome("ada", at=None), int)
assert_type(bare(1, 2), list[str])
made: Coroutine[Any, Any, bytes] = coroutine("ada")
assert_type(tasks.queue, Queue[bytes])
assert_type(tasks.job, Job[bytes])


def producing() -> None:
    assert_type(welcome.enqueue("ada", at=datetime.now().astimezone()), Receipt[int])
    assert_type(welcome.enqueue("ada").result(timeout=5), int)
    assert_type(welcome.receipt("id"), Receipt[int])
    assert_type(welcome.receipt("id").result(timeout=5), int)
    assert_type(tasks.result("id", timeout=timedelta(seconds=5)), Any)
    assert_type(
        welcome.options(delay=timedelta(1), id="a", headers={"a": "b"}).enqueue("ada"), Receipt[int]
    )
    assert_type(welcome.options(priority=1).new("ada"), NewJob[bytes])
    welcome.options(unique_for=60, full="block").enqueue("ada")
    bare.enqueue()
    bare.enqueue(1, 2, 3)
    coroutine.enqueue(to="ada")
    assert_type(tasks.enqueue_many([welcome.new("ada"), bare.new(1)]), list[Receipt[Any]])
    lease = tasks.queue.lease()
    if lease is not None:
        lease.complete(then=[welcome.new("ada")])


async def asynchronously() -> None:
    assert_type(await later.enqueue("ada", copies=2), AsyncReceipt[str])
    assert_type(await (await later.enqueue("ada")).result(), str)
    assert_type(await later.options(delay=5, timeout=1).enqueue("ada"), AsyncReceipt[str])
    await async_tasks.enqueue_many([plain.new("ada"), later.new("ben")])
    assert_type(await later("ada"), str)
    plain("ada")
    assert_type(await (await often.enqueue()).result(), int)


def handed_on(
    one: Task[[str], int, int], two: AsyncTask[[str], int, Coroutine[Any, Any, int]]
) -> None:
    one.enqueue("ada")
    two.new("ada")


def around(job: Job, call: Callable[[], Any]) -> Any:
    return call()


def serving(worker: Worker, async_worker: AsyncWorker) -> None:
    assert_type(worker.middleware(around)(Job("1", b"x", "q"), lambda: 5), Any)

    @async_worker.on_start
    async def connect() -> None:
        async_worker.state.pool = 5

    worker.on_stop(lambda: None)
    worker.tasks(tasks)
    async_worker.tasks(async_tasks, concurrency=10, grace=60)


def connecting(client: redis.Redis, async_client: redis.asyncio.Redis) -> None:
    with Tasks("mail", client=client, namespace="other", lease=5) as made:
        assert_type(made, Tasks)
    AsyncTasks("mail", client=async_client)
