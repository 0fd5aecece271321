"""Follow-ups of a sharded queue that belong to another shard by key or id. Each is handed over
once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from headrace import Counts, NewJob, Queue
from headrace._core.shards import transfer as handing
from headrace._core.shards.transfer import Targets, hand_over
from headrace._model.job import Claim
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from tests.support.awaiting import until
from tests.support.engines import KINDS, Running
from tests.support.servers import Server

SHARDS = 6
TABLE = Table.of("q", SHARDS)
HERE = "k"
FAR = [key for key in (f"k{n}" for n in range(200)) if TABLE.shard_of(key) != TABLE.shard_of(HERE)]


@pytest.fixture
def queue(connect: Any) -> Any:
    return connect("q/a", shards=SHARDS)


@pytest.fixture
def after(connect: Any) -> Any:
    return connect("q/b", shards=SHARDS)


def leave(url: str, *then: NewJob[Any]) -> None:
    """Complete a job as if the worker died right afterwards. Its follow-ups are not sent."""
    with Queue("q/a", url=url, shards=SHARDS) as queue:
        queue.enqueue(b"first", key=HERE)
        lease = queue.lease()
        assert lease is not None
        claim: Claim = lease.claim
        assert queue._executor.run(queue._verbs.at(claim).complete([claim], then=then)) == [True]


def taken(queue: Any) -> list[Any]:
    """Complete the jobs of a queue and return them."""
    jobs: list[Any] = []
    while leases := queue.lease_many(100):
        assert all(queue.complete_many(leases))
        jobs += [lease.job for lease in leases]
    return jobs


def kept(client: redis.Redis, *parts: str) -> int:
    """Return the number of keys of that kind."""
    keys: Any = client.keys()
    return sum(key.decode().rpartition(":")[2] in parts for key in keys)


def test_it_goes_to_its_shard_at_once(queue: Any, after: Any, client: redis.Redis) -> None:
    queue.enqueue(b"x", key=HERE)
    lease = queue.lease()
    follow = [
        NewJob(b"a", key=FAR[0], headers={"h": "v"}),
        NewJob(b"b", id=FAR[1], queue="q/b"),
        NewJob(b"c", id="named", key=FAR[2], queue="q/b", delay=3600),
        NewJob(b"d", key=HERE),
    ]
    assert lease.complete(b"result", then=follow)
    assert queue.counts() == Counts(waiting=2, enqueued=3, completed=1)
    assert after.counts() == Counts(waiting=1, delayed=1, enqueued=2)
    assert queue.result(lease.job.id) == b"result"
    assert 3590 < after.find("named", key=FAR[2]).due - after.find(FAR[1]).job.enqueued_at < 3610
    jobs = {job.payload: job for job in taken(queue)}
    assert (jobs[b"a"].shard, jobs[b"a"].key) == (TABLE.shard_of(FAR[0]), FAR[0])
    assert jobs[b"a"].headers == {"h": "v", "headrace-key": FAR[0]}
    assert [(job.id, job.shard) for job in taken(after)] == [(FAR[1], TABLE.shard_of(FAR[1]))]
    assert not lease.complete(then=[NewJob(b"never", key=FAR[0])])
    assert kept(client, "outbox", "outdue") == 0


def test_an_id_that_is_taken_is_left_as_it_is(queue: Any) -> None:
    queue.enqueue(b"first", id=FAR[0])
    queue.enqueue(b"x", key=HERE)
    leases = {lease.job.payload: lease for lease in queue.lease_many(2)}
    assert leases[b"x"].complete(then=[NewJob(b"second", id=FAR[0])])
    counts = queue.counts()
    assert (counts.leased, counts.enqueued, counts.handing) == (1, 2, 0)
    assert leases[b"first"].complete()


def test_the_same_id_again_is_another_job(queue: Any) -> None:
    """A new job has the same id soon after the first was completed. It is not mistaken for the
    first."""
    for _ in range(3):
        queue.enqueue(b"x", key=HERE)
        assert queue.lease().complete(then=[NewJob(b"y", id=FAR[0])])
        assert [job.payload for job in taken(queue)] == [b"y"]


def test_a_priority_goes_with_it(connect: Any) -> None:
    queue = connect("q/a", shards=SHARDS, priorities=3)
    queue.enqueue(b"x", key=HERE)
    then = [
        NewJob(b"last", key=FAR[0], priority=2),
        NewJob(b"first", key=FAR[0]),
        NewJob(b"then", key=FAR[0], priority=1),
    ]
    assert queue.lease().complete(then=then)
    assert queue.admin.levels() == 3
    assert [job.payload for job in taken(queue)] == [b"first", b"then", b"last"]


def test_those_of_one_call_keep_their_order(queue: Any) -> None:
    queue.enqueue(b"x", key=HERE)
    assert queue.lease().complete(then=[NewJob(b"%d" % n, key=FAR[0]) for n in range(200)])
    assert [job.payload for job in taken(queue)] == [b"%d" % n for n in range(200)]


def test_lease_sends_what_others_left(queue: Any, server: Server) -> None:
    leave(server.url, NewJob(b"a", key=FAR[0]), NewJob(b"b", key=FAR[1]))
    counts = queue.counts()
    assert (counts.handing, counts.present, counts.enqueued, counts.lost) == (2, 2, 1, 0)
    assert not queue.admin.drain(0)
    found = [queue.lease(block=20), queue.lease(block=20)]
    assert sorted(lease.job.payload for lease in found) == [b"a", b"b"]
    assert queue.complete_many(found) == [True, True]
    assert queue.admin.drain(20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_sends_what_others_left(newest: Server, kind: str) -> None:
    """A worker also sends follow-ups to queues that it does not serve. No record of them stays for
    ever."""
    leave(
        newest.url,
        *(NewJob(b"%d" % n, key=key, queue=f"q/{'ab'[n % 2]}") for n, key in enumerate(FAR)),
    )
    done: Counter[bytes] = Counter()
    worker = Running(kind, url=newest.url, heartbeat=0.2, timeout=2.0)

    @worker.handler("q/a", shards=SHARDS, concurrency=10)
    def work(job: Any) -> None:
        done[job.payload] += 1

    with (
        worker,
        Queue("q/a", url=newest.url, shards=SHARDS) as queue,
        Queue("q/b", url=newest.url, shards=SHARDS) as other,
    ):
        assert queue.admin.drain(60)
        assert other.counts() == Counts(waiting=len(FAR[1::2]), enqueued=len(FAR[1::2]))
        with newest.client() as client:
            until(lambda: kept(client, "outbox", "outdue", "closing") == 0, "an empty outbox")
            handed: Any = client.keys("*:handed")
            ttls: list[Any] = [client.pttl(key) for key in handed]
            assert ttls
            assert all(0 < ttl <= 600_000 for ttl in ttls)
    assert done == {b"%d" % n: 1 for n in range(0, len(FAR), 2)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_not_be_sent_stays(
    newest: Server, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follow-up that can't be sent is logged. The others go on, and it is sent when that is
    possible."""
    monkeypatch.setattr(handing, "SILENT_S", 1.0)
    table = Table.of("q", SHARDS)
    broken = Keys.of("q/a").at(table.shards[table.shard_of(FAR[0])]).key("handed")
    others = [key for key in FAR if table.shard_of(key) != table.shard_of(FAR[0])]
    worker = Running(kind, url=newest.url, heartbeat=0.2, timeout=2.0)
    done: Counter[bytes] = Counter()
    worker.handler("q/a", shards=SHARDS)(lambda job: done.update([job.payload]))
    with newest.client() as client, Queue("q/a", url=newest.url, shards=SHARDS) as queue:
        client.set(broken, "mine")
        leave(newest.url, NewJob(b"late", key=FAR[0]), *(NewJob(b"x", key=key) for key in others))
        with worker:
            until(lambda: done[b"x"] == len(others), "the others")
            until(lambda: "handing_failed" in caplog.text, "that it is said")
            assert queue.counts().handing == 1
            client.delete(broken)
            until(lambda: done[b"late"] == 1, "the last")
            assert queue.admin.drain(20)


