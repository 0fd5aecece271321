"""Tasks under both workers. Calls become jobs, and jobs become calls."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from headrace import (
    AsyncTasks,
    AsyncWorker,
    Counts,
    DeadLetter,
    Debounce,
    JobFailed,
    NewJob,
    Queue,
    Replace,
    Retry,
    Tasks,
    as_completed,
)
from headrace.codecs import Compressed, Encrypted
from headrace.errors import CodecError
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]
NOW = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)


@pytest.fixture
def tasks(newest: Server) -> Any:
    with Tasks("q", newest.url) as tasks:
        yield tasks


def declare(tasks: Tasks, kind: str, function: Callable[..., Any], **options: Any) -> Any:
    """Declare *function* for the kind of worker. It is a coroutine function for tasks of
    asyncio."""
    if kind != "tasks":
        return tasks.task(**options)(function)

    async def coroutine(*args: Any, **given: Any) -> Any:
        return function(*args, **given)

    coroutine.__name__ = function.__name__
    coroutine.__annotations__ = function.__annotations__
    coroutine.__wrapped__ = function  # type: ignore[attr-defined]  # its signature
    return tasks.task(**options)(coroutine)


def test_a_call_is_a_job_and_a_job_a_call(work: Work, kind: str, tasks: Tasks) -> None:
    calls: list[Any] = []

    def welcome(to: str, *, at: datetime | None = None) -> int:
        calls.append((to, at, tasks.job.id))
        return len(to)

    def other(numbers: set[int]) -> None:
        calls.append(numbers)

    worker = work()
    worker.worker.tasks(tasks)
    one, two = declare(tasks, kind, welcome), declare(tasks, kind, other)
    first = one.enqueue("ada", at=NOW)
    second = one.options(id="ben").enqueue("ben")
    assert (second.id, second.added) == ("ben", True)
    assert not one.options(id="ben").enqueue("ben").added
    none, third = tasks.enqueue_many([two.new({1, 2}), one.options(id="eve").new("eve!")])
    with worker:
        until(lambda: tasks.queue.counts() == Counts(enqueued=4, completed=4))
    assert sorted(calls, key=str) == sorted(
        [("ada", NOW, first.id), ("ben", None, "ben"), {1, 2}, ("eve!", None, "eve")], key=str
    )
    assert [receipt.result() for receipt in (first, second, none, third)] == [3, 3, None, 4]
    assert tasks.queue.result("eve") == b"4"


def test_results_are_of_their_annotated_types(
    work: Work, kind: str, tasks: Tasks, newest: Server
) -> None:
    def when() -> dict[str, datetime]:
        return {"now": NOW}

    def fails() -> int:
        raise DeadLetter("no")

    worker = work()
    worker.worker.tasks(tasks)
    one, two = declare(tasks, kind, when), declare(tasks, kind, fails)
    with worker:
        assert one.enqueue().result(timeout=20) == {"now": NOW}
        with pytest.raises(JobFailed, match="no"):
            two.enqueue().result(timeout=20)
    assert asyncio.run(_twice(newest.url)) == [None, TimeoutError]


async def _twice(url: str) -> list[Any]:
    """Get a result of another worker, and wait for one that does not come. This is the asynchronous
    twin."""
    async with AsyncTasks("other", url) as tasks:

        @tasks.task
        async def one() -> int | None: ...

        worker = AsyncWorker(url)
        worker.tasks(tasks)
        async with worker:
            first = await (await one.enqueue()).result(timeout=20)
        (late,) = await tasks.enqueue_many([one.new()])
        try:
            return [first, await late.result(timeout=0)]
        except TimeoutError as error:
            return [first, type(error)]


def _when() -> dict[str, datetime]:
    raise NotImplementedError  # nothing runs it: jobs are completed by hand


async def _later() -> dict[str, datetime]:
    raise NotImplementedError


ENCODED = b'{"now":"2026-11-22T12:30:00+00:00"}'
TIMES = {f"time {n}": NOW for n in range(40)}  # so many that it is compressed


@pytest.mark.parametrize(
    "options", [{}, {"history": 10}, {"shards": 3}], ids=["plain", "history", "shards"]
)
def test_the_result_of_a_task_is_had_by_its_id(newest: Server, options: dict[str, Any]) -> None:
    """The caller enqueued nothing. The task types the result, and without it the job's own record
    does."""
    with Tasks("q", newest.url, **options) as there, Tasks("q", newest.url, **options) as here:
        enqueued = there.task(_when).enqueue()
        when = here.task(_when)
        receipt = when.receipt(enqueued.id)
        assert (receipt.id, receipt.added) == (enqueued.id, False)
        for ask in (receipt.result, lambda timeout: here.result(enqueued.id, timeout)):
            with pytest.raises(TimeoutError, match=re.escape(enqueued.id)):
                ask(0)
        assert there.queue.lease().complete(ENCODED)
        assert receipt.result() == when.receipt(enqueued.id).result(timeout=5) == {"now": NOW}
        untyped = {"now": "2026-11-22T12:30:00+00:00"}  # by now only a history knows its task
        known = {"now": NOW} if "history" in options else untyped
        assert here.result(enqueued.id) == known


@pytest.mark.parametrize("options", [{}, {"history": 10}], ids=["plain", "history"])
def test_a_wait_for_the_result_of_an_id_learns_its_task(
    newest: Server, options: dict[str, Any]
) -> None:
    with (
        Tasks("q", newest.url, **options) as tasks,
        ThreadPoolExecutor(1) as pool,
        redis.Redis.from_url(newest.url) as client,
    ):
        receipt = tasks.task(_when).enqueue()
        waiting = pool.submit(tasks.result, receipt.id)
        until(client.pubsub_channels, "it has looked, and waits")
        assert tasks.queue.lease().complete(ENCODED)
        assert waiting.result(60) == {"now": NOW}


def test_the_result_of_an_async_task_is_had_by_its_id(newest: Server) -> None:
    async def both() -> None:
        async with AsyncTasks("q", newest.url) as tasks:
            later = tasks.task(_later)
            enqueued = await later.enqueue()
            receipt = later.receipt(enqueued.id)
            with pytest.raises(TimeoutError):
                await receipt.result(0)
            with pytest.raises(TimeoutError):
                await tasks.result(enqueued.id, timeout=0)
            waiting = asyncio.create_task(tasks.result(enqueued.id))
            await asyncio.to_thread(until, client.pubsub_channels, "it has looked, and waits")
            lease = await tasks.queue.lease()
            assert await lease.complete(ENCODED)
            assert await waiting == await receipt == {"now": NOW}
            assert await tasks.result(enqueued.id) == {"now": "2026-11-22T12:30:00+00:00"}

    with redis.Redis.from_url(newest.url) as client:
        asyncio.run(both())


@pytest.mark.parametrize(
    "codec",
    [
        Compressed(threshold=0),
        Encrypted(None, {"k": bytes(32)}),
        Encrypted(Compressed(threshold=0), {"k": bytes(32)}),
    ],
    ids=["compressed", "encrypted", "both"],
)
def test_a_result_comes_back_through_the_codec(
    work: Work, kind: str, newest: Server, codec: Any
) -> None:
    """The result is read by the receipt of the call, by an id, by receipts as they end, and of many
    jobs."""

    def when() -> dict[str, datetime]:
        return TIMES

    worker = work()
    with Tasks("q", newest.url, codec=codec) as tasks, redis.Redis.from_url(newest.url) as client:
        worker.worker.tasks(tasks)
        task = declare(tasks, kind, when)
        receipts = [task.enqueue(), *tasks.enqueue_many([task.new()])]
        with worker:
            assert [receipt.result(60) for receipt in receipts] == [TIMES] * 2
        name = receipts[0].id
        assert task.receipt(name).result() == TIMES
        assert [job.result() for job in as_completed(receipts)] == [TIMES] * 2
        assert tasks.result(name) == dict.fromkeys(TIMES, "2026-11-22T12:30:00+00:00")
        assert b'":"2026' not in client.get(f"headrace:{{q}}:q:result:{name}")
    asyncio.run(_by_id(newest.url, codec, name))


async def _by_id(url: str, codec: Any, name: str) -> None:
    async with AsyncTasks("q", url, codec=codec) as tasks:
        assert await tasks.task(_later).receipt(name) == TIMES
        assert await tasks.result(name) == dict.fromkeys(TIMES, "2026-11-22T12:30:00+00:00")


def test_why_an_id_has_no_result(tasks: Tasks) -> None:
    when = tasks.task(_when)
    names = ["dead", "none", "bytes", "wrong"]
    tasks.enqueue_many([when.options(id=name).new() for name in names])
    dead, none, some, wrong = tasks.queue.lease_many(4)
    assert dead.dead_letter("no")
    assert none.complete()
    assert some.complete(b"\xff")
    assert wrong.complete(b"5")
    for ask in (tasks.result, lambda name: when.receipt(name).result()):
        with pytest.raises(JobFailed, match="no"):
            ask("dead")
        assert ask("none") is ask("nobody") is None
        with pytest.raises(CodecError, match=r"'bytes' does not decode: .*no JSON"):
            ask("bytes")
    assert tasks.result("wrong") == 5
    with pytest.raises(CodecError, match="'wrong' does not decode"):
        when.receipt("wrong").result()
    for refused in (tasks.result, when.receipt):
        with pytest.raises(ValueError, match="id"):
            refused("")
        with pytest.raises(TypeError, match="id"):
            refused(5)


def test_nothing_is_sent_of_a_wrong_call(tasks: Tasks) -> None:
    @tasks.task
    def welcome(to: str) -> None: ...

    for args, options in [((), {}), ((5,), {}), (("ada",), {"more": 1})]:
        with pytest.raises(TypeError, match="task 'welcome'"):
            welcome.enqueue(*args, **options)
    with pytest.raises(ValueError, match="priority"):
        welcome.options(priority=3).enqueue("ada")
    assert tasks.queue.counts() == Counts()


def test_calls_under_conditions(tasks: Tasks) -> None:
    """The conditions are options of a queue's enqueue, by `options`."""

    @tasks.task
    def welcome(to: str) -> None: ...

    once = welcome.options(id="a", if_exists=Debounce(60, max_wait=90), full="raise")
    assert once.enqueue("ada").outcome == "added"
    # within the same millisecond there is nothing to move
    until(lambda: once.enqueue("ben").outcome == "moved")
    assert welcome.options(id="a", if_exists=Replace()).enqueue("cyd").outcome == "replaced"
    assert [job.job.payload for job in tasks.queue.admin.waiting()] == [b'{"to":"cyd"}']
    with pytest.raises(TypeError, match="unexpected keyword argument 'bounce'"):
        welcome.options(bounce=5)  # type: ignore[call-arg]


