"""Children of tasks whose queue is elsewhere: on another server, or in another namespace."""

from __future__ import annotations

from asyncio import gather, run
from functools import partial
from typing import Any

import pytest
import redis

from headrace import (
    AsyncQueue,
    AsyncTasks,
    AsyncWorker,
    Job,
    JobFailed,
    Queue,
    Retry,
    Tasks,
    Worker,
    testing,
)
from headrace._net.base.address import Address
from headrace.errors import ConfigurationError
from tests.children.bodies import Body, serve
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

NOBODY = "redis://127.0.0.1:1"  # no server listens there
CALLS = {
    "run": lambda job, task: partial(job.run, task, "a"),
    "run_all": lambda job, task: partial(job.run_all, [("orders/pack", b"x"), (task, "a")]),
    "start": lambda job, task: partial(job.start, task, "a"),
    "a job": lambda job, task: partial(job.start, task.new("a")),
}


def quoting(kind: Any, queue: str = "orders/quote", **home: Any) -> Any:
    tasks = kind(queue, **home)

    @tasks.task
    def quote(region: str) -> int:
        return len(region)

    return quote


@pytest.mark.parametrize("call", [*CALLS])
@pytest.mark.parametrize("home", ["server", "namespace"])
def test_a_task_of_another_home_is_refused_before_anything_is_sent(
    fleet: Running, orders: Queue[Any], newest: Server, call: str, home: str
) -> None:
    far = {"url": NOBODY} if home == "server" else {"url": newest.url, "namespace": "others"}
    task = quoting(Tasks if fleet.kind == "threads" else AsyncTasks, **far)

    def body(job: Job) -> Body:
        try:
            yield CALLS[call](job, task)
        except ConfigurationError as error:
            return str(error).encode()

    serve(fleet, "orders", body)
    with fleet:
        said = orders.enqueue(b"", id="o").result(PATIENCE)
    assert said.startswith(b"child 'quote': its task is for another %s than" % home.encode())
    found = orders.find("o")
    assert found is not None
    assert found.steps == ()
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert not [*client.scan_iter("*orders/quote*"), *client.scan_iter("*orders/pack*")]


@pytest.mark.parametrize("where", ["nothing", "its client", "its database by another URL"])
def test_a_task_of_the_same_server_goes_on(
    fleet: Running, orders: Queue[Any], newest: Server, where: str
) -> None:
    with redis.Redis(unix_socket_path=newest.path) as client:
        home = {
            "nothing": {},
            "its client": {"client": client},
            "its database by another URL": {"url": f"{newest.url}&protocol=3"},
        }[where]
        task = quoting(Tasks, **home)

        def body(job: Job) -> Body:
            return b"%d" % (yield partial(job.run, task, "abc"))

        served = quoting(Tasks if fleet.kind == "threads" else AsyncTasks, url=newest.url)
        fleet.worker.tasks(served._tasks)
        serve(fleet, "orders", body)
        with fleet:
            assert orders.enqueue(b"").result(PATIENCE) == b"3"


def test_a_lease_by_hand(orders: Queue[Any], newest: Server) -> None:
    orders.enqueue(b"")
    lease = orders.lease()
    with pytest.raises(ConfigurationError, match="another server"):
        lease.job.run(quoting(Tasks, url=NOBODY), "a")
    assert lease.job.start(quoting(Tasks, url=newest.url), "a").queue == "orders/quote"


@pytest.mark.parametrize("url", [NOBODY, None, "the test's"])
def test_a_worker_in_a_test(newest: Server, url: str | None) -> None:
    """The test may run it on another server, or make it for one. Its tasks go with it."""
    task = quoting(Tasks, url=NOBODY)
    worker = Worker(newest.url if url == "the test's" else url)
    worker.tasks(task._tasks)
    worker.handler("orders")(lambda job: b"%d" % job.run(task, "abcd"))
    with newest.queue("orders") as orders:
        receipt = orders.enqueue(b"")
        if url == "the test's":
            testing.run_until_empty(worker, orders)
        else:
            testing.run(worker, newest.url)
        assert receipt.result() == b"4"


