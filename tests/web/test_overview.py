"""The overview shows at a glance whether all is well, with a link for each fact, in the order that
is asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace import Job, Limit, NewJob, Queue, Retry, Worker
from headrace.console.texts import memory
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, write_trends
from tests.web.conftest import text


def rows(site: Any, **query: str) -> list[str]:
    """Return the queues in their order on the page."""
    return re.findall(r'<th scope="row"><a href="queue\?name=([^"]+)"', site.get(**query).text)


@pytest.fixture
def three(newest: Server) -> None:
    """Make queues that differ in every column. `a` has dead letters, `b` has jobs, and `c` has a
    leased one."""
    for name, number, leased in (("a", 2, 2), ("b", 5, 0), ("c", 1, 1)):
        with Queue(name, url=newest.url) as queue:
            queue.enqueue_many([b"x"] * number)
            for lease in queue.lease_many(leased) if leased else ():
                if name == "a":
                    lease.dead_letter("why")


def test_totals_come_first(site: Any, three: None) -> None:
    shown = text(site().get())
    assert "Waiting 5 Running 1 Dead 2 Oldest waiting" in shown
    assert shown.index("Needs attention") < shown.index("Queues 3")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"sort": "name", "order": "desc"}, ["c", "b", "a"]),
        ({"sort": "dead"}, ["a", "b", "c"]),
        ({"sort": "dead", "order": "asc"}, ["b", "c", "a"]),
        ({"sort": "waiting", "order": "desc"}, ["b", "a", "c"]),
        ({"sort": "running"}, ["c", "a", "b"]),
    ],
)
def test_the_order(site: Any, three: None, query: dict[str, str], expected: list[str]) -> None:
    assert rows(site(), **query) == expected


def test_the_address_keeps_the_order(site: Any, three: None) -> None:
    """A column's link sorts by it. The link of the sorted column reverses the order and says so."""
    one = site()
    shown = one.get(sort="dead").text
    assert 'aria-sort="descending"><a href="./?sort=dead&amp;order=asc">Dead ↓' in shown
    assert '<a href="./?sort=waiting&amp;order=desc">Waiting</a>' in shown
    assert '<a href="./?sort=dead&amp;order=desc">Dead ↑' in one.get(sort="dead", order="asc").text
    assert 'aria-sort="ascending"><a href="./?sort=name&amp;order=desc">Queue ↑' in one.get().text
    for wrong in ({"sort": "x"}, {"order": "x"}, {"sort": "<b>"}):
        answer = one.get(**wrong)
        assert answer.status_code == 404
        assert "<b>" not in answer.text


def test_each_fact_has_its_link(site: Any, three: None) -> None:
    shown = site().get().text
    assert '<a href="dead?name=a">a</a></strong> 2 new dead letters in the last hour' in shown
    assert (
        '<a href="queue?name=b&amp;state=waiting">b</a></strong> 5 jobs wait, and no worker is alive'
        in shown
    )


