"""The connections of an executor, under asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis import exceptions as errors

from headrace._base.pool import BasePool, unreadable


class AsyncPool(BasePool):
    """Like `Pool`, for asyncio."""

    async def take(self) -> Any:
        """Like `Pool.take`."""
        connection, looked_at = self._newest()
        try:
            for spare in self._spare():
                await self.drop(spare)
            if looked_at and not await quiet(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
        except BaseException:
            await self.drop(connection)
            raise
        return connection

    async def drop(self, connection: Any) -> None:
        """Like `Pool.drop`."""
        self._all.discard(connection)
        await connection.disconnect(nowait=True)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Like `Pool.disconnect`."""
        closing = [connection.disconnect() for connection in self._emptied(inuse_connections)]
        await asyncio.gather(*closing, return_exceptions=True)


async def quiet(connection: Any) -> bool:
    """Like `_sync/pool.quiet`."""
    readable: Any = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before 8
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        return not await readable()
    return False


async def replies(connection: Any, number: int) -> list[Any]:
    """Like `_sync/pool.replies`."""
    read = connection._parser.read_response  # noqa: SLF001
    try:
        return [await read() for _ in range(number)]
    except OSError as error:
        raise unreadable(error) from error
