"""The program `headrace web` in a real Chromium: entering, pages, live updates, actions, accessibility.

Skipped where the system has no Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import NewJob, Queue
from tests.support.awaiting import until
from tests.support.program import PATIENCE, PROGRAM, Started, environment, started
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run, write_trends

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAITS_MS = 10_000  # at most, until a page reads itself again
HOSTILE = b"</pre><script>document.title='owned';fetch('https://evil.test/')</script><img src=x onerror=alert(1)>"


@pytest.fixture
def program(newest: Server) -> Iterator[str]:
    """Run `headrace web`; the address that it prints."""
    with subprocess.Popen(
        [*PROGRAM, "web", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(newest.url)
    ) as running:
        assert running.stdout is not None
        yield running.stdout.readline().decode().strip()
        running.terminate()
        _, complaints = running.communicate(timeout=30)
        assert b"Traceback" not in complaints, complaints.decode()


@pytest.fixture
def page(program: str) -> Iterator[Any]:
    """A page of a browser that has entered; at the end its console is empty, and it has asked no other host."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(program)
        yield page
        browser.close()
    assert said == []
    assert {url.split("/")[2] for url in asked} == {program.split("/")[2]}


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    """The queue `q`, with a hostile job in every state."""
    with Queue("q", url=newest.url, trends=True) as queue:
        jobs = [NewJob(HOSTILE, id=name, headers={"h": HOSTILE.decode()}) for name in ("dead", "leased", "waiting")]
        queue.enqueue_many([*jobs, NewJob(HOSTILE, id="late", delay=LONG)])
        queue.lease().dead_letter(HOSTILE.decode())
        queue.lease()
        queue.admin.schedule("nightly", b"x", every=60)
        write_trends(queue, newest, range(1, 90))
        yield queue


def checked(page: Any) -> None:
    """The page fits a telephone, and has no violation of what axe checks."""
    from axe_playwright_python.sync_playwright import Axe

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url
    found = Axe().run(page)
    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"


@pytest.mark.slow
def test_pages(page: Any, queue: Queue) -> None:
    """Each page, hostile jobs in them, in light and in dark: accessible, and of this host only."""
    root = page.url
    paths = ["", "workers", "schedules", "find?id=dead", "dead?name=q", "nowhere"]
    paths += [f"queue?name=q&state={state}" for state in ("running", "dead")] + ["trends?name=q"]
    paths += [f"job?queue=q&id={name}" for name in ("leased", "late", "dead")]
    for number, path in enumerate(paths):
        page.emulate_media(color_scheme="dark" if number % 2 else "light")
        if path != "nowhere":  # a console tells of what is not found
            page.goto(root + path)
            checked(page)
            assert page.title() != "owned"


@pytest.mark.slow
def test_live_and_actions(page: Any, queue: Queue) -> None:
    """Numbers follow by themselves; a button acts; what destroys wants the name; the keyboard will do."""
    assert "token" not in page.url
    page.set_viewport_size({"width": 1200, "height": 800})
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="q", exact=True))
    queue.enqueue_many([b"x"] * 776)
    row.get_by_text("777").wait_for(timeout=20_000)
    page.get_by_placeholder("Job id").focus()
    page.keyboard.type("late")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="late").click()
    page.get_by_label("Due in so many seconds").fill("0")
    page.get_by_role("button", name="Reschedule").click()
    page.get_by_role("status").get_by_text("another due time").wait_for()
    page.get_by_role("link", name="q", exact=True).click()
    queue.enqueue_many([NewJob(b"x", headers={"kind": "k"}) for _ in range(1500)])
    page.get_by_text("All that are waiting and match").click()
    page.get_by_label("Their kind").fill("k")
    page.get_by_label("They can't be had back").fill("q")
    page.get_by_role("button", name="Cancel all that match").click()
    page.get_by_role("status").get_by_text("1,500 of 1,500 were cancelled").wait_for()  # however many steps it takes
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("status").get_by_text("The queue is paused.").wait_for()
    assert queue.admin.paused()
    page.get_by_text("Remove jobs, or the queue").click()
    page.get_by_label("Removes the jobs that wait").fill("q")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("status").get_by_text("778 jobs that waited were removed.").wait_for()
    assert queue.counts().present == 2


