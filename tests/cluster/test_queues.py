"""Queues, flows, workers and views on three masters behave as on one server."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest
import redis
import redis.asyncio
from typer.testing import CliRunner

import headrace
from headrace import ConfigurationError, FanOut, Flow, Queue
from headrace._net.base.address import client_of
from headrace.console.cli.app import app
from headrace.inspect import AsyncInspector, Inspector
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.servers import Server


def tour(queue: Any) -> None:
    """Use each feature of a queue."""
    first = queue.enqueue(b"first", id="one")
    assert not queue.enqueue(b"again", id="one").added
    assert len(queue.enqueue_many([b"x"] * 2_500)) == 2_500
    queue.enqueue(b"later", id="later", delay=60)
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload) == ("one", b"first")
    assert lease.complete(b"result")
    assert queue.result(first.id) == b"result"
    leases = queue.lease_many(100)
    assert all(queue.complete_many(leases))
    assert queue.cancel("later")
    assert not queue.cancel("later")
    assert sum(1 for _ in queue.admin.waiting()) == 2_400
    assert [worker.queue for worker in queue.admin.workers()] == [queue.name]
    assert queue.admin.purge() == 2_400
    counts = queue.counts()
    assert (counts.enqueued, counts.completed, counts.waiting, counts.leased) == (2_502, 101, 0, 0)
    assert queue.admin.delete() == 0


def test_a_queue_on_each_master(connect: Connect, cluster: Cluster) -> None:
    for name in cluster.groups():
        tour(connect(name))


def test_any_node_is_a_seed(connect: Connect, cluster: Cluster) -> None:
    """A seed names the other nodes. Missing seeds are skipped."""
    name = cluster.groups()[0]
    for node in cluster.nodes:
        queue = connect(
            name, url=f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}/0?socket_timeout=7"
        )
        assert queue.enqueue(b"x").added
    assert queue.counts().waiting == 3


@pytest.mark.slow
def test_settings_of_a_client(connect: Connect, cluster: Cluster) -> None:
    """A cluster client gives its seeds and settings. It is not used itself."""
    _, port = cluster.nodes[1].place

    def make(module: Any) -> Any:
        made = (module.cluster if module is redis else module).RedisCluster(
            host="127.0.0.1", port=port, client_name="theirs"
        )
        made.execute_command = None  # it would fail
        return made

    for name in cluster.groups():
        tour(connect(name, client=make))
    assert b"name=theirs" in cluster.owner(name).ask("CLIENT", "LIST")


def test_events_and_results(connect: Connect, cluster: Cluster) -> None:
    for name in cluster.groups():
        queue = connect(name)
        receipt = queue.enqueue(b"x")
        work = Running("threads", url=cluster.url)
        work.handler(name)(lambda job: job.payload.upper())
        with work:
            assert queue.result(receipt.id, timeout=30) == b"X"


def test_events_of_each_master(cluster: Cluster) -> None:
    """Messages stay on the node of the slot. A listener that knows no cluster hears them too."""
    for name in cluster.groups():
        plain = f"redis://127.0.0.1:{cluster.owner(name).port}"
        with Queue(name, url=cluster.url) as queue, queue.events(["added"], timeout=30) as events:
            receipt = queue.enqueue(b"x")
            assert next(events).id == receipt.id
            said = cluster.owner(name).info("INFO", "commandstats")
            assert "cmdstat_spublish" in said
            assert "cmdstat_publish" not in said
            with Queue(name, url=plain) as alone, alone.events(["added"], timeout=30) as others:
                receipt = alone.enqueue(b"y")
                assert next(others).id == next(events).id == receipt.id


@pytest.mark.parametrize("kind", KINDS[:2])
def test_schedules_and_flows_on_all_masters(kind: str, cluster: Cluster) -> None:
    """One worker ticks the schedules and leads runs with children to their ends, on three
    masters."""
    worker = Running(kind, url=cluster.url)
    names = cluster.groups()
    flows = [Flow(name, url=cluster.url) for name in names]
    sums: dict[str, list[bytes]] = {name: [] for name in names}
    for flow in flows:
        flow.stage("split", next="sum", children="work")(
            lambda _: FanOut([b"a", b"b", b"c"], stage="work")
        )
        flow.stage("work")(lambda job: job.payload.upper())
        flow.stage("sum")(
            lambda job, found=sums[flow.name]: found.append(b"".join(job.children.values()))
        )
        worker.worker.flow(flow)
        worker.handler(flow.name)(lambda _job: None)
    queues = [Queue(name, url=cluster.url) for name in names]
    with worker:
        for flow, queue in zip(flows, queues, strict=True):
            assert queue.admin.schedule("often", b"x", every=0.1)
            assert flow.start(b"order", id="o").added
        for flow, queue in zip(flows, queues, strict=True):
            until(lambda flow=flow: flow.state("o").state == "completed", "the end of the run")
            until(lambda queue=queue: queue.counts().completed >= 3, "three ticks")
            assert [one.name for one in queue.admin.schedules()] == ["often"]
            assert queue.admin.unschedule("often")
    assert sums == {name: [b"ABC"] for name in names}
    for one in [*flows, *queues]:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_with_queues_on_all_masters(kind: str, cluster: Cluster) -> None:
    names = cluster.groups(2)
    worker = Running(kind, url=cluster.url)
    for name in names:
        worker.handler(name, concurrency=4)(lambda _job: None)
    queues = [Queue(name, url=cluster.url) for name in names]
    for queue in queues:
        queue.enqueue_many([b"x"] * 300)
    with worker:
        until(lambda: all(queue.counts().completed == 300 for queue in queues), "all jobs")
        alive = headrace.workers(redis.RedisCluster(*cluster.nodes[0].place))
        assert {one.queue for one in alive if one.alive} == set(names)
    assert not [
        one for queue in queues for one in queue.admin.workers() if one.name == worker.worker.name
    ]
    for queue in queues:
        queue.close()


def test_what_there_is(cluster: Cluster) -> None:
    """Clients of both colours and inspectors find queues on every master."""
    names = sorted(cluster.groups(2))
    for name in names:
        with Queue(name, url=cluster.url) as queue:
            queue.enqueue_many([b"x"] * 3)
    with redis.RedisCluster(*cluster.nodes[0].place) as client:
        assert headrace.queues(client) == names
    with Inspector(url=cluster.url) as inspector:
        assert {
            one.name: one.counts.waiting for one in inspector.overview().queues
        } == dict.fromkeys(names, 3)

    async def look() -> list[str]:
        client = redis.asyncio.RedisCluster(*cluster.nodes[0].place)
        async with AsyncInspector(client=client) as inspector:
            found = await inspector.overview()
        await client.aclose()
        return [one.name for one in found.queues]

    assert sorted(asyncio.run(look())) == names


def test_command_line(cluster: Cluster) -> None:
    names = cluster.groups()
    run = CliRunner()
    for name in names:
        done = run.invoke(app, ["enqueue", name, "hello", "--create", "--url", cluster.url])
        assert done.exit_code == 0, done.output
    assert run.invoke(app, ["queues", "--url", cluster.url]).output.split() == sorted(names)
    assert run.invoke(app, ["purge", names[0], "--yes", "--url", cluster.url]).exit_code == 0


def test_one_servers_url(connect: Connect, cluster: Cluster) -> None:
    """The URL of one node works for its own slots. For others the error names the right URL."""
    here, there = cluster.groups()[:2]
    url = f"redis://127.0.0.1:{cluster.owner(here).port}"
    assert connect(here, url=url).enqueue(b"x").added
    with pytest.raises(
        ConfigurationError,
        match=re.escape(f"use redis+cluster://127.0.0.1:{cluster.owner(here).port}"),
    ):
        connect(there, url=url).enqueue(b"x")


def test_a_clusters_url_of_one_server(connect: Connect, newest: Server) -> None:
    with pytest.raises(ConfigurationError, match="a host is missing"):
        connect("q", url="redis+cluster://").enqueue(b"x")
    with pytest.raises(ConfigurationError, match="host and port can't be read"):
        connect("q", url="redis+cluster://a:b").enqueue(b"x")
    with (
        Server(newest.binary, tcp=True) as alone,
        pytest.raises(ConfigurationError, match="is no node of a cluster"),
    ):
        connect("q", url=f"redis+cluster://127.0.0.1:{alone.port}").enqueue(b"x")


def test_no_node_answers() -> None:
    """A command prints one line without a traceback."""
    done = CliRunner().invoke(app, ["queues", "--url", "redis+cluster://localhost:1,localhost:2"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("headrace: redis+cluster://localhost:1,localhost:2: ")
    assert isinstance(done.exception, SystemExit)


def test_a_client_of_the_command_line_closes_its_connections(cluster: Cluster) -> None:
    """The garbage collector, which may come late, is not needed."""

    def connections() -> list[int]:
        return [len(node.ask("CLIENT", "LIST").splitlines()) for node in cluster.nodes]

    before = connections()
    gc.disable()
    try:
        with client_of(cluster.url) as client:
            client.ping(target_nodes=client.ALL_NODES)
            assert connections() != before
        until(lambda: connections() == before, "no connection more than before")
    finally:
        gc.enable()
