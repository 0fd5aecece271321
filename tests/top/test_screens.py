"""What `headrace top` shows, on a terminal of 80 x 24, of a real server; how screens look is kept in `shown`.

`SHOWN=write python -m pytest tests/top` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import NewJob, Queue
from headrace._ui.top import pane, panes
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run
from tests.top.conftest import SHOWN, Screen

Tell = Callable[..., None]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time, rate and name that differs from run to run is written alike."""
    for module in (pane, panes):
        monkeypatch.setattr(module, "clock", lambda at: "2000-01-01T00:00:00Z")
    monkeypatch.setattr(panes, "from_now", lambda at, now: "9 s ago")
    monkeypatch.setattr(panes, "span", lambda seconds: "9 s")
    monkeypatch.setattr(panes, "rate", lambda number: "12")
    of = panes.job_row

    def job_row(job: Any, now: float) -> Any:
        row = of(job, now)
        named = "queue-0123456789abcdef" if job.holder and not job.reason else row.texts[4]
        return pane.Row(row.key, (*row.texts[:4], named, row.texts[5]), row.styles)

    monkeypatch.setattr(panes, "job_row", job_row)


@pytest.fixture
def some(queue: Queue, newest: Server) -> Queue:
    """A queue with jobs in all states, and one that is paused."""
    queue.enqueue_many([NewJob(b'{"to": "ada@example.org"}', id=f"mail-{n}") for n in range(1230)])
    queue.enqueue(b"x", id="late", delay=LONG)
    queue.lease()
    queue.lease().dead_letter("no such user 7")
    with Queue("reports", url=newest.url) as other:
        other.enqueue(b"monthly")
        other.admin.pause()
    return queue


def test_a_sharded_queue(tell: Tell, newest: Server) -> None:
    """It is one queue, and its page tells how many jobs wait in each shard."""
    with Queue("s", url=newest.url, shards=3) as sharded:
        sharded.enqueue_many([NewJob(b"x", id=f"i{n}") for n in range(30)])
        waiting = "  ".join(f"{one.number}: {one.counts.waiting}" for one in sharded.admin.shards())

        async def story(screen: Screen) -> None:
            await screen.shows("s (3 shards)", "✓ balanced")
            await screen.press("enter")
            await screen.shows(f"3 shards, waiting in each  {waiting}", "30 enqueued = ")

        tell(story)


def test_shares(tell: Tell, newest: Server) -> None:
    """The page of a fair queue has a line for each of its busiest values."""
    with Queue[bytes]("f", url=newest.url, fair="tenant") as fair:
        fair.enqueue_many([NewJob(b"x", headers={"tenant": "ada"})] * 3)
        fair.lease()

        async def story(screen: Screen) -> None:
            await screen.shows("f")
            await screen.press("enter")
            await screen.shows("1 running", "2 waiting", "ada")

        tell(story)


def same(name: str, text: str) -> None:
    """Compare a screen with what is kept of it."""
    kept, text = SHOWN / f"{name}.txt", text.strip("\n")
    if os.environ.get("SHOWN") == "write":
        SHOWN.mkdir(exist_ok=True)
        kept.write_text(f"{text}\n")
    assert text == kept.read_text().strip("\n")


def test_screens(tell: Tell, some: Queue, still: None) -> None:
    async def story(screen: Screen) -> None:
        same("queues", await screen.shows("emails", "reports", "paused", "✓ balanced"))
        await screen.press("enter")
        same("queue", await screen.shows("1231 enqueued", "mail-2", "[waiting]"))
        await screen.press("s")
        same("running", await screen.shows("[running]", "mail-0", "leased"))
        await screen.press("s", "s", "s")
        await screen.shows("[dead]", "mail-1")
        await screen.press("g")
        same("reasons", await screen.shows("by reason", "no such user 7"))
        await screen.press("2")
        await screen.shows("· workers", "yes")
        await screen.press("3")
        same("dead", await screen.shows("1 dead letter in 1 queue"))
        await screen.press("question_mark")
        same("help", await screen.shows("Any key leaves this."))
        await screen.press("x")
        await screen.shows("1 dead letter in 1 queue")

    tell(story)


def test_a_job(tell: Tell, queue: Queue) -> None:
    """With its lease, its timeline, and its payload: what other programs wrote is neither obeyed nor styled."""
    queue.enqueue(b'{"to": "[bold]ada[/bold]"}', id="[red]a\u202eb", headers={"tenant": "[b]x\x1b[31m"})
    lease = queue.lease()

    async def story(screen: Screen) -> None:
        await screen.press("f")
        await screen.shows("Find the job of this id:")
        screen.top.screen.query_one("Input").value = "[red]a\u202eb"  # type: ignore[attr-defined]
        await screen.press("enter")
        shown = await screen.shows("token", "timeline", "headers", "tenant: [b]x\\x1b[31m")
        for words in (
            f"held by    {lease.worker}", f"token      {lease.token}", "until", "json, 26 bytes", "[bold]ada[/bold]",
            "[red]a\\u202eb",
        ):  # fmt: skip
            assert words in shown
        await screen.press("escape")
        await screen.shows("· queues")
        await screen.press("f")
        await screen.types("nowhere")
        await screen.shows("There is none in 1 queue.")

    tell(story)


