"""Fixtures and helpers for testing your own handlers against a real, private server.

In your `conftest.py`: `from headrace.testing import headrace_server, headrace_url  # noqa: F401`. Needs pytest and
the extra `embedded`.

    def test_sending(headrace_url):
        with Queue("emails", url=headrace_url) as queue:
            queue.enqueue(b"hello")
            run_until_empty(worker_for(headrace_url), queue)
            assert queue.counts().completed == 1
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

from headrace._async.queue import AsyncQueue
from headrace._async.worker import AsyncWorker
from headrace._embedded.server import EmbeddedServer
from headrace._model.state import Counts
from headrace._sync.queue import Queue
from headrace._sync.worker import Worker

__all__ = ["headrace_server", "headrace_url", "run_until_empty", "run_until_empty_async"]


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Start a private server for this test session, and stop it afterwards."""
    server = EmbeddedServer.join(tmp_path_factory.mktemp("headrace"))
    yield server
    server.leave()


@pytest.fixture
def headrace_url(headrace_server: EmbeddedServer) -> str:
    """Return the URL of the private server, emptied (FLUSHALL) for this test."""
    url = f"unix://{headrace_server.path}"
    with redis.Redis(unix_socket_path=headrace_server.path) as client:
        client.execute_command("FLUSHALL")  # pyright: ignore[reportUnknownMemberType]
    return url


def run_until_empty(worker: Worker, *queues: Queue, timeout: float = 10.0) -> None:
    """Run *worker* until nothing is waiting, leased or delayed in *queues*.

    Raises `TimeoutError`, with the number of jobs left, after *timeout* seconds, and any error that ended the worker.
    """
    deadline = time.monotonic() + timeout
    with worker:
        while left := _jobs_left([queue.counts() for queue in queues]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s there are still {left} jobs to run")
            time.sleep(0.005)


async def run_until_empty_async(worker: AsyncWorker, *queues: AsyncQueue, timeout: float = 10.0) -> None:
    """Like `run_until_empty`, for `AsyncWorker` and `AsyncQueue`."""
    deadline = time.monotonic() + timeout
    async with worker:
        while left := _jobs_left([await queue.counts() for queue in queues]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s there are still {left} jobs to run")
            await asyncio.sleep(0.005)


def _jobs_left(counts: list[Counts]) -> int:
    return sum(count.present - count.dead for count in counts)
