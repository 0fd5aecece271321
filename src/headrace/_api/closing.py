"""Context managers that close on leaving, in both colours."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Base of context managers that close on leaving."""

    def close(self) -> None:
        """Close the connections that we opened."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncClosing:
    """Like `Closing`."""

    async def close(self) -> None:
        """Close the connections that we opened."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()