def test_a_run(tell: Tell, queue: Queue) -> None:
    """With its progress and its steps."""
    waiting_run(queue, "a")

    async def story(screen: Screen) -> None:
        await screen.press("f")
        await screen.types("a")
        shown = await screen.shows("progress   40% page 12 of 30", "steps", "approved · waiting")
        assert "charge · done" in shown
        assert '{ "paid": 7 }' in shown

    tell(story)


def test_a_moment_that_no_calendar_has(tell: Tell, queue: Queue, newest: Server) -> None:
    """One job due in the year 10000 is listed, and shown, with the others."""
    for name in ("soon", "far"):
        queue.enqueue(b"x", id=name, delay=60)
    with newest.client() as client:
        client.zadd(queue.ops.keys.key("delayed"), {"far": 253_402_300_800_000})

    async def story(screen: Screen) -> None:
        await screen.press("f")
        await screen.types("far")
        shown = await screen.shows("timeline", "due")
        assert "253402300800" in shown

    tell(story)


def test_workers(tell: Tell, some: Queue) -> None:
    async def story(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("1 of 1 workers alive", "emails", "yes")
        await screen.press("enter")
        await screen.shows("alive since", "1 job leased", "mail-0")
        await screen.press("enter")
        await screen.shows("· mail-0", "leased")
        await screen.press("escape", "escape", "escape", "escape")
        await screen.shows("· workers")

    tell(story)


def test_pages(tell: Tell, some: Queue) -> None:
    async def story(screen: Screen) -> None:
        await screen.press("enter")
        await screen.shows("mail-2 ", "n for more")
        await screen.press("n")
        await screen.shows("mail-102", without="mail-2 ")
        await screen.press("b")
        await screen.shows("mail-2 ", without="mail-102")

    tell(story)


def test_a_filter(tell: Tell, some: Queue) -> None:
    async def story(screen: Screen) -> None:
        await screen.shows("emails", "reports")
        await screen.press("slash")
        await screen.types("REP")
        await screen.shows("filter: REP", "reports", without="emails")
        await screen.press("enter")
        await screen.shows("headrace · reports")
        await screen.press("escape")
        await screen.shows("filter: REP")
        await screen.press("escape")
        await screen.shows("emails", "reports", without="filter:")

    tell(story)


def test_the_cursor_stays_on_its_row(tell: Tell, some: Queue, newest: Server) -> None:
    """Whatever comes in above it: what is asked is asked of the row that one looks at."""

    async def story(screen: Screen) -> None:
        await screen.shows("reports")
        await screen.press("down")
        with Queue("another", url=newest.url) as above:
            above.enqueue(b"x")
        screen.top.inspector.forget()
        await screen.shows("another")
        await screen.press("P")
        await screen.shows("Purge reports: remove 1 job")

    tell(story)


def test_the_law_in_words(tell: Tell, queue: Queue, newest: Server) -> None:
    """Not by colour alone."""
    queue.enqueue_many([b"x"] * 3)
    with redis.Redis(unix_socket_path=newest.path) as client:
        client.xtrim(queue.ops.keys.key("jobs"), maxlen=1, approximate=False)
        client.set("headrace:{x}:x:delayed", "of another type")

    async def story(screen: Screen) -> None:
        await screen.shows("✗ 1 out of balance", "missing", "1 can't be read", "error")
        await screen.press("enter")
        await screen.shows("3 enqueued ≠", ": 2\nmissing")

    tell(story)


@pytest.mark.sampled
@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)], ids=str)
def test_any_terminal(tell: Tell, some: Queue, size: tuple[int, int]) -> None:
    async def story(screen: Screen) -> None:
        for keys in (["enter"], ["enter"], ["escape", "g"], ["2"], ["3"], ["question_mark"]):
            await screen.press(*keys)
        await screen.press("x", "1")
        shown = await screen.shows("· queues", "emails")
        assert max(map(len, shown.splitlines())) <= size[0]

    tell(story, size)


def test_what_is_not_shown_is_not_read(tell: Tell, some: Queue) -> None:
    """One pane is read, the one in front; none while it is held, or something is asked."""

    async def story(screen: Screen) -> None:
        await screen.press("enter")
        await screen.shows("[waiting]")
        asked: list[str] = []
        views = screen.top.inspector.views
        overview = views.overview
        views.overview = lambda: asked.append("overview") or overview()  # type: ignore[method-assign,func-returns-value]
        await screen.press("space")
        await screen.shows("Held")
        looks = screen.top.reads
        await screen.pilot.pause(0.5)
        assert screen.top.reads == looks
        await screen.press("space", "P")
        await screen.shows("Purge emails")
        looks = screen.top.reads
        await screen.pilot.pause(0.5)
        assert (screen.top.reads, asked) == (looks, [])

    tell(story)


def test_a_server_that_is_away(tell: Tell) -> None:
    async def story(screen: Screen) -> None:
        await screen.shows("The server does not answer")
        await screen.press("P")
        await screen.shows("There is nothing here to do that with.")

    tell(story, url="redis://127.0.0.1:1")
