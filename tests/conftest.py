"""One server of each kind for a test process, a clean key space for each test, and both colours from one body.

    def test_something(server): ...            # on every server of the matrix, empty
    def test_something(connect): ...           # besides, with both colours: connect("q", lease=5) is a queue

What `connect` makes for the colour "async" is an `AsyncQueue` behind `Blocking`, which runs its coroutines to
their end, so that a test is written once.

Which of these cases run is said by two options (see README.md here): `--servers` and `--full`; on which event loop
they do, by `--loop`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings

from tests.support.awaiting import until
from tests.support.cases import CLUSTERS, ONCE, chosen
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.differences import difference
from tests.support.masters import Masters
from tests.support.nodes import Nodes
from tests.support.servers import Binary, Server, binaries

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in the background: programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where that is forbidden, as in many containers, a hundred interpreters would compile headrace, and two all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("beside others", deadline=None)
settings.load_profile("beside others")
FOLDER = Path(__file__).parent
gc.disable()  # until all is collected, see below: nothing of that is garbage


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose among the cases of a test."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--servers",
        choices=["newest", "ends", "all", ONCE, *(binary.name for binary in CLUSTERS)],
        default="all",
        help="servers of the matrix to test on: the newest, the newest and the oldest, three masters for one case "
        "of each body, a cluster, or (the default) all but those",
    )
    group.addoption(
        "--full",
        action="store_true",
        help="also the cases that differ from others only by what the server does not see: "
        "both colours on every server, not asyncio on one and threads on the others; RESP3 on all of them",
    )
    group.addoption(
        "--loop",
        choices=["asyncio", "uvloop"],
        default="asyncio",
        help="the event loop of what tests run by themselves (a worker that makes its own takes uvloop anyway)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have the event loops of tests be those that were asked for."""
    if config.option.loop == "uvloop":
        asyncio.set_event_loop_policy(importlib.import_module("uvloop").EventLoopPolicy())
        # An error as it closes a loop under its connections has it wait for the one that it then did not close.
        config.addinivalue_line("filterwarnings", "ignore:unclosed resource:ResourceWarning")


