"""25,000 jobs leave no memory in use in the worker or in the server. `bench/memory.py` sends a
million."""

from __future__ import annotations

import pytest

from bench.memory import HANDLERS, measure
from tests.support.servers import Server

pytestmark = pytest.mark.ci

JOBS = 25_000  # if the worker kept each, it would grow by twice what it may


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
def test_memory(handler: str, newest: Server) -> None:
    report = measure(newest, handler, JOBS)
    assert report.rss[0] > 0
    assert not report.problems, report
