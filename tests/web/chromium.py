"""A real Chromium for the tests of pages. They are skipped where the system has none (`apt-get
install chromium`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
needs_chromium = [
    pytest.mark.ci,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def accessible(page: Any) -> None:
    """Check that the page is no wider than its window and breaks no rule of axe."""
    found = violations(page)
    assert not found, "\n".join(found)


def violations(page: Any) -> list[str]:
    """List the elements that are wider than the window, and the violations of axe's rules."""
    from axe_playwright_python.sync_playwright import Axe

    where = f"{page.url} at {page.viewport_size['width']} px"
    wide = page.evaluate(WIDER)
    found = Axe().run(page)
    return [f"{where}: wider than the window: {one}" for one in wide] + (
        [f"{where}: {found.generate_report()}"] if found.violations_count else []
    )


WIDER = """document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("main *")].filter(
    one => one.getBoundingClientRect().right > innerWidth && !one.closest(".table")
).slice(0, 3).map(one => one.outerHTML.slice(0, 200)).concat("…")"""
