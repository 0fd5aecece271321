"""Handlers of parents and children, which tests register."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from headrace import DeadLetter, Job, Retry
from headrace.errors import ChildFailed
from tests.support.engines import Running

Body = Generator[Any, Any, Any]


def serve(fleet: Running, queue: str, body: Any, **options: Any) -> None:
    """Have a handler of this body, which fails once and for all."""
    fleet.handler(queue, **{"retry": Retry(attempts=1), "concurrency": 4, **options})(body)


def double(job: Job) -> bytes:
    return job.payload * 2


def died(job: Job) -> None:
    raise DeadLetter("no such shelf")


def failed(job: Job) -> None:
    raise ValueError("unlucky")


def outcome(job: Job, child: Any) -> Body:
    """Return the result of a child, or how it failed."""
    try:
        got = yield partial(job.run, child)
    except ChildFailed as failure:
        return f"{failure.state}: {failure.reason}".encode()
    return b"ok %s" % (got or b"None")
