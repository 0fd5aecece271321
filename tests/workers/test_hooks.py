"""Hooks of a worker's start and stop, and middleware around each run of a handler."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from headrace import (
    AsyncWorker,
    ConfigurationError,
    Counts,
    DeadLetter,
    Job,
    Queue,
    Retry,
    Tasks,
    Worker,
)
from headrace.testing import run
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.facts import each
from tests.support.servers import Server

Work = Callable[..., Running]
WHERE: ContextVar[str] = ContextVar("where", default="nowhere")


def coloured(kind: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a hook for the kind of worker, asynchronous where that is possible."""

    async def hook() -> Any:
        await asyncio.sleep(0)
        return function()

    return function if kind == "threads" else hook


def around(
    kind: str, enter: Callable[[Any], Any], leave: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return middleware for the kind of worker. *leave* changes a result or an exception."""

    def plain(job: Any, call: Callable[[], Any]) -> Any:
        enter(job)
        try:
            return leave(call())
        except Exception as error:
            return leave(error)

    async def coroutine(job: Any, call: Callable[[], Any]) -> Any:
        enter(job)
        try:
            return leave(await call())
        except Exception as error:
            return leave(error)

    return plain if kind == "threads" else coroutine


# -- hooks -----------------------------------------------------------------------------------------


def test_hooks_are_called_around_all_jobs(work: Work, kind: str, queue: Queue) -> None:
    """Start hooks run in order before the first job, and stop hooks in reverse order after the
    last. Handlers get their values.
    """
    running = work()
    worker, said = running.worker, list[str]()

    def opened() -> None:
        worker.state.pool = "a pool"
        said.append("open")

    worker.on_start(coloured(kind, opened))
    worker.on_start(lambda: said.append("more"))
    worker.on_stop(coloured(kind, lambda: said.append("close")))
    worker.on_stop(lambda: said.append("less"))

    @running.handler("q")
    def body(job: Job) -> Any:
        yield 0.05
        said.append(worker.state.pool)

    queue.enqueue(b"x")
    for _ in range(2):  # at each run
        with running:
            until(lambda: "a pool" in said)
        assert said == ["open", "more", "a pool", "less", "close"]
        said.clear()
        queue.enqueue(b"x")


def test_hooks_of_a_stop(work: Work, kind: str, queue: Queue) -> None:
    """They run once, however often the worker is stopped, and after the running handlers."""
    running, said = work(), list[str]()
    running.worker.on_stop(lambda: said.append("stopped"))

    @running.handler("q")
    def body(job: Job) -> Any:
        said.append("begun")
        yield 0.2
        said.append("done")

    queue.enqueue(b"x")
    running.start()
    until(lambda: said == ["begun"])
    running.stop()
    running.stop()
    running.close()
    assert said == ["begun", "done", "stopped"]


def test_a_start_that_fails_ends_the_worker(work: Work, kind: str, queue: Queue) -> None:
    """No job is leased. Stop hooks may undo the work of the start hooks."""
    running, said = work(), list[str]()

    def broken() -> None:
        raise LookupError("no pool")

    running.worker.on_start(lambda: said.append("first"))
    running.worker.on_start(coloured(kind, broken))
    running.worker.on_start(lambda: said.append("never"))
    running.worker.on_stop(lambda: said.append("undone"))
    running.handler("q")(lambda job: said.append("never"))
    queue.enqueue(b"x")
    with pytest.raises(LookupError, match="no pool"):
        running.worker.run()
    assert said == ["first", "undone"]
    assert queue.admin.workers() == []
    assert queue.counts().waiting == 1


def test_a_stop_that_fails_is_raised_and_stops_no_other(
    work: Work, kind: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    running, said = work(), list[str]()

    def broken() -> None:
        raise LookupError("no pool")

    running.worker.on_stop(lambda: said.append("last"))
    running.worker.on_stop(coloured(kind, broken))
    running.handler("q")(lambda job: None)
    running.start()
    with pytest.raises(LookupError, match="no pool"):
        running.close()
    assert said == ["last"]
    assert "hook_failed" in caplog.text
    assert queue.admin.workers() == []


def test_a_second_start_while_hooks_run(newest: Server) -> None:
    async def story() -> None:
        worker = AsyncWorker(newest.url)
        worker.handler("q")(print)
        begun, go = asyncio.Event(), asyncio.Event()

        @worker.on_start
        async def slow() -> None:
            begun.set()
            await go.wait()

        first = asyncio.create_task(worker.serve())
        await begun.wait()
        with pytest.raises(RuntimeError, match="running already"):
            await worker.serve()
        go.set()
        while worker._running is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await worker.stop()
        await first

    asyncio.run(story())


@each("hook", ["on_start", "on_stop"])
def test_hooks_that_are_refused(hook: str) -> None:
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match=f"{hook} takes a function"):
        getattr(AsyncWorker(), hook)("f")
    with pytest.raises(ConfigurationError, match="is async: give it to an AsyncWorker"):
        getattr(Worker(), hook)(coroutine)
    worker = AsyncWorker("redis://127.0.0.1:1/0")
    assert getattr(worker, hook)(coroutine) is coroutine
    worker.handler("q")(print)
    with pytest.raises(ConfigurationError, match=r"start\(\) can't await hooks"):
        worker.start()


# -- middleware ------------------------------------------------------------------------------------


def test_middleware_nests_in_order(work: Work, kind: str, queue: Queue) -> None:
    """Middleware may change results. The handler sees its context variables in any thread."""
    running, said = work(), list[str]()
    where: list[str] = []

    def enter(name: str) -> Callable[[Any], None]:
        def entered(job: Job) -> None:
            WHERE.set(f"{WHERE.get()} {name}")
            said.append(f"{name} {job.payload.decode()}")

        return entered

    for name in ("outer", "inner"):
        running.worker.middleware(
            around(kind, enter(name), lambda result, name=name: result + name.encode())
        )

    @running.handler("q", concurrency=1)
    def body(job: Job) -> bytes:
        where.append(WHERE.get())
        return b"result "

    receipt = queue.enqueue(b"x")
    with running:
        assert receipt.result(timeout=20) == b"result innerouter"
    assert said == ["outer x", "inner x"]
    assert where == ["nowhere outer inner"]


@pytest.mark.parametrize("with_middleware", [False, True])
def test_no_run_sees_the_context_of_another(
    work: Work, kind: str, queue: Queue, with_middleware: bool
) -> None:
    """Each run begins with the context in which the worker was started, including the decimal
    context. So do stop hooks.
    """
    running = work()
    seen: list[tuple[str, int]] = []

    def look(_: object = None) -> None:
        seen.append((WHERE.get(), decimal.getcontext().prec))

    def spoil(argument: Any) -> Any:
        WHERE.set("of another job")
        decimal.getcontext().prec = 3
        return argument

    @running.worker.on_start
    def begin() -> None:
        WHERE.set("started")
        decimal.getcontext().prec = 11

    running.worker.on_stop(look)
    if with_middleware:
        running.worker.middleware(around(kind, look, spoil))

    @running.handler("q", concurrency=2)
    def body(job: Job) -> None:
        look()
        spoil(job)

    def story() -> None:
        with running:
            for number in range(1, 21):
                queue.enqueue(b"x")
                until(lambda number=number: queue.counts().completed == number)  # type: ignore[misc]
            queue.enqueue_many([b"y"] * 20)
            until(lambda: queue.counts().completed == 40)

    copy_context().run(story)
    assert len(seen) == 41 + 40 * with_middleware
    assert set(seen) == {("started", 11)}


def test_exceptions_through_middleware_are_the_handler_s(
    work: Work, kind: str, queue: Queue
) -> None:
    running = work()
    caught: list[str] = []

    def again(result: Any) -> Any:
        caught.append(type(result).__name__)
        if isinstance(result, LookupError):
            raise DeadLetter("not found")
        if isinstance(result, Exception):
            raise result
        return result

    def refuse(job: Job) -> None:
        if job.payload == b"refused":
            raise PermissionError("not you")

    running.worker.middleware(around(kind, refuse, again))

    @running.handler("q", retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> Any:
        if job.payload == b"lookup":
            raise LookupError
        if job.payload == b"other":
            raise OSError("broken")

    for payload in (b"lookup", b"other", b"refused", b"fine"):
        queue.enqueue(payload, id=payload.decode())
    with running:
        until(lambda: queue.counts() == Counts(enqueued=4, completed=1, dead=3))
    assert {
        letter.job.id: (letter.reason, letter.job.attempt) for letter in queue.admin.dead()
    } == {
        "lookup": ("not found", 1),
        "other": ("OSError: broken", 2),
        "refused": ("PermissionError: not you", 2),
    }
    assert sorted(caught) == ["LookupError", "NoneType", "OSError", "OSError"]


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "inside async"])
def test_plain_middleware_of_an_async_worker(newest: Server, queue: Queue, traced: bool) -> None:
    """It surrounds plain functions inside async middleware, with the thread and the context
    variables of each."""
    worker, said = AsyncWorker(newest.url), list[tuple[str, bool, str]]()

    def note(what: str) -> None:
        said.append((what, threading.current_thread() is threading.main_thread(), WHERE.get()))

    @worker.middleware
    def inner(job: Job, call: Callable[[], Any]) -> Any:
        note("enter")
        WHERE.set(f"{WHERE.get()} inner")
        thread = threading.get_ident()
        try:
            result = call()
            assert (thread, result) == (threads[-1], b"plain")
        finally:
            note("leave")
        return result + b"!"

    if traced:

        @worker.middleware
        async def outer(job: Job, call: Callable[[], Any]) -> Any:
            WHERE.set("outer")
            return await call()

    threads: list[int] = []

    @worker.handler("q", kind="plain")
    def plain(job: Job) -> bytes:
        threads.append(threading.get_ident())
        note("plain")
        return b"plain"

    @worker.handler("q", kind="async")
    async def coroutine(job: Job) -> bytes:
        note("async")
        return b"async"

    async def story() -> list[Any]:
        receipts = [queue.enqueue(b"x", headers={"kind": kind}) for kind in ("plain", "async")]
        async with worker:
            return [await asyncio.to_thread(one.result, timeout=20) for one in receipts]

    assert asyncio.run(story()) == [b"plain!", b"async"]
    where = "outer" if traced else "nowhere"
    assert [one for one in said if one[0] != "async"] == [
        ("enter", False, where), ("plain", False, f"{where} inner"), ("leave", False, f"{where} inner"),
    ]  # fmt: skip
    assert [one for one in said if one[0] == "async"] == [("async", True, where)]


def test_plain_middleware_around_nothing_is_refused(newest: Server) -> None:
    """An async worker of coroutines would never call it."""
    worker = AsyncWorker(newest.url)

    @worker.middleware
    def plain(job: Job, call: Callable[[], Any]) -> Any:
        return call()

    @worker.handler("q")
    async def coroutine(job: Job) -> None: ...

    with pytest.raises(ConfigurationError, match=r"plain is a plain def.*make it async"):
        worker.run()


def test_what_middleware_swallows_is_complete(work: Work, kind: str, queue: Queue) -> None:
    running = work()
    running.worker.middleware(around(kind, lambda job: None, lambda result: b"instead"))

    @running.handler("q")
    def body(job: Job) -> None:
        raise LookupError

    receipt = queue.enqueue(b"x")
    with running:
        assert receipt.result(timeout=20) == b"instead"


def test_batches_and_kinds_and_tasks_have_it_too(
    work: Work, kind: str, newest: Server, queue: Queue
) -> None:
    """Middleware is called once for a batch, with the sequence of its jobs. For a task it sees the
    function's return value.
    """
    running = work()
    seen: list[Any] = []
    results: list[Any] = []

    def note(result: Any) -> Any:
        results.append(result)
        return result

    running.worker.middleware(around(kind, seen.append, note))
    batches: list[int] = []

    @running.batch_handler("batches", max_size=2, max_wait=5)
    def ingest(jobs: Sequence[Job]) -> None:
        batches.append(len(jobs))

    @running.handler("q", kind="a")
    def a(job: Job) -> bytes:
        return b"a"

    with Tasks("tasks", newest.url) as tasks, Queue("batches", url=newest.url) as many:
        running.worker.tasks(tasks)

        @tasks.task
        def twice(n: int) -> int:
            return 2 * n

        if kind == "tasks":

            @tasks.task(name="async")
            async def thrice(n: int) -> int:
                return 3 * n

        else:
            thrice = tasks.task(name="other")(lambda n: 3 * n)  # type: ignore[assignment]
        many.enqueue_many([b"1", b"2"])
        with running:
            assert twice.enqueue(4).result(timeout=20) == 8
            assert thrice.enqueue(4).result(timeout=20) == 12
            assert queue.enqueue(b"x", headers={"kind": "a"}).result(timeout=20) == b"a"
            until(lambda: many.counts().completed == 2)
    assert batches == [2]
    sequences = [one for one in seen if not isinstance(one, Job)]
    assert [[job.payload for job in jobs] for jobs in sequences] == [[b"1", b"2"]]
    assert sorted(results, key=str) == sorted([8, 12, b"a", None], key=str)


def test_a_deadline_is_inside(work: Work, kind: str, queue: Queue, gate: threading.Event) -> None:
    """Middleware sees the cancellation of a coroutine. A thread's job is settled, and the thread is
    told."""
    running = work()
    seen: list[str] = []

    def note(result: Any) -> Any:
        seen.append(type(result).__name__)
        if isinstance(result, Exception):
            raise result

    running.worker.middleware(around(kind, lambda job: None, note))

    @running.handler("q", deadline=0.2, retry=Retry(attempts=1))
    def body(job: Job) -> Any:
        if kind == "tasks":
            yield gate
        else:
            while not job.lost:
                yield 0.01

    queue.enqueue(b"x")
    with running:
        until(lambda: queue.counts().dead == 1)
        (letter,) = queue.admin.dead()
        assert "past its deadline of 0.2 s" in (letter.reason or "")
        until(lambda: bool(seen))
    assert seen == ["TimeoutError" if kind == "tasks" else "NoneType"]


def test_a_hung_thread_keeps_its_slot(newest: Server, queue: Queue, gate: threading.Event) -> None:
    """A plain function in an asynchronous worker can't be cancelled, nor can its middleware."""
    running = Running("plain", url=newest.url)
    running.worker.middleware(around("plain", lambda job: None, lambda result: result))
    started: list[bytes] = []

    @running.handler("q", concurrency=1, deadline=0.2, retry=Retry(attempts=1))
    def body(job: Job) -> Any:
        started.append(job.payload)
        if job.payload == b"hangs":
            yield gate

    queue.enqueue(b"hangs")
    with running:
        until(lambda: queue.counts().dead == 1)
        queue.enqueue(b"next")
        assert not until_or_not(lambda: len(started) > 1, 0.3)
        gate.set()
        until(lambda: queue.counts().completed == 1)
    assert started == [b"hangs", b"next"]


def until_or_not(condition: Callable[[], bool], seconds: float) -> bool:
    """Tell whether the condition comes true within so many seconds. It checks that an event does
    not happen."""
    never = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return True
        never.wait(0.01)
    return False


def test_a_halt_gives_back_what_middleware_surrounds(
    work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    running = work()
    running.worker.middleware(around(kind, lambda job: None, lambda result: result))
    begun = threading.Event()

    @running.handler("q")
    def body(job: Job) -> Any:
        begun.set()
        yield gate

    queue.enqueue(b"x")
    running.start()
    assert begun.wait(20)
    running.stop(wait=False)
    running.stop(wait=False)
    running.close()
    assert queue.counts() == Counts(enqueued=1, parked=1)


def test_middleware_that_is_refused() -> None:
    async def coroutine(job: Any, call: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine must be a plain def"):
        Worker().middleware(coroutine)
    with pytest.raises(TypeError, match="middleware must be callable"):
        Worker().middleware(5)  # type: ignore[type-var]
    assert AsyncWorker().middleware(coroutine) is coroutine


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_test_s_own_server_has_hooks_and_middleware_too(
    kind: str, newest: Server, queue: Queue
) -> None:
    worker: Any = (Worker if kind == "threads" else AsyncWorker)("redis://127.0.0.1:1/0")
    said: list[str] = []
    worker.on_start(lambda: said.append("start"))
    worker.on_stop(lambda: said.append("stop"))
    worker.middleware(around(kind, lambda job: said.append("around"), lambda result: result))
    worker.handler("q")(lambda job: said.append("job"))
    queue.enqueue(b"x")
    run(worker, newest.url)
    assert said == ["start", "around", "job", "stop"]
