"""The helpers of users' tests in `headrace.testing`, and the lifespan of a web application."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, AsyncWorker, Counts, Job, NewJob, Queue, Retry, Worker
from headrace._net.base.address import OPENED
from headrace.testing import run, run_until_empty, run_until_empty_async, travel
from tests.support.awaiting import PATIENCE, until
from tests.support.program import Script
from tests.support.servers import Server


def test_run_until_empty(headrace_url: str) -> None:
    """The call runs waiting jobs and the jobs that follow, also delayed ones. The worker has
    stopped afterwards."""
    worker = Worker(url=headrace_url)

    @worker.handler("q", retry=Retry(wait=0.05))
    def body(job: Job) -> bytes:
        if job.attempt == 1:
            raise OSError
        return b"second " + job.payload

    @worker.handler("later")
    def later(job: Job) -> None: ...

    with Queue("q", url=headrace_url) as queue, Queue("later", url=headrace_url) as delayed:
        receipts = queue.enqueue_many([b"a", b"b"])
        delayed.enqueue(b"c", delay=0.2)
        run_until_empty(worker, queue, delayed, timeout=PATIENCE)
        assert [queue.result(receipt.id) for receipt in receipts] == [b"second a", b"second b"]
        assert queue.counts() == Counts(enqueued=2, completed=2)
        assert delayed.counts() == Counts(enqueued=1, completed=1)
        assert queue.admin.workers() == []


def test_the_server_is_empty_for_each_test(headrace_url: str) -> None:
    with Queue("q", url=headrace_url) as queue:
        assert queue.counts() == Counts()
        queue.enqueue(b"x")


test_the_server_is_empty_for_each_test_again = test_the_server_is_empty_for_each_test


def test_run_until_empty_says_what_is_left(headrace_url: str) -> None:
    worker = Worker(url=headrace_url)
    worker.handler("other")(print)
    with Queue("q", url=headrace_url) as queue:
        queue.enqueue_many([b"x", b"y"])
        with pytest.raises(TimeoutError, match=r"after 0.1 s there are still 2 jobs"):
            run_until_empty(worker, queue, timeout=0.1)


def test_run_says_when_a_job_is_due(headrace_url: str) -> None:
    """The error says how to avoid the wait for the job."""
    worker = Worker(url=headrace_url)

    @worker.handler("q")
    def handle(job: Job) -> bytes:
        job.sleep("cooling-off", 14 * 86_400)
        job.wait_for("go")
        return b"done"

    with Queue("q", url=headrace_url) as queue:
        receipt = queue.enqueue(b"x")
        due = r"still 1 jobs to run; job '.*' of queue 'q' is due in 1,209,\d{3} s: .*until_empty=False"
        with pytest.raises(TimeoutError, match=due):
            run(worker, headrace_url, timeout=2.0)
        run(worker, headrace_url, until_empty=False, timeout=PATIENCE)
        travel(headrace_url, 14 * 86_400)
        run(worker, headrace_url, until_empty=False, timeout=PATIENCE)
        with pytest.raises(TimeoutError, match="waits for a signal"):
            run(worker, headrace_url, timeout=1.0)
        assert queue.signal(receipt.id, "go") == "woke"
        run(worker, headrace_url, timeout=PATIENCE)
        assert receipt.result() == b"done"


def test_run_empties_all_shards(headrace_url: str) -> None:
    """The call asks the shards of the handlers' queues for remaining jobs."""
    worker, done = Worker(url=headrace_url), list[bytes]()
    worker.handler("q", shards=6)(lambda job: done.append(job.payload))
    with Queue("q", url=headrace_url, shards=6) as queue:
        queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(30)])
        run(worker, headrace_url, timeout=PATIENCE)
        assert queue.counts() == Counts(enqueued=30, completed=30)
    assert sorted(map(int, done)) == [*range(30)]


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_run_skips_sleeps(headrace_url: str, kind: Any) -> None:
    """A suspended run fails no test, and ends as soon as its signal is there."""
    worker = kind(url=headrace_url)

    def plain(job: Job) -> bytes:
        job.sleep("cooling-off", 86_400)
        data: bytes = job.wait_for("go")
        job.sleep("later", 86_400)
        return data

    async def awaited(job: Job) -> bytes:
        await job.sleep("cooling-off", 86_400)
        data: bytes = await job.wait_for("go")
        await job.sleep("later", 86_400)
        return data

    worker.handler("q")(plain if kind is Worker else awaited)
    with Queue("q", url=headrace_url) as queue:
        receipt = queue.enqueue(b"x")
        run(worker, headrace_url, until_empty=False, timeout=PATIENCE, skip_sleeps=True)
        assert queue.counts().blocked == 1
        assert queue.signal(receipt.id, "go", b"data") == "woke"
        run(worker, headrace_url, timeout=PATIENCE, skip_sleeps=True)
        assert receipt.result() == b"data"


def test_run_until_empty_skips_sleeps(headrace_url: str) -> None:
    worker = Worker(url=headrace_url)
    worker.handler("q")(lambda job: job.sleep("cooling-off", 86_400))
    with Queue("q", url=headrace_url) as queue:
        queue.enqueue(b"x")
        run_until_empty(worker, queue, timeout=PATIENCE, skip_sleeps=True)
        assert queue.counts().completed == 1


def test_run_until_empty_async_skips_sleeps(headrace_url: str) -> None:
    async def story() -> Counts:
        worker = AsyncWorker(url=headrace_url)

        @worker.handler("q")
        async def body(job: Job) -> None:
            await job.sleep("cooling-off", 86_400)

        async with AsyncQueue("q", url=headrace_url) as queue:
            await queue.enqueue(b"x")
            await run_until_empty_async(worker, queue, timeout=PATIENCE, skip_sleeps=True)
            return await queue.counts()

    assert asyncio.run(story()).completed == 1


