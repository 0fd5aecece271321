"""Runs under a worker: deliveries of one job that overlap."""

from __future__ import annotations

import asyncio
import threading

from headrace import AsyncQueue, AsyncWorker, Job, Queue, Retry, Worker
from headrace.errors import RunSuspended
from tests.support.awaiting import PATIENCE
from tests.support.servers import Server


def test_a_run_goes_on_before_the_suspended_handler_has_returned(newest: Server) -> None:
    """The worker leases the job again, in the same entry; each delivery has its own steps."""
    resumed = threading.Event()
    worker = Worker(url=newest.url)

    @worker.handler("q", concurrency=2, retry=Retry(attempts=1))
    def body(job: Job) -> None:
        try:
            job.sleep("nap", 0.01)
        except RunSuspended:
            assert resumed.wait(PATIENCE)
            raise
        assert job.step("charge", lambda: 7) == 7
        resumed.set()
        job.sleep("again", 0.01)

    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"")
        with worker:
            assert queue.admin.drain(PATIENCE)
        counts = queue.counts()
        assert (counts.completed, counts.dead) == (1, 0)


def test_a_thread_of_an_async_handler_notes_progress(newest: Server) -> None:
    """It may be the first to use the job, before the handler takes a step; the loop is not blocked by that."""
    worker = AsyncWorker(url=newest.url)

    @worker.handler("q")
    async def body(job: Job) -> bytes:
        await asyncio.to_thread(job.progress, 0.5, "half")
        number: int = await job.step("number", lambda: 7)
        return b"%d" % number

    async def story() -> object:
        async with AsyncQueue("q", url=newest.url) as queue, worker:
            receipt = await queue.enqueue(b"")
            return await receipt.result(timeout=PATIENCE)

    assert asyncio.run(story()) == b"7"