def test_a_sound_server_needs_nothing(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x", delay=LONG)
    assert "Needs attention ✓ Nothing." in text(site().get())


def test_only_what_one_may_see(site: Any, three: None) -> None:
    """Sums, facts and the server cover only the queues that a user may see."""
    shown = site(access=lambda _: {"b": "read"}).get()
    assert "Waiting 5 Running 0 Dead 0" in text(shown)
    assert "dead letters in the last hour" not in shown.text
    assert "unix://" not in shown.text
    assert "Memory" not in text(shown)
    all_of_it = site(access=lambda _: "read").get()
    assert "Memory" in text(all_of_it)
    assert "unix://" in all_of_it.text


def test_a_server_that_refuses_info(site: Any, three: None, newest: Server) -> None:
    """Everything else is shown, without a message."""
    with newest.client() as client:
        client.acl_setuser(
            "viewer",
            enabled=True,
            nopass=True,
            keys=["*"],
            channels=["*"],
            commands=["+@all", "-info"],
        )
        shown = site(url=f"unix://viewer:x@{newest.path}").get()
        client.acl_deluser("viewer")
    assert shown.status_code == 200
    assert "Waiting 5 Running 1 Dead 2" in text(shown)
    assert "Memory" not in text(shown)
    assert "viewer" not in shown.text


def test_throughput_from_the_third_look_on(site: Any, queue: Queue) -> None:
    queue.enqueue(b"x")
    one = site()
    assert "Throughput is drawn" in text(one.get())

    def drawn() -> bool:
        one.pages._inspector.forget()
        return 'class="plot"' in one.get().text

    until(drawn, "a third look")


def test_throughput_of_two_hours(site: Any, newest: Server) -> None:
    """The throughput sums the queues with trends. The order of the queues stays in the address."""
    with Queue("t", url=newest.url, trends=True) as kept, Queue("u", url=newest.url) as other:
        kept.enqueue(b"x")
        other.enqueue(b"x")
        write_trends(kept, newest, range(1, 60))
        one = site()
        shown = one.get(sort="dead")
        assert "1 of 2 queues keep trends" in text(shown)
        assert 'class="plot"' in shown.text
        assert "Jobs a second in 0.2 done 0.1" in text(shown)
        assert 'href="./?sort=name&amp;order=asc"' in shown.text


@pytest.mark.parametrize(
    ("used", "most", "expected"),
    [
        (0, 0, "0 B"),
        (1023, 0, "1023 B"),
        (5 * 2**20, 0, "5 MiB"),
        (5.5 * 2**20, 0, "5.5 MiB"),
        (900 * 2**20, 2**30, "900 MiB of 1 GiB"),
    ],
)
def test_memory(used: float, most: int, expected: str) -> None:
    assert memory(used, most) == expected


def test_the_last_hour_of_a_tenant(site: Any, newest: Server) -> None:
    """Small bars show the jobs that were done, and the attempts that failed upon them."""
    worker = Worker(url=newest.url)

    @worker.handler("f", fair="tenant", retry=Retry(attempts=1))
    def handle(job: Job) -> None:
        if job.payload == b"bad":
            raise ValueError("always")

    with Queue("f", url=newest.url, fair="tenant") as queue:
        one = site()
        assert "Last hour" not in one.get("tenants").text
        jobs = [NewJob(b"x", headers={"tenant": "ada"}), NewJob(b"bad", headers={"tenant": "ada"})]
        queue.enqueue_many(jobs)
        with worker:
            until(lambda: queue.counts().completed + queue.counts().dead == 2)
        for page in ("tenants", "queue?name=f"):
            shown = site().get(page).text
            assert "Last hour" in shown
            assert "1 done, 1 failed" in " ".join(re.sub("<[^>]*>", "", shown).split())
            assert re.search(r'<g class="line accent"><path d="M[^"]+z"/></g>', shown)
            assert re.search(r'<g class="line bad"><path d="M[^"]+z"/></g>', shown)


def test_tenants(site: Any, newest: Server) -> None:
    """Each fair or limited queue has its busiest values. Hostile names stay text. Other queues are
    left out."""
    one = site()
    assert "No queue shares its workers" in text(one.get("tenants"))
    limits = [Limit(2, key="tenant"), Limit(9)]
    with Queue("f", url=newest.url, fair="tenant", weights={"<b>acme": 2.5}, limits=limits) as fair:
        fair.enqueue_many(
            [
                NewJob(b"x", headers={"tenant": name})
                for name in ("<b>acme", "ada")
                for _ in range(3)
            ]
        )
        assert len(fair.lease_many(6)) == 4
    with Queue("plain", url=newest.url) as plain:
        plain.enqueue(b"x")
    one.pages._inspector.forget()
    until(lambda: "f" in text(one.get("tenants")))
    shown = one.get("tenants")
    assert "<b>acme" not in shown.text
    for words in (
        "At most in all 9 (4 run)",
        "At most for each tenant 2",
        "<b>acme",
        "2.5 2 of 2 at its limit 1",
    ):
        assert words in text(shown)
    assert "plain" not in shown.text
    assert "f" not in re.findall(
        r'name=(\w+)"', site(access=lambda _: {"plain": "read"}).get("tenants").text
    )
