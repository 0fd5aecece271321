"""Draining shards keep their suspended runs until these have ended. The change of the number ends
after that."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace._protocol.features.runs import ops as step_ops
from tests.conformance.test_resharding import OLD, gone
from tests.support.colours import Connect
from tests.support.steps import suspend

NEW = 6
DAY = "+86400000"


@pytest.mark.parametrize(("kind", "state"), [("sleep", "delayed"), ("wait", "blocked")])
def test_a_suspended_run_stays_in_its_shard(
    connect: Connect, client: redis.Redis, kind: str, state: str
) -> None:
    queue: Any = connect("q", shards=OLD)
    queue.enqueue(b"x", id="i")
    lease = queue.lease()
    ops = queue._verbs.at(lease.claim)
    queue._run(
        step_ops.record(ops, lease.claim, 0, "charge", b"jnull", ended=True, took=0.0, ttl=0.0)
    )
    suspend(queue, lease.claim, "go", kind, DAY)
    assert queue.admin.reshard(NEW).left == 1
    found = gone(queue, client)
    assert (found.draining, found.left, found.done) == (1, 1, False)
    again = connect("q", shards=OLD)
    assert not again.enqueue(b"y", id="i").added
    state_now = again.find("i")
    assert (state_now.state, [one.name for one in state_now.steps]) == (state, ["charge", "go"])
    assert getattr(again.counts(), state) == 1
    assert again.lease() is None
    if kind == "sleep":
        for name in client.keys("headrace:{q~*:asleep"):
            (entry,) = client.zrange(name, 0, -1)
            client.zadd(name, {entry: 1})
    else:
        assert again.signal("i", "go", b"yes") == "woke"
    lease = again.lease()
    assert (lease.job.id, lease.job.attempt) == ("i", 1)
    assert lease.complete()
    assert again.counts().present == 0
    assert gone(again, client).done
    assert not client.keys("headrace:{q~*:steps")
    assert not client.keys("headrace:{q~*:asleep")


def test_a_dead_letter_of_a_shard_that_drains_begins_again(
    connect: Connect, client: redis.Redis
) -> None:
    queue: Any = connect("q", shards=OLD)
    queue.enqueue(b"x", id="i")
    lease = queue.lease()
    ops = queue._verbs.at(lease.claim)
    for name in ("a", "b"):
        queue._run(
            step_ops.record(ops, lease.claim, 0, name, b"jnull", ended=True, took=0.0, ttl=0.0)
        )
    lease.dead_letter("why")
    queue.admin.reshard(NEW)
    with pytest.raises(ValueError, match="it has recorded 'a', 'b'"):
        queue.admin.redrive("i", from_step="c")
    assert queue.admin.redrive("i", from_step="b") == 1
    assert [one.name for one in queue.find("i").steps] == ["a"]
    assert queue.lease().complete()
    assert gone(queue, client).done
