"""Subscribed connections, under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from redis import exceptions as errors
from redis.asyncio.retry import Retry as AsyncNoRetry
from redis.backoff import NoBackoff

from headrace._core.notices import Received
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.pool import drop
from headrace._net.aio.sentinel import AsyncManager
from headrace._net.base.connections import own_pool
from headrace._net.base.subscription import PING, REDIRECTED_AT_MOST, BaseSubscription
from headrace._protocol.queue_ops import Ops


class AsyncSubscription(BaseSubscription):
    """Like `Subscription`. It must be closed only while no task is in `receive`."""

    _executor: AsyncExecutor

    def __init__(self, executor: AsyncExecutor, listened: Callable[[], Sequence[Ops]] | None = None) -> None:
        super().__init__(executor, listened)
        self._loop: asyncio.AbstractEventLoop | None = None  # of its connection
        self._source: Any = None
        self._pool: Any = None  # of connections like those of that one

    async def receive(self, channels: Sequence[str], seconds: float) -> Received:
        """Like `Subscription.receive`."""
        try:
            if self._closed:
                return Received("cut")
            anew = self._connection is None
            if not anew and not self._executor.leads(self._source, channels):
                await self._hang_up()
                return Received("cut")
            if anew:
                try:
                    async with asyncio.timeout(self._executor.timeout):
                        await self._subscribe(channels)
                except BaseException:
                    await self._hang_up()  # half subscribed
                    raise
            if not anew and (commands := self._changing(channels)):
                await self._connection.send_packed_command(commands)
            if ops := self._announcing():
                await self._executor.run_all(ops)
            return Received("anew") if anew else self._state(await self._read(seconds))
        except (errors.RedisError, OSError) as error:
            await self._hang_up()
            return self._failed(error, channels)

    async def _subscribe(self, channels: Sequence[str]) -> None:
        for _ in range(REDIRECTED_AT_MOST):
            try:
                return await self._subscribe_at(channels)
            except errors.ResponseError as error:
                await self._hang_up()
                self._refused(error, channels)
        raise errors.ConnectionError(f"the slot of {channels[0]} is passed from node to node")

    async def _subscribe_at(self, channels: Sequence[str]) -> None:
        source = await self._executor.source(channels)
        if source is not self._source:
            self._source, self._pool = (
                source,
                own_pool(source, redis.asyncio.ConnectionPool, AsyncNoRetry(NoBackoff(), 0), AsyncManager),
            )
            self._pool.connection_kwargs |= {"protocol": 2, "socket_timeout": None}
        self._loop = asyncio.get_running_loop()
        connection = self._connection = await self._pool.get_connection()
        await connection.send_packed_command(self._subscribing(channels))
        for _ in channels:
            await connection.read_response(disable_decoding=True)
        self._fresh()

    async def _read(self, seconds: float) -> list[tuple[str, bytes]]:
        try:
            async with asyncio.timeout(seconds):
                # A read that is given up loses nothing: what has come stays with the connection.
                reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except TimeoutError:
            if self._idle():
                await self._connection.send_packed_command([PING])
            return []
        except errors.MovedError as error:
            return self._moved(error)
        return self._message(reply)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    def abandon(self) -> None:
        """Close the connection soon, as its reader was collected: any thread may do that, so it can't close at once."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None and self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(drop, connection)

    async def close(self) -> None:
        """Like `Subscription.close`."""
        self._closed = True
        await self._hang_up()