@pytest.mark.parametrize("delete", [False, True], ids=["purge", "delete"])
def test_purge_and_delete(queue: Any, after: Any, server: Server, delete: bool) -> None:
    """A purge removes waiting jobs. Jobs on their way arrive, unless the whole queue is deleted."""
    leave(server.url, NewJob(b"a", key=FAR[0], queue="q/b"))
    queue.enqueue_many([b"x"] * 3)
    assert (queue.admin.delete() if delete else queue.admin.purge()) == 3 + delete
    counts = queue.counts()
    assert (counts.present, counts.lost) == (1 - delete, 0)
    assert queue.lease() is None
    assert after.counts().waiting == 1 - delete


def test_repeated_sweeps_of_several(queue: Any, server: Server) -> None:
    """All of them send the same jobs, and a consumer is quick."""
    leave(server.url, *(NewJob(b"%d" % n, key=key) for n, key in enumerate(FAR)))
    whole = [Queue("q/a", url=server.url, shards=SHARDS) for _ in range(3)]
    calls = [hand_over(one._verbs.map, one._verbs.map.ordered(), Targets()) for one in whole]  # type: ignore[union-attr]
    done: Counter[bytes] = Counter()
    effects = [next(call) for call in calls]
    while calls:
        for call, effect in list(zip(calls, effects, strict=True)):
            place = calls.index(call)
            try:
                effects[place] = call.send(whole[0]._perform(effect))
            except StopIteration:
                del calls[place], effects[place]
        for part in whole[0]._verbs.map.ordered():  # type: ignore[union-attr]
            grant = whole[0]._executor.run(part.lease("quick", 100, ttl=60.0))
            if grant is not None and grant.claims:
                assert all(whole[0]._executor.run(part.complete(grant.claims)))
                done.update(claim.job.payload for claim in grant.claims)
    done.update(job.payload for job in taken(queue))
    assert done == {b"%d" % n: 1 for n in range(len(FAR))}
    for one in whole:
        one.close()
