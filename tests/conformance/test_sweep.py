"""The sweep for expired leases. It uses XAUTOCLAIM where all leases have one duration, and pages
where they differ. It never takes parked or postponed jobs or longer leases, and it soon finds an
expired lease behind many others.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import NewJob, Queue, Rate
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, key, present

TERM = 0.2  # seconds of a lease


def sweep(queue: Any, moved: int) -> None:
    """Sweep until so many jobs are back at the front."""
    found = 0

    def swept() -> bool:
        nonlocal found
        found += queue._run(queue.ops.reclaim("sweeper", 10.0)).moved
        return found >= moved

    until(swept)
    assert found == moved


def calls(client: Any, command: str) -> int:
    """How often the server has run *command*."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def older(client: Any, *leases: Any, idle: float = LONG) -> None:
    """Make the leases of these jobs of one worker so old."""
    entries = [lease.claim.entry for lease in leases]
    client.xclaim(
        key("jobs"), "workers", leases[0].worker, 0, entries, idle=round(idle * 1000), justid=True
    )


@pytest.mark.differs("keys")
def test_leases_that_last_alike_are_taken_back_by_xautoclaim(connect: Any, client: Any) -> None:
    """Jobs come back in order with their counts. A job that was delivered twice is delivered a
    third time."""
    queue, *others = (connect(lease=60.0) for _ in range(4))
    queue.enqueue_many([b"%d" % i for i in range(6)])
    # alone: leases beside others that run out are deaths
    leases = [one.lease() for one in (queue, *others)]
    older(client, leases[0])
    sweep(queue, 1)
    leases = [queue.lease(), *leases[1:]]
    assert leases[0].job.attempt == 2
    for lease in (leases[2], leases[0]):
        older(client, lease)
    client.config_resetstat()
    sweep(queue, 2)
    assert calls(client, "xautoclaim") > 0
    assert [(job.job.payload, job.job.attempt) for job in queue.lease_many(9)] == [
        (b"0", 3), (b"2", 2), (b"4", 1), (b"5", 1),
    ]  # fmt: skip
    assert [leases[1].renew(), leases[2].renew(), leases[3].renew()] == [True, False, True]


@pytest.mark.differs("keys")
@pytest.mark.parametrize("held", ["parked", "limited", "idle", "longer", "other"])
def test_what_is_not_an_expired_lease_is_not_touched(connect: Any, client: Any, held: str) -> None:
    """However long such an entry has been idle, its holder, its time and its count do not
    change."""
    queue = connect(lease=60.0, rate=Rate(1, per=LONG, key="k") if held == "limited" else None)
    headers = {"k": "a"} if held == "limited" else {}
    queue.enqueue_many([NewJob(b"x", headers=headers) for _ in range(2)])
    if held == "parked":
        kept = queue.lease()
        expired = queue.lease()
        assert kept.release()
    elif held == "idle":
        expired = queue.lease()
        client.execute_command(*queue.ops.wait(1.0))
    elif held == "longer":
        queue.lease(duration=LONG)
        expired = queue.lease()
    elif held == "other":
        connect(lease=LONG).lease()
        expired = queue.lease()
    else:
        (expired,) = queue.lease_many(2)
    (row,) = [
        row
        for row in client.xpending_range(key("jobs"), "workers", "-", "+", 9)
        if row["message_id"].decode() != expired.claim.entry
    ]
    long = {"idle": 600_000, "justid": True}
    client.xclaim(key("jobs"), "workers", row["consumer"], 0, [row["message_id"]], **long)
    older(client, expired, idle=600.0)
    sweep(queue, 1)
    for _ in range(3):
        queue._run(queue.ops.reclaim("sweeper", 10.0))
    (after,) = client.xpending_range(
        key("jobs"), "workers", row["message_id"], row["message_id"], 1
    )
    assert (after["consumer"], after["times_delivered"]) == (
        row["consumer"],
        row["times_delivered"],
    )
    assert after["time_since_delivered"] >= 600_000


@pytest.mark.differs("keys")
def test_the_sweep_of_a_queue_with_priorities(connect: Any, client: Any) -> None:
    """Reclaimed jobs go to the front of their level."""
    queue = connect(lease=60.0, priorities=2)
    queue.enqueue(b"late", priority=1)
    queue.enqueue(b"soon")
    leases = queue.lease_many(2)
    for lease in leases:
        older(client, lease)
    sweep(queue, 2)
    queue.enqueue(b"new")
    assert [queue.lease().job.payload for _ in range(3)] == [b"soon", b"new", b"late"]


@pytest.mark.differs("ops")
def test_one_cursor_for_all(connect: Any, client: Any) -> None:
    """Callers do not repeat each other. A caller during another sweep goes on at its cursor or
    takes no step."""
    queue = connect(lease=60.0)
    queue.enqueue_many([b"x"] * 12_000)
    queue.lease_many(12_000)
    names = [f"sweeper-{i}" for i in range(5)]
    client.hdel(key("stats"), "sweep")  # its own lease calls have begun one
    client.config_resetstat()
    cursors: list[bytes] = []

    def ended() -> bool:
        for name in names:
            queue._run(queue.ops.reclaim(name, 10.0))
            cursor = client.hget(key("stats"), "sweep").split()[2]
            if not cursors or cursors[-1] != cursor:
                cursors.append(cursor)
            if cursor == b"-":  # the next call may begin another
                return True
        return False

    until(ended)
    assert len(cursors) in (4, 5)  # 12,000 by 3,000 a step, and perhaps one to see the end
    assert calls(client, "xautoclaim") <= 3 * len(cursors)


@pytest.mark.differs("keys")
@pytest.mark.parametrize("differ", [False, True], ids=["alike", "differ"])
def test_an_expired_lease_behind_many_is_found_soon(
    server: Server, client: Any, differ: bool
) -> None:
    """A sweep takes steps of bounded length. At 100,000 leases and a step every 15 ms, it takes
    less than two seconds.
    """
    depth = 20_000
    with server.queue("q", lease=600.0) as queue, server.queue("q", lease=300.0) as other:
        queue.enqueue_many([b"x"] * (depth + 1))
        leases = queue.lease_many(depth + 1)
        if differ:
            other.lease()
        older(client, leases[-1])
        steps = 0

        def found() -> int:
            nonlocal steps
            before = client.hget(key("stats"), "sweep")
            moved = queue._run(queue.ops.reclaim("sweeper", 10.0)).moved
            steps += before != client.hget(key("stats"), "sweep")
            return moved

        until(found)
        assert steps * 100_000 / depth * 0.015 < 1.0
        assert present(queue) == {"leased": depth, "parked": 1}


@pytest.mark.differs("keys")
def test_many_that_expire_at_once(connect: Any, client: Any) -> None:
    """Expired leases do not wait for each other's steps."""
    queue = connect(lease=60.0)
    queue.enqueue_many([b"x"] * 5000)
    older(client, *queue.lease_many(5000))
    began = time.monotonic()
    sweep(queue, 5000)
    assert time.monotonic() - began < 5.0  # twelve times what it takes


def test_worker_that_is_not_asked(newest: Server) -> None:
    """The queue's own lease calls are enough."""
    with newest.client() as client, Queue("q", url=newest.url, lease=60.0) as queue:
        queue.enqueue_many([b"x"] * 12_000)
        older(client, queue.lease_many(12_000)[-1])
        assert queue.lease(block=10.0).job.attempt == 2