def test_travel_ends_sleeps_and_waits(headrace_url: str) -> None:
    worker = Worker(url=headrace_url)

    @worker.handler("q")
    def body(job: Job) -> bytes:
        job.sleep("cooling-off", 86_400)
        try:
            job.wait_for("go", timeout=86_400)
        except TimeoutError:
            return b"late"
        return b"in time"

    with Queue("q", url=headrace_url) as queue:
        receipt = queue.enqueue(b"x")
        for _ in range(2):
            run(worker, headrace_url, until_empty=False, timeout=PATIENCE)
            assert queue.counts().present == 1
            travel(headrace_url, 86_400)
        run(worker, headrace_url, timeout=PATIENCE)
        assert receipt.result() == b"late"


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize("fails", [False, True])
def test_run_closes_what_handlers_have_opened(headrace_url: str, kind: Any, fails: bool) -> None:
    """Clients of an ended event loop could not close themselves. A queue that the test opened
    before stays open."""
    named = f"{headrace_url}{'&' if '?' in headrace_url else '?'}client_name=done"
    worker, done, log = kind(), AsyncQueue("done", url=named), Queue("log", url=headrace_url)
    with Queue("emails", url=headrace_url) as emails, redis.Redis.from_url(headrace_url) as admin:
        emails.enqueue(b"x")

        async def note(job: Job) -> None:
            await done.enqueue(job.payload)
            log.enqueue(job.payload)
            if fails:
                raise LookupError

        def plain(job: Job) -> None:
            log.enqueue(job.payload)
            if fails:
                raise LookupError

        worker.handler("emails", retry=Retry(attempts=1))(plain if kind is Worker else note)
        before = set(OPENED)
        assert emails in before
        with pytest.raises(LookupError) if fails else nullcontext():
            run(worker, headrace_url)
        assert set(OPENED) == before
        if kind is AsyncWorker:  # queues of threads share their connections, and `emails` goes on
            assert admin.xlen("headrace:{done}:done:jobs") == 1
            until(
                lambda: not any(one["name"] == "done" for one in admin.client_list()),
                "the end of a connection",
                10,
            )
        assert log.counts().waiting == 1
        log.close()


FROZEN = """
import asyncio, sys
from freezegun import freeze_time
from headrace import AsyncQueue, Queue

async def awaited(url):
    async with AsyncQueue("q", url=url) as queue:
        receipt = await queue.enqueue(b"x")
        try:
            await receipt.result(timeout=0.3)
        except TimeoutError:
            await (await queue.lease(block=5)).complete(b"done")
        assert await queue.lease(block=0.3) is None
        return await receipt.result(timeout=5)

def called(url):
    with Queue("q", url=url) as queue:
        receipt = queue.enqueue(b"x")
        try:
            receipt.result(timeout=0.3)
        except TimeoutError:
            queue.lease(block=5).complete(b"done")
        assert queue.lease(block=0.3) is None
        return receipt.result(timeout=5)

_, url, colour, cure = sys.argv
cures = {"ignore": {"ignore": ["headrace", "asyncio"]}, "tick": {"tick": True}}
with freeze_time("2030-01-01", **cures[cure]):
    print(asyncio.run(awaited(url)) if colour == "async" else called(url))
"""


@pytest.mark.slow
@pytest.mark.sampled("colour")
@pytest.mark.parametrize("cure", ["ignore", "tick"])
def test_time_limits_end_under_freezegun(newest: Server, colour: str, cure: str) -> None:
    """The options of the page on testing are used. Without them freezegun stops the clocks of
    headrace too."""
    with Script(FROZEN, [newest.url, colour, cure]) as program:
        said, complaints = program.communicate(timeout=PATIENCE)
    assert (program.returncode, said) == (0, b"b'done'\n"), complaints.decode()
    page = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-handlers.md"
    assert 'ignore=["headrace", "asyncio"])`, or `tick=True`' in page.read_text("utf-8")


def test_run_until_empty_async(headrace_url: str) -> None:
    async def story() -> None:
        worker = AsyncWorker(url=headrace_url)

        @worker.handler("q")
        async def body(job: Job) -> bytes:
            return b"did " + job.payload

        async with AsyncQueue("q", url=headrace_url) as queue:
            receipt = await queue.enqueue(b"it")
            await run_until_empty_async(worker, queue, timeout=PATIENCE)
            assert await queue.result(receipt.id) == b"did it"
            await queue.enqueue(b"it", delay=60)
            with pytest.raises(TimeoutError, match="still 1 jobs"):
                await run_until_empty_async(worker, queue, timeout=0.1)

    asyncio.run(story())


UNITTEST = """
import sys, unittest
from pathlib import Path

sys.modules["pytest"] = None  # an import of it raises
from headrace import Queue, Worker
from headrace.testing import emptied, private_server, run, travel

folder = Path(sys.argv.pop())

class Emails(unittest.TestCase):
    def test_what_is_delayed(self):
        with private_server(folder) as server:
            url = emptied(server)
            worker = Worker()
            worker.handler("emails")(lambda job: b"sent to " + job.payload)
            with Queue("emails", url=url) as emails:
                receipt = emails.enqueue(b"ada", delay=3600)
                travel(url, 3600)
                run(worker, url)
                self.assertEqual(receipt.result(), b"sent to ada")

unittest.main()
"""


@pytest.mark.slow
def test_another_test_runner_needs_no_pytest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNITTEST, str(tmp_path / "data")],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
