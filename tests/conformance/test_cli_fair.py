"""The program `headrace` and fair queues. The tests check shares, costs, and queues without the
header that tells jobs apart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from headrace import NewJob, Queue
from tests.support.facts import each
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
    assert head.split("\t") == ["value", "running", "waiting", "p50", "p95", "used", "oldest"]
    assert {tuple(row.split("\t")[:3]) for row in rows} == {("ada", "1", "2"), ("-", "1", "0")}
    found = [json.loads(line) for line in within("shares", "q", "--json").stdout.splitlines()]
    assert {(tuple(row["value"]), row["running"]) for row in found} == {(("ada",), 1), ((None,), 1)}


def test_a_queue_without_shares(within: Program, newest: Server) -> None:
    with Queue[bytes]("q", url=newest.url) as queue:
        queue.enqueue(b"x")
    done = within("shares", "q")
    assert (done.returncode, done.stdout) == (1, "")
    assert "q is not fair" in done.stderr


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
    """The doctor names them until a repair releases them."""
    queue.enqueue(b"x", headers={"tenant": "ada"})
    lease = queue.lease()
    assert lease is not None
    # a program without slots completes the job
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert client.xack(queue.ops.keys.key("jobs"), "workers", lease.claim.entry) == 1
        assert client.xdel(queue.ops.keys.key("jobs"), lease.claim.entry) == 1
        client.hincrby(queue.ops.keys.key("stats"), "completed", 1)
    assert (queue.counts().held, queue.counts().leased, queue.counts().lost) == (1, 0, 0)
    text = "note\tslots\tqueue q: 1 slots of 0 leased jobs; `headrace repair q` mends them"
    assert text in within("doctor").stdout.splitlines()
    assert queue.admin.repair().slots == 1
    assert "\tslots\t" not in within("doctor").stdout


def test_purge_of_a_value(within: Program, queue: Queue[bytes]) -> None:
    queue.enqueue_many([NewJob(b"x", headers={"tenant": tenant}) for tenant in "abcabca"])
    assert queue.lease() is not None
    assert within("purge", "q", "--value", "b", "--yes").stdout == "purged 2\n"
    assert queue.counts().waiting == 4
    done = within("purge", "q", "--value", "", "--yes")
    assert (done.returncode, done.stdout) == (1, "purged 0\n")


def test_pause_of_a_value(within: Program, queue: Queue[bytes]) -> None:
    queue.enqueue_many([NewJob(b"x", headers={"tenant": tenant}) for tenant in "cab"])
    assert queue.lease() is not None  # the terms are declared
    assert within("pause", "q", "--value", "a").stdout == "paused\n"
    assert within("pause", "q", "--value", "a").returncode == 1
    assert [lease.job.headers["tenant"] for lease in queue.lease_many(9)] == ["b"]
    assert within("resume", "q", "--value", "a").stdout == "resumed\n"
    assert [lease.job.headers["tenant"] for lease in queue.lease_many(9)] == ["a"]


def test_purge_of_a_value_without_terms(within: Program, newest: Server) -> None:
    with Queue[bytes]("q", url=newest.url) as queue:
        queue.enqueue(b"x")
    done = within("purge", "q", "--value", "a", "--yes")
    assert done.returncode == 2
    assert "this queue has no fair=, and no single Limit with a key=" in done.stderr


# -- terms -----------------------------------------------------------------------------------------


def structures(client: redis.Redis) -> set[str]:
    """Return which terms the queue has, in each shard."""
    return {
        (client.hget(key, "terms") or b"").decode() for key in client.keys("headrace:{q*}:q:stats")
    }  # type: ignore[union-attr]


def test_redeclare(within: Program, newest: Server) -> None:
    """Terms are declared anew and removed. The waiting jobs run by the new terms."""
    with Queue[bytes]("q", url=newest.url) as queue:
        queue.enqueue_many([NewJob(b"x", headers={"tenant": "a"})] * 9)
        done = within(
            "redeclare",
            "q",
            "--fair",
            "tenant",
            "--limit",
            "tenant=2",
            "--limit",
            "5",
            "--weight",
            "a=3",
        )
        assert (done.returncode, done.stdout) == (
            0,
            "terms of q: fair tenant, limits 5, 2 of tenant\n",
        ), done
        assert len(queue.lease_many(9)) == 2
        (share,) = queue.admin.shares()
        assert (share.value, share.weight, share.running) == (("a",), 3.0, 2)
        done = within("redeclare", "q", "--none", "--json")
        assert json.loads(done.stdout) == {"queue": "q", "fair": None, "limits": None}
        assert len(queue.lease_many(9)) == 7
        assert queue.counts().lost == 0


def test_redeclare_limits_of_values(within: Program, newest: Server) -> None:
    """`--limit` names single values, which may have colons, commas and equals signs."""
    with Queue[bytes]("q", url=newest.url) as queue:
        tenants = ["free", "a=1:2", "b,c", "others"]
        queue.enqueue_many([NewJob(b"x", headers={"tenant": name}) for name in tenants * 4])
        done = within(
            "redeclare", "q", "--fair", "tenant", "--limit", "tenant=3,free:1,a=1:2:2,b,c:4"
        )
        terms = (
            "terms of q: fair tenant, limits 3 of tenant, each 2 of tenant a=1:2, "
            "4 of tenant b,c, 1 of tenant free\n"
        )
        assert (done.returncode, done.stdout) == (0, terms), done
        leased = Counter(lease.job.headers["tenant"] for lease in queue.lease_many(16))
        assert leased == {"free": 1, "a=1:2": 2, "b,c": 4, "others": 3}
        done = within("redeclare", "q", "--limit", "tenant=3,free:2", "--json")
        assert json.loads(done.stdout)["each"] == "2 of tenant free"


def test_redeclare_two_levels(within: Program, newest: Server) -> None:
    with Queue[bytes]("q", url=newest.url) as queue:
        queue.enqueue(b"x", headers={"org": "a", "user": "b=c"})
        done = within("redeclare", "q", "--fair", "org/user", "--weight", "a/b=c=0.5")
        assert done.returncode == 0, done
        assert queue.lease() is not None
        (share,) = queue.admin.shares()
        assert (share.value, share.weight) == (("a", "b=c"), 0.5)


def test_redeclare_a_sharded_queue(within: Program, newest: Server) -> None:
    with (
        Queue[bytes]("q", url=newest.url, shards=2) as queue,
        redis.Redis(unix_socket_path=newest.path) as client,
    ):
        queue.enqueue_many([NewJob(b"x", headers={"tenant": "a"}, key=f"{at}") for at in range(20)])
        done = within("redeclare", "q", "--limit", "4", "--per-shard")
        assert done.returncode == 0, done
        assert structures(client) == {"fair= limits=* rates="}
        assert len(queue.lease_many(20)) == 4
        assert within("redeclare", "q", "--none").returncode == 0
        assert structures(client) == {""}
        assert len(queue.lease_many(20)) == 16


@each(
    ("given", "why"),
    [
        ((), "give --fair or --limit, or --none alone"),
        (("--none", "--fair", "tenant"), "give --fair or --limit, or --none alone"),
        (
            ("--limit", "many"),
            "--limit 'many': give a number, or a header and a number, such as tenant=5",
        ),
        (("--limit", "0"), "give at least 1; pause the queue"),
        (("--limit", "tenant=2", "--limit", "tenant=3"), "give one of them"),
        (("--limit", "tenant=5,free"), "and with single values tenant=20,free:2"),
        (("--limit", "tenant=5,free=2"), "and with single values tenant=20,free:2"),
        (
            ("--limit", "5,free:2"),
            "give a header and each of its values once, as in tenant=20,free:2",
        ),
        (("--limit", "tenant=5,free:0"), "give at least 1; pause the queue"),
        (("--limit", "tenant=5,free:1,free:2"), "give a header and each of its values once"),
        (("--fair", "a/b/c"), "give one header, or two"),
        (("--fair", "headrace-x"), "reserved"),
        (("--weight", "a=2"), "--fair, which is missing"),
        (
            ("--fair", "tenant", "--weight", "a"),
            "--weight 'a': give a value of --fair and a number",
        ),
        (("--fair", "tenant", "--weight", "a=0"), "give a number from 0.001"),
        (("--fair", "org/user", "--weight", "a=nan"), "give a number from 0.001"),
    ],
)
def test_bad_terms_are_refused(
    within: Program, queue: Queue[bytes], newest: Server, given: tuple[str, ...], why: str
) -> None:
    """Bad terms are refused with a sentence. The queue keeps its terms."""
    queue.enqueue(b"x")
    assert queue.lease() is not None
    done = within("redeclare", "q", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert structures(client) == {"fair=tenant limits= rates="}


def test_doctor_names_workers_that_declare_other_terms(
    within: Program, queue: Queue[bytes], newest: Server
) -> None:
    """The message has the terms and the time of their declaration. It is gone after a
    `redeclare`."""
    queue.enqueue_many([b"x"] * 5)
    with (
        Queue[bytes]("q", url=newest.url) as plain,
        redis.Redis(unix_socket_path=newest.path) as client,
    ):
        assert plain.lease() is not None
        assert queue.lease() is not None
        (line,) = [one for one in within("doctor").stdout.splitlines() if "\tterms\t" in one]
        assert "queue q: 1 worker declares other terms than the queue's, none: " in line
        assert " `fair=tenant limits= rates=` for 0 s" in line
        assert "`headrace redeclare q` changes the queue's" in line
        assert within("redeclare", "q", "--fair", "tenant").returncode == 0
        (line,) = [one for one in within("doctor").stdout.splitlines() if "\tterms\t" in one]
        assert (
            "1 worker declares other terms than the queue's, `fair=tenant limits= rates=`: " in line
        )
        assert " none for 0 s" in line
        assert client.hset(queue.ops.keys.key("stats"), "terms_at", 1) == 0
        assert within("workers", "q", "--json").stdout.count('"structure": ""') == 1
