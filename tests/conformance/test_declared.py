"""Queues and workers that are declared before there is a server. The tests also check the settings
of a handler's queue.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import (
    AsyncFlow,
    AsyncQueue,
    AsyncWorker,
    ConfigurationError,
    Flow,
    Queue,
    Rate,
    Worker,
)
from headrace._api import queue as base_queue
from headrace.codecs import JSONCodec, PydanticCodec
from headrace.testing import run_until_empty
from tests.support.awaiting import until
from tests.support.facts import each
from tests.support.servers import Server

EVENT = "declaration_differs"
NOWHERE = "redis://127.0.0.1:1/0"  # nobody listens there


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no server."""
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    return monkeypatch


@pytest.mark.parametrize("make", [Queue, AsyncQueue, Flow, AsyncFlow])
def test_nothing_is_asked_before_the_first_call(
    bare: pytest.MonkeyPatch, make: Callable[..., Any]
) -> None:
    """A declaration asks for no server and no address. An unused queue is closed without a
    server."""
    for options in {}, {"url": NOWHERE}:
        made = make("q", **options)
        assert "q" in repr(made)
        closing = made.close()
        if closing is not None:
            asyncio.run(closing)


def test_the_environment_is_read_by_the_first_call(
    bare: pytest.MonkeyPatch, newest: Server
) -> None:
    with Queue("q") as queue:
        with pytest.raises(ConfigurationError, match="HEADRACE_URL"):
            queue.enqueue(b"x")
        bare.setenv("HEADRACE_URL", newest.url)
        assert queue.enqueue(b"x").added
        bare.setenv("HEADRACE_URL", NOWHERE)  # it stays where it is
        assert queue.counts().waiting == 1


@each("make", [Queue, AsyncQueue, Flow, AsyncFlow])
@each("url", ["http://localhost", "localhost:6379"])
def test_a_url_that_is_none_is_refused_at_once(make: Callable[..., Any], url: str) -> None:
    with pytest.raises(ConfigurationError, match="redis://"):
        make("q", url=url)


def test_threads_that_call_first_together_share_connections(newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        start = threading.Barrier(8)
        seen: list[Any] = []

        def call() -> None:
            start.wait(10)
            queue.enqueue(b"x")
            seen.append(queue._executor)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(seen) == 8
        assert len({id(one) for one in seen}) == 1
        assert queue.counts().waiting == 8


def test_a_handler_takes_what_its_queue_declares(newest: Server) -> None:
    mails = Queue(
        "mails",
        url=newest.url,
        codec=JSONCodec(),
        priorities=3,
        lease=7,
        max_attempts=4,
        rate=Rate(1000),
    )
    worker = Worker(url=newest.url, heartbeat=0.2, timeout=1)
    got: list[Any] = []

    @worker.handler(mails, concurrency=1)
    def handle(job: Any) -> dict[str, int]:
        got.append(job.payload)
        return {"n": job.payload["n"] + 1}

    @worker.batch_handler(Queue("many", url=newest.url, codec=JSONCodec()))
    def together(jobs: Any) -> None:
        got.extend(job.payload for job in jobs)

    assert worker.handlers["mails"].queue_settings == mails.ops.settings
    many = Queue("many", url=newest.url, codec=JSONCodec())
    with mails, many:
        mails.enqueue({"n": 1}, priority=2, id="i")
        many.enqueue([1])
        run_until_empty(worker, mails, many)
        assert {"n": 1} in got
        assert [1] in got
        assert mails.result("i") == {"n": 2}


@pytest.mark.parametrize("options", [{"lease": 5}, {"codec": JSONCodec()}, {"max_attempts": 2}])
def test_what_a_queue_declares_is_not_declared_again(options: dict[str, Any]) -> None:
    worker = Worker()
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}: queue 'q' declares"):
        worker.handler(Queue("q"), **options)


def test_a_queue_of_another_namespace_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="namespace 'n', this worker in 'headrace'"):
        Worker().handler(Queue("q", namespace="n"))


def test_a_worker_is_told_its_server_when_it_runs(bare: pytest.MonkeyPatch, newest: Server) -> None:
    """The server comes from the call, else from the worker's own URL, else from the environment."""
    worker = Worker(heartbeat=0.2, timeout=1)

    @worker.handler("q")
    def handle(job: Any) -> None:
        worker.stop(wait=False)

    with Queue("q", url=newest.url) as queue:
        with pytest.raises(ConfigurationError, match="HEADRACE_URL"):
            worker.run()
        for url, environment in (newest.url, NOWHERE), (None, newest.url):
            bare.setenv("HEADRACE_URL", environment)
            queue.enqueue(b"x")
            worker.run(url)
        assert queue.counts().completed == 2


def test_an_asynchronous_worker_is_told_its_server_when_it_runs(newest: Server) -> None:
    worker = AsyncWorker(NOWHERE, heartbeat=0.2, timeout=1)

    @worker.handler(AsyncQueue("q"))
    async def handle(job: Any) -> None:
        await worker.stop(wait=False)

    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x")
        worker.run(newest.url)
        assert queue.counts().completed == 1


def test_a_url_of_the_run_goes_before_a_client(newest: Server) -> None:
    with redis.Redis.from_url(NOWHERE) as client:
        worker = Worker(client=client, heartbeat=0.2, timeout=1)

        @worker.handler("q")
        def handle(job: Any) -> None:
            worker.stop(wait=False)

        with Queue("q", url=newest.url) as queue:
            queue.enqueue(b"x")
            worker.run(newest.url)
            assert queue.counts().completed == 1