def test_each_task_has_its_own_policy(work: Work, kind: str, tasks: Tasks) -> None:
    def fails(n: int) -> None:
        raise LookupError(n)

    worker = work()
    worker.worker.tasks(tasks, concurrency=2)
    twice = declare(tasks, kind, fails, name="twice", retry=Retry(attempts=2, wait=0))
    once = declare(tasks, kind, fails, name="once", retry=Retry(attempts=1))
    for task in (twice, once):
        task.options(id=task.name).enqueue(1)
    with worker:
        until(lambda: tasks.queue.counts().dead == 2)
    assert {
        letter.job.id: (letter.job.attempt, letter.reason) for letter in tasks.queue.admin.dead()
    } == {
        "twice": (2, "LookupError: 1"),
        "once": (1, "LookupError: 1"),
    }


def test_what_changed_in_flight_dies_with_its_reason(work: Work, kind: str, tasks: Tasks) -> None:
    """Arguments of another version fail at the first attempt. An added parameter with a default
    does not."""

    def welcome(to: str, loud: bool = False) -> None: ...

    worker = work()
    worker.worker.tasks(tasks, grace=0)
    declare(tasks, kind, welcome)
    of = {"kind": "welcome"}
    for name, data in {
        "as before": b'{"to":"ada"}',
        "renamed": b'{"whom":"ada"}',
        "of another type": b'{"to":5}',
        "no json": b"ada",
    }.items():
        tasks.queue.enqueue(data, id=name, headers=of)
    tasks.queue.enqueue(b"{}", id="unknown", headers={"kind": "goodbye"})
    with worker:
        until(lambda: tasks.queue.counts() == Counts(enqueued=5, completed=1, dead=4))
    reasons = {
        letter.job.id: (letter.reason or "", letter.job.attempt)
        for letter in tasks.queue.admin.dead()
    }
    assert reasons == {
        "renamed": (
            "task 'welcome' does not take these arguments: an argument 'whom', which it does not take here",
            1,
        ),
        "of another type": (
            "task 'welcome' does not take these arguments: to: must be str, not integer",
            1,
        ),
        "no json": (reasons["no json"][0], 1),
        "unknown": ("no handler for jobs of kind 'goodbye': this worker knows 'welcome'", 1),
    }
    assert "no JSON: JSONDecodeError" in reasons["no json"][0]


