"""A server's clock that jumps under a running worker. No worker counts as dead, work goes on, and
the log has a line.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis

from headrace import Counts, Job, Queue
from tests.chaos.clock import Clock
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

pytestmark = pytest.mark.skipif(not Clock.possible(), reason="no C compiler to make a clock with")


@pytest.mark.parametrize("jump", [20.0, -600.0])
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_clock_that_jumps(
    kind: str, newest: Server, tmp_path: Path, jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    clock = Clock(tmp_path)

    def events(name: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "event", "") == name]

    with (
        Server(newest.binary, environment=clock.environment()) as server,
        Queue("q", url=server.url) as queue,
        redis.Redis(unix_socket_path=server.path) as raw,
    ):
        worker = Running(kind, url=server.url, heartbeat=0.3, timeout=1.0)

        @worker.handler("q", concurrency=2)
        def body(job: Job) -> bytes:
            return job.payload

        with worker:
            assert queue.result(queue.enqueue(b"before").id, timeout=PATIENCE) == b"before"
            queue.enqueue(b"later", delay=15)
            # Before anything has looked after a queue, one that is late by ten timeouts has been
            # gone for long.
            until(lambda: raw.hexists(queue.ops.keys.key("stats"), "pulse"), "the first look")
            clock.jump(jump)
            assert queue.result(queue.enqueue(b"after").id, timeout=PATIENCE) == b"after"
            until(lambda: events("server_clock_jumped"), "the warning")
            if jump > 0:  # what it has skipped is due
                until(lambda: queue.counts().completed == 3, "the delayed job")
        (warning,) = events("server_clock_jumped")
        assert warning.levelno == logging.WARNING
        queue_name, way, by = warning.args or ()  # type: ignore[misc]
        assert (queue_name, way) == ("q", "forward" if jump > 0 else "back")
        assert by == pytest.approx(abs(jump), abs=2.0)
        assert (
            not events("worker_declared_dead")
            + events("peers_declared_dead")
            + events("lease_lost")
        )
        done = 3 if jump > 0 else 2
        assert queue.counts() == Counts(enqueued=3, completed=done, delayed=3 - done)
