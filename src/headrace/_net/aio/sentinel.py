"""Like `_net/base/sentinel.Manager`, for asyncio."""

from __future__ import annotations

import asyncio

from headrace._net.base.sentinel import Manager, Place


class AsyncManager(Manager):
    """Like `Manager`, for asyncio."""

    async def discover_master(self, _service: str) -> Place:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Like `Manager.discover_master`."""
        return self.watch.find() if self.watch.watching else await asyncio.to_thread(self.watch.find)
