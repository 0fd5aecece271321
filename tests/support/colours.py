"""Queues of both colours for one test body: those of asyncio behave as if they blocked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import redis

from headrace import AsyncQueue, AsyncReceipt, Queue
from headrace._api.aio.admin import AsyncAdmin
from headrace._api.aio.lease import AsyncLease
from tests.support.cluster import Cluster
from tests.support.servers import Server


class Blocking:
    """An asynchronous object as if it were a blocking one: its coroutines and iterators are run to their end."""

    def __init__(self, wrapped: Any, runner: asyncio.Runner) -> None:
        self._wrapped, self._runner = wrapped, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return self._shown(found)
        return lambda *args, **options: self._call(found, args, options)

    def __eq__(self, other: object) -> bool:
        return bool(self._wrapped == bare(other))

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        async def called() -> Any:
            answer = function(*map(bare, args), **{name: bare(value) for name, value in options.items()})
            if inspect.isawaitable(answer):
                return await answer
            if isinstance(answer, AsyncIterator):
                return iter([item async for item in answer])
            return answer

        # `Runner.run` minds Ctrl-C, each time: that takes as long as most calls
        return self._shown(self._runner.get_loop().run_until_complete(called()))

    def _shown(self, answer: Any) -> Any:
        if isinstance(answer, (AsyncAdmin, AsyncLease, AsyncReceipt)):
            return Blocking(answer, self._runner)
        if isinstance(answer, list):
            return [self._shown(item) for item in answer]
        return answer


def bare(value: Any) -> Any:
    """Unwrap an argument, if it is wrapped."""
    if isinstance(value, Blocking):
        return value._wrapped
    return [bare(item) for item in value] if isinstance(value, list) else value


class Connect:
    """Maker of queues of one colour on one server; it closes them."""

    def __init__(self, colour: str, server: Server | Cluster) -> None:
        self.colour, self.server = colour, server
        self._made: list[Any] = []
        self._runner = asyncio.Runner() if colour == "async" else None

    def __call__(self, name: str = "q", **options: Any) -> Any:
        """Make a queue on the server, or on the one that *options* name; arguments as for `Queue`.

        *client* may be a function that makes one, given the module to make it from (`redis` or `redis.asyncio`).
        """
        if callable(make := options.get("client")):
            options["client"] = make(redis.asyncio if self._runner else redis)
        if not options.keys() & {"url", "client"}:
            options = {"url": self.server.url, **self.server.binary.options, **options}
        runner = self._runner
        queue: Any = Blocking(AsyncQueue(name, **options), runner) if runner else Queue(name, **options)
        self._made.append(queue)
        return queue

    def close(self) -> None:
        """Close all queues that were made."""
        for queue in self._made:
            queue.close()
        if self._runner is not None:
            self._runner.close()
