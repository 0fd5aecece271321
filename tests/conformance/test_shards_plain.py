"""Jobs of a queue without shards, when a queue of this name is used with shards for the first time.
Its clients would not see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Flow, NewJob
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.servers import Server
from tests.support.steps import asked

SHARDS = {"shards": 3}
SAID = "queue 'orders/a' has 1 job without shards"
STATES: dict[str, Callable[[Any], object]] = {
    "waiting": lambda queue: queue.enqueue(b"a", priority=2),
    "delayed": lambda queue: queue.enqueue(b"a", delay=60),
    "leased": lambda queue: (queue.enqueue(b"a"), queue.lease()),
}
CALLS: dict[str, Callable[[Any], object]] = {
    "enqueue": lambda queue: queue.enqueue(b"x"),
    "enqueue_many": lambda queue: queue.enqueue_many([b"x", NewJob(b"y", id="y")]),
    "lease": lambda queue: queue.lease(),
    "counts": lambda queue: queue.counts(),
    "reshard": lambda queue: queue.admin.reshard(4),
}


def plain(connect: Connect) -> Any:
    return connect("orders/a", priorities=3)


@pytest.mark.parametrize("call", [*CALLS])
@pytest.mark.parametrize("state", [*STATES])
def test_they_are_named_before_there_are_shards(
    newest_connect: Connect, newest: Server, call: str, state: str
) -> None:
    before = plain(newest_connect)
    STATES[state](before)
    sharded = newest_connect("orders/a", **SHARDS)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=SAID):
            CALLS[call](sharded)
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert not [*client.scan_iter("*shards"), *client.scan_iter("*~*")]
    if state == "leased":
        return
    before.admin.purge() if state == "waiting" else before.admin.delete()
    CALLS[call](sharded)


def test_a_queue_that_has_had_jobs(newest_connect: Connect) -> None:
    """Its dead letters wait for nobody, and can be redriven without shards."""
    before = plain(newest_connect)
    before.enqueue_many([b"done", b"dead"])
    before.lease().complete()
    before.lease().dead_letter("no such shelf")
    sharded = newest_connect("orders/a", **SHARDS)
    sharded.enqueue(b"x")
    assert (sharded.counts().waiting, before.counts().dead) == (1, 1)


def test_the_first_use_pays(newest_connect: Connect, newest: Server) -> None:
    """Later clients ask as often as before, and do not mind jobs that came since."""
    newest_connect("orders/a", **SHARDS).enqueue(b"x")
    plain(newest_connect).enqueue(b"y")
    later = newest_connect("orders/a", **SHARDS)
    with redis.Redis(unix_socket_path=newest.path) as client:
        before = asked(client)
        later.enqueue(b"x")
        assert asked(client) == before + 2  # the table, and the job


def test_another_queue_of_the_group(newest_connect: Connect) -> None:
    """The group has its table already. The queue is noted in it once it is used."""
    newest_connect("orders/b", **SHARDS).counts()
    before = plain(newest_connect)
    before.enqueue(b"x")
    sharded = newest_connect("orders/a", **SHARDS)
    with pytest.raises(ConfigurationError, match=SAID):
        sharded.enqueue(b"y")
    before.admin.purge()
    sharded.enqueue(b"y")
    assert newest_connect("orders/b", **SHARDS).admin.reshard(4).left == 0
    assert sharded.counts().waiting == 1


def test_a_flow(newest_connect: Connect) -> None:
    before = plain(newest_connect)
    before.enqueue(b"x")
    flow = newest_connect.make(Flow, "orders", **SHARDS)
    flow.stage("first")
    flow.stage("a")
    with pytest.raises(ConfigurationError, match=SAID):
        flow.start(b"")
    before.admin.purge()
    assert flow.start(b"").added


def test_a_worker(newest: Server, work: Callable[..., Running]) -> None:
    """It ends. Once the jobs are done, another one serves the queue."""
    with newest.queue("orders/a") as before:
        before.enqueue(b"x")
        running = work()
        running.handler("orders/a", **SHARDS)(lambda job: None)
        running.start()
        until(lambda: not running.engine or running.engine.error is not None, "its end")
        with pytest.raises(ConfigurationError, match=SAID):
            running.close()
        assert before.lease().complete()
    running = work()
    running.handler("orders/a", **SHARDS)(lambda job: None)
    with newest.queue("orders/a", **SHARDS) as queue, running:
        queue.enqueue(b"x")
        until(lambda: queue.counts().completed == 1, "its job")
