"""`headrace web --demo`: something to look at, on a private server: mails, reports, a flow, failures, a schedule."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis

from headrace._api.sync.flow import Flow
from headrace._api.sync.queue import Queue
from headrace._api.sync.worker import Worker
from headrace._model.flow import FlowJob, Next
from headrace._model.job import Job, NewJob
from headrace._model.policy import Retry
from headrace.errors import HeadraceError

PAUSE_S = 0.05  # seconds between two rounds of the producer
NAMES = ("ada", "grace", "edsger", "barbara", "tony")


@contextmanager
def running() -> Generator[str, None, None]:
    """Run a producer and a worker on a private server; yield its URL."""
    with ExitStack() as stack:
        url = f"embedded:{stack.enter_context(tempfile.TemporaryDirectory(prefix='headrace-web-'))}/server"
        queues = {name: stack.enter_context(Queue(name, url=url)) for name in ("emails", "reports", "archive")}
        queues["emails"].enqueue(b"{}")  # the server is there
        worker, flow = Worker(url=url, name="demo"), Flow("shop", url=url)
        stack.callback(flow.close)
        _declare(worker, flow)
        over = threading.Event()
        producer = threading.Thread(target=_produce, args=(queues, flow, over), daemon=True)
        stack.enter_context(worker)
        producer.start()
        stack.callback(producer.join, 5.0)
        stack.callback(over.set)
        yield url


def _declare(worker: Worker, flow: Flow) -> None:
    chance = random.Random()

    def send(_job: Job[Any]) -> None:
        time.sleep(chance.uniform(0.01, 0.15))
        if chance.random() < 0.05:
            raise TimeoutError(f"no answer within {chance.uniform(1, 5):.1f} s")
        if chance.random() < 0.02:
            raise LookupError("no such user")

    def report(_job: Job[Any]) -> bytes:
        time.sleep(chance.uniform(1, 8))
        return b'{"pages": 12}'

    def order(_job: FlowJob) -> Next:
        time.sleep(chance.uniform(0.1, 0.5))
        return Next("bill", b"ordered")

    def bill(_job: FlowJob) -> bytes:
        time.sleep(chance.uniform(0.1, 0.5))
        return b"billed"

    worker.handler("emails", concurrency=4, retry=Retry(attempts=2), trends=True)(send)
    worker.handler("reports", concurrency=3)(report)
    flow.stage("order", next="bill")(order)
    flow.stage("bill")(bill)
    worker.flow(flow)


def _produce(queues: dict[str, Queue], flow: Flow, over: threading.Event) -> None:
    """Enqueue until *over*: not many, and never more than a few hundred that wait."""
    chance, number = random.Random(), 0
    with suppress(redis.RedisError, HeadraceError, OSError):
        queues["reports"].admin.schedule("nightly", b'{"kind": "nightly"}', every=30)
        queues["archive"].admin.pause()
        while not over.wait(PAUSE_S):
            number += 1
            name = chance.choice(NAMES)
            if queues["emails"].counts().waiting < 300:
                headers = {"customer": name}
                some = [
                    NewJob(f'{{"to": "{name}@example.org", "number": {number}}}', headers=headers)
                ] * chance.randint(0, 3)
                queues["emails"].enqueue_many(some)
            if number % 12 == 0 and queues["reports"].counts().waiting < 50:
                queues["reports"].enqueue(f'{{"month": {number % 12 + 1}}}', id=f"report-{number}")
            if number % 30 == 0:
                queues["emails"].enqueue(b'{"to": "later@example.org"}', delay=chance.uniform(20, 90))
                flow.start(b'{"items": 3}', id=f"order-{number}", attributes={"customer": name})
            if number % 40 == 0 and queues["archive"].counts().waiting < 200:
                queues["archive"].enqueue(f"archived {number}")
