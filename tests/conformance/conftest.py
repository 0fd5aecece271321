"""What the tests of this folder have besides: others who act meanwhile, and clients of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from headrace import Queue
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Blocking, Connect
from tests.support.servers import Server


@pytest.fixture
def newest_connect(colour: str, newest: Server) -> Iterator[Connect]:
    """Like `connect`, on one server: for what does not depend on it."""
    connect = Connect(colour, newest)
    yield connect
    connect.close()


@pytest.fixture
def nowhere(colour: str) -> Iterator[Connect]:
    """Makes queues on a server that is not there: whatever they send fails with a ConnectionError."""

    class Nowhere:
        url = "unix:///nonexistent/socket"

    nowhere: Any = Nowhere()
    connect = Connect(colour, nowhere)
    yield connect
    connect.close()


@pytest.fixture
def meanwhile(server: Server) -> Iterator[Callable[[Callable[[Queue], object]], None]]:
    """Let another client of `q` act once somebody is blocked: `meanwhile(lambda other: other.enqueue(b"a"))`."""
    acts: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool, Queue("q", url=server.url) as other:

        def run(act: Callable[[Queue], object]) -> object:
            with redis.Redis(unix_socket_path=server.path) as client:
                until(lambda: client.info("clients")["blocked_clients"], "somebody who waits")
            return act(other)

        yield lambda act: acts.append(pool.submit(run, act))
        for act in acts:
            act.result(PATIENCE)


class Yours:
    """Clients of the user's own, in the colour of *connect*."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._made: list[tuple[Any, Any]] = []

    def __call__(self, **options: Any) -> tuple[Any, Any]:
        """A client of the server: as its queue wants it, and to be used by the test."""
        options = {"unix_socket_path": self._connect.server.path, **options}
        if self._connect._runner is None:
            client: Any = redis.Redis(**options)
            used: Any = client
        else:
            client = redis.asyncio.Redis(**options)
            used = Blocking(client, self._connect._runner)
        self._made.append((client, used))
        return client, used

    def transactions(self, **options: Any) -> Callable[[], Any]:
        """What begins a MULTI pipeline of such a client."""
        client, _ = self(**options)

        def begin() -> Any:
            pipe = client.pipeline(transaction=True)
            runner = self._connect._runner
            return pipe if runner is None else Blocking(pipe, runner)

        return begin

    def close(self) -> None:
        for client, used in self._made:
            (used.aclose if isinstance(client, redis.asyncio.Redis) else used.close)()


@pytest.fixture
def yours(connect: Connect) -> Iterator[Yours]:
    """Make clients of your own: `client, used = yours(decode_responses=True)`."""
    yours = Yours(connect)
    yield yours
    yours.close()
