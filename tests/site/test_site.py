"""The built site. Its search finds pages by what users type, a class has its methods beside it, and
a dead link fails the build.

`poe site` runs these on the site that it has built.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CalledProcessError
from threading import Thread
from typing import Any

import pytest

from tests.unit.house.test_docs import ROOT, script_of
from tests.web.chromium import chromium, needs_chromium

SITE = ROOT / ".site" / "dev"
BESIDE = Path(sys.executable).parent
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not (shutil.which("zensical", path=BESIDE) or shutil.which("zensical")),
        reason="no zensical on PATH: python -m pip install --group site",
    ),
    pytest.mark.skipif(not SITE.is_dir(), reason="no site: poe site"),
]

builder = script_of("site")
reference = script_of("reference")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line on each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address at which the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def opened(browser: Any, width: int, scheme: str) -> Any:
    """Return a page of a phone or a desk, light or dark."""
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, is_mobile=width < 600
    )
    return context.new_page()


class TestInTheBrowser:
    """The site as readers see it."""

    pytestmark = needs_chromium

    @pytest.mark.parametrize(
        ("phrase", "page"),
        [
            ("cancel running job", "how-to/cancel-a-job/"),
            ("time limit", "how-to/cancel-a-job/"),
            ("backup", "how-to/back-up-and-restore/"),
            ("deploy", "how-to/deploy-on-a-friday/"),
            ("retry", "how-to/retry-and-dead-letters/"),
            ("Queue.enqueue", "reference/api/queue/#queueenqueue"),
        ],
    )
    def test_a_phrase_finds_its_page(
        self, address: str, browser: Any, phrase: str, page: str
    ) -> None:
        """It is among the first three hits of the site's own search."""
        reader = opened(browser, 1280, "light")
        reader.goto(address)
        reader.get_by_role("button", name="Search").first.click()
        reader.get_by_role("combobox").fill(phrase)
        hits = reader.get_by_role("option")
        hits.nth(2).wait_for()
        found = [hits.nth(n).get_attribute("href") for n in range(3)]
        where = [re.sub(r"\?h=[^#]*", "", hit).removeprefix(address) for hit in found]
        assert any(hit.startswith(page) for hit in where), where

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1280])
    def test_pages_fit_and_ask_no_other_host(
        self, address: str, browser: Any, width: int, scheme: str
    ) -> None:
        reader = opened(browser, width, scheme)
        asked: list[str] = []
        reader.on("request", lambda request: asked.append(request.url))
        for path in ("", "how-to/cancel-a-job/", "reference/api/", "reference/api/queue/"):
            reader.goto(address + path)
            reader.wait_for_load_state("networkidle")
            assert reader.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert len(asked) > 10
        assert {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_front_page(self, address: str, browser: Any, scheme: str) -> None:
        """It has a promise, a picture, a program and three links."""
        reader = opened(browser, 1280, scheme)
        reader.goto(address)
        front = reader.locator("article")
        assert "never lost" in front.locator("p").first.inner_text()
        pictures = [one for one in front.locator("img").all() if one.is_visible()]
        assert [("dark" in one.get_attribute("src")) for one in pictures] == [scheme == "dark"]
        assert pictures[0].evaluate("one => one.naturalWidth") > 0
        assert front.locator("pre").count() == 1
        assert front.locator("p a:not(.headerlink)").count() == 3
        tabs = reader.locator(".md-tabs__item").all_inner_texts()
        assert [tab.strip() for tab in tabs] == [
            "headrace",
            "Start",
            "Use",
            "Operate",
            "Understand",
            "Look up",
        ]


@pytest.mark.parametrize("name", [one.rpartition(".")[2] for one in reference.CLASSES])
def test_a_class_has_its_methods_in_the_navigation_of_its_page(name: str) -> None:
    page = reference.FOLDER / "api" / f"{name.lower()}.md"
    methods = re.findall(rf"^## ({name}\.\w+)$", page.read_text("utf-8"), re.MULTILINE)
    built = (SITE / "reference" / "api" / name.lower() / "index.html").read_text("utf-8")
    beside = built.partition('class="md-sidebar md-sidebar--secondary"')[2].partition("</nav>")[0]
    shown = re.findall(r'href="#([^"]+)"', beside)
    assert methods
    assert [reference.anchor(method) for method in methods] == shown


def test_a_type_in_a_table_has_no_backslash() -> None:
    page = SITE / "how-to" / "deploy-on-a-friday" / "index.html"
    assert "<code>int | None</code>" in page.read_text("utf-8")


def in_page(text: str) -> Callable[[Path], None]:
    """Return what appends to a page."""

    def plant(root: Path) -> None:
        page = root / "docs" / "how-to" / "tasks.md"
        page.write_text(page.read_text("utf-8") + text, "utf-8")

    return plant


def in_navigation(root: Path) -> None:
    """Rename the page that an entry of the navigation leads to."""
    config = root / builder.CONFIG
    text = config.read_text("utf-8")
    config.write_text(text.replace("how-to/tasks.md", "how-to/no-tasks.md"), "utf-8")


@pytest.mark.parametrize("link", ["no-such-page.md", "flows.md#no-such-heading", "#nowhere"])
def test_a_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    builder.copied(tmp_path / "root")
    in_page(f"\n[nowhere]({link})\n")(tmp_path / "root")
    with pytest.raises(CalledProcessError, match="zensical"):
        builder.build(tmp_path / "root", tmp_path / "site")


@pytest.mark.parametrize(
    "plant",
    [
        in_page("\n![nothing](../pictures/no-such.png)\n"),
        in_page('\n<a href="../no-such/">nowhere</a>\n'),
        in_navigation,
    ],
    ids=["picture", "HTML", "navigation"],
)
def test_a_dead_link_that_builds_is_a_fault(plant: Callable[[Path], None], tmp_path: Path) -> None:
    builder.copied(tmp_path / "root")
    plant(tmp_path / "root")
    builder.build(tmp_path / "root", tmp_path / "site")
    faults = builder.wrong(tmp_path / "site")
    assert faults
    assert all(re.search(r": \S*no-\S+ leads nowhere$", fault) for fault in faults)


def test_the_site_has_no_fault() -> None:
    """What is planted above is found by what finds nothing here."""
    assert builder.wrong(SITE) == []