@pytest.mark.slow
def test_a_run_is_signalled(page: Any, newest: Server) -> None:
    """Its page is accessible, and fits a telephone; its button sends the data that was typed."""
    with Queue("runs", url=newest.url) as queue:
        waiting_run(queue, "run")
        page.goto(f"{page.url}job?queue=runs&id=run")
        checked(page)
        assert page.get_by_label("Progress").evaluate("bar => bar.value") == 0.4
        page.get_by_label("Data of the signal approved").fill('{"by": "ada"}')
        page.get_by_role("button", name="Signal approved").click()
        page.get_by_role("status").get_by_text("The job goes on.").wait_for()
        assert queue.lease().job.wait_for("approved") == {"by": "ada"}


def test_without_javascript(program: str, queue: Queue) -> None:
    """Every page and action is plain HTML."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(program)
        page.get_by_role("link", name="q", exact=True).click()
        page.get_by_role("button", name="Redrive all dead letters (1)").click()
        assert page.get_by_role("status").inner_text() == "1 job went back to the queue."
        browser.close()
    until(lambda: queue.counts().dead == 0, "the dead letter is back")


@pytest.fixture
def own(newest: Server) -> Iterator[Server]:
    """A server to freeze and to kill."""
    with Server(newest.binary, tcp=True) as server:
        yield server


@pytest.fixture
def watched(own: Server) -> Iterator[tuple[Started, Any]]:
    """`headrace web` on a server of its own, and a browser that shows its queues."""
    from playwright.sync_api import sync_playwright

    with (
        Queue("q", url=own.url) as queue,
        started("web", "--port", "0", url=own.url) as program,
        sync_playwright() as play,
    ):
        queue.enqueue(b"x")
        assert program.stdout is not None
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(PATIENCE * 1000)
        page.clock.install()  # runs as any other, and a test may put it forward
        page.goto(program.stdout.readline().decode().strip())
        page.get_by_role("link", name="q", exact=True).wait_for()
        yield program, page
        browser.close()


def outdated(page: Any, reason: str) -> None:
    """Wait for the bar: it says since when the page is not up to date, and why, and the figures are grey."""
    bar = page.locator("#late")
    bar.get_by_text(reason).wait_for()
    assert re.match(r"Not up to date since \d\d:\d\d:\d\d UTC: ", bar.inner_text())
    assert page.evaluate("getComputedStyle(document.querySelector('main [data-live] *')).color") == page.evaluate(
        "getComputedStyle(document.querySelector('footer')).color"
    )


def current(page: Any) -> None:
    """Wait until the bar has gone by itself."""
    page.locator("#late").wait_for(state="hidden")
    assert page.locator("body.late").count() == 0


@pytest.mark.slow
def test_a_server_that_does_not_answer(watched: tuple[Started, Any], own: Server) -> None:
    """The page says so while it is frozen, and while it is gone; it follows again by itself, a restarted one too."""
    _, page = watched
    os.kill(own.pid, signal.SIGSTOP)
    outdated(page, "The server does not answer")
    checked(page)
    os.kill(own.pid, signal.SIGCONT)
    current(page)
    own.kill()
    outdated(page, "The server does not answer")
    own.start()  # empty
    current(page)
    page.get_by_role("link", name="q", exact=True).wait_for(state="detached")


@pytest.mark.slow
def test_a_queue_that_is_gone(watched: tuple[Started, Any], own: Server) -> None:
    """The page of a queue says so when the server came back without it."""
    _, page = watched
    page.get_by_role("link", name="q", exact=True).click()
    page.get_by_role("heading", name="q", exact=True).wait_for()
    own.kill()
    own.start()
    outdated(page, "There is no queue 'q'.")


@pytest.mark.slow
def test_a_program_that_does_not_answer(watched: tuple[Started, Any]) -> None:
    """The page says so while the network is cut, while `headrace web` is frozen, and once it has ended."""
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


@pytest.mark.slow
def test_a_first_look_while_the_server_is_away(watched: tuple[Started, Any], own: Server) -> None:
    """The page that says so comes before the browser gives up, and makes room for the right one by itself."""
    _, page = watched
    os.kill(own.pid, signal.SIGSTOP)
    outdated(page, "The server does not answer")  # what was read a moment ago is not shown again by now
    page.goto(page.url + "workers")
    page.get_by_role("heading", name="503").wait_for()
    page.get_by_text("This page tries again every few seconds.").wait_for()
    checked(page)
    os.kill(own.pid, signal.SIGCONT)
    page.get_by_role("heading", name="Workers").wait_for()
