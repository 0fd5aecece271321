"""Both colours from one test body. Queues, flows and inspectors of asyncio behave as if they
blocked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any, Self

import redis
import redis.asyncio

from headrace import AsyncFlow, AsyncQueue, AsyncReceipt, Flow, Queue
from headrace._api.aio.admin import AsyncAdmin
from headrace._api.aio.events import AsyncEventStream
from headrace._api.aio.lease import AsyncLease
from headrace.inspect import AsyncInspector, Inspector

ASYNC: dict[Any, Any] = {Queue: AsyncQueue, Flow: AsyncFlow, Inspector: AsyncInspector}
WRAPPED = AsyncAdmin, AsyncEventStream, AsyncLease, AsyncReceipt, redis.asyncio.client.Pipeline


class Blocking:
    """A blocking face of an object of asyncio. Its coroutines and iterators are run to their
    end."""

    def __init__(self, wrapped: Any, runner: asyncio.Runner) -> None:
        self._wrapped, self._runner = wrapped, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return self._shown(found)
        return lambda *args, **options: self._call(found, *args, **options)

    def __eq__(self, other: object) -> bool:
        return bool(self._wrapped == bare(other))

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def __enter__(self) -> Any:
        return self._call(self._wrapped.__aenter__)

    def __exit__(self, *error: object) -> None:
        self._call(self._wrapped.__aexit__, *error)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self._wrapped.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def called() -> Any:
            answer = function(
                *map(bare, args), **{name: bare(value) for name, value in options.items()}
            )
            if inspect.isawaitable(answer):
                return await answer
            if isinstance(answer, AsyncIterator) and not isinstance(answer, WRAPPED):
                return iter([item async for item in answer])
            return answer

        # `Runner.run` minds Ctrl-C, each time: that takes as long as most calls
        return self._shown(self._runner.get_loop().run_until_complete(called()))

    def _shown(self, answer: Any) -> Any:
        if isinstance(answer, WRAPPED):
            return Blocking(answer, self._runner)
        if isinstance(answer, list):
            return [self._shown(item) for item in answer]
        return answer


def bare(value: Any) -> Any:
    """Unwrap an argument, if it is wrapped."""
    if isinstance(value, Blocking):
        return value._wrapped
    return [bare(item) for item in value] if isinstance(value, list) else value


class Connect(ExitStack):
    """A maker of queues, and of all other objects with two colours, for one server. They are closed
    at the end of its `with` block.

    connect("q", lease=5)                  # a Queue, or an AsyncQueue that blocks
    connect.make(Flow, "shop", shards=6)   # likewise
    connect.client(protocol=3)             # a client of redis-py's, from `connect.redis`
    """

    def __init__(self, colour: str, server: Any) -> None:
        super().__init__()
        self.colour, self.server = colour, server
        self._runner = self.enter_context(asyncio.Runner()) if colour == "async" else None
        self.redis: Any = redis if self._runner is None else redis.asyncio

    def __call__(self, name: str = "q", **options: Any) -> Any:
        """Make a queue on the server, or on the one that *options* name. The arguments are those of
        `Queue`.

        *client* may be a function that makes one, given the module to make it from (`redis` or
        `redis.asyncio`).
        """
        client = bare(options.get("client"))
        if client is not None:
            options["client"] = client(self.redis) if callable(client) else client
        elif "url" not in options:
            options = {**self.server.binary.options, **options}
        return self.make(Queue, name, **options)

    def make(self, kind: type, *args: Any, **options: Any) -> Any:
        """Make a `Queue`, `Flow` or `Inspector`, or its twin for asyncio. The address is chosen as
        in `__call__`."""
        if not options.keys() & {"url", "client"}:
            options["url"] = self.server.url
        made = self.wrap((kind if self._runner is None else ASYNC[kind])(*args, **options))
        self.callback(made.close)
        return made

    def client(self, **options: Any) -> Any:
        client = self.wrap(self.redis.Redis(unix_socket_path=self.server.path, **options))
        self.callback(client.close if self._runner is None else client.aclose)
        return client

    def wrap(self, made: Any) -> Any:
        """Wrap an object of this colour so that it blocks."""
        return made if self._runner is None else Blocking(made, self._runner)
