"""Flows are drawn in the order that their workers declare, and their runs are found by state, stage
and id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import FanOut, Flow, Lease, NewJob, Queue, Retry, Worker
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.web.conftest import text


@pytest.fixture
def shop(newest: Server) -> Iterator[Flow]:
    """Make a flow whose orders fan out to items and are billed. `bad` fails, and `waits` has not
    begun."""
    flow, worker = Flow("shop", url=newest.url), Worker(url=newest.url)

    @flow.stage("order", next="bill", children="item", retry=Retry(attempts=1))
    def order(job: Any) -> Any:
        return FanOut([b"1", b"2"]) if job.id != "bad" else 1 / 0

    @flow.stage("item")
    def item(job: Any) -> bytes:
        return b"<b>item " + job.payload

    @flow.stage("bill")
    def bill(job: Any) -> bytes:
        return b"billed"

    worker.flow(flow)
    for name in ("good", "bad", "a*b"):
        flow.start(b"x", id=name)
    with worker:
        until(
            lambda: flow.counts()["bill"].completed == 2 and flow.counts()["order"].dead == 1,
            "the ends of all runs",
        )
    flow.start(b"x", id="waits")
    yield flow
    flow.close()


def found(site: Any, **only: str) -> list[str]:
    """Return the runs on the page of the flow."""
    return sorted(
        re.findall(r"run\?flow=shop&amp;id=([^\"]+)", site.get("flow", name="shop", **only).text)
    )


def test_the_graph(site: Any, shop: Flow) -> None:
    """Each next stage has an arrow, and so have children. Each stage is a link."""
    one = site()
    for page in (one.get("flows"), one.get("flow", name="shop")):
        assert "The stages of shop: order leads to bill; order fans out to item" in page.text
        assert page.text.count("<polygon") == 2
        assert page.text.count('class="children"') == 1
        assert 'href="queue?name=shop/bill"' in page.text.replace("%2F", "/")
        assert "1 waiting · 0 running" in text(page)
        assert "1 dead" in text(page)


def test_runs_by_state_stage_and_id(site: Any, shop: Flow) -> None:
    one = site()
    assert found(one) == ["a%2Ab", "bad", "good", "waits"]
    assert found(one, state="failed") == ["bad"]
    assert found(one, state="completed", stage="bill") == ["a%2Ab", "good"]
    assert found(one, stage="order") == ["bad", "waits"]
    assert found(one, prefix="wa") == ["waits"]
    assert found(one, prefix="a*") == ["a%2Ab"]
    assert found(one, prefix="*") == found(one, state="cancelled") == []
    shown = one.get("flow", name="shop", state="failed", prefix="<b>")
    assert 'aria-current="page">Failed <span>' in shown.text
    assert 'value="&lt;b&gt;"' in shown.text
    assert one.get("flow", name="shop", state="x").status_code == 404


def test_a_run_with_its_children(site: Any, shop: Flow) -> None:
    shown = site().get("run", flow="shop", id="good")
    assert "2 completed." in text(shown)
    # in the graph, and in the table
    assert shown.text.count("run?flow=shop&amp;id=good%2F1%2F0") == 2
    assert "job?queue" not in shown.text  # no queue has these jobs
    assert "not reached" not in text(shown)
    assert "<b>item 1" in text(shown)
    assert "<b>" not in shown.text
    assert "Result of bill" in text(shown)


def test_the_graph_of_one_run(site: Any, shop: Flow, newest: Server) -> None:
    """Each stage has its state in this run alone, a link to its job, and its duration. Folded
    children have a number.
    """
    assert "order failed" in text(site().get("run", flow="shop", id="bad"))
    assert "bill not reached" in text(site().get("run", flow="shop", id="bad"))
    (waits,) = leased_in(newest, "order")
    assert waits.job.id == "waits"
    assert "order running" in text(site().get("run", flow="shop", id="waits"))
    shop.complete(waits, FanOut([NewJob(b"x", f"c{n}") for n in range(120)]))
    leases = leased_in(newest, "item", 60)
    for lease in leases[:50]:
        shop.complete(lease, b"done")
    shown = text(site().get("run", flow="shop", id="waits"))
    assert re.search(
        r"order blocked · [\d.]+ (ms|s) .*item 50 completed · 10 running 10 waiting · 50 going on",
        shown,
    )
    assert "70 go on, 50 completed." in shown
    assert "70 are shown." in shown
    page = site().get("run", flow="shop", id="waits").text
    assert page.count("job?queue=shop%2Fitem") == 3 + 20
    shown = text(site().get("run", flow="shop", id="waits/1/c0"))
    assert re.search(
        r"order not reached bill not reached item completed · [\d.]+ (ms|s|min) ", shown
    )


def test_a_run_that_has_failed_says_why(site: Any, shop: Flow, newest: Server) -> None:
    """The reason is shown after redaction."""
    shown = site().get("run", flow="shop", id="bad")
    assert "Failed in order ZeroDivisionError: division by zero" in text(shown)
    (waits,) = leased_in(newest, "order")
    shop.complete(waits, FanOut([NewJob(b"x", "c")]))
    assert shop.cancel("waits")
    assert "Why it was cancelled its parent was cancelled" in text(
        site().get("run", flow="shop", id="waits/1/c")
    )
    assert "Why" not in text(site().get("run", flow="shop", id="waits"))
    hidden = site(redact=lambda what, shown, job: f"[{what} of {job.id}]")
    assert "Failed in order [reason of bad]" in text(hidden.get("run", flow="shop", id="bad"))


def test_an_ended_job_with_its_children(site: Any, shop: Flow, newest: Server) -> None:
    """The children are shown as far as the queue's history has them."""
    (waits,) = leased_in(newest, "order")
    with Queue("shop/order", url=newest.url, history=10) as queue:
        assert queue.lease() is None
    shop.complete(waits, FanOut([NewJob(b"x", "c1"), NewJob(b"x", "c2")], failed="continue"))
    first, second = leased_in(newest, "item", 2)
    assert first.dead_letter("no")
    assert shop.complete(second)
    assert shop.state("waits").stage == "bill"
    shown = text(site().get("job", queue="shop/order", id="waits"))
    assert "Children 1 completed, 1 failed." in shown
    assert "waits/1/c1 failed item waits/1/c2 completed item" in shown


def leased_in(server: Server, stage: str, limit: int = 1) -> list[Lease[Any]]:
    with Queue(f"shop/{stage}", url=server.url) as queue:
        return queue.lease_many(limit)


def test_a_group_of_queues_is_shown_too(site: Any, newest: Server) -> None:
    """Its order is unknown. No user sees a stage without the right to it."""
    for name in ("group/a", "group/b"):
        with Queue(name, url=newest.url) as queue:
            queue.enqueue(b"x")
    shown = site().get("flows")
    assert "A group of queues." in text(shown)
    assert "<polygon" not in shown.text
    shown = site(access=lambda _: {"group/a": "read"}).get("flows")
    assert "group%2Fa" in shown.text
    assert "group%2Fb" not in shown.text
