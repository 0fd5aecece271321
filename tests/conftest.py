"""One server of each kind for a test process, an empty key space for each test, and both colours
from one body.

    def test_something(server): ...            # on the servers of the ring
    def test_something(connect): ...           # in both colours: connect("q", lease=5) is a queue

README.md has all that a test may take, and the rings; `support/cases.py` chooses their cases.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings

from headrace import Queue
from tests.support.awaiting import until
from tests.support.cases import (
    GUESTS,
    NEWEST,
    ON_OLDEST,
    RINGS,
    SAMPLED,
    chosen,
    difference,
    in_folder,
)
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.servers import Binary, Server, binaries

# a shell's background job ignores it, and so would programs
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Containers often forbid bytecode: then each program that a test starts would compile headrace.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
TESTS = Path(__file__).parent
TEST_BEFORE = pytest.StashKey[str]()  # the test that ran last in this process
settings.register_profile("beside others", deadline=None)
settings.load_profile("beside others")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose among the cases of a test."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--servers", choices=[*RINGS], default="ends", help="the servers to test on (default: ends)"
    )
    group.addoption(
        "--full", action="store_true", help="all cases in both colours and protocols on each server"
    )
    group.addoption(
        "--loop", choices=["asyncio", "uvloop"], default="asyncio", help="the event loop of tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the event loop that an option names."""
    if config.option.loop == "uvloop":
        asyncio.set_event_loop_policy(importlib.import_module("uvloop").EventLoopPolicy())
        # uvloop waits for ever when a warning is raised while it closes a loop that still has
        # connections.
        config.addinivalue_line("filterwarnings", "ignore:unclosed resource:ResourceWarning")


