"""Relays that are killed at any moment, side by side, while transactions are committed and rolled
back."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from headrace import Queue
from headrace.sql import Outbox, relay_once
from tests.sql.databases import Database
from tests.sql.relays import live_and_die
from tests.support.awaiting import PATIENCE
from tests.support.servers import Server

pytestmark = pytest.mark.ci

SECONDS = float(os.environ.get("CHAOS_SECONDS", "4"))
Log = dict[str, list[bytes]]  # payloads by the keys of their jobs


def write(
    database: Database, outbox: Outbox, key: str, own: list[bytes], over: threading.Event
) -> None:
    """Write rows of a key, and roll back one in three."""
    number, engine = 0, database.engine()
    while not over.is_set():
        number += 1
        payload = f"{key} {number}".encode()
        # SQLite: locked for too long
        with suppress(OperationalError), engine.connect() as connection:
            transaction = connection.begin()
            outbox.enqueue(connection, payload, key=key)
            if random.random() < 0.3:
                transaction.rollback()
            else:
                transaction.commit()
                own.append(payload)
        time.sleep(random.random() * 0.004)


def consume(queue: Queue[bytes], found: Log) -> None:
    """Complete all jobs that are in the queue."""
    while (lease := queue.lease()) is not None:
        found[lease.job.key or ""].append(lease.job.payload)
        lease.complete()


@pytest.mark.sampled
@pytest.mark.slow
def test_storm(database: Database, newest: Server, record_property: Any) -> None:
    """Each committed row becomes one job, in order within its key. No other row becomes a job."""
    committed: Log = {f"k{number}": [] for number in range(3)}
    found: Log = defaultdict(list)
    kills: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.is_set():
            live_and_die(database, newest.url)
            kills.append(1)

    with newest.queue("q") as queue:
        outbox = Outbox(queue)
        threads = [threading.Thread(target=kill) for _ in range(3)]
        for key, own in committed.items():
            threads.append(threading.Thread(target=write, args=(database, outbox, key, own, over)))
        live_and_die(database, newest.url)  # the first process takes seconds to start
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            consume(queue, found)
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
        with database.engine().connect() as connection:
            while relay_once(connection, outbox):
                pass
        consume(queue, found)
    record_property("kills", len(kills))
    record_property("rows", sum(map(len, committed.values())))
    assert found == committed
    assert database.rows() == []
    assert len(kills) >= 3