def test_a_worker_that_runs_elsewhere(newest: Server) -> None:
    """`worker.run(url)` takes its tasks along, and no task of a third server."""
    worker = AsyncWorker(NOBODY)
    some = {"same": quoting(AsyncTasks, url=NOBODY), "third": quoting(AsyncTasks, url=f"{NOBODY}1")}

    @worker.handler("orders", retry=Retry(attempts=1))
    async def body(job: Job) -> bytes:
        child = await job.start(some[job.payload.decode()], "a")
        return child.queue.encode()

    async def main() -> list[Any]:
        async with AsyncQueue("orders", url=newest.url) as orders:
            worker.start(newest.url)
            try:
                receipts = await orders.enqueue_many(list(some))
                return [
                    await gather(receipt.result(PATIENCE), return_exceptions=True)
                    for receipt in receipts
                ]
            finally:
                await worker.stop()

    (same,), (third,) = run(main())
    assert same == b"orders/quote"
    assert isinstance(third, JobFailed)
    assert "another server" in str(third)


def named(one: Any) -> Any:
    return Address(one).servers if isinstance(one, str) else Address(None, one).servers


CLUSTER = "redis+cluster://a:7000,b:7001"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://localhost", "redis://127.0.0.1:6379/0", True),
        ("redis://ada:secret@Host:7000/2", "rediss://host:7000?db=2&protocol=3", True),
        ("redis://host/1", "redis://host/2", False),
        ("redis://host:1", "redis://host:2", False),
        ("unix:///run/one.sock", "unix:///run/one.sock?db=0", True),
        ("unix:///run/one.sock", "unix:///run/two.sock", False),
        ("embedded:./data", "embedded:data/", True),
        ("embedded:./data", "embedded:./other", False),
        (CLUSTER, "redis+cluster://b:7001", True),
        (CLUSTER, "redis+cluster://b:7000", False),
        ("redis://host:7000", redis.Redis("host", 7000), True),
        ("redis://host:7000", redis.asyncio.Redis(host="host", port=7000, db=1), False),
        (redis.Sentinel([("s", 1)]).master_for("one"), "redis://one", False),
    ],
)
def test_two_addresses(one: Any, other: Any, same: bool) -> None:
    assert named(one).isdisjoint(named(other)) is not same
    assert named(one)
    assert named(other)


def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", NOBODY)
    assert Address(None).servers == frozenset()
    assert Address(None).meant() == Address(NOBODY).servers


SHARDED = {"shards": 3}


@pytest.mark.parametrize("group", ["packs", "orders"])
def test_the_first_child_of_a_sharded_queue(fleet: Running, newest: Server, group: str) -> None:
    """Its task knows the number of shards, so a client that opens the queue later finds it there.
    The group may be that of a plain parent."""
    task = quoting(Tasks, queue=f"{group}/quote", url=newest.url, **SHARDED)

    def body(job: Job) -> Body:
        child = yield partial(job.start, task, "abc")
        return b"%d" % (yield partial(job.first, done=child)).value

    serve(fleet, "orders", body)
    with newest.queue("orders") as orders, fleet:
        receipts = orders.enqueue_many([b""] * 5)
        with newest.queue(f"{group}/quote", **SHARDED) as queue:
            until(lambda: queue.counts().waiting == 5, "all children")
            assert len({shard.number for shard in queue.admin.shards() if shard.counts.waiting}) > 1
            for lease in queue.lease_many(5, block=1.0):
                lease.complete(b"3")
        assert {one.result(PATIENCE) for one in receipts} == {b"3"}


def test_a_plain_task_in_the_group_of_a_sharded_parent(fleet: Running, newest: Server) -> None:
    task = quoting(Tasks, url=newest.url)

    def body(job: Job) -> Body:
        return b"%d" % (yield partial(job.run, task, "abc"))

    serve(fleet, "orders", body, **SHARDED)
    served = quoting(Tasks if fleet.kind == "threads" else AsyncTasks, url=newest.url)
    fleet.worker.tasks(served._tasks)
    with newest.queue("orders", **SHARDED) as orders, fleet:
        assert orders.enqueue(b"").result(PATIENCE) == b"3"


@pytest.mark.parametrize("how", ["name", "wrong number"])
def test_a_child_in_a_sharded_group(
    fleet: Running, orders: Queue[Any], newest: Server, how: str
) -> None:
    with newest.queue("packs", shards=2) as other:
        other.counts()
    call: Any = ("packs/quote", b"x")
    if how == "wrong number":
        call = quoting(Tasks, queue="packs/quote", url=newest.url, **SHARDED).new("a")

    def body(job: Job) -> Body:
        yield partial(job.run, call)

    serve(fleet, "orders", body)
    said = "nobody has used it" if how == "name" else "have 2 shards"
    with fleet, pytest.raises(JobFailed, match=said):
        orders.enqueue(b"").result(PATIENCE)
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert not [*client.scan_iter("*packs/quote*")]
