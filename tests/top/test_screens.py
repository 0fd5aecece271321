"""The screens of `headrace top` on a terminal of 80 x 24 with a real server. The folder `shown` has
their texts.

`SHOWN=write python -m pytest tests/top` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import NewJob, Queue, Worker
from headrace.console.top import job, letters, pane, queue, queues, workers
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run
from tests.top.conftest import SHOWN, Screen

Tell = Callable[..., None]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time, rate and name that differs from run to run is written alike."""
    alike = {
        "clock": "2000-01-01T00:00:00Z",
        "from_now": "9 s ago",
        "span": "9 s",
        "took": "9 s",
        "rate": "12",
    }
    for module in (job, letters, pane, queue, queues, workers):
        for name, text in {**alike, "memory": "2.0 MiB", "since": "9 s"}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, text=text, **__: text)
    cell, _ = job.CELLS["worker"]
    monkeypatch.setitem(job.CELLS, "worker", (cell, lambda *_: "queue-0123456789abcdef"))


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
            await screen.shows(f"3 shards, waiting in each  {waiting}", "✓ balanced")

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


def test_queues_of_a_prefix_are_a_row(tell: Tell, newest: Server) -> None:
    """Enter opens them, and a filter finds each. The ends that workers have counted are a line."""
    worker = Worker(url=newest.url)
    for number in range(31):
        name = f"mail-{number}" if number else "other"
        worker.handler(name)(lambda job: None)
        with Queue(name, url=newest.url) as queue:
            queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().completed == 1)

    async def story(screen: Screen) -> None:
        shown = await screen.shows("mail… (30)", "other", "2 h done")
        assert "mail-3" not in shown
        await screen.press("slash")
        await screen.types("mail-30")
        await screen.shows("mail-30", without="mail…")
        await screen.press("escape")
        await screen.shows("mail… (30)")
        await screen.press("enter")
        await screen.shows("queues of mail", "mail-12", without="other")
        await screen.press("down", "enter")
        await screen.shows("· mail-", "[waiting]", "2 h done         1")

    tell(story, size=(80, 30))


def same(name: str, text: str) -> None:
    """Compare a screen with the stored one."""
    kept, text = SHOWN / f"{name}.txt", text.strip("\n")
    if os.environ.get("SHOWN") == "write":
        SHOWN.mkdir(exist_ok=True)
        kept.write_text(f"{text}\n")
    assert text == kept.read_text().strip("\n")


def test_screens(tell: Tell, some: Queue, still: None) -> None:
    async def story(screen: Screen) -> None:
        same(
            "queues",
            await screen.shows(
                "emails", "reports", "✓ balanced", "1 new dead letter", "paused, 1 job"
            ),
        )
        await screen.press("enter")
        same("queue", await screen.shows("waiting 1,228", "mail-2", "[waiting]"))
        await screen.press("question_mark")
        same("keys", await screen.shows("╭──", "since=1h", "Any key leaves this.", "──╯"))
        await screen.press("x", "s")
        same("running", await screen.shows("[running]", "mail-0", "took"))
        await screen.press("s", "s", "s")
        await screen.shows("[dead]", "mail-1")
        await screen.press("g")
        same("reasons", await screen.shows("by reason", "no such user 7"))
        await screen.press("2")
        await screen.shows("· workers", "alive")
        await screen.press("3")
        same("dead", await screen.shows("1 dead letter in 1 queue"))
        await screen.press("question_mark")
        same("help", await screen.shows("Any key leaves this."))
        await screen.press("x")
        await screen.shows("1 dead letter in 1 queue")

    tell(story)