def pytest_xdist_auto_num_workers() -> int:
    """Return three processes a core. Tests often wait for servers and time, and each process
    collects all tests, which takes four seconds."""
    return min(3 * (os.cpu_count() or 2), 32)


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile new tests once. Otherwise each process would compile all at the same time, which
    takes ten seconds."""
    files = [file for name in config.args for file in Path(name).rglob("test_*.py")]
    if len(stale := [file for file in files if not is_compiled(file)]) > 20:
        options = ["--collect-only", "-qq", "-n0", "-pno:cacheprovider"]
        collect = [sys.executable, "-m", "pytest", *options]
        parts = [stale[n :: os.cpu_count()] for n in range(os.cpu_count() or 1)]
        running = [subprocess.Popen([*collect, *part], stdout=subprocess.DEVNULL) for part in parts]
        for process in running:
            process.wait()


def is_compiled(file: Path) -> bool:
    """Tell whether pytest has compiled the present version of a file."""
    compiled = (file.parent / "__pycache__").glob(f"{file.stem}.*-pytest-*.pyc")
    return any(one.stat().st_mtime >= file.stat().st_mtime for one in compiled)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the cases of the ring's servers, but where a test names its own."""
    named = {
        name
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in str(mark.args[0]).split(",")
    }
    if "binary" in metafunc.fixturenames and "binary" not in named:
        option = metafunc.config.option
        ring = [binary for binary in RINGS[option.servers] if binary is not None]
        every = option.full or option.servers not in SAMPLED
        if not every and not in_folder(metafunc.definition, ON_OLDEST):
            ring = [NEWEST]  # else each process makes thousands of cases that never run
        metafunc.parametrize("binary", ring, ids=lambda binary: binary.name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of guests, but where a run names them."""
    whole = all(Path(name).resolve() == TESTS for name in config.args)
    return (
        True
        if whole and collection_path.parent == TESTS and collection_path.name in GUESTS
        else None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that do not run in this ring, and put slow ones first."""
    # Of a part of the cases, others would be chosen than of all.
    whole = config.option.full or getattr(config.option, "lf", False)
    kept = set(map(id, chosen(items, config.option.servers, full=whole)))
    runs = [item for item in items if id(item) in kept]
    for item in runs:
        if (found := difference(item)) is not None:
            item.add_marker(
                pytest.mark.xfail(raises=found.raises, strict=found.always, reason=found.why)
            )
    if left_out := [item for item in items if id(item) not in kept]:
        config.hook.pytest_deselected(items=left_out)
    items[:] = slow_first(runs, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from objects that stay to the end, which are modules and 15,000
    cases."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def slow_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Let three processes in five begin with slow tests, so that none is left for the end. Many of
    them mostly wait. The ones that are marked `long` come first of all.

    Each process begins with an equal part of the list, and later takes over the ends of others'
    parts.
    """
    marks = ("long", "ci", "slow", "sampled")
    slow = [item for item in items if any(map(item.get_closest_marker, marks))]
    slow.sort(key=lambda item: item.get_closest_marker("long") is None)
    rest = (item for item in items if not any(map(item.get_closest_marker, marks)))
    waiting = max(1, processes * 3 // 5)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(ordered)) // (processes - number)
        share = slow[number::waiting] if number < waiting else []
        ordered += [*share, *islice(rest, max(0, size - len(share)))]
    return [*ordered, *rest]


class Servers(ExitStack):
    """The servers of this test process, started when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Binary, Any] = {}
        self._used: set[Server] = set()  # by the test before

    def __call__(self, binary: Binary) -> Any:
        """Return the empty server of this binary."""
        server = self._running.get(binary) or self._start(binary)
        self._used.update(server.nodes)
        self.empty()
        return server

    def empty(self) -> None:
        """Empty the servers of this test. Their scripts stay, as it takes long to compile them."""
        for node in self._used:
            node.ask("FLUSHALL")

    def _start(self, binary: Binary) -> Any:
        options = ["--cluster-databases", "16"]
        started: Any = (
            Cluster(binary, binary.masters, extra=options) if binary.masters else Server(binary)
        )
        self._running[binary] = self.enter_context(started)
        if binary.masters == 1:
            (self._running[binary],) = started.nodes
            started.nodes[0].url = started.url
        return self._running[binary]

    def settle(self, before: str) -> None:
        """Wait until all connections of the test *before* have ended. Those of a worker may outlive
        it for an instant.

        Objects that the test has left to the garbage collector are collected, as often as it looks:
        a thread that ends late leaves its objects late. Connections that stay are reported once,
        with the threads that may hold them, and closed, so that later tests do not fail for them.
        """
        while self._used:
            node = self._used.pop()
            with suppress(AssertionError):
                until(lambda node=node: is_alone(node), patience=1)
                continue
            with suppress(AssertionError):
                until(lambda node=node: is_alone_once_collected(node))
                continue
            left = node.ask("CLIENT", "LIST").decode()
            node.ask("CLIENT", "KILL", "SKIPME", "yes")
            threads = [thread.name for thread in threading.enumerate()]
            raise AssertionError(f"connections that {before} has left: {left}\nthreads: {threads}")


def is_alone(server: Server) -> bool:
    return bool(server.ask("CLIENT", "LIST").count(b"\n") == 1)


def is_alone_once_collected(server: Server) -> bool:
    """Tell the same after unreferenced objects have closed their connections."""
    gc.collect()
    return is_alone(server)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(autouse=True)
def _settled(servers: Servers, request: pytest.FixtureRequest) -> None:
    """Check that nothing of the test before goes on."""
    servers.settle(request.session.stash.get(TEST_BEFORE, "no test"))
    request.session.stash[TEST_BEFORE] = request.node.nodeid


@pytest.fixture
def server(binary: Binary, servers: Servers) -> Server:
    """Each server of the ring in turn, empty."""
    return servers(binary)


@pytest.fixture
def newest(servers: Servers) -> Server:
    """Return the first server of the matrix, empty, for tests that do not depend on the server."""
    return servers(binaries()[0])


@pytest.fixture
def large(server: Server, pytestconfig: pytest.Config) -> bool:
    """Tell whether a test takes as many jobs as it can. That is so on the newest server, and on all
    with `--full`."""
    return pytestconfig.option.full or server.binary == binaries()[0]


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(colour: str, server: Server) -> Iterator[Connect]:
    """Return a maker of queues, on every server and of both colours."""
    with Connect(colour, server) as connect:
        yield connect


@pytest.fixture
def newest_connect(colour: str, newest: Server) -> Iterator[Connect]:
    """Return a `connect` for one server, for tests that do not depend on the server."""
    with Connect(colour, newest) as connect:
        yield connect


@pytest.fixture
def queue(connect: Connect) -> Any:
    return connect()


@pytest.fixture
def newest_queue(newest: Server) -> Iterator[Queue[Any]]:
    """Return the queue `q` of the newest server for threads. Some folders have it as `queue`."""
    with newest.queue("q") as queue:
        yield queue


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of worker. It is `Worker`, or `AsyncWorker` with async handlers or with plain
    functions."""
    return str(request.param)


@pytest.fixture
def work(kind: str, newest: Server) -> Iterator[Callable[..., Running]]:
    """Return a maker of workers of the kind, as in `work(name="w")`. The newest server is the
    default."""
    with ExitStack() as stack:

        def make(**options: Any) -> Running:
            running = Running(
                kind,
                **options if options.keys() & {"url", "client"} else {"url": newest.url, **options},
            )
            stack.callback(running.halt)
            return running

        yield make