@pytest.mark.slow
def test_where_there_is_no_fcntl() -> None:
    """As on Windows, everything but embedded servers works. An embedded server says that it
    can't."""
    story = """
import sys
sys.modules["fcntl"] = None
import headrace
queue = headrace.Queue("q", url="embedded:.")
try:
    queue.counts()
except headrace.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", story], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("embedded servers need a POSIX system")


@pytest.fixture
def warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Return a function for the warnings about declarations since its last call, in a process
    without earlier ones."""
    monkeypatch.setattr(base_queue, "_DECLARED", set())

    def since() -> list[str]:
        found = [
            record.getMessage()
            for record in caplog.records
            if getattr(record, "event", "") == EVENT
        ]
        caplog.clear()
        return found

    return since


@pytest.mark.differs("rate")
def test_a_producer_that_differs_hears_it_once(
    connect: Any, warned: Callable[[], list[str]]
) -> None:
    connect("q", max_attempts=3, rate=Rate(5)).enqueue(b"x")
    plain = connect("q")
    plain.enqueue(b"x")  # says nothing of what it does not set
    assert warned() == []
    connect("q", codec=PydanticCodec(int)).enqueue(1)
    assert warned() == []  # the first with a codec
    for options, words in (
        ({"max_attempts": 4}, "max_attempts is 4 here, and 3"),
        ({"codec": JSONCodec()}, "codec is"),
    ):
        for queue in connect("q", **options), connect("q", **options):
            queue.enqueue_many([1, 2] if "codec" in options else [b"x"])
            queue.enqueue(1 if "codec" in options else b"x")
        (said,) = warned()
        assert words in said
        assert "theirs counts (version 2)" in said
    assert plain.counts().waiting == 3 + 2 * 2 + 2 * 3


@pytest.mark.parametrize("order", ["producer", "worker"])
def test_lines_as_they_are_for_workers_with_a_codec_are_no_news(
    newest: Server, warned: Callable[[], list[str]], order: str
) -> None:
    """The order in which the workers start does not matter, nor how often they do."""
    got: list[Any] = []
    with Queue("q", url=newest.url, max_attempts=3) as lines:
        if order == "producer":
            lines.enqueue(b"[0]")
        for number in 1, 2:
            worker = Worker(newest.url, heartbeat=0.2, timeout=1)
            worker.handler("q", codec=JSONCodec(list[int]), max_attempts=3)(
                lambda job: got.extend(job.payload)
            )
            base_queue._DECLARED.clear()  # as another process
            with worker:
                until(lambda: len(lines.admin.workers()) == 1)
                lines.enqueue(b"[%d]" % number)
                until(lambda number=number: number in got)  # type: ignore[misc]
                with newest.client() as client:
                    until(
                        lambda client=client: (
                            b"codec" in client.hget("headrace:{q}:q:stats", "declared")
                        )
                    )  # type: ignore[misc]
    assert warned() == []


def test_what_a_worker_declares_counts(newest: Server, warned: Callable[[], list[str]]) -> None:
    """A worker is warned once about the declaration that it replaces. Workers of the replaced
    declaration are warned next.
    """
    with Queue("q", url=newest.url, max_attempts=3) as queue:
        queue.enqueue(b"x")
        worker = Worker(newest.url, heartbeat=0.2, timeout=1)
        worker.handler("q", max_attempts=5)(lambda job: None)
        said: list[str] = []
        with worker:
            until(lambda: said.extend(warned()) or said, "the worker's warning")
        assert (
            "max_attempts is 5 here, and 3 as others declare it; this one counts now (version 2)"
            in said.pop()
        )
        base_queue._DECLARED.clear()  # as another process
        with Queue("q", url=newest.url, max_attempts=3) as other:
            other.enqueue(b"x")
        assert (
            "max_attempts is 3 here, and 5 as others declare it; theirs counts (version 2)"
            in warned()[0]
        )


def test_a_declaration_goes_with_its_queue(newest: Server, warned: Callable[[], list[str]]) -> None:
    with (
        Queue("q", url=newest.url, max_attempts=3) as queue,
        Queue("q", url=newest.url, max_attempts=4) as other,
    ):
        queue.enqueue(b"x")
        queue.admin.delete()
        other.enqueue(b"x")
        assert warned() == []


@pytest.mark.parametrize("foreign", [b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03", b"\x92\xa1a\xa1b"])
def test_what_somebody_else_left_there_is_no_declaration(
    newest: Server, foreign: bytes, warned: Callable[[], list[str]]
) -> None:
    with Queue("q", url=newest.url) as queue, newest.client() as client:
        client.hset("headrace:{q}:q:stats", mapping={"declared": foreign, "declaration": "many"})
        assert queue.enqueue(b"x").added
        assert warned() == []


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_first_call_that_fails_leaves_the_declaration_to_the_next(
    newest: Server, colour: str
) -> None:
    queue: Any = (AsyncQueue if colour == "async" else Queue)("q", url=newest.url, max_attempts=3)

    async def called(call: Callable[..., Any], *given: Any) -> Any:
        answer = call(*given)
        return await answer if inspect.isawaitable(answer) else answer

    async def story() -> None:
        client.set(stats, "foreign")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            await called(queue.enqueue, b"x")
        client.delete(stats)
        assert (await called(queue.enqueue, b"x")).added
        assert client.hexists(stats, "declared")
        await called(queue.close)

    stats = "headrace:{q}:q:stats"
    base_queue._DECLARED.clear()
    with newest.client() as client:
        asyncio.run(story())


def test_a_server_that_is_full_is_told_all_the_same(newest: Server) -> None:
    with Queue("q", url=newest.url, max_attempts=3) as queue, newest.client() as client:
        queue.counts()
        client.config_set("maxmemory", 1)
        try:
            assert queue._executor.run(queue.ops.declare(serving=True)).version == 1
        finally:
            client.config_set("maxmemory", 0)
