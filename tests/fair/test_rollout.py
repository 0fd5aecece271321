"""Changed terms never stop a queue. Different workers go on by the queue's terms, which change when
all declare others.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Limit, NewJob, Queue, Rate
from headrace._api import queue as base_queue
from headrace._model.settings import QueueSettings
from headrace._protocol import view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.view_ops import About
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]
LIMITS = {"limits": Limit(1, key="tenant")}
TERMS = "fair= limits=tenant rates="


def of(tenant: str, number: int) -> list[NewJob[bytes]]:
    """Make jobs of a tenant, in any shard."""
    return [NewJob(b"x", headers={"tenant": tenant}, key=f"{at}") for at in range(number)]


def sent(client: redis.Redis, op: Op[Any]) -> Any:
    """Send an operation and return its answer."""
    return op.decode(client.execute_command(*op.wire("EVAL", "l", "1"), NEVER_DECODE=True))


def about(queue: Any, client: redis.Redis) -> About:
    """Read the facts about a queue."""
    return sent(client, view_ops.about(queue.ops))


def structure(queue: Any, client: redis.Redis) -> set[str]:
    """Return which terms the shards of a queue have."""
    return {
        (client.hget(ops.keys.key("stats"), "terms") or b"").decode()
        for ops in queue._verbs.map.ordered()
    }


class Fleet:
    """Workers of one queue whose handlers wait at a gate. It counts how many run at a time."""

    def __init__(self, make: Work, **shared: Any) -> None:
        self.make, self.shared = make, shared
        self.running, self.most, self.done = Counter[str](), Counter[str](), 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def handle(self, job: Any) -> Any:
        """Run as long as the gate is closed."""
        tenant = job.headers["tenant"]
        with self._lock:
            self.running[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.running[tenant])
        yield self.gate
        with self._lock:
            self.running[tenant] -= 1
            self.done += 1

    def worker(self, **options: Any) -> Running:
        worker = self.make(heartbeat=0.2, timeout=1.0)
        worker.handler("q", concurrency=4, **self.shared, **options)(self.handle)
        return worker

    def run(self, queue: Any, tenant: str, number: int) -> None:
        before = self.done
        queue.enqueue_many(of(tenant, number))
        until(lambda: self.done == before + number, f"jobs of {tenant}")

    def together(self, queue: Any, tenant: str, number: int, expected: int) -> None:
        """Run these jobs, and return how many run at a time over several lease calls."""
        self.gate.clear()
        before, calls = self.done, queue.counts().enqueued
        queue.enqueue_many(of(tenant, number))
        until(lambda: self.running[tenant] == expected, f"{expected} jobs of {tenant} run")
        # by a lease call that might have more of them
        queue.enqueue(b"x", headers={"tenant": f"beside {tenant}"})
        until(
            lambda: self.running[f"beside {tenant}"] == 1 or expected >= 4, "another tenant's job"
        )
        self.gate.set()
        until(lambda: self.done == before + number + 1, f"all after {calls}")
        assert self.most[tenant] == expected


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Return the log lines of an event."""
    return [
        text for record in caplog.records if (text := record.getMessage()).startswith(f"{event}:")
    ]


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
def test_a_rollout_of_limits_and_its_rollback(
    newest: Server, work: Work, sharded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Both fleets work all the time. Limits begin when the last old worker has left, and end in the
    same way."""
    caplog.set_level(logging.INFO, "headrace")
    shared: dict[str, Any] = {"shards": 2} if sharded else {}
    key = "headrace-key" if sharded else "tenant"
    new, mine = {"limits": Limit(1, key=key)}, f"fair= limits={key} rates="
    fleet = Fleet(work, **shared)
    with Queue[bytes]("q", url=newest.url, **shared) as queue, newest.client() as client:
        with fleet.worker():
            fleet.run(queue, "a", 30)
            with fleet.worker(**new), fleet.worker(**new):
                until(
                    lambda: len(said(caplog, "terms_differ")) == 2, "each of the new ones says so"
                )
                fleet.run(queue, "b", 30)
                assert structure(queue, client) == {""}
        caplog.clear()
        with fleet.worker(**new):
            until(lambda: structure(queue, client) == {mine}, "the limits")
            fleet.run(queue, "c", 30)
            with fleet.worker():  # the rollback: a worker that knows no terms
                fleet.run(queue, "d", 30)
                until(lambda: len(said(caplog, "terms_differ")) == 1, "the old one says so")
                fleet.run(queue, "e", 30)
                assert structure(queue, client) == {mine}
        with fleet.worker():
            fleet.run(queue, "f", 30)
            until(lambda: structure(queue, client) == {""}, "the end of the limits")
            fleet.run(queue, "g", 30)
        assert queue.counts().lost == 0
    assert said(caplog, "role_failed") == []


def test_workers_obey_the_terms_that_the_queue_has(newest: Server, work: Work) -> None:
    fleet = Fleet(work)
    with Queue[bytes]("q", url=newest.url) as queue, newest.client() as client:
        with fleet.worker(**LIMITS):
            until(lambda: structure(queue, client) == {TERMS})
            with fleet.worker():
                fleet.together(queue, "a", 4, 1)
                fleet.together(queue, "b", 4, 1)
            assert queue.counts().held == 0
        with fleet.worker():
            until(lambda: structure(queue, client) == {""})
            with fleet.worker(**LIMITS):
                fleet.together(queue, "c", 4, 4)


def test_terms_change_under_running_workers(
    newest: Server, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """When the last old worker leaves, the terms of the new ones apply within a moment. Running
    jobs go on."""
    caplog.set_level(logging.INFO, "headrace")
    fleet = Fleet(work)
    with Queue[bytes]("q", url=newest.url) as queue, newest.client() as client:
        old = fleet.worker()
        with old:
            fleet.run(queue, "a", 3)
            with fleet.worker(**LIMITS):
                until(lambda: said(caplog, "terms_differ"))
                old.stop()
                until(lambda: structure(queue, client) == {TERMS})
                fleet.together(queue, "b", 4, 1)
                until(lambda: said(caplog, "terms_changed"))
    assert said(caplog, "terms_changed") == [
        f"terms_changed: queue 'q' has the terms `{TERMS}` now"
    ]


@pytest.mark.parametrize("between", [[], ["second"]], ids=["in turn", "between"])
def test_workers_that_start_together_have_their_terms_at_once(
    between: list[str], newest_queue: Any, newest: Server
) -> None:
    """A registered worker that has not declared yet does not count as one without terms. Its
    declaration stays while it registers, even if another worker declares meanwhile.
    """
    ops = Ops(newest_queue.ops.keys, QueueSettings(**LIMITS))
    with newest.client() as client:
        for name in ("first", "second"):
            sent(client, fair_ops.tell(ops, name))
            for other in between:
                sent(client, fair_ops.tell(ops, other))
            sent(client, ops.beat(name, 10.0, register=True))
        assert sent(client, fair_ops.declare(ops, "second")).structure == TERMS


def test_a_word_of_an_operator_stands_until_the_fleet_has_new_workers(
    newest: Server, work: Work
) -> None:
    fleet = Fleet(work)
    with Queue[bytes]("q", url=newest.url) as queue, newest.client() as client:
        with fleet.worker(**LIMITS):
            until(lambda: structure(queue, client) == {TERMS})
            queue.admin.redeclare(fair="tenant")
            fleet.run(queue, "a", 5)
            with fleet.worker(**LIMITS):
                fleet.together(queue, "b", 8, 8)
                assert structure(queue, client) == {"fair=tenant limits= rates="}
        with fleet.worker(**LIMITS):
            until(lambda: structure(queue, client) == {TERMS}, "the terms of the new fleet")
            queue.admin.redeclare()
            fleet.together(queue, "c", 4, 4)


def test_terms_of_a_queue_that_was_deleted_come_back(newest: Server, work: Work) -> None:
    fleet = Fleet(work)
    with (
        Queue[bytes]("q", url=newest.url) as queue,
        newest.client() as client,
        ExitStack() as stack,
    ):
        for _ in range(2):
            stack.enter_context(fleet.worker(**LIMITS))
        until(lambda: structure(queue, client) == {TERMS})
        fleet.run(queue, "a", 3)
        queue.admin.delete()
        fleet.together(queue, "b", 3, 1)


def test_a_refused_declaration_changes_no_version_and_says_no_word(
    newest: Server, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    fleet = Fleet(work)
    with Queue[bytes]("q", url=newest.url) as queue, newest.client() as client:
        with fleet.worker(**LIMITS, rate=Rate(500)):
            until(lambda: about(queue, client).declared.keys() >= {"limits", "rate", "terms"})
            before = about(queue, client)
            with fleet.worker(fair="tenant", rate=Rate(7)), fleet.worker(rate=Rate(8)):
                until(lambda: len(said(caplog, "terms_differ")) == 2)
                fleet.run(queue, "a", 3)
                after = about(queue, client)
                assert (after.declaration, after.declared) == (before.declaration, before.declared)
            assert said(caplog, "declaration_differs") == []
            with fleet.worker(limits=Limit(2, key="tenant"), rate=Rate(500)):
                until(lambda: said(caplog, "declaration_differs"))
        assert about(queue, client).declared["limits"] == "2 of tenant"
    (text,) = said(caplog, "declaration_differs")
    assert (
        "limits is 2 of tenant here, and 1 of tenant as others declare it; this one counts now"
        in text
    )


# -- leases without a worker -----------------------------------------------------------------------


def test_a_program_with_other_terms_obeys(connect: Any) -> None:
    queue = connect(**LIMITS)
    queue.enqueue_many(of("a", 3) + of("b", 3))
    (first, _) = queue.lease_many(6)
    for other in (connect(), connect(fair="org"), connect(fair="tenant", limits=Limit(5))):
        assert other.lease_many(6) == []
    assert first.complete()
    assert len(connect().lease_many(6)) == 1
    assert connect().enqueue(b"x").added


def test_terms_wait_until_a_program_without_some_is_gone(connect: Any, client: redis.Redis) -> None:
    queue, other = connect(), connect(**LIMITS)
    queue.enqueue_many(of("a", 5))
    assert queue.lease() is not None
    assert len(other.lease_many(2)) == 2
    assert structure(queue, client) == {""}


def test_rates_are_the_queue_s(connect: Any) -> None:
    """A program that declares none does not pass them by. The latest declaration of the same keys
    counts."""
    queue = connect(fair="tenant", rate=[Rate(1, per=600, key="user")])
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a", "user": "ada"}) for _ in range(9)])
    assert len(queue.lease_many(9)) == 1
    assert connect().lease_many(9) == []
    assert connect(rate=Rate(9, per=600, key="user")).lease_many(9) == []
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a", "user": "bob"}) for _ in range(9)])
    assert len(connect(fair="tenant", rate=[Rate(3, per=600, key="user")]).lease_many(9)) == 3


def test_an_operator_keeps_the_rates(connect: Any) -> None:
    base_queue._DECLARED.clear()  # as another process
    queue = connect(rate=Rate(2, per=600))
    queue.enqueue_many(of("a", 9))
    connect().admin.redeclare(limits=Limit(5))
    assert len(queue.lease_many(9)) == 2
    queue.admin.redeclare()
    assert connect(rate=Rate(2, per=600)).lease_many(9) == []


def test_an_operator_who_does_not_know_all_rates_is_refused(connect: Any) -> None:
    rates = [Rate(at + 1, per=600, key=f"header-{at}") for at in range(5)]
    base_queue._DECLARED.clear()  # as another process
    connect(rate=rates).enqueue(b"x")
    with pytest.raises(ConfigurationError, match="give them to the Queue"):
        connect().admin.redeclare(limits=Limit(5))
    connect(rate=rates).admin.redeclare(limits=Limit(5))


def test_names_of_headers_are_kept_whatever_they_have(connect: Any) -> None:
    """A structure is text in which separators inside names are escaped."""
    queue = connect(fair="a b/c=d", limits=[Limit(1, key="x,*/y"), Limit(9)])
    queue.enqueue_many([NewJob(b"x", headers={"x,*/y": "1"}) for _ in range(3)])
    assert len(queue.lease_many(3)) == 1
    assert connect().lease_many(3) == []
