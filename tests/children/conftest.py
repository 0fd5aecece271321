"""Runs with children, by scripts and under workers of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Queue
from tests.children.machine import FAR
from tests.scripts.conftest import Lua
from tests.steps.conftest import Runs
from tests.support.engines import Running
from tests.support.servers import Server


@pytest.fixture
def fleet(work: Callable[..., Running]) -> Running:
    """Return a worker of the kind, which gives up its dead peers soon."""
    return work(timeout=5)


@pytest.fixture
def orders(newest: Server) -> Iterator[Queue[Any]]:
    with newest.queue("orders", history=100) as queue:
        yield queue


@pytest.fixture
def packs(newest: Server) -> Iterator[Queue[Any]]:
    with newest.queue("orders/pack") as queue:
        yield queue


def of_one_queue(server: Server) -> Iterator[Runs]:
    lua = Lua(server, 3)
    parts = ("steps", "asleep", "ids", "wake", "links", "linksx", "result:i/a", "result:i/b")
    lua.parents = [lua.key(part) for part in (*parts, f"reports:{FAR}", "reported")]
    yield Runs(lua)
    lua.close()


@pytest.fixture
def runs(server: Server) -> Iterator[Runs]:
    """Runs on every server of the ring, whose children are in the same queue."""
    yield from of_one_queue(server)


@pytest.fixture
def newest_runs(newest: Server) -> Iterator[Runs]:
    yield from of_one_queue(newest)
