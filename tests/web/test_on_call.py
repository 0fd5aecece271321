"""Five questions of a user on call. Each is answered by clicks in a browser in under a minute.

The jobs are of real queues and workers, and nothing is typed: no address, no id, no command.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace import Job, Limit, NewJob, Queue, Retry, Worker
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import write_trends
from tests.web.chromium import needs_chromium

pytestmark = [*needs_chromium, pytest.mark.slow]
ANSWERED_S = 60.0  # seconds for an answer, at most


@pytest.fixture
def open_queue(newest: Server) -> Iterator[Callable[..., Any]]:
    """Open queues until the end of the test."""
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(Queue(name, url=newest.url, **options))


@pytest.fixture
def on_call(page: Any) -> Any:
    """Open the overview on a large screen."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.set_default_timeout(20_000)
    return page


class Asked:
    """A block that answers a question from the overview on, within a minute."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def __enter__(self) -> Any:
        self._page.reload()
        self._began = time.monotonic()
        return self._page

    def __exit__(self, *failed: object) -> None:
        if failed == (None, None, None):
            assert time.monotonic() - self._began < ANSWERED_S


def charge(customer: str) -> bytes:
    raise LookupError(f"no card of customer {customer}")


def work(server: Server, *queues: Any, **options: Any) -> Worker:
    """Run a worker whose jobs take as long as their payload says, or fail if it names a
    customer."""
    worker = Worker(url=server.url)

    def handle(job: Job) -> bytes:
        if job.payload.startswith(b"customer"):
            return charge(job.payload.decode().split()[-1])
        time.sleep(float(job.payload))
        return b"done"

    for queue in queues:
        worker.handler(queue, retry=Retry(attempts=2, wait=0.1), **options)(handle)
    return worker


def row(page: Any, region: str, text: str) -> Any:
    """Return the row of a table that has a text."""
    return page.get_by_role("region", name=region).get_by_role("row").filter(has_text=text)


def test_why_did_this_job_die(newest: Server, on_call: Any, open_queue: Callable[..., Any]) -> None:
    """The way is the overview, the dead letters and the newest of their group. It has the reason,
    its place, attempts and workers.
    """
    kept: dict[str, Any] = {"history": 100, "tracebacks": True}
    queue = open_queue("payments", **kept)
    with work(newest, queue) as worker:
        queue.enqueue("customer 17", id="pay-17", headers={"kind": "card"})
        until(lambda: queue.counts().dead == 1)
    with Asked(on_call) as page:
        page.get_by_role("navigation", name="Pages").get_by_role(
            "link", name="Dead letters"
        ).click()
        group = row(page, "Dead letters by reason and kind", "no card of customer")
        assert "card" in group.inner_text()
        group.get_by_role("link", name="pay-17").click()
        page.get_by_role("heading", name="Why it died").wait_for()
        shown = page.locator("main").inner_text()
        assert "no card of customer 17" in shown
        assert re.search(r"line \d+, in charge", shown)
        assert "Attempt 1" in shown
        assert "Attempt 2" in shown
        assert worker.name[:6] in shown


def test_what_is_slow(newest: Server, on_call: Any, open_queue: Callable[..., Any]) -> None:
    """The way is the overview, the queue and the kinds. It shows the slowest kind and the times of
    its latest jobs."""
    queue = open_queue("images", history=100)
    with work(newest, queue):
        for kind, seconds in (("thumbnail", "0.001"), ("film", "0.5")):
            queue.enqueue_many([NewJob(seconds, headers={"kind": kind}) for _ in range(4)])
        until(lambda: queue.counts().completed == 8)
    with Asked(on_call) as page:
        page.get_by_role("region", name="Queues").get_by_role("link", name="images").click()
        slow = row(page, "Kinds of images", "film")
        took = slow.locator("td[data-label='Run, p95']")
        fast = row(page, "Kinds of images", "thumbnail").locator("td[data-label='Run, p95']")
        assert seconds_of(took.inner_text()) >= 0.5 > seconds_of(fast.inner_text())
        slow.get_by_role("link", name="film").click()
        jobs = page.locator("#jobs td[data-label='Ran for']")
        jobs.nth(3).wait_for()
        assert [seconds_of(one) >= 0.5 for one in jobs.all_inner_texts()] == [True] * 4


def seconds_of(words: str) -> float:
    """Return the seconds that a table shows."""
    number, unit = words.split()[:2]
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60}[unit]


def test_which_tenant_floods(newest: Server, on_call: Any, open_queue: Callable[..., Any]) -> None:
    """The tenant with the most waiting jobs is at its limit. A quiet one is not."""
    options: dict[str, Any] = {"fair": "tenant", "limits": [Limit(2, key="tenant")]}
    queue = open_queue("emails", **options)
    jobs = [NewJob("0.2", headers={"tenant": tenant}) for tenant in ["acme"] * 300 + ["quiet"] * 3]
    queue.enqueue_many(jobs)
    with work(newest, queue, concurrency=4):
        until(lambda: queue.counts().completed >= 8)
        with Asked(on_call) as page:
            page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tenants").click()
            flood, quiet = (row(page, "Shares of emails", tenant) for tenant in ("acme", "quiet"))
            waits = int(flood.locator("td[data-label='Waiting']").inner_text())
            assert waits > 100 > int(quiet.locator("td[data-label='Waiting']").inner_text())
            flood.get_by_text("at its limit").wait_for()


def test_is_anything_stuck(newest: Server, on_call: Any, open_queue: Callable[..., Any]) -> None:
    """The overview has the queues that need attention with the reason. A link leads to waiting
    jobs, and a click resumes them.
    """
    alone, paused, fine = open_queue("alone"), open_queue("paused"), open_queue("fine")
    alone.enqueue("0", id="first")
    paused.enqueue("0")
    paused.admin.pause()
    with work(newest, paused, fine), Asked(on_call) as page:
        attention = page.locator("#attention")
        attention.get_by_role("link", name="paused").first.wait_for()
        assert "fine" not in attention.inner_text()
        attention.get_by_role("link", name="alone").first.click()
        page.get_by_role("heading", name="alone", exact=True).wait_for()
        assert "no worker runs" in page.locator("#figures").inner_text()
        assert page.get_by_role("link", name="first").is_visible()
        page.get_by_role("link", name="Overview").click()
        attention.get_by_role("link", name="paused").first.click()
        page.get_by_role("button", name="Resume").click()
        page.locator(".outcome").wait_for()
        until(lambda: paused.counts().completed == 1)
        page.get_by_role("link", name="Overview").click()
        attention.wait_for()
        attention.get_by_role("link", name="paused").first.wait_for(state="detached")


def test_what_happened_last_night(
    newest: Server, on_call: Any, open_queue: Callable[..., Any]
) -> None:
    """The queue's chart of twelve hours and its table have the values of each moment. Dead letters
    have times."""
    queue = open_queue("orders", trends=True, history=100)
    queue.enqueue("customer 3", id="order-3")
    queue.lease().dead_letter("the stock is empty")
    write_trends(queue, newest, range(1, 700))
    with Asked(on_call) as page:
        page.get_by_role("region", name="Queues").get_by_role("link", name="orders").click()
        figure = page.locator("figure.chart").filter(has_text="Jobs a second").first
        svg = figure.locator("svg.plot")
        svg.scroll_into_view_if_needed()
        svg.hover()
        told = figure.locator(".readout").inner_text()
        assert re.search(r"\d\d:\d\d:\d\dZ · in [\d.]+.* · done [\d.]+", told), told
        page.get_by_role("link", name="Trends of 90 days").click()
        page.get_by_role("link", name="12 hours").click()
        page.locator("figure", has_text="Oldest waiting").wait_for()
        assert page.locator("main tbody tr").count() >= 10
        page.get_by_role("navigation", name="Pages").get_by_role(
            "link", name="Dead letters"
        ).click()
        died = row(page, "Dead letters by reason and kind", "the stock is empty")
        assert died.locator("td[data-label='Letters']").inner_text() == "1"
        assert died.locator("time").first.get_attribute("title")
