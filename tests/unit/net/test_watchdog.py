"""One timer for all calls that an event loop waits for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace._net.aio.pool import Watchdog
from tests.support.awaiting import PATIENCE

SHORT_S = 0.05


class Connection:
    """The attributes of redis-py's connection that a watchdog uses."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[Connection, asyncio.StreamReader]]:
    """Return a connection to a silent peer."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        yield Connection(writer), reader
    writer.close()


async def bitten(watchdog: Watchdog) -> None:
    """Each watched connection is cut after its own time. One that was left is not cut. One that is
    watched again is cut later.
    """
    async with (
        connection() as (left, _),
        connection() as (slow, reader),
        connection() as (later, its),
    ):
        for one in (left, later):
            watchdog.watch(one)
            watchdog.leave(one)
        watchdog.watch(slow)
        await asyncio.sleep(SHORT_S / 2)
        watchdog.watch(later)
        start = asyncio.get_running_loop().time()
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert watchdog.has_cut(slow)
        assert await asyncio.wait_for(its.read(), PATIENCE) == b""
        assert asyncio.get_running_loop().time() - start > SHORT_S * 0.9
        assert watchdog.has_cut(later)
        assert not left._writer.is_closing()
        watchdog.watch(left)
        assert not watchdog.has_cut(left)
        watchdog.leave(left)


async def bitten_again(watchdog: Watchdog) -> None:
    """It cuts again after a while without a watched connection."""
    await bitten(watchdog)
    await asyncio.sleep(2 * SHORT_S)
    await bitten(watchdog)


def test_it_cuts_what_takes_too_long_on_every_loop_anew() -> None:
    """This holds after a loop that ended with its timer set."""
    watchdog = Watchdog(SHORT_S)
    for _ in range(3):
        asyncio.run(bitten_again(watchdog))


def test_one_that_has_no_socket_any_more() -> None:
    async def story() -> None:
        watchdog = Watchdog(SHORT_S)
        gone = Connection()
        watchdog.watch(gone)
        async with connection() as (slow, reader):
            watchdog.watch(slow)
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert watchdog.has_cut(gone)

    asyncio.run(story())
