"""The server shows what needs attention. The causes are new dead letters, unknown kinds, held jobs,
long waits and INFO.
"""

from __future__ import annotations

import pytest

from headrace import NewJob, Queue, Rate, Worker
from headrace._core.views.overview import LETTERS
from tests.conformance.test_inspector import Look, look, plain
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, write_trends

__all__ = ["look", "plain"]  # fixtures


def told(look: Look) -> dict[str, str]:
    """Return the sentences about what needs attention, by kind."""
    return {one.kind: f"{one.queue}: {one.text}" for one in look().overview().attention}


def test_a_sound_queue_needs_none(look: Look, plain: Queue) -> None:
    plain.enqueue(b"x", delay=LONG)
    plain.enqueue(b"x")
    plain.lease()
    assert told(look) == {}


def test_dead_letters_of_the_last_hour(look: Look, plain: Queue, server: Server) -> None:
    """All letters count while none is older than an hour. Purged letters need no attention."""
    plain.enqueue_many([b"x"] * (LETTERS + 2))
    for lease in plain.lease_many(2):
        lease.dead_letter("why")
    assert told(look)["dead"] == "q: 2 new dead letters in the last hour"
    for lease in plain.lease_many(LETTERS):
        lease.dead_letter("why")
    assert told(look) == {"dead": f"q: {LETTERS + 2} new dead letters in the last hour"}
    seen = look()
    seen.overview()
    plain.admin.purge_dead()
    assert seen.overview().attention == ()


@pytest.mark.differs("parts")
def test_large_dead_letters_beside_an_old_one(look: Look, plain: Queue, server: Server) -> None:
    """Letters are as large as their payloads and tracebacks. The number that is counted by reading
    is bounded."""
    number = 78
    with server.client() as client:
        hour = int(client.time()[0]) - 3601
        client.xadd(plain.ops.keys.key("dead"), {"reason": "why"}, id=f"{hour}000-0")
        client.hincrby(plain.ops.keys.key("stats"), "added", 1)
    plain.enqueue_many([bytes(6000)] * number + [b"x"] * LETTERS)
    for lease in plain.lease_many(number):
        lease.dead_letter("why")
    assert told(look)["dead"] == f"q: {number} new dead letters in the last hour"
    for lease in plain.lease_many(LETTERS):
        lease.dead_letter("why")
    assert told(look)["dead"] == f"q: at least {LETTERS} new dead letters in the last hour"


@pytest.mark.differs("parts")
def test_an_old_dead_letter_is_not_new(look: Look, plain: Queue, server: Server) -> None:
    with server.client() as client:
        hour = int(client.time()[0]) - 3601
        client.xadd(plain.ops.keys.key("dead"), {"reason": "why"}, id=f"{hour}000-0")
        client.hincrby(plain.ops.keys.key("stats"), "added", 1)
    assert "dead" not in told(look)


def test_no_worker_and_a_pause(look: Look, plain: Queue, server: Server) -> None:
    plain.enqueue_many([b"x"] * 3)
    assert told(look) == {"no worker": "q: 3 jobs wait, and no worker is alive"}
    plain.admin.pause()
    assert told(look) == {"paused": "q: paused, 3 jobs wait"}


@pytest.mark.differs("parts")
def test_kinds_that_no_worker_handles(look: Look, plain: Queue, server: Server) -> None:
    """A waiting kind is reported while the live workers take only other kinds. A worker that takes
    all kinds ends that.
    """
    plain.enqueue_many([NewJob(b"x", headers={"kind": kind}) for kind in ("a", "b")])
    worker = Worker(url=server.url)
    worker.handler("q", kind="a", grace=LONG)(lambda job: None)
    with worker:
        until(lambda: plain.counts().completed == 1, "the job of the known kind")
        until(lambda: "unknown kind" in told(look), "the other kind")
        assert told(look) == {"unknown kind": "q: no worker has a handler for b"}
        other = Worker(url=server.url)
        other.handler("q")(lambda job: None)
        with other:
            until(lambda: not told(look), "a handler for it")


@pytest.mark.differs("parts")
def test_jobs_that_died_of_their_kind(look: Look, plain: Queue, server: Server) -> None:
    plain.enqueue(NewJob(b"x", headers={"kind": "b"}))
    worker = Worker(url=server.url)
    worker.handler("q", kind="a", grace=0)(lambda job: None)
    with worker:
        until(lambda: plain.counts().dead == 1, "its death")
    found = told(look)
    assert found["unknown kind"] == "q: 1 job died: no worker had a handler"
    assert found["dead"] == "q: 1 new dead letter in the last hour"


@pytest.mark.differs("parts")
def test_a_rate_limit_that_holds_jobs_back(look: Look, server: Server, colour: str) -> None:
    """A limit of the whole queue leaves jobs where they wait. A limit by a header postpones
    them."""
    name = f"r-{colour}"  # a process declares a queue once
    with Queue(name, url=server.url, rate=Rate(1, per=LONG)) as limited:
        limited.enqueue_many([b"x"] * 3)
        assert "rate" not in told(look)
        limited.lease_many(3)
        assert told(look)["rate"] == f"{name}: a rate limit holds back the jobs, 2 jobs wait"
        limited.admin.delete()
    with Queue("k", url=server.url, rate=Rate(1, per=LONG, key="tenant")) as keyed:
        keyed.enqueue_many([NewJob(b"x", headers={"tenant": "a"})] * 3)
        keyed.lease_many(3)
        assert told(look)["rate"] == "k: a rate limit holds back 2 jobs"


def test_a_rate_limit_of_each_shard_that_holds_jobs_back(
    look: Look, server: Server, colour: str
) -> None:
    name = f"s-{colour}"
    with Queue(name, url=server.url, rate=Rate(2, per=LONG, per_shard=True), shards=2) as queue:
        queue.enqueue_many([NewJob(b"x", f"j{n}") for n in range(20)])
        assert "rate" not in told(look)
        assert len(queue.lease_many(20)) == 2
        assert told(look)["rate"] == f"{name}: a rate limit holds back the jobs, 18 jobs wait"
        queue.admin.purge()
        assert "rate" not in told(look)


@pytest.mark.differs("parts")
def test_the_oldest_waits_over_its_usual(look: Look, server: Server) -> None:
    """The trends give the usual wait. A minute is too long if 5.5 seconds are usual. Without trends
    the limit is five minutes.
    """
    with Queue("t", url=server.url, trends=True) as queue:
        entry = queue.enqueue(b"x")
        queue.lease()
        with server.client() as client:
            now = int(client.time()[0])
            key = queue.ops.keys.key("jobs")
            client.delete(key)
            client.xadd(key, {"data": "x"}, id=f"{now - 100}000-0")
        assert entry
        assert "oldest" not in told(look)
        write_trends(queue, server, range(1, 30))
        assert told(look)["oldest"].endswith(", usually 6 s")


def test_the_server_s_facts(look: Look, plain: Queue, server: Server) -> None:
    """The view has the server's name, version and address. If the server refuses INFO, it shows
    everything else."""
    plain.enqueue(b"x")
    facts = look().overview().server
    assert facts.memory > 100_000
    with server.client() as client:
        said = client.info("server")
    assert facts.version == said.get("valkey_version", said["redis_version"])
    assert facts.name == ("Valkey" if "valkey_version" in said else "Redis")
    assert facts.address
