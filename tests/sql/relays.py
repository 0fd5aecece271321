"""Relays in processes that are killed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from headrace import Queue
from headrace.sql import Outbox, relay_once
from tests.sql.databases import Database
from tests.support.awaiting import PATIENCE
from tests.support.processes import CONTEXT


def relay_until_killed(database: Database, url: str, at: int) -> None:
    """Relay until a kill at a step, which is before or after a statement, a commit, or the call of
    the queue."""
    steps = itertools.count()

    def step(*_: Any) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **options: Any) -> Any:
            step()
            answer = call(*args, **options)
            step()
            return answer

        return around

    Queue.enqueue_many = stepping(Queue.enqueue_many)  # type: ignore[method-assign]
    engine = database.engine()
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, step)
    with Queue("q", url=url, priorities=3) as queue, engine.connect() as connection:
        while relay_once(connection, Outbox(queue)):
            pass


def relay_for_ever(database: Database, url: str, ready: Any) -> None:
    """Relay in small batches until a kill."""
    with Queue("q", url=url) as queue, database.engine().connect() as connection:
        while True:
            with suppress(OperationalError):  # SQLite: locked for too long
                if not relay_once(connection, Outbox(queue), limit=random.randint(1, 20)):
                    time.sleep(0.002)
            ready.set()


def live_and_die(database: Database, url: str) -> None:
    """Run a relay for a moment, and kill it."""
    ready = CONTEXT.Event()
    process = CONTEXT.Process(target=relay_for_ever, args=(database, url, ready))
    process.start()
    assert ready.wait(PATIENCE)
    time.sleep(random.random() * 0.1)
    process.kill()
    process.join(PATIENCE)
    process.close()
