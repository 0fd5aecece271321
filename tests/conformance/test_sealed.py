"""Payloads that are bound to their queue and job. They open wherever the server or a worker moves
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import Debounce, NewJob, Replace
from headrace._model.shards import Table
from headrace.codecs import DirectoryStore, Encrypted, JSONCodec, Offloaded
from tests.conformance.test_resharding import gone
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import LONG, payloads

pytest.importorskip("cryptography")

SHARDS, MORE = 3, 5
KEYS = {"k": bytes(range(32))}
TABLE = Table.of("g", SHARDS)
IDS = [f"i{n}" for n in range(12)]


@pytest.fixture(params=["plain", "offloaded"])
def codec(request: Any, tmp_path: Path) -> Any:
    """Return a codec around JSON that seals the payload, or seals the ticket of a store."""
    if request.param == "plain":
        return Encrypted(JSONCodec(), KEYS)
    return Encrypted(Offloaded(JSONCodec(), DirectoryStore(tmp_path), over=1), KEYS)


@pytest.fixture(params=[1, SHARDS], ids=["one", "shards"])
def shards(request: Any) -> int:
    """How many shards a queue has."""
    return int(request.param)


def taken(queue: Any) -> list[Any]:
    """Complete each job of a queue and return the payloads. None may be quarantined."""
    found: list[Any] = []
    while leases := queue.lease_many(100):
        found += [lease.job.payload for lease in leases]
        assert all(queue.complete_many(leases))
    assert queue.counts().dead == 0
    return sorted(found)


def test_it_is_read_wherever_its_job_is(newest_connect: Connect, codec: Any, shards: int) -> None:
    """The job is waiting, delayed, retried, released, dead and redriven, with an id and without."""
    queue = newest_connect("g/a", codec=codec, shards=shards, max_attempts=2)
    queue.enqueue_many(
        [[0], NewJob([1], id="a"), NewJob([2], id="b", delay=LONG), NewJob([3], delay=LONG)]
    )
    assert sorted(payloads(queue.admin.waiting())) == [[0], [1]]
    assert sorted(payloads(queue.admin.delayed())) == [[2], [3]]
    assert [queue.find(name).job.payload for name in "ab"] == [[1], [2]]
    first, second = queue.lease_many(2)
    assert first.retry()
    assert second.release()
    assert sorted(payloads(queue.admin.waiting())) == [[0], [1]]
    for lease in queue.lease_many(2):
        assert lease.dead_letter("why")
    assert sorted(payloads(queue.admin.dead())) == [[0], [1]]
    assert queue.admin.redrive() == 2
    assert queue.admin.reschedule("b", 0)
    left: list[Any] = []
    until(lambda: left.extend(taken(queue)) or len(left) == 3, "the delayed one, too")
    assert sorted(left) == [[0], [1], [2]]


def test_what_takes_the_place_of_a_job(newest_connect: Connect, codec: Any) -> None:
    queue = newest_connect("g/a", codec=codec)
    for number in range(2):
        queue.enqueue([number], id="debounced", if_exists=Debounce(LONG))
        queue.enqueue([5 + number], id="replaced", if_exists=Replace())
    queue.enqueue([8], id="once", unique_for=LONG)
    assert payloads(queue.admin.delayed()) == [[0]]
    assert taken(queue) == [[6], [8]]


def test_a_reshard_takes_it_along(newest_connect: Connect, newest: Server, codec: Any) -> None:
    """Delayed jobs, dead letters and schedules are read in their new shard. The jobs that stay are
    read too."""
    queue = newest_connect("g/a", codec=codec, shards=SHARDS)
    jobs = [NewJob([n], id=name, delay=LONG if n % 3 == 0 else None) for n, name in enumerate(IDS)]
    queue.enqueue_many([*jobs, [len(IDS)]])
    (lease, *_) = queue.lease_many(1)
    assert lease.dead_letter("why")
    queue.admin.schedule("s", {"of": "s"}, every=LONG)
    queue.admin.reshard(MORE)
    assert queue.admin.redrive() == 1
    assert [queue.find(name).job.payload for name in IDS] == [[n] for n in range(len(IDS))]
    for name in IDS[::3]:
        assert queue.admin.reschedule(name, 0)
    left: list[Any] = []
    until(lambda: left.extend(taken(queue)) or len(left) > len(IDS), "all of them")
    assert sorted(left) == [[n] for n in range(len(IDS) + 1)]
    with newest.client() as client:
        assert gone(queue, client, "g").done
    assert [schedule.name for schedule in queue.admin.schedules()] == ["s"]


def test_the_outbox_hands_it_over(newest_connect: Connect, codec: Any) -> None:
    """Follow-ups whose key or id is in another shard, of this queue and of another one of the
    group."""
    queue, other = (newest_connect(name, codec=codec, shards=SHARDS) for name in ("g/a", "g/b"))
    queue.enqueue([0], key="k")
    far = [name for name in IDS if TABLE.shard_of(name) != TABLE.shard_of("k")]
    here = [NewJob([n], id=name) for n, name in enumerate(far)]
    there = [NewJob([n, n], id=name, queue="g/b") for n, name in enumerate(far)]
    there.append(NewJob([9, 9], key="k", queue="g/b", delay=0.001))
    assert queue.lease().complete(then=[*here, *there])
    found: list[Any] = []
    until(
        lambda: found.extend([*taken(queue), *taken(other)]) or len(found) == len([*here, *there]),
        "all of them",
    )
    assert sorted(found) == sorted(job.payload for job in [*here, *there])
