"""Runs under a worker. The tests check how their deliveries end, and which code may use the job."""

from __future__ import annotations

import asyncio

from headrace import AsyncQueue, AsyncWorker, Job, Queue, Retry, Worker
from headrace.errors import RunSuspended
from tests.support.awaiting import PATIENCE
from tests.support.servers import Server


def test_a_run_is_suspended_when_its_handler_has_ended(newest: Server) -> None:
    """The handler's clean-up code still has the job, and its exception counts."""
    seen: list[tuple[int, int]] = []
    worker = Worker(url=newest.url)

    with Queue("q", url=newest.url) as queue:

        @worker.handler("q", retry=Retry(attempts=3, wait=0))
        def body(job: Job) -> None:
            try:
                job.sleep("nap", 0.01)
            except RunSuspended:
                seen.append((job.attempt, queue.counts().leased))
                if len(seen) == 1:
                    raise ValueError("of the clean-up") from None
                raise
            seen.append((job.attempt, 0))

        queue.enqueue(b"")
        with worker:
            assert queue.admin.drain(PATIENCE)
    # The sleep is over by the second attempt, or that is suspended, and spends none.
    assert seen in ([(1, 1), (2, 0)], [(1, 1), (2, 1), (1, 0)])


def test_a_thread_of_an_async_handler_notes_progress(newest: Server) -> None:
    """The thread may use the job before the handler takes a step. The loop is not blocked."""
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
