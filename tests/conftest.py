"""One server of each kind for a test process, a clean key space for each test, and both colours from one body.

    def test_something(server): ...            # on every server of the matrix, empty
    def test_something(connect): ...           # besides, with both colours: connect("q", lease=5) is a queue

What `connect` makes for the colour "async" is an `AsyncQueue` behind `Blocking`, which runs its coroutines to
their end, so that a test is written once.

Which of these cases run is said by two options (see README.md here): `--servers` and `--full`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest
import redis
from attrs import evolve
from hypothesis import settings

from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.servers import Binary, Server, binaries

settings.register_profile("beside others", deadline=None)
settings.load_profile("beside others")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose among the cases of a test."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--servers",
        choices=["newest", "ends", "cluster", "all"],
        default="all",
        help="servers of the matrix to test on: the newest, the newest and the oldest, a cluster of one node, or (the "
        "default) all of them",
    )
    group.addoption(
        "--full",
        action="store_true",
        help="also the cases that differ from others only by what the server does not see: "
        "asyncio on every server, not on the newest only; RESP3 on every server, not on the ends only",
    )


def pytest_xdist_auto_num_workers() -> int:
    """Four processes a core: most tests wait for a server, not for a processor."""
    return 4 * min(os.cpu_count() or 2, 8)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the options leave out."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (chosen if wanted(item, config.option.servers, full=config.option.full) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = slow_first(chosen, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def slow_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Have each process begin with its share of those that are slow: else these are all that runs at the end.

    Each begins with an equal part of the list, and takes over the ends of others' when it has done its own.
    """
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    rest = (item for item in items if item.get_closest_marker("slow") is None)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(ordered)) // (processes - number)
        share = slow[number::processes]
        ordered += [*share, *islice(rest, max(0, size - len(share)))]
    return [*ordered, *rest]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def wanted(item: pytest.Item, servers: str, *, full: bool) -> bool:
    """Whether a case runs: each body on every server that is asked for, and in both colours, but not each in each.

    Both colours send the same bytes, and what differs between servers is what scripts meet there. Of a body's cases
    (its other parameters) all run on the newest server, from threads; asyncio there, and each other server, have the
    first and every third, a different third each.
    """
    if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
        return True
    params = item.callspec.params
    found = [value for value in params.values() if isinstance(value, Binary)]
    if not found:
        return True
    if found[0].cluster:
        return wanted_on_cluster(item, servers, full=full)
    place = binaries().index(found[0])
    newest, oldest = place == 0, place == len(binaries()) - 1
    chosen = {"newest": newest, "ends": newest or oldest, "cluster": False, "all": True}[servers]
    if full or not chosen:
        return chosen
    is_async = params.get("colour") == "async"
    if (is_async and not newest) or (params.get("protocol") == 3 and not (newest or oldest)):
        return False
    return (newest and not is_async) or nth(item) == 0 or nth(item) % 3 == place % 3


def nth(item: pytest.Function) -> int:
    """The number of a case among those of its body, whatever the server and the colour."""
    params, ways = item.callspec.params, ("colour", "protocol")
    return sum(
        i for name, i in item.callspec.indices.items() if name not in ways and not isinstance(params[name], Binary)
    )


def wanted_on_cluster(item: pytest.Function, servers: str, *, full: bool) -> bool:
    """Whether a case runs on a cluster of one node, which serves all slots: a script with keys in two fails there.

    Both colours send the same bytes: by default it is one, and of a body's cases the first and every third. Clusters of
    several nodes have tests of their own.
    """
    if item.originalname in OFF_CLUSTERS or not any(part in item.path.parts for part in ON_CLUSTERS):
        return False
    some = item.callspec.params.get("colour") != "async" and nth(item) % 3 == 0
    return servers == "cluster" or (servers == "all" and (full or some))


ON_CLUSTERS = ("conformance", "flows")  # folders of tests
# Transactions with keys of their own; the model of flows, whose scripts are those of any server.
OFF_CLUSTERS = ("test_enqueue_in_a_transaction", "test_by_hash", "test_what_holds")


CLUSTER = evolve(binaries()[0], name="cluster", cluster=True)


class Servers:
    """The servers of this test process, started when first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[Binary, Server] = {}
        self._used: set[Binary] = set()

    def __call__(self, binary: Binary) -> Server:
        """The server of this binary, empty."""
        if binary not in self._running:
            if binary.cluster:
                cluster = self._stack.enter_context(Cluster(binary, masters=1, extra=["--cluster-databases", "16"]))
                self._running[binary] = cluster.nodes[0]
                cluster.nodes[0].url = cluster.url
            else:
                self._running[binary] = self._stack.enter_context(Server(binary))
        self._used.add(binary)
        server = self._running[binary]
        with redis.Redis(unix_socket_path=server.path) as client:
            client.flushall()  # scripts stay: to compile them for each test anew would be a quarter of all its work
        return server

    def settle(self) -> None:
        """Wait until all connections of the test before have ended: a worker's may outlive it for an instant.

        What a test has left to the collector is collected. What still stays is told of once, and closed: it is the
        fault of none of the tests that follow.
        """
        used, self._used = self._used, set()
        for binary in used:
            with redis.Redis(unix_socket_path=self._running[binary].path) as client:
                try:
                    until(lambda client=client: len(client.client_list()) == 1, patience=1)
                except AssertionError:
                    gc.collect()
                try:
                    until(lambda client=client: len(client.client_list()) == 1)
                except AssertionError:
                    left = client.client_list()
                    client.client_kill_filter(skipme=True)
                    raise AssertionError(f"connections that the test before has left: {left}") from None

    def close(self) -> None:
        """Stop them all."""
        self._stack.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """All servers of this test process."""
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(autouse=True)
def _settled(servers: Servers) -> None:
    """Nothing of the test before goes on."""
    servers.settle()


@pytest.fixture(params=[*binaries(), CLUSTER], ids=lambda binary: binary.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Each server of the matrix in turn, empty."""
    return servers(request.param)


@pytest.fixture
def newest(servers: Servers) -> Server:
    """The first server of the matrix, empty: for what does not depend on the server."""
    return servers(binaries()[0])


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of `server`."""
    with redis.Redis(unix_socket_path=server.path) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Both colours in turn."""
    return str(request.param)


@pytest.fixture
def connect(colour: str, server: Server) -> Iterator[Connect]:
    """Makes queues, on every server and of both colours."""
    connect = Connect(colour, server)
    yield connect
    connect.close()


@pytest.fixture
def queue(connect: Connect) -> Any:
    """The queue `q`."""
    return connect()
