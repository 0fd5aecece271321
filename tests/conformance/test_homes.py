"""Jobs of tasks whose queue is on another server, in another namespace, or divided otherwise. No
call sends them to its own server. `tests/children/test_homes.py` has the children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import AsyncFlow, FanOut, Flow, FlowJob, JobFailed, NewJob, Retry, Tasks
from headrace.errors import ConfigurationError, StreamStopped
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.servers import Server

NOBODY = "redis://127.0.0.1:1"  # no server listens there
FAR: dict[str, dict[str, Any]] = {
    "server": {"url": NOBODY},
    "namespace": {"namespace": "others"},
    "number of shards": {"shards": 3},
}


def job(server: Server, queue: str = "orders/pack", **home: Any) -> NewJob[bytes]:
    tasks = Tasks(queue, **{"url": server.url, **home})

    @tasks.task
    def pack(order: str) -> int:
        return len(order)

    return pack.new("a")


def leased(queue: Any) -> Any:
    queue.enqueue(b"")
    return queue.lease()


def follows(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    return leased(connect("orders", **options)).complete(then=some)


def follows_in_the_queue(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    queue = connect("orders", **options)
    return queue.complete(leased(queue), then=some)


def adds(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    return connect("orders/pack", **options).enqueue(some[-1])


def adds_many(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    return connect("orders/pack", **options).enqueue_many(some)


def streams(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    try:
        return connect("orders/pack", **options).enqueue_stream(some)
    except StreamStopped as error:
        raise error.__cause__ from None  # type: ignore[misc]


def adds_if(connect: Connect, some: list[NewJob[bytes]], **options: Any) -> Any:
    return connect("orders/pack", max_waiting=10, **options).enqueue_many(some)


PLACES = [follows, follows_in_the_queue, adds, adds_many, streams, adds_if]


@pytest.mark.parametrize("call", PLACES)
@pytest.mark.parametrize("far", [*FAR])
def test_it_is_refused_before_anything_is_sent(
    newest_connect: Connect, newest: Server, call: Callable[..., Any], far: str
) -> None:
    some = [job(newest), job(newest, **FAR[far])]
    said = f"^job of queue 'orders/pack': its task is for another {far} than queue 'orders"
    with pytest.raises(ConfigurationError, match=said):
        call(newest_connect, some)
    with redis.Redis(unix_socket_path=newest.path) as client:
        assert not [*client.scan_iter("*orders/pack:jobs")]


@pytest.mark.parametrize("call", PLACES)
@pytest.mark.parametrize("home", ["the same", "its database by another URL", "nothing"])
def test_it_goes_where_its_task_is(
    newest_connect: Connect, newest: Server, call: Callable[..., Any], home: str
) -> None:
    url = {"its database by another URL": f"{newest.url}&protocol=3", "nothing": None}
    some = [job(newest, url=url.get(home, newest.url))]
    assert call(newest_connect, some)
    assert newest_connect("orders/pack").counts().waiting == 1


@pytest.mark.parametrize("call", PLACES[:-1])
@pytest.mark.parametrize("far", [*FAR])
def test_in_a_sharded_queue(
    newest_connect: Connect, newest: Server, call: Callable[..., Any], far: str
) -> None:
    divided = {"shards": 3}
    assert call(newest_connect, [job(newest, shards=2)], **divided)  # as while it is changed
    home = {"number of shards": {}}.get(far, {**divided, **FAR[far]})
    with pytest.raises(ConfigurationError, match=f"another {far} than"):
        call(newest_connect, [job(newest, **home)], **divided)
    assert newest_connect("orders/pack", **divided).counts().enqueued == 1


def test_a_queue_of_the_environment(
    newest_connect: Connect, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_URL", newest.url)
    queue = newest_connect("orders/pack", url=None)
    assert queue.enqueue(job(newest)).added
    with pytest.raises(ConfigurationError, match="another server"):
        queue.enqueue(job(newest, url=NOBODY))


def test_children_of_a_fan_out(newest: Server, work: Callable[..., Running]) -> None:
    """They are jobs of the flow's stages, so only the server and the namespace count."""
    running = work()
    kind: Any = Flow if running.kind == "threads" else AsyncFlow
    served = kind("orders", url=newest.url)
    once = {"retry": Retry(attempts=1)}

    def split(parent: FlowJob) -> FanOut:
        return FanOut([job(newest, **FAR[parent.payload.decode()])])

    served.stage("split", children="pack", **once)(split)
    served.stage("pack", **once)(lambda _: b"packed")
    running.worker.flow(served)
    with Flow("orders", url=newest.url) as flow, running:
        flow.stage("split", children="pack")
        flow.stage("pack")
        runs = {far: flow.start(far.encode()).id for far in FAR}
        for far in ("server", "namespace"):
            with pytest.raises(JobFailed, match=f"another {far} than queue 'orders/pack'"):
                flow.result(runs[far], PATIENCE)
        until(lambda: flow.state(runs["number of shards"]).state == "completed")
