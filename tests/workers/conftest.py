"""Workers of every kind, from one body."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace._engine import base as engine
from tests.conftest import newest_queue
from tests.support.engines import Recorder
from tests.support.processes import Processes
from tests.support.servers import Server

queue = newest_queue


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stop wait for a slow machine's server, except in the tests of that."""
    if request.path.name != "test_outage.py":
        monkeypatch.setattr(engine, "LEAVE_WITHIN_S", 10.0)


@pytest.fixture
def record() -> Recorder:
    return Recorder()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Return an event that handlers can wait for. It is set at the latest when the test ends."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def processes(kind: str, newest: Server, tmp_path: Path) -> Iterator[Processes]:
    """Worker processes of the kind, on the newest server."""
    with Processes(kind, newest.url, tmp_path) as processes:
        yield processes
