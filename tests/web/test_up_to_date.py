"""Pages that can't be read. A bar shows since when and why, the figures are grey, and the page
recovers by itself.

The server is frozen, killed, and started empty; the program is stopped and ended; the network is
cut.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Job, Queue, Worker
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Started, started
from tests.support.servers import Server
from tests.web.chromium import accessible, chromium, needs_chromium

pytestmark = [*needs_chromium, pytest.mark.slow]
WAITS_MS = 10_000  # at most, until a page reads itself again


@pytest.fixture
def own(newest: Server) -> Iterator[Server]:
    """Start a server to freeze and to kill."""
    with Server(newest.binary, tcp=True) as server:
        yield server


@pytest.fixture
def watched(own: Server) -> Iterator[tuple[Started, Any]]:
    """Start `headrace web` on its own server, and a browser that shows its queues."""
    with (
        Queue("q", url=own.url) as queue,
        started("web", "--port", "0", url=own.url) as program,
        chromium() as browser,
    ):
        queue.enqueue(b"x")
        assert program.stdout is not None
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(PATIENCE * 1000)
        page.clock.install()  # runs as any other, and a test may put it forward
        page.goto(program.stdout.readline().decode().strip())
        link(page).wait_for()
        yield program, page


def link(page: Any) -> Any:
    return page.get_by_role("region", name="Queues").get_by_role("link", name="q", exact=True)


def outdated(page: Any, reason: str) -> None:
    """Wait for the bar with the time and the reason, and check that the figures are grey."""
    bar = page.locator("#late")
    bar.get_by_text(reason).wait_for()
    assert re.match(r"Not up to date since \d\d:\d\d:\d\d UTC: ", bar.inner_text())
    colour = "which => getComputedStyle(document.querySelector(which)).color"
    assert page.evaluate(colour, "main *") == page.evaluate(colour, "footer")
    assert page.locator("#live").inner_text() == "Late"


def current(page: Any) -> None:
    """Wait until the bar has gone by itself."""
    page.locator("#late").wait_for(state="hidden")
    assert page.locator("body.late").count() == 0
    assert page.locator("#live").inner_text() == "Live"


def test_a_server_that_does_not_answer(watched: tuple[Started, Any], own: Server) -> None:
    """The page says so while the server is frozen or gone. It recovers by itself, also after a
    restart."""
    _, page = watched
    os.kill(own.pid, signal.SIGSTOP)
    outdated(page, "The server does not answer")
    accessible(page)
    os.kill(own.pid, signal.SIGCONT)
    current(page)
    own.kill()
    outdated(page, "The server does not answer")
    own.start()  # empty
    current(page)
    link(page).wait_for(state="detached")


def test_a_server_that_was_restarted_empty(watched: tuple[Started, Any], own: Server) -> None:
    """A worker is back at once. All figures of its queue are zero, and the page shows no error."""
    _, page = watched
    with Queue("q", url=own.url) as queue:
        queue.enqueue_many([b"x"] * 57)
        for lease in queue.lease_many(57):
            lease.dead_letter("cause")
        queue.enqueue_many([b"x"] * 612)  # beside the one that is left
        queue.admin.pause()
        worker = Worker(url=own.url, max_outage=None)
        worker.handler("q")(nothing)
        with worker:
            row = page.get_by_role("region", name="Queues").get_by_role("row").nth(1)
            for number in ("613", "57"):
                row.get_by_text(number, exact=True).wait_for()
            own.kill()
            outdated(page, "The server does not answer")
            assert "613" in row.inner_text()  # grey
            own.start()
            current(page)
            until(lambda: queue.counts().present == 0)
            row.get_by_text("613").wait_for(state="detached")
            row.wait_for()
            shown = page.locator("main").inner_text()
            assert not re.search(r"613|57|669|-\d|✗|paused|unbalanced|nan", shown), shown


def nothing(job: Job) -> None:
    """Handle a job by doing nothing."""


def test_a_queue_that_is_gone(watched: tuple[Started, Any], own: Server) -> None:
    """The server came back without the queue, and its page says so."""
    _, page = watched
    link(page).click()
    page.get_by_role("heading", name="q", exact=True).wait_for()
    own.kill()
    own.start()
    outdated(page, "There is no queue 'q'.")


def test_a_program_that_does_not_answer(watched: tuple[Started, Any]) -> None:
    """The page says so while the network is cut, while `headrace web` is frozen, and after it has
    ended."""
    program, page = watched
    page.context.set_offline(True)
    page.clock.fast_forward(WAITS_MS)
    outdated(page, "The program does not answer.")
    page.context.set_offline(False)
    page.clock.fast_forward(WAITS_MS)
    current(page)
    os.kill(program.pid, signal.SIGSTOP)
    page.clock.fast_forward(WAITS_MS)
    page.clock.fast_forward(WAITS_MS)  # it reads the page, and waits for that no longer
    outdated(page, "The program does not answer.")
    os.kill(program.pid, signal.SIGCONT)
    page.clock.fast_forward(WAITS_MS)
    current(page)
    program.terminate()
    program.wait(PATIENCE)
    page.clock.fast_forward(WAITS_MS)
    outdated(page, "The program does not answer.")


def test_a_first_look_while_the_server_is_away(watched: tuple[Started, Any], own: Server) -> None:
    """A page with the error comes before the browser gives up, and is replaced by the right one."""
    _, page = watched
    os.kill(own.pid, signal.SIGSTOP)
    # what was read a moment ago is not shown again by now
    outdated(page, "The server does not answer")
    page.goto(page.url + "workers")
    page.get_by_role("heading", name="503").wait_for()
    page.get_by_text("This page tries again every few seconds.").wait_for()
    accessible(page)
    os.kill(own.pid, signal.SIGCONT)
    page.get_by_role("heading", name="Workers").wait_for()
