"""Steps that many tests take."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Event, JobState, Queue, QueueFull
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.queue_ops import Ops
from headrace.errors import RunSuspended
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

LONG = 3600.0  # seconds that no test lasts
ACCESS = Path(__file__).parents[2] / "docs/how-to/run-in-production.md"


def key(part: str, queue: str = "q", namespace: str = "headrace") -> str:
    """Return the key of a part of *queue*."""
    return f"{namespace}:{{{queue.partition('/')[0]}}}:{queue}:{part}"


def payloads(states: Iterable[JobState]) -> list[Any]:
    return [state.job.payload for state in states]


def finds_no_room(call: Callable[[], object], least: float) -> None:
    """Check that a call waits for room for at least so many seconds, and finds none soon after."""
    start = time.monotonic()
    with pytest.raises(QueueFull):
        call()
    assert least <= time.monotonic() - start < 5


def leased(
    queue: Any, payload: Any = b"x", *, duration: float | None = None, **options: Any
) -> Any:
    receipt = queue.enqueue(payload, **options)
    lease = queue.lease(duration=duration)
    assert lease.job.id == receipt.id
    return lease


def expire(queue: Any, jobs: int = 1) -> None:
    """Wait until so many leases have run out, and their jobs are in front."""
    swept(queue, "moved", jobs)


def promote(queue: Any, jobs: int = 1) -> None:
    """Wait until so many delayed jobs are due, and at the back of the queue."""
    swept(queue, "promoted", jobs)


def swept(queue: Any, count: str, jobs: int) -> None:
    """Sweep the queue until *count* of its sweeps sums to so many jobs."""
    found = 0

    def enough() -> bool:
        nonlocal found
        found += sum(
            getattr(queue._run(ops.reclaim("sweeper", 10.0)), count)
            for ops in queue._verbs.map.ordered()
        )
        return found >= jobs

    until(enough, f"jobs that a sweep has {count}")
    assert found == jobs


def somebody_waits(server: Any) -> None:
    """Wait until another client waits, in a blocked read or, with shards, by repeated calls."""
    with server.client() as client:
        if server.binary.shards == 1:
            until(lambda: client.info("clients")["blocked_clients"], "somebody who waits")
            return
        began = asked(client)
        until(lambda: asked(client) >= began + 4, "somebody who asks")


def asked(client: Any) -> int:
    """Count the scripts that have run."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def looked_after(client: Any, stats: str = key("stats")) -> None:
    """Make the queue of these *stats* look watched for long, without a gap."""
    seconds, micros = client.time()
    run = client.info("server")["run_id"]
    client.hset(stats, "pulse", f"1000 {seconds * 1000 + micros // 1000} 0 0 600000 {run}")


def present(queue: Any) -> dict[str, int]:
    """Count the jobs in each state without empty states, and check that none is lost."""
    counts = queue.counts()
    assert counts.lost == 0
    states = ("waiting", "parked", "leased", "delayed", "blocked", "dead")
    return {name: getattr(counts, name) for name in states if getattr(counts, name)}


@contextmanager
def listening(
    queue: Any, *kinds: str, timeout: float = PATIENCE
) -> Iterator[Callable[[int], list[Event]]]:
    """Subscribe to the queue. Yield a function that returns the given number of next events."""
    with queue.events(kinds or None, timeout) as events:
        yield lambda number: [next(events) for _ in range(number)]


def subscribed(client: redis.Redis) -> dict[str, int]:
    """Return the number of listeners of each channel that has any. Channels by slot of a cluster
    are included."""
    server: Any = client
    found = server.pubsub_numsub(*server.pubsub_channels())
    if client.info("server")["redis_version"] > "7":
        found += server.pubsub_shardnumsub(*server.pubsub_shardchannels())
    return {bytes(channel).decode(): number for channel, number in found if number}


@contextmanager
def viewing(client: redis.Redis) -> Iterator[None]:
    """Make the user `viewer` of the docs, which may only read. Its password is `secret`."""
    (rule,) = re.findall(r"^ACL SETUSER viewer (.*)$", ACCESS.read_text("utf-8"), re.MULTILINE)
    admin: Any = client
    admin.execute_command("ACL SETUSER viewer reset", *rule.split())
    try:
        yield
    finally:
        admin.execute_command("ACL DELUSER viewer")


def write_trends(
    queue: Queue | Ops, server: Server, minutes: Iterable[int], start: int = 0, now: int = 0
) -> None:
    """Write a record of trends for each of these *minutes* ago, as if a sweep had written it then.
    Each minute since *start* has ten enqueued and nine completed jobs.

    *now*: seconds of the server's clock, where the records of several are to be of the same
    moments.
    """
    keys = (queue if isinstance(queue, Ops) else queue.ops).keys
    key = keys.key("trends")
    with server.client() as client:
        now = now or int(client.time()[0])  # type: ignore[index]
        client.hset(keys.key("stats"), "trends", now * 1000)  # no other comes between
        client.set(key, bytes(36 * 5040))
        for ago in minutes:
            at = now - 60 * ago
            sums = [(start - 10 * ago) % 2**32, (start - 9 * ago) % 2**32, 0]
            record = struct.pack(">9I", at, *sums, ago, 2, 3, 4, 5500)
            client.setrange(key, 36 * (at // 60 % 2880), record)
            client.setrange(key, 36 * (2880 + at // 3600 % 2160), record)


def suspend(queue: Any, claim: Any, name: str, kind: str, due: str) -> None:
    """Suspend the run of a job that was leased."""
    ops = queue._verbs.at(claim)
    answer = queue._run(step_ops.wait(ops, claim, name, kind, due))
    assert not answer.ended
    assert queue._run(step_ops.suspend(ops, claim, [answer.number])) is not None


def waiting_run(queue: Any, id: str, payload: Any = b"x") -> None:
    """Enqueue a job that has recorded the step `charge` and its progress, and waits for the signal
    `approved`."""
    queue.enqueue(payload, id=id)
    job = queue.lease().job
    assert job.step("charge", lambda: {"paid": 7}) == {"paid": 7}
    job.progress(0.4, "page 12 of 30")
    until(lambda: queue.find(id).progress is not None)
    with pytest.raises(RunSuspended):
        job.wait_for("approved", LONG)
