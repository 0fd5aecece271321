"""Many large jobs."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from headrace import Counts, Job, Queue, Worker
from tests.support.awaiting import until
from tests.support.servers import Server

JOBS, SIZE = 5000, 53_000


def payload(number: int) -> bytes:
    return b"%d:" % number + hashlib.sha256(b"%d" % number).digest() * (SIZE // 32)


@pytest.mark.slow
def test_five_thousand_large_jobs(queue: Queue, newest: Server) -> None:
    """Four workers run 5,000 jobs of 53 kB. Each arrives complete and is completed once."""
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def check(job: Job) -> None:
        number = int(job.payload.partition(b":")[0])
        assert job.payload == payload(number)
        with lock:
            seen[number] += 1

    with ExitStack() as stack:
        for _ in range(4):
            worker = Worker(url=newest.url)
            worker.handler("q", concurrency=2)(check)
            stack.enter_context(worker)
        for start in range(0, JOBS, 500):
            queue.enqueue_many([payload(number) for number in range(start, start + 500)])
        until(lambda: queue.counts().present == 0, patience=120)
    assert seen == Counter(range(JOBS))
    assert queue.counts() == Counts(enqueued=JOBS, completed=JOBS)