def test_a_result_of_another_type_fails_nothing(
    work: Work, kind: str, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    worker = work()
    worker.worker.tasks(tasks)
    receipt = declare(tasks, kind, wrong).enqueue()
    with worker:
        until(lambda: tasks.queue.counts().completed == 1)
    assert tasks.queue.result(receipt.id) is None
    assert "result: must be int, not str" in caplog.text


def test_beside_handlers_of_its_queue(
    work: Work, kind: str, tasks: Tasks, record: Recorder
) -> None:
    """Tasks, a handler of another kind, and one for the rest share one queue."""

    def welcome() -> bytes:
        return b"\xff"

    worker = work()

    @worker.handler("q", kind="plain")
    def plain(job: Any) -> bytes:
        return job.payload

    worker.worker.tasks(tasks)
    receipt = declare(tasks, kind, welcome).enqueue()
    tasks.queue.enqueue(b"as it is", id="plain", headers={"kind": "plain"})
    with worker:
        until(lambda: tasks.queue.counts().completed == 2)
    assert tasks.queue.result("plain") == b"as it is"
    assert tasks.queue.result(receipt.id) == b'"/w=="'


def test_a_task_as_a_follow_up_of_another_queue(work: Work, kind: str, newest: Server) -> None:
    """The follow-up uses its own codec, whatever the other queue has."""
    seen: list[str] = []

    def welcome(to: str) -> None:
        seen.append(to)

    worker = work()
    with (
        Tasks("g/tasks", newest.url, codec=Compressed(threshold=0)) as tasks,
        Queue("g/first", url=newest.url) as first,
    ):
        worker.worker.tasks(tasks)
        task = declare(tasks, kind, welcome)
        first.enqueue(b"x")
        lease = first.lease()
        assert lease is not None
        assert lease.complete(then=[task.new("ada"), NewJob(b"y")])
        with worker:
            until(lambda: seen == ["ada"])
            until(lambda: tasks.queue.counts().completed == 1)


def test_the_job_that_runs_is_known_to_its_own_thread_only(
    work: Work, kind: str, tasks: Tasks
) -> None:
    both = threading.Barrier(2, timeout=20)
    seen: dict[str, str] = {}

    def name(mine: str) -> None:
        if kind != "tasks":
            both.wait()
        seen[mine] = tasks.job.id

    worker = work()
    worker.worker.tasks(tasks)
    task = declare(tasks, kind, name)
    for mine in "ab":
        task.options(id=mine).enqueue(mine)
    with worker:
        until(lambda: tasks.queue.counts().completed == 2)
    assert seen == {"a": "a", "b": "b"}
