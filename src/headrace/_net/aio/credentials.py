"""Credentials of a user's provider, under asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.credentials import CredentialProvider

from headrace._net.base import credentials
from headrace._net.base.credentials import Credentials, Guarded


class AsyncGuarded(Guarded):
    """Like `Guarded`. A provider without a method for asyncio would block the event loop, so a thread asks it."""

    async def get_credentials_async(self) -> Credentials:
        """Ask the provider."""
        usual = None, CredentialProvider.get_credentials_async
        theirs: Any = self.theirs
        if getattr(theirs.__class__, "get_credentials_async", None) not in usual:
            try:
                async with asyncio.timeout(credentials.ANSWER_WITHIN_S):
                    given: Credentials = await self.theirs.get_credentials_async()
            except TimeoutError:
                raise credentials.late() from None
            except Exception as error:
                raise credentials.failed(error) from error
            return given
        asked = self.ask()
        here = asyncio.wrap_future(asked)
        here.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio logs that nobody asked
        await asyncio.wait([here], timeout=credentials.ANSWER_WITHIN_S)
        if not asked.done():
            raise credentials.late()
        return self.checked(asked.exception(), asked)