def test_dead_letters_of_all_queues(tell: Tell, some: Queue, newest: Server) -> None:
    """They are grouped by reason and kind with the cause first. A letter's own screen has the whole
    reason."""
    reason = "no handler for jobs of kind 'fax': this worker knows 'mail'"
    with Queue("faxes", url=newest.url) as other:
        other.enqueue_many([NewJob(b"x", id=f"fax-{n}", headers={"kind": "fax"}) for n in range(2)])
        for lease in other.lease_many(2):
            lease.dead_letter(reason)

    async def story(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.shows("g       dead letters of all queues by reason")
        await screen.press("x", "g")
        shown = await screen.shows(
            "all dead letters", "3 dead letters, by reason and kind", "no such user 7"
        )
        assert " fax " in shown
        assert "kind 'fax' has no handler" in shown
        assert [line.split()[:3] for line in shown.splitlines() if " fax " in line] == [["2"] * 3]
        await screen.press("greater_than_sign", "enter")  # the most at first
        await screen.shows("fax-", reason)
        await screen.press("escape", "3", "g")
        await screen.shows("all dead letters", "no such user 7")
        await screen.press("question_mark")
        await screen.shows("enter   open the newest dead letter")

    tell(story)


def test_a_job(tell: Tell, queue: Queue) -> None:
    """The screen has its lease, its timeline and its payload. Foreign text is neither obeyed nor
    styled."""
    queue.enqueue(
        b'{"to": "[bold]ada[/bold]"}', id="[red]a\u202eb", headers={"tenant": "[b]x\x1b[31m"}
    )
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
    """The screen has its progress and its steps."""
    waiting_run(queue, "a")

    async def story(screen: Screen) -> None:
        await screen.press("f")
        await screen.types("a")
        shown = await screen.shows(
            "progress   40% page 12 of 30", "Waits for the signal approved", "steps", "· waiting"
        )
        assert "· done" in shown
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
        await screen.shows("1 of 1 workers alive", "emails", "alive ")
        await screen.press("enter")
        await screen.shows("alive since", "1 job leased", "mail-0")
        await screen.press("enter")
        await screen.shows("· mail-0", "running", "token")
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
        await screen.shows("filter: REP", "reports", without="1,228 ")
        await screen.press("enter")
        await screen.shows("headrace · reports")
        await screen.press("escape")
        await screen.shows("filter: REP")
        await screen.press("escape")
        await screen.shows("emails", "reports", without="filter:")

    tell(story)


def test_sorted(tell: Tell, some: Queue) -> None:
    """Each column sorts forwards and backwards. Numbers begin with the largest."""

    async def story(screen: Screen) -> None:
        def order() -> list[str]:
            return [row.key[0] for row in screen.top.pane._drawn or ()]

        await screen.shows("emails", "reports")
        await screen.press("greater_than_sign", "o")
        await screen.shows("sort: queue ▼")
        assert order() == ["reports", "emails"]
        await screen.press("greater_than_sign")
        await screen.shows("sort: waiting ▼")
        assert order() == ["emails", "reports"]
        await screen.press("o")
        await screen.shows("sort: waiting ▲")
        assert order() == ["reports", "emails"]
        await screen.press("less_than_sign", "less_than_sign")
        await screen.shows("emails", without="sort:")

    tell(story)


def test_jobs_are_chosen_by_the_server(tell: Tell, queue: Queue) -> None:
    """Kind, reason and the like select jobs beyond the page in front. An unreadable filter changes
    nothing."""
    queue.enqueue_many([NewJob(b"x", id=f"a{n}", headers={"kind": "mail"}) for n in range(150)])
    queue.enqueue(b"needle", id="z", headers={"kind": "report"})

    async def story(screen: Screen) -> None:
        await screen.press("enter")
        await screen.shows("[waiting]", "a0 ", "mail", "(100, n for more)")
        await screen.press("slash")
        await screen.types("kind=report payload=needle")
        await screen.shows("z ", "report", "(1 of 151 looked at)", without="a0 ")
        for typed, words in (
            ("size=3", "'size' can't be chosen by"),
            ("since=soon", "since 'soon'"),
            ("header=x", "header 'x'"),
            ("'a", "has a quotation mark"),
        ):
            await screen.press("slash")
            screen.top.screen.query_one("Input").value = typed  # type: ignore[attr-defined]
            await screen.press("enter")
            await screen.shows(words, "filter: kind=report", "z ")
        await screen.press("escape")
        await screen.shows("a0 ", without="filter:")

    tell(story)


def test_ended_jobs(tell: Tell, newest: Server) -> None:
    """A queue with a history has a list of ended jobs, newest or oldest first, and by kind."""
    with Queue[bytes]("h", url=newest.url, history=10) as queue:
        for one in ("first", "second"):
            queue.enqueue(b"x", id=one, headers={"kind": "mail"})
            queue.lease().complete()
        queue.enqueue(b"x", id="third", headers={"kind": "mail"})
        queue.lease().dead_letter("why")

        async def story(screen: Screen) -> None:
            await screen.press("enter")
            await screen.shows("blocked  completed  dead")
            await screen.press("s", "s", "s", "s")
            shown = await screen.shows(
                "[completed]", "newest first", "first ", "second ", "mail", " ms "
            )
            assert shown.index("second ") < shown.index("\nfirst ")
            await screen.press("o")
            shown = await screen.shows("oldest first")
            assert shown.index("\nfirst ") < shown.index("second ")
            await screen.press("k")
            await screen.shows("the last 3 jobs that were completed or died", "mail", "33%")

        tell(story)


def test_attention(tell: Tell, some: Queue) -> None:
    """The facts that need attention, the worst first, lead to their queues."""

    async def story(screen: Screen) -> None:
        await screen.press("4")
        shown = await screen.shows(
            "✗ emails", "1 new dead letter in the last hour", "! reports", "paused, 1 job waits"
        )
        assert shown.index("✗ emails") < shown.index("! reports")
        await screen.press("enter")
        await screen.shows("emails · dead letters", "no such user 7")
        await screen.press("escape", "down", "enter")
        await screen.shows("headrace · reports")

    tell(story)


def test_a_server_that_goes_away(tell: Tell, some: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values stay, and are said to be old, until it answers again."""

    async def story(screen: Screen) -> None:
        await screen.shows("emails", "1,228")
        inspector = screen.top.inspector
        real = inspector.overview

        async def away() -> Any:
            raise redis.ConnectionError("gone")

        monkeypatch.setattr(inspector, "overview", away)
        await screen.shows("not up to date since 2", "The server does not answer", "gone", "1,228")
        monkeypatch.setattr(inspector, "overview", real)
        await screen.shows("1,228", without="not up to date")

    tell(story)


def test_the_cursor_stays_on_its_row(tell: Tell, some: Queue, newest: Server) -> None:
    """The cursor stays when rows come in above, so an action hits the row that the user looks
    at."""

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
    """The law is shown in words and not by colour alone."""
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
    """Only the pane in front is read. It is not read while it is held or while a question is
    open."""

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
