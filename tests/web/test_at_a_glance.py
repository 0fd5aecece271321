"""Many queues, tenants and runs at a glance: groups, filters, gauges, tabs and dots."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, closing
from typing import Any

from headrace import Flow, Limit, NewJob, Queue, Retry, Worker
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.web.conftest import text


def test_a_hundred_queues(site: Any, newest: Server) -> None:
    """Queues of one prefix are one row with their sums, and so are facts of one kind. A filter and
    the row's link list the queues."""
    names = [f"{group}-{n}" for group in ("billing", "crm") for n in range(20)]
    with ExitStack() as stack:
        for name in [*names, "alone"]:
            stack.enter_context(Queue(name, url=newest.url)).enqueue(b"x")
        one = site()
        shown = one.get()
        words = text(shown)
        assert "no worker 41 queues" in words
        assert "billing… 20 queues 20 0" in words
        assert 'href="queue?name=alone"' in shown.text
        for query in ({"group": "crm"}, {"filter": "CRM-"}, {"only": "attention", "filter": "crm"}):
            chosen = one.get(**query)
            assert "Queues 20 of 41" in text(chosen).replace("Queues of crm", "Queues"), query
            assert 'href="queue?name=crm-7"' in chosen.text
        assert "No queue is so." in text(one.get(filter="nowhere"))
        assert words.index("alone") < words.index("billing…")
        turned = text(one.get(sort="waiting", order="desc"))
        assert turned.rindex("billing…") < turned.rindex("alone")


def test_a_tenant_is_paused(site: Any, newest: Server) -> None:
    """Its button pauses it alone. A limit is a gauge. A text that is redacted is no value, so there
    is no button then."""
    fair: dict[str, Any] = {"fair": "tenant", "limits": [Limit(2, key="tenant")]}
    with Queue("f", url=newest.url, **fair) as queue:
        queue.enqueue_many([NewJob(b"x", headers={"tenant": "<b>"})] * 3)
        assert len(queue.lease_many(3)) == 2
        one = site()
        shown = one.get("tenants")
        assert "tenant Share Running Waiting" in text(shown)
        assert "2 of 2 at its limit" in text(shown)
        assert 'href="queue?name=f&amp;state=waiting&amp;header=tenant%3D%3Cb%3E"' in shown.text
        assert 'class="gauge warn"' in shown.text
        fields = {"queue": "f", "value": json.dumps(["<b>"]), "page": "tenants"}
        assert one.done("pause", **fields) == "<b> is paused."
        assert queue.admin.paused_values() == [("<b>",)]
        assert not queue.admin.paused()
        assert one.done("pause", **fields) == "<b> was paused already."
        assert "<b> paused" in text(one.get("tenants"))
        assert one.done("resume", **fields) == "Jobs of <b> are handed out again."
        assert one.done("resume", **fields) == "<b> was not paused."
        for value in ("tenant", '"x"', "[1]"):
            assert one.post("pause", queue="f", value=value).status_code == 400
        redacted = site(redact=lambda *_: "hidden").get("tenants")
        assert "do/pause" not in redacted.text


def test_runs_by_state(site: Any, newest: Server) -> None:
    """The newest run is first, tabs count states, and a failed one says why and can be redriven."""
    broken = [True]
    with closing(Flow("shop", url=newest.url)) as flow:

        @flow.stage("order", next="bill")
        def order(job: Any) -> bytes:
            return b"ordered"

        @flow.stage("bill", retry=Retry(attempts=1))
        def bill(job: Any) -> bytes:
            if job.id == "bad" and broken:
                raise ValueError("no <b> paper")
            return b"billed"

        worker = Worker(url=newest.url)
        worker.flow(flow)
        for name in ("first", "bad", "last"):
            flow.start(b"x", id=name)
        with worker:
            until(lambda: flow.counts()["bill"].completed == 2 and flow.counts()["bill"].dead == 1)
        one = site()
        shown = one.get("flow", name="shop")
        words = text(shown)
        assert "All 3 Running 0 Blocked 0 Completed 2 Failed 1 Cancelled 0" in words
        assert "ValueError: no <b> paper Redrive" in words
        assert words.index("last completed") < words.index("first completed")
        assert shown.text.count('<i class="completed"') == 5
        assert shown.text.count('<i class="failed" title="bill: failed">') == 1
        failed = one.get("flow", name="shop", state="failed")
        assert re.findall(r'href="run\?flow=shop&amp;id=(\w+)"', failed.text) == ["bad"]
        assert "Failed in bill" in text(one.get("run", flow="shop", id="bad"))
        broken.clear()
        fields = {"queue": "shop/bill", "id": "bad", "flow": "shop", "page": "run"}
        assert one.done("redrive", **fields)
        again = Worker(url=newest.url)
        again.flow(flow)
        with again:
            until(lambda: flow.counts()["bill"].completed == 3)
        assert "completed bad" in text(site().get("run", flow="shop", id="bad"))
