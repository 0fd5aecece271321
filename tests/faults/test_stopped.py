"""A process that is stopped in the middle of a call, and wakes up when the server may have
forgotten the call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from importlib.resources import files

import pytest
import redis

from headrace import Counts, Queue
from headrace._protocol import limits
from tests.support.awaiting import until
from tests.support.program import Script
from tests.support.proxy import Proxy
from tests.support.servers import Server

pytestmark = pytest.mark.ci

CHILD = """
import asyncio, sys
from headrace import AsyncQueue, HeadraceError, Queue
from headrace._net.base import retries as retrying

colour, url, record = sys.argv[1:]
retrying.RECORD_S = float(record)

def tell(call):
    try:
        print(call().added, flush=True)
    except HeadraceError as error:
        print(type(error).__name__, error, flush=True)

if colour == "sync":
    with Queue("q", url=url) as queue:
        queue._executor.pool.connection_kwargs["socket_timeout"] = 0.3  # at least 7 s elsewhere
        print(queue.counts(), flush=True)
        input()
        tell(lambda: queue.enqueue(b"x"))
else:
    with asyncio.Runner() as runner:
        queue = AsyncQueue("q", url=url)
        queue._executor.connections.timeout = 0.3
        print(runner.run(queue.counts()), flush=True)
        input()
        tell(lambda: runner.run(queue.enqueue(b"x")))
        runner.run(queue.close())
"""


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def admin(own: Server) -> Iterator[redis.Redis]:
    """Return a client that does not use the proxy."""
    with redis.Redis(unix_socket_path=own.path) as admin:
        yield admin


def stopped(
    colour: str, own: Server, proxy: Proxy, admin: redis.Redis, record: float, *, forget: bool
) -> str:
    """Stop a process after its call was carried out and before the answer. Return its output after
    it goes on."""
    with Queue("other", url=own.url) as other:
        other.enqueue(b"so that the script is known")
    with Script(CHILD, [colour, proxy.url, str(record)], stderr=None) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"Counts")
        proxy.mute()
        child.stdin.write(b"\n")
        child.stdin.flush()
        until(lambda: admin.exists("headrace:{q}:q:jobs") and admin.xlen("headrace:{q}:q:jobs"))
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(record / 2 if forget else 0.5)
        if forget:
            lanes = [key for key in admin.scan_iter("headrace:{q}*") if b":lane:" in key]
            assert lanes
            admin.delete(*lanes)  # as time does
        proxy.reset()
        os.kill(child.pid, signal.SIGCONT)
        return child.stdout.readline().decode()


def test_a_call_that_is_too_old_is_not_sent_again(
    colour: str, own: Server, proxy: Proxy, admin: redis.Redis
) -> None:
    """The server may have forgotten the call. Its outcome is unknown, and it happens once."""
    said = stopped(colour, own, proxy, admin, 2.0, forget=True)
    assert said.startswith("OutcomeUnknown unknown whether enqueue happened"), said
    with Queue("q", url=own.url) as queue:
        assert queue.counts() == Counts(waiting=1, enqueued=1)


def test_a_call_of_before_is_sent_again(
    colour: str, own: Server, proxy: Proxy, admin: redis.Redis
) -> None:
    """While the server keeps the record of the call, it returns the same answer."""
    assert stopped(colour, own, proxy, admin, limits.RECORD_S, forget=False) == "True\n"
    with Queue("q", url=own.url) as queue:
        assert queue.counts() == Counts(waiting=1, enqueued=1)


def test_half_of_a_record_s_life() -> None:
    """The record's life is the one in the scripts."""
    for name in ("lib/record.lua", "enqueue_one.lua"):
        script = (files("headrace") / "lua" / name).read_text()
        assert script.count(f"'PX', '{1000 * limits.RECORD_S:.0f}'") == 1
    assert limits.RETRY_BUDGET_S < limits.RECORD_S / 2
