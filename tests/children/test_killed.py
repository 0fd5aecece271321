"""Workers that are killed while their jobs start children, wait for them, and end."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import AsyncWorker, Job, Queue, Retry, Worker
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import blocking, coroutine
from tests.support.processes import CONTEXT
from tests.support.servers import Server

PARENTS = 12
KILLS = 10
CHILDREN = 5  # of each parent


class Fate:
    """Kills the process where its dice say so, as often as there are files left to take."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)

    def __call__(self) -> None:
        if self._dice.random() > 0.05:
            return
        for lot in sorted(self._folder.glob("lot-*")):
            lot.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)


def work(kind: str, url: str, folder: Path, packing: str, seed: int) -> None:
    """Run a worker until it is killed, or terminated."""
    fate = Fate(folder, seed)
    worker: Any = (Worker if kind == "threads" else AsyncWorker)(
        url=url, heartbeat=0.5, timeout=3.0
    )

    def parent(job: Job) -> Any:
        fate()
        some = yield partial(job.run_all, [(packing, b"%d" % n) for n in range(3)], at_most=2)
        fate()
        child = yield partial(job.start, (packing, b"9"))
        fate()
        first = yield partial(job.first, done=child, late=job.timer(days=1))
        last = yield partial(job.run, (packing, b"5"))
        fate()
        return b" ".join([*some, first.value, last])

    def pack(job: Job) -> Any:
        fate()
        yield 0
        fate()
        return b"packed " + job.payload

    adapt = coroutine if kind == "tasks" else blocking
    for queue, body in {"orders": parent, packing: pack}.items():
        worker.handler(queue, concurrency=4, retry=Retry(attempts=100, wait=0))(adapt(body))
    worker.run()


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["orders/pack", "packs"])
def test_each_end_arrives_once(kind: str, newest: Server, tmp_path: Path, packing: str) -> None:
    """Whatever is killed, each child runs for one parent, and each parent gets its results. The
    children are in the slot of their parents, or in another."""
    for number in range(KILLS):
        (tmp_path / f"lot-{number}").touch()
    killed = 0
    orders = Queue("orders", url=newest.url)
    packs = Queue(packing, url=newest.url)
    with orders, packs:
        receipts = orders.enqueue_many([b"x"] * PARENTS)

        def over() -> bool:
            return orders.counts().completed == PARENTS

        for seed in range(KILLS + 1):
            process = CONTEXT.Process(target=work, args=(kind, newest.url, tmp_path, packing, seed))
            process.start()
            try:
                until(lambda: not process.is_alive() or over(), "a death, or the end")  # noqa: B023
            finally:
                process.terminate()
                process.join(PATIENCE)
            killed += process.exitcode == -signal.SIGKILL
            if over():
                break
        expected = b"packed 0 packed 1 packed 2 packed 9 packed 5"
        assert {receipt.result(PATIENCE) for receipt in receipts} == {expected}
        counts = packs.counts()
        assert (counts.enqueued, counts.completed) == (CHILDREN * PARENTS,) * 2
        assert counts.present == orders.counts().present == 0
    assert killed
