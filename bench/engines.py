"""Ways to run a handler of the queue `bench`, in this process, while a bench sends it jobs and
looks at the clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace import AsyncWorker, Job, Queue, Worker

Handle = Callable[[Job], None]


@contextmanager
def threads(url: str, handle: Handle, **options: Any) -> Iterator[None]:
    """Run a worker with threads."""
    worker = Worker(url=url)
    worker.handler("bench", **options)(handle)
    with worker:
        yield


@contextmanager
def tasks(url: str, handle: Handle, **options: Any) -> Iterator[None]:
    """Run a worker with an event loop in its own thread."""
    worker, ready = AsyncWorker(url=url), threading.Event()

    @worker.handler("bench", **options)
    async def run(job: Job) -> None:
        handle(job)

    async def story(over: asyncio.Future[None]) -> None:
        async with worker:
            ready.set()
            await over

    loop = asyncio.new_event_loop()
    over = loop.create_future()
    thread = threading.Thread(target=loop.run_until_complete, args=(story(over),))
    thread.start()
    ready.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set_result, None)
        thread.join(30)
        loop.close()


@contextmanager
def by_hand(url: str, handle: Handle, **options: Any) -> Iterator[None]:
    """Run a loop around `Queue.lease` without a worker."""
    over = threading.Event()

    def run() -> None:
        with Queue("bench", url=url, **options) as jobs:
            while not over.is_set():
                lease = jobs.lease(block=0.5)
                if lease is not None:
                    handle(lease.job)
                    lease.complete()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
