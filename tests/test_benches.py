"""The programs that the benches run of each peer. headrace stands for all, because the others are
not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bench import growth
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
