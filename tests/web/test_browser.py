"""The program `headrace web` in a real Chromium: entering, pages, live updates, actions, accessibility."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import NewJob, Queue
from tests.support.awaiting import until
from tests.support.program import PROGRAM, environment
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run, write_trends
from tests.web.chromium import accessible, chromium, needs_chromium

pytestmark = needs_chromium
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
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(program)
        yield page
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
            accessible(page)
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
    page.get_by_text("Bulk action").click()
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
        accessible(page)
        assert page.get_by_label("Progress").evaluate("bar => bar.value") == 0.4
        page.get_by_label("Data of the signal approved").fill('{"by": "ada"}')
        page.get_by_role("button", name="Signal approved").click()
        page.get_by_role("status").get_by_text("The job goes on.").wait_for()
        assert queue.lease().job.wait_for("approved") == {"by": "ada"}


def test_without_javascript(program: str, queue: Queue) -> None:
    """Every page and action is plain HTML."""
    with chromium() as browser:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(program)
        page.get_by_role("link", name="q", exact=True).click()
        page.get_by_role("button", name="Redrive all dead letters (1)").click()
        assert page.locator(".outcome").inner_text() == "1 job went back to the queue."
    until(lambda: queue.counts().dead == 0, "the dead letter is back")
