"""The fleet of a server, which is its queues and their workers."""

from __future__ import annotations

import pytest
import redis

import headrace
from headrace import ConfigurationError
from tests.support.facts import each
from tests.support.steps import LONG, key, leased


def test_queues(connect, client):
    """Every queue of the namespace is listed once and in order, whatever it holds. Other keys are
    not listed."""
    assert headrace.queues(client) == []
    connect("plain").enqueue(b"x")
    connect("shop/orders").enqueue(b"x", id="a")
    connect("shop/bills").enqueue_many([b"x"] * 3)
    connect("late").enqueue(b"x", delay=LONG)
    assert leased(connect("dead")).dead_letter("no")
    assert leased(connect("done"), id="result:x").complete(b"y")
    connect("elsewhere", namespace="other").enqueue(b"x")
    client.xadd(key("jobs", "foreign/queue"), {"data": b"x"})
    client.set("headrace", "x")
    client.set("headrace:{x}:y z:jobs", "x")
    client.set("headrace:{done}:done:result:x:jobs", "x")
    expected = ["dead", "done", "foreign/queue", "late", "plain", "shop/bills", "shop/orders"]
    assert headrace.queues(client) == expected
    assert headrace.queues(client, namespace="other") == ["elsewhere"]
    assert headrace.queues(client, namespace="nothing") == []


def test_queues_by_a_client_that_decodes(connect, server):
    """The client may decode replies."""
    connect("a/b").enqueue(b"x")
    with server.client(decode_responses=True) as client:
        assert headrace.queues(client) == ["a/b"]


@pytest.mark.differs("one server")
def test_workers(connect, client):
    """The workers of all queues are listed by queue and name, with the number of jobs that each
    holds."""
    assert headrace.workers(client) == []
    one, two, three = connect("a"), connect("a"), connect("b")
    one.enqueue_many([b"x"] * 5)
    three.enqueue(b"x")
    held = [*one.lease_many(3), two.lease(), three.lease()]
    connect("c").enqueue(b"x")
    workers = headrace.workers(client)
    assert [worker.queue for worker in workers] == ["a", "a", "b"]
    assert workers == sorted(workers, key=lambda worker: (worker.queue, worker.name))
    assert {worker.name: worker.leased for worker in workers} == {
        held[0].worker: 3,
        held[3].worker: 1,
        held[4].worker: 1,
    }
    assert all(worker.alive for worker in workers)
    assert headrace.workers(client, namespace="other") == []
    assert client.ping()


@each("listing", [headrace.queues, headrace.workers])
@each("namespace", ["*", "head*", "", "a b", "[h]eadrace"])
def test_bad_namespaces(listing, namespace):
    """A namespace is a name and no pattern. No call is sent."""
    with (
        redis.Redis(unix_socket_path="/nonexistent/socket") as client,
        pytest.raises(ConfigurationError),
    ):
        listing(client, namespace=namespace)
