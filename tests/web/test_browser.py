"""The program `headrace web` in a real Chromium. The tests cover entering, pages, live updates,
actions and accessibility.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from headrace import FanOut, Flow, FlowJob, Job, Limit, NewJob, Queue, Retry, Worker
from headrace.console.web.pages import PAGES
from headrace.errors import RunSuspended
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import LONG, waiting_run, write_trends
from tests.web.chromium import accessible, chromium, needs_chromium, violations

pytestmark = needs_chromium
HOSTILE = b"</pre><script>document.title='owned';fetch('https://evil.test/')</script><img src=x onerror=alert(1)>"


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    """Fill the queue `q` with a hostile job in every state."""
    with Queue("q", url=newest.url, trends=True) as queue:
        jobs = [
            NewJob(HOSTILE, id=name, headers={"h": HOSTILE.decode()})
            for name in ("dead", "leased", "waiting")
        ]
        queue.enqueue_many([*jobs, NewJob(HOSTILE, id="late", delay=LONG)])
        queue.lease().dead_letter(HOSTILE.decode())
        queue.lease()
        queue.admin.schedule("nightly", b"x", every=60)
        write_trends(queue, newest, range(1, 90))
        yield queue


@pytest.fixture
def filled(newest: Server, queue: Queue) -> Iterator[None]:
    """Make a little of everything beside `q`, with hostile names wherever users give them."""
    hostile = HOSTILE.decode()
    worker = Worker(url=newest.url, name="w" * 200)
    ended = threading.Event()
    with (
        Queue(
            "fair",
            url=newest.url,
            fair="tenant",
            limits=[Limit(2, key="tenant"), Limit(9, key="kind")],
            history=100,
        ) as fair,
        Queue("many", url=newest.url, shards=3) as many,
        Queue("runs", url=newest.url) as runs,
        closing(Flow("shop", url=newest.url)) as flow,
    ):
        worker.handler("fair", kind=hostile, retry=Retry(attempts=2), history=100, concurrency=2)(
            failing
        )
        flow.stage("order", next="bill", children="item")(fanning)
        flow.stage("item", retry=Retry(attempts=1))(failing)
        flow.stage("bill")(advancing)
        worker.flow(flow)
        worker.handler("held")(lambda _: ended.wait(60) and None)
        many.enqueue_many([b"x"] * 7)
        waiting_run(runs, "run", HOSTILE)
        headers = {"tenant": hostile, "kind": hostile}
        fair.enqueue_many([NewJob(HOSTILE, id=f"{hostile}{n}", headers=headers) for n in range(30)])
        fair.enqueue_many(
            [NewJob(b"{}", headers={"tenant": "b", "kind": "unknown"}) for _ in range(60)]
        )
        flow.start(HOSTILE, id="r1", attributes={"customer": hostile})
        with worker, Queue("held", url=newest.url) as held:
            held.enqueue(HOSTILE, id="held")
            until(lambda: held.counts().leased == 1)
            until(lambda: fair.counts().dead >= 5)
            until(lambda: fair.counts().completed >= 5)
            until(lambda: flow.counts()["item"].completed == 4)
            yield
            ended.set()


def failing(job: Job) -> bytes:
    """Let every other job fail with a hostile text."""
    if job.id.endswith(tuple("02468")):
        raise ValueError(HOSTILE.decode())
    return HOSTILE


def fanning(job: FlowJob) -> FanOut:
    """Run a stage with children of hostile names. Some fail, some succeed, and one is late."""
    names = [f"{HOSTILE.decode().replace('/', '')}{n}" for n in range(8)]
    return FanOut([*(NewJob(HOSTILE, name) for name in names), NewJob(b"x", delay=3600)])


def advancing(job: FlowJob) -> bytes:
    return HOSTILE


def crawled(page: Any, root: str) -> Iterator[str]:
    """Open each page that links and forms lead to, once for each tab and not for each job."""
    todo = ["", "find?id=nowhere", "matching?name=q&state=waiting&action=cancel"]
    known = set[tuple[str, ...]]()
    while todo:
        address = todo.pop(0)
        parts = urlsplit(address)
        tabs = (f"{name}={value if name in TABS else ''}" for name, value in parse_qsl(parts.query))
        key = (parts.path, *sorted(tabs))
        if key in known:
            continue
        known.add(key)
        page.goto(root + address)
        yield address
        links = page.locator("a[href]").evaluate_all(
            "all => all.map(one => one.getAttribute('href'))"
        )
        todo += [link.removeprefix("./") for link in links if not link.startswith(("#", "http"))]
    missing = PAGES.keys() - {key[0] for key in known}
    assert not missing, f"nothing leads to {missing}"


TABS = {"state", "span", "tab", "ask"}


@pytest.mark.slow
def test_pages(filled: None, page: Any) -> None:
    """Each page with hostile jobs is accessible at both widths, in light and in dark, and asks only
    this host.

    Its styles and scripts are small, and nothing violates the content policy: the browser's console
    would tell.
    """
    root, weight = page.url, dict[str, int]()
    found: list[str] = []
    for _ in crawled(page, root):
        for width, scheme in itertools.product((390, 1280), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += violations(page)
        for url in page.evaluate(FILES):
            weight[url] = weight.get(url) or len(page.request.get(url).body())
        assert page.title() != "owned"
    assert not found, "\n".join(found)
    assert len(weight) >= 2
    assert sum(weight.values()) <= WEIGHT_BYTES


WEIGHT_BYTES = 45_000
SCROLLED = """[...document.querySelectorAll(".table:has(table)")].filter(one => one.scrollWidth > one.clientWidth).map(
    one => `${one.getAttribute("aria-label")} is ${one.scrollWidth - one.clientWidth} px wider than its card`
)"""
FILES = "[...document.querySelectorAll('script[src], link[rel=stylesheet]')].map(one => one.src || one.href)"
REACHABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"


def test_no_table_is_wider_than_its_card(newest: Server, page: Any) -> None:
    """The window has a usual width, and every column has names and reasons of usual length."""
    page.set_viewport_size({"width": 1280, "height": 800})
    kinds = itertools.cycle(("newsletter", "receipt"))
    worker = Worker(url=newest.url, name="mailer-of-a-shop")

    @worker.handler("emails", retry=Retry(attempts=2, wait=0.0), history=100, tracebacks=True)
    def send(job: Job) -> bytes:
        if job.payload.endswith(b"1}"):
            raise TimeoutError(
                "no answer from the mail server within 2.4 s, and its twin refused the connection"
            )
        return b"250 OK"

    with Queue("emails", url=newest.url) as queue:
        headers = [{"kind": next(kinds), "tenant": "ada"} for _ in range(12)]
        payload = '{"to": "somebody.with.a.long.name@mail.example.org", "order": %d}'
        queue.enqueue_many([NewJob(payload % n, headers=one) for n, one in enumerate(headers)])
        with worker:
            until(lambda: queue.counts().completed == 10)
            until(lambda: queue.counts().dead == 2)
        queue.enqueue_many(
            [NewJob(payload % n, headers=one, delay=LONG) for n, one in enumerate(headers)]
        )
        queue.enqueue_many([NewJob(payload % n, headers=one) for n, one in enumerate(headers)])
        queue.lease()
        reasons = re.findall(
            r'href="(letters[^"]*)"', page.request.get(f"{page.url}dead?name=emails").text()
        )
        states = [
            f"queue?name=emails&state={one}"
            for one in ("waiting", "running", "delayed", "dead", "ended")
        ]
        for address in ("", "workers", "dead", *map(unescape, reasons), *states):
            page.goto(program_root(page) + address)
            assert page.evaluate(SCROLLED) == [], address


def program_root(page: Any) -> str:
    parts = urlsplit(page.url)
    return f"{parts.scheme}://{parts.netloc}/"


@pytest.mark.slow
def test_the_keyboard_reaches_everything(filled: None, page: Any) -> None:
    """On each page Tab reaches every link, button, field and scrolled part, and leaves the page at
    the end."""
    page.set_viewport_size({"width": 1280, "height": 800})
    watch = "window.reached = new Set(); addEventListener('focusin', event => reached.add(event.target))"
    seen = f"[...document.querySelectorAll(`{REACHABLE}`)].filter(one => one.checkVisibility() && !one.disabled)"
    for address in crawled(page, page.url):
        page.evaluate(watch)
        page.evaluate("document.activeElement.blur()")
        left = [address]
        for _ in range(2):  # a field that takes the focus lets Tab begin behind it
            for _ in range(page.evaluate(f"{seen}.length") + 5 if left else 0):
                page.keyboard.press("Tab")
            left = page.evaluate(
                f"{seen}.filter(one => !reached.has(one)).map(one => one.outerHTML.slice(0, 200))"
            )
        assert left == [], address


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.textContent || document.activeElement.id"))


def test_keys(newest: Server, page: Any) -> None:
    """Keys find, go, walk rows and open them. They do not work while the user types, and can be
    turned off."""
    for name in "abc":
        with Queue(name, url=newest.url) as queue:
            queue.enqueue(b"x")
    page.set_viewport_size({"width": 1280, "height": 800})
    rows = page.get_by_role("region", name="Queues").locator("tbody a[href^='queue?']")
    rows.nth(2).wait_for()
    first, second, third = rows.all_inner_texts()
    root, press = page.url, page.keyboard.press
    press("/")
    page.keyboard.type("gd?")
    assert page.get_by_placeholder("Job id").input_value() == "gd?"
    press("Escape")
    for letter, place in {
        "d": "dead",
        "q": "#queues",
        "w": "workers",
        "s": "schedules",
        "f": "flows",
        "o": "",
    }.items():
        press("g")
        press(letter)
        page.wait_for_url(root + place)
    press("Control+g")
    press("d")
    press("k")
    assert focused(page) == first
    press("j")
    press("j")
    press("j")
    assert focused(page) == third
    press("k")
    press("Enter")
    page.wait_for_url(f"{root}queue?name={second}")
    press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.wait_for()
    accessible(page)
    press("g")
    press("d")
    page.get_by_label("Keys act in this browser").uncheck()
    press("Escape")
    keys.wait_for(state="hidden")
    page.reload()
    press("/")
    assert focused(page) != "find"
    press("?")
    page.get_by_label("Keys act in this browser").check()
    page.get_by_role("button", name="Close").click()
    assert page.url == f"{root}queue?name={second}"
    press("/")
    assert focused(page) == "find"


def test_light_and_dark(page: Any, queue: Queue) -> None:
    """The system decides until the button is pressed. The server then makes the pages so, and
    nothing flashes."""
    shade = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(shade)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(shade)
    assert dark != light
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(shade) == dark
    assert b'data-scheme="dark"' in page.goto(page.url + "workers").body()
    assert page.evaluate(shade) == dark
    page.get_by_role("button", name="Light or dark").click()
    assert b'data-scheme="light"' in page.reload().body()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(shade) == light


@pytest.mark.slow
def test_live_and_actions(page: Any, queue: Queue) -> None:
    """Numbers follow by themselves, and a button acts. An action that destroys asks for the name.
    The keyboard is enough.
    """
    assert "token" not in page.url
    page.set_viewport_size({"width": 1200, "height": 800})
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="q", exact=True))
    queue.enqueue_many([b"x"] * 776)
    row.get_by_text("777").wait_for(timeout=20_000)
    page.get_by_placeholder("Job id").focus()
    page.keyboard.type("late")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?*id=late")  # a search that finds one job goes there
    page.get_by_label("More actions").click()
    page.get_by_role("link", name="Reschedule").click()
    page.get_by_label("Due in so many seconds").fill("0")
    page.get_by_role("button", name="Reschedule").click()
    page.get_by_role("status").get_by_text("another due time").wait_for()
    page.get_by_role("link", name="q", exact=True).first.click()
    queue.enqueue_many([NewJob(b"x", headers={"kind": "k"}) for _ in range(1500)])
    page.get_by_text("Bulk action").click()
    page.get_by_label("Their kind").fill("k")
    page.get_by_label("They can't be had back").fill("q")
    page.get_by_role("button", name="Cancel all that match").click()
    # however many steps it takes
    page.get_by_role("status").get_by_text("1,500 of 1,500 were cancelled").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("status").get_by_text("The queue is paused.").wait_for()
    assert queue.admin.paused()
    page.get_by_label("More actions").click()
    page.get_by_role("link", name="Purge").click()
    page.get_by_label("Removes the jobs that wait").fill("q")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("status").get_by_text("778 jobs that waited were removed.").wait_for()
    assert queue.counts().present == 2


@pytest.mark.slow
def test_ticked_rows(page: Any, newest: Server, queue: Queue) -> None:
    """Ticks survive live updates. The head ticks all rows and `x` the current one. The width of a
    telephone is enough.
    """
    with Queue("t", url=newest.url) as jobs:
        jobs.enqueue_many([NewJob(b"x", id=f"i{n}", headers={"kind": "mail"}) for n in range(6)])
        page.goto(f"{page.url}queue?name=t")
        bar, all_rows = (
            page.get_by_role("form", name="Ticked jobs"),
            page.get_by_label("All rows shown"),
        )
        assert bar.is_hidden()
        assert page.locator("#kinds-known option").get_attribute("value") == "mail"
        page.get_by_label("Tick i2").check()
        page.keyboard.press("j")
        page.keyboard.press("x")
        bar.get_by_text("2 ticked").wait_for()
        assert all_rows.evaluate("box => box.indeterminate")
        jobs.cancel("i3")  # by somebody else, and others come
        jobs.enqueue_many([NewJob(b"x", id="new")])
        page.get_by_role("link", name="new", exact=True).wait_for(timeout=20_000)
        ticked = page.locator("tbody :checked").evaluate_all("all => all.map(one => one.value)")
        assert ticked == ["i2"]
        bar.get_by_text("1 ticked").wait_for()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            accessible(page)
            size = page.locator("tbody label.tick").first.bounding_box()
            assert min(size["width"], size["height"]) >= 24
            all_rows.check()
            bar.get_by_text("6 ticked").wait_for()
            all_rows.uncheck()
            bar.wait_for(state="hidden")
        for name in ("i2", "i4"):
            page.get_by_label(f"Tick {name}").check()
        bar.get_by_text("Cancel ticked jobs").click()
        accessible(page)
        bar.get_by_label("Type t to confirm").fill("t")
        jobs.cancel("i4")
        bar.get_by_role("button", name="Cancel them").click()
        page.get_by_role("status").get_by_text(
            "1 of 2 were cancelled. 1 was not there any more"
        ).wait_for()
        assert jobs.counts().waiting == 4


def test_a_long_run_is_short(page: Any, newest: Server) -> None:
    """Its steps are folded, menus close, and times are also in the viewer's own zone."""
    with Queue("runs", url=newest.url) as queue:
        queue.enqueue(b"x", id="run")
        lease = queue.lease()
        for number in range(300):
            lease.job.step(f"page {number}", lambda: {"words": 7})
        with pytest.raises(RunSuspended):
            lease.job.wait_for("approval")
        there = page.context.browser.new_context(
            timezone_id="Asia/Tokyo",
            viewport={"width": 1280, "height": 800},
            storage_state=page.context.storage_state(),
        ).new_page()
        there.goto(f"{page.url}job?queue=runs&id=run")
        accessible(there)
        assert there.evaluate("document.documentElement.scrollHeight") <= 2000
        there.get_by_text("281 steps before, all done").click()
        step = there.locator("li[data-key='step page 7']")
        step.locator("summary").click()
        step.get_by_text('"words": 7').wait_for()
        assert "here)" in there.locator("#time").inner_text()
        menu = there.get_by_label("More actions")
        menu.click()
        there.get_by_role("button", name="Cancel").wait_for()
        there.keyboard.press("Escape")
        assert focused(there) == menu.inner_text()
        there.get_by_role("button", name="Cancel").wait_for(state="hidden")
        there.context.close()


@pytest.mark.slow
def test_a_run_is_signalled(page: Any, newest: Server) -> None:
    """The run's page is accessible and fits a telephone. Its button sends the typed data."""
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
        page.get_by_role("region", name="Queues").get_by_role("link", name="q", exact=True).click()
        page.get_by_label("More actions").click()
        page.get_by_role("button", name="Redrive all dead letters (1)").click()
        assert page.locator(".outcome").inner_text() == "1 job went back to the queue."
    until(lambda: queue.counts().dead == 0, "the dead letter is back")
