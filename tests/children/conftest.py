"""Runs with children, under workers of both colours from one body."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace import AsyncWorker, Job, Queue, Retry, Worker
from tests.scripts.conftest import Lua
from tests.steps.conftest import Runs
from tests.support.servers import Server

Body = Callable[[Job], Generator[Any, Any, Any]]
ONCE = Retry(attempts=1)


def plain(body: Body) -> Callable[[Job], Any]:
    """Make a handler for threads of a body that yields the answers of its job's verbs."""

    def handler(job: Job) -> Any:
        steps = body(job)
        answer = None
        while True:
            try:
                answer = steps.send(answer)
            except StopIteration as done:
                return done.value

    return handler


def awaiting(body: Body) -> Callable[[Job], Any]:
    """Make an async handler of the same body, which awaits each value that the body yields."""

    async def handler(job: Job) -> Any:
        steps = body(job)
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                call = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            answer = error = None
            try:
                answer = await call if hasattr(call, "__await__") else call
            except asyncio.CancelledError:
                raise
            except BaseException as raised:
                error = raised

    return handler


class Fleet:
    """A worker of one colour, whose handlers are given as bodies."""

    def __init__(self, kind: str, server: Server) -> None:
        self.url = server.url
        self._async = kind == "async"
        self.worker: Any = (AsyncWorker if self._async else Worker)(url=server.url, timeout=5)

    def handler(self, queue: str, body: Body, **options: Any) -> None:
        options = {"retry": ONCE, "concurrency": 4, **options}
        made = awaiting(body) if self._async else plain(body)
        self.worker.handler(queue, **options)(made)

    def tasks(self, name: str) -> Any:
        from headrace import AsyncTasks, Tasks

        return (AsyncTasks if self._async else Tasks)(name, url=self.url)

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self._async:
            with self.worker:
                yield
            return
        ready = threading.Event()
        stop: list[Any] = []

        async def serve() -> None:
            async with self.worker:
                ended = asyncio.Event()
                stop.extend([asyncio.get_running_loop(), ended])
                ready.set()
                await ended.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            assert ready.wait(30)
            yield
        finally:
            stop[0].call_soon_threadsafe(stop[1].set)
            thread.join()


@pytest.fixture(params=["sync", "async"])
def fleet(request: pytest.FixtureRequest, newest: Server) -> Fleet:
    return Fleet(request.param, newest)


@pytest.fixture
def orders(newest: Server) -> Iterator[Queue[Any]]:
    with Queue("orders", url=newest.url, history=100) as queue:
        yield queue


@pytest.fixture
def packs(newest: Server) -> Iterator[Queue[Any]]:
    with Queue("orders/pack", url=newest.url) as queue:
        yield queue


def of_one_queue(server: Server) -> Iterator[Runs]:
    lua = Lua(server, 3)
    parts = ("steps", "asleep", "ids", "wake", "links", "linksx", "result:i/a", "result:i/b")
    lua.parents = [lua.key(part) for part in parts]
    yield Runs(lua)
    lua.close()


@pytest.fixture
def runs(server: Server) -> Iterator[Runs]:
    """Runs on every server of the ring, whose children are in the same queue."""
    yield from of_one_queue(server)


@pytest.fixture
def newest_runs(newest: Server) -> Iterator[Runs]:
    yield from of_one_queue(newest)
