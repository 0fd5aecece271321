"""Handlers that use Django's connections without its tasks. A connection is renewed in its own
thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import close_old_connections, connection

from headrace import AsyncWorker, Job, Queue, Worker
from tests.support.awaiting import until
from tests.support.servers import Server


def broken() -> None:
    """Break the connection of this thread, as a restart of the database does. A query then
    fails."""
    connection.ensure_connection()
    connection.connection.close()
    connection.errors_occurred = True


def fresh_connections(job: Job, call: Callable[[], Any]) -> Any:
    """Close old connections, as docs/how-to/use-in-django.md does."""
    close_old_connections()
    try:
        return call()
    finally:
        close_old_connections()


async def fresh_connections_async(job: Job, call: Callable[[], Any]) -> Any:
    """Close old connections of the thread that runs Django's asynchronous methods."""
    await sync_to_async(close_old_connections)()
    try:
        return await call()
    finally:
        await sync_to_async(close_old_connections)()


def handle(job: Job) -> str:
    """Use the connection and leave it broken."""
    count = str(Group.objects.count())
    broken()
    return count


async def handle_async(job: Job) -> str:
    """Do the same by asynchronous methods."""
    count = str(await Group.objects.acount())
    await sync_to_async(broken)()
    return count


@pytest.mark.parametrize("kind", ["threads", "functions", "coroutines"])
@pytest.mark.parametrize("renewed", [True, False])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_connections_are_renewed(newest: Server, database: None, kind: str, renewed: bool) -> None:
    """Without the middleware the second job meets the broken connection of the first."""
    worker: Any = (Worker if kind == "threads" else AsyncWorker)(newest.url)
    if renewed:
        worker.middleware(fresh_connections_async if kind == "coroutines" else fresh_connections)
    worker.handler("q", concurrency=1)(handle_async if kind == "coroutines" else handle)
    with Queue("q", url=newest.url) as queue:
        receipts = [queue.enqueue(b"x", id=f"{n}") for n in range(2)]

        async def story() -> None:
            async with worker:
                await asyncio.to_thread(receipts[0].result, timeout=20)
                await asyncio.to_thread(ended)

        def ended() -> None:
            if renewed:
                assert receipts[1].result(timeout=20) == b"0"
            else:
                until(lambda: "Cannot operate on a closed database" in str(queue.find("1").reason))

        if kind == "threads":
            with worker:
                assert receipts[0].result(timeout=20) == b"0"
                ended()
        else:
            asyncio.run(story())
