"""The page of the counts of workers, of all queues, of one, and of a kind."""

from __future__ import annotations

import re
from html import unescape
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


def test_spans(site: Any, newest: Server, queue: Queue) -> None:
    """The charts of the overview and of a queue are of an hour, two, or a day, and stay so."""
    worker = Worker(url=newest.url)
    worker.handler("q")(lambda job: None)
    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().completed == 1)
    one = site()
    for page in ("?", "queue?name=q&page=x&"):
        for span, words in (("1h", "a minute"), ("2h", "a minute"), ("24h", "in ten minutes")):
            shown = one.get(f"{page}span={span}").text
            assert f"Jobs {words}" in shown
            (current,) = re.findall(r'<a href="([^"]*)" aria-current="true">[^<]*hour', shown)
            assert f"span={span}" in current
            assert one.get(unescape(current)).status_code == 200
        assert one.get(f"{page}span=1y").status_code == 404
