"""The page of the counts of workers, of all queues, of one, and of a kind."""

from __future__ import annotations

from typing import Any

from headrace import Job, NewJob, Queue, Retry, Worker
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.web.conftest import text


def test_activity(site: Any, newest: Server, queue: Queue) -> None:
    """Bars and lines stand for all queues that may be seen, for one, or for one of its kinds."""
    one = site()
    assert "No worker has ended a job in the last 2 hours" in text(one.get("activity"))
    worker = Worker(url=newest.url)

    @worker.handler("q", retry=Retry(attempts=1))
    def handle(job: Job) -> None:
        if job.headers["kind"] == "bad":
            raise ValueError("always")

    kinds = ["bad", "<b>", "<b>"]
    queue.enqueue_many([NewJob(b"x", headers={"kind": kind}) for kind in kinds])
    with worker:
        until(lambda: queue.counts().dead + queue.counts().completed == 3)
    one = site()
    for page in ("activity", "activity?name=q", "activity?span=24h"):
        shown = one.get(page)
        assert "done 2 retried 0 died 1" in text(shown), page
        assert "Wait, p95" in text(shown)
        assert "&lt;b&gt;" in shown.text
    assert "<b>" not in one.get("activity").text
    assert "died 1" in text(one.get("activity", name="q", kind="bad"))
    assert "Machines" not in text(one.get("activity", name="q", kind="bad"))
    assert "No worker has ended a job" in text(one.get("activity", name="q", kind="none"))
    assert "activity?name=q" in one.get("queue", name="q").text
    assert one.get("activity", span="1y").status_code == 404