def pytest_xdist_auto_num_workers() -> int:
    """Six processes a core: two thirds of the time that tests take, they wait, for leases, beats and servers."""
    return min(6 * (os.cpu_count() or 2), 32)


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Have the processes be forks of one that has imported the tests: to start takes each two seconds less."""
    files = [*FOLDER.glob("*/test_*.py"), *FOLDER.glob("unit/*/test_*.py")]
    all_of_them = config.args_source is config.ArgsSource.TESTPATHS
    modules = [".".join(file.relative_to(FOLDER.parent).with_suffix("").parts) for file in files if all_of_them]
    nodes = Nodes(sorted(modules))
    config.add_cleanup(nodes.close)
    for spec in specs:
        spec.python = nodes.python


LEFT_OUT: set[object] = set()  # the bodies of which no case runs


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Make those cases of a body only that run: to make the others, in every process, takes seconds."""
    yield
    made, options = metafunc._calls, metafunc.config.option
    if found := chosen(made, metafunc.definition, options.servers, full=options.full):
        made[:] = found
        for case in found:
            binary = next((value for value in case.params.values() if isinstance(value, Binary)), None)
            if binary is not None and (differs := difference(binary, metafunc.definition, case.id)) is not None:
                case.marks.append(differs.mark)
    elif made or options.servers in {ONCE, *(one.name for one in CLUSTERS)}:
        LEFT_OUT.add(metafunc.function)
        del made[1:]  # none at all would be a body without parameters


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the bodies of which no case runs, and say which come first."""
    runs: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if getattr(item, "function", None) in LEFT_OUT else runs).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = slow_first(runs, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def slow_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Have three processes in five begin with those that are slow: these mostly wait, so others work meanwhile, and
    none is left for the end.

    Each begins with an equal part of the list, and takes over the ends of others' when it has done its own.
    """
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    rest = (item for item in items if item.get_closest_marker("slow") is None)
    waiting = max(1, processes * 3 // 5)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(ordered)) // (processes - number)
        share = slow[number::waiting] if number < waiting else []
        ordered += [*share, *islice(rest, max(0, size - len(share)))]
    return [*ordered, *rest]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave out of a report what nobody reads of it: a hundred names, which are sent to the first process each time."""
    report = yield
    report.keywords = {}
    return report


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again and again."""
    gc.freeze()
    gc.set_threshold(20_000)  # what a test leaves is a few thousand objects
    gc.enable()


class Servers:
    """The servers of this test process, started when first asked for.

    One that no test has asked for lately is suspended: so many that look around ten times a second take a fortieth of
    all processor time.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[Binary, Any] = {}
        self._used: set[Binary] = set()
        self._suspended: set[Binary] = set()
        self._clusters: dict[int, Cluster] = {}

    def __call__(self, binary: Binary) -> Server:
        """The server of this binary, empty."""
        if binary not in self._running:
            if binary.masters > 1:
                self._running[binary] = Masters(binary, self._masters(binary))
            elif binary.masters:
                cluster = self._stack.enter_context(Cluster(binary, masters=1, extra=["--cluster-databases", "16"]))
                self._running[binary] = cluster.nodes[0]
                cluster.nodes[0].url = cluster.url
            else:
                self._running[binary] = self._stack.enter_context(Server(binary))
        self._used.add(binary)
        server = self._running[binary]
        if binary in self._suspended:
            self._suspended.remove(binary)
            os.kill(server.pid, signal.SIGCONT)
        said = server.inline("FLUSHALL")  # scripts stay: to compile them for each test is a quarter of all its work
        assert said in ("+OK\r\n", ["+OK\r\n"] * binary.masters), said
        return server

    def _masters(self, binary: Binary) -> Cluster:
        """The cluster of so many masters, whatever the shards."""
        if binary.masters not in self._clusters:
            made = Cluster(binary, binary.masters, extra=["--cluster-databases", "16"])
            self._clusters[binary.masters] = self._stack.enter_context(made)
        return self._clusters[binary.masters]

    def settle(self) -> None:
        """Wait until all connections of the test before have ended: a worker's may outlive it for an instant.

        What a test has left to the collector is collected. What still stays is told of once, and closed: it is the
        fault of none of the tests that follow.
        """
        used, self._used = self._used, set()
        for binary in used:
            server = self._running[binary]
            try:
                until(lambda server=server: alone(server), patience=1)
            except AssertionError:
                gc.collect()
            try:
                until(lambda server=server: alone(server))
            except AssertionError:
                left = server.inline("CLIENT LIST")
                with server.client() as client:
                    client.client_kill_filter(skipme=True)
                raise AssertionError(f"connections that the test before has left: {left}") from None
        for binary in self._running.keys() - used - self._suspended:
            if binary.masters > 1:
                continue  # each would take the others for dead
            self._suspended.add(binary)
            os.kill(self._running[binary].pid, signal.SIGSTOP)

    def close(self) -> None:
        """Stop them all."""
        self._stack.close()


def alone(server: Server) -> bool:
    """Whether the connection that asks is the only one."""
    said = server.inline("CLIENT LIST")
    lists = [said] if isinstance(said, str) else said
    assert all(some.startswith("id=") for some in lists), said
    return all(some.count("\n") == 1 for some in lists)


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


@pytest.fixture(params=[*binaries(), *CLUSTERS], ids=lambda binary: binary.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Each server of the matrix in turn, empty."""
    return servers(request.param)


@pytest.fixture
def newest(servers: Servers) -> Server:
    """The first server of the matrix, empty: for what does not depend on the server."""
    return servers(binaries()[0])


@pytest.fixture
def large(server: Server, pytestconfig: pytest.Config) -> bool:
    """Whether a test that takes many is to take as many as it can: on the newest server, and on all with `--full`.

    On others it takes fewer: what differs there is what scripts meet, not how many there are.
    """
    return pytestconfig.option.full or server.binary == binaries()[0]


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of `server`."""
    with server.client() as client:
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
