"""Workers and payloads that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Counts, Job, NewJob, Queue
from headrace._codecs import offloaded
from headrace.codecs import DirectoryStore, Encrypted, JSONCodec, Offloaded
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


def test_offloaded_payloads(
    work: Work, newest: Server, record: Recorder, tmp_path: Path, monkeypatch: Any
) -> None:
    """A handler gets whole payloads, which are removed with their jobs. While the store is away,
    the jobs wait."""
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


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("over", [None, 1])
def test_sealed_payloads(
    work: Work, newest: Server, tmp_path: Path, shards: int, over: int | None
) -> None:
    """Payloads come from producers, with and without an id, and from schedules. The store is empty
    at the end."""
    inner: Any = (
        JSONCodec() if over is None else Offloaded(JSONCodec(), DirectoryStore(tmp_path), over=over)
    )
    codec = Encrypted(inner, {"k": bytes(range(32))})
    seen: list[Any] = []
    worker = work()

    @worker.handler("q", codec=codec, shards=shards)
    def body(job: Job) -> Any:
        seen.append((job.id.partition("@")[0], job.payload))
        return {"took": job.payload}

    with Queue("q", url=newest.url, codec=codec, shards=shards) as queue, worker:
        queue.admin.schedule("s", {"of": "s"}, every=1)
        receipts = queue.enqueue_many(
            [NewJob(["a"], id="a"), ["b"], NewJob(["c"], id="c", delay=0.01)]
        )
        assert [receipt.result(60) for receipt in receipts] == [{"took": [name]} for name in "abc"]
        until(lambda: ("s", {"of": "s"}) in seen)
        assert queue.result("a") == {"took": ["a"]}
        assert queue.counts().dead == 0
        assert queue.admin.unschedule("s")
    assert not list(tmp_path.iterdir())
