"""The programs that the benches run of each peer. headrace stands for all, because the others are
not installed."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from bench import growth, loss
from bench.compare import Peer
from tests.support.awaiting import until
from tests.support.servers import Server, binaries


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(binaries()[0]) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=server.path) as made:
        made.flushall()
        yield made


@pytest.mark.slow
def test_more_jobs_may_wait_than_a_worker_is_measured_with(server: Server, client: Any) -> None:
    cell = growth.waiting(Peer("headrace", sys.executable, server), client, 5000)
    assert len(cell.split(" · ")) == 3


@pytest.mark.slow
def test_first_jobs_of_queues(server: Server, client: Any) -> None:
    assert len(growth.new(Peer("headrace", sys.executable, server), client, 20).split(" · ")) == 3


@pytest.mark.slow
def test_workers_at_rest_are_processes_that_end_together(server: Server, client: Any) -> None:
    with growth.resting(Peer("headrace", sys.executable, server), 3) as begun:
        until(lambda: client.info("clients")["connected_clients"] > 3, "each is connected")
        parent, *children = growth.tree(begun.pid)
        assert (parent, len(children)) == (begun.pid, 3)
    assert begun.returncode == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow
@pytest.mark.parametrize(("when", "lost"), [("always", False), ("everysec", True)])
def test_writes_that_no_fsync_covers_are_dropped(when: str, lost: bool) -> None:
    """A job that was just acknowledged is there after the death of the machine, or is not."""
    with ExitStack() as stack:
        stand = loss.alone(("--appendfsync", when), stack, binaries()[0], machine=True)
        stand.queue.enqueue(b"first")
        # everysec has its fsync at once if the last was a second ago
        until(lambda: stand.queue.enqueue(b"more").added and stand.queue.counts().waiting > 20)
        before = stand.queue.counts().waiting
        stand.kill()
        assert (stand.queue.counts().waiting < before) == lost


@pytest.mark.slow
@pytest.mark.parametrize(("name", "when"), [("valkey-9.1", "always"), ("redis-8.2", "everysec")])
def test_durable_writes_survive_their_machine(name: str, when: str) -> None:
    binary = next((one for one in binaries() if one.name == name), None)
    if binary is None:
        pytest.skip(f"{name} is not here")
    with ExitStack() as stack:
        extra = ("--appendfsync", when)
        stand = loss.alone(extra, stack, binary, machine=True, durable="fsync")
        for _ in range(3):  # the first fsync comes at once
            assert stand.queue.enqueue(b"durable").added
        stand.queue.enqueue_many([b"durable"] * 50)
        stand.kill()
        assert stand.queue.counts().waiting == 53


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "early"), [("valkey-9.1", True), ("valkey-8.1", True), ("redis-8.2", False)]
)
def test_servers_that_answer_waitaof_too_early(name: str, early: bool) -> None:
    """The page on loss says so. Where it is mended, an answer takes until the next fsync."""
    binary = next((one for one in binaries() if one.name == name), None)
    if binary is None:
        pytest.skip(f"{name} is not here")
    extra = ["--appendfsync", "everysec"]
    with Server(binary, appendonly=True, extra=extra) as server, server.client() as client:
        took: list[float] = []
        for number in range(7):
            client.set("key", number)
            begun = time.monotonic()
            assert client.execute_command("WAITAOF", 1, 0, 5000)[0] == 1
            took.append(time.monotonic() - begun)
    assert (statistics.median(took) < 0.25) == early, took
