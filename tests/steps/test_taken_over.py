"""A run whose worker has lost it. The next worker goes on after its last step, and the first one
records nothing."""

from __future__ import annotations

import time
from itertools import count

import pytest

from headrace import Queue
from headrace.errors import RunLost
from tests.support.servers import Server


def test_a_lost_run_goes_on_behind_its_last_step(server: Server) -> None:
    numbers = count(1)
    with Queue("q", url=server.url) as queue, Queue("q", url=server.url) as peer:
        queue.enqueue(b"x", id="a")
        lost = queue.lease(duration=0.05)
        assert lost is not None
        assert lost.job.step("number", next, numbers) == 1
        time.sleep(0.1)
        lease = peer.lease(block=10.0)
        assert lease is not None
        assert lease.job.step("number", next, numbers) == 1
        with pytest.raises(RunLost, match="'a' is not this handler's any more"):
            lost.job.step("late", next, numbers)
        assert lease.job.step("late", next, numbers) == 3
        assert lease.complete(fenced=True)
