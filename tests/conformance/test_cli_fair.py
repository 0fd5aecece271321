"""The program `headrace` and fair queues: shares, costs, and queues by whose header no job can be told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis

from headrace import NewJob, Queue
from tests.support.program import Program
from tests.support.servers import Server


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    with Queue[bytes]("q", url=newest.url, fair="tenant") as queue:
        yield queue


def test_shares(within: Program, queue: Queue[bytes]) -> None:
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "ada"})] * 3 + [NewJob(b"x")])
    assert len(queue.lease_many(2)) == 2
    head, *rows = within("shares", "q").stdout.splitlines()
    assert head.split("\t") == ["value", "running", "waiting", "p50", "p95", "used"]
    assert {tuple(row.split("\t")[:3]) for row in rows} == {("ada", "1", "2"), ("-", "1", "0")}
    found = [json.loads(line) for line in within("shares", "q", "--json").stdout.splitlines()]
    assert {(tuple(row["value"]), row["running"]) for row in found} == {(("ada",), 1), ((None,), 1)}


def test_a_queue_without_shares(within: Program, newest: Server) -> None:
    with Queue[bytes]("q", url=newest.url) as queue:
        queue.enqueue(b"x")
    done = within("shares", "q")
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, [])


def test_costs(within: Program, queue: Queue[bytes]) -> None:
    assert within("enqueue", "q", "--create", "a", "--cost", "4").returncode == 0
    line = json.dumps({"payload": "b", "cost": 0.5}).encode()
    assert within("enqueue", "q", "--jsonl", given=line).returncode == 0
    assert [item.job.cost for item in queue.admin.waiting()] == [4.0, 0.5]
    for given in (("a", "--cost", "0"), ("--jsonl", "--cost", "4")):
        done = within("enqueue", "q", *given, given=line)
        assert done.returncode == 2
        assert "cost" in done.stderr


def test_doctor_names_a_header_that_no_job_has(within: Program, queue: Queue[bytes]) -> None:
    queue.enqueue_many([b"x"] * 3)
    assert len(queue.lease_many(2)) == 2
    text = "fair\tqueue q: no job has the header 'tenant', by which it is fair"
    assert f"note\t{text}" in within("doctor").stdout.splitlines()
    queue.enqueue(b"x", headers={"tenant": "ada"})
    assert len(queue.lease_many(2)) == 2
    assert text not in within("doctor").stdout


def test_doctor_names_slots_of_nobody(within: Program, queue: Queue[bytes], newest: Server) -> None:
    """Until a repair gives them back."""
    queue.enqueue(b"x", headers={"tenant": "ada"})
    lease = queue.lease()
    assert lease is not None
    with redis.Redis(unix_socket_path=newest.path) as client:  # a program without slots completes the job
        assert client.xack(queue.ops.keys.key("jobs"), "workers", lease.claim.entry) == 1
        assert client.xdel(queue.ops.keys.key("jobs"), lease.claim.entry) == 1
        client.hincrby(queue.ops.keys.key("stats"), "completed", 1)
    assert (queue.counts().held, queue.counts().leased, queue.counts().lost) == (1, 0, 0)
    text = "note\tslots\tqueue q: 1 slots of 0 leased jobs; `headrace repair q` mends them"
    assert text in within("doctor").stdout.splitlines()
    assert queue.admin.repair().slots == 1
    assert "\tslots\t" not in within("doctor").stdout
