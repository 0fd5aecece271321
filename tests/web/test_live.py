"""`static/live.js` in a real Chromium on small pages. The tests cover updates, copying and
charts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from tests.web.chromium import chromium, needs_chromium

pytestmark = needs_chromium
ROOT = "http://localhost/"  # a secure context, so there is a clipboard
STATIC = files("headrace.console.web") / "static"
FRAME = """<!doctype html><html lang="en"><head><title>t</title><link rel="stylesheet" href="static/style.css">
<script src="static/live.js" defer></script></head><body><p id="late" class="late" role="alert" hidden></p>
<span class="live" id="live"></span><main id="content" data-live>{}</main>
<footer><time id="time" data-live datetime="2026-01-02T03:04:{:02}Z"></time></footer></body></html>"""
LINES = [
    {"name": "in", "values": ["1/s", "2/s", "3/s"]},
    {"name": "done", "values": ["0/s", "1/s", "9/s"]},
]
CHART = {"labels": ["12:00", "12:01", "12:02"], "places": [0, 50, 100], "lines": LINES}


class Shown:
    """A page whose content a test sets. `now(html)` sets the next reading."""

    def __init__(self, page: Any) -> None:
        self.page, self.html, self.reads = page, "", 0
        page.clock.install()
        page.route("**/*", self._answer)

    def _answer(self, route: Any) -> None:
        name = route.request.url.removeprefix(ROOT)
        if name.startswith("static/"):
            kind = {"js": "text/javascript; charset=utf-8", "css": "text/css"}[
                name.rpartition(".")[2]
            ]
            route.fulfill(
                body=(STATIC / name.removeprefix("static/")).read_text(), content_type=kind
            )
        else:
            self.reads += 1
            route.fulfill(body=FRAME.format(self.html, self.reads), content_type="text/html")

    def first(self, html: str) -> Any:
        self.html = html
        self.page.goto(ROOT)
        return self.page

    def now(self, html: str) -> None:
        """Let the page find *html*, and wait until it shows it."""
        self.html = html
        wanted = f"2026-01-02T03:04:{self.reads + 1:02}Z"
        self.page.clock.fast_forward(2000)
        self.page.wait_for_function(
            "at => document.getElementById('time').dateTime >= at", arg=wanted
        )
        assert self.page.locator("#late").is_hidden(), self.page.locator("#late").inner_text()


@pytest.fixture
def shown() -> Iterator[Shown]:
    with chromium() as browser:
        context = browser.new_context(
            viewport={"width": 900, "height": 500}, permissions=["clipboard-write"]
        )
        page = context.new_page()
        failed: list[str] = []
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.set_default_timeout(20_000)
        yield Shown(page)
        assert failed == []


def table(*jobs: str, extra: str = "") -> str:
    """Return a table of jobs with a link, an age and a payload to open for each."""
    rows = "".join(
        f'<tr><th scope="row"><a href="job?id={job}">{job}</a></th><td>{extra} ago</td>'
        f"<td><details><summary>line</summary><pre>payload of {job}</pre></details></td></tr>"
        for job in jobs
    )
    return f"<table><tbody>{rows}</tbody></table>"


def opened(page: Any) -> list[str]:
    return [one.inner_text() for one in page.locator("tr:has(details[open]) th").all()]


def test_an_opened_payload_stays_open_with_its_job(shown: Shown) -> None:
    """It stays open wherever its row goes. When the job has gone, its row is struck out until it is
    closed."""
    page = shown.first(table("a", "b", "c", extra="1 s"))
    page.locator("tr", has_text="b").locator("summary").click()
    shown.now(table("new", "a", "b", "c", extra="3 s"))
    assert opened(page) == ["b"]
    assert page.locator("th").all_inner_texts() == ["new", "a", "b", "c"]
    assert page.get_by_text("3 s ago").count() == 4
    shown.now(table("c", "b", "a"))
    assert opened(page) == ["b"]
    assert page.locator("th").all_inner_texts() == ["c", "b", "a"]
    shown.now(table("c", "d"))
    assert page.locator("th").all_inner_texts() == ["c", "b", "d"]
    assert page.locator("tr.gone th").all_inner_texts() == ["b"]
    page.locator("summary", has_text="line").nth(1).click()
    shown.now(table("c", "d"))
    assert page.locator("th").all_inner_texts() == ["c", "d"]


def test_what_is_typed_stays(shown: Shown) -> None:
    """The text and the focus stay although the page around changes, even if the form has gone
    meanwhile."""
    form = '<form action="do/x"><input type="hidden" name="n" value="{}"><textarea name="t">old</textarea></form>'
    page = shown.first(f"<p>1</p>{form.format(1)}")
    page.locator("textarea").fill("typed by hand")
    shown.now(f"<p>2</p><p>more</p>{form.format(2)}")
    assert page.locator("p").all_inner_texts()[1:3] == ["2", "more"]
    assert page.locator("form").count() == 1
    assert page.locator("textarea").input_value() == "typed by hand"
    assert page.evaluate("document.activeElement.name") == "t"
    page.evaluate("document.activeElement.blur()")
    shown.now("<p>3</p>")
    assert page.locator("textarea").input_value() == "typed by hand"
    assert page.locator("p").nth(1).inner_text() == "3"


def test_a_form_that_nobody_uses_follows(shown: Shown) -> None:
    page = shown.first('<form action="do/pause"><button>Pause</button></form>')
    shown.now('<form action="do/resume"><button>Resume</button></form>')
    assert page.locator("form").evaluate_all(
        "all => all.map(one => one.getAttribute('action'))"
    ) == ["do/resume"]
    assert page.get_by_role("button").all_inner_texts() == ["Resume"]


def test_focus_and_scrolling_stay_with_their_row(shown: Shown) -> None:
    names = [f"job{n}" for n in range(100)]
    page = shown.first(table(*names))
    page.get_by_role("link", name="job70", exact=True).focus()
    before = page.evaluate("[scrollY, document.activeElement.textContent]")
    assert before[0] > 0
    shown.now(table(*names[:50], *reversed(names[50:]), extra="x"))
    assert page.evaluate("document.activeElement.textContent") == "job70"
    shown.now(table(*names, extra="y"))
    assert page.evaluate("[scrollY, document.activeElement.textContent]") == before


def test_selected_text_stays(shown: Shown) -> None:
    """The selected text can be copied. All other text changes."""
    page = shown.first("<p>select me 1</p><p>other 1</p>")
    page.locator("p", has_text="select").select_text()
    shown.now("<p>select me 2</p><p>other 2</p>")
    assert page.evaluate("String(getSelection())").strip() == "select me 1"
    assert page.get_by_text("other 2").is_visible()
    page.evaluate("getSelection().removeAllRanges()")
    shown.now("<p>select me 3</p>")
    assert page.get_by_text("select me 3").is_visible()


def test_an_outcome_is_kept(shown: Shown) -> None:
    """The outcome is shown once, and a later reading of the page lacks it."""
    page = shown.first('<p class="outcome" data-keep>Done.</p><p>1</p>')
    shown.now("<p>2</p>")
    assert page.locator("main p").all_inner_texts() == ["Done.", "2"]


def test_scripts_of_an_update_do_not_run(shown: Shown) -> None:
    """The pages have no scripts. A text that was not escaped could not bring one either."""
    page = shown.first("<p>1</p>")
    shown.now("<p>2</p><script>document.title = 'owned'</script>")
    assert page.title() == "t"


def test_hidden_pages_pause(shown: Shown) -> None:
    """Hidden pages read nothing, and say so until they are up to date again."""
    page = shown.first("<p>1</p>")
    mark = page.locator("#live")
    assert mark.inner_text() == "Live"
    hide = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{value: true, configurable: true}}); {hide}"
    )
    assert mark.inner_text() == "Paused"
    reads = shown.reads
    page.clock.fast_forward(60_000)
    assert shown.reads == reads
    shown.html = "<p>2</p>"
    page.evaluate(f"delete document.hidden; {hide}")
    page.get_by_text("2", exact=True).wait_for()
    page.get_by_text("Live", exact=True).wait_for()


def test_copying(shown: Shown) -> None:
    """The whole text is copied, also after an update. Without a clipboard there is no button."""
    button = (
        '<button type="button" data-copy="{0}" hidden>Copy</button><pre id="{0}">text of {0}</pre>'
    )
    page = shown.first(button.format("one"))
    written = "navigator.clipboard.writeText = text => { window.written = text }"
    page.evaluate(written)
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("written") == "text of one"
    shown.now(button.format("two"))
    page.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_function("written === 'text of two'")
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.reload()
    assert page.get_by_role("button").count() == 0


def chart(data: dict[str, Any] = CHART) -> str:
    drawn = '<svg class="plot" role="img" aria-label="c" tabindex="0" width="100%"><line class="cursor"/></svg>'
    return f"<figure data-chart='{json.dumps(data)}'><output class=\"readout\"></output>{drawn}</figure>"


def test_charts_tell_their_values(shown: Shown) -> None:
    """The pointer and the arrow keys show values. An update keeps the moment that is shown."""
    page = shown.first(chart())
    box, told = page.locator("svg").bounding_box(), page.locator("output")
    page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 50)
    assert told.inner_text() == "12:01 · in 2/s · done 1/s"
    assert page.locator(".cursor.on").get_attribute("x1") == "50%"
    shown.now(chart(CHART | {"labels": ["13:00", "13:01", "13:02"]}))
    assert told.inner_text() == "13:01 · in 2/s · done 1/s"
    page.mouse.move(1, 450)
    assert told.inner_text() == ""
    assert page.locator(".cursor.on").count() == 0
    page.keyboard.press("Tab")
    assert told.inner_text().startswith("13:02")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert told.inner_text().startswith("13:00")
    page.keyboard.press("End")
    assert told.inner_text().startswith("13:02")
    page.keyboard.press("Home")
    assert told.inner_text().startswith("13:00")
