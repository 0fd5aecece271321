"""Work that goes on while a cluster changes, and the facts that must hold at the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import redis
import redis.asyncio

from headrace import Queue
from tests.support.awaiting import until
from tests.support.engines import Running


class Load:
    """A producer for each queue and one worker for all. On exit each acknowledged job was done
    once.

    *server*: a URL, or what makes a client of the module that it is given.
    """

    def __init__(
        self, server: str | Callable[[Any], Any], names: Sequence[str], kind: str, **options: Any
    ) -> None:
        self._names = names
        self._server = {"url": server} if isinstance(server, str) else {"client": server(redis)}
        there = (
            self._server
            if isinstance(server, str) or kind == "threads"
            else {"client": server(redis.asyncio)}
        )
        self._worker = Running(kind, **there, **options)
        self.stood_still = 0.0  # seconds that the longest call of a producer took
        self._enough = threading.Event()
        self._errors: list[BaseException] = []
        self.acknowledged = dict.fromkeys(names, 0)
        self.handled: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

        def body(job: Any) -> None:
            with self._lock:
                self.handled[job.queue, job.id] += 1

        for name in names:
            self._worker.handler(name, concurrency=8)(body)
        self._producers = [threading.Thread(target=self._produce, args=(name,)) for name in names]

    def _produce(self, name: str) -> None:
        try:
            with Queue(name, **self._server) as queue:
                while not self._enough.is_set():
                    since = time.monotonic()
                    queue.enqueue_many([b"x"] * 5)
                    self.stood_still = max(self.stood_still, time.monotonic() - since)
                    self.acknowledged[name] += 5
                    self._enough.wait(0.02)
        except BaseException as error:
            self._errors.append(error)

    def goes_on(self, more: int = 100) -> None:
        """Wait until every queue has acknowledged and handled so many more jobs, which shows that
        each is reached."""
        before, done = dict(self.acknowledged), self.done()
        until(
            lambda: (
                self._errors or all(self.acknowledged[n] >= before[n] + more for n in self._names)
            ),
            "producers",
        )
        assert not self._errors
        until(
            lambda: all(self.done()[n] >= done[n] + more for n in self._names),
            "a worker that goes on",
        )

    def done(self) -> Counter[str]:
        """Return how many jobs of each queue were handled."""
        with self._lock:
            return Counter(name for name, _ in self.handled)

    def __enter__(self) -> Self:
        self._worker.start()
        for producer in self._producers:
            producer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._enough.set()
        for producer in self._producers:
            producer.join()
        try:
            if error is None:
                assert not self._errors
                self._judge()
        finally:
            self._worker.close()

    def _judge(self) -> None:
        for name in self._names:
            with Queue(name, **self._server) as queue:
                added = self.acknowledged[name]
                until(
                    lambda queue=queue, added=added: queue.counts().completed >= added,
                    "the end of all jobs",
                )
                counts = queue.counts()
                assert (counts.enqueued, counts.completed, counts.waiting, counts.leased) == (
                    added,
                    added,
                    0,
                    0,
                )
        assert self.done() == self.acknowledged
        assert set(self.handled.values()) == {1}
