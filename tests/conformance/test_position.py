"""How many jobs are in front of one."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.support.colours import Connect
from tests.support.steps import key


@pytest.mark.differs("position")
def test_the_position_is_that_of_the_next_leases(queue: Any, client: redis.Redis) -> None:
    """Parked jobs come first, then jobs that woke a reader, then new ones."""
    ids = [queue.enqueue(b"%d" % i, id=f"i{i}" if i % 2 else None).id for i in range(10)]
    assert [queue.admin.position(name) for name in ids] == list(range(10))
    leases = queue.lease_many(4)
    client.xreadgroup("workers", "idle", {key("jobs"): ">"}, count=2)
    for lease in leases[1:3]:
        lease.release()
    order = [ids[1], ids[2], *ids[4:]]
    assert [queue.admin.position(name) for name in order] == list(range(8))
    assert [queue.admin.position(name) for name in (ids[0], ids[3])] == [None, None]
    assert [lease.job.id for lease in queue.lease_many(10)] == order


@pytest.mark.differs("position")
def test_what_does_not_wait_has_no_position(queue: Any) -> None:
    late = queue.enqueue(b"x", delay=3600).id
    dead = queue.enqueue(b"x", id="dead").id
    queue.lease().dead_letter("why")
    gone = queue.enqueue(b"x").id
    queue.lease().complete()
    assert [queue.admin.position(name) for name in (late, dead, gone, "nobody")] == [None] * 4


def test_it_is_bounded(newest_connect: Connect) -> None:
    queue = newest_connect()
    receipts = queue.enqueue_many([b"x"] * 1500)
    assert [queue.admin.position(receipts[i].id) for i in (999, 1000, 1499)] == [999, 1000, 1000]
    for lease in queue.lease_many(1200):
        lease.release()
    assert [queue.admin.position(receipts[i].id) for i in (999, 1199, 1300)] == [999, 1000, 1000]
