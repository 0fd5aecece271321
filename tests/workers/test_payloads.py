"""Workers and payloads that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import Counts, Job, Queue
from headrace._codecs import offloaded
from headrace.codecs import DirectoryStore, Offloaded
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


def test_offloaded_payloads(work: Work, newest: Server, record: Recorder, tmp_path: Path, monkeypatch: Any) -> None:
    """A handler gets them whole, and they go with their jobs; while their store is away, their jobs wait for it."""
    monkeypatch.setattr(offloaded, "STORE_RETRY_S", 0.2)
    path = tmp_path / "mounted"
    codec = Offloaded(None, DirectoryStore(path), over=10)
    worker = work()

    @worker.handler("q", codec=codec)
    def body(job: Job) -> bytes:
        with record(job.payload):
            return job.payload[:1]

    with Queue("q", url=newest.url, codec=codec) as queue:
        first = [bytes([n]) * 5000 for n in range(20)]
        queue.enqueue_many(first)
        path.rename(tmp_path / "away")
        with worker:
            until(lambda: queue.counts().delayed == 20)
            (tmp_path / "away").rename(path)
            queue.enqueue(b"small")
            until(lambda: queue.counts() == Counts(enqueued=21, completed=21))
        assert sorted(record.started) == sorted([*first, b"small"])
        assert not list(path.iterdir())
